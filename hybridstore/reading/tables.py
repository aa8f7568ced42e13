"""Tables: rows as dicts and as Arrow columns, for whoever shows or sends the records of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..stores.kinds import Row
from .texts import format_key, plain, to_json

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH: Final = 65_536


def columns_of(times: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a store's columns; `times` are its kind's. A session is read as start, end."""
    return ("key", *sorted(times, key=lambda name: name == "end"), "value")


def named(row: Row, times: Sequence[str]) -> dict[str, Any]:
    """Return a row by the names of its columns."""
    at = dict(zip(times, row.times, strict=True))
    return {"key": row.key, **{name: at[name] for name in columns_of(times)[1:-1]}, "value": row.value}


def table_of(times: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table; see `stream_of`. O(rows)."""
    return stream_of(times, iter(rows), rows_per_batch=len(rows) + 1).read_all()


def stream_of(
    times: Sequence[str],
    rows: Iterator[Row],
    columns: Sequence[str] | None = None,
    *,
    text: bool = False,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> pa.RecordBatchReader:
    """Return rows as batches of the named columns (None: all), read one batch after the other.

    Times are int64. `key` and `value` have the type that Arrow finds for all rows of the first batch; where these rows
    differ in type, and with `text`, the column is text: keys as the command line types them, values as JSON.

    Raises ValueError for an unknown column, and, while it is read, for a row of another type than the first batch.
    O(rows of a batch) memory.
    """
    import pyarrow as pa  # only here: the core does not need pyarrow

    known = columns_of(times)
    names = known if columns is None else tuple(columns)
    for name in names:
        if name not in known:
            raise ValueError(f"columns: found {name!r}, expected some of {', '.join(known)}")
    if rows_per_batch < 1:
        raise ValueError(f"rows_per_batch: found {rows_per_batch}, expected at least 1")
    makers = [_maker(name, times, text=text) for name in names]
    piece = list(islice(rows, rows_per_batch))
    first = [maker(piece, None) for maker in makers]
    schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, first, strict=True)])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch(first, schema=schema)
        while piece := list(islice(rows, rows_per_batch)):
            arrays = [maker(piece, kind) for maker, kind in zip(makers, schema.types, strict=True)]
            yield pa.record_batch(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _maker(name: str, times: Sequence[str], *, text: bool) -> Callable[[list[Row], Any], pa.Array]:
    """Return what makes the array of a column, of a type of Arrow, or (None) of the type that fits."""
    import pyarrow as pa

    if name == "key":
        return lambda rows, kind: _array([row.key for row in rows], kind, format_key, text=text)
    if name == "value":
        return lambda rows, kind: _array(
            [row.value for row in rows], kind, lambda value: to_json(plain(value)), text=text
        )
    place = list(times).index(name)
    return lambda rows, kind: pa.array([row.times[place] for row in rows], pa.int64())


def _array(items: list[Any], kind: Any, as_text: Callable[[Any], str], *, text: bool) -> pa.Array:
    import pyarrow as pa

    array = None if text or (kind == pa.string() and any(type(item) is not str for item in items)) else _typed(items)
    if kind is None:
        return _texts(items, as_text) if array is None else array
    if array is not None and array.type == kind:
        return array
    if array is not None and _covers(kind, array.type):
        return pa.array(items, kind)
    if kind == pa.string():
        return _texts(items, as_text)
    kinds = "several types" if array is None else str(array.type)
    raise ValueError(
        f"records: found {kinds}, expected {kind} as in the rows before (text=True gives every row as text)"
    )


def _texts(items: list[Any], as_text: Callable[[Any], str]) -> pa.Array:
    import pyarrow as pa

    # a lone surrogate, which is no UTF-8, as an escape
    return pa.array([as_text(item).encode("utf-8", "backslashreplace").decode() for item in items], pa.string())


def _typed(items: list[Any]) -> pa.Array | None:
    """Return items as an array of their type; None if they have several."""
    import pyarrow as pa

    # Arrow would take ints among floats, and tuples of one length as lists, for values of one type.
    if len({type(item) for item in items if item is not None}) > 1 or any(type(item) is tuple for item in items):
        return None
    try:
        return pa.array(items)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        return None  # one type of Python, several of Arrow


def _covers(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether values of a type lose nothing in another type: Arrow drops fields of structs that it does not expect."""
    import pyarrow as pa

    if narrow == wide or pa.types.is_null(narrow):
        return True
    if pa.types.is_struct(wide) and pa.types.is_struct(narrow):
        return all(
            wide.get_field_index(field.name) >= 0 and _covers(wide.field(field.name).type, field.type)
            for field in narrow
        )
    if pa.types.is_list(wide) and pa.types.is_list(narrow):
        return _covers(wide.value_type, narrow.value_type)
    return False
