"""Custom: the user's own logic on the stores of one shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..clock import BY_ADVANCE, NO_TIME, Watermark
from ..state.group import StoreGroup
from ..stores.keys import shown
from ..stores.kinds import KINDS
from .batch import Records, TimeForm, canonical_order
from .duplicates import Opened, WithoutDuplicates
from .output_rows import OutputRows
from .plan import Plan
from .results import ResultTable, tabled_rows


class Stores(dict[str, Any]):
    """The stores of custom logic by name, with the `time` of the row in hand (ms), whatever its timestamp column
    holds, and its `key` in the stored form."""

    __slots__ = ("key", "time")
    time: int
    key: Any

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"process: store {name!r} is not declared: found {', '.join(self) or 'no stores'}")


class CustomLogic:
    """The user's function or class (`Topology.process`) on the stores of one shard.

    The surprise: the time of every store with a time moves to the row's time before the function sees the row. If only
    puts moved time, rows would never expire in a function that does not put while a row exists.
    """

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        custom = plan.custom
        assert custom is not None
        self.output = OutputRows(custom.schema)
        self.stores = Stores()
        self.stores.time = NO_TIME
        self._movers: list[Callable[[int], object]] = []
        for name, declared in custom.stores.items():
            kind = KINDS[declared.kind]
            more = BY_ADVANCE if clocked and kind.by_advance else {}
            store = kind.open(group, name, {**declared.parameters, **more})
            if declared.bound is not None:
                store.bind(declared.bound)
            self.stores[name] = store
            if kind.timed(declared.parameters):
                # due records of a suppression buffer are emitted by the function's next call, which returns them
                self._movers.append(store.move_time)
        self._logic: Opened | None = None
        self._call: Callable[[Any], Any]
        self._close: Callable[[], Any] | None
        if isinstance(custom.function, WithoutDuplicates):
            self._logic = custom.function(self.stores)
            self._call = self._logic.process
            self._close = None
        elif isinstance(custom.function, type):
            instance = custom.function(self.stores)
            self._call = instance.process
            self._close = getattr(instance, "finish", None)
        else:
            function, stores = custom.function, self.stores
            self._call = lambda row: function(row, stores)
            self._close = None
        self.dropped = 0
        """Late rows that were left out since the opening: `process` decides itself, and counts none."""

    def order(self, records: Records) -> list[int]:
        """Return the canonical order of the records of a commit. O(n log n)."""
        return canonical_order(records.keys, [sorted(row.items()) for row in records.values], records.times)

    def process(self, records: Records, clock: Watermark | None = None) -> list[Any]:
        """Run the function on each row, in order, and return its output rows unchecked; `rows` checks them.

        Before a row the stores' time moves to the row's time (ms), if that is later. If `clock` is given, only the
        clock moves time: during the rows the stores are at the watermark by which rows are late, and afterwards at the
        new one.
        """
        results: list[Any] = []
        now, stores, row, ts = NO_TIME, self.stores, None, NO_TIME
        if clock is not None:
            self._move(clock.late_ms)
        try:
            for key, row, ts in records.rows():
                if ts > now and clock is None:
                    now = ts
                    self._move(ts)
                stores.time, stores.key = ts, key
                out = self._call(row)
                if type(out) is dict or type(out) is str:  # would be taken apart
                    raise TypeError(
                        f"process: returned {type(out).__name__}, expected an iterable of rows (dicts), or None"
                    )
                if out is not None:
                    results.extend(out)
        except Exception as error:
            error.add_note(f"process: while processing the row {shown(row)}, time {ts}")
            raise
        if self._logic is not None:
            self.dropped = self._logic.dropped
        if clock is not None:
            self._move(clock.now_ms)
        return results

    def _move(self, ts: int) -> None:
        for move in self._movers:
            move(ts)

    def commit(self, records: Records, clock: Watermark | None = None) -> list[Any]:
        """Process the records of a whole commit and end it: `process` and `finish` in one."""
        return self.process(records, clock) + self.finish()

    def finish(self) -> list[Any]:
        """End the commit; a class with `finish()` may return further rows, unchecked."""
        return list(self._close() or ()) if self._close is not None else []

    def table(self, results: list[Any], times: TimeForm) -> ResultTable:
        """Return results by column. Raises TypeError or ValueError for columns that are not declared. O(results)."""
        return tabled_rows(self.output.rows(results))

    def rows(self, results: list[Any], times: TimeForm) -> list[dict[str, Any]]:
        """Return results as rows, as `table` does."""
        return list(self.table(results, times).rows(dict))

    @property
    def holds_back(self) -> bool:
        """False: only the function knows which results it holds back."""
        return False

    def flush(self) -> list[Any]:
        """Raise TypeError: only the function knows which results it holds back."""
        raise TypeError("flush: found process, expected windows with aggregates")
