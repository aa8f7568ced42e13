"""Tables: rows as dicts and as Arrow columns, for whoever shows or sends the records of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..stores.kinds import Row
from .texts import format_key, plain, to_json

if TYPE_CHECKING:
    import pyarrow as pa


def columns_of(times: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a store's columns; `times` are its kind's. A session is read as start, end."""
    return ("key", *sorted(times, key=lambda name: name == "end"), "value")


def named(row: Row, times: Sequence[str]) -> dict[str, Any]:
    """Return a row by the names of its columns."""
    at = dict(zip(times, row.times, strict=True))
    return {"key": row.key, **{name: at[name] for name in columns_of(times)[1:-1]}, "value": row.value}


def table_of(times: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table: `key` and `value` of the type that Arrow finds for all of them, else as text (keys as the
    command line types them, values as JSON); times int64. O(rows).
    """
    import pyarrow as pa  # only here: the core does not need pyarrow

    by_name: dict[str, pa.Array] = {"key": _array([row.key for row in rows], format_key)}
    for name in columns_of(times)[1:-1]:
        place = list(times).index(name)
        by_name[name] = pa.array([row.times[place] for row in rows], pa.int64())
    by_name["value"] = _array([row.value for row in rows], lambda value: to_json(plain(value)))
    return pa.table(by_name)


def _array(items: list[Any], text: Any) -> pa.Array:
    import pyarrow as pa

    # Arrow would take ints among floats, and tuples of one length as lists, for values of one type.
    if len({type(item) for item in items if item is not None}) <= 1 and not any(type(item) is tuple for item in items):
        try:
            return pa.array(items)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            pass  # values of one Python type and of several types of Arrow
    return pa.array([text(item) for item in items], pa.string())
