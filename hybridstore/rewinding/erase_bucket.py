"""Erase of a state on an object store, whose job is stopped: the command opens it as its owner, and orders the erase.

The order names keys as the stores have them, so all packs are searched for those first. What the order does is what a
running job does (`state.in_place`): a crash behind the commit of the order leaves it to the next opening.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from changelog.codec import pack
from changelog.storage import Storage, storage_at
from recovery.block import unpack_block
from recovery.checkpoint import CheckpointReader, read_meta
from recovery.directory import decode_page
from recovery.erase import Wanted
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, PACKS, list_checkpoints
from recovery.pack import PAGE, FooterLine, open_pack, read_footer

from ..reading.changes import ChangeHistory
from ..reading.places import Place, resolve
from ..reading.view import open_view
from ..state.directory import State
from ..state.given_keys import GivenKeys
from ..state.home import home_of
from ..state.in_place import ORDERS
from ..topology.run_state import RESULTS, leave_out
from .erase_directory import OPENING, program_of, traces_in_changelog
from .parts import ErasedCounts
from .traces import grouped, traces_in_packs, wanted

# What an erase replaces, below a state on an object store.
_FOLDERS: Final = (f"{CHANGELOG}/", f"{CHECKPOINTS}/", f"{PACKS}/")
# An order names whole keys, and kept results may have the only ones with a prefix. By a float no block is left out
# (`GivenKeys.needles`), so that all blocks of results are written anew.
_ANY: Final = 0.0


class BucketPart:
    """See `ErasePart`: a plain state, or one shard of a topology, at a URL."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.location = location
        self.storage: Storage = storage_at(location)
        self.places: list[Path | str] = [self.storage.url]

    def check(self) -> None:
        """Raise HybridStoreError if the state cannot be read."""
        open_view(resolve(self.location)[0])

    def erase(self, keys: GivenKeys, now: int) -> ErasedCounts:
        """See `ErasePart`. The state is opened as by a job, which overtakes an owner that is still at work."""
        storage = self.storage
        before = _sizes(storage)
        with State.at_home(home_of(self.location, OPENING), OPENING) as state:
            program = program_of(state.settings)
            chosen = grouped(keys, program)
            leave_out(state, chosen.take, program)
            state.commit()
            state.checkpoint(wait=True)
            records = _records(storage)
            state.order_erase(_orders(storage, chosen, program))
            gc.collect()  # readers that are parts of cycles and not used any more would keep their packs
            state.commit()
            if state.erase_orders or state.settings.get(ORDERS) is not None:
                raise RestoreError(
                    f"{storage.url}: older packs are read in this process (close the readers, and try again)"
                )
            records -= _records(storage)
        after = _sizes(storage)
        removed = sum(size for name, size in before.items() if name not in after)
        return ErasedCounts(records, removed, sum(size for name, size in after.items() if name not in before))

    def traces(self, keys: GivenKeys) -> Iterator[str]:
        """See `ErasePart`: in the packs of every checkpoint, and in the changelog."""
        storage, names = self.storage, list_checkpoints(self.storage)
        program = program_of(read_meta(storage, names[-1]).settings) if names else None
        keys = grouped(keys, program)
        yield from traces_in_packs(storage, keys, program)
        named = ChangeHistory(resolve(self.location)[0])
        # one by one: objects of older versions, without content, stay, because they stop earlier owners
        for name in storage.list(f"{CHANGELOG}/"):
            story = ChangeHistory(Place(storage.below(CHANGELOG), "segment", "", name.removeprefix(f"{CHANGELOG}/")))
            story.names.update(named.names)
            yield from traces_in_changelog(story, keys, program)


def _records(storage: Storage) -> int:
    meta = read_meta(storage, list_checkpoints(storage)[-1])
    return sum(each.records for each in meta.stores if each.name != RESULTS)


def _sizes(storage: Storage) -> dict[str, int]:
    return {name: storage.size(name) for folder in _FOLDERS for name in storage.list(folder)}


def _orders(storage: Storage, keys: GivenKeys, program: dict[str, Any] | None) -> list[list[Any]]:
    """Return orders for all keys that the packs of the newest checkpoint have, live or not, and for those given, whose
    records may be in the changelog only. O(bytes of the packs).
    """
    reader = CheckpointReader(storage, list_checkpoints(storage)[-1])
    try:
        stores = {each.number: each.name for each in reader.meta.stores}
        rules = {number: wanted(name, keys, program) for number, name in stores.items()}
        taken: dict[tuple[str, bytes], list[Any]] = {}
        for number, name in stores.items():
            results = name == RESULTS
            for key in [_ANY] if results and keys.prefix else keys.keys:
                if results or rules[number].takes(key):
                    taken[name, pack(key)] = [name, key, results]
        for record in reader.meta.packs:
            where = f"{storage.url}/{record.name}"
            opened = open_pack(storage, record)
            for line in read_footer(opened, record.size, where):
                rule = rules.get(line.store)
                if rule is not None and stores[line.store] != RESULTS:
                    raw = bytes(opened.read(line.offset, line.size))
                    for key in _keys_of(raw, line, rule, f"{where} at byte {line.offset}"):
                        taken[stores[line.store], pack(key)] = [stores[line.store], key, False]
    finally:
        reader.close()
    return [order for _, order in sorted(taken.items())]


def _keys_of(raw: bytes, line: FooterLine, rule: Wanted, where: str) -> Iterator[Any]:
    """Yield the keys of a block, or the first and last ones of the lines of a page, that a rule takes."""
    if rule.needles and not any(needle in raw for needle in rule.needles):
        return
    if line.number == PAGE:
        keys = [key for entry in decode_page(raw, where, line.hash) for key in (entry.first, entry.last)]
    else:
        keys = list(unpack_block(raw, where).keys)
    yield from filter(rule.takes, keys)
