"""Store view: what is known of one store at one version, and its records (`scan`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, starmap
from typing import Any, NamedTuple, TypeVar

from recovery.block import Columns
from recovery.errors import CorruptCheckpointError

from ..clock import INT64_MAX
from ..stores.kinds import Row
from .column_scan import ColumnScan
from .scan import time_order, written
from .selection import EVERYTHING, Selection

T = TypeVar("T")


def of_key_type(store: StoreView, keys: Iterable[Any], rows: Iterator[T]) -> Iterator[T]:
    """Yield the rows that a selection by `keys` (None: no bound) gives.

    Raises TypeError, naming the key, when the type of a key is not that of the store's keys.
    """
    try:
        yield from rows
    except TypeError as error:
        key = next((key for key in keys if key is not None), None)
        if key is None:
            raise
        raise TypeError(
            f"store {store.name!r}: key {key!r}: found {type(key).__name__}, expected "
            f"{store.key_type or 'another type'} as in the store's other keys"
        ) from error


class RecordCount(NamedTuple):
    """The number of records; `exact` is False if some may have expired or been overwritten."""

    records: int
    exact: bool


class StoreView(ColumnScan):
    """A store as it was at the view's version."""

    def __repr__(self) -> str:
        return f"<StoreView {self.name!r}, {self.kind}, about {self.counted.records:,} records>"

    @property
    def key_type(self) -> str:
        """The type of the keys, such as `str` or `tuple str int`; empty while it is not decided."""
        described = self._record.state.get("key") if self._record is not None else None
        if described is None:
            described = self.capture.state.get("key")
        if isinstance(described, list):
            return " ".join(map(str, described))
        # After a replay of the log alone the type is not declared, so it follows from the keys.
        for change in self.changed.values():
            for key in (change.columns.keys or (change.over.keys if change.over else []))[:1]:
                parts = [type(part).__name__ for part in key] if type(key) is tuple else []
                return " ".join([type(key).__name__, *parts])
        return ""

    @cached_property
    def counted(self) -> RecordCount:
        """The number of records, as far as it is known without reading a block. O(blocks + changes)."""
        return self._count_entries() if self._estimate is None else RecordCount(self._estimate, False)

    def _count_entries(self) -> RecordCount:
        records = sum(entry.records for entry in self.entries)
        records += sum(len(columns) for change in self.changed.values() for columns in written(change))
        expired = self.expired_through
        blocks_live = all(entry.low > expired or entry.low < 0 for entry in self.entries)
        changes_live = expired < 0 or all(
            min(change.columns.ints[0], default=INT64_MAX) > expired
            for change in self.changed.values()
            if change.columns.ints
        )
        old = {entry.bucket for entry in self.entries}
        apart = not any(bucket in old or change.over for bucket, change in self.changed.items())
        return RecordCount(records, blocks_live and changes_live and apart)

    @property
    def packed_bytes(self) -> int | None:
        """Bytes of the checkpoint's blocks that are in use; None without a checkpoint."""
        if self._checkpoint is None:
            return None
        return sum(entry.bytes for entry in (self.entries if self._estimate is None else self._lines))

    @property
    def span(self) -> tuple[int, int] | None:
        """The smallest and the largest event time held (ms), from the directory and the changes; None without times."""
        lows = [max(entry.low, self.expired_through + 1) for entry in self.entries if entry.high >= 0]
        highs = [entry.high for entry in self.entries if entry.high >= 0]
        for columns in (columns for change in self.changed.values() for columns in written(change)):
            if columns.ints and len(columns):
                lows.append(max(min(columns.ints[0]), self.expired_through + 1))
                highs.append(max(columns.ints[0]))
        return (min(lows), max(highs)) if lows else None

    def count(self, selection: Selection = EVERYTHING) -> int:
        """Count records, exactly.

        O(1) when nothing is selected and nothing was written over the checkpoint, else O(records).
        """
        if selection.everything and (known := self._count_entries()).exact:
            return known.records
        return sum(1 for _ in self.unordered(selection))

    def records(self, selection: Selection = EVERYTHING) -> Iterator[Row]:
        """See `Scan.records`. The records of one key are read from the store if its tail is long."""
        if self._estimate is not None and selection.key_from is not None and selection.key_from == selection.key_to:
            of_key = self._live_records(selection)
            if of_key is not None:
                yield from of_key
                return
        yield from super().records(selection)

    def _live_records(self, selection: Selection) -> list[Row] | None:
        """Return the records of one key from the store with the tail. Only the blocks of this key are read, no other
        key of the blocks is inserted, and a long tail need not be captured. None if the store cannot give the records.
        """
        rows_of: Callable[[Any], list[Columns]] | None = getattr(self._live, "rows_of", None)
        if rows_of is None:  # a store without times
            return None
        try:
            columns = rows_of(selection.key_from)
        except CorruptCheckpointError:
            return None
        expired = self._kind.expired_through(self.parameters, self.stream_time)
        rows = starmap(self._kind.row, chain.from_iterable(piece.rows() for piece in columns))
        taken = [row for row in rows if row.times[0] > expired and selection.picks(row.key, row.times)]
        taken.sort(key=time_order)
        return taken[::-1] if selection.reverse else taken

    def of_key(self, key: Any) -> Iterator[Row]:
        """Yield the records of one key. O(one block per bucket)."""
        return self.records(Selection(key, key))
