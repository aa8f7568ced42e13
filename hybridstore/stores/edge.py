"""Edge: the interface of all stores, and the steps of each before `apply`: check the arguments, log the change, move
time.

    put ─▶ `_check_value`, the rule of keys ─▶ late? ─▶ `_log_row` ─▶ `apply_put`
                                                           ├─ small atoms: one C call, packed when a frame is full
                                                           └─ anything else: packed at once, as it is now

The code from the log to the end of `apply` is in a `try` or a `with` of the journal: after an interruption there,
log and maps may differ, so the journal refuses every further change. The surprise: the fastest puts (key-value, window,
session) have the five lines of `_log_row` in place, since the call costs 4 to 20 % of a put;
`tests/stores/test_edge.py` holds those lines to the ones here.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Set, Sized
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changelog.codec import check_value
from changelog.errors import HybridStoreError
from changelog.journal import Journal
from changelog.mutation import TIME
from changelog.storage import LocalStorage
from changelog.turn import entry
from recovery.block import BucketChange, Combine, StoreCapture
from recovery.directory import Directory, DirectorySource

from ..clock import NO_TIME, check_time, timed_by_records
from ..markup import SHOWN_ROWS, join, short, table, tag
from .buckets import Sealed
from .cold_blocks import SPARING, is_far
from .cold_tail import Tailed
from .columns import all_flat
from .keys import KeyRule, Lookups, ShutKeys, shown
from .snapshots import OpenIterators

# The types of a store's keys, values and aggregates, for type checkers only. A store alone is one of Any.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    K, V, A = TypeVar("K"), TypeVar("V"), TypeVar("A")


def _inside(value: Any) -> str:
    """Return the field of a dict, or the place in a list, that cannot be stored, as errors show it. O(value)."""
    for name, item in value.items() if type(value) is dict else enumerate(value) if type(value) is list else ():
        try:
            check_value(item)
        except TypeError:
            return f", [{shown(name)}]"
    return ""


class Edge(Tailed):
    """A store by name and number, with its journal, its rule of keys, its time, and its counts of dropped records."""

    kind: str
    _stream_time: int
    # Where cold blocks come from; None while none exist.
    _source: weakref.ref[DirectorySource] | None
    # Buckets of the last checkpoint that have expired as a whole.
    _expired_buckets: Set[int] = frozenset()
    # the method that yields all records
    _in_order = "all"

    def __init__(
        self, name: str, number: int, parameters: dict[str, Any], journal: Journal, dropped: dict[str, int]
    ) -> None:
        self.name = name
        self.number = number
        self.parameters = parameters
        self.dropped = dropped
        self._by_records = timed_by_records(parameters)
        self._code_put = number * 16 + self.ops[0]
        self._journal = journal
        self._turn = journal.turn
        self._log = journal.extend
        self._items = journal.items
        self._limit = journal.limit
        self._iterators = OpenIterators()
        self.lookups = Lookups()
        self.clear_state()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _repr_html_(self) -> str:
        if type(self._keys) is ShutKeys:
            return tag("p", repr(self))
        about = f"{self.name}: {self.kind}, about {self.num_records:,} records"
        if SPARING.on and self.cold_records:  # all of them would come into memory
            return tag("p", about)
        rows = [
            {"key": short(row[0]), "value": short(row[1]), **({"ts": row[2]} if len(row) > 2 else {})}
            for row in islice(getattr(self, self._in_order)(), SHOWN_ROWS)
        ]
        return join([tag("p", about), table(rows, ("key", "ts", "value"))])

    def clear_state(self) -> None:
        """Forget everything, as before a restore."""
        self._keys = self._key_rule()
        self._tail.clear()
        self._source = None
        self._stream_time = NO_TIME

    def _key_rule(self) -> KeyRule:
        """Return a rule of keys that has decided nothing."""
        return KeyRule(self.name)

    def count_lookups(self, limited: bool) -> None:
        """Count lookups from now on while memory is `limited`, and no longer without a limit. O(1)."""

    def age(self) -> None:
        """Put the records that were used since the last call where `free` finds them, if they are many. O(records)."""

    def part(self, *, begins: bool) -> None:
        """A checkpoint `begins` behind which the store will become cold: what has changed may be put apart; or the
        checkpoint has begun. O(1).
        """

    # --- erase ------------------------------------------------------------------------------------------------

    @entry
    def erase(self, key: Any, *, leave_forks: bool = False) -> None:
        """Order that no file of the state has a record of a key of this store any more; `commit` does it.

        The order is part of the version in progress: a rollback takes it back, and a commit makes it durable and then
        does it, with all orders of the version at once. When `commit` has returned, the key has no record here,
        whatever the version has written to it before or after the order, and no trace in the changelog, checkpoints,
        older versions (which are gone) and pins. After a crash the next opening does it. `leave_forks`: go on although
        states exist that began as versions of this one, which may keep the key.

        Raises TypeError for a key of another type, and HybridStoreError with nothing ordered: for forks, in a Spark
        query, in a shard of a state with pins or of a later generation. O(1); the commit takes as long as
        `hybridstore.erase`, and the state is cold behind it, as after a restart.

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     users.put_many({"anna": 1, "bob": 2})
        ...     state.commit()
        ...     users.erase("anna")
        ...     state.commit()
        ...     dict(users.all())
        1
        3
        {'bob': 2}
        >>> hs.prove("state", "anna").traces
        []
        """
        self._keys.check(key)
        order = self._journal.on_erase
        if order is None:
            raise HybridStoreError(
                f"store {self.name!r}: a key can be erased in a state of its own, not in a running Spark query (stop "
                "the query, and run: hybridstore erase)"
            )
        order(self.name, key, leave_forks)

    # --- arguments --------------------------------------------------------------------------------------------

    def _check_value(self, key: Any, value: Any) -> None:
        """Raise TypeError, naming the key, for a value that cannot be stored. O(value)."""
        try:
            check_value(value)
        except TypeError as error:
            raise TypeError(f"store {self.name!r}: value of key {shown(key)}{_inside(value)}: {error}") from None

    def _check_values(self, keys: list[Any], values: list[Any]) -> set[type]:
        """Check a column of values, and return the types in the column.

        Raises as `_check_value`. O(items), at C speed on atoms.
        """
        kinds = set(map(type, values))
        if not all_flat(kinds, values):
            for key, value in zip(keys, values, strict=True):
                self._check_value(key, value)
        return kinds

    def _check_lengths(self, **columns: Sized) -> None:
        """Raise ValueError unless all columns have the same length."""
        if len({*map(len, columns.values())}) > 1:
            lengths = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
            raise ValueError(f"store {self.name!r}: columns: found {lengths}, expected equal lengths")

    # --- the log ----------------------------------------------------------------------------------------------

    def _log_row(self, small: bool, mutation: tuple[Any, ...]) -> None:
        """Log one mutation: `small` says that its value is an atom for which `is_small_atom` is true.

        O(1), or O(value).

        Raises TypeError or ValueError, with nothing logged, for what cannot be packed.
        """
        if small:
            self._log(mutation)
            if len(self._items) >= self._limit:
                self._journal.spill()
        else:
            self._journal.record(*mutation)

    # --- time -------------------------------------------------------------------------------------------------

    @property
    def stream_time(self) -> int:
        """The largest timestamp ever put, or given to `advance` (ms), over all keys; -1 at first.

        In a store timed by `advance` alone, records do not count.

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.stream_time
        -1
        >>> pages.put_many([("ann", "/help", 60_000), ("bob", "/", 45_000)])
        >>> pages.stream_time
        60000
        """
        return self._stream_time

    @entry
    def move_time(self, ts: int) -> None:
        """Move stream time to `ts` (ms) without a record; an earlier time or -1 changes nothing. O(expired).

        Raises TypeError or ValueError if `ts` is not a time.
        """
        if ts == NO_TIME:
            return
        check_time(ts, f"store {self.name!r}: ts")
        self._keys.admit_all([])  # raises when the state was closed
        self._move_time(ts)

    def _move_time(self, ts: int) -> None:
        """Move stream time to `ts`, and log the move, if `ts` is later."""
        if ts > self._stream_time:
            with self._journal.whole:
                self._journal.record(self.number * 16 + TIME, ts)
                self.apply_time(ts)

    def alter(self, parameters: dict[str, Any]) -> None:
        """Change parameters that the records do not depend on. Raises TypeError for a kind without such parameters."""
        raise TypeError(f"store {self.name!r}: a {self.kind} store has no parameters that can be altered in place")

    # --- checkpoint and restore -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def cold_blocks(self) -> int:
        """How many blocks are only in the checkpoint. O(blocks)."""

    @property
    def far(self) -> bool:
        """True while loading a cold block is a request to another machine. O(1), and O(packs) on an object store."""
        return is_far(self._source)

    @property
    def _folder(self) -> Path | None:
        """Where files of the state are on this machine; None if they are on another one, or no checkpoint is in use."""
        source = None if self._source is None else self._source()
        return source.storage.root if source is not None and isinstance(source.storage, LocalStorage) else None

    @abstractmethod
    def pin_key_type(self) -> None:
        """After a replay: take the type of keys from the present keys, and watch for keys with waiting rows. O(1)."""

    @abstractmethod
    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        """Become the store of a checkpoint, all of it cold. O(pages of the directory)."""

    def capture(self, *, once: bool = False) -> StoreCapture:
        """Copy the changes since the last seal. O(changed log changed).

        Records written over a block that is not loaded are copied as they are, and the writer of the checkpoint lays
        them over the block. Where they must not be laid over a block twice, the block is loaded instead, but not for a
        reader, which lays them over it `once`.
        """
        self.apply_waiting()
        combine = self._laid_over if once else self._combine
        changed = self._changes(combine)
        return StoreCapture(
            self.number,
            self.name,
            self.kind,
            self.parameters,
            self._state(),
            changed,
            set(self._expired_buckets),
            expired_through=self._expired_through(),
            combine=combine,
        )

    @abstractmethod
    def _changes(self, combine: Combine | None) -> dict[int, BucketChange]:
        """Return the changes since the last seal by the number of the bucket. `combine`: what lays them over blocks
        that are not loaded; None loads those blocks.
        """

    def _state(self) -> dict[str, Any]:
        """Return the state of the store that a checkpoint keeps beside the blocks."""
        return {"stream_time": self._stream_time, "key": self._keys.describe()}

    def _expired_through(self) -> int:
        """Return the largest time at which nothing of a block lives any more; -1 when blocks have no such time."""
        return NO_TIME

    @property
    def _combine(self) -> Combine | None:
        """A function, independent of the store, that lays rows over those of a block; None when the block must be
        loaded for that, or rows of a key replace those of the block.
        """
        return None

    @property
    def _laid_over(self) -> Combine | None:
        """A function that lays rows of a key over older ones, once; None when rows of a key replace older ones."""
        return self._combine

    @abstractmethod
    def seal(self) -> Sealed:
        """Collect changes for the next checkpoint from now on: one is begun with those of before. O(buckets), and
        O(changed) while blocks of a single bucket are cold.
        """

    @abstractmethod
    def unseal(self, sealed: Sealed) -> None:
        """Take back a seal whose checkpoint failed: what had changed counts as changed again. O(changed)."""

    @abstractmethod
    def _check(self) -> None:
        """Assert every invariant of the representation."""

    # --- the end ----------------------------------------------------------------------------------------------

    def refuse_calls(self, error: Exception) -> None:
        """Raise `error` in place of the next row of open iterators, and for every key and query from now on: the state
        was closed. O(open iterators).
        """
        self._iterators.refuse_calls(error)
        self._keys = ShutKeys(self.name, error)
