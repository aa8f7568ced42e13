"""Erasing: the files of a version without some keys, for an erase of a stopped job and of a running one.

    write_erased   another checkpoint of the version, whose packs have no trace of the keys
    sweep          removes what it replaces: other checkpoints, older segments, packs of lines that were taken back

No file is changed in place, so forks, and readers that have files open, are unharmed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from changelog.segment import Position
from changelog.storage import Storage
from recovery.block import StoreCapture
from recovery.checkpoint import CheckpointReader
from recovery.compaction import SIZES, Sizes
from recovery.erase import Erasure, Wanted, find_traces
from recovery.errors import RestoreError
from recovery.layout import PACKS, list_checkpoints, parse_pack_name
from recovery.meta import read_meta
from recovery.prune import collect_packs
from recovery.write import CheckpointReport, write_checkpoint

from ..stores.kinds import SUPPRESSION
from .given_keys import GivenKeys
from .memory_budget import BUDGET, pack_bytes

# What no store has: bytes that are not of any key, and a rule that takes none.
_NOTHING: Final = Wanted(lambda key: False, (b"\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1",))


class Order(NamedTuple):
    """What is to be erased, as a setting has it.

    store     the name of the store; None: stores that were dropped
    key       the records of this key
    values    in place of these: everything that has the key in its values, which no record has any more
    prefix    the records of all keys that begin with `key`
    before, behind   how many parts the keys of the store have before and behind that key
    """

    store: str | None
    key: Any
    values: bool = False
    prefix: bool = False
    before: int = 0
    behind: int = 0


def wanted_by(orders: Iterable[Order]) -> Wanted:
    """Return the rule of all orders of one store. O(orders)."""
    keys_of: dict[tuple[Any, ...], list[Any]] = {}
    for order in orders:
        keys_of.setdefault(order[2:], []).append(order.key)
    rules = [_wanted(keys, *form) for form, keys in keys_of.items()]
    if len(rules) < 2:
        return rules[0] if rules else _NOTHING
    needles = [rule.needles for rule in rules]
    return Wanted(
        lambda key: any(rule.takes(key) for rule in rules),
        tuple(chain.from_iterable(needles)) if all(needles) else (),
        any(rule.values for rule in rules),
    )


def _wanted(given: list[Any], values: bool, prefix: bool, before: int, behind: int) -> Wanted:
    keys = GivenKeys(given, prefix=prefix)
    if values:
        return Wanted(_NOTHING.takes, keys.parts(), values=True)

    def takes(key: Any) -> bool:
        return keys.take(key[before : len(key) - behind] if type(key) is tuple else key)

    return Wanted(takes, keys.needles())


def write_erased(
    storage: Storage,
    reader: CheckpointReader,
    position: Position,
    settings: dict[str, Any],
    erased: Erasure,
    *,
    launch: int = 0,
    sizes: Sizes = SIZES,
) -> CheckpointReport:
    """Write a checkpoint of the version of `reader` without what is erased; the changelog continues at `position`. What
    a suppression buffer has emitted counts as taken. `launch` and `sizes` as in `write_checkpoint`. Raises OSError,
    CheckpointError. O(bytes of packs with a trace).
    """
    meta = reader.meta
    captures = [
        StoreCapture(each.number, each.name, each.kind, each.parameters, _state_without(each.kind, each.state), {})
        for each in meta.stores
    ]
    return write_checkpoint(
        storage,
        identity=meta.identity,
        version=meta.version,
        digest=meta.digest,
        position=position,
        settings=settings,
        captures=captures,
        previous=reader,
        launch=launch,
        sizes=sizes,
        pack_bytes=pack_bytes(),
        tables=BUDGET.limit is not None,
        erased=erased,
    )


def _state_without(kind: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint has of a store besides its records, without what the version before has emitted."""
    return {**state, "emitted": None} if kind == SUPPRESSION.name and "emitted" in state else state


def sweep(storage: Storage, name: str, prune: Callable[[int], object], *, through: int = sys.maxsize) -> None:
    """Remove all that the checkpoint `name` replaces, of versions up to `through`. Raises OSError, HybridStoreError.
    O(files).
    """
    older = [each for each in list_checkpoints(storage) if each.version <= through]
    storage.delete([str(each) for each in older if str(each) != name])
    prune(1)
    sweep_packs(storage, through=through)


def sweep_packs(storage: Storage, *, through: int = sys.maxsize) -> bool:
    """Remove all packs of versions up to `through` that no checkpoint names; False if some stay, because this process
    reads them. O(files).
    """
    collect_packs(storage, below=through + 1)  # of versions that a rewind has taken back, too
    packs = [(name, pack) for name in storage.list(f"{PACKS}/") if (pack := parse_pack_name(name)) is not None]
    there = {name for name, pack in packs if pack.version <= through}
    named = {record.name for name in list_checkpoints(storage) for record in read_meta(storage, name).packs}
    return there <= named


def still_read(where: object) -> RestoreError:
    """Return the error of an erase whose older packs this process reads."""
    return RestoreError(
        f"{where}: older packs are read in this process (close followers, servers and snapshots, let go of what "
        "hs.inspect has returned, and run the same erase again)"
    )


def ordered(reader: CheckpointReader, orders: Sequence[Order]) -> Erasure:
    """Return what is erased of a checkpoint by orders. Raises CorruptCheckpointError. O(bytes of the packs)."""
    of_store: dict[str | None, list[Order]] = {}
    for order in orders:
        of_store.setdefault(order.store, []).append(order)
    rules = {each.number: wanted_by(of_store.get(each.name, ())) for each in reader.meta.stores}
    # a store that an upgrade wrote anew was dropped: packs have the number of that store, and not its name
    others = wanted_by(order for order in orders if not order.values)
    return find_traces(reader.storage, reader.meta.packs, rules, others)
