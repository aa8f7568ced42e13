"""Loading: programs that put rows into the stores of a shard instead of processing them.

    rows of Spark's state, by shard ── aggregates, keys, variables, timers ──▶ the stores of the operator's own program

The stores are opened by the operator's program itself, and written by the same methods as in a batch: the log, the
checkpoint and the settings are those of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..aggregation import Forever, SessionWindows
from ..clock import Watermark
from ..collector import collector_held
from ..spark.contract import Batch, Program, Runner
from ..spark.location import Location
from ..state.group import StoreGroup
from ..topology.aggregating import Aggregating
from ..topology.batch import Records, joined_keys, key_columns
from ..topology.custom import CustomLogic
from ..topology.duplicates import SEEN
from ..topology.plan import Plan
from ..topology.shard_run import ShardRun
from ..topology.times import arrow_list, same
from .arrow_values import listed
from .buffers import Part
from .report import ImportRefusedError

if TYPE_CHECKING:
    import pyarrow as pa

# Columns of the rows besides those of the key: times in ms.
START: Final = "__start"
END: Final = "__end"
# The store of a row, of the stores of `process`.
STORE: Final = "__store"
# What a task gives back, a row for each shard.
DONE: Final = "shard int, records bigint"


class Loader(Protocol):
    """Puts the rows of one shard into its stores."""

    def load(self, group: StoreGroup, table: pa.Table, batch: Batch) -> int:
        """Write the rows, and return how many records they were. O(rows)."""


class Loading(Program):
    """The program of batch 0: it has the key and the description of `program`, and the rows go to `loader`."""

    fresh = True

    def __init__(self, program: Program, loader: Loader) -> None:
        self.key, self.null_keys = program.key, program.null_keys
        self._described = program.describe()
        self._loader = loader

    def describe(self) -> dict[str, Any]:
        return self._described

    def output_schema(self, schema: pa.Schema) -> Any:
        return DONE

    def open(self, group: StoreGroup) -> LoadingRunner:
        """Open nothing: the loader opens what it writes."""
        return LoadingRunner(self._loader, group)


class LoadingRunner(Runner):
    """A loader on the stores of one shard."""

    def __init__(self, loader: Loader, group: StoreGroup) -> None:
        self._loader = loader
        self._group = group
        self._batch: Batch | None = None
        self._shard = 0

    def begin(self, batch: Batch, shard: int, shards: int, location: Location) -> None:
        self._batch, self._shard = batch, shard

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Write the rows, and return the number of the shard and of the records."""
        import pyarrow as pa

        assert self._batch is not None
        with collector_held():
            records = self._loader.load(self._group, table, self._batch)
        return pa.Table.from_arrays(
            [pa.array([self._shard], pa.int32()), pa.array([records], pa.int64())], schema=output
        )


def _keys(plan: Plan, table: pa.Table) -> list[Any]:
    """Return the keys in the stored form. Raises ImportRefusedError for null if null is no key of the topology."""
    for name in plan.key if plan.null_keys == "skip" else ():
        if table.column(name).null_count:
            raise ImportRefusedError(
                f"key column {name!r}: found null in the state, expected a topology in which null is a key "
                '(stream(..., null_keys="group"))'
            )
    return joined_keys(list(map(arrow_list, key_columns(plan, table))), table.num_rows)


def _check_once(keys: list[Any], starts: list[Any]) -> None:
    """Raise ImportRefusedError if two rows have one key and one window: the second would replace the first. O(rows)."""
    pairs: Iterable[Any] = keys if starts.count(None) == len(starts) else zip(keys, starts, strict=True)
    if len(set(pairs)) < len(keys):
        (key, _), rows = Counter(zip(keys, starts, strict=True)).most_common(1)[0]
        raise ImportRefusedError(
            f"key {key}: found {rows} rows of one key and window, expected one (add the rows up first, and let "
            "columns= keep the old keys apart)"
        )


def _check_windows(windows: Any, starts: list[Any], table: pa.Table) -> None:
    """Raise ImportRefusedError for a window that is none of the topology's. `table` may have the ends. O(rows)."""
    ends = arrow_list(table.column(END)) if END in table.column_names else [None] * len(starts)
    for start, end in dict.fromkeys(zip(starts, ends, strict=True)):
        if start is None or start not in windows.windows_for(start) or end not in (None, windows.end_of(start)):
            given = f"{start}" if end is None else f"{start} to {end}"
            raise ImportRefusedError(
                f"window {given} (ms): found in the state, expected windows of {windows!r} (declare the windows of the "
                "state: size, advance, align_to)"
            )


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Aggregates of windows, of sessions, or without windows: buffers of Spark's begin the aggregates of a plan.

    parts    where the buffers of each aggregate are
    buffers  the columns that hold them
    """

    plan: Plan
    clocked: bool
    parts: Sequence[Part]
    buffers: Sequence[str]

    def load(self, group: StoreGroup, table: pa.Table, batch: Batch) -> int:
        # Spark keeps windows that overlap whole.
        run = ShardRun(replace(self.plan, whole=True), group, clocked=self.clocked, where="the state of a shard")
        assert isinstance(run.logic, Aggregating)
        windowed = run.logic.windowed
        columns = [table.column(name) for name in self.buffers]
        read: dict[Part, list[Any]] = {}
        for part in self.parts:
            if part not in read:
                read[part] = part.read(columns)
        form = windowed.form
        if form.bare:
            values = read[self.parts[0]]
        else:
            aggregates = map(list, zip(*(read[part] for part in self.parts), strict=True))
            values = [form.value(-1, aggregate) for aggregate in aggregates] if form.timed else list(aggregates)
        keys = _keys(self.plan, table)
        starts = arrow_list(table.column(START)) if START in table.column_names else [None] * len(keys)
        _check_once(keys, starts)
        if isinstance(self.plan.windows, Forever):
            windowed.store.put_columns(keys, values, [0] * len(keys))
        elif isinstance(self.plan.windows, SessionWindows):
            ends = arrow_list(table.column(END))
            windowed.store.put_many(list(zip(keys, values, starts, ends, strict=True)))
        else:
            _check_windows(self.plan.windows, starts, table)
            windowed.store.put_columns(keys, values, starts)
        if self.clocked:
            windowed.stream_time = max(windowed.stream_time, batch.watermark_ms)
        windowed.written()
        return len(keys)


@dataclass(frozen=True, slots=True)
class Seen:
    """Keys that were seen, for `drop_duplicates`: each with the time of its first row."""

    plan: Plan
    clocked: bool

    def load(self, group: StoreGroup, table: pa.Table, batch: Batch) -> int:
        run = ShardRun(self.plan, group, clocked=self.clocked, where="the state of a shard")
        assert isinstance(run.logic, CustomLogic)
        keys = _keys(self.plan, table)
        run.logic.stores[SEEN].put_columns(keys, [1] * len(keys), arrow_list(table.column(START)))
        now = batch.watermark_ms
        run.logic.process_batch(Records([], [], [], same), Watermark(now, now) if self.clocked else None)
        return len(keys)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of the stores of `process`: s<n> is the value of the n-th store, m<n> its key if it is not the stream's."""

    plan: Plan
    clocked: bool
    names: Sequence[str]

    def load(self, group: StoreGroup, table: pa.Table, batch: Batch) -> int:
        import pyarrow.compute as pc

        run = ShardRun(self.plan, group, clocked=self.clocked, where="the state of a shard")
        assert isinstance(run.logic, CustomLogic)
        for number, name in enumerate(self.names):
            rows = table.filter(pc.equal(table.column(STORE), name))
            if not rows.num_rows:
                continue
            keys = _keys(self.plan, rows)
            if f"m{number}" in table.column_names:
                keys = listed(rows.column(f"m{number}"))
            times = [] if rows.column(START).null_count else [arrow_list(rows.column(START))]
            store = run.logic.stores[name]
            duplicates = getattr(store, "retain_duplicates", None)  # None: a store without windows
            if not duplicates:
                _check_once(keys, times[0] if duplicates is False and times else [None] * len(keys))
            store.put_columns(keys, listed(rows.column(f"s{number}")), *times)
        now = batch.watermark_ms
        run.logic.process_batch(Records([], [], [], same), Watermark(now, now) if self.clocked else None)
        return int(table.num_rows)
