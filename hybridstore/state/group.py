"""Store group: the named stores that commit together, with the functions that restore and checkpoint need.

The group knows no files: a `State` keeps it in a directory with an appended changelog, the Spark adapter in one
segment per version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from changelog.errors import ChangelogError
from changelog.journal import EMPTY_DIGEST, Journal
from changelog.mutation import ALTERED, DEFINE, DROPPED, SET
from recovery.block import StoreCapture
from recovery.errors import ProgramMismatchError

from ..errors import StateClosedError, UpgradeError
from ..stores.keys import shown
from ..stores.kinds import KINDS, SUPPRESSION, Store
from .upgrades import Upgrades
from .watching import WatchingJournal

if TYPE_CHECKING:
    from ..stores.buckets import Sealed

# The parameter of a store with the version of its values; absent for 0.
VERSION: Final = "version"


def log_nothing(body: bytes) -> None:
    """The sink of stores that are read, or live as long as the process."""


class StoreGroup:
    """Stores by name, the journal they log to, named settings, and the version and digest reached."""

    def __init__(
        self,
        sink: Callable[[bytes], None] = log_nothing,
        *,
        debug: bool = False,
        frame_records: int = 1000,
        bucket_divisor: int = 64,
    ) -> None:
        self._watching = WatchingJournal(sink, frame_records=frame_records) if debug else None
        self.journal: Journal = self._watching or Journal(sink, frame_records=frame_records)
        self._divisor = bucket_divisor
        # The user's handles stay valid through a rollback: stores are kept by number and name, and refilled. These are
        # of one definition, so a handle waits while a replay defines older stores of its name, or, behind a checkpoint
        # that does not know a dropped store, of its number.
        self._handles: dict[tuple[int, str], Store] = {}
        self.settings: dict[str, Any] = {}
        self.stores: dict[str, Store] = {}
        self._by_number: dict[int, Store] = {}
        # the greatest number of any store, dropped stores included: no number is used twice
        self._last_number = 0
        self.version = 0
        self.digest = EMPTY_DIGEST

    # --- restore's side (recovery.restore.Host) ---------------------------------------------------------------

    def reset(self) -> None:
        """Forget all state; the user's stores stay, empty, until they are defined again."""
        self.stores = {}
        self._by_number = {}
        self._last_number = 0
        self.settings = {}
        self.forget_watched()

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> Store:
        """Create a store, or refill its existing handle; or drop or alter the store of this number.

        Raises ProgramMismatchError for an unknown kind, ChangelogError for a missing store to drop or alter.
        """
        if kind in (DROPPED, ALTERED):
            return self._redefine(number, kind, parameters)
        store = self._handles.get((number, name))
        altered = kind == SUPPRESSION.name  # the kind with parameters that `alter` changes
        if store is not None and store.kind == kind and (store.parameters == parameters or altered):
            store.clear_state()
            if altered:
                store.alter(parameters)
        else:
            described = KINDS.get(kind)
            if described is None:
                raise ProgramMismatchError(
                    f"store {name!r}: kind {kind!r} is unknown to this release (upgrade hybridstore)"
                )
            if store is not None:
                self._forget(store)
            store = described.make(name, number, parameters, self.journal, self._divisor)
            self._handles[number, name] = store
        self.stores[name] = store
        self._by_number[number] = store
        self._last_number = max(self._last_number, number)
        return store

    def _redefine(self, number: int, kind: str, parameters: dict[str, Any]) -> Store:
        store = self._by_number.get(number)
        if store is None:
            raise ChangelogError(f"store {number}: {kind}, but no such store exists")
        if kind == ALTERED:
            store.alter(parameters)
            return store
        del self._by_number[number], self.stores[store.name]
        self._forget(store)
        return store

    def _forget(self, store: Store) -> None:
        """Make a user's store refuse every call: another store has taken its place, or none."""
        self._handles.pop((store.number, store.name), None)
        store.refuse_calls(
            StateClosedError(f"store {store.name!r}: it was dropped or created again (ask for it again)")
        )

    def restorable(self, number: int) -> Store:
        return self._by_number[number]

    def reached(self, version: int, digest: bytes) -> None:
        """Continue from a restored version. A handle whose name belongs to another store there refuses calls from now
        on. O(stores).
        """
        for handle in list(self._handles.values()):
            if self.stores.get(handle.name, handle) is not handle:
                self._forget(handle)
        self._continue(version, digest)
        self.pin_key_types()

    def pin_key_types(self) -> None:
        """Have every store know the type of its keys, of which rows of a replay may be the first. O(stores)."""
        for store in self.stores.values():
            store.pin_key_type()

    @property
    def kinds(self) -> dict[int, str]:
        """The kinds of the stores by number. O(stores)."""
        return {store.number: store.kind for store in self.stores.values()}

    def apply_waiting(self) -> None:
        """Apply the rows of a replay that wait in the stores. Raises ChangelogError for a row that cannot be applied.

        O(waiting rows).
        """
        for store in self.stores.values():
            store.apply_waiting()

    # --- the owner's side -------------------------------------------------------------------------------------

    def committed(self, version: int, digest: bytes) -> None:
        """Continue from the version made of the journal's mutations. O(stores)."""
        for store in self.stores.values():
            store.end_version(store.stream_time, version)
        self._continue(version, digest)

    def claimed(self, version: int, digest: bytes) -> None:
        """Continue from a version of a claim: what the version before has emitted stays the newest emission. O(1)."""
        self._continue(version, digest)

    def _continue(self, version: int, digest: bytes) -> None:
        self.version, self.digest = version, digest
        self.journal.version = version
        self.journal.restart(digest)

    def open(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None) -> Store:
        """Return the store of this name, defining it if missing; `upgrades` converts its values to the present
        version.

        Raises ProgramMismatchError when it exists with another kind or other parameters, naming both.
        """
        if type(name) is not str or not name:
            raise ValueError(f"store name: found {name!r}, expected text that is not empty")
        store = self.stores.get(name)
        if store is not None and upgrades is not None and store.kind == kind:
            before = store.parameters.get(VERSION, 0)
            version = {VERSION: before} if before else {}
            self.match(store, kind, {**{part: parameters[part] for part in parameters if part != VERSION}, **version})
            change = upgrades.function(name, before)
            return store if change is None else self.rebuild(name, parameters, change)
        if store is not None:
            self.match(store, kind, parameters)
            return store
        return self._defined(self._last_number + 1, name, kind, parameters)

    def _defined(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> Store:
        with self.journal.whole:
            self.journal.record(DEFINE, number, name, kind, parameters)
            return self.define(number, name, kind, parameters)

    def drop(self, name: str) -> None:
        """Drop a store with all its records, as part of the version in progress. Raises KeyError. O(1)."""
        self._defined(self.stores[name].number, name, DROPPED, {})

    def alter(self, name: str, parameters: dict[str, Any]) -> None:
        """Change parameters of a store that its records do not depend on. Raises KeyError, and TypeError for a kind
        without such parameters. O(1).
        """
        self._defined(self.stores[name].number, name, ALTERED, parameters)

    def rebuild(
        self,
        name: str,
        parameters: dict[str, Any],
        change: Callable[[Any], Any] | None = None,
        *,
        called: str | None = None,
        bound: Any = None,
    ) -> Store:
        """Put the live records of a store into a new one with other parameters, each value changed by `change`, and
        drop the old one, as part of the version in progress. Stream time stays. Returns the new store.

        `called` is the name of the new store (default: the same name); `bound` is passed to its `bind` before the
        records. Raises UpgradeError, with nothing changed, if `change` raises. O(records).
        """
        old = self.stores[name]
        kind = KINDS[old.kind]
        columns = kind.copied(old)
        if change is not None:
            columns = (columns[0], _changed(name, columns[0], columns[1], change), *columns[2:])
        time = old.stream_time
        self.drop(name)
        new = self.open(called or name, old.kind, parameters)
        if bound is not None:
            bind: Callable[[Any], object] = new.bind  # type: ignore[attr-defined]  # of the kinds that have one
            bind(bound)
        if columns[0]:
            kind.refill(new, columns)
        if kind.timed(parameters):
            new.move_time(time)
        return new

    @staticmethod
    def match(store: Store, kind: str, parameters: dict[str, Any]) -> None:
        """Raise ProgramMismatchError unless the store has this kind and these parameters."""
        if store.kind != kind:
            raise ProgramMismatchError(
                f"store {store.name!r}: the state holds a {store.kind} store, asked for {kind} (use another name)"
            )
        stored, asked = store.parameters, parameters
        differing = sorted(name for name in stored.keys() | asked.keys() if stored.get(name) != asked.get(name))
        if differing:
            has, wants = (", ".join(f"{name} {of.get(name)!r}" for name in differing) for of in (stored, asked))
            raise ProgramMismatchError(
                f"store {store.name!r}: the state has {has}, asked for {wants} (ask for what it has, or use another "
                "name)"
            )

    def set(self, name: str, value: Any) -> None:
        """Set a named setting as part of the version in progress.

        Raises TypeError for what cannot be stored. O(value).
        """
        if type(name) is not str:
            raise TypeError(f"setting {name!r}: found a name of {type(name).__name__}, expected text")
        try:
            self.journal.record(SET, name, value)
            self.settings[name] = value
        except TypeError as error:
            self.journal.cut_short(error)
            raise TypeError(f"setting {name!r}: {error}") from None
        except BaseException as error:
            self.journal.cut_short(error)
            raise

    def redefine_lost(self) -> None:
        """Define again the user's stores whose definition a rollback has undone: empty, with the numbers that they had,
        as they are in the handles. O(stores).
        """
        for (number, _), store in sorted(self._handles.items()):
            if store.name not in self.stores:
                self.journal.record(DEFINE, number, store.name, store.kind, store.parameters)
                self.define(number, store.name, store.kind, store.parameters)

    def stream_times(self) -> dict[int, int]:
        """Return store number -> stream time (ms)."""
        return {store.number: store.stream_time for store in self.stores.values()}

    def capture(self) -> list[StoreCapture]:
        """Copy the changes of every store since the last seal. O(changed)."""
        return [store.capture() for store in self.stores.values()]

    def seal(self) -> list[Sealed]:
        """Every store collects changes for the next checkpoint from now on, because one is begun with those of before.
        O(buckets).
        """
        return [store.seal() for store in self.stores.values()]

    def unseal(self, sealed: list[Sealed]) -> None:
        """Take back a seal whose checkpoint failed, in the stores that were not dropped since. O(changed)."""
        for each in sealed:
            if (store := self._by_number.get(each.store)) is not None:
                store.unseal(each)

    def refuse_calls(self, error: Exception) -> None:
        """The state was closed: every user's store raises `error`, and open iterators with more rows do.

        O(stores).
        """
        for store in self._handles.values():
            store.refuse_calls(error)

    def forget_watched(self) -> None:
        """With debug: keep the values put so far no longer, as records of them are freed. O(values watched)."""
        if self._watching is not None:
            self._watching.forget()

    def check_watched(self) -> None:
        """With debug: raise ValueChangedInPlaceError if a stored value was changed in place. O(values watched)."""
        if self._watching is not None:
            self._watching.check(self._by_number)


def _changed(name: str, keys: list[Any], values: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    changed: list[Any] = []
    for key, value in zip(keys, values, strict=True):
        try:
            changed.append(change(value))
        except Exception as error:
            raise UpgradeError(
                f"store {name!r}: the value of key {shown(key)} cannot be upgraded: {type(error).__name__}: {error} "
                "(nothing was changed: fix the function and start again)"
            ) from error
    return changed
