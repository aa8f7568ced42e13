"""The plain-Python engine: a topology on state directories, one per shard, and `run`, which is crash-safe and resumable.

Every shard commits the results of a commit together with its state, so that after a crash they can be handed out again: those
of the newest commit, and those of the newest one before it that had any, since a consumer learns that a commit's results are
complete only when the next one's arrive. Shards commit one after the other; one that is a commit ahead when the run is resumed
skips the rows it has seen and hands out what it kept.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from recovery.errors import CheckpointMismatchError, RestoreError
from recovery.restore import restore

from ..collector import collector_held
from ..policy import CheckpointPolicy
from ..shards import shard_of
from ..store import Durability, HybridStore, open_store
from ..store_group import StoreGroup
from .declare import Topology
from .results import canonical_order
from .rows import (
    KeyKinds,
    LeftOut,
    Records,
    ToTime,
    from_arrow,
    from_rows,
    is_arrow,
    named_rows,
    same,
    to_rows,
    without_nulls,
)
from .task import CustomTask, WindowTask

if TYPE_CHECKING:
    from .arrow_run import ArrowRun

_LOG: Final = logging.getLogger("hybridstore")
_TOPOLOGY: Final = "topology"
_RUN: Final = "run"
_RESULTS: Final = "results of the last commits"


class ResultRow(dict[str, Any]):
    """A result: a dict of columns, with the number of the `commit` that it belongs to."""

    __slots__ = ("commit",)

    def __init__(self, row: dict[str, Any], commit: int) -> None:
        super().__init__(row)
        self.commit = commit


class Engine:
    """A topology that is open on its state: `process(row) -> rows`, `commit()`, and looks inside. A context manager.

    With one shard `state` is the state directory itself, with more it holds one per shard, named by number. Raises
    CheckpointMismatchError when the state was made by another topology or number of shards, saying what differs.
    """

    def __init__(
        self,
        topology: Topology,
        state: str | PathLike[str],
        *,
        shards: int = 1,
        durability: Durability = "commit",
        checkpoint: CheckpointPolicy | None = None,
        _timed: bool = False,
        _tuning: dict[str, int] | None = None,
    ) -> None:
        if type(shards) is not int or shards < 1:
            raise ValueError(f"shards: found {shards!r}, expected 1 or more")
        self.topology = topology
        self._timed = _timed
        self.state = Path(state)
        self.shards = shards
        self._to_time: ToTime = same
        self._kinds = KeyKinds(topology)
        self._checked: Any = None  # the Arrow schema that was looked at
        self.left_out = LeftOut()
        """Rows left out since the engine was opened: how many have no key, and how many no time."""
        self._by_column: ArrowRun | None = None
        self._check_layout()
        paths = [self.state] if shards == 1 else [self.state / f"{shard}" for shard in range(shards)]
        self.stores: list[HybridStore] = []
        self._tasks: list[WindowTask | CustomTask] = []
        try:
            # Those that exist come first, in their order: a crash while shards were made leaves the first few of them.
            there = [path for path in paths if path.is_dir()]
            for path in (*there, *(path for path in paths if path not in there)):
                if len(self.stores) == len(there) < shards and any(store.version for store in self.stores):
                    raise self._other_number(len(there))
                self.stores.append(open_store(path, durability=durability, checkpoint=checkpoint, _tuning=_tuning))
            self.stores.sort(key=lambda store: paths.index(store.path))
            for store in self.stores:
                self._match(store)
                self._tasks.append(self._task(store))
        except BaseException:
            self.close()
            raise

    def _check_layout(self) -> None:
        if not self.state.is_dir():
            return
        numbers = {int(entry.name) for entry in self.state.iterdir() if entry.name.isdigit() and entry.is_dir()}
        if (self.state / "changelog").is_dir():
            if self.shards != 1:
                raise self._other_number(1)
        elif (self.shards == 1 and numbers) or not numbers <= set(range(self.shards)):
            raise self._other_number(len(numbers))

    def _other_number(self, found: int) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"{self.state}: the state has {found} shard{'s' if found > 1 else ''}, asked for {self.shards} (ask for {found}, or begin in a new directory)"
        )

    def _match(self, store: HybridStore) -> None:
        asked = self.topology.describe()
        found = store.settings.get(_TOPOLOGY)
        if found is None:
            store.set(_TOPOLOGY, asked)
            return
        for part, value in asked.items():
            if found.get(part) != value:
                raise CheckpointMismatchError(
                    f"{store.path}: the topology does not match the state: {part}: found {found.get(part)!r} in the state, "
                    f"asked for {value!r} (run the topology that made it, or begin in a new directory)"
                )

    def _task(self, store: HybridStore) -> WindowTask | CustomTask:
        return (
            CustomTask(self.topology, store.group)
            if self.topology.custom is not None
            else WindowTask(self.topology, store.group, timed=self._timed)
        )

    # --- stepping ---------------------------------------------------------------------------------------------

    def process(self, row: Any) -> list[dict[str, Any]]:
        """Process one row, in the order given, and return the rows that it makes at once. O(cost of the windows)."""
        records = from_rows(self.topology, [row], kinds=self._kinds)
        self._leave_out(records.left_out)
        if not records.keys:
            return []
        self._to_time = records.to_time
        shard = self._shard(records.keys[0])
        task = self._tasks[shard]
        if isinstance(task, CustomTask):
            return task.process_rows(records.values, records.times)
        return list(
            to_rows(self.topology, task.process_ordered(records.keys, records.values, records.times), records.to_time)
        )

    def process_many(self, rows: Any) -> list[dict[str, Any]]:
        """Process the rows of one commit (dicts or an Arrow batch) in canonical order, shard by shard. O(n log n)."""
        records = self.records(rows)
        made: list[dict[str, Any]] = []
        for shard, own in enumerate(self._by_shard(records)):
            made += self._process_shard(shard, own)
        return made

    def records(self, rows: Any, first: int = 0) -> Records:
        """Return rows by column, mapped and filtered."""
        records = from_arrow(self.topology, rows, first) if is_arrow(rows) else from_rows(self.topology, rows, first)
        self._leave_out(records.left_out)
        if records.times:
            self._to_time = records.to_time
        return records

    def _leave_out(self, rows: LeftOut) -> None:
        if any(rows):
            self.left_out = self.left_out.and_also(rows)
            _LOG.warning("%s: left out rows: %d without a key, %d without a time", self.state, *rows)

    def _process_shard(self, shard: int, records: Records) -> list[dict[str, Any]]:
        task = self._tasks[shard]
        if isinstance(task, CustomTask):
            order = canonical_order(records.keys, [sorted(row.items()) for row in records.values], records.times)
            return task.process_rows([records.values[i] for i in order], [records.times[i] for i in order])
        with collector_held():
            results = task.process(records.keys, records.values, records.times)
            return list(to_rows(self.topology, results, self._to_time))

    def _commit_parts(self, rows: Any, first: int) -> list[Any]:
        """Return the rows of a whole commit shard by shard: Arrow tables where they may go by column, else `Records`."""
        parts = None
        if is_arrow(rows):
            if rows.schema != self._checked:
                from .column_types import check_columns

                check_columns(self.topology, rows.schema)
                self._checked = rows.schema
            rows, left_out = without_nulls(self.topology, rows)
            self._leave_out(left_out)
            if self._by_column is None:
                self._by_column = self._arrow_run()
            parts = None if self._by_column is None else self._by_column.split(rows)
        return parts or self._by_shard(self.records(rows, first))

    def _arrow_run(self) -> ArrowRun | None:
        ways = [task.by_column() for task in self._tasks if isinstance(task, WindowTask)]
        known = [way for way in ways if way is not None]
        if not known:
            return None
        from .arrow_run import ArrowRun

        return ArrowRun(self.topology, known)

    def _process_commit(self, shard: int, part: Any) -> list[dict[str, Any]]:
        """Process a shard's rows of a whole commit, and return all rows that it makes."""
        if not isinstance(part, Records):
            made = None if self._by_column is None else self._by_column.process(shard, part)
            if made is not None:
                return made
            part = self.records(part)
        return self._process_shard(shard, part) + self._finish_shard(shard)

    def _shard(self, key: Any) -> int:
        return 0 if self.shards == 1 else shard_of(key, self.shards)

    def _by_shard(self, records: Records) -> list[Records]:
        if self.shards == 1:
            return [records]
        parts: list[Records] = [Records([], [], [], records.to_time) for _ in range(self.shards)]
        known: dict[Any, Records] = {}
        for key, value, ts in zip(records.keys, records.values, records.times, strict=True):
            part = known.get(key)
            if part is None:
                part = known[key] = parts[self._shard(key)]
            part.keys.append(key)
            part.values.append(value)
            part.times.append(ts)
        return parts

    def finish(self) -> list[dict[str, Any]]:
        """Return the rows due at the end of the commit; `commit` does this too."""
        made: list[dict[str, Any]] = []
        for shard in range(self.shards):
            made += self._finish_shard(shard)
        return made

    def _finish_shard(self, shard: int) -> list[dict[str, Any]]:
        task = self._tasks[shard]
        return (
            task.finish()
            if isinstance(task, CustomTask)
            else list(to_rows(self.topology, task.finish(), self._to_time))
        )

    def commit(self) -> list[dict[str, Any]]:
        """End the commit on every shard, durably, and return the rows due at its end."""
        made = self.finish()
        for store in self.stores:
            store.commit()
        self._kinds = KeyKinds(self.topology)
        return made

    # --- looking ----------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Late records dropped since the engine was opened."""
        return sum(task.dropped for task in self._tasks)

    def windows(self) -> list[dict[str, Any]]:
        """Return the windows (or sessions) stored now, as rows. O(windows)."""
        return [
            row
            for task in self._tasks
            if isinstance(task, WindowTask)
            for row in to_rows(self.topology, task.live(), self._to_time)
        ]

    def find_sessions(
        self, key: Any, earliest_end: int | None = None, latest_start: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the sessions of a key with end >= earliest_end and start <= latest_start (ms, inclusive, None open), as rows."""
        task = self._tasks[self._shard(key)]
        if not isinstance(task, WindowTask):
            raise TypeError("find_sessions: the topology has no windows")
        return list(to_rows(self.topology, task.find_sessions(key, earliest_end, latest_start), self._to_time))

    def position(self) -> Any:
        """Return the source position that every shard has committed, None at first."""
        return min((run_of(store) for store in self.stores), key=lambda run: int(run[0]))[1]

    def close(self) -> None:
        """Close the state; what was not committed is gone."""
        for store in self.stores:
            store.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_of(store: HybridStore) -> tuple[int, Any, int]:
    """Return (number of the last commit of `run`, source position after it, first commit whose results are kept), (0, None, 0) at first."""
    found = store.settings.get(_RUN)
    return (0, None, 0) if found is None else (found[0], found[1], found[2])


def _kept(store: HybridStore, commit: int) -> list[dict[str, Any]]:
    """Return the results of a shard's commit, one of the last."""
    kept = store.key_value(_RESULTS).get(commit)
    if kept is None:
        return []
    columns, rows = kept
    return [dict(row) for row in rows] if columns is None else [dict(zip(columns, row, strict=True)) for row in rows]


def _keep(store: HybridStore, commit: int, rows: list[dict[str, Any]], since: int) -> None:
    """Keep the results of the commit in progress, and drop those of commits before `since`, which the consumer has."""
    results = store.key_value(_RESULTS)
    for old in [number for number in results if number < since]:
        results.delete(old)
    if rows:
        columns = list(rows[0])
        with collector_held():
            if all(list(row) == columns for row in rows):
                results.put(commit, [columns, [list(row.values()) for row in rows]])
            else:
                results.put(commit, [None, rows])


def last_position(state: str | PathLike[str]) -> Any:
    """Return the source position that a `run` on this state directory has committed, or None. The directory may be open elsewhere."""
    path = Path(state)
    if not path.exists():
        return None
    paths = (
        sorted((p for p in path.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
        if not (path / "changelog").is_dir()
        else [path]
    )
    runs: list[Any] = []
    for shard in paths:
        group = StoreGroup(lambda body: None)
        restore(shard, group)
        runs.append(group.settings.get(_RUN) or (0, None))
    return min(runs, key=lambda run: int(run[0]))[1] if runs else None


class _Source:
    """Takes rows from what the user gave, a commit's worth at a time, past what was committed already."""

    def __init__(self, rows: Iterable[Any], position: str | Callable[[Any], Any] | None, start: Any) -> None:
        self._position = (lambda row: row[position]) if isinstance(position, str) else position
        self.at: Any = (start or 0) if position is None else start
        self._chunks = self._skipped([rows] if is_arrow(rows) else rows, start)
        self._rest: Any = None

    def _skipped(self, rows: Iterable[Any], start: Any) -> Iterator[Any]:
        """Yield single rows and Arrow batches that come after `start`."""
        if self._position is not None:
            for row in rows:
                if is_arrow(row):
                    raise ValueError(
                        "position: found with Arrow batches, expected with single rows (leave it out: rows are counted)"
                    )
                if start is None or self._position(row) > start:
                    yield row
            return
        skip = start or 0
        for row in rows:
            if is_arrow(row):
                if skip < row.num_rows:
                    yield row.slice(skip) if skip else row
                skip = max(0, skip - row.num_rows)
            elif skip:
                skip -= 1
            else:
                yield row

    def take(self, limit: int, seconds: float | None, until: Any) -> Any:
        """Return the rows of the next commit (a list, or an Arrow batch), at most `limit`, or up to position `until`; None at the end."""
        if until is not None:
            limit = until - self.at if self._position is None else sys.maxsize
        taken: list[Any] = []
        begun = time.monotonic()
        while len(taken) < limit:
            chunk = self._rest if self._rest is not None else next(self._chunks, None)
            self._rest = None
            if chunk is None:
                break
            if is_arrow(chunk):
                if taken:
                    self._rest = chunk
                    break
                if chunk.num_rows > limit:
                    self._rest, chunk = chunk.slice(limit), chunk.slice(0, limit)
                self.at += chunk.num_rows
                return chunk
            taken.append(chunk)
            if self._position is None:
                self.at += 1
            else:
                found = self._position(chunk)
                if self.at is not None and not found > self.at:
                    raise ValueError(
                        f"position: found {found!r} after {self.at!r}, expected positions that rise with every row (a restart "
                        "goes on behind the last one committed)"
                    )
                self.at = found
                if until is not None and self.at == until:
                    break
            if until is None and seconds is not None and time.monotonic() - begun >= seconds:
                break
        return taken or None


def run(
    topology: Topology,
    rows: Iterable[Any],
    state: str | PathLike[str] | None,
    *,
    columns: Sequence[str] | None,
    shards: int,
    position: str | Callable[[Any], Any] | None,
    commit_rows: int,
    commit_seconds: float | None,
    checkpoint: CheckpointPolicy | None,
    progress: Callable[[int], None] | None,
) -> Generator[ResultRow, None, None]:
    """See `Topology.run`."""
    if commit_rows < 1:
        raise ValueError(f"commit_rows: found {commit_rows!r}, expected 1 or more")
    rows = named_rows(rows, columns)
    if state is None:
        scratch = tempfile.mkdtemp(prefix="hybridstore-")
        try:
            engine = Engine(topology, Path(scratch) / "state", shards=shards, durability="os")
            with engine:
                yield from _run(engine, rows, position, commit_rows, commit_seconds, progress)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return
    with Engine(topology, state, shards=shards, checkpoint=checkpoint) as engine:
        yield from _run(engine, rows, position, commit_rows, commit_seconds, progress)


def _run(
    engine: Engine,
    rows: Iterable[Any],
    position: str | Callable[[Any], Any] | None,
    commit_rows: int,
    commit_seconds: float | None,
    progress: Callable[[int], None] | None,
) -> Generator[ResultRow, None, None]:
    runs = [run_of(store) for store in engine.stores]
    oldest, newest = min(runs, key=lambda run: run[0]), max(runs, key=lambda run: run[0])
    if newest[0] - oldest[0] > 1:
        raise RestoreError(
            f"{engine.state}: shards are at commits {oldest[0]} to {newest[0]}, expected at most one apart (is a shard from another copy?)"
        )
    # Handed out again: whether the consumer got them before the last run ended, only it knows. A shard that is a commit ahead
    # has dropped what it kept before `since`; the run had come so far only because the consumer has that.
    since = max(run[2] for run in runs)
    kept = sorted({number for store in engine.stores for number in store.key_value(_RESULTS) if number <= oldest[0]})
    for number in kept:
        if number >= since:
            since = number
            for store in engine.stores:
                yield from (ResultRow(row, number) for row in _kept(store, number))
    source = _Source(rows, position, oldest[1])
    commit = oldest[0]
    while True:
        commit += 1
        ahead = newest[0] == commit and oldest[0] < commit
        first = source.at if position is None else 0
        taken = source.take(commit_rows, commit_seconds, newest[1] if ahead else None)
        if ahead and (taken is None or source.at != newest[1]):
            raise RestoreError(
                f"{engine.state}: commit {commit} reached {newest[1]!r} in the source, which now gives {source.at!r} there "
                "(give the same rows, in the same batches)"
            )
        if taken is None:
            return
        made: list[dict[str, Any]] = []
        for shard, (store, own) in enumerate(zip(engine.stores, engine._commit_parts(taken, first), strict=True)):
            if run_of(store)[0] >= commit:
                made += _kept(store, commit)
                continue
            results = engine._process_commit(shard, own)
            _keep(store, commit, results, since)
            store.set(_RUN, [commit, source.at, since])
            store.commit()
            made += results
        if made:
            since = commit
        if progress is not None:
            progress(commit)
        yield from (ResultRow(row, commit) for row in made)
