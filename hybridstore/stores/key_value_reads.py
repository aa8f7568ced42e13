"""Key-value reads: the queries of a key-value store, and how they bring records into memory.

A put never pays for the order of keys: an ordered scan sorts them (`key_order`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any, Generic, TypeVar, overload

from changelog.turn import in_place, read
from recovery.block import BlockEntry
from recovery.directory import PageEntry
from recovery.errors import CorruptCheckpointError
from recovery.finder import UNKNOWN
from recovery.table_range import Bounds, beginning_with, between

from .buckets import TOMBSTONE
from .cold_blocks import (
    SPARING,
    ColdBlock,
    DecodedBlock,
    TouchedBlock,
    chosen,
    first_key,
    load_or_leave,
    read_apart,
    touched_block,
    with_keys,
)
from .cold_tail import TailKeys
from .columns import column_list
from .edge import K, V
from .key_ages import KeyAges
from .key_order import KeyOrder
from .keys import CountedKeys, KeyRule, check_prefix
from .pieces import by_key

T = TypeVar("T")
_MISSING = TOMBSTONE  # never a value a user can put, so that an overlay's deletions read as "missing"


class KeyValueReads(KeyAges, Generic[K, V]):
    """The reading half of a key-value store."""

    # the first keys of the cold blocks and pages; of another length when they are not known
    _firsts: list[Any]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    @overload
    def get(self, key: K, default: T) -> V | T: ...
    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default`. O(1); loads the block that may hold the key if it is still cold.

        >>> users = hs.open("state").key_value("users")
        >>> users["ann"] = 1
        >>> users.get("ann"), users.get("eve"), users.get("eve", 0)
        (1, None, 0)
        """
        # A value in the dict is right, whoever finds it. All else needs the turn: the dict may be empty for a moment,
        # and loading changes it.
        keys = self._keys
        if type(key) is not keys.read:
            if type(keys) is CountedKeys and type(key) is keys.fast:
                self.lookups.asked += 1  # as `admit`, without a call
            elif type(keys) is TailKeys:
                self._warm_up(key, keys.rule)
            else:
                keys.admit(key, pin=False)
        value = self._runs.get(key)  # None: nothing is known, unlike that it has no row
        if value is None or value is _MISSING:
            turn = self._turn
            if turn.busy is not None or not turn.lock._is_owned():
                turn.take(self, reads=True)
                value = self._runs.get(key)
            if value is None and (self._bucket.cold or self._older):
                value = self._bring(key)
            if value is None or value is _MISSING:
                return default
        return value if self.ttl_ms is None else value[0]

    @in_place
    def _bring(self, key: Any) -> Any:
        """Load what is cold, or in an older dict, of a key of which nothing is in the dict; return its row, `_MISSING`
        without one.

        The way of most keys where memory is short is written out here: a record of a block of which some were read.
        """
        turn = self._turn
        before, turn.busy = turn.busy, self
        try:
            for older in self._older:
                value = older.get(key)
                if value is not None:
                    if value is _MISSING or self.ttl_ms is not None or self._order is not None:
                        return self._recall(key)
                    # as there, without a call
                    self._runs[key] = value
                    del older[key]
                    return value
            finder = self._older.finder
            if finder is not None and SPARING.on:
                value = finder.value_of(key)
                if value is not UNKNOWN:
                    self.lookups.missed += 1
                    SPARING.loaded += 1
                    if self._order is None and self.ttl_ms is None:
                        self._older.twice += 1
                        self._runs[key] = value
                        return value
                    self._install_row(key, value)
                    row = self._runs.get(key, _MISSING)  # it may have expired
                    self._older.twice += row is not _MISSING
                    return row
            cold, firsts = self._bucket.cold, self._firsts
            if len(firsts) != len(cold):  # a page was opened
                firsts = self._firsts = list(map(first_key, cold))
            i = bisect_right(firsts, key) - 1
            if i < 0:
                return _MISSING
            block = cold[i]
            if type(block) is TouchedBlock:
                lookup = block.lookup
                if lookup is not None and block.touched < block.most and SPARING.on:
                    try:
                        record = lookup.record_of(key)
                    except CorruptCheckpointError:
                        record = block.record_of(key)
                    if record is None:
                        self.lookups.missed += key <= block.entry.last
                        return _MISSING
                    self.lookups.missed += 1
                    block.touched += 1
                    SPARING.loaded += 1
                    if self.ttl_ms is None and self._order is None:
                        # as below, without calls
                        row = self._runs[key] = record[0]
                        return row
                    self._install_row(key, record[0] if self.ttl_ms is None else record)
                    return self._runs.get(key, _MISSING)
            super()._touch(key)
            return self._runs.get(key, _MISSING)
        finally:
            turn.busy = before

    def _load_key(self, index: int, key: Any, *, absent: bool = False) -> None:
        # as for every store, and at a third of the cost
        cold = self._bucket.cold
        block = cold[index]
        assert isinstance(block, ColdBlock)
        if type(block) is DecodedBlock or not read_apart(block, len(cold)):
            self.lookups.missed += SPARING.on
            self._load(index)
            return
        self.lookups.missed += 1
        record = block.record_of(key)
        if record is not None:
            touched_block(cold, index).touched += 1
            SPARING.loaded += 1
            self._install_row(key, record[0] if self.ttl_ms is None else record)

    def _key_rule(self) -> KeyRule:
        return CountedKeys(self.name, self.lookups) if SPARING.on else super()._key_rule()

    def count_lookups(self, limited: bool) -> None:
        keys = self._keys
        rule = keys.rule if type(keys) is TailKeys else keys
        if type(rule) is not (KeyRule if limited else CountedKeys):
            return
        new = CountedKeys(self.name, self.lookups) if limited else super()._key_rule()
        new.restore(rule.describe())
        if type(keys) is TailKeys:
            keys.rule = new
        else:
            self._keys = new

    @read
    def _warm_up(self, key: Any, rule: KeyRule) -> None:
        """Apply the rows of the tail that a key has, if it passes the rule. Raises as the rule."""
        if type(key) is not rule.read:
            rule.admit(key, pin=False)
        if type(self._keys) is TailKeys:
            self.touch([key])

    @read
    def get_many(self, keys: Sequence[K]) -> list[V | None]:
        """Return the value of each key, None for an absent key: the same as a get for each, and faster.

        `keys` is a sequence, a numpy array or an Arrow array. Raises as `get`, for the first key that this store cannot
        have. O(keys), at C speed for text, bytes, bool and int; loads the blocks that may hold one of them if they are
        still cold.

        >>> users = hs.open("state").key_value("users")
        >>> users.put_many({"ann": 1, "bob": 2})
        >>> users.get_many(["bob", "eve", "ann"])
        [2, None, 1]
        """
        wanted = column_list(keys)
        if wanted and self._keys.known and type(wanted[0]) is not tuple:
            # a read decides no type of keys: the type is known already, and only tuples may be decided further
            self._keys.admit_all(wanted)
        else:
            self._ask(wanted)
        self.lookups.asked += len(wanted)
        bucket = self._bucket
        if bucket.cold or self._older:
            self.prefetch(wanted)
            for key in wanted:
                if key not in self._runs:  # of now: loading a block makes another one
                    self._bring(key)
        rows = list(map(self._runs.get, wanted))
        if bucket.cold or self._older:
            rows = [None if row is TOMBSTONE else row for row in rows]
        return rows if self.ttl_ms is None else [None if row is None else row[0] for row in rows]

    def scan(
        self, key_from: K | None = None, key_to: K | None = None, *, prefix: Any = None, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Iterate over `(key, value)` with key_from <= key <= key_to, both inclusive, None open; by key. `prefix`, in
        place of both: the keys that start with it, which is text, bytes, or for tuples the leading elements.

        A snapshot. Raises ValueError for a prefix beside another bound, TypeError for a bound of another type than the
        keys. O(result); under a limit of memory O(rows in memory), and a cold block, of the first and the last one only
        what is in the range, is read when the iterator comes to it and is not kept, so CorruptCheckpointError may come
        from the iterator.

        >>> users = hs.open("state").key_value("users")
        >>> users.put_many({"cid": 3, "ann": 1, "bob": 2})
        >>> list(users.scan("ann", "bob"))
        [('ann', 1), ('bob', 2)]
        >>> list(users.scan("bob", reverse=True))
        [('cid', 3), ('bob', 2)]
        >>> list(users.scan(prefix="a"))
        [('ann', 1)]
        """
        if prefix is None:
            rows = self.rows(key_from, key_to, reverse=reverse)
        else:
            check_prefix(self.name, prefix, key_from, key_to)
            rows = self._beginning_with(prefix, reverse=reverse)
        return rows if self.ttl_ms is None else ((key, row[0]) for key, row in rows)

    def rows(self, key_from: Any = None, key_to: Any = None, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """As `scan`, with `(value, ts)` in place of the value of a store with a ttl."""
        for bound in (key_from, key_to):
            if bound is not None:
                self._keys.check(bound)
        if key_from is not None and key_to is not None and key_from > key_to:
            return iter(())
        return self._rows_in(between(key_from, key_to), lambda keys: keys.irange(key_from, key_to), reverse=reverse)

    def _beginning_with(self, prefix: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        self._keys.check(prefix)
        length = len(prefix)

        def within(keys: Any) -> Iterator[Any]:
            return takewhile(lambda key: key[:length] == prefix, keys.irange(prefix, None))

        return self._rows_in(beginning_with(prefix), within, reverse=reverse)

    @read
    def _rows_in(
        self, bounds: Bounds, within: Callable[[Any], Iterable[Any]], *, reverse: bool
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over `(key, row)` of a range: of blocks the keys in `bounds`, of those in memory the keys `within`.
        The rows in memory are those of now, and a block never changes.
        """
        if self._tail:
            self.apply_waiting()
        if self._older.fresh:
            self._gather()
        blocks = self._unloaded_in(bounds) if self._bucket.cold else []
        runs, ordered = self._runs, self._ordered()
        if not blocks:
            return self._iterators.over([(key, runs[key]) for key in within(ordered)], reverse=reverse)
        keys = list(within(ordered))
        rows = [runs[key] for key in keys]
        deleted = {key for block in blocks for key in self._buried.get(block.entry.block, ())}
        expired, timed = self._expired, self.ttl_ms is not None

        def merged(first: int, last: int, block: ColdBlock | None) -> list[tuple[Any, Any]]:
            in_memory = zip(keys[first:last], rows[first:last], strict=True)
            if block is None:
                return list(in_memory)
            stored = block.range_of(bounds)
            if timed:
                stored = {key: row for key, row in stored.items() if row[1] > expired}
            for key in deleted.intersection(stored):
                del stored[key]
            count = len(stored)
            stored.update(in_memory)
            piece = list(stored.items())
            if len(piece) > count:
                piece.sort(key=itemgetter(0))
            return piece

        return self._iterators.piecewise(by_key(keys, blocks, merged, reverse=reverse))

    def _unloaded_in(self, bounds: Bounds) -> list[ColdBlock]:
        """Load the blocks that may have keys in these bounds; where memory is short, only those for which it has room.
        Return the others, by key. O(records loaded + log blocks).
        """
        cold, firsts = self._bucket.cold, self._firsts
        if len(firsts) != len(cold):  # a page was opened
            firsts = self._firsts = list(map(first_key, cold))
        first, end = bounds(firsts)
        before = max(0, first - 1)  # that one may end in the range

        def wanted(entry: BlockEntry | PageEntry) -> bool:
            low, high = bounds((entry.first, entry.last))
            return low < 2 and high > 0

        return load_or_leave(cold, wanted, self._load, before, end)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over all `(key, value)`, by key. A snapshot. O(rows).

        >>> users = hs.open("state").key_value("users")
        >>> users.put_many({"bob": 2, "ann": 1})
        >>> list(users.all())
        [('ann', 1), ('bob', 2)]
        """
        return self.scan(reverse=reverse)

    @read
    def times_of(self, key: Any) -> tuple[int, ...]:
        """Return the time of a key that was read, as a record has it: none without a ttl. O(1)."""
        return () if self.ttl_ms is None else self._runs[key][1:]

    def by_time(self) -> list[tuple[Any, Any, int]]:
        """Return `(key, value, ts)` of all live rows of a store with a ttl, the oldest first. O(rows log rows)."""
        return sorted([(key, *row) for key, row in self.rows()], key=itemgetter(2))

    @read
    def __len__(self) -> int:
        """Count the rows, exactly.

        O(1); while blocks are cold, O(n log n) in the records in memory, and it loads blocks with expired records.
        """
        self._keys.admit_all([])  # raises when the state was closed
        self.apply_waiting()
        self._gather()
        cold = self._bucket.cold
        for i in chosen(cold, lambda entry: 0 <= entry.low <= self._expired):
            self._load(i)
        runs, twice = self._runs, 0
        if cold and runs:
            # what was neither written nor deleted since the checkpoint is in its block
            changed = (self._dirty or set()) | self._over_cold
            for i, keys in with_keys(cold, runs):
                block = cold[i]
                assert isinstance(block, ColdBlock)
                written = [key for key in keys if key in changed]
                self.lookups.asked += len(written)
                self.lookups.missed += len(written)
                twice += len(keys) - len(written) + sum(block.counts_of(written))
        live = len(runs) - sum(row is TOMBSTONE for row in runs.values()) if cold else len(runs)
        return live + sum(block.entry.records for block in cold) - twice

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.scan())

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def _ordered(self) -> Any:
        """Return all loaded, live keys in order."""
        if self._order is None:
            self._order = KeyOrder(self._runs)
        return self._order.keys()
