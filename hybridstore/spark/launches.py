"""Launches: the start of a query to which a task belongs, by numbers that drivers assign.

    driver      apply            creates launches/<n>: n travels with the operator
    first task  before it loads  creates runs/<n>: run id, first batch

The driver must assign the number. If runs were numbered when their first tasks arrive, a late first task of an ended
query would outrank the present query.

The surprise: one applied DataFrame may be started twice. Its second run gets the next number, n + 1, when its first
task arrives. Both runs are of one SparkContext, which numbers task attempts in the order of their starts: a task of the
first run that arrives behind the second run sees the greater attempt, and stops. So drivers take every thousandth
number.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from typing import Final, NamedTuple

from changelog.codec import pack, unpack
from changelog.errors import HybridStoreError
from changelog.storage import Storage, exists
from recovery.layout import ERASING, launch_name, list_launches, list_runs, run_name
from recovery.rule import Run, begun
from recovery.runs import Claim, encode_claim, read_claim

from ..state.log_lines import SPARK, info, warn
from .errors import CannotCommitError, SparkSetupError, StaleAttemptError

# How often one applied DataFrame can be started.
STARTS: Final = 1000


def new_launch(storage: Storage, *, erasing: bool = False) -> int:
    """Take the number of a new launch; `storage` is the operator's. O(launches).

    Raises SparkSetupError for a folder that cannot be written, and if an erase has begun and has not ended, unless it
    is `erasing` itself.
    """
    newest = max([*list_launches(storage), *list_runs(storage)], default=0)
    while True:
        newest = (newest // STARTS + 1) * STARTS
        driver = {"wall_ms": int(time.time() * 1000), "host": socket.gethostname(), "pid": os.getpid()}
        if _create(storage, launch_name(newest), pack(driver)):
            # behind the create: an erase that begins now takes a later number, so that this launch is overtaken
            if not erasing and exists(storage, ERASING):
                raise SparkSetupError(
                    f"{storage.url}: an erase has begun here and has not ended (run the same hybridstore erase again)"
                )
            return newest


def _create(storage: Storage, name: str, data: bytes) -> bool:
    try:
        return storage.create(name, data)
    except OSError as error:
        if isinstance(error, HybridStoreError):  # of an object store: a sentence of its own
            raise
        raise SparkSetupError(
            f"{storage.url}: cannot be written: {error.strerror} (expected a location that the driver and all workers "
            "can write)"
        ) from error


class DriverProcess(NamedTuple):
    """The process that took a launch's number: its host and process id."""

    host: str
    pid: int


def newest_driver(storage: Storage) -> DriverProcess | None:
    """Return the driver of the newest launch; None without a launch, or if its object names no driver. O(launches),
    one get.
    """
    taken = list_launches(storage)
    if not taken:
        return None
    fields = unpack(storage.get(launch_name(taken[-1])))
    return DriverProcess(fields["host"], fields["pid"]) if "host" in fields else None


def claim(storage: Storage, launch: int, run_id: str, batch: int, attempt: int) -> Claim:
    """Begin the run `run_id` of a launch with `batch`, unless another task has begun it, and return its claim.

    `attempt` is the number of the task's attempt. Raises StaleAttemptError when a newer run has begun,
    SparkSetupError when the query has two operators of one name, CannotCommitError when no object can be created, and
    as `decode_claim`. O(launches), once for each process and run.
    """
    same = launch // STARTS
    while True:
        launches = list_runs(storage)
        mine = [number for number in launches if number // STARTS == same]
        try:
            newest = read_claim(storage, launches[-1]) if launches else None
            known = next((read for number in mine if (read := read_claim(storage, number)).run_id == run_id), None)
        except FileNotFoundError:
            if list_runs(storage) == launches:
                raise
            continue  # a newer run has begun, and has removed these
        if known is not None and known == newest:
            return known
        if newest is not None and newest.run_id == run_id and newest.launch // STARTS != same:
            raise SparkSetupError(
                f"{storage.url}: two operators of this query are called {storage.url.rpartition('/')[2]!r} (give each "
                "a name of its own)"
            )
        if newest is not None and (known or newest.launch // STARTS > same or (mine and newest.attempt > attempt)):
            warn(
                "%s: run %s of launch %d is overtaken by launch %d",
                storage.url,
                run_id,
                launch,
                newest.launch,
                logger=SPARK,
            )
            raise StaleAttemptError(
                f"{storage.url}: run {run_id} of launch {launch} is overtaken: run {newest.run_id} of launch "
                f"{newest.launch} has begun (a late attempt of a query that was restarted, or a DataFrame that was "
                "applied before that query was: apply it again)"
            )
        number = mine[-1] + 1 if mine else launch
        runs = begun(newest.runs if newest is not None else (), Run(number, batch))
        claimed = Claim(run_id, attempt, runs)
        while number // STARTS == same:
            try:
                if storage.create(run_name(number), encode_claim(claimed)):
                    _clear(storage, launches, number)
                    info("%s: launch %d begins with batch %d", storage.url, number, batch, logger=SPARK)
                    return claimed
            except OSError as error:
                raise CannotCommitError(
                    f"{storage.url}/{run_name(number)}: the run could not begin: {error.strerror or error} (run the "
                    "batch again)"
                ) from error
            if number in list_runs(storage):
                break  # another task was first: see whose it is
            # Where a file system has no links, a name may be taken by a writer that died half-way.
            number += 1
            claimed = Claim(run_id, attempt, (*runs[:-1], Run(number, batch)))
        else:
            raise CannotCommitError(
                f"{storage.url}: launch {launch} was started {STARTS} times (apply the DataFrame again)"
            )


def begin(storage: Storage, batch: int) -> Claim:
    """Take a new launch and begin its run, as a driver and its first task do: for tools and tests.

    Raises as `claim`.
    """
    return claim(storage, new_launch(storage), uuid.uuid4().hex, batch, 1)


def _clear(storage: Storage, launches: list[int], number: int) -> None:
    """Remove the runs and launches of older drivers: the claim of the newest run has all their facts."""
    oldest = number // STARTS * STARTS
    if not any(launch < oldest for launch in launches):
        return
    # The next run removes what cannot be removed now.
    with suppress(OSError):
        storage.delete(
            [run_name(launch) for launch in launches if launch < oldest]
            + [launch_name(launch) for launch in list_launches(storage) if launch < oldest]
        )
