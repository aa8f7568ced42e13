"""Key blocks: the base of stores that keep one dict by key: cold blocks by key range, and captures for checkpoints.

Records written since the checkpoint lie over cold blocks (`cold_blocks`) until the blocks are touched or warmed. The
subclass decides what a record is: it defines `_install`, `_change` and the rest of its state.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import Any, Final

from changelog.turn import within
from recovery.block import BlockEntry, BucketChange, Columns, Combine
from recovery.directory import Directory

from ..clock import INT64_MAX
from .buckets import Sealed, SealedBucket, StoreBucket
from .cold_blocks import (
    SPARING,
    TAKEN_SHARE,
    ColdBlock,
    ColdPage,
    DecodedBlock,
    TakenBlock,
    copied,
    hide,
    load_or_leave,
    only,
    open_page,
    prefetch,
    read_apart,
    rows_apart,
    taken_block,
    taken_sets,
    unexpired,
    with_keys,
)
from .cold_tail import Maps, Step
from .columns import column_list, time_list
from .edge import Edge
from .sizes import cold_bytes, map_bytes

# One record in so many is loaded of a block of which the earliest records are wanted.
_FIRST_SHARE: Final = 8
# Of so many records for each changed one, those that came last, changed ones are found without looking them up.
_LATEST: Final = 2


class KeyBlocks(Edge):
    """One dict by key, with key ranges of it that are still in a checkpoint."""

    _bucket: StoreBucket
    _runs: dict[Any, Any]
    # keys changed since the last checkpoint; None while no checkpoint holds the store
    _dirty: set[Any] | None
    # Up to this time no cold block expires as a whole.
    _cold_until: int

    # --- what the store above gives ---------------------------------------------------------------------------

    @abstractmethod
    def _install(self, columns: Columns) -> None:
        """Put records of a cold block under those written since."""

    @abstractmethod
    def _change(self, dirty: set[Any] | None) -> BucketChange:
        """Return the change since the last checkpoint: the records of the keys in `dirty` (None: all), and the removed
        keys.
        """

    @abstractmethod
    def _cold_changed(self) -> None:
        """Update everything that the store derives from the list of cold blocks, which has changed."""

    def _loaded(self, entry: BlockEntry) -> None:
        """Forget what the store keeps about a cold block: all its records are in the dict now."""

    def _taken(self, records: int) -> None:
        """Count that so many records of a cold block are in the dict now, whether the block stays cold or not."""

    # --- arguments --------------------------------------------------------------------------------------------

    def _timed_columns(self, keys: Any, values: Any, times: Any) -> tuple[list[Any], list[Any], list[int]]:
        """Return three columns as lists.

        Raises TypeError or ValueError for lengths, times or values that are wrong. O(rows).
        """
        key_list, value_list = column_list(keys), column_list(values)
        ts_list = time_list(times, f"store {self.name!r}: times")
        self._check_lengths(keys=key_list, values=value_list, times=ts_list)
        self._check_values(key_list, value_list)
        return key_list, value_list, ts_list

    # --- looking ----------------------------------------------------------------------------------------------

    @property
    def cold_blocks(self) -> int:
        return sum(block.blocks for block in self._bucket.cold if type(block) is not DecodedBlock)

    @property
    def decoded_blocks(self) -> int:
        """How many blocks are in memory, but not in the dict yet. O(blocks)."""
        return sum(type(block) is DecodedBlock for block in self._bucket.cold)

    @property
    def cold_records(self) -> int:
        return sum(block.records for block in self._bucket.cold if type(block) is not DecodedBlock)

    @property
    def _block_records(self) -> int:
        """Records in blocks that are not in the dict, decoded or not. O(blocks)."""
        return sum(block.records for block in self._bucket.cold)

    @property
    def changed_keys(self) -> tuple[int, int]:
        """See `Tailed`. O(1)."""
        return len(self._runs if self._dirty is None else self._dirty), len(self._runs)

    @property
    def bytes_in_memory(self) -> int:
        dirty = getsizeof(self._dirty) if self._dirty else 0
        return self._maps_bytes() + dirty + cold_bytes(self._bucket.cold) + self._tail.bytes

    def _maps_bytes(self) -> int:
        """Return about how many bytes the dict and what is derived from it take. O(sample)."""
        return map_bytes(self._runs)

    def maps(self) -> list[Maps]:
        return [self._runs, *([] if self._dirty is None else [self._dirty])]

    # --- loading ----------------------------------------------------------------------------------------------

    def warm(self) -> bool:
        """Apply some waiting rows, or else put a block into the dict; False when nothing is left to do. O(block)."""
        if self.apply_some_waiting():
            return True
        cold = self._bucket.cold
        if not cold:
            return False
        self._load(len(cold) - 1)
        return True

    def read_in(self, on_block: Callable[[], None]) -> None:
        """Read, check and decode every cold block, and leave it beside the dict; call `on_block` after each.

        O(records).
        """
        cold = self._bucket.cold
        for i in range(len(cold) - 1, -1, -1):
            open_page(cold, i)
        for i, block in enumerate(cold):
            if type(block) is ColdBlock:
                cold[i] = DecodedBlock(block.entry, block.columns())
                on_block()

    @within
    def _load(self, index: int, columns: Columns | None = None) -> None:
        """Load one block, the last one of a page, and put its records under those written since. `columns`: the block
        was read already.
        """
        cold = self._bucket.cold
        index = open_page(cold, index)
        block = cold[index]
        assert isinstance(block, ColdBlock)
        if columns is None:
            columns = block.columns()  # a damaged block stays cold
        SPARING.load(len(columns), block.entry.bytes)
        with self._journal.sure:
            del cold[index]
            self._install(columns)
            self._taken(len(columns))
            self._loaded(block.entry)
            self._cold_changed()

    @within
    def _load_first(self, index: int, through: int) -> None:
        """Load the records of a cold block with times up to `through`, of one record a key, and as many later ones as
        make it a share of the block, in order of time: reading one costs as much as reading all, so that the next
        ones are there when they are wanted, and the others take no memory.
        """
        cold = self._bucket.cold
        block = cold[index]
        assert isinstance(block, ColdBlock)
        columns = block.columns()  # a damaged block stays cold
        times = sorted(columns.ints[0])
        if times:
            through = max(through, times[len(times) // _FIRST_SHARE])
        if not times or times[-1] <= through:
            self._load(index, columns)
            return
        first = only(columns, [ts <= through for ts in columns.ints[0]])
        with self._journal.sure:
            taken_block(cold, index).take_first(first.keys, times[len(first)])
            self._install(first)
            self._taken(len(first))
            self._cold_changed()

    def _load_key(self, index: int, key: Any, *, absent: bool = False) -> None:
        """Load what the block at `index` has of a key: where memory is short, the key's records alone. `absent`: the
        block says nothing about the key any more, even if it has no records of the key.
        """
        cold = self._bucket.cold
        self.lookups.missed += SPARING.on
        rows = rows_apart(cold, index, key)
        if rows is None:
            self._load(index)
        elif rows.keys or absent:
            with self._journal.sure:
                taken_block(cold, index).take((key,), len(rows))
                self._install(rows)
                self._taken(len(rows))

    def _load_keys(self, index: int, keys: Sequence[Any]) -> None:
        """Load what the block at `index` has of these keys, of one record each, as `_load_key`, without a call for each
        of them: the block says nothing about them any more. O(keys log keys).
        """
        cold = self._bucket.cold
        block = cold[index]
        assert isinstance(block, ColdBlock)
        self.lookups.missed += len(keys) * SPARING.on
        if TAKEN_SHARE * len(keys) > block.entry.keys or not read_apart(block, len(cold)):
            self._load(index)
            return
        records = block.records_of(keys)
        rows = [(key, *record) for key, record in zip(keys, records, strict=True) if record is not None]
        with self._journal.sure:
            taken_block(cold, index).take(keys, len(rows))
            if rows:
                present, values, *ints = zip(*rows, strict=True)
                columns = tuple(array("q", column) for column in ints)
                self._install(Columns(list(present), None, columns, list(values)))
                self._taken(len(rows))

    def _touch_all(self, keys: Iterable[Any]) -> None:
        """Load what is cold of these keys, of one record each, block by block. O(blocks + keys log blocks)."""
        for i, some in reversed([*with_keys(self._bucket.cold, dict.fromkeys(keys))]):
            block = self._bucket.cold[i]
            taken = block.taken if type(block) is TakenBlock else ()
            if new := [key for key in some if key not in taken]:
                self._load_keys(i, new)

    def _expire_cold(self, through: int) -> bool:
        """Forget the cold blocks that have expired by `through` as a whole; False if none exists. O(blocks)."""
        if through < self._cold_until:
            return False
        bucket = self._bucket
        kept = unexpired(bucket.cold, through)
        if kept is not None:
            bucket.cold = kept
        self._cold_until = min((block.until for block in bucket.cold), default=INT64_MAX)
        return kept is not None

    def _unloaded(self) -> list[ColdBlock]:
        """Load all cold blocks; where memory is short, only those for which it has room. Return the others as they are
        now: with the keys that are taken out of them from now on. O(records loaded + keys taken).
        """
        blocks = load_or_leave(self._bucket.cold, lambda entry: True, self._load)
        return copied(blocks)

    def _touch(self, key: Any, *, absent: bool = False) -> None:
        """Load what is cold of `key`, `absent` as in `_load_key`. On a hot path, check `bucket.cold` first."""
        i = self._bucket.covering(key)
        if i >= 0:
            self._load_key(i, key, absent=absent)

    def prefetch(self, keys: Collection[Any], time_from: int = 0, time_to: int = INT64_MAX) -> None:
        """Read the far blocks that may hold one of these keys, side by side, before a batch touches them one by one.
        The times are for stores whose blocks are cut by time; here they are not used. Raises OSError. O(1) where the
        checkpoint is local.
        """
        if self._bucket.cold:
            prefetch(self._source, [(self._bucket.cold, keys)])

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def pin_key_type(self) -> None:
        self._keys.pin(self._runs)
        self._watch_tail()

    def clear_state(self) -> None:
        super().clear_state()
        self._bucket = StoreBucket(0)
        self._runs = self._bucket.runs
        self._dirty = None
        self._cold_until = INT64_MAX

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        self.clear_state()
        self._keys.restore(state["key"])
        self._dirty = set()
        self._become_cold(directory)
        self.apply_time(state["stream_time"])

    def _become_cold(self, directory: Directory) -> None:
        """Have the blocks of a checkpoint behind what is in memory. O(pages of the directory)."""
        self._source = directory.source
        self._bucket.cold = [ColdPage(page, directory) for page in directory.pages]
        self._cold_until = min((page.until for page in directory.pages), default=INT64_MAX)
        self._cold_changed()

    @property
    def can_cool(self) -> bool:
        """See `Tailed`. Of a checkpoint on another machine pages would be read for it."""
        return self._dirty is not None and not self._tail and not self.far

    def cool(self, directory: Directory) -> list[Step]:
        return [partial(self._cool, directory)]

    def _cool(self, directory: Directory) -> list[Maps]:
        """See `cool`. The records of changed keys stay, in place of what the checkpoint has of these keys."""
        bucket, dirty = self._bucket, self._dirty
        assert dirty is not None
        before, cold = self._runs, bucket.cold
        # most of them came last: to look each of them up takes three times as long
        latest = islice(reversed(before.items()), _LATEST * len(dirty))
        runs = {key: row for key, row in latest if key in dirty}
        runs.update((key, before[key]) for key in dirty.difference(runs) if key in before)
        self._runs = bucket.runs = runs
        self._become_cold(directory)
        hide(bucket.cold, dirty)
        return [before, *taken_sets(cold)]

    def _changes(self, combine: Combine | None) -> dict[int, BucketChange]:
        dirty = self._dirty
        return {0: self._change(dirty)} if dirty is None or dirty else {}

    def seal(self) -> Sealed:
        self.apply_waiting()
        dirty, bucket = self._dirty, self._bucket
        sealed = Sealed(self.number, {0: SealedBucket(dirty, bucket.since, bucket.late)}, beside=self._set_beside())
        self._dirty = set()
        bucket.captured(self._stream_time)
        return sealed

    def _set_beside(self) -> set[Any]:
        """Note that the records of changed keys are in the next checkpoint, though not in the cold blocks. Returns keys
        to be forgotten if that checkpoint fails.
        """
        return set()

    def unseal(self, sealed: Sealed) -> None:
        before = sealed.buckets[0]
        if before.dirty is None or self._dirty is None:
            self._dirty = None
        else:
            self._dirty |= before.dirty
        self._bucket.uncaptured(before)

    def _check_cold(self) -> None:
        """Assert the invariants of the cold blocks."""
        # the dict in use is the bucket's
        assert self._runs is self._bucket.runs
        firsts = [block.entry.first for block in self._bucket.cold]
        # blocks are in key order
        assert firsts == sorted(firsts), ("cold order", firsts)
