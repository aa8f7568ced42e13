"""Tables: rows as dicts and as Arrow columns, for whoever shows or sends the records of a store."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress, islice, repeat
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from changelog.installed import installed
from recovery.columns import Columns
from recovery.packed import PackedBlock, PackedItems, PackedSpans, packed_items
from recovery.packed_fields import PackedFields

from ..collector import collector_held
from ..stores.kinds import Row
from .texts import format_key, plain, to_json

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH: Final = 65_536
# Items of a column: a list of objects, or an array of Arrow.
Part: TypeAlias = Any
# Rows by column: keys, the columns of their times, values.
Piece: TypeAlias = tuple[Part, Sequence["array[int]"], Part]


# The types of Arrow of values that have no others inside of them; of whole numbers the one that nearly all have.
_FLAT: Final[Mapping[Any, str]] = {str: "string", bytes: "binary", int: "int64", float: "float64", bool: "bool_"}


def columns_of(times: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a store's columns; `times` are its kind's. A session is read as start, end."""
    return ("key", *sorted(times, key=lambda name: name == "end"), "value")


def named(row: Row, times: Sequence[str]) -> dict[str, Any]:
    """Return a row by the names of its columns."""
    if not times:
        return {"key": row.key, "value": row.value}
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

    Raises ValueError for an unknown column, and, while it is read, for a row of another type than the first batch;
    HybridStoreError without pyarrow.
    O(rows of a batch, and of a piece) memory.
    """
    installed("records as Arrow batches", "pyarrow")
    import pyarrow as pa  # only here: the core does not need pyarrow

    known = columns_of(times)
    names = known if columns is None else tuple(columns)
    for name in names:
        if name not in known:
            raise ValueError(f"columns: found {name!r}, expected some of {', '.join(known)}")
    if rows_per_batch < 1:
        raise ValueError(f"rows_per_batch: found {rows_per_batch}, expected at least 1")
    makers = [_Column(name, times, text=text) for name in names]
    cut = _cut(pieces, makers, rows_per_batch)

    def batch() -> list[pa.Array] | None:
        with collector_held():  # which would visit the decoded objects of the batch again and again
            parts = next(cut, None)
            return None if parts is None else [maker.array(part) for maker, part in zip(makers, parts, strict=True)]

    first = batch() or []
    schema = pa.schema([pa.field(name, column.type) for name, column in zip(names, first, strict=True)])

    def batches() -> Iterator[pa.RecordBatch]:
        arrays: list[pa.Array] | None = first
        while arrays is not None:
            yield pa.record_batch(arrays, schema=schema)
            arrays = batch()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _cut(pieces: Iterator[Piece], columns: Sequence[_Column], size: int) -> Iterator[list[list[Part]]]:
    """Yield the parts of each column of batches of `size` rows; at least one batch, without rows where `pieces` has
    none. A piece is made arrays at once, while its objects are in the processor's cache: most are one block.
    """
    parts: list[list[Part]] = [[] for _ in columns]
    count, full = 0, False
    for piece in pieces:
        more = [column.part(piece) for column in columns]
        start, rows = 0, len(piece[0])
        while count + rows - start >= size:
            end = start + size - count
            for column, part in zip(parts, more, strict=True):
                column.append(part[start:end])
            yield parts
            parts, count, start, full = [[] for _ in columns], 0, end, True
        if start < rows:
            for column, part in zip(parts, more, strict=True):
                column.append(part[start:] if start else part)
            count += rows - start
    if count or not full:
        yield parts


class _Column:
    """What makes the arrays of one column: its times, keys or values. A first batch of several types makes all batches
    text.
    """

    def __init__(self, name: str, times: Sequence[str], *, text: bool) -> None:
        self._time = -1 if name in ("key", "value") else list(times).index(name)
        self._place: Literal[0, 2] = 0 if name == "key" else 2
        self._as_text = format_key if name == "key" else _value_text
        self._text = text
        self._kind: Any = None  # the type of Arrow of the first batch

    def part(self, piece: Piece) -> Part:
        """Return the items of a piece: an array where all are of one type, else a list. Before the type is known, only
        of a flat type or as they lie in a block: a struct does not tell a null from what is not there, as text does.
        """
        import pyarrow as pa

        if self._time >= 0:
            times = piece[1][self._time]
            return pa.Array.from_buffers(pa.int64(), len(times), [None, pa.py_buffer(times)])
        items = piece[self._place]
        if self._text:
            return items
        typed = items if type(items) is not list else _flat(items) if self._kind is None else _typed(items)
        if typed is None:
            return items
        return typed if self._kind is None else _fitted(typed, self._kind)

    def array(self, parts: list[Part]) -> pa.Array:
        """Return parts as an array of the type of the first batch, which is the first call's."""
        whole = self._array(parts)
        self._kind = whole.type
        return whole

    def _array(self, parts: list[Part]) -> pa.Array:
        import pyarrow as pa

        if self._time >= 0:
            return pa.concat_arrays(parts) if parts else pa.array([], pa.int64())
        kind = self._kind
        typed = None if self._text else _joined(parts)
        if typed is not None and (kind is None or typed.type == kind):
            return typed
        items = _listed(parts)
        if typed is None and not self._text:
            typed = _typed(items)
        if typed is None and (self._text or kind is None):
            self._text = True
            return _texts(items, self._as_text)
        if typed is not None and (kind is None or typed.type == kind):
            return typed
        if typed is not None and _covers(kind, typed.type):
            return pa.array(items, kind)
        kinds = "several types" if typed is None else str(typed.type)
        raise ValueError(
            f"records: found {kinds}, expected {kind} as in the rows before (text=True gives every row as text)"
        )


def _value_text(value: Any) -> str:
    return to_json(plain(value))


def _listed(parts: list[Part]) -> list[Any]:
    return list(chain.from_iterable(part if type(part) is list else part.to_pylist() for part in parts))


def _joined(parts: list[Part]) -> pa.Array | None:
    """Return parts as one array; None unless all are arrays of one type."""
    import pyarrow as pa

    if not parts or any(type(part) is list or part.type != parts[0].type for part in parts):
        return None
    try:
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    except pa.ArrowInvalid:  # texts beyond 2 GB
        return None


def piece_of(block: PackedBlock) -> Piece | None:
    """Return the records of a block; None for texts that are not in UTF-8, such as one with a lone surrogate. O(bytes),
    and O(1) for each text and float.
    """
    keys, values = _array_of(block.keys), _array_of(block.values)
    return None if keys is None or values is None else (keys, block.ints, values)


def laid_piece(piece: Piece, layer: Columns) -> Piece | None:
    """Return the records of a piece with a layer over them, both by key and with at most one record for a key; None
    for a layer with several, or with keys of another type, and without numpy.

    O(records) at C speed, and O(log records) in Python for each key of a layer with a key that the piece does not have.
    """
    import pyarrow.compute as pc

    try:
        import numpy as np  # only here: the core does not need numpy
    except ImportError:
        return None
    keys, counts = piece[0], layer.counts
    if layer.froms is not None or (counts is not None and max(counts) > 1):
        return None
    # the places of the records that stay, among those of the piece and, behind them, those of the layer; -1: none
    order = np.arange(len(keys))
    put = np.ones(len(layer.keys), bool) if counts is None else np.array(counts, bool)
    places = np.where(put, np.cumsum(put) - 1 + len(keys), -1)
    newer = layer.keys if counts is None else list(compress(layer.keys, counts))
    if type(keys) is not list:
        changed = _flat(layer.keys)
        if changed is None or changed.type != keys.type:
            return None
        hidden = pc.is_in(keys, value_set=changed).to_numpy(zero_copy_only=False)
        if np.count_nonzero(hidden) == len(changed):  # the piece has all of them, in the same order
            order[hidden] = places
            return _at_places(piece, layer, newer, order)
        keys = keys.to_pylist()
    at, added, before = 0, list[int](), list[int]()
    for key, place in zip(layer.keys, places.tolist(), strict=True):
        at = bisect_left(keys, key, at)
        if at < len(keys) and keys[at] == key:
            order[at] = place
        else:
            added.append(place)
            before.append(at)
    order = np.insert(order, before, added) if added else order
    return _at_places(piece, layer, newer, order)


def _at_places(piece: Piece, layer: Columns, newer: list[Any], order: Any) -> Piece:
    """Return the records at places among those of a piece and, behind them, those of a layer, whose keys are `newer`;
    none for a place below 0. O(records).
    """
    import numpy as np

    if order.min(initial=0) < 0:
        order = order[order >= 0]
    ints = [array("q") for _ in piece[1]]
    for column, old, more in zip(ints, piece[1], layer.ints or repeat(array("q")), strict=False):
        column.frombytes(np.concatenate((np.array(old, np.int64), np.array(more, np.int64)))[order].tobytes())
    return _taken(piece[0], newer, order), ints, _taken(piece[2], layer.values, order)


def _taken(items: Part, more: list[Any], order: Any) -> Part:
    """Return the items at places among items and, behind them, more of them. O(items)."""
    import pyarrow as pa

    if type(items) is not list:
        added = _array_of(packed_items(more)) if more else items[:0]
        if type(added) is not list and added is not None and added.type == items.type:
            return pa.concat_arrays([items, added]).take(pa.array(order))
        items = items.to_pylist()
    return list(map([*items, *more].__getitem__, order.tolist()))


def _array_of(items: PackedItems) -> Part | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(items, list):
        flat = _flat(items)
        return items if flat is None else flat
    if isinstance(items, array):
        return pa.Array.from_buffers(pa.float64(), len(items), [None, pa.py_buffer(items)])
    count = len(items)
    if isinstance(items, PackedSpans):
        typed = _array_of_spans(items)
    elif isinstance(items, PackedFields):
        typed = _array_of_fields(items)
    else:
        packed = pa.Array.from_buffers(pa.binary(items.header + items.size), count, [None, pa.py_buffer(items.data)])
        content = pc.binary_slice(packed, items.header).buffers()[1]
        typed = pa.Array.from_buffers(pa.string(), count, [None, _ends(count, items.size), content])
    try:
        typed.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return typed


def _array_of_spans(texts: PackedSpans, nulls: Any = None) -> pa.Array:
    import pyarrow as pa

    count = len(texts)
    spans = pa.Array.from_buffers(pa.string(), 2 * count, [None, pa.py_buffer(texts.spans), pa.py_buffer(texts.data)])
    odd = _odd(count)
    return spans.take(odd if nulls is None else pa.array(odd.to_numpy(), mask=nulls))


def _array_of_fields(dicts: PackedFields) -> pa.Array:
    import pyarrow as pa

    arrays = list[pa.Array]()
    for field in dicts.fields.values():
        items = field.items
        if items is None:
            arrays.append(pa.nulls(len(dicts)))
        elif isinstance(items, PackedSpans):
            arrays.append(_array_of_spans(items, field.nulls))
        elif isinstance(items, PackedFields):
            arrays.append(_array_of_fields(items))
        else:
            arrays.append(pa.array(items, mask=field.nulls, from_pandas=False))
    return pa.StructArray.from_arrays(arrays, list(dicts.fields))


@lru_cache(maxsize=64)
def _ends(count: int, size: int) -> pa.Buffer:
    """Return where texts of one size end, 0 first. O(texts); most blocks of a store have as many."""
    import pyarrow as pa

    return pa.py_buffer(array("i", range(0, count * size + 1, size)) if size else bytes(4 * count + 4))


@lru_cache(maxsize=64)
def _odd(count: int) -> pa.Array:
    """Return the first odd numbers. O(count)."""
    import pyarrow as pa

    return pa.array(range(1, 2 * count, 2), pa.int32())


def _texts(items: list[Any], as_text: Callable[[Any], str]) -> pa.Array:
    import pyarrow as pa

    # a lone surrogate, which is no UTF-8, as an escape
    return pa.array([as_text(item).encode("utf-8", "backslashreplace").decode() for item in items], pa.string())


def _typed(items: list[Any]) -> pa.Array | None:
    """Return items as an array of their type; None if they have several."""

    flat = _flat(items)
    if flat is not None:
        return flat
    # Arrow would take ints among floats, and tuples of one length as lists, for values of one type.
    kinds = set(map(type, items)) - {type(None)}
    if len(kinds) > 1 or tuple in kinds:
        return None
    by_key = _struct(items) if dict in kinds else None
    return _inferred(items) if by_key is None else by_key


def _struct(dicts: list[dict[Any, Any] | None]) -> pa.Array | None:
    """Return dicts, or null, as an array, by key, which takes less time than Arrow's own way. None for keys that are no
    texts, and for values of several types. O(values).
    """
    import pyarrow as pa

    nulls = pa.array([each is None for each in dicts]) if None in dicts else None
    there = [each or {} for each in dicts]
    names = list(dict.fromkeys(chain.from_iterable(there)))
    if set(map(type, names)) != {str}:
        return None
    arrays = list[pa.Array]()
    for name in names:
        typed = _typed(list(map(dict.get, there, repeat(name))))
        if typed is None:
            return None
        arrays.append(typed)
    return pa.StructArray.from_arrays(arrays, names, mask=nulls)


def _flat(items: list[Any]) -> pa.Array | None:
    """Return items as an array if they are of one type, or null, with nothing inside of them; else None."""
    import pyarrow as pa

    kinds = set(map(type, items)) - {type(None)}
    name = _FLAT.get(next(iter(kinds))) if len(kinds) == 1 else None
    if name is None:
        return None
    try:
        return pa.array(items, getattr(pa, name)())  # Arrow need not look for a type
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return None


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
        return all(
            _keeps_texts(list(map(dict.get, records, repeat(field.name))), field.type)
            for field in kind
            if not pa.types.is_primitive(field.type)
        )
    return True


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with the order of fields of another type, and with those that it does not have as nulls; the same
    array where it does not fit. O(fields).
    """
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if array.type == kind or not pa.types.is_struct(kind) or not pa.types.is_struct(array.type):
        return array
    fields = {field.name: array.field(place) for place, field in enumerate(array.type)}
    if not fields.keys() <= {field.name for field in kind}:
        return array
    fitted = [_fitted(fields.get(field.name, pa.nulls(len(array))), field.type) for field in kind]
    return pa.StructArray.from_arrays(fitted, [field.name for field in kind], mask=array.is_null())


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
