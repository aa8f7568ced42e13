"""Watching: with `debug`, the journal remembers every put value, so that a value changed in place later is reported.

Such a change is in memory and in the next checkpoint, but not in the changelog: a restart would lose the change
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from changelog.codec import pack
from changelog.journal import Journal
from changelog.mutation import PUT, PUT_AT, PUT_COLUMNS, PUT_SPAN, PUT_SPANS

from ..errors import ValueChangedInPlaceError
from ..stores.keys import shown
from ..stores.kinds import KINDS, Store


class WatchingJournal(Journal):
    """A journal that remembers every value that is not an atom, with its packed form at the time of the put."""

    __slots__ = ("_watched",)

    def __init__(self, sink: Callable[[bytes], None], *, frame_records: int) -> None:
        super().__init__(sink, frame_records=frame_records)
        # (number of the store, key, times) -> (value, packed)
        self._watched: dict[tuple[int, Any, Any], tuple[Any, bytes]] = {}

    def log(self, packed: bytes, mutation: tuple[Any, ...]) -> None:
        super().log(packed, mutation)
        number, op = mutation[0] >> 4, mutation[0] & 15
        if number and op in (PUT, PUT_AT, PUT_SPAN):
            self._watched[(number, mutation[1], mutation[3:])] = (mutation[2], pack(mutation[2]))
        elif op in (PUT_COLUMNS, PUT_SPANS):
            self._watch_columns(*mutation)

    def record_columns(self, code: int, *columns: list[Any] | None) -> None:
        super().record_columns(code, *columns)
        self._watch_columns(code, *columns)

    def _watch_columns(self, code: int, keys: Any, values: Any, *places: Any) -> None:
        number = code >> 4
        rows = zip(*(column or [None] * len(keys) for column in places), strict=True)
        for key, value, place in zip(keys, values, rows, strict=True):
            self._watched[(number, key, place)] = (value, pack(value))

    def forget(self) -> None:
        """Forget all values put so far."""
        self._watched.clear()

    def check(self, stores: Mapping[int, Store]) -> None:
        """Raise ValueChangedInPlaceError if a value that one of the stores has was changed in place. O(values put)."""
        for (number, key, place), (value, packed) in self._watched.items():
            store = stores[number]
            # a replaced or deleted value may be changed again
            if pack(value) != packed and KINDS[store.kind].holds(store, key, place, value):
                raise ValueChangedInPlaceError(
                    f"store {store.name!r}: the value of key {shown(key)} was changed in place after it was put, so "
                    "the changelog does not hold the change (put it again instead)"
                )
