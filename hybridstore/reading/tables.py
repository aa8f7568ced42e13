"""Tables: rows as dicts and as Arrow columns, for whoever shows or sends the records of a store."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal

from ..stores.kinds import Row
from .texts import format_key, plain, to_json

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH: Final = 65_536
# Rows by column: keys, the columns of their times, values.
Piece = tuple[list[Any], Sequence["array[int]"], list[Any]]


# The types of Arrow of values that have no others inside of them; of whole numbers the one that nearly all have.
_FLAT: Final[Mapping[Any, str]] = {str: "string", bytes: "binary", int: "int64", float: "float64", bool: "bool_"}


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
    """Return rows as batches of the named columns; see `stream_by_column`."""

    def pieces() -> Iterator[Piece]:
        while piece := list(islice(rows, rows_per_batch)):
            ints = [array("q", column) for column in zip(*(row.times for row in piece), strict=True)]
            yield [row.key for row in piece], ints, [row.value for row in piece]

    return stream_by_column(times, pieces(), columns, text=text, rows_per_batch=rows_per_batch)


def stream_by_column(
    times: Sequence[str],
    pieces: Iterator[Piece],
    columns: Sequence[str] | None = None,
    *,
    text: bool = False,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> pa.RecordBatchReader:
    """Return the rows of pieces as batches of the named columns (None: all), read one batch after the other.

    Times are int64. `key` and `value` have the type that Arrow finds for all rows of the first batch; where these rows
    differ in type, and with `text`, the column is text: keys as the command line types them, values as JSON.

    Raises ValueError for an unknown column, and, while it is read, for a row of another type than the first batch.
    O(rows of a batch, and of a piece) memory.
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
    cut = _cut(pieces, len(times), rows_per_batch)
    piece = next(cut)
    first = [maker(piece, None) for maker in makers]
    schema = pa.schema([pa.field(name, column.type) for name, column in zip(names, first, strict=True)])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch(first, schema=schema)
        for piece in cut:
            arrays = [maker(piece, kind) for maker, kind in zip(makers, schema.types, strict=True)]
            yield pa.record_batch(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _cut(pieces: Iterator[Piece], times: int, size: int) -> Iterator[Piece]:
    """Yield the rows of pieces in pieces of `size` rows; at least one, which has no rows where `pieces` has none."""
    keys: list[Any] = []
    ints = [array("q") for _ in range(times)]
    values: list[Any] = []
    full = False
    for more_keys, more_ints, more_values in pieces:
        keys += more_keys
        values += more_values
        for column, more in zip(ints, more_ints, strict=True):
            column += more
        if len(keys) == size:  # as a rule: a batch is so many whole blocks
            full = True
            yield keys, ints, values
            keys, ints, values = [], [array("q") for _ in range(times)], []
            continue
        start = 0  # a piece may be all changes behind a checkpoint: what is left of it is copied once
        while len(keys) - start >= size:
            end, full = start + size, True
            yield keys[start:end], [column[start:end] for column in ints], values[start:end]
            start = end
        if start:
            keys, values, ints = keys[start:], values[start:], [column[start:] for column in ints]
    if keys or not full:
        yield keys, ints, values


def _maker(name: str, times: Sequence[str], *, text: bool) -> Callable[[Piece, Any], pa.Array]:
    """Return what makes the array of a column, of a type of Arrow, or (None) of the type that fits."""
    import pyarrow as pa

    if name == "key":
        return _typed_maker(0, format_key, text=text)
    if name == "value":
        return _typed_maker(2, lambda value: to_json(plain(value)), text=text)
    place = list(times).index(name)
    return lambda piece, kind: pa.Array.from_buffers(pa.int64(), len(piece[0]), [None, pa.py_buffer(piece[1][place])])


def _typed_maker(
    place: Literal[0, 2], as_text: Callable[[Any], str], *, text: bool
) -> Callable[[Piece, Any], pa.Array]:
    """Return the maker of keys or values. A first batch of several types makes all batches text."""

    def make(piece: Piece, kind: Any) -> pa.Array:
        import pyarrow as pa

        nonlocal text
        items = piece[place]
        typed = None if text else _typed(items)
        if typed is None and (text or kind is None):
            text = True
            return _texts(items, as_text)
        if typed is not None and (kind is None or typed.type == kind):
            return typed
        if typed is not None and _covers(kind, typed.type):
            return pa.array(items, kind)
        kinds = "several types" if typed is None else str(typed.type)
        raise ValueError(
            f"records: found {kinds}, expected {kind} as in the rows before (text=True gives every row as text)"
        )

    return make


def _texts(items: list[Any], as_text: Callable[[Any], str]) -> pa.Array:
    import pyarrow as pa

    # a lone surrogate, which is no UTF-8, as an escape
    return pa.array([as_text(item).encode("utf-8", "backslashreplace").decode() for item in items], pa.string())


def _typed(items: list[Any]) -> pa.Array | None:
    """Return items as an array of their type; None if they have several."""
    import pyarrow as pa

    # Arrow would take ints among floats, and tuples of one length as lists, for values of one type.
    kinds = set(map(type, items)) - {type(None)}
    if len(kinds) > 1 or tuple in kinds:
        return None
    flat = _FLAT.get(next(iter(kinds), None))
    if flat is not None:  # Arrow need not look for a type, and nothing is inside of the values
        try:
            return pa.array(items, getattr(pa, flat)())
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            return _inferred(items)
    return _inferred(items)


def _inferred(items: list[Any]) -> pa.Array | None:
    import pyarrow as pa

    try:
        typed = pa.array(items)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        return None  # one type of Python, several of Arrow
    return typed if _keeps_texts(items, typed.type) else None


def _keeps_texts(items: list[Any], kind: pa.DataType) -> bool:
    """Whether text is text and bytes are bytes in an array of these items: inside of lists and structs, Arrow takes
    bytes for text beside text. O(items), at C speed on lists.
    """
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return set(map(type, items)) <= {str if pa.types.is_string(kind) else bytes, type(None)}
    if pa.types.is_list(kind):
        return _keeps_texts(list(chain.from_iterable(item for item in items if item is not None)), kind.value_type)
    if pa.types.is_struct(kind):
        records = [item for item in items if item is not None]
        return all(_keeps_texts([record.get(field.name) for record in records], field.type) for field in kind)
    return True


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
