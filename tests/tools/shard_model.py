"""Shard model: the protocol of a shard in a few lines, over the same storage, names and rule as the product.

It does what docs/design.md says and nothing else, so that a hundred thousand schedules take seconds; what it does not
have (checkpoints, caches on disk, clearing up) is left to the product's own code under the same simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from recovery import layout
from recovery.layout import LogName
from recovery.line import EMPTY, Step
from recovery.rule import Run, Runs, Standing, begun
from tests.tools.simulated_storage import Process, SimulatedStorage
from tests.tools.spark_query import Rows


class MissingVersion(Exception):
    """A version that was acknowledged has no object."""


class ShardModel:
    """The protocol.

    strict       a batch that changes nothing has an object as well
    by_arrival   launches have the number in which their first tasks began, not the driver's
    """

    def __init__(self, *, strict: bool = True, by_arrival: bool = False) -> None:
        self.strict = strict
        self.by_arrival = by_arrival
        self.numbers: dict[int, int] = {}

    def launch(self, storage: SimulatedStorage) -> int:
        taken = [layout.parse_launch_name(name) or 0 for name in storage.list(f"{layout.LAUNCHES}/")]
        number = max(taken, default=0) + 1
        while not storage.create(layout.launch_name(number), b""):
            number += 1
        return number

    def _runs(self, storage: SimulatedStorage) -> Runs:
        runs: Runs = ()
        for name in storage.list(f"{layout.RUNS}/"):
            runs = begun(runs, Run(layout.parse_run_name(name) or 0, int(storage.get(name))))
        return runs

    def attempt(
        self,
        storage: SimulatedStorage,
        process: Process,
        launch: int,
        batch: int,
        number: int,
        value: int,
        check: Callable[[Rows], None],
    ) -> None:
        applied = launch
        if self.by_arrival:
            launch = self.numbers.setdefault(launch, len(self.numbers) + 1)
        if process.memory.get("launch") != applied:
            process.memory.clear()
            storage.create(layout.run_name(launch), b"%d" % batch)
        step, rows = self._load(storage, batch) if process.memory.get("version") != batch else process.memory["loaded"]
        process.memory.clear()
        check(dict(rows))
        if value or self.strict:
            data = json.dumps({"parent": [step.version, step.digest.hex()], "batch": batch, "value": value}).encode()
            step = Step(batch + 1, digest_after(step.digest, batch, value))
            name = layout.log_name(batch + 1, launch, number, step.digest)
            try:
                storage.create(name, data)
            except OSError:
                # The answer may be lost: what is there decides.
                if storage.get(name) != data:
                    raise
        loaded = (step, {**rows, batch: value} if value else rows)
        process.memory.update(launch=applied, version=batch + 1, loaded=loaded)

    def _load(self, storage: SimulatedStorage, version: int) -> tuple[Step, Rows]:
        runs = self._runs(storage)
        names = [parsed for name in storage.list(f"{layout.LOG}/") if (parsed := layout.parse_log_name(name))]
        standing = Standing(names, runs)
        if self.strict and version and not standing.has(version):
            raise MissingVersion(f"version {version} is missing among {names}, {runs}")
        contents: list[dict[str, Any]] = []

        def parent_of(name: LogName) -> Step:
            contents.append({"version": name.version, **json.loads(storage.get(str(name)))})
            return Step(contents[-1]["parent"][0], bytes.fromhex(contents[-1]["parent"][1]))

        for _ in standing.line(version, parent_of):
            pass
        step = EMPTY
        for fields in reversed(contents):
            step = Step(fields["version"], digest_after(step.digest, fields["batch"], fields["value"]))
        return step, {fields["batch"]: fields["value"] for fields in contents if fields["value"]}


def digest_after(digest: bytes, batch: int, value: int) -> bytes:
    """The digest of the version that follows the one with `digest`."""
    return blake2b(digest + f" {batch} {value}".encode(), digest_size=16).digest()
