"""Rescaling: makes another number of shards of a Spark operator, beside the old shards.

    look        how the operator stands, and whether it can be done; nothing is written
    generation  rescales/<g>            one create takes it
    shards      <g>/<shard>/...         packs, checkpoint, one log object
    check       what was written is read back and compared
    switch      operator/<n + 1>.json   one create: before it the old shards count, behind it the new ones

The query must have stopped after a committed batch. A crash before the switch leaves objects that are never read; the
next rescale removes these objects. The old shards stay, and `go_back` makes them count again until a batch was done
with the new shards.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.errors import HybridStoreError
from changelog.frame import Commit
from changelog.journal import chain
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage
from recovery.checkpoint import CheckpointReader
from recovery.layout import (
    RESCALES,
    LogName,
    generation_folder,
    list_checkpoints,
    parse_rescale_name,
    rescale_name,
    shard_folder,
)
from recovery.line import Step
from recovery.rule import launch_of
from recovery.runs import Claim, newest_claim
from recovery.shard_log import METRICS, SINCE, ShardLog, encode_object
from recovery.write import FreshCheckpoint, write_checkpoint

from ..spark.launches import newest_driver
from ..spark.location import Location
from ..spark.operator_file import append_operator, has_moved, read_chain, read_operator
from ..spark.query_log import committed, planned
from ..spark.reading import shards
from ..spark.shard.cache import ShardCache
from ..spark.shard.log import AttemptLog, Since
from ..spark.shard.provider import SHARD_BLOCK_RECORDS, StateStoreProvider
from ..spark.shard.shard_id import StateStoreId
from ..state.changes import Change
from ..state.numbers import added
from ..topology.windows.windowed import WINDOWS
from .report import RescaleError, RescaleReport, check_late
from .routes import Route, Routes, closing_ms
from .sharing import Compared, Family, Nowhere, Parent, check_certain, families

FORMAT_VERSION: Final = 1
# The entry that a rescale adds to a description: the number, generation and version of the old shards.
RESCALED: Final = "rescaled"
# The attempt in the name of a new shard's first object, which is not made by a task.
_ATTEMPT: Final = 1
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Standing:
    """The present facts of an operator: its descriptions, the run that counts, and the version after the last batch."""

    location: Location
    operator: str
    chain: list[dict[str, Any]]
    claim: Claim
    version: int

    @property
    def fields(self) -> dict[str, Any]:
        """The newest description."""
        return self.chain[-1]

    @property
    def storage(self) -> Storage:
        """The operator's objects."""
        return self.location.operator(self.operator)

    @property
    def shards(self) -> int:
        """How many shards count."""
        return int(self.fields["shards"])

    @property
    def generation(self) -> int:
        """The generation of the shards that count."""
        return int(self.fields["generation"])

    def files(self, shard: int, generation: int, shards: int) -> AttemptLog:
        """Return the objects of a shard."""
        identity = self.identity(shard, generation, shards)
        return AttemptLog(self.storage, identity.folder, identity.identity)

    def identity(self, shard: int, generation: int, shards: int) -> StateStoreId:
        """Return the identity of a shard of a generation of so many shards."""
        query_id = self.fields.get("query_id", "")
        return StateStoreId(self.location.state, self.operator, shard, query_id, generation, shards)


def standing_of(location: Location, operator: str, *, stopped: bool = False) -> Standing:
    """Return the present facts of an operator. `stopped`: the caller confirms that the query does not run.

    Raises RescaleError if there is no such operator, if its last batch is not committed, or if the query may run.
    """
    storage = location.operator(operator)
    chain, claim = read_chain(storage), newest_claim(storage)
    if not chain or claim is None:
        raise RescaleError(f"{storage.url}: no operator {operator!r} has state there (is this the checkpointLocation?)")
    check_stopped(storage, chain[-1], stopped=stopped)
    return Standing(location, operator, chain, claim, _version(location, operator))


def _version(location: Location, operator: str) -> int:
    """Return the version after the last batch. Raises RescaleError if the last batch is not committed."""
    query = location.query()
    last, done = planned(query), committed(query)
    if last < 0:
        raise RescaleError(
            f"{query.url}: no query has its checkpoint there: found no offsets (give the query's checkpointLocation; "
            "where the state is elsewhere, say it with --state)"
        )
    if last != done:
        raise RescaleError(
            f"{operator}: batch {last} was begun and is not committed (offsets/{last} is there, commits/{last} is "
            "not), so that the next start does it again, and its output could be there twice if other shards did it "
            "(start the query as it was until the batch is committed, and stop it then)"
        )
    return done + 1


def check_stopped(storage: Storage, fields: Mapping[str, Any], *, stopped: bool) -> None:
    """Raise RescaleError if the operator's query runs in this process, or if its driver is alive on this host."""
    sql = sys.modules.get("pyspark.sql")
    session = None if sql is None else sql.SparkSession.getActiveSession()
    for query in [] if session is None else session.streams.active:
        if query.id == fields.get("query_id"):
            raise RescaleError(f"{storage.url}: query {query.name or query.id} runs (stop it first: query.stop())")
    driver = newest_driver(storage)
    if stopped or driver is None or driver.host != socket.gethostname() or driver.pid == os.getpid():
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(driver.pid, 0)
        raise RescaleError(
            f"{storage.url}: process {driver.pid} of this host, which applied the operator last, is alive (stop the "
            "query; --stopped says that it is stopped, though the process goes on)"
        )


# --- the old shards -----------------------------------------------------------------------------------------------


def _parent(standing: Standing, shard: int, scratch: Storage) -> Parent:
    """Return the content of an old shard as a checkpoint of the version after the last batch: the newest checkpoint if
    it has this version, else a checkpoint that is written to `scratch`. Raises RescaleError. O(shard).
    """
    identity, storage = standing.identity(shard, standing.generation, standing.shards), standing.storage
    provider = StateStoreProvider(identity, cache=ShardCache(0), lenient=lambda: has_moved(storage), storage=storage)
    try:
        store = provider.get_read_store(standing.version)
        reader, step, group = store.loaded.checkpoint, store.loaded.reached.step, store.group
        is_newest = step.version == standing.version
        if reader is not None and reader.meta.version == step.version:
            return Parent(shard, reader, is_newest)
        report = write_checkpoint(
            scratch.below(str(shard)),
            identity=identity.identity,
            version=step.version,
            digest=step.digest,
            position=Position(step.version, 0, 0),
            settings=group.settings,
            captures=group.capture(),
            previous=reader,
            block_records=SHARD_BLOCK_RECORDS,
        )
        return Parent(shard, CheckpointReader(scratch.below(str(shard)), report.name), is_newest)
    except (HybridStoreError, OSError) as error:
        raise RescaleError(
            f"{standing.operator}: shard {shard} cannot be read, so nothing was changed: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class FamilyTask:
    """The work of one process: the distribution of some old shards to new shards. Can be sent to a Spark worker.

    routes   how the operator's key follows from a key of a store, by store name
    """

    standing: Standing
    numbers: list[int]
    children: list[int]
    into: int
    routes: Mapping[str, Route | str]

    def opened(self, scratch: Path, on_shard: Callable[[], None]) -> Family:
        """Read the old shards. `scratch` is a folder for temporary checkpoints. Raises RescaleError."""
        standing = self.standing
        parents: list[Parent] = []
        for shard in self.numbers:
            parents.append(_parent(standing, shard, LocalStorage(scratch)))
            on_shard()
        routes = Routes(standing.fields["program"], self.routes)
        return Family(parents, self.children, standing.shards, self.into, routes)

    def survey(self, family: Family, on_block: Callable[[int], None]) -> Survey:
        """Return the effects of the task. O(records) if shards are merged or the program has own stores. Raises
        RescaleError.
        """
        standing = self.standing
        unknown = family.check_own_stores()
        report = RescaleReport("", standing.operator, standing.shards, self.into, standing.version)
        family.count_times(report)
        after = closing_ms(standing.fields["program"], clocked=standing.fields.get("time") == "watermark")
        if after is not None:
            report.unseen = family.closing(after, WINDOWS)
        if report.exact:
            family.count_records(report)
        else:
            family.share({child: Nowhere() for child in family.children}, report, on_block)
        return Survey(report, unknown, family.store_names)

    def write(self, family: Family, generation: int, on_block: Callable[[int], None]) -> None:
        """Make the new shards. Raises RescaleError, OSError and the errors of reading."""
        standing = self.standing
        version, launch = standing.version, launch_of(standing.claim.runs, standing.version)
        files = {child: standing.files(child, generation, self.into) for child in family.children}
        sinks = {
            child: FreshCheckpoint(of_child.storage, version, block_records=SHARD_BLOCK_RECORDS)
            for child, of_child in files.items()
        }
        family.share(sinks, RescaleReport("", "", standing.shards, self.into, version), on_block)
        totals = self._totals()
        for child, sink in sinks.items():
            before, digest = self._beginning(generation, child)
            sink.finish(files[child].identity, digest, family.settings, Position(version, 0, 0), launch)
            wall_ms = int(time.time() * 1000)
            metrics: dict[str, Any] = {
                "wall_ms": wall_ms,
                "batch": version - 1,
                "rows": 0,
                "rows_out": 0,
                "load": "rescale",
            }
            # The sum over the shards stays: the first new shard of the task goes on with the totals of the old ones.
            metrics["totals"] = added(totals, {})
            totals = {}
            extra = {METRICS: metrics, SINCE: Since(wall_ms=wall_ms).plain()}
            commit = Commit(version, digest, {}, wall_ms, {}, extra)
            data = encode_object(files[child].identity, before, commit, ())
            files[child].create(LogName(version, launch, _ATTEMPT, digest[:4].hex()), data)

    def _totals(self) -> dict[str, int]:
        """Return the totals of all batches of the task's old shards. O(shards) lists and gets."""
        standing, sums = self.standing, dict[str, int]()
        for state in shards(standing.location, standing.operator):
            if state.shard in self.numbers and state.changed is not None:
                sums = added(sums, Since.of(state.files.objects.commit(state.changed)).totals or {})
        return sums

    def _beginning(self, generation: int, child: int) -> tuple[Step, bytes]:
        """Return the step before the first version of a new shard (no object has this step), and the first version's
        digest.
        """
        origin = self.standing.identity(child, generation, self.into).identity.encode()
        before = Step(self.standing.version - 1, blake2b(origin, digest_size=16).digest())
        return before, chain(before.digest, [])

    def compare(self, family: Family, generation: int, on_block: Callable[[int], None]) -> None:
        """Read the new shards back, and raise RescaleError if their content differs from the old shards."""
        standing = self.standing
        sinks: dict[int, Compared] = {}
        for child in family.children:
            storage = standing.files(child, generation, self.into).storage
            sinks[child] = Compared(CheckpointReader(storage, list_checkpoints(storage)[-1]))
        family.share(sinks, RescaleReport("", "", standing.shards, self.into, standing.version), on_block)
        for sink in sinks.values():
            sink.finish()
        different = [sink.different for sink in sinks.values() if sink.different]
        records = sum(sink.records for sink in sinks.values())
        expected = sum(parent.content.meta.records for parent in family.parents)
        if records != expected:
            different.append(f"found {records} records in the new shards, expected {expected}")
        if different:
            raise RescaleError(
                f"{standing.operator}: the new shards differ, and the old ones count: {different[0]} "
                "(run the command again; if they differ again, report it)"
            )


class Survey(NamedTuple):
    """The effects of a rescale on a family: the counts, distinct keys of stores without a route, and the names of all
    stores.
    """

    report: RescaleReport
    unknown: dict[str, set[Any]]
    stores: set[str]


class Here:
    """Processes the families in this process, one after the other, and keeps the old shards open."""

    def __init__(self, tasks: list[FamilyTask], scratch: Path, on_step: OnStep) -> None:
        self._tasks = tasks
        self._on_step = on_step
        self._shards = 0
        self._families = [task.opened(scratch, self._read) for task in tasks]
        self._records = sum(parent.content.meta.records for family in self._families for parent in family.parents)

    def _read(self) -> None:
        self._shards += 1
        self._on_step("reading", self._shards, self._tasks[0].standing.shards)

    def _on_block(self, phase: str) -> Callable[[int], None]:
        done = 0

        def advance(records: int) -> None:
            nonlocal done
            done += records
            self._on_step(phase, done, self._records)

        return advance

    def survey(self) -> list[Survey]:
        """Return the effects of the rescale on each family. Raises RescaleError."""
        on_block = self._on_block("surveying")
        return [task.survey(family, on_block) for task, family in zip(self._tasks, self._families, strict=True)]

    def make(self, generation: int) -> None:
        """Make and check the new shards. Raises RescaleError, OSError and the errors of reading."""
        on_block = self._on_block("writing")
        for task, family in zip(self._tasks, self._families, strict=True):
            task.write(family, generation, on_block)
        on_block = self._on_block("checking")
        for task, family in zip(self._tasks, self._families, strict=True):
            task.compare(family, generation, on_block)


class OnSpark:
    """Processes the families in the workers of a Spark session, in parallel. A worker returns an error as text."""

    def __init__(self, tasks: list[FamilyTask], session: Any) -> None:
        self._tasks = tasks
        self._session = session

    def _run(self, work: Callable[[FamilyTask], Any]) -> list[Any]:
        answers = self._session.sparkContext.parallelize(self._tasks, len(self._tasks)).map(work).collect()
        for answer in answers:
            if isinstance(answer, str):
                raise RescaleError(answer)
        return list(answers)

    def survey(self) -> list[Survey]:
        """See `Here`."""
        return self._run(_survey_in_worker)

    def make(self, generation: int) -> None:
        """See `Here`."""
        self._run(partial(_make_in_worker, generation))


def _survey_in_worker(task: FamilyTask) -> Survey | str:
    with tempfile.TemporaryDirectory(prefix="hybridstore-") as scratch:
        try:
            return task.survey(task.opened(Path(scratch), _nothing), _nothing)
        except (HybridStoreError, OSError) as error:
            return str(error)


def _make_in_worker(generation: int, task: FamilyTask) -> str | None:
    with tempfile.TemporaryDirectory(prefix="hybridstore-") as scratch:
        try:
            family = task.opened(Path(scratch), _nothing)
            task.write(family, generation, _nothing)
            task.compare(family, generation, _nothing)
        except (HybridStoreError, OSError) as error:
            return str(error)
    return None


def _nothing(*_: object) -> None:
    """Report no progress."""


def _surveyed(standing: Standing, into: int, surveys: list[Survey], routes: Mapping[str, Route | str]) -> RescaleReport:
    """Return the effects on all families. Raises RescaleError for own stores of the program with unknown keys."""
    Routes(standing.fields["program"], routes).check_names(set().union(*(survey.stores for survey in surveys)))
    check_certain([survey.unknown for survey in surveys], standing.shards)
    report = RescaleReport(standing.location.checkpoint, standing.operator, standing.shards, into, standing.version)
    for survey in surveys:
        report.include(survey.report)
    return report


def _make(standing: Standing, into: int, work: Here | OnSpark, report: RescaleReport) -> None:
    """Make the new shards, check them, and switch to them. Raises RescaleError; then the old shards still count."""
    generation = _take_generation(standing, into)
    try:
        work.make(generation)
        if _version(standing.location, standing.operator) != standing.version:
            raise RescaleError(
                f"{standing.operator}: the query has done a batch meanwhile, so the new shards do not count (stop it "
                "and rescale again)"
            )
        origin = {
            "from_shards": standing.shards,
            "from_generation": standing.generation,
            "version": standing.version,
        }
        _describe(standing, {"shards": into, "generation": generation, RESCALED: origin})
    except (HybridStoreError, OSError) as error:
        if isinstance(error, RescaleError):
            raise
        raise RescaleError(
            f"{standing.operator}: the new shards could not be made, and the old ones count: {error}"
        ) from error
    report.generation, report.done = generation, True
    _clear_abandoned(standing, generation)


def _take_generation(standing: Standing, into: int) -> int:
    storage = standing.storage
    taken = [number for name in storage.list(f"{RESCALES}/") if (number := parse_rescale_name(name)) is not None]
    generation = max([standing.generation, *taken])
    entry = {
        "format": FORMAT_VERSION,
        "follows": standing.fields["number"],
        "from_shards": standing.shards,
        "from_generation": standing.generation,
        "shards": into,
        "version": standing.version,
    }
    data = (json.dumps(entry, indent=1, sort_keys=True) + "\n").encode()
    while True:
        generation += 1
        if storage.create(rescale_name(generation), data):
            return generation


def _describe(standing: Standing, changed: dict[str, Any]) -> None:
    """Create the operator's next description. Raises RescaleError if another process created it first."""
    fields = {name: value for name, value in standing.fields.items() if name != RESCALED} | changed
    change = Change(f"shards: {standing.shards} before, {fields['shards']} from here on", "taken", "rescaled")
    try:
        first = append_operator(standing.storage, standing.chain, standing.version, fields, [change])
    except OSError:
        # The description may or may not have been written; the read below shows which.
        first = True
    known = read_chain(standing.storage)[-1]
    if not first or (known["shards"], known["generation"]) != (fields["shards"], fields["generation"]):
        raise RescaleError(
            f"{standing.operator}: another process has changed the operator meanwhile, or its description could not be "
            "written: what it was counts (run the command again if it is still wanted)"
        )


def _clear_abandoned(standing: Standing, generation: int) -> None:
    """Remove the objects of rescales that did not finish and cannot finish any more. Objects that cannot be removed
    stay. O(objects of these generations).
    """
    storage = standing.storage
    with suppress(OSError, HybridStoreError):
        for name in storage.list(f"{RESCALES}/"):
            number = parse_rescale_name(name)
            if number is None or number in (generation, standing.generation):
                continue
            entry = json.loads(storage.get(name))
            # `go_back` may return to a generation that a description has named.
            described = {fields["generation"] for fields in read_chain(storage)}
            if entry["follows"] <= standing.fields["number"] and number not in described:
                _remove_generation(storage, number)


def _remove_generation(storage: Storage, generation: int) -> int:
    names = storage.list(f"{generation_folder(generation)}/")
    storage.delete(names)
    return len(names)


# --- the operations -----------------------------------------------------------------------------------------------


def rescale_operator(
    location: Location,
    operator: str,
    shards: int,
    *,
    routes: Mapping[str, Route | str],
    dry_run: bool,
    late: bool,
    stopped: bool,
    spark: Any,
    on_step: OnStep,
    on_report: Callable[[RescaleReport], None],
) -> RescaleReport:
    """See `hybridstore.rescale`. `on_report` is called with the effects before anything is written."""
    standing = standing_of(location, operator, stopped=stopped)
    if standing.shards == shards:
        raise RescaleError(f"{operator}: has {shards} shards already (nothing was done)")
    tasks = [FamilyTask(standing, *numbers, shards, routes) for numbers in families(standing.shards, shards)]
    with tempfile.TemporaryDirectory(prefix="hybridstore-") as scratch:
        work = Here(tasks, Path(scratch), on_step) if spark is None else OnSpark(tasks, spark)
        report = _surveyed(standing, shards, work.survey(), routes)
        on_report(report)
        if not dry_run:
            check_late(report, late=late)
            _make(standing, shards, work, report)
    return report


def go_back(location: Location, operator: str, *, stopped: bool) -> RescaleReport:
    """Make the shards from before the last rescale count again. Raises RescaleError if a batch was done since. Some
    requests for each shard.
    """
    storage = location.operator(operator)
    chain, claim = read_chain(storage), newest_claim(storage)
    if not chain or claim is None or RESCALED not in chain[-1]:
        raise RescaleError(f"{storage.url}: there is no rescale to go back from (nothing was done)")
    check_stopped(storage, chain[-1], stopped=stopped)
    origin = chain[-1][RESCALED]
    standing = Standing(location, operator, chain, claim, origin["version"])
    for shard in range(standing.shards):
        later = ShardLog(storage.below(shard_folder(standing.generation, shard))).names(standing.version)
        if later:
            raise RescaleError(
                f"{operator}: batch {later[0].version - 1} was done with {standing.shards} shards, so that the old "
                f"ones are behind (rescale to {origin['from_shards']} instead)"
            )
    for shard in range(origin["from_shards"]):
        if not storage.list(f"{shard_folder(origin['from_generation'], shard)}/"):
            raise RescaleError(
                f"{operator}: the old shard {shard} was removed (rescale to {origin['from_shards']} instead)"
            )
    _describe(standing, {"shards": origin["from_shards"], "generation": origin["from_generation"]})
    report = RescaleReport(location.checkpoint, operator, standing.shards, origin["from_shards"], standing.version)
    report.generation, report.done = origin["from_generation"], True
    return report


def remove_old(location: Location, operator: str) -> int:
    """Remove the shards that do not count any more, and return the number of removed objects. Raises RescaleError until
    a batch was done with the new shards. O(removed objects).
    """
    storage = location.operator(operator)
    fields = read_operator(storage)
    if fields is None:
        raise RescaleError(f"{storage.url}: no operator {operator!r} has state there (is this the checkpointLocation?)")
    current = int(fields["generation"])
    if current and committed(location.query()) + 1 <= fields.get(RESCALED, {}).get("version", 0):
        raise RescaleError(
            f"{operator}: no batch was done with the new shards yet: the old ones stay, to go back to (start the query)"
        )
    taken = [number for name in storage.list(f"{RESCALES}/") if (number := parse_rescale_name(name)) is not None]
    return sum(_remove_generation(storage, number) for number in {0, *taken} - {current})
