"""Scan: the records of one store at one version, read from blocks and the changes over them, whatever the store's kind.

The times of a row are the block's integer columns, named by `columns`. One block (for stores ordered by time: one
bucket) is in memory at a time. Nothing is believed: damaged blocks are left out and named in the view's faults.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from heapq import merge
from itertools import chain
from typing import Any, Final

from changelog.errors import ChangelogError, HybridStoreError
from recovery.block import BlockEntry, BucketChange, Columns, StoreCapture, lay_over
from recovery.block import merge as merged
from recovery.directory import Directory
from recovery.errors import CorruptCheckpointError
from recovery.meta import StoreRecord
from recovery.pages import PageCheckpoint

from ..stores.kinds import KEY_VALUE, KINDS, Row, Store
from .selection import EVERYTHING, Selection

NOTHING: Final = Columns([], None, (), [])


def written(change: BucketChange) -> Iterator[Columns]:
    """Yield the records that a change has put: new records, and records over a block."""
    yield change.columns
    if change.over:
        yield change.over


# A longer tail (records) is not captured just for a count: the store's own estimate is used.
_LONG_TAIL: Final = 2000


class Scan:
    """The records of a store as they were at the view's version.

    The changes of the tail are captured at their first use, which `info` of a large state avoids. Changes over a block
    are merged when the block is read, so memory depends on the tail and one block, not on all blocks that the tail
    touches.
    """

    def __init__(
        self,
        live: Store,
        checkpoint: PageCheckpoint | None,
        record: StoreRecord | None,
        directory: Directory | None,
        faults: list[str],
        tail_records: int,
    ) -> None:
        self._live = live
        self.name = live.name
        self.number = live.number
        self.kind = live.kind
        self.parameters = live.parameters
        self.stream_time = live.stream_time
        self._kind = KINDS[live.kind]
        # the names of the integer columns of its blocks
        self.columns = self._kind.columns if self._kind.timed(live.parameters) else ()
        self._checkpoint = checkpoint
        self._record = record
        self._directory = directory
        self._faults = faults
        # Computed before any block is loaded, when this is O(blocks).
        self._estimate = live.num_records if tail_records > _LONG_TAIL else None
        if self._estimate is not None and live.kind == KEY_VALUE.name:
            # a key that was written several times is one record
            self._estimate -= live.waiting_rows - live.waiting_keys

    @cached_property
    def capture(self) -> StoreCapture:
        """The changes of the changelog behind the checkpoint. O(changed) the first time."""
        try:
            return self._live.capture(once=True)
        except HybridStoreError:
            raise
        except Exception as error:  # forged mutations may raise anything
            raise ChangelogError(
                f"store {self.name!r}: its changes cannot be read: {type(error).__name__}: {error}"
            ) from error

    @property
    def changed(self) -> dict[int, BucketChange]:
        """The changes over the checkpoint, by bucket."""
        return self.capture.changed

    @cached_property
    def expired_through(self) -> int:
        """Records at or before this time have expired (ms; -1: none has)."""
        return max(self.capture.expired_through, self._kind.expired_through(self.parameters, self.stream_time))

    @cached_property
    def _lines(self) -> list[BlockEntry]:
        """The lines of the checkpoint's directory; a damaged page is listed among the faults.

        O(blocks).
        """
        lines: list[BlockEntry] = []
        directory = self._directory
        if directory is None:
            return lines
        for page in directory.pages:
            try:
                lines += directory.open(page)
            except CorruptCheckpointError as error:
                self._fault(str(error))
        return lines

    @cached_property
    def entries(self) -> list[BlockEntry]:
        """The checkpoint's blocks that may have live records, according to the directory."""
        capture = self.capture
        return [
            entry
            for entry in self._lines
            if not (entry.bucket in capture.dropped and entry.bucket not in capture.changed)
            and not (entry.bucket in capture.changed and capture.changed[entry.bucket].fresh)
            and not 0 <= entry.high <= self.expired_through
        ]

    def block(self, entry: BlockEntry) -> Columns | None:
        """Load one block, or None when it is damaged, which is then listed among the faults. O(block)."""
        assert self._checkpoint is not None
        try:
            columns = self._checkpoint.block(self.number, entry)
        except CorruptCheckpointError as error:
            self._fault(str(error))
            return None
        except Exception as error:  # a forged block may raise anything
            self._fault(f"{self._checkpoint.where}: block {entry.block} of store {self.number} cannot be read: {error}")
            return None
        return columns

    def _fault(self, text: str) -> None:
        if text not in self._faults:
            self._faults.append(text)

    def unordered(self, selection: Selection = EVERYTHING) -> Iterator[Row]:
        """Yield the records of `records` in no particular order, with one block in memory. O(blocks touched)."""
        for bucket, entries in self.buckets(selection.reverse):
            old, new = self.pieces(bucket, entries, selection, False)
            for piece in chain(old, new or ()):
                yield from piece

    def buckets(self, reverse: bool) -> Iterator[tuple[int, list[BlockEntry]]]:
        """Yield the numbers of the buckets, in order, with their blocks."""
        buckets: dict[int, list[BlockEntry]] = {}
        for entry in self.entries:
            buckets.setdefault(entry.bucket, []).append(entry)
        for bucket in sorted(buckets.keys() | self.changed.keys(), reverse=reverse):
            yield bucket, buckets.get(bucket, [])

    def records(self, selection: Selection = EVERYTHING) -> Iterator[Row]:
        """Yield records in the store's order (by key, or by time and then key), or in the reverse.

        O(blocks touched).
        """
        for bucket, entries in self.buckets(selection.reverse):
            rows = self._bucket(bucket, entries, selection)
            if self._kind.order == "key":
                yield from rows
            else:
                # Within a bucket blocks are by key; the store's order is by time.
                ordered = sorted(rows, key=time_order)
                yield from reversed(ordered) if selection.reverse else ordered

    def _bucket(self, bucket: int, entries: list[BlockEntry], selection: Selection) -> Iterator[Row]:
        reverse = selection.reverse and self._kind.order == "key"
        old, new = self.pieces(bucket, entries, selection, reverse)
        rows = (row for piece in old for row in piece)
        return rows if new is None else merge(rows, *new, key=_key_order, reverse=reverse)

    def pieces(
        self, bucket: int, entries: list[BlockEntry], selection: Selection, reverse: bool
    ) -> tuple[Iterator[Iterator[Row]], list[Iterator[Row]] | None]:
        """Return the selected records of a bucket, by key: the records of each block with later changes over this
        block, and the records beside the blocks (None: no such records). A block is read only when its records are
        needed.
        """
        change = self.changed.get(bucket)
        if change is None:
            return self._blocks(entries, selection, set(), None, reverse), None
        touched = {*change.columns.keys, *change.removed}
        new = [self._rows(change.columns, selection, set(), reverse)]
        if change.over:
            covered = [(entry.first, entry.last) for entry in entries]
            new.append(self._rows(self._laid(NOTHING, outside(change.over, covered)), selection, set(), reverse))
        return self._blocks(entries, selection, touched, change.over, reverse), new

    def _laid(self, columns: Columns, over: Columns) -> Columns:
        """Return columns, merged with the changes that were written while the columns were not loaded."""
        combine = self.capture.combine
        assert combine is not None
        return lay_over(columns, over, combine) if len(over) else columns

    def of_buckets(self, buckets: set[int], skip: set[int]) -> Iterator[Row]:
        """Yield the live records of these buckets by key, leaving out the blocks with these ids. O(blocks read); memory
        of a block of each bucket.
        """
        entries: dict[int, list[BlockEntry]] = {bucket: [] for bucket in buckets}
        for entry in self.entries:
            if entry.bucket in buckets and entry.block not in skip:
                entries[entry.bucket].append(entry)
        return merge(*(self._bucket(bucket, entries[bucket], EVERYTHING) for bucket in buckets), key=_key_order)

    @property
    def bucket_ms(self) -> int | None:
        """How long a bucket is (ms); None for a kind whose buckets do not follow from the time."""
        length: int | None = self.capture.state.get("width_ms")
        return length

    def _blocks(
        self, entries: list[BlockEntry], selection: Selection, touched: set[Any], over: Columns | None, reverse: bool
    ) -> Iterator[Iterator[Row]]:
        for entry in reversed(entries) if reverse else entries:
            if selection.touches(entry.first, entry.last):
                # not bound to a name, so that the block is freed once its last row was yielded
                yield self._rows(self._current(entry, selection, over), selection, touched, reverse)

    def _current(self, entry: BlockEntry, selection: Selection, over: Columns | None) -> Columns:
        """Read a block with the changes over this block. If the block is skipped or damaged, only the changes are
        returned.
        """
        timely = selection.overlaps(entry.low, entry.high, len(self.columns))
        columns = (self.block(entry) if timely else None) or NOTHING
        return columns if over is None else self._laid(columns, over.between(entry.first, entry.last))

    def _rows(self, columns: Columns, selection: Selection, touched: set[Any], reverse: bool) -> Iterator[Row]:
        if selection.key_from is not None or selection.key_to is not None:
            columns = columns.between(selection.key_from, selection.key_to)
        row, expired = self._kind.row, self.expired_through
        every, timed = selection.everything, bool(columns.ints) and expired >= 0
        for key, times, value in reversed([*columns.rows()]) if reverse else columns.rows():
            if timed and times[0] <= expired:
                continue
            if key not in touched and (every or selection.picks(key, times)):
                yield row(key, times, value)


def outside(columns: Columns, ranges: list[tuple[Any, Any]]) -> Columns:
    """Return columns without the keys in these ranges, which are in order, bounds included. O(keys)."""
    firsts = [first for first, _ in ranges]

    def inside(key: Any) -> bool:
        i = bisect_right(firsts, key) - 1
        return i >= 0 and bool(key <= ranges[i][1])

    return merged(columns, NOTHING, set(filter(inside, columns.keys)))


def _key_order(row: Row) -> Any:
    return row.key


def time_order(row: Row) -> Any:
    return row.times[0], row.key, -row.times[-1]
