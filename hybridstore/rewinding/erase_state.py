"""Erase of a plain state, of a shard of a topology, of a pin, in a directory or on an object store, whose job is
stopped: the command opens the state as its owner, and orders the erase.

What the order does is what it does in a running job (`state.in_place`). A job that opens the state behind a crash does
what is ordered; in a directory it is refused until the command has ended, because other parts may still have the keys.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from changelog.files import REAL_FILES
from changelog.mutation import SYSTEM
from changelog.storage import LocalStorage, Storage, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, PACKS, list_checkpoints
from recovery.meta import read_meta

from ..reading.changes import ChangeHistory
from ..reading.places import Place, resolve
from ..reading.view import open_view
from ..state.directory import State
from ..state.erasing import still_read
from ..state.given_keys import GivenKeys
from ..state.home import home_of
from ..state.in_place import ORDERS
from ..state.opening import TUNING, Opening
from ..state.policy import CheckpointPolicy
from ..topology.run_state import RESULTS, leave_out
from .parts import ErasedCounts
from .traces import grouped, orders_of, traces_in_packs, wanted

_OPENING: Final = Opening(
    "commit",
    True,
    CheckpointPolicy(every_commits=None),
    None,
    False,
    False,
    None,
    REAL_FILES,
    TUNING,
    rescaled=True,
    erasing=True,
)
# What an erase replaces, below a state.
_FOLDERS: Final = (f"{CHANGELOG}/", f"{CHECKPOINTS}/", f"{PACKS}/")


class StatePart:
    """See `ErasePart`: a plain state, or one shard of a topology or of a pin."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.location = location
        self.storage: Storage = storage_at(location)
        self.places: list[Path | str] = [
            self.storage.root if isinstance(self.storage, LocalStorage) else self.storage.url
        ]

    def check(self) -> None:
        """Raise HybridStoreError if a job has the directory, or the state cannot be opened."""
        home = home_of(self.location, _OPENING)
        if home.locks:
            State.at_home(home, _OPENING).close()
        else:  # an opening would overtake the owner
            view = open_view(resolve(self.location)[0], thorough=True)
            if view.faults:
                raise RestoreError(f"{view.faults[0]} (repair it first: hybridstore inspect repair)")

    def erase(self, keys: GivenKeys, now: int) -> ErasedCounts:
        """See `ErasePart`. On an object store this overtakes an owner that is still at work."""
        storage = self.storage
        before = _sizes(storage)
        with State.at_home(home_of(self.location, _OPENING), _OPENING) as state:
            state.checkpoint(wait=True)
            records = _records(storage)
            program = _program_of(state.settings)
            chosen = grouped(keys, program)
            leave_out(state, chosen.take_of_row, program)
            orders = chain.from_iterable(orders_of(store, chosen, program) for store in (*state.stores, None))
            state.order_erase([*orders], keys=len(keys.keys), prefix=keys.prefix, wall_ms=now, alone=True)
            if not isinstance(storage, LocalStorage):
                gc.collect()  # readers that are parts of cycles and not used any more would keep their packs
            state.commit()
            if state.settings[ORDERS] is not None:
                raise still_read(storage.url)
            records -= _records(storage)
        after = _sizes(storage)
        removed = sum(size for name, size in before.items() if name not in after)
        return ErasedCounts(records, removed, sum(size for name, size in after.items() if name not in before))

    def traces(self, keys: GivenKeys) -> Iterator[str]:
        """See `ErasePart`: in the packs of every checkpoint, and in the changelog."""
        storage, names = self.storage, list_checkpoints(self.storage)
        program = _program_of(read_meta(storage, names[-1]).settings) if names else None
        keys = grouped(keys, program)
        yield from traces_in_packs(storage, keys, program)
        history = ChangeHistory(resolve(self.location)[0])
        if isinstance(storage, LocalStorage):
            yield from _traces_in(history, keys, program)
            return
        # one by one: objects of older versions, without content, stay, because they stop earlier owners
        for name in storage.list(f"{CHANGELOG}/"):
            each = ChangeHistory(Place(storage.below(CHANGELOG), "segment", "", name.removeprefix(f"{CHANGELOG}/")))
            each.names.update(history.names)
            yield from _traces_in(each, keys, program)


def _traces_in(history: ChangeHistory, keys: GivenKeys, program: dict[str, Any] | None) -> Iterator[str]:
    for logged in history.versions():
        for change in logged.changes:
            if change.store != SYSTEM and wanted(history.name(change.store), keys, program).takes(change.key):
                where = history.place.where
                yield f"{where}, {logged.segment}: a record of a key in version {logged.commit.version}"
    yield from history.faults


def _program_of(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the description of the topology that settings name; None without one."""
    program = settings.get("topology")
    return program if isinstance(program, dict) else None


def _records(storage: Storage) -> int:
    names = list_checkpoints(storage)
    return sum(each.records for each in read_meta(storage, names[-1]).stores if each.name != RESULTS) if names else 0


def _sizes(storage: Storage) -> dict[str, int]:
    return {name: storage.size(name) for folder in _FOLDERS for name in storage.list(folder)}
