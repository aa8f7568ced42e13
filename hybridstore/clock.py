"""Time: the durations of public arguments, and every boundary of stream time, each defined in one place.

Inside the library all times are integer milliseconds. A boundary is the largest timestamp on its dead side
(`..._through`), so every comparison in the project has the form `ts <= dead_through`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

INT64_MAX: Final = 2**63 - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
NO_TIME: Final = -1
_UNITS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_TEXT: Final = re.compile(r"\s*(\d+)\s*([a-z]+)\s*")

Duration = int | timedelta | str

# The parameter of a store whose stream time is moved only by `advance`, not by records, as with a watermark as the
# time.
BY_ADVANCE: Final = {"timed_by": "advance"}


class Watermark(NamedTuple):
    """The times of one batch with a watermark as the time (ms): one for late records, one for closing and expiring.

    `late_ms` is the watermark of the batch before, `now_ms` the watermark of this batch, as in Spark's own operators. A
    record that is late by `now_ms` but not by `late_ms` is accepted; its window then closes at the end of this batch.
    """

    late_ms: int
    now_ms: int


def timed_by_records(parameters: dict[str, Any]) -> bool:
    """Whether records move the stream time of a store with these parameters. Records do by default."""
    return parameters.get("timed_by") != "advance"


def duration_ms(value: Duration, name: str, *, zero: bool = False) -> int:
    """Turn a duration into integer milliseconds: an int of ms, a timedelta, or text such as "5 minutes" or "1 hour 30
    minutes".

    The duration must be above 0; 0 is accepted with `zero=True`. Raises TypeError for other types, ValueError for other
    values; `name` is the argument's name in the message.
    """
    if type(value) is int:
        total = value
    elif isinstance(value, timedelta):
        total, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{name}: found {value}, expected a whole number of milliseconds")
    elif isinstance(value, str):
        total, at = 0, 0
        text = value.lower()
        while match := _TEXT.match(text, at):
            unit = match.group(2)
            scale = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
            if scale is None:
                break
            total += int(match.group(1)) * scale
            at = match.end()
        if at != len(text) or not text.strip():
            raise ValueError(f'{name}: found {value!r}, expected a duration such as "5 minutes", "1 hour" or "250 ms"')
    else:
        raise TypeError(
            f"{name}: found {type(value).__name__}, expected int (milliseconds), timedelta or text such as '5 minutes'"
        )
    if total < 0 or (total == 0 and not zero):
        raise ValueError(f"{name}: found {value!r}, expected a duration of {'0' if zero else '1'} ms or more")
    if total > INT64_MAX:
        raise ValueError(f"{name}: found {value!r}, expected at most {INT64_MAX} ms")
    return total


def check_time(ts: object, name: str) -> int:
    """Return `ts` if it is a timestamp (int, 0 or later, within int64).

    Raises TypeError or ValueError, which name the argument.
    """
    if type(ts) is not int:
        hint = ": int(moment.timestamp() * 1000); in process: stores.time" if hasattr(ts, "timestamp") else ""
        raise TypeError(f"{name}: found {type(ts).__name__}, expected int (milliseconds since the epoch{hint})")
    if not 0 <= ts <= INT64_MAX:
        raise ValueError(f"{name}: found {ts}, expected 0 to {INT64_MAX} (milliseconds since the epoch)")
    return ts


def time_ms(value: Any, column: str) -> int:
    """Return a row's timestamp in ms: an int unchanged, a datetime rounded down (without a zone: UTC), also as numpy
    types, or as text in ISO 8601, which JSON has.

    Raises TypeError for anything else and ValueError for a time before 1970 and other text.
    """
    if type(value) is int:
        if value < 0:
            raise ValueError(f"column {column!r}: found {value}, expected a time of 0 or later (ms since the epoch)")
        return value
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        if moment < EPOCH:
            raise ValueError(f"column {column!r}: found {value}, expected a time of 1970 or later")
        return (moment - EPOCH) // MILLISECOND
    if type(value) is str:
        return time_ms(moment_of(value, column), column)
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "iuM":
        # only a datetime64 of microseconds or coarser becomes a datetime
        return time_ms((value.astype("datetime64[us]") if value.dtype.kind == "M" else value).item(), column)
    raise TypeError(
        f"column {column!r}: found {type(value).__name__}, expected int (ms since the epoch), datetime or text "
        "(ISO 8601)"
    )


def moment_of(text: str, column: str) -> datetime:
    """Return the datetime of a text in ISO 8601, such as "2026-03-02T08:00:00Z". Raises ValueError for other text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"column {column!r}: found {text!r}, expected a time such as '2026-03-02T08:00:00Z' (ISO 8601), int (ms "
            "since the epoch) or datetime"
        ) from None


def expired_through(stream_time: int, retention_ms: int) -> int:
    """Retention: a row is live while `ts > stream_time - retention_ms`; returns the largest expired timestamp."""
    return stream_time - retention_ms


def refused_through(stream_time: int, grace_ms: int) -> int:
    """Grace: a write is accepted while `ts > stream_time - grace_ms`; returns the largest refused timestamp."""
    return stream_time - grace_ms


def slid_out_through(stream_time: int, size_ms: int) -> int:
    """Sliding window: a value counts while `ts >= stream_time - size_ms`; returns the largest expired timestamp."""
    return stream_time - size_ms - 1


def due_through(stream_time: int, limit_ms: int) -> int:
    """Suppression: an entry is due when `buffer_time <= stream_time - limit_ms`; returns the largest due buffer
    time.
    """
    return stream_time - limit_ms


def closed_through(stream_time: int, closing_ms: int) -> int:
    """A window closes when `end + closing_ms <= stream_time` (`closing_ms` of its declaration); returns the largest
    closed end."""
    return stream_time - closing_ms
