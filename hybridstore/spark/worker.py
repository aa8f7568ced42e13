"""Worker: the function that runs in Spark's Python workers, once for each task of a batch.

    drain the input -> for each shard: load the version before this batch -> process -> create the version's object
                    -> note the shards without rows -> only then yield rows

A consumer that stops early (a `limit`) closes the generator, and the batch still succeeds. So all work that the batch
needs is done before the first yield. Any failure before the commit leaves the version before this batch unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from recovery.rule import launch_of
from recovery.runs import Claim

from ..collector import Tasks
from ..state.log_lines import SPARK, info, warn
from .connect import BATCH, RUN
from .contract import FRAME_ROWS, Batch, Runner, whole_runner
from .errors import SkippedBatchError, SparkSetupError
from .event_time import check_event_time
from .launches import STARTS, claim
from .operator_file import agree_on_description, has_moved, note_moved, operator_storage
from .placement import hand_over, note_load
from .query_log import BatchTime, query_in_run, time_in_run, watermark_of
from .session import BATCH_ID, CONTINUOUS, QUERY_ID, RUN_ID, check_session
from .shard.cache import CACHE
from .shard.provider import StateStoreProvider
from .shard.shard_id import StateStoreId
from .sharding import SHARD_COLUMN
from .shipped import Operator, Shipped
from .task_numbers import noted, with_numbers

if TYPE_CHECKING:
    import pyarrow as pa


class Counts(NamedTuple):
    """The counts of a runner since it was opened."""

    late: int
    null_key: int
    null_timestamp: int

    @classmethod
    def of(cls, runner: Runner) -> Counts:
        """Return the counts of a runner."""
        return cls(runner.dropped, *runner.left_out)

    def since(self, before: Counts) -> dict[str, int]:
        """Return the differences from earlier counts, by name."""
        return {name: now - then for name, now, then in zip(self._fields, self, before, strict=True)}


# By state and operator: the claim of the present run, the first batch of the operator's description (-1 for the first
# description), and the generation of the shards. An entry is added after the operator was compared with its
# description, and is the same for every batch of the run.
_claims: dict[tuple[str, str], tuple[Claim, int, int]] = {}
# The number of notes of one task that are created in parallel, because a note mostly waits for disk or network.
NOTES_AT_ONCE: Final = 8
# What the rows of a batch pay for a replayed record, which the load has only read (1.1 µs for counts of 100,000 keys,
# 1.7 µs for sliding windows).
APPLYING_MS: Final = 0.001
# Added to the attempt of a call that knows its shards, in a batch in which calls without rows process shards, too
# (`ShardWork.everywhere`): the objects of calls that know count. A multiple of what tells the notes of attempts apart.
KNOWN: Final = 1 << 40
# PySpark's worker runs the garbage collector after every task: 0.25 s for half a million records that are not frozen.
_tasks = Tasks()


def this_batch(operator: Operator) -> Batch:
    """Read the batch from the task's context. Raises SparkSetupError if the settings of the task do not fit."""
    from pyspark import TaskContext

    context = TaskContext.get()
    get = context.getLocalProperty if context is not None else lambda key: None
    number = get(BATCH_ID) or get(BATCH)
    if context is None or number is None:
        raise SparkSetupError(
            f"operator {operator.name!r}: found no batch number, expected to run in a streaming query (with Spark "
            "Connect give foreachBatch its function as hybridstore.spark.foreach_batch(function))"
        )
    if get(CONTINUOUS) == "true":
        raise SparkSetupError(f"operator {operator.name!r}: found trigger(continuous=...), expected micro-batches")
    check_session(get)
    batch = int(number)
    run_id = get(RUN_ID) if get(BATCH_ID) else get(RUN)
    run_id = run_id or ""
    times = time_in_run(operator.location, run_id, batch)
    query_id = get(QUERY_ID) or query_in_run(operator.location, run_id)
    return begun_batch(operator, number=batch, query_id=query_id, run_id=run_id, times=times, context=context)


def begun_batch(
    operator: Operator,
    *,
    number: int,
    query_id: str,
    run_id: str,
    times: BatchTime,
    context: Any,
    first: Mapping[str, Any] | None = None,
) -> Batch:
    """Return the batch of a task of a run, after the description of the operator was settled, and the run begun, once
    for each process. `first`: what makes batch 0 instead of a query (`agree_on_description`).

    Raises ProgramMismatchError, SparkSetupError, StaleAttemptError, CannotCommitError.
    """
    # Spark counts attempts from 0, but 0 is the attempt of a note.
    attempt = context.taskAttemptId() + 1
    key = (operator.location.state, operator.name)
    begun, changed, generation = _claims.get(key, (None, -1, 0))
    if begun is None or begun.run_id != run_id or begun.launch // STARTS != operator.launch // STARTS:
        storage = operator_storage(operator.location, operator.name)
        asked = {"query_id": query_id, "name": operator.name, **operator.fingerprint(), **(first or {})}
        described = agree_on_description(storage, asked, number, operator.program, operator.allow)
        changed = described["from"] - 1 if described["number"] > 1 else -1
        generation = described["generation"]
        begun = claim(storage, operator.launch, run_id, number, attempt)
        _claims[key] = begun, changed, generation
    return Batch(number, query_id, run_id, context.partitionId(), *times, begun, attempt, changed == number, generation)


def run_shards(function: ShardFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function that Spark calls: takes all rows of a task's shards in this batch and yields their results."""
    started = time.perf_counter()
    operator = function.operator
    with _tasks.task():
        batch = this_batch(operator)
        work = ShardWork(operator, batch)
        received = [part for part in batches if part.num_rows]
        read_ms = (time.perf_counter() - started) * 1000
        tables: list[pa.Table] = []
        arrived = by_shard(received, operator.shards)
        program, is_first = operator.program, batch.number == batch.claim.first
        if batch.changed or program.empty_shards == "batch" or (is_first and program.begins_everywhere):
            arrived = work.everywhere(arrived)
        work.begin([shard for shard, _ in arrived])
        for shard, table in arrived:
            results = hand_over(function, work.batch, shard, table, read_ms)
            if results is None:
                results = work.shard(shard, table, read_ms)
                if work.moved_ms is not None:
                    note_load(function, work.batch, shard, work.moved_ms)
            else:
                # the worker's copy of the shard from the time before the holder started
                CACHE.drop(work.storage.url)
            tables.append(results)
        # Checkpoints and pruning come last, while Spark reads the rows.
        try:
            if operator.observed:
                yield from with_numbers(tables)
            else:
                for table in tables:
                    yield from table.to_batches(FRAME_ROWS)
        finally:
            work.maintain()


def by_shard(received: list[pa.RecordBatch], shards: int) -> list[tuple[int, pa.Table]]:
    """Return the rows of each shard that has rows. Below a `coalesce`, these can be shards of other tasks, too.

    A tick (`ticks`) has a negative number as its shard. A tick is no row, but its shard is processed, too.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not received:
        return []
    table = pa.Table.from_batches(received)
    column = table.column(SHARD_COLUMN)
    ends = pc.min_max(column).as_py()
    if ends["min"] == ends["max"] >= 0:
        return [(ends["min"], table.drop_columns([SHARD_COLUMN]))]
    called = {mark + shards if mark < 0 else mark for mark in pc.unique(column).to_pylist()}
    if ends["min"] < 0:
        table = table.filter(pc.greater_equal(column, 0))
    column = table.column(SHARD_COLUMN)
    table = table.drop_columns([SHARD_COLUMN])
    if len(called) == 1:
        return [(called.pop(), table)]
    return [(shard, table.filter(pc.equal(column, shard))) for shard in sorted(called)]


def number_of(attempt: int, placement: Literal["worker", "holder"]) -> int:
    """Return the number under which a process writes for an attempt of Spark: a holder below its worker.

    A holder may die, or be given up, behind its commit. The worker then does the batch again, and its rows are given
    out: its object must be another one, and the one that counts. Above 0, the attempt of notes.
    """
    return 2 * attempt + (placement == "worker")


class ShardWork:
    """The work of one task for its shards, in Spark's worker or in a holder (`placement`)."""

    def __init__(self, operator: Operator, batch: Batch, placement: Literal["worker", "holder"] = "worker") -> None:
        self.operator = operator
        self.batch = batch
        self.placement = placement
        self.storage = operator_storage(operator.location, operator.name)
        # Processor time (ms) that catching up with the last shard costs, if another process has worked on this shard in
        # this run; else None.
        self.moved_ms: float | None = None
        self._providers: list[StateStoreProvider] = []
        CACHE.limit_to(operator.memory_limit)

    def _provider(self, shard: int, *, neighbour: bool = False) -> StateStoreProvider:
        # `lenient` does not refer to this object, which would then be part of a cycle, and frozen with the task.
        operator, batch, storage = self.operator, self.batch, self.storage
        return StateStoreProvider(
            StateStoreId(
                operator.location.state, operator.name, shard, batch.query_id, batch.generation, operator.shards
            ),
            policy=operator.policy,
            claim=batch.claim,
            attempts=repeat(number_of(batch.attempt, self.placement)),
            # If tasks do not run under their own number, a task without rows cannot know its shards.
            lenient=lambda: (operator.task_of(shard) != batch.partition and not neighbour) or has_moved(storage),
            storage=storage,
        )

    def shard(self, shard: int, table: pa.Table, read_ms: float) -> pa.Table:
        """Process and commit the rows of one shard, and return the results.

        Raises the errors of the program and of the provider.
        """
        operator, batch = self.operator, self.batch
        load_begun = time.thread_time()
        provider = self._provider(shard)
        self._providers.append(provider)
        store = provider.get_store(batch.number)
        load_cpu = time.thread_time() - load_begun
        moved = (
            store.loaded.kind != "hit"
            and launch_of(batch.claim.runs, store.loaded.reached.step.version) == batch.claim.launch
        )
        # The load only reads the records that were replayed; most stores apply them with the rows of their keys.
        self.moved_ms = load_cpu * 1000 + store.loaded.replayed.records * APPLYING_MS if moved else None
        try:
            loaded = store.shard
            if loaded.runner is None or loaded.runner[0] != batch.run_id or operator.program.fresh:
                loaded.runner = (batch.run_id, whole_runner(operator.program.open(loaded.group)))
            runner: Runner = loaded.runner[1]
            runner.begin(batch, shard, operator.shards, operator.location)
            before = Counts.of(runner)
            begun, cpu_begun = time.perf_counter(), time.thread_time()
            watermark = None
            if operator.time == "watermark":
                watermark = watermark_of(operator.location, batch)
            results = runner.process(table, operator.output, watermark)
            if results.schema != operator.output:
                results = results.select(operator.output.names).cast(operator.output)
            event_time = operator.program.event_time
            if event_time is not None:
                check_event_time(results.column(event_time), watermark_of(operator.location, batch), operator, batch)
            store.commit(
                {
                    "batch": batch.number,
                    "run": batch.run_id,
                    "placement": self.placement,
                    "rows": table.num_rows,
                    "rows_out": results.num_rows,
                    **Counts.of(runner).since(before),
                    "by_row": runner.by_row,
                    "read_ms": round(read_ms, 3),
                    "process_ms": round((time.perf_counter() - begun) * 1000, 3),
                    "load_cpu_ms": round(load_cpu * 1000, 3),
                    "process_cpu_ms": round((time.thread_time() - cpu_begun) * 1000, 3),
                }
            )
            if batch.guessed:
                store.shard.doubt()
        except BaseException:
            store.abort()
            raise
        counted = Counts.of(runner).since(before)
        if any(counted.values()):
            where = (operator.name, shard, batch.number)
            info("operator %r, shard %d, batch %d: %s", *where, counted, logger=SPARK)
        if store.loaded.skipped:
            warn("operator %r, shard %d: %s", operator.name, shard, "; ".join(store.loaded.skipped), logger=SPARK)
        if operator.observed:
            return noted(results, {"rows": table.num_rows, "rows_out": results.num_rows, **counted})
        return results

    def everywhere(self, arrived: list[tuple[int, pa.Table]]) -> list[tuple[int, pa.Table]]:
        """Return the rows of each shard of the call, also of shards without rows.

        A row or a tick says whose call it is. A call without either is taken for that of the task's number, unless
        tasks have moved: such a call has no shards, which wait for their next row or tick. What a call without rows
        commits ranks below the objects of calls that know their shards (`KNOWN`), and is compared with the log before
        this process continues from it. O(shards of the task), one list each.
        """
        operator, batch = self.operator, self.batch
        if operator.input is None:
            return arrived
        tables, empty = dict(arrived), operator.input.empty_table()
        task = operator.task_of(arrived[0][0]) if arrived else batch.partition
        mine = operator.shards_of(task)
        if not arrived and has_moved(self.storage):
            return []
        if (not arrived or batch.number == batch.claim.first) and any(map(self._was_called, mine)):
            self._note_moved()
            if not arrived:
                return []
        self.batch = replace(batch, attempt=batch.attempt + KNOWN) if arrived else replace(batch, guessed=True)
        return [(shard, tables.get(shard, empty)) for shard in mine]

    def _was_called(self, shard: int) -> bool:
        """Whether this task, below a `coalesce`, has done the batch for a shard before."""
        return self._provider(shard).was_called(self.batch.number)

    def begin(self, arrived: Sequence[int]) -> None:
        """Write notes for the task's shards without rows (all but `arrived`), after a check of the next task's shards.

        A call without rows finds its shards by the task's number. With a union or a coalesce, tasks do not run under
        their own number, so these notes may be for other shards. A note does not count if an attempt with rows has
        committed the batch. Raises SkippedBatchError, StaleAttemptError, CannotCommitError. O(shards of the task), one
        create each.
        """
        operator, batch = self.operator, self.batch
        task = operator.task_of(arrived[0]) if arrived else batch.partition
        mine = operator.shards_of(task)
        if not mine or task != batch.partition:
            self._note_moved()
        elif arrived:
            self._check_neighbour()
        empty = [self._provider(shard) for shard in mine if shard not in arrived]
        self._providers += empty
        metrics = {"batch": batch.number, "run": batch.run_id, "rows": 0, "rows_out": 0}
        if len(empty) > 1:
            with ThreadPoolExecutor(min(len(empty), NOTES_AT_ONCE)) as pool:
                noted = list(pool.map(lambda provider: provider.note_empty(batch.number, metrics), empty))
        else:
            noted = [provider.note_empty(batch.number, metrics) for provider in empty]
        if not all(noted):
            # A `coalesce` has merged tasks: this task has run the operator before, for shards that the task cannot
            # name.
            self._note_moved()

    def _note_moved(self) -> None:
        if not has_moved(self.storage):
            note_moved(self.storage)

    def _check_neighbour(self) -> None:
        """Raise SkippedBatchError if a shard of the next task missed the last batch. The next task cannot report this
        if Spark never runs it. One list for each of these shards in the batches 1, 2, 4, 8, ... of a run; no check in
        other batches.
        """
        operator, batch = self.operator, self.batch
        done = batch.number - batch.claim.first
        other = operator.task_of(batch.partition + 1)
        if done and done & (done - 1) == 0 and other != batch.partition:
            try:
                for shard in operator.shards_of(other):
                    self._provider(shard, neighbour=True).check_reached(batch.number)
            except SkippedBatchError:
                if not self._merged():
                    raise
                self._note_moved()

    def _merged(self) -> bool:
        """True if a `coalesce` has merged tasks in the last batch. Then some task ran the operator twice: either the
        task had rows of other tasks' shards, which `begin` has noted, or the task left a note beside an object that it
        had written itself. One list for each shard, up to the first shard with such a note.
        """
        shards = range(self.operator.shards)
        return any(self._provider(shard).was_called_twice(self.batch.number) for shard in shards)

    def maintain(self, *, closing: bool = False) -> None:
        """Begin a checkpoint that is due, and prune. The rows were emitted before. `closing`: this process leaves the
        shards, so wait until it is written.
        """
        for provider in self._providers:
            provider.maintain(wait=closing, oldest_replay=self.batch.number, closing=closing)


class ShardFunction(Shipped):
    """`run_shards` for one operator."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_shards(self, batches)
