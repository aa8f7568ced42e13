"""Cold tail: rows of the changelog that are in memory, but not in a store's maps. The rows of a key are applied when
the key is touched.

    replay ─▶ columns, in the order of the log ─┬─ a key is read or written ─▶ `apply_rows`, that key's rows together
                                                └─ everything is wanted, or looked for too often
                                                                             ─▶ `apply_rows`, the oldest rows first

Most rows of a restart, or of a worker that catches up, belong to keys that are not touched soon. Such a row costs one
look, at C speed, and an expired row costs no more. The surprise: no put and no read checks for a tail. With a
tail, the store's rule of keys is `TailKeys`, and every key passes the rule anyway.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from itertools import compress, count
from operator import is_not, itemgetter
from sys import getsizeof
from typing import Any, ClassVar, Final

from changelog.errors import ChangelogError
from changelog.journal import Journal
from changelog.mutation import TIME
from changelog.turn import Turn, within
from recovery.directory import Directory
from recovery.finder import Finder

from ..collector import collector_held
from .buckets import TOMBSTONE
from .keys import KeyRule, Lookups
from .sizes import column_bytes

# So many looks at every row are cheaper than applying the whole tail; after them each look applies a part.
FREE_LOOKS: int = 4
# After so many looks the keys of all rows are put into a set; a key without rows then costs nothing.
_LOOKS_WITHOUT_SET: Final = 2
# The part: one row in so many, at least LEAST_ROWS, the oldest rows.
SHARE: Final = 2
LEAST_ROWS: int = 8192
# Up to so many waiting rows are applied when records are counted.
FEW_ROWS: int = 1000
# How many rows a slice of hydration applies: about a millisecond.
SLICE_ROWS: Final = 2048
# Up to so many keys are searched one by one.
_FEW_KEYS: Final = 2
# If more than this share of a sample has keys of the batch, selecting the batch's rows costs more than applying all
# rows.
_MOST: Final = 0.5
_SAMPLE: Final = 64

# What can be emptied in slices.
Maps = dict[Any, Any] | list[Any] | set[Any]
# A step of becoming cold: it returns maps to be emptied.
Step = Callable[[], list[Maps]]


def empty_some(maps: list[Maps], most: int) -> tuple[int, int]:
    """Free up to `most` entries of the last of these maps, and forget the map when it is empty. Return how many entries
    were freed, and the bytes of the map's table, if it is empty. O(entries freed).
    """
    last = maps[-1]
    entries = min(len(last), most)
    if len(last) == entries:
        size = getsizeof(last)
        last.clear()
        maps.pop()
        return entries, size
    if isinstance(last, list):
        del last[-entries:]
    else:
        pop = last.popitem if isinstance(last, dict) else last.pop
        for _ in range(entries):
            pop()
    return entries, 0


# In place of the key of a row that was applied.
_TAKEN: Final = type("Taken", (), {"__repr__": lambda self: "TAKEN", "__slots__": ()})()


class ColdTail:
    """Rows by column, the keys first, then the values, oldest first.

    A value may be TOMBSTONE: the row deletes its key's record.

    `deletes` says that there may be such a value. `looks` is how often an average row was looked at. `asked` has the
    keys that were searched since rows were added, and so have no rows any more.
    """

    __slots__ = ("_before", "_present", "_single", "_taken", "asked", "columns", "deletes", "looks")

    def __init__(self, width: int) -> None:
        self.columns: tuple[list[Any], ...] = tuple([] for _ in range(width))
        # rows added one by one that are not in the columns yet
        self._single: list[tuple[Any, ...]] = []
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        for column in self.columns:
            column.clear()
        self._single.clear()
        self.deletes = False
        self.looks = 0.0
        self.asked: set[Any] = set()
        # the keys that may have rows, known after enough looks
        self._present: set[Any] | None = None
        self._before = self._taken = 0

    def __len__(self) -> int:
        return len(self.columns[0]) + len(self._single) - self._taken

    def keys(self) -> Iterable[Any]:
        """Iterate over the keys of the rows, each as often as it has rows."""
        self._gather()
        return (key for key in self.columns[0] if key is not _TAKEN)

    def add(self, *row: Any) -> None:
        """Add one row. O(1)."""
        self._single.append(row)

    def extend(self, *columns: Sequence[Any]) -> None:
        """Add rows by column. Raises ValueError for columns of different lengths. O(rows), at C speed."""
        rows = len(columns[0])
        if any(len(column) != rows for column in columns):
            raise ValueError(f"columns of different lengths: {', '.join(str(len(column)) for column in columns)}")
        if self._single:
            self._gather()
        for column, items in zip(self.columns, columns, strict=True):
            column += items

    def _gather(self) -> None:
        if self._single:
            for at, column in enumerate(self.columns):
                column += map(itemgetter(at), self._single)
            self._single.clear()

    def grown(self) -> None:
        """Note that rows were added, which no look has seen yet."""
        self._gather()
        rows = len(self.columns[0])
        self.looks *= self._before / rows if rows else 0.0
        self._before = rows
        self._present = None
        self.asked.clear()

    def find(self, keys: Set[Any]) -> list[int]:
        """Return the positions of the rows of these keys, in order; the positions of all rows if most of a sample are
        of these keys.

        O(rows), at C speed.
        """
        self._gather()
        column = self.columns[0]
        if self.looks >= _LOOKS_WITHOUT_SET:
            if self._present is None:
                self._present = set(column)
            keys = keys & self._present
            if not keys:
                return []
        self.looks += 1
        if len(keys) > _FEW_KEYS:
            asked = keys.__contains__
            sample = column[:: len(column) // _SAMPLE + 1]
            if sum(map(asked, sample)) > _MOST * len(sample):
                return self.oldest(len(column))
            return list(compress(count(), map(asked, column)))
        positions: list[int] = []
        for key in keys:
            at = -1
            with suppress(ValueError):  # no other row has it
                while True:
                    at = column.index(key, at + 1)
                    positions.append(at)
        return sorted(positions)

    def rows(self, positions: list[int]) -> list[list[Any]]:
        """Return the rows at these positions by column, in lists that the caller must not keep. O(positions)."""
        if len(positions) == len(self.columns[0]):
            return list(self.columns)
        if len(positions) == 1:
            return [[column[positions[0]]] for column in self.columns]
        pick = itemgetter(*positions)
        return [list(pick(column)) for column in self.columns]

    def drop(self, positions: list[int]) -> None:
        """Forget the rows at these positions. O(positions), and now and then O(rows)."""
        self._taken += len(positions)
        keys = self.columns[0]
        if self._taken == len(keys):
            self.clear()
            return
        for at in positions:
            keys[at] = _TAKEN
        if 2 * self._taken > len(keys):
            remaining = [key is not _TAKEN for key in keys]
            for column in self.columns:
                column[:] = compress(column, remaining)
            self._before = len(keys)
            self._taken = 0

    def oldest(self, rows: int) -> list[int]:
        """Return the positions of the oldest rows: `rows` of them, or all. O(rows, and those applied among them)."""
        self._gather()
        keys = self.columns[0]
        if not self._taken:
            return list(range(min(rows, len(keys))))
        positions = compress(count(), map(partial(is_not, _TAKEN), keys))
        return [at for at, _ in zip(positions, range(rows), strict=False)]

    @property
    def bytes(self) -> int:
        """About how many bytes the rows take. O(sample)."""
        single = column_bytes(self._single) if self._single else 0
        return single + sum(map(column_bytes, self.columns)) if self else 0

    def _check(self) -> None:
        """Assert every invariant of the representation."""
        self._gather()
        keys = self.columns[0]
        # as many items in every column
        assert {len(column) for column in self.columns} == {len(keys)}, ("lengths", [*map(len, self.columns)])
        assert self._taken == sum(key is _TAKEN for key in keys), ("applied rows", self._taken)
        # the columns end with the last row
        assert not keys or self._taken < len(keys), ("applied rows kept", self._taken)
        assert self.deletes or not any(value is TOMBSTONE for value in self.columns[1]), "deletion not noted"


class TailKeys(KeyRule):
    """The rule of keys of a store with a cold tail: before a key is used, its rows are applied."""

    __slots__ = ("_store_of", "rule")

    def __init__(self, rule: KeyRule, touched: Tailed) -> None:
        self.rule = rule
        # Weak, because the store refers to its rule: only the collector would free a cycle of the two.
        self._store_of = weakref.ref(touched)
        self.fast = self.read = None  # every key passes this check

    def admit(self, key: Any, *, pin: bool = True) -> bool:
        short = self.rule.admit(key, pin=pin)
        self._touch([key])
        return short

    def admit_all(self, keys: list[Any]) -> None:
        self.rule.admit_all(keys)
        self._touch(keys)

    def check(self, key: Any) -> None:
        self.rule.check(key)
        self._touch([key])

    def _touch(self, keys: Sequence[Any]) -> None:
        store = self._store_of()
        assert store is not None
        store.touch(keys)

    def pin(self, keys: Iterable[Any]) -> None:
        self.rule.pin(keys)

    @property
    def known(self) -> bool:
        return self.rule.known

    def describe(self) -> list[str] | None:
        return self.rule.describe()

    def restore(self, description: list[str] | None) -> None:
        self.rule.restore(description)


class Tailed(ABC):
    """A store with a cold tail. The rows of a replay wait in the tail; only stream time is correct at once.

    Rows are applied after time has moved on, and key by key. The result of the store's `apply_rows` equals that of the
    live store, which applied the rows in the order of the log.
    """

    name: str
    # Whether waiting rows are applied without a look into cold blocks.
    applies_alone: ClassVar[bool] = False
    # Operations of the changelog: a row, rows by column, and the deletion of a row (None: no row is deleted).
    ops: tuple[int, int, int | None]
    # Whether `cool` can be called, rows of a tail and far blocks aside.
    cools: ClassVar[bool] = False
    lookups: Lookups
    _journal: Journal
    _keys: KeyRule
    _tail: ColdTail
    _turn: Turn

    @abstractmethod
    def apply_rows(self, *columns: Any, **_: Any) -> Any:
        """Apply rows of the tail, in order: all rows of their keys, or the oldest rows of all keys."""

    @abstractmethod
    def apply_time(self, ts: int) -> None:
        """Move stream time to `ts` (ms), if that is later."""

    def end_version(self, ts: int, version: int) -> None:
        """A version ends, committed or replayed: stream time is `ts` (ms), also that of rows that wait."""
        self.apply_time(ts)

    @property
    def waiting_rows(self) -> int:
        """How many rows wait in the tail. O(1)."""
        return len(self._tail)

    @property
    def waiting_keys(self) -> int:
        """How many different keys the rows in the tail have. O(rows that wait)."""
        return len(set(self._tail.keys()))

    @abstractmethod
    def warm(self) -> bool:
        """Load one more cold block; False: nothing is left."""

    @property
    def decoded_blocks(self) -> int:
        """How many decoded blocks wait to be put into the maps; 0 for stores that do both in one step."""
        return 0

    def read_in(self, on_block: Callable[[], None]) -> None:
        """Read, check and decode every cold block; call `on_block` after each. O(records)."""
        while self.warm():
            on_block()

    @property
    @abstractmethod
    def _applied_records(self) -> int:
        """Records in the maps and in cold blocks, without those that wait. O(buckets), or O(keys)."""

    @property
    @abstractmethod
    def cold_records(self) -> int:
        """Records in blocks that are not loaded. O(blocks)."""

    @property
    def num_records(self) -> int:
        """The number of records; an estimate while blocks are cold, or many rows of the changelog wait. The number may
        include expired records that are not freed yet. A few waiting rows are applied, and so counted exactly.
        O(buckets), in a sliding store O(keys).
        """
        if len(self._tail) <= FEW_ROWS:
            self.apply_waiting()
        return self._applied_records + len(self._tail)

    @property
    def records_in_memory(self) -> int:
        """About how many records are in memory, those that wait included. Counting changes nothing. O(buckets)."""
        return self._applied_records - self.cold_records + len(self._tail)

    @property
    @abstractmethod
    def changed_keys(self) -> tuple[int, int]:
        """How many keys changed since the last checkpoint began, and how many are in memory; a key counts in each
        bucket. O(buckets).
        """

    @property
    @abstractmethod
    def bytes_in_memory(self) -> int:
        """About how many bytes the records in memory take, those that wait included. Counting changes nothing.
        O(blocks + buckets).
        """

    @abstractmethod
    def maps(self) -> list[Maps]:
        """Return the maps of the records in memory, to be emptied in slices when the store has others. O(buckets)."""

    def take_ended(self) -> list[Maps]:
        """Return the maps of records that are no more, to be emptied in slices, once. O(1)."""
        return []

    @property
    def before(self) -> list[dict[Any, Any]]:
        """Those of `maps` that the store can use when it has become cold, the youngest first. O(1)."""
        return []

    def recall(self, before: list[dict[Any, Any]]) -> None:
        """Use `before` of the time before the store became cold, with the same records: what is still in it need not be
        read. O(1).
        """
        assert not before, f"a store without maps of before has got {len(before)}"

    @property
    def spare(self) -> tuple[int, int]:
        """About how many bytes the records in memory take that `free` can free, and how many these are. O(ages),
        and O(those that were taken out of them).
        """
        return 0, 0

    @property
    def ages(self) -> int:
        """How many maps of records `free` can free. O(1)."""
        return 0

    def free(self, records: int) -> int:
        """Free so many records that the checkpoint in use has, too, those that were not used for the longest time
        first, or all. Returns how many. O(records).
        """
        return 0

    def use_finder(self, finder: Finder | None, *, attached: bool) -> None:
        """Find records that are not in memory by the `finder` of the newest checkpoint, where that is faster than to
        search its blocks (None: search), from when the store is cold over that checkpoint: now, if it was `attached` to
        it. O(1).
        """
        assert finder is None, "a store whose blocks have no finder has got one"

    @property
    def parted(self) -> bool:
        """Whether changes of before a checkpoint began lie apart (`part`), until the store becomes cold. O(1)."""
        return False

    @property
    def can_cool(self) -> bool:
        """Whether `cool` can be called now. O(1)."""
        return False

    def cool(self, directory: Directory) -> list[Step]:
        """Return the steps of becoming cold without a replay: they keep the records that changed since the newest
        checkpoint, whose `directory` this is, and leave all others, or keep them to be freed. Each step makes a part
        cold, and returns maps to be emptied. Between two steps the store is as sound as ever; none may follow when
        another checkpoint was begun. O(pages); the steps O(changed + pages) together, in a store that has `parted`
        O(pages).
        """
        raise NotImplementedError(f"a store that cannot become cold over {len(directory.pages)} pages")

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function, for restore: rows wait in the tail."""
        put, puts, delete = self.ops
        waiting = {put: self._tail.add, puts: self._tail.extend, TIME: self.apply_time}
        return waiting if delete is None else {**waiting, delete: self._wait_delete}

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function of the op's arguments by column, for restore."""
        put, _, delete = self.ops
        return {put: self._tail.extend} if delete is None else {put: self._tail.extend, delete: self._wait_deletes}

    def _watch_tail(self) -> None:
        """After a replay: watch the keys, so that a touched key gets its rows."""
        tail = self._tail
        if tail:
            tail.grown()
            self._keys.pin(tail.keys())
            if type(self._keys) is not TailKeys:
                self._keys = TailKeys(self._keys, self)

    def _wait_deletes(self, keys: list[Any], *places: list[int]) -> None:
        self._tail.deletes = True
        self._tail.extend(keys, [TOMBSTONE] * len(keys), *places)

    def _wait_delete(self, key: Any, *places: int) -> None:
        self._tail.deletes = True
        self._tail.add(key, TOMBSTONE, *places)

    def touch(self, keys: Sequence[Any]) -> None:
        """Apply the rows of these keys. O(waiting rows) at C speed, and the cost of applying the rows; in total at most
        twice the cost of applying all rows.
        """
        tail = self._tail
        if not tail:
            self._end_tail()
            return
        asked = tail.asked
        if len(keys) == 1:
            new = set() if keys[0] in asked else {keys[0]}
        else:
            new = set(keys) - asked if asked else set(keys)
        if new:
            self._touch_new(new)

    @within
    def _touch_new(self, new: set[Any]) -> None:
        tail = self._tail
        positions = tail.find(new)
        if positions:
            self._apply_tail(positions)
        if tail:  # not all of it was theirs
            tail.asked |= new
            if tail.looks > FREE_LOOKS:
                self._apply_tail(tail.oldest(max(LEAST_ROWS, len(tail) // SHARE)))
        if not tail:
            self._end_tail()

    def _ask(self, keys: Sequence[Any]) -> None:
        """Admit every key, deciding nothing, and touch them all at once. Raises as the rule of keys does.

        O(keys), and as `touch`.
        """
        rule = self._keys.rule if isinstance(self._keys, TailKeys) else self._keys
        for key in keys:
            rule.check(key)
        self.touch(keys)

    def apply_waiting(self) -> None:
        """Apply all waiting rows. O(waiting rows)."""
        tail = self._tail
        if tail:
            self._apply_tail(tail.oldest(len(tail)))
            self._end_tail()

    def apply_some_waiting(self) -> bool:
        """Apply the oldest waiting rows for about a millisecond; False when no row waits."""
        tail = self._tail
        if not tail:
            return False
        self._apply_tail(tail.oldest(SLICE_ROWS))
        if not tail:
            self._end_tail()
        return True

    @within
    def _apply_tail(self, positions: list[int]) -> None:
        tail = self._tail
        with self._applying_tail(), collector_held():
            self.apply_rows(*tail.rows(positions))
            tail.drop(positions)

    @contextmanager
    def _applying_tail(self) -> Iterator[None]:
        """Context manager for applying waiting rows: after an error only some of the rows are applied."""
        try:
            yield
        except BaseException as error:
            self._journal.fail(error)
            if isinstance(error, TypeError | ValueError | ArithmeticError | LookupError | AttributeError):
                raise ChangelogError(
                    f"store {self.name!r}: mutations of the changelog cannot be applied: {type(error).__name__}: "
                    f"{error}"
                ) from error
            raise

    def _end_tail(self) -> None:
        if isinstance(self._keys, TailKeys):
            self._keys = self._keys.rule

    def _check_tail(self) -> None:
        """Assert the invariants of the waiting rows."""
        self._tail._check()
        # every touched key gets its rows
        assert not self._tail or isinstance(self._keys, TailKeys), ("unwatched tail", len(self._tail))
