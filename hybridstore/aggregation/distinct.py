"""How many distinct values: exactly, by the values themselves, or about, by a sketch of bounded size.

    CountDistinct("user")                     {value: how often}    grows with the distinct values
    CountDistinct("user", approximate=True)   bytes of a sketch     4 kB at most, and 1.6 % of standard error

The sketch is the HyperLogLog of the library `datasketches`, in its documented form (compact, HLL_8), which the same
library reads in C++, Java, Rust and Go. The surprise: a sketch that has seen its values one by one estimates by their
order of arrival, too. The flag "out of order" in its bytes turns that off, so that an estimate depends on the set of
values alone, wherever commits are cut and however parts were merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from changelog.codec import pack, short_text
from changelog.installed import installed

from .aggregator import Builtin
from .kept import merged, tally, tally_many, untally
from .projection import Where

_HLL_MODE: Final = 2
_OUT_OF_ORDER: Final = 16
# where the bytes of a sketch have its flags, its mode, and the estimate by order of arrival
_FLAGS, _MODE, _HIP = 5, 7, slice(8, 16)


def _library() -> Any:
    remedy = "pip install 'hybridstore[sketches]', on Spark's workers, too"
    return installed("CountDistinct: approximate", "datasketches", remedy)


class _Sketches:
    """Sketches as bytes: empty bytes are a sketch of no value."""

    __slots__ = ("_precision",)

    def __init__(self, precision: int) -> None:
        self._precision = precision

    def _open(self, state: bytes) -> Any:
        library = _library()
        if state:
            return library.hll_sketch.deserialize(state)
        return library.hll_sketch(self._precision, library.tgt_hll_type.HLL_8)

    @staticmethod
    def _closed(sketch: Any) -> bytes:
        data = sketch.serialize_compact()
        if data[_MODE] & 3 != _HLL_MODE:
            return bytes(data)
        changed = bytearray(data)
        changed[_FLAGS] |= _OUT_OF_ORDER
        changed[_HIP] = bytes(8)
        return bytes(changed)

    def add(self, state: bytes, value: Any) -> bytes:
        """Add one value. O(bytes of the sketch)."""
        return self.add_many(state, [value])

    def add_many(self, state: bytes, values: Sequence[Any]) -> bytes:
        """Add values. O(values + bytes of the sketch)."""
        sketch = self._open(state)
        for value in values:
            sketch.update(_hashable(value))
        return self._closed(sketch)

    def merge(self, older: bytes, newer: bytes) -> bytes:
        """Return the sketch of the values of both."""
        if not older or not newer:
            return older or newer
        library = _library()
        union = library.hll_union(self._precision)
        union.update(self._open(older))
        union.update(self._open(newer))
        return self._closed(union.get_result(library.tgt_hll_type.HLL_8))

    def result(self, state: bytes) -> int:
        """Return the estimate, a whole number."""
        return round(self._open(state).get_estimate()) if state else 0


def _hashable(value: Any) -> Any:
    """Return a value as the library takes it: ints of 64 bits, floats and text as they are, others as packed bytes; of
    equal decimals and of equal datetimes with a zone the same.
    """
    kind = type(value)
    if kind is str or kind is float:
        return value
    if kind is int or kind is bool:
        return int(value) if -(2**63) <= value < 2**63 else pack(value).hex()
    if kind is Decimal:
        value = Decimal(short_text(value))
    elif kind is datetime and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return pack(value).hex()


class CountDistinct(Builtin):
    """How many distinct values: 0 if none. None is no value, and nan is one value.

    Exact, the state of a window has each distinct value with its count. `approximate=True`: the state is a HyperLogLog
    sketch of the library `datasketches` (an extra: `pip install 'hybridstore[sketches]'`) of 2**precision bytes, with a
    standard error of 1.04 / 2**(precision / 2), 1.6 % by default; up to some hundreds of values it is almost exact.
    There 1 and 1.0 are two values. Raises ValueError for a precision below 4 or above 21, and HybridStoreError if the
    library is not installed.

    >>> hs.CountDistinct().of(["/", "/help", "/"])
    2
    """

    __slots__ = ()

    def __init__(
        self, column: str | None = None, *, approximate: bool = False, precision: int = 12, where: Where = None
    ) -> None:
        if type(precision) is not int or not 4 <= precision <= 21:
            raise ValueError(f"count_distinct: precision: found {precision!r}, expected an int of 4 to 21")
        if approximate:
            _library()
            sketches = _Sketches(precision)
            super().__init__(
                "count_distinct",
                column,
                bytes,
                sketches.add,
                merge=sketches.merge,
                result=sketches.result,
                add_many=sketches.add_many,
                parameters=["hll", precision],
                where=where,
            )
        else:
            super().__init__(
                "count_distinct",
                column,
                dict,
                tally,
                merge=merged,
                subtract=untally,
                copy=dict.copy,
                result=len,
                exact_subtract=True,
                add_many=tally_many,
                where=where,
            )
