"""Selection: which records of a store a reader wants."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Selection(NamedTuple):
    """A selection of records: bounds are inclusive, None is open; `prefix` is text, bytes, or the leading elements of a
    tuple.
    """

    key_from: Any = None
    key_to: Any = None
    prefix: Any = None
    time_from: int | None = None
    time_to: int | None = None
    reverse: bool = False

    @property
    def everything(self) -> bool:
        """True when no record is left out."""
        return self[:5] == (None, None, None, None, None)

    def takes(self, key: Any) -> bool:
        """True when a key is within the bounds."""
        if self.key_from is not None and key < self.key_from:
            return False
        if self.key_to is not None and key > self.key_to:
            return False
        return self.prefix is None or key[: len(self.prefix)] == self.prefix

    def within(self, times: tuple[int, ...]) -> bool:
        """True when the times of a record are within the bounds; a record without times is."""
        if not times:
            return True
        if self.time_from is not None and times[0] < self.time_from:
            return False
        return self.time_to is None or times[-1] <= self.time_to

    def picks(self, key: Any, times: tuple[int, ...]) -> bool:
        """True when a record is within the bounds."""
        return self.takes(key) and self.within(times)

    def overlaps(self, low: int, high: int, columns: int) -> bool:
        """False when no record of a block with `columns` times can be within the bounds, of which the first is in
        low..high (ms; -1: not known).
        """
        if high < 0:
            return True
        if self.time_from is not None and high < self.time_from:
            return False
        # With several times a block is bounded by the first only: a session that ends late may have begun early.
        return columns > 1 or self.time_to is None or low <= self.time_to

    def touches(self, first: Any, last: Any) -> bool:
        """False when no key of the range first..last can be within the bounds."""
        if self.key_from is not None and last < self.key_from:
            return False
        if self.key_to is not None and first > self.key_to:
            return False
        if self.prefix is None:
            return True
        size = len(self.prefix)
        return bool(first[:size] <= self.prefix <= last[:size])


EVERYTHING: Final = Selection()
