"""Stores: the stores of a join, as a plan declares them."""

from __future__ import annotations

from typing import Final

from ...clock import BY_ADVANCE
from ..declared_stores import StoreDeclaration, key_value_store, session_store, window_store
from .spec import LEFT, RIGHT, Input, Join

# A side's rows of a key are spread over so many buckets of time: each read of a key looks at all of them.
_BUCKETS: Final = 8


def declared_stores(join: Join) -> dict[str, StoreDeclaration]:
    """Return the stores of a join by name. Their time is moved by the join, and not by records."""
    stores: list[StoreDeclaration] = []
    if join.interval:
        # rows of a side whose partners come soon stay as long as a bucket of the other side, so that buckets have rows
        longest = max(join.retention_ms(side) for side in (LEFT, RIGHT))
        for side in (LEFT, RIGHT):
            retention_ms = max(join.retention_ms(side), longest // _BUCKETS)
            stores.append(_rows_of(join.inputs[side], retention_ms, -(-_BUCKETS * retention_ms // longest)))
            if join.alone(side):
                stores.append(
                    _rows_of(join.inputs[side], join.due_ms(side) + 1, name=keyless_name(join.inputs[side].name))
                )
    else:
        table = join.right_side
        stores.append(key_value_store(table.name))
        if table.history_ms is not None:
            stores.append(session_store(versions_name(table), retention=max(1, table.history_ms)))
            stores[-1].parameters |= BY_ADVANCE
        if join.grace_ms is not None:
            stores.append(_rows_of(join.left_side, join.grace_ms + 1))
    return {store.name: store for store in stores}


def _rows_of(source: Input, retention_ms: int, buckets: int = _BUCKETS, name: str | None = None) -> StoreDeclaration:
    store = window_store(name or source.name, retention=retention_ms, retain_duplicates=True)
    store.parameters |= {**BY_ADVANCE, "buckets": buckets}
    return store


def versions_name(table: Input) -> str:
    """Return the name of the store with the older versions of a table."""
    return f"{table.name} versions"


def keyless_name(name: str) -> str:
    """Return the name of the store with an input's rows without a key, which by a watermark wait until their time has
    passed.
    """
    return f"{name} without key"


def unused(row: object, stores: object) -> None:
    """Stand for the function of a plan whose logic is a join."""
    raise TypeError("join: found a call of the function of a join, expected rows by their inputs")
