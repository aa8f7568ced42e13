"""Traces: which records of a state's stores belong to the keys that are erased, and where they are in its packs.

`program` is the description of the topology or program that the stores are of; None for stores of a plain state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from changelog.storage import Storage
from recovery.checkpoint import CheckpointReader
from recovery.erase import Erasure, Wanted, find_traces
from recovery.errors import CorruptCheckpointError
from recovery.layout import PACKS, list_checkpoints, parse_pack_name
from recovery.pack import PackRecord

from ..rescaling.routes import Parts, Routes, by_key
from ..state.erasing import Order, wanted_by
from ..state.given_keys import GivenKeys, only_part
from ..topology.null_keys import stored_key
from ..topology.run_state import RESULTS


class GroupedKeys(GivenKeys):
    """Keys where null is a key, and the texts under which the program stores them. Stores of custom logic may have
    either, the program's own stores have the texts: `stored`. The key "null" is no null key there.
    """

    def __init__(self, keys: GivenKeys) -> None:
        self._given = keys
        texts = map(_stored_prefixes, keys.keys) if keys.prefix else ([stored_key(key)] for key in keys.keys)
        stored = [text for each in texts for text in each]
        super().__init__([*keys.keys, *stored], prefix=keys.prefix)
        # dates and the like can be given as their texts only, which no text's text begins like
        special = [key for key in keys.keys if not keys.prefix and type(key) is str and key.startswith("{")]
        self.stored = GivenKeys([*stored, *special], prefix=keys.prefix)

    def take_of_row(self, key: Any) -> bool:
        """See `GivenKeys`: rows have the text "null" for itself, and None for null."""
        if self._given.take(key):
            return True
        try:
            text = stored_key(only_part(key))
        except (TypeError, ValueError):  # a value that is no key
            return False
        return self.stored.take(text)


def grouped(keys: GivenKeys, program: dict[str, Any] | None) -> GivenKeys:
    """Return keys and, where null is a key, the texts under which the program stores them."""
    if program is None or not (program.get("null_keys") == "group" or "processor" in program or "groups" in program):
        return keys
    return GroupedKeys(keys)


def _stored_prefixes(prefix: Any) -> list[str]:
    """Return what the texts begin with under which keys with a prefix are stored where null is a key."""
    text = stored_key(prefix)
    if type(prefix) is tuple:
        return [text, f"{text[:-1]},"]
    return [text[:-1] if type(prefix) is str else text[:-2]]


def orders_of(store: str | None, keys: GivenKeys, program: dict[str, Any] | None) -> list[Order]:
    """Return the orders that erase keys in a store; None: in stores that were dropped."""
    if store == RESULTS:
        return [Order(store, key, values=True, prefix=keys.prefix) for key in keys.keys]
    route = None if program is None or store is None else Routes(program, {}).of(store)
    chosen = keys if route is None or not isinstance(keys, GroupedKeys) else keys.stored
    parts = by_key if route is None else route
    if not isinstance(parts, Parts):  # rows without a key
        return []
    return [Order(store, key, False, keys.prefix, parts.before, parts.behind) for key in chosen.keys]


def wanted(store: str | None, keys: GivenKeys, program: dict[str, Any] | None, *, certain: bool = False) -> Wanted:
    """Return what is erased of a store. `certain`: only what is no accident counts, in place of what may be a trace."""
    rule = wanted_by(orders_of(store, keys, program))
    return rule._replace(values=bool(keys.texts())) if certain and rule.values else rule


def traces_of(
    reader: CheckpointReader, keys: GivenKeys, program: dict[str, Any] | None, *, certain: bool = False
) -> Erasure:
    """Search the packs of a checkpoint. Raises CorruptCheckpointError, OSError. O(bytes of the packs)."""
    stores = {each.number: wanted(each.name, keys, program, certain=certain) for each in reader.meta.stores}
    return find_traces(reader.storage, reader.meta.packs, stores, wanted(None, keys, None))


def traces_in_packs(storage: Storage, keys: GivenKeys, program: dict[str, Any] | None) -> Iterator[str]:
    """Yield where keys are keys in the packs of a state directory or a shard: of checkpoints, and of none."""
    # listed before the checkpoints that name them
    unnamed = {name for name in storage.list(f"{PACKS}/") if parse_pack_name(name) is not None}
    for name in list_checkpoints(storage):
        reader = CheckpointReader(storage, name)
        traces = traces_of(reader, keys, program, certain=True)
        packs = {record.number: record.name for record in reader.meta.packs}
        unnamed -= {*packs.values()}
        yield from (
            f"{storage.url}/{packs[number]} at byte {at}: a record of a key" for number, at in sorted(traces.blocks)
        )
        bare = traces.packs - {number for number, _ in traces.blocks}
        yield from (f"{storage.url}/{packs[number]}: a directory with a key" for number in sorted(bare))
        reader.close()
    for pack_name in sorted(unnamed):  # of versions that a rewind has taken back, or of a checkpoint in progress
        with suppress(FileNotFoundError, CorruptCheckpointError):
            record = PackRecord(1, pack_name, storage.size(pack_name))
            if find_traces(storage, [record], {}, wanted(None, keys, program)).packs:
                yield f"{storage.url}/{pack_name}: a record of a key, in a pack of no checkpoint"
