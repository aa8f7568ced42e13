"""Times: the timestamps of rows as ms, and back in the form in which they came: ints, datetimes with a zone or without.

pyarrow and numpy are used only if the process has imported them, and only for a column that is long enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import repeat
from operator import add, floordiv, mul, sub, truediv
from typing import Any, Final, Literal

from ..clock import EPOCH, MILLISECOND

ToTime = Callable[[int], Any]
_NAIVE_EPOCH: Final = EPOCH.replace(tzinfo=None)


def same(ts: int) -> int:
    """Return a time as the integer that it is."""
    return ts


def _aware(ts: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ts)


def _naive(ts: int) -> datetime:
    return (EPOCH + timedelta(milliseconds=ts)).replace(tzinfo=None)


TimeForm = Literal["ms", "naive", "aware"]
# Up to this number (the year 2106) seconds in a double, and results of `fromtimestamp`, are exact to the microsecond.
_EXACT_MS: Final = 2**32 * 1000
# The largest time that a datetime can have.
_LAST_MS: Final = (datetime.max - _NAIVE_EPOCH) // MILLISECOND
# From this number of times on, numpy or pyarrow is faster.
_MANY: Final = 32


def times_as(form: TimeForm, times: Any) -> list[Any]:
    """Return times (ms, a list or an array) in a form, converted by column; each equals the result of `TO_TIME`.

    Raises OverflowError for a time beyond the range of datetime. O(n), at C speed.
    """
    if form == "ms":
        return listed(times)
    epoch = EPOCH if form == "aware" else _NAIVE_EPOCH
    numpy: Any = sys.modules.get("numpy") if len(times) >= _MANY else None
    if numpy is not None:
        # 0.1 us a time, where the two ways below take 0.2 and 0.26
        column = numpy.array(times, "i8")
        if column.min() >= 0 and column.max() <= _LAST_MS:
            return list(map(add, repeat(epoch), column.view("m8[ms]").tolist()))
    times = listed(times)
    if form == "aware" and times and min(times) >= 0 and max(times) < _EXACT_MS:
        return list(map(datetime.fromtimestamp, map(truediv, times, repeat(1000)), repeat(UTC)))
    return list(map(add, repeat(epoch), map(mul, times, repeat(MILLISECOND))))


# By the names that a state keeps.
TO_TIME: Final[dict[TimeForm, ToTime]] = {"ms": same, "naive": _naive, "aware": _aware}
_FORMS: Final = {to_time: form for form, to_time in TO_TIME.items()}


def form_of(to_time: ToTime) -> TimeForm:
    """Return the name of a form of times."""
    return _FORMS[to_time]


def to_time_of(value: Any) -> ToTime:
    """Return the form of times for a timestamp."""
    if type(value) is str:
        value = datetime.fromisoformat(value)  # `time_ms` has taken it
    if isinstance(value, datetime):
        return _naive if value.tzinfo is None else _aware
    return same


def plain_times(moments: list[Any]) -> list[int] | None:
    """Return ints unchanged, or datetimes (all with or all without a zone) in ms, rounded down; None otherwise."""
    kinds = set(map(type, moments))
    if kinds == {int}:
        return moments
    if kinds != {datetime}:
        return None
    epoch = EPOCH if moments[0].tzinfo is not None else _NAIVE_EPOCH
    try:
        durations = list(map(sub, moments, repeat(epoch)))
    except TypeError:  # some datetimes have a zone and some have no zone
        return None
    pyarrow: Any = sys.modules.get("pyarrow") if len(durations) >= _MANY else None
    if pyarrow is None:
        return list(map(floordiv, durations, repeat(MILLISECOND)))
    # 0.04 us a time, where the division above takes 0.17
    times: list[int] = (pyarrow.array(durations, pyarrow.duration("us")).to_numpy().view("i8") // 1000).tolist()
    return times


def arrow_to_time(kind: Any) -> ToTime:
    """Return the form of times for a column of timestamps or integers of an Arrow type."""
    import pyarrow as pa

    if not pa.types.is_timestamp(kind):
        return same
    return _naive if kind.tz is None else _aware


def arrow_list(column: Any) -> list[Any]:
    """Return an Arrow column as a list of Python's own values. O(n), at C speed for numbers and text."""
    import pyarrow as pa

    from .columns.buffers import numbers_of

    if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        values: list[Any] = numbers_of(column).tolist()
        return values
    listed: list[Any] = without_nanoseconds(column).to_pylist()
    return listed


def without_nanoseconds(column: Any) -> Any:
    """Return an Arrow column, of times in ns with microseconds: pyarrow turns nanoseconds into pandas' own type."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def listed(column: Any) -> list[Any]:
    """Return a column (a list, a tuple, or an array of numpy or Arrow) as a list. O(n)."""
    if isinstance(column, list):
        return column
    if isinstance(column, tuple):
        return list(column)
    values: list[Any] = column.tolist() if hasattr(column, "dtype") else arrow_list(column)
    return values


def arrow_times(column: Any, name: str) -> list[int]:
    """Return an Arrow column of timestamps (any unit) or integers (ms), without nulls, as a list of ms, rounded
    down."""
    import pyarrow as pa

    from .columns.buffers import times_in

    if not any(is_kind(column.type) for is_kind in (pa.types.is_timestamp, pa.types.is_integer, pa.types.is_null)):
        raise TypeError(
            f"column {name!r}: found {column.type}, expected a timestamp or an integer (ms since the epoch)"
        )
    times: list[int] = times_in(column).tolist()
    if times and min(times) < 0:
        raise ValueError(f"column {name!r}: found {min(times)}, expected a time of 0 or later (ms since the epoch)")
    return times
