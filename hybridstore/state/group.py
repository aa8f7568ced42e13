"""Store group: the named stores that commit together, and what restore and checkpoint need of them.

It knows no files: a `HybridStore` gives it a directory with an appended changelog, the Spark adapter one segment per
version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from changelog.journal import EMPTY_DIGEST, Journal
from changelog.mutation import DEFINE, SET
from recovery.block import StoreCapture
from recovery.errors import CheckpointMismatchError

from ..stores.kinds import KINDS, Store
from .watching import WatchingJournal


class StoreGroup:
    """Stores by name, the journal they log to, named settings, and the version and digest reached."""

    def __init__(
        self,
        sink: Callable[[bytes], None],
        *,
        debug: bool = False,
        frame_records: int = 1000,
        bucket_divisor: int = 64,
    ) -> None:
        self._watching = WatchingJournal(sink, frame_records=frame_records) if debug else None
        self.journal: Journal = self._watching or Journal(sink, frame_records=frame_records)
        self._divisor = bucket_divisor
        # Handles that users hold stay valid through a rollback: stores are kept by name and refilled.
        self._handles: dict[str, Store] = {}
        self.settings: dict[str, Any] = {}
        self.stores: dict[str, Store] = {}
        self._by_number: dict[int, Store] = {}
        self.version = 0
        self.digest = EMPTY_DIGEST

    # --- restore's side (recovery.restore.Host) ---------------------------------------------------------------

    def reset(self) -> None:
        """Forget all state; stores that were handed out stay, empty, until they are defined again."""
        self.stores = {}
        self._by_number = {}
        self.settings = {}
        if self._watching is not None:
            self._watching.forget()

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> Store:
        """Create a store, or refill the handle that exists for it.

        Raises CheckpointMismatchError for an unknown kind.
        """
        store = self._handles.get(name)
        if store is not None and (store.number, store.kind, store.parameters) == (number, kind, parameters):
            store.clear_state()
        else:
            described = KINDS.get(kind)
            if described is None:
                raise CheckpointMismatchError(
                    f"store {name!r}: kind {kind!r} is unknown to this release (upgrade hybridstore)"
                )
            store = described.make(name, number, parameters, self.journal, self._divisor)
            self._handles[name] = store
        self.stores[name] = store
        self._by_number[number] = store
        return store

    def restorable(self, number: int) -> Store:
        """Return a store by number. Raises KeyError."""
        return self._by_number[number]

    def reached(self, version: int, digest: bytes) -> None:
        """Continue from a restored version. O(stores)."""
        self._continue(version, digest)
        for store in self.stores.values():
            store.settle_keys()

    @property
    def kinds(self) -> dict[int, str]:
        """The kinds of the stores by number. O(stores)."""
        return {store.number: store.kind for store in self.stores.values()}

    def settle(self) -> None:
        """Apply what a replay left to wait in the stores. Raises MutationError for what cannot be applied.

        O(waiting rows).
        """
        for store in self.stores.values():
            store.settle()

    # --- the owner's side -------------------------------------------------------------------------------------

    def committed(self, version: int, digest: bytes) -> None:
        """Continue from a version that was made of what is in the journal. O(stores)."""
        for store in self.stores.values():
            store.end_version(store.stream_time)
        self._continue(version, digest)

    def _continue(self, version: int, digest: bytes) -> None:
        self.version, self.digest = version, digest
        self.journal.version = version
        self.journal.restart(digest)

    def open(self, name: str, kind: str, parameters: dict[str, Any]) -> Store:
        """Return the store of this name, defining it if there is none.

        Raises CheckpointMismatchError when it exists with another kind or other parameters, naming both.
        """
        if type(name) is not str or not name:
            raise ValueError(f"store name: found {name!r}, expected text")
        store = self.stores.get(name)
        if store is not None:
            self.match(store, kind, parameters)
            return store
        number = max(self._by_number, default=0) + 1
        with self.journal.whole:
            self.journal.record(DEFINE, number, name, kind, parameters)
            return self.define(number, name, kind, parameters)

    @staticmethod
    def match(store: Store, kind: str, parameters: dict[str, Any]) -> None:
        """Raise CheckpointMismatchError unless the store has this kind and these parameters."""
        if store.kind != kind:
            raise CheckpointMismatchError(
                f"store {store.name!r}: the state holds a {store.kind} store, asked for {kind} (use another name)"
            )
        stored, asked = store.parameters, parameters
        differing = sorted(name for name in stored.keys() | asked.keys() if stored.get(name) != asked.get(name))
        if differing:
            has, wants = (", ".join(f"{name} {of.get(name)!r}" for name in differing) for of in (stored, asked))
            raise CheckpointMismatchError(
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
        """Define again the handed-out stores that a rollback took back to before their definition."""
        for name, store in list(self._handles.items()):
            if name not in self.stores:
                store.clear_state()
                number = max(self._by_number, default=0) + 1
                if number != store.number:
                    del self._handles[name]
                    continue
                self.journal.record(DEFINE, number, name, store.kind, store.parameters)
                self.stores[name] = self._by_number[number] = store

    def stream_times(self) -> dict[int, int]:
        """Return store number -> stream time (ms)."""
        return {store.number: store.stream_time for store in self.stores.values()}

    def capture(self) -> list[StoreCapture]:
        """Copy what changed in every store since the last checkpoint. O(changed)."""
        return [store.capture() for store in self.stores.values()]

    def shut(self, error: Exception) -> None:
        """The state was closed: every store that was handed out refuses with `error`, and open iterators end.

        O(stores).
        """
        for store in self._handles.values():
            store.shut(error)

    def check_watched(self) -> None:
        """With debug: raise MutatedValueError if a value that a store has was changed in place. O(values watched)."""
        if self._watching is not None:
            self._watching.check(self._by_number)
