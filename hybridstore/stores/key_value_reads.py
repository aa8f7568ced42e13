"""Key-value reads: the queries of a key-value store, and how they bring records into memory.

A put never pays for the order of keys: an ordered scan sorts them (`key_order`).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar, overload

from changelog.turn import in_place, read
from recovery.errors import CorruptCheckpointError
from recovery.table import Record

from .buckets import TOMBSTONE
from .cold_blocks import SPARING, ColdBlock, DecodedBlock, TakenBlock, chosen, first_key, read_apart, taken_block
from .cold_tail import TailKeys
from .columns import column_list
from .edge import K, V
from .key_blocks import KeyBlocks
from .key_order import KeyOrder
from .keys import CountedKeys, KeyRule, check_prefix

T = TypeVar("T")
_MISSING = TOMBSTONE  # never a value a user can put, so that an overlay's deletions read as "missing"


class KeyValueReads(KeyBlocks, Generic[K, V]):
    """The reading half of a key-value store."""

    ttl_ms: int | None
    _expired: int
    _before: dict[Any, Any]
    # the first keys of the cold blocks and pages; of another length when they are not known
    _firsts: list[Any]
    # the keys in order, from the first ordered scan on
    _order: KeyOrder | None

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
        if type(key) is not keys.fast:
            rule = keys.rule if type(keys) is TailKeys else keys
            if type(key) is not rule.fast:
                rule.admit(key, pin=False)
            if rule is not keys:
                self._warm_up(key)
        value = self._runs.get(key, _MISSING)
        if value is _MISSING:
            turn = self._turn
            if turn.busy is not None or not turn.lock._is_owned():
                turn.take(self, reads=True)
            if not self._bucket.cold or key in self._runs:
                return default
            value = self._bring(key)
            if value is _MISSING:
                return default
        return value if self.ttl_ms is None else value[0]

    @in_place
    def _bring(self, key: Any) -> Any:
        """Load what is cold of a key of which nothing is in memory; return its row, `_MISSING` without one.

        The way of most keys where memory is short is written out here: a record of a block of which some were taken.
        """
        turn = self._turn
        before, turn.busy = turn.busy, self
        try:
            cold, firsts = self._bucket.cold, self._firsts
            if len(firsts) != len(cold):  # a page was opened
                firsts = self._firsts = list(map(first_key, cold))
            i = bisect_right(firsts, key) - 1
            block = cold[i]
            if type(block) is TakenBlock and i >= 0 and (lookup := block.ready) is not None:
                if key in block.taken or key > block.entry.last:
                    return _MISSING
                record = self._remembered(key) if self._before else None
                if record is None:
                    self.lookups.missed += 1
                    try:
                        record = lookup.record_of(key)
                    except CorruptCheckpointError:
                        record = block.record_of(key)
                return _MISSING if record is None else self._take_record(block, key, record)
            self._touch(key)
            return self._runs.get(key, _MISSING)
        finally:
            turn.busy = before

    def _load_key(self, index: int, key: Any, *, absent: bool = False) -> None:
        # as for every store, and at a third of the cost for a key of which nothing is in memory
        block = self._bucket.cold[index]
        assert isinstance(block, ColdBlock)
        if type(block) is DecodedBlock or key in self._runs or not read_apart(block, len(self._bucket.cold)):
            super()._load_key(index, key, absent=absent)
            if absent and self._runs.get(key) is TOMBSTONE:
                del self._runs[key]  # no block covers the key any more
            return
        record = self._remembered(key) if self._before else None
        if record is None:
            self.lookups.missed += 1
            record = block.record_of(key)
            if record is None:
                return
        self._take_record(taken_block(self._bucket.cold, index), key, record)

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

    @property
    def before(self) -> dict[Any, Any]:
        return self._runs

    def recall(self, before: dict[Any, Any]) -> None:
        self._before = before

    def _remembered(self, key: Any) -> Record | None:
        """Return the record that a key had before the store became cold, None if that is not known any more. A block
        covers the key, and nothing of it is in the dict. O(1).
        """
        row = self._before.pop(key, TOMBSTONE)
        if row is TOMBSTONE:
            return None
        return (row,) if self.ttl_ms is None else row

    def _take_record(self, block: TakenBlock, key: Any, record: Record) -> Any:
        """Take the only record of a key, of which nothing is in memory, out of a cold block; return its row. O(1), with
        a ttl O(log n).
        """
        try:
            block.take(key, 1)
            if self._order is not None:
                self._order.changed.add(key)
            if self.ttl_ms is None:
                row = self._runs[key] = record[0]
                return row
            if record[1] <= self._expired:
                return TOMBSTONE
            self._runs[key] = record
            self._wait([(record[1], key)], 1)
            return record
        except BaseException as error:
            self._journal.fail(error)
            raise

    @abstractmethod
    def _wait(self, places: Iterable[tuple[int, Any]], count: int) -> None:
        """Enter `count` rows into the heap of expiries."""

    @read
    def _warm_up(self, key: Any) -> None:
        """Apply the rows of the tail that a key has, and load the block that may hold the key."""
        if type(self._keys) is TailKeys:
            self.touch([key])
        if self._bucket.cold and key not in self._runs:
            self._touch(key)

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
        runs, bucket = self._runs, self._bucket
        if bucket.cold:
            if self.far:
                self.prefetch([key for key in wanted if key not in runs])
            for key in wanted:
                if key not in runs and (i := bucket.covering(key)) >= 0:
                    self._load_key(i, key)
        rows = list(map(runs.get, wanted))
        if bucket.cold:
            rows = [None if row is TOMBSTONE else row for row in rows]
        return rows if self.ttl_ms is None else [None if row is None else row[0] for row in rows]

    def scan(
        self, key_from: K | None = None, key_to: K | None = None, *, prefix: Any = None, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Iterate over `(key, value)` with key_from <= key <= key_to, both inclusive, None open; by key. `prefix`, in
        place of both: the keys that start with it, which is text, bytes, or for tuples the leading elements.

        A snapshot. Raises ValueError for a prefix beside another bound, TypeError for a bound of another type than the
        keys. O(result).

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
            return self._between(key_from, key_to, reverse=reverse)
        check_prefix(self.name, prefix, key_from, key_to)
        return self._beginning_with(prefix, reverse=reverse)

    @read
    def _between(self, key_from: Any, key_to: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        for bound in (key_from, key_to):
            if bound is not None:
                self._keys.check(bound)
        if key_from is not None and key_to is not None and key_from > key_to:
            return iter(())
        self.apply_waiting()
        self._load_range(key_from, key_to)
        rows = [(key, self._runs[key]) for key in self._ordered().irange(key_from, key_to, reverse=reverse)]
        return self._visible(rows)

    @read
    def _beginning_with(self, prefix: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        self._keys.check(prefix)
        length = len(prefix)
        self.apply_waiting()
        # a block that begins behind the prefix has only keys behind it
        for i in chosen(
            self._bucket.cold,
            lambda entry: entry.last >= prefix and (entry.first <= prefix or entry.first[:length] == prefix),
        ):
            self._load(i)
        keys: list[Any] = []
        for key in self._ordered().irange(prefix, None):
            if key[:length] != prefix:
                break
            keys.append(key)
        if reverse:
            keys.reverse()
        return self._visible([(key, self._runs[key]) for key in keys])

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
        keys = [key for key, _ in self.all()]
        rows = [(key, *self._runs[key]) for key in keys]
        return sorted(rows, key=itemgetter(2))

    @read
    def __len__(self) -> int:
        """Count the rows, exactly.

        O(1); while blocks are cold, O(written since), and it loads the blocks, under a limit the records, written over.
        """
        self._keys.admit_all([])  # raises when the state was closed
        self.apply_waiting()
        bucket = self._bucket
        if bucket.cold:
            for key in list(self._runs):
                if (i := bucket.covering(key)) >= 0:
                    self.lookups.asked += 1
                    self._load_key(i, key, absent=True)
            for i in chosen(bucket.cold, lambda entry: 0 <= entry.low <= self._expired):
                self._load(i)
        return len(self._runs) + self._block_records

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.scan())

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def _visible(self, rows: list[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        shown = self._iterators.over(rows)
        return shown if self.ttl_ms is None else ((key, row[0]) for key, row in shown)

    def _ordered(self) -> Any:
        """Return all loaded, live keys in order."""
        if self._order is None:
            self._order = KeyOrder(self._runs)
        return self._order.keys()

    def _load_range(self, key_from: Any, key_to: Any) -> None:
        for i in chosen(
            self._bucket.cold,
            lambda entry: (key_from is None or entry.last >= key_from) and (key_to is None or entry.first <= key_to),
        ):
            self._load(i)
