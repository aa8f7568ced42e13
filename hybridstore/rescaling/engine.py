"""Engine: makes another number of shards beside the old ones, of a plain topology or of a Spark operator.

    survey      the effects; nothing is written
    generation  rescales/<g>      one create takes it
    shards      <g>/<shard>/...   packs, a checkpoint, and where the log continues behind it
    compare     what was written is read back
    switch      one create: before it the old shards count, behind it the new ones

What differs between the two is `Shards`: `plain` and `spark`. A crash before the switch leaves objects that are never
read.
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from changelog.errors import HybridStoreError
from changelog.storage import LocalStorage, Storage
from recovery.checkpoint import CheckpointReader
from recovery.compaction import SIZES, Sizes
from recovery.layout import list_checkpoints, list_rescales, rescale_name, shard_folder
from recovery.write import FreshCheckpoint

from ..progress import OnProgress
from .report import RescaleError, RescaleReport, check_late
from .routes import Route, Routes, closing_ms
from .sharing import Compared, Discard, OldShard, ShardGroup, Sink, check_certain, shard_groups

FORMAT_VERSION: Final = 1
_WINDOWS: Final = "windows"


class Old(NamedTuple):
    """The shards that count: the number of the description that says so, their generation, their count, and the
    version with which the new ones begin.
    """

    number: int
    generation: int
    shards: int
    version: int


class Shards(ABC):
    """The shards of one state, old and new.

    where     the state, for messages
    location, operator  as in a report
    program   the description of the topology or program
    clocked   the time is the query's watermark
    same      settings that every new shard gets, whatever the old ones have
    apart     stores that are not shared out by their keys
    sizes     bounds of the parts of a checkpoint
    """

    where: str
    location: str
    operator: str = ""
    program: Mapping[str, Any]
    clocked: bool = False
    same: Mapping[str, Any] = MappingProxyType({})
    apart: Collection[str] = ()
    sizes: Sizes = SIZES
    old: Old

    @property
    @abstractmethod
    def place(self) -> Storage:
        """Where `rescales/` and the new shards are."""

    @abstractmethod
    def parent(self, shard: int, scratch: Storage) -> OldShard:
        """Return the content of an old shard; `scratch` is for a checkpoint that has to be made. Raises RescaleError.
        O(shard).
        """

    @abstractmethod
    def version_of(self, family: ShardGroup) -> int:
        """Return the version of a family's new shards."""

    def storage(self, generation: int, child: int) -> Storage:
        """Return where a new shard is."""
        return self.place.below(shard_folder(generation, child))

    @abstractmethod
    def finish(self, family: ShardGroup, sinks: Mapping[int, FreshCheckpoint], generation: int, into: int) -> None:
        """Finish the checkpoints of a family's new shards, and begin their logs."""

    @abstractmethod
    def switch(self, generation: int, into: int) -> None:
        """Make the new shards count, by one create. Raises RescaleError if the old ones have changed meanwhile."""

    def add_apart(self, family: ShardGroup, sink: Sink) -> None:
        """Give the first new shard the stores that are apart."""
        return None

    def clean(self, generation: int) -> None:
        """Remove what earlier rescales have left behind."""
        return None


class Survey(NamedTuple):
    """The effects of a rescale on a family: the counts, distinct keys of stores without a route, and the names of all
    stores.
    """

    report: RescaleReport
    unknown: dict[str, set[Any]]
    stores: set[str]


@dataclass(frozen=True, slots=True)
class FamilyTask:
    """The distribution of some old shards to new shards. With the shards of an operator it can be sent to a Spark
    worker.

    routes   how the operator's key follows from a key of a store, by store name
    """

    shards: Shards
    numbers: list[int]
    children: list[int]
    into: int
    routes: Mapping[str, Route | str]

    def opened(self, scratch: Path, on_shard: Callable[[], None]) -> ShardGroup:
        """Read the old shards. `scratch` is a folder for temporary checkpoints. Raises RescaleError."""
        shards, parents = self.shards, list[OldShard]()
        for number in self.numbers:
            parents.append(shards.parent(number, LocalStorage(scratch)))
            on_shard()
        routes = Routes(shards.program, self.routes)
        return ShardGroup(
            parents, self.children, shards.old.shards, self.into, routes, same=shards.same, apart=shards.apart
        )

    def _report(self) -> RescaleReport:
        shards = self.shards
        return RescaleReport(shards.location, shards.operator, shards.old.shards, self.into, shards.old.version)

    def survey(self, family: ShardGroup, on_block: Callable[[int], None]) -> Survey:
        """Return the effects of the task. O(records) if shards are merged or the program has own stores. Raises
        RescaleError.
        """
        unknown, report = family.check_own_stores(), self._report()
        family.count_times(report)
        after = closing_ms(self.shards.program, clocked=self.shards.clocked)
        if after is not None:
            report.unseen = family.closing(after, _WINDOWS)
        if report.exact:
            family.count_records(report)
        else:
            family.share({child: Discard() for child in family.children}, report, on_block)
        return Survey(report, unknown, family.store_names)

    def write(self, family: ShardGroup, generation: int, on_block: Callable[[int], None]) -> None:
        """Make the new shards. Raises RescaleError, OSError and the errors of reading."""
        shards, into = self.shards, self.into
        version, size = shards.version_of(family), sum(parent.content.meta.size for parent in family.parents)
        sinks = {
            child: FreshCheckpoint(shards.storage(generation, child), version, sizes=shards.sizes, state=size)
            for child in family.children
        }
        family.share(sinks, self._report(), on_block)
        self._add_apart(family, sinks)
        shards.finish(family, sinks, generation, into)

    def _add_apart(self, family: ShardGroup, sinks: Mapping[int, Sink]) -> None:
        if 0 in sinks:
            self.shards.add_apart(family, sinks[0])

    def compare(self, family: ShardGroup, generation: int, on_block: Callable[[int], None]) -> None:
        """Read the new shards back, and raise RescaleError if their content differs from the old shards."""
        sinks: dict[int, Compared] = {}
        for child in family.children:
            storage = self.shards.storage(generation, child)
            sinks[child] = Compared(CheckpointReader(storage, list_checkpoints(storage)[-1]), self.shards.apart)
        family.share(sinks, self._report(), on_block)
        self._add_apart(family, sinks)
        for sink in sinks.values():
            sink.finish()
        different = [sink.different for sink in sinks.values() if sink.different]
        records, expected = sum(sink.records for sink in sinks.values()), family.records
        if records != expected:
            different.append(f"found {records} records in the new shards, expected {expected}")
        if different:
            raise RescaleError(
                f"{self.shards.where}: the new shards differ, and the old ones count: {different[0]} (run the command "
                "again; if they differ again, report it)"
            )


class InProcess:
    """Processes the families in this process, one after the other, and keeps the old shards open."""

    def __init__(self, tasks: list[FamilyTask], scratch: Path, on_step: OnProgress) -> None:
        self._tasks = tasks
        self._on_step = on_step
        self._shards = 0
        self._families = [task.opened(scratch, self._read) for task in tasks]
        self._records = sum(parent.content.meta.records for family in self._families for parent in family.parents)

    def _read(self) -> None:
        self._shards += 1
        self._on_step("reading", self._shards, self._tasks[0].shards.old.shards)

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


class InWorkers:
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
        return self._run(_survey_in_worker)

    def make(self, generation: int) -> None:
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


class RescaleArguments(NamedTuple):
    """The arguments of `hybridstore.rescale` that do not say where the state is; see there."""

    into: int
    routes: Mapping[str, Route | str]
    dry_run: bool
    late: bool
    spark: Any
    on_step: OnProgress
    on_report: Callable[[RescaleReport], None]

    def check(self, where: str, shards: int) -> None:
        """Raise RescaleError if the state has the wanted number of shards."""
        if shards == self.into:
            raise RescaleError(f"{where}: has {shards} shards already (nothing was done)")


def rescale(shards: Shards, asked: RescaleArguments) -> RescaleReport:
    """Give the state the number of shards that is asked for; see `hybridstore.rescale`. `asked.on_report` is called
    with the effects before anything is written. Raises RescaleError; the old shards then still count.
    """
    old, into = shards.old, asked.into
    tasks = [FamilyTask(shards, *numbers, into, asked.routes) for numbers in shard_groups(old.shards, into)]
    try:
        with tempfile.TemporaryDirectory(prefix="hybridstore-") as folder:
            spark, scratch = asked.spark, Path(folder)
            work = InProcess(tasks, scratch, asked.on_step) if spark is None else InWorkers(tasks, spark)
            surveys = work.survey()
            Routes(shards.program, asked.routes).check_names(set().union(*(survey.stores for survey in surveys)))
            check_certain([survey.unknown for survey in surveys], old.shards)
            report = RescaleReport(shards.location, shards.operator, old.shards, into, old.version)
            for survey in surveys:
                report.include(survey.report)
            asked.on_report(report)
            if asked.dry_run:
                return report
            check_late(report, late=asked.late)
            generation = _take_generation(shards, into)
            work.make(generation)
            shards.switch(generation, into)
    except (HybridStoreError, OSError) as error:
        if isinstance(error, RescaleError):
            raise
        raise RescaleError(
            f"{shards.where}: the new shards could not be made, and the old ones count: {error}"
        ) from error
    shards.clean(generation)
    return counting(report, generation)


def counting(report: RescaleReport, generation: int) -> RescaleReport:
    """Return the report of a rescale that is done: the shards of a generation count."""
    report.generation, report.done = generation, True
    return report


def _take_generation(shards: Shards, into: int) -> int:
    old = shards.old
    generation = max([old.generation, *list_rescales(shards.place)])
    entry = {
        "format": FORMAT_VERSION,
        "follows": old.number,
        "from_shards": old.shards,
        "from_generation": old.generation,
        "shards": into,
        "version": old.version,
    }
    data = (json.dumps(entry, indent=1, sort_keys=True) + "\n").encode()
    while True:
        generation += 1
        if shards.place.create(rescale_name(generation), data):
            return generation
