"""Snapshot: a committed version of an open state, which all threads of the process may read while the owner writes.

    owner's thread     state.snapshot() ──▶ the version is opened a second time, read-only: attach, and replay the tail
    any thread         snapshot["users"].get("ann") ──▶ one call at a time, behind a lock

A snapshot shares no map with the owner, so neither waits for the other, but for the interpreter. The surprise: the
owner may prune the checkpoint below a snapshot, whose blocks stay readable all the same: a mapped pack outlives its
name, and `recovery.pack` keeps the packs of an object store as long as they are open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, MappingView
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Final

from ..markup import stores_table
from ..stores.cold_blocks import SPARING
from .group import StoreGroup
from .memory_budget import CHECK_RECORDS

# An iteration takes the lock once for this many items: another thread waits for no more.
_PIECE: Final = 64


class SnapshotStore:
    """One store of a snapshot: it has the reads of the store's class, with the same arguments and results, for every
    thread. Writes raise HybridStoreError.

    An aggregator of the owner's store is called in the reader's thread. Values belong to the snapshot: all readers get
    the same objects, which must not be changed in place. Each read costs what it costs in the store, and a lock; an
    iteration takes the lock once for 64 items.

    >>> with hs.open("state") as state:
    ...     state.window("clicks", retention="1 hour").put_many([("ann", 3, 500), ("bob", 1, 900)])
    ...     version = state.commit()
    ...     clicks = state.snapshot()["clicks"]
    >>> clicks.get("ann", 500), len(clicks), list(clicks.fetch("bob", 0, 1_000))
    (3, 2, [(900, 1)])
    """

    def __init__(
        self, store: Any, alone: Callable[[], AbstractContextManager[Any]], has_read: Callable[[], None]
    ) -> None:
        self._store = store
        self._alone = alone
        self._has_read = has_read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        with self._alone():
            item = getattr(self._store, name)
        if not callable(item):
            return item

        def read(*given: Any, **named: Any) -> Any:
            return self._read(item, *given, **named)

        return read

    def _read(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self._alone():
            answer = method(*given, **named)
            self._has_read()
        if isinstance(answer, MappingView):  # of keys, items or values, which reads the store when it is read itself
            return type(answer)(self)
        return self._pieces(answer) if isinstance(answer, Iterator) else answer

    def _pieces(self, items: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._alone():
                piece = list(islice(items, _PIECE))
                self._has_read()
            if not piece:
                return
            yield from piece

    def __getitem__(self, key: Any) -> Any:
        return self._read(self._store.__getitem__, key)

    def __contains__(self, key: Any) -> bool:
        return bool(self._read(self._store.__contains__, key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read(self._store.__iter__))

    def __len__(self) -> int:
        return int(self._read(self._store.__len__))

    def __repr__(self) -> str:
        return f"<SnapshotStore {self._store!r}>"


class Snapshot(Mapping[str, SnapshotStore]):
    """The stores of a state at one committed version, by name: made by `State.snapshot()`, and read by any thread.

    A snapshot keeps files and memory until it is closed: the changelog's tail, and the blocks that were read, which
    count towards the `memory_limit` of the process. Also a context manager, which closes it.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with hs.open("state") as state, ThreadPoolExecutor(1) as thread:
    ...     users = state.key_value("users")
    ...     users["ann"] = 1
    ...     version = state.commit()
    ...     with state.snapshot() as snapshot:
    ...         users["ann"] = 2
    ...         version = state.commit()
    ...         print(snapshot.version, thread.submit(snapshot["users"].get, "ann").result())
    1 1
    """

    def __init__(self, group: StoreGroup, close: Callable[[], None], count: Callable[[], object]) -> None:
        self._group = group
        self._close = close
        self._count = count
        # how many records the stores of the process had loaded at the last count
        self._loaded = SPARING.loaded
        self._lock = threading.RLock()
        self._pid = os.getpid()
        # the lock sees to one call at a time
        group.journal.turn.bound = False
        self._stores = {name: SnapshotStore(store, self._alone, self._has_read) for name, store in group.stores.items()}

    def _alone(self) -> AbstractContextManager[Any]:
        # In a forked child the stores refuse each call, and the lock may be a lost thread's.
        return self._lock if os.getpid() == self._pid else nullcontext()

    def _has_read(self) -> None:
        """Count the memory anew after so many records: no commit of a snapshot does. O(1), now and then O(blocks)."""
        if SPARING.loaded - self._loaded >= CHECK_RECORDS:
            self._loaded = SPARING.loaded
            self._count()

    @property
    def version(self) -> int:
        """The version of all stores."""
        return self._group.version

    @property
    def settings(self) -> dict[str, Any]:
        """The named values that were committed with this version."""
        return dict(self._group.settings)

    def __getitem__(self, name: str) -> SnapshotStore:
        if name not in self._stores:
            raise KeyError(f"no store {name!r} in version {self.version} (known: {', '.join(self._stores) or 'none'})")
        return self._stores[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)

    def close(self) -> None:
        """Free the files and the memory; every later read raises StateClosedError. Closing twice is harmless.

        >>> with hs.open("state") as state:
        ...     snapshot = state.snapshot()
        ...     snapshot.close()
        >>> len(snapshot)
        0
        """
        with self._alone():
            self._close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Snapshot of version {self.version}, stores: {', '.join(self._stores) or 'none'}>"

    def _repr_html_(self) -> str:
        with self._alone():
            return stores_table(repr(self), self._group.stores.values())


def snapshot_of(
    owner: StoreGroup, opened: StoreGroup, close: Callable[[], None], count: Callable[[], object]
) -> Snapshot:
    """Return the snapshot of a version that was opened read-only, until `close`; `count` counts its memory. Its stores
    use the functions that are bound to those of the owner: an aggregator, a measure of sizes.
    """
    for name, store in opened.stores.items():
        bound = getattr(owner.stores.get(name), "bound", None)
        if bound is not None:
            store.bind(bound)  # type: ignore[attr-defined]  # of the kinds that have one
    return Snapshot(opened, close, count)
