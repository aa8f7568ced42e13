"""Run: a topology over rows in plain Python, crash-safe and resumable.

The rule of which results are yielded again: docs/topologies.md.

Every shard commits the results of a commit together with its state, so that a run can yield them again after a crash.
The results of the last two commits that had any are kept: a consumer knows that commit N is complete only when it sees
a result of a later commit, so after a crash both may be needed. A consumer that reaches the end of the source has all
results; this fact is committed, too, and nothing is yielded again. Shards commit one after the other: when a run
resumes, a shard that is a commit ahead skips the rows of that commit and yields its kept results.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from changelog.errors import ForeignFileError
from changelog.installed import installed
from recovery.errors import RestoreError

from ..collector import collector_held
from ..markup import short, table, tag
from ..progress import OnProgress
from ..state.arguments import check
from ..state.policy import CheckpointPolicy
from .batch import size_of
from .engine import Engine
from .joins.inputs import Inputs, sources_of
from .joins.spec import given_inputs
from .plan import Plan
from .progress import RunProgress
from .results import Late, ResultTable, arrow_of
from .run_state import RunState, kept, kept_commits, leave_out_ordered
from .source import Source, source_of

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger("hybridstore")
Position = str | Callable[[Any], Any] | None


class ResultRow(dict[str, Any]):
    """A result: a dict of columns, with the number of its `commit`."""

    __slots__ = ("commit",)
    commit: int

    def _repr_html_(self) -> str:
        return table([{name: short(value) for name, value in self.items()}], list(self))


# The number of each commit of a shard, and its results, in pieces.
Tables = Generator[tuple[int, Iterable[ResultTable]], None, None]


class ResultRows(Generator[ResultRow, None, None]):
    """The results of a run: a generator of rows, or with `tables` of Arrow tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows = _rows(tables)

    def __iter__(self) -> Generator[ResultRow, None, None]:
        return self._rows  # a loop takes rows from it without a call

    def _repr_html_(self) -> str:
        return tag("p", "results of a run, which come once: take them in a loop, or by commit with tables()")

    def send(self, value: None) -> ResultRow:
        """Return the next row."""
        return self._rows.send(value)

    def throw(self, *error: Any) -> ResultRow:
        """Raise an error where the run waits for the consumer, which ends the run."""
        return self._rows.throw(*error)

    def close(self) -> None:
        """End the run, as if the consumer had stopped: see `Topology.run`."""
        self._rows.close()
        self._tables.close()

    def tables(self) -> Generator[tuple[int, pa.Table], None, None]:
        """Yield, in place of rows, the number and the results of each commit of a shard that has results. O(results).

        A table has the columns of the rows, with the types that Arrow infers: whole numbers are int64, times
        timestamp[us]. All results of the commit are in memory then, as columns of Arrow, which rows are not. Raises
        OverflowError for an int beyond 64 bits, and HybridStoreError without pyarrow.

        >>> import pyarrow as pa
        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> batch = pa.table({"user": ["ann", "ann"], "ts": [0, 500]})
        >>> for commit, table in minutes.aggregate(n=hs.Count()).run(batch, "state").tables():
        ...     print(commit, table.column_names, table.column("n").to_pylist())
        1 ['user', 'window_start', 'window_end', 'n'] [1, 2]
        """
        installed("tables()", "pyarrow")
        with closing(self._tables) as tables:
            for commit, pieces in tables:
                if (table := arrow_of(pieces)) is not None:
                    yield commit, table


def _rows(tables: Tables) -> Generator[ResultRow, None, None]:
    """Yield results as rows, each made when it is taken."""
    with closing(tables):
        for commit, pieces in tables:
            for piece in pieces:
                for row in piece.rows(ResultRow):
                    row.commit = commit
                    yield row


def _with_late(table: ResultTable, late_column: str | None) -> ResultTable:
    """Return a table with late rows if the topology emits them, else without."""
    late = table.late
    if late_column is None or table.names is None:
        return table._replace(late=None)
    if table or late is not None:
        return table._replace(late=Late(late_column, [], []) if late is None else late._replace(column=late_column))
    return table


def run(
    topology: Plan,
    rows: Any,
    location: str | PathLike[str] | None,
    *,
    columns: Sequence[str] | None,
    shards: int,
    position: Position,
    commit_rows: int,
    commit_seconds: float | None,
    checkpoints: CheckpointPolicy | None,
    progress: OnProgress | bool | None,
    metrics_port: int | None,
    flush: bool,
    replay_last: bool,
    allow: str | Iterable[str] | None,
    memory_limit: int | None,
) -> Tables:
    """Yield the number and the results of each commit of a shard; see `Topology.run`."""
    check(commit_rows=commit_rows, commit_seconds=commit_seconds, metrics_port=metrics_port, progress=progress)
    waits = topology.passes or topology.joined is not None
    if flush and topology.custom is not None and not waits:
        raise ValueError(
            "flush: found with process, whose function alone knows what it holds back (emit it from finish, or at a "
            "last row)"
        )
    if topology.joined is None:
        rows = source_of(rows, columns, position)
    else:
        topology = replace(topology, joined=given_inputs(topology.joined, rows))
        rows = sources_of(rows, columns, position)
    with ExitStack() as stack:
        place = location
        if place is None:
            # at the end of the interpreter the folder may be removed before the run is closed
            stack.enter_context(suppress(ForeignFileError))
            place, checkpoints, allow = stack.enter_context(_scratch()), CheckpointPolicy(), None
        engine = Engine(
            topology,
            place,
            shards=shards,
            durability="os" if location is None else "commit",
            checkpoints=checkpoints,
            allow=allow,
            memory_limit=memory_limit,
        )
        stack.enter_context(engine)
        engine.for_generator()
        if metrics_port is not None:
            _LOG.info("%s: metrics at http://%s:%d/metrics", engine.location, *engine.serve_metrics(metrics_port))
        shown = RunProgress(engine) if progress is True else progress or None
        try:
            yield from _Run(engine, rows, position, flush, replay_last).tables(commit_rows, commit_seconds, shown)
        finally:
            if isinstance(shown, RunProgress):
                shown.end()
            if engine.dropped:
                _LOG.warning(
                    "%s: %d late records dropped (a record counts once for each window that had closed)",
                    "run" if location is None else location,
                    engine.dropped,
                )


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a place for a state that is removed afterwards."""
    import tempfile  # only here: most runs keep their state

    with tempfile.TemporaryDirectory(prefix="hybridstore-", ignore_cleanup_errors=True) as folder:
        yield Path(folder, "state")


class _Run:
    """A run in progress: the progress of every shard, of the source and of the consumer."""

    def __init__(self, engine: Engine, rows: Any, position: Any, flush: bool, replay_last: bool) -> None:
        self._engine = engine
        runs = [RunState.of(store) for store in engine.states]
        self._oldest, self._newest = min(runs, key=lambda run: run.commit), max(runs, key=lambda run: run.commit)
        if self._newest.commit - self._oldest.commit > 1:
            raise RestoreError(
                f"{engine.location}: shards are at commits {self._oldest.commit} to {self._newest.commit}, expected at "
                "most one apart (is a shard from another copy?)"
            )
        # the rows of the next commit, until the commit takes them
        self._batch: Any = None
        self._flush = flush
        self._replay_last = replay_last
        join = engine.topology.joined
        # the rows of an input are numbered by themselves
        self._counted = position is None and join is None
        # A shard that is a commit ahead has dropped its results before `since`. The consumer has them: the run advanced
        # only after the consumer had taken them.
        self._since = max(run.since for run in runs)
        self._delivered = max(run.delivered for run in runs)
        if self._newest.commit:
            engine.times = self._newest.times
        # Checked before the first result: with another source the run must not continue.
        names = (*engine.topology.key, engine.topology.timestamp)
        oldest = self._oldest
        self._source: Source | Inputs = (
            Source(rows(oldest.position), position, oldest.position, oldest.last_row, names, engine.location)
            if join is None
            else Inputs(join, rows, position, oldest.position, oldest.last_row, engine.location)
        )

    def tables(
        self, commit_rows: int, commit_seconds: float | None, progress: OnProgress | None
    ) -> Iterator[tuple[int, Iterable[ResultTable]]]:
        """Yield the results: first those yielded again, then commit by commit to the end of the source."""
        yield from self._again()
        oldest, newest, source = self._oldest, self._newest, self._source
        commit, flushed = oldest.commit, oldest.flushed
        while True:
            ahead = newest if newest.commit == commit + 1 else None
            first: Any = source.at if self._counted else 0
            if ahead is not None and ahead.flushed:
                self._batch, last = None, False
            else:
                self._batch = source.take(commit_rows, commit_seconds, None if ahead is None else ahead.position)
                if ahead is not None and (self._batch is None or source.at != ahead.position):
                    raise RestoreError(
                        f"{self._engine.location}: commit {commit + 1} reached {ahead.position!r} in the source, which "
                        f"now gives {source.at!r} there (give the same rows)"
                    )
                last = self._batch is None
                if last and not (self._flush and self._engine.holds_back and commit and not flushed):
                    break
            flushed = self._batch is None
            commit += 1
            yield from self._commit(commit, first, progress)
            if last:
                break
        self._taken(commit)

    def _again(self) -> Iterator[tuple[int, Iterable[ResultTable]]]:
        """Yield the kept results again: only the consumer knows whether it got them before the last run ended, unless
        that run reached the end.
        """
        states = self._engine.states
        numbers = {number for state in states for number in kept_commits(state) if number <= self._oldest.commit}
        for number in sorted(number for number in numbers if number >= self._since):
            self._since = number
            if self._replay_last or number > self._delivered:
                for state in states:
                    yield number, self._with_late(kept(state, number))

    def _with_late(self, pieces: Iterable[ResultTable]) -> Iterable[ResultTable]:
        column = self._engine.topology.extra_column
        return (_with_late(piece, column) for piece in pieces)

    def _commit(
        self, commit: int, first: int, progress: OnProgress | None
    ) -> Iterator[tuple[int, Iterable[ResultTable]]]:
        """Make a commit of every shard, of its part of the batch or (None) a flush, and yield its results; `first` is
        the number of the first row.
        """
        with collector_held():  # the batch is freed before the collector could visit its rows
            tables = self._committed(commit, first)
        if progress is not None:
            progress("commits", commit, 0)
        for pieces in tables:
            yield commit, self._with_late(pieces)

    def _committed(self, commit: int, first: int) -> list[Iterable[ResultTable]]:
        """Make a commit of every shard, and return its results in pieces, which are read from what is kept of them if
        they are several.
        """
        engine, source = self._engine, self._source
        taken, self._batch = self._batch, None
        tables: list[Iterable[ResultTable]] = []
        emitted = False
        begun = time.perf_counter()
        parts = None if taken is None else engine.split_batch(taken, first)
        size, seconds = 0, time.perf_counter() - begun
        for shard, store in enumerate(engine.states):
            if RunState.of(store).commit >= commit:
                tables.append(kept(store, commit))
                emitted = emitted or commit in kept_commits(store)
                continue
            begun = time.perf_counter()
            keeping = engine.keeping(shard, commit, self._since)
            table = engine.flush_shard(shard) if parts is None else engine.table_of(shard, parts[shard])
            processed = time.perf_counter()
            taken_before = keeping.pieces
            keeping.keep(table)
            RunState(
                commit, source.at, self._since, self._delivered, parts is None, source.last_row, engine.times
            ).set_in(store)
            others = engine.states[:shard] + engine.states[shard + 1 :]
            if leave_out_ordered(store, others):
                if isinstance(source, Source):  # no store of a join orders an erase
                    source.last_row = None  # it may name the key, and the shards behind this one note it, too
                for other in others:  # before the order: a run that dies in between orders it again
                    leave_out_ordered(other, ())
                    other.commit()
            store.commit()
            rows = 0 if parts is None else size_of(parts[shard])
            size, seconds = size + rows, seconds + processed - begun
            done = time.perf_counter()
            engine.note_numbers(shard, rows, keeping.size, (processed - begun) * 1000, (done - processed) * 1000)
            tables.append(kept(store, commit) if taken_before else [table])
            emitted = emitted or keeping.size > 0
        if emitted:
            self._since = commit
        if size:
            source.row_seconds = seconds / size
        return tables

    def _taken(self, commit: int) -> None:
        """The consumer has reached the end of the source, so it has all results: commit that fact."""
        if self._since <= self._delivered:
            return
        for store in self._engine.states:
            RunState.of(store)._replace(delivered=commit).set_in(store)
            store.commit()
