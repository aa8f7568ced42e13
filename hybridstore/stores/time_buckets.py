"""Time buckets: the base of stores that keep records by time: buckets, expiry, cold blocks, captures for checkpoints.

    number of a bucket = time // width -> StoreBucket; a bucket is freed when even its last millisecond has expired

The subclass decides what a run holds and which time counts (a session's end), and defines `_install` and `_columns`.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from sys import getsizeof
from typing import Any, ClassVar, Final

from changelog.journal import Journal
from changelog.turn import within
from recovery.block import BucketChange, Columns, Combine, lay_over
from recovery.directory import Directory, PageEntry

from ..clock import INT64_MAX, expired_through
from .buckets import Sealed, SealedBucket, StoreBucket
from .cold_blocks import (
    SPARING,
    Cold,
    ColdBlock,
    ColdPage,
    hide,
    open_page,
    prefetch,
    rows_apart,
    taken_block,
    taken_sets,
    with_keys,
)
from .cold_tail import ColdTail, Maps, Step
from .edge import Edge
from .sizes import cold_bytes, map_bytes
from .snapshots import Snapshots, SnapshotToken

BUCKETS_PER_RETENTION: Final = 64
# Maps of so many expired buckets wait to be emptied by commits: more only come together where nobody commits.
_MOST_ENDED: Final = BUCKETS_PER_RETENTION
# The sizes of so many buckets are measured.
_SAMPLED_BUCKETS: Final = 8
_BOUND_TYPES: Final = {int, type(None)}


class TimeBuckets(Edge):
    """Buckets by time with one retention: a record is live while its time > stream_time - retention."""

    # How many times a record has.
    ints: ClassVar[int]
    cools = True
    _sorted: list[int] | None
    _drop_at: int  # the stream time at which the oldest bucket has expired as a whole
    # Cache of the bucket written last and its range of times; an empty range forces the lookup. Most puts go into the
    # same bucket as the put before, and so need no division and no search.
    _near: Any
    _near_from: int
    _near_to: int

    def __init__(
        self,
        name: str,
        number: int,
        parameters: dict[str, Any],
        journal: Journal,
        divisor: int,
        dropped: dict[str, int],
    ) -> None:
        retention_ms: int = parameters["retention_ms"]
        # `ts - lag` is the boundary at stream time `ts`: clock.py's rule, computed once instead of at every put
        self._expiry_lag = -expired_through(0, retention_ms)
        self._width: int = max(1, retention_ms // divisor)
        self._snapshots = Snapshots()
        self._tail = ColdTail(2 + self.ints)
        super().__init__(name, number, parameters, journal, dropped)

    # --- what the store above gives ---------------------------------------------------------------------------

    def _new_bucket(self, number: int, epoch: int) -> StoreBucket:
        """Return an empty bucket."""
        return StoreBucket(epoch)

    @abstractmethod
    def _install(self, bucket: Any, columns: Columns) -> None:
        """Put the records of a loaded block under those written since."""

    @abstractmethod
    def _columns(self, bucket: Any, keys: list[Any], *, changed: bool) -> tuple[Columns, set[Any]]:
        """Return the records of these keys by column, and the keys without records; with `changed`, only the records
        that changed since the last checkpoint.
        """

    @staticmethod
    @abstractmethod
    def _parts(run: Any) -> Sequence[Any]:
        """Return the columns of a run: its times, the one that counts first, and its values."""

    # --- time -------------------------------------------------------------------------------------------------

    @property
    def _expired(self) -> int:
        """The largest time that has expired."""
        return self._stream_time - self._expiry_lag

    def advance(self, ts: int) -> None:
        """Move stream time to `ts` (ms) without a record; an earlier time or -1 changes nothing. O(expired).

        >>> pages = hs.open("state").window("pages", retention="1 minute")
        >>> pages.put("ann", "/", ts=0)
        >>> pages.advance(60_000)
        >>> len(pages)
        0
        """
        self.move_time(ts)

    def apply_time(self, ts: int) -> None:
        if ts <= self._stream_time:
            return
        self._stream_time = ts
        if ts >= self._drop_at:
            self._drop_expired()

    def _add_bucket(self, number: int) -> Any:
        bucket = self._buckets[number] = self._new_bucket(number, self._snapshots.epoch)
        self._sorted = None
        drop_at = self._drop_time(number)
        if drop_at < self._drop_at:
            self._drop_at = drop_at
        return bucket

    def _drop_time(self, number: int) -> int:
        """Return the stream time at which even the last millisecond of a bucket has expired."""
        return (number + 1) * self._width - 1 + self._expiry_lag

    def _approach(self, ts: int) -> Any:
        """Return the bucket of a time, ready for changes, and cache the bucket for the next put."""
        number = ts // self._width
        bucket = self._near = self._writable(number)
        self._near_from = number * self._width
        self._near_to = self._near_from + self._width
        return bucket

    def _open_snapshot(self) -> SnapshotToken:
        """Begin a snapshot: every bucket is copied before it is changed. O(1)."""
        self._near_to = 0
        return self._snapshots.open()

    def _writable(self, number: int) -> Any:
        """Return a bucket that may be changed: a new one, or a copy if an open snapshot may read the bucket."""
        bucket = self._buckets.get(number)
        if bucket is None:
            return self._add_bucket(number)
        if self._snapshots.live and bucket.epoch < self._snapshots.epoch:
            self._near_to = 0
            bucket = self._buckets[number] = bucket.clone(self._snapshots.epoch)
        return bucket

    def _stretches(self, times: list[int]) -> Iterator[tuple[Any, int, int]]:
        """Cut times that never fall where buckets end: (bucket that may be changed, start, end).

        O(buckets log rows).
        """
        start, width = 0, self._width
        while start < len(times):
            number = times[start] // width
            end = bisect_left(times, (number + 1) * width, start)
            yield self._writable(number), start, end
            start = end

    def _thin(self, times: list[int]) -> bool:
        """True when ascending times may have too few rows in each bucket for inserting a bucket at a time."""
        return len(times) < 8 * (times[-1] // self._width - times[0] // self._width + 1)

    def _remove_bucket(self, number: int) -> None:
        bucket = self._buckets.pop(number)
        self._sorted = self._near = None
        self._near_to = 0
        if not self._snapshots.live:  # else an iterator may read it
            self._ended += filter(None, self._maps_of(bucket))
            del self._ended[:-_MOST_ENDED]
        if number in self._checkpointed:
            self._checkpointed.discard(number)
            self._expired_buckets.add(number)

    def _drop_expired(self) -> None:
        """Forget the buckets of which even the last millisecond has expired: commits free them, in slices."""
        newest = (self._expired + 1) // self._width  # the first bucket that may hold a live millisecond
        for number in [number for number in self._buckets if number < newest]:
            self._remove_bucket(number)
        self._drop_at = self._drop_time(min(self._buckets)) if self._buckets else INT64_MAX

    def _first_live(self) -> int:
        """Return the first time of the first bucket that may hold a live record."""
        first: int = (self._expired + 1) // self._width * self._width
        return first

    def _bounds(self, time_from: int | None, time_to: int | None) -> tuple[int, int]:
        if type(time_from) not in _BOUND_TYPES or type(time_to) not in _BOUND_TYPES:
            type_name = type(time_to if type(time_from) in _BOUND_TYPES else time_from).__name__
            raise TypeError(f"store {self.name!r}: bound of a time range: found {type_name}, expected int (ms) or None")
        low = self._expired + 1 if time_from is None or time_from <= self._expired else time_from
        return max(low, 0), INT64_MAX if time_to is None else time_to

    def _numbers(self, low: int, high: int) -> list[int]:
        """Return the numbers of the buckets that may hold times low..high, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._buckets)
        if low > high:
            return []
        return self._sorted[
            bisect_left(self._sorted, low // self._width) : bisect_right(self._sorted, high // self._width)
        ]

    def _run(self, number: int, key: Any) -> Any:
        """Return a key's run in a bucket, loading the block that may hold it."""
        bucket = self._buckets.get(number)
        if bucket is None:
            return None
        if SPARING.on:
            self.lookups.asked += 1
        if bucket.cold:
            i = bucket.covering(key)
            if i >= 0:
                self._load_key(bucket, i, key)
        return bucket.runs.get(key)

    def prefetch(self, keys: Collection[Any], time_from: int = 0, time_to: int = INT64_MAX) -> None:
        """Read the blocks that may hold one of these keys at times from `time_from` to `time_to` (ms, both inclusive)
        from far, side by side, before a batch touches them one by one. Raises OSError. O(1) where the checkpoint
        is local.
        """
        if self.far:
            numbers = self._numbers(max(time_from, 0), time_to)
            prefetch(self._source, [(self._buckets[number].cold, keys) for number in numbers])

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def pin_key_type(self) -> None:
        self._keys.pin(key for bucket in self._buckets.values() for key in bucket.runs)
        self._watch_tail()

    def clear_state(self) -> None:
        super().clear_state()
        self._buckets: dict[int, Any] = {}
        self._sorted = None
        self._checkpointed: set[int] = set()
        self._expired_buckets: set[int] = set()
        # maps of buckets that are no more
        self._ended: list[Maps] = []
        self._drop_at = INT64_MAX
        self._near = None
        self._near_from = self._near_to = 0

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        self.clear_state()
        self._keys.restore(state["key"])
        self._width = state["width_ms"]  # the blocks are cut by this width, whatever width this release would choose
        self._source = directory.source
        for page in directory.pages:
            bucket = self._buckets.get(page.bucket)
            if bucket is None:
                bucket = self._buckets[page.bucket] = self._new_bucket(page.bucket, self._snapshots.epoch)
                bucket.dirty = set()
            bucket.captured(page.high)
            bucket.records += page.records
            bucket.cold.append(ColdPage(page, directory))
        if self._buckets:
            self._checkpointed = set(self._buckets)
            self._drop_at = self._drop_time(min(self._buckets))
        self.apply_time(state["stream_time"])

    @within
    def _load(self, bucket: Any, index: int) -> None:
        """Load one cold block, the last one of a page, and put its records under those written since."""
        index = open_page(bucket.cold, index)
        cold: ColdBlock = bucket.cold[index]
        columns = cold.columns()  # a damaged block stays cold
        SPARING.load(len(columns), cold.entry.bytes)
        with self._journal.sure:
            del bucket.cold[index]
            bucket.records += len(columns) - cold.records  # of keys in memory when the store became cold
            self._install(bucket, columns)
            number = cold.entry.bucket
            if not (bucket.runs or bucket.cold or bucket.dirty) and self._buckets.get(number) is bucket:
                self._remove_bucket(number)  # a checkpoint knows that its last records were deleted over this block

    def _load_key(self, bucket: Any, index: int, key: Any) -> None:
        """Load what the block at `index` has of a key: where memory is short, the key's records alone."""
        self.lookups.missed += SPARING.on
        self._bring_key(bucket, index, key)

    def _bring_key(self, bucket: Any, index: int, key: Any) -> None:
        rows = rows_apart(bucket.cold, index, key)
        if rows is None:
            self._load(bucket, index)
        elif rows.keys or key in bucket.tombstoned:
            # put and deleted over the block, which may lack the key: the tombstones are not needed any more
            with self._journal.sure:
                taken_block(bucket.cold, index).take((key,), len(rows))
                self._install(bucket, rows)

    def _load_all(self, bucket: StoreBucket) -> None:
        while bucket.cold:
            self._load(bucket, len(bucket.cold) - 1)

    def _changes(self, combine: Combine | None) -> dict[int, BucketChange]:
        changed: dict[int, BucketChange] = {}
        for number, bucket in list(self._buckets.items()):
            if bucket.dirty is None:
                changed[number] = BucketChange(*self._columns(bucket, sorted(bucket.runs), changed=False), True)
            elif bucket.dirty:
                over = self._over(bucket, whole=combine is None) if bucket.cold else []
                columns, removed = self._columns(bucket, sorted(bucket.dirty.difference(over)), changed=True)
                laid = self._columns(bucket, over, changed=True)[0] if over else None
                changed[number] = BucketChange(columns, removed, False, laid)
        return changed

    def seal(self) -> Sealed:
        self.apply_waiting()
        sealed: dict[int, SealedBucket] = {}
        for number, bucket in list(self._buckets.items()):
            if bucket.dirty is None or bucket.dirty:
                sealed[number] = SealedBucket(bucket.dirty, bucket.since, bucket.late)
                # time need not follow the rows: then the end of the bucket bounds them
                through = (number + 1) * self._width - 1
                bucket.captured(min(through, self._stream_time) if self._by_records else through)
            bucket.dirty = set()
            if not bucket.runs and not bucket.cold:
                # its last records were deleted over a cold block, and the block is loaded only now
                del self._buckets[number]
                self._sorted = None
                self._near_to = 0
        dropped, self._expired_buckets = self._expired_buckets, set()
        self._checkpointed = set(self._buckets)
        return Sealed(self.number, sealed, dropped)

    def _over(self, bucket: StoreBucket, *, whole: bool) -> list[Any]:
        """Return the changed keys whose blocks are not loaded, in order. `whole` loads those blocks first, so the list
        is empty.
        """
        assert bucket.dirty is not None
        over = []
        for key in bucket.dirty:
            i = bucket.covering(key)
            if i >= 0 and whole:
                self._load(bucket, i)
            elif i >= 0 and key in bucket.runs:
                over.append(key)
        return sorted(over)

    def unseal(self, sealed: Sealed) -> None:
        for number, before in sealed.buckets.items():
            bucket = self._buckets.get(number)
            if bucket is None:
                self._expired_buckets.add(number)
            elif before.dirty is None:
                bucket.dirty = None
                self._checkpointed.discard(number)
            elif bucket.dirty is None:  # emptied before the seal, and made anew since
                self._expired_buckets.add(number)
            else:
                bucket.dirty |= before.dirty
                bucket.uncaptured(before)
        # a bucket that was made anew may go before the next seal, and the checkpoint before has the old one
        self._expired_buckets |= sealed.dropped

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "width_ms": self._width}

    @property
    def can_cool(self) -> bool:
        """See `Tailed`. Of a checkpoint on another machine pages would be read for it."""
        return not (self._tail or self.far)

    def cool(self, directory: Directory) -> list[Step]:
        """See `Tailed`. Buckets that the checkpoint lacks stay as they are; the others become cold one by one."""
        pages: dict[int, list[PageEntry]] = {number: [] for number in self._checkpointed}
        for page in directory.pages:
            if page.bucket in pages:
                pages[page.bucket].append(page)
        self._source = directory.source
        return [
            partial(self._cool_bucket, number, [ColdPage(page, directory) for page in its_pages])
            for number, its_pages in pages.items()
        ]

    def _cool_bucket(self, number: int, cold: list[Cold]) -> list[Maps]:
        """Let the runs of a bucket's changed keys lie over its blocks in the newest checkpoint: as overlays where they
        lay over a block before, and else in place of what the block has. Returns maps to be emptied. O(changed).
        """
        if number not in self._checkpointed:  # it has expired since
            return []
        shared, before = self._snapshots.live > 0, self._buckets[number]
        records = sum(page.records for page in cold)
        hide(cold, self._whole_changes(before))
        # nothing has changed until here, where a damaged page is found
        bucket = before.over_newer(self._snapshots.epoch, shared=shared)
        bucket.cold, bucket.records = cold, records + self._records_of(bucket.runs)
        if bucket.tombstoned:  # no block of this checkpoint may cover some of them
            self._install(bucket, self._columns(bucket, [], changed=False)[0])
        if not cold:
            # all that the checkpoint could have of it was deleted
            bucket.dirty, bucket.since, bucket.late = None, 0, {}
            self._checkpointed.discard(number)
        if bucket.runs or cold:
            self._buckets[number] = bucket
        else:
            del self._buckets[number]
        self._sorted = self._near = None
        self._near_to = 0
        return [] if shared else [before.runs, *taken_sets(before.cold)]

    def _records_of(self, runs: dict[Any, Any]) -> int:
        """Return how many records runs have: a short one is a tuple with the fields of all. O(runs), at C speed."""
        columns = [run for run in runs.values() if type(run) is list]
        fields = sum(map(len, runs.values())) - sum(map(len, columns))
        return fields // len(self._parts(())) + sum(len(self._parts(run)[0]) for run in columns)

    def _whole_changes(self, bucket: StoreBucket) -> set[Any]:
        """Return the changed keys of a bucket whose runs are whole: no cold block has more of them. Where rows cannot
        be laid over a block twice, that is all of them: what blocks have of them is loaded. O(changed).
        """
        dirty = bucket.dirty
        assert dirty is not None
        over = dirty.difference(*taken_sets(bucket.cold))
        over.intersection_update(chain.from_iterable(keys for _, keys in with_keys(bucket.cold, over)))
        if self._combine is not None:
            return dirty - over if over else dirty
        for key in over:
            i = bucket.covering(key)
            if i >= 0:
                self._bring_key(bucket, i, key)
        return dirty

    @property
    def cold_blocks(self) -> int:
        return sum(block.blocks for bucket in self._buckets.values() for block in bucket.cold)

    @property
    @abstractmethod
    def _laid_over(self) -> Combine:
        """A function that lays rows of a key over older ones."""

    def rows_of(self, key: Any) -> list[Columns]:
        """Return the rows of a key by column, a bucket at a time, expired rows too. Cold blocks stay cold, for a look
        at one key only. O(buckets + blocks that may hold the key).
        """
        combine = self._laid_over
        self.touch([key])
        unloaded = []
        for number in self._numbers(0, INT64_MAX):
            bucket = self._buckets[number]
            columns = self._columns(bucket, [key], changed=False)[0]
            i = bucket.covering(key)
            if i >= 0:
                columns = lay_over(bucket.cold[i].rows_of(key), columns, combine)
            unloaded.append(columns)
        return unloaded

    def warm(self) -> bool:
        """Apply some waiting rows, or else load one cold block; False when nothing is left to do. O(block)."""
        if self.apply_some_waiting():
            return True
        for number in reversed(self._numbers(0, INT64_MAX)):
            bucket = self._buckets[number]
            if bucket.cold:
                self._load(bucket, len(bucket.cold) - 1)
                return True
        return False

    @property
    def cold_records(self) -> int:
        return sum(block.records for bucket in self._buckets.values() for block in bucket.cold)

    @property
    def changed_keys(self) -> tuple[int, int]:
        buckets = self._buckets.values()
        changed = sum(len(bucket.runs if bucket.dirty is None else bucket.dirty) for bucket in buckets)
        return changed, sum(len(bucket.runs) for bucket in buckets)

    @property
    def bytes_in_memory(self) -> int:
        buckets = [bucket for bucket in self._buckets.values() if bucket.runs]
        keys = sum(len(bucket.runs) for bucket in buckets)
        sampled = buckets[:: len(buckets) // _SAMPLED_BUCKETS + 1]
        measured = sum(len(bucket.runs) for bucket in sampled)
        size = keys * sum(map_bytes(bucket.runs) for bucket in sampled) // max(1, measured)
        for bucket in self._buckets.values():
            if bucket.late:
                size += getsizeof(bucket.late)
            if bucket.dirty:
                size += getsizeof(bucket.dirty)
            if bucket.owned:
                size += getsizeof(bucket.owned)
            if bucket.cold:
                size += cold_bytes(bucket.cold)
        return size + self._tail.bytes

    def maps(self) -> list[Maps]:
        """Return the maps of the records in memory, to be emptied in slices when the store has others; none while an
        iterator may read them. O(buckets).
        """
        if self._snapshots.live:
            return []
        return list(chain.from_iterable(map(self._maps_of, self._buckets.values())))

    @staticmethod
    def _maps_of(bucket: StoreBucket) -> list[Maps]:
        return [bucket.runs, *([] if bucket.dirty is None else [bucket.dirty]), *taken_sets(bucket.cold)]

    def take_ended(self) -> list[Maps]:
        ended, self._ended = self._ended, []
        return ended

    @property
    def _applied_records(self) -> int:
        return sum(bucket.records for bucket in self._buckets.values())

    def _check(self) -> None:
        self._check_tail()
        width, expired = self._width, self._expired
        assert self._sorted is None or self._sorted == sorted(self._buckets), ("bucket order", self._sorted)
        # the cached bucket is the present one
        assert not self._near_to or self._buckets.get(self._near_from // width) is self._near, ("near", self._near_from)
        for number, bucket in self._buckets.items():
            # no bucket is wholly older than the retention
            assert (number + 1) * width - 1 > expired, ("expired bucket", number, expired)
            # no empty inner maps
            assert bucket.runs or bucket.cold or bucket.dirty, ("empty bucket", number)
            # a bucket that is in a checkpoint tracks its dirty keys
            assert (bucket.dirty is None) == (number not in self._checkpointed), ("dirty", number)
            # the next expiry is not later than the first bucket's end
            assert self._drop_at <= self._drop_time(number), ("next drop", self._drop_at, number)
