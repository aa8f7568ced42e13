"""Frames: the rows of a shard as pandas frames, key by key, and frames as rows, as Spark's pandas functions have them.

    table in order of keys ── one conversion ──▶ one frame ── slices ──▶ the frames of each key
    the frames of all keys ── column by column, where the types agree ──▶ table

The surprise: the type of a pandas column can depend on nulls (whole numbers with a null are floats), so a column of
these types with nulls is converted anew for each slice.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from .session import size_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_DECIMALS: Final = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_EXTENSION: Final = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
_BY_NAME: Final = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_SAFELY: Final = "spark.sql.execution.pandas.convertToArrowArraySafely"
_ZONE: Final = "spark.sql.session.timeZone"

_UNSAFELY: Final = (
    " It can be caused by overflows or other unsafe conversions warned by Arrow. Arrow safe type check can be disabled "
    f"by using SQL config `{_SAFELY}`."
)


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """The settings of a session by which Spark makes frames, and reads them."""

    zone: str = "UTC"
    # rows of a frame at most
    rows: int = 10_000
    # whole numbers are Int64 instead of int64 or float64
    extension: bool = False
    # columns of frames are the output's by name, and not by place
    by_name: bool = True
    # a number that its column cannot hold is an error (the default since Spark 4.1)
    safely: bool = True
    # bytes of a frame of transformWithStateInPandas, which ends with the row that reaches them
    bytes: int = 2**31 - 1
    # whole numbers may be in a column of decimals
    decimals: bool = False

    @classmethod
    def of(cls, session: SparkSession) -> FrameSettings:
        """Return the settings of a session."""
        from pyspark.errors import PySparkException

        def setting(name: str, otherwise: str) -> str:
            # without a default, because the session's is that of its Spark, and the one that is given here would hold
            try:
                return session.conf.get(name) or otherwise
            except PySparkException:  # this Spark does not know it
                return otherwise

        def on(name: str, otherwise: str) -> bool:
            return setting(name, otherwise).lower() == "true"

        rows, size = int(setting(_RECORDS, "10000")), size_of(setting(_BYTES, ""), "b")
        return cls(
            setting(_ZONE, "UTC"),
            rows if rows > 0 else 1 << 31,
            on(_EXTENSION, "false"),
            on(_BY_NAME, "true"),
            on(_SAFELY, "false"),
            2**31 - 1 if size is None else size,
            on(_DECIMALS, "false"),
        )


class FrameReader:
    """The rows of one shard in one batch as frames.

    `schema` is the StructType of the table. `widened`: small numbers come as int64 and float64, as Spark's
    transformWithStateInPandas has them.
    """

    def __init__(self, table: pa.Table, schema: Any, settings: FrameSettings, *, widened: bool = False) -> None:
        import pandas as pd

        self._table = table
        self._settings = settings
        self._rows = settings.rows
        if widened and settings.bytes < 2**31 - 1 and table.nbytes:
            # by the average of a row, as Spark does
            self._rows = max(1, min(self._rows, ceil(settings.bytes * table.num_rows / table.nbytes)))
        # Spark makes these frames of named tuples: a name that is no word is that of its place, as `_1`
        names = _words(table.column_names) if widened else table.column_names
        self._names = dict(zip(table.column_names, names, strict=True))
        self._types = [schema[name].dataType for name in table.column_names]
        self._widened = widened
        # the columns whose type in pandas depends on the rows of a slice
        self._mixed = [
            (name, place)
            for place, name in enumerate(names)
            if _by_nulls(table.schema.types[place], settings.extension and not widened)
            and _has_nulls(table.column(place))
        ]
        self._whole = pd.DataFrame({name: self._series(place, table.column(place)) for place, name in enumerate(names)})
        self._cut = _cutter(self._whole)

    def _series(self, place: int, column: Any) -> Any:
        """Return a column, or a part of it, as a Series of the type that Spark gives it."""
        import pandas as pd
        import pyarrow as pa
        from pyspark.sql.pandas.types import _create_converter_to_pandas

        kind = column.type
        if self._settings.extension and pa.types.is_integer(kind):
            whole = column.to_pandas(types_mapper={kind: pd.api.types.pandas_dtype(f"Int{kind.bit_width}")}.get)
            if not self._widened:
                return whole
            # Spark makes these frames of rows: numpy's numbers, and objects beside a null
            return pd.Series(list(whole), dtype=object) if column.null_count else whole.astype(f"int{kind.bit_width}")
        convert: Callable[[Any], Any] = _create_converter_to_pandas(
            self._types[place],
            nullable=True,
            timezone=self._settings.zone,
            struct_in_pandas="dict",
            error_on_duplicated_field_names=False,
        )
        # whole numbers inside of structs, arrays and maps stay whole beside nulls
        whole = {"integer_object_nulls": pa.types.is_nested(kind)}
        series = convert(column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True, **whole))
        if self._widened and series.dtype.kind in "if":
            series = series.astype("int64" if series.dtype.kind == "i" else "float64")
        return series

    def slice(self, start: int, end: int) -> Any:
        """Return the frame of the rows `start` to `end`, with an index from 0; it may be changed. O(rows)."""
        frame = self._cut(start, end)
        if self._mixed:
            frame = frame.copy()
            for name, place in self._mixed:
                frame[name] = self._series(place, self._table.column(place).slice(start, end - start)).array
        return frame

    def empty(self) -> Any:
        """Return a frame of all columns without a row or a type, as a group has it whose time is out."""
        import pandas as pd

        return pd.DataFrame(columns=self._table.column_names)

    def chunks(self, start: int, end: int) -> Iterator[Any]:
        """Yield the rows `start` to `end` in frames of at most as many rows as Spark's, each made when asked for."""
        rows = self._rows
        for first in range(start, end, rows):
            yield self.slice(first, min(first + rows, end))

    def values(self, names: Sequence[str], places: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the values of columns at some places as a frame of that row has them. O(places)."""
        mixed = dict(self._mixed)
        columns: list[list[Any]] = []
        for name in map(self._names.__getitem__, names):
            if name in mixed:
                column = self._table.column(mixed[name])
                columns.append([self._series(mixed[name], column.slice(place, 1)).iloc[0] for place in places])
            else:
                columns.append(list(self._whole[name].take(list(places)).array))
        return list(zip(*columns, strict=True))


def _words(names: Sequence[str]) -> list[str]:
    """Return names as the fields of a named tuple have them."""
    named: Any = namedtuple  # type checkers want a list that they can read
    return list(named("Names", names, rename=True)._fields)


def _cutter(frame: Any) -> Callable[[int, int], Any]:
    """Return the function that cuts the rows `start` to `end` out of a frame, as a frame with an index from 0.

    As `frame.iloc[start:end]` with another index, but in a quarter of the time, by pandas' blocks (not public). A
    change of what is cut out reaches no other rows, and pandas does not warn of it.
    """
    import pandas as pd

    whole = frame._mgr
    columns, manager = whole.axes[0], type(whole)
    # where the blocks have each column; without it every frame that is cut out finds that for itself
    numbers, places = whole.blknos, whole.blklocs
    assert len(numbers) == len(columns)
    blocks = [(type(block), _cut_values(block.values), block.mgr_locs) for block in whole.blocks]

    def slice_of(start: int, end: int) -> Any:
        rows = slice(start, end)
        # a view, because the name of the columns can be changed
        axes = [columns._view(), pd.RangeIndex._simple_new(range(end - start))]
        part = manager([make(cut(rows), locs, 2) for make, cut, locs in blocks], axes, False)
        # copies, because pandas changes both when the frame gets a column of another type
        part._blknos, part._blklocs = numbers.copy(), places.copy()
        return pd.DataFrame._from_mgr(part, axes)

    return slice_of


def _cut_values(values: Any) -> Callable[[slice], Any]:
    """Return the function that cuts rows out of the values of a block."""
    import pandas as pd

    if isinstance(values, pd.arrays.DatetimeArray):
        moments, kind = values._ndarray, values.dtype
        return lambda rows: pd.arrays.DatetimeArray._simple_new(moments[..., rows], dtype=kind)
    return lambda rows: values[..., rows]


def _by_nulls(kind: Any, extension: bool) -> bool:
    """Whether the type in pandas of a column, or of values inside of it, depends on nulls."""
    import pyarrow as pa

    return pa.types.is_nested(kind) or pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not extension)


def _has_nulls(column: Any) -> bool:
    """Whether a column has nulls, at any depth. O(columns inside)."""
    import pyarrow as pa

    if column.null_count:
        return True
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_map(column.type):
        return any(_has_nulls(part) for chunk in chunks for part in (chunk.keys, chunk.items))
    if pa.types.is_struct(column.type):
        return any(_has_nulls(part) for chunk in chunks for part in chunk.flatten())
    return pa.types.is_list(column.type) and any(_has_nulls(chunk.flatten()) for chunk in chunks)


class FrameTable:
    """The frames that a function gives, in turn, as a table of the output.

    The values of a frame are copied when the frame comes, as Spark does: a function may change a frame and give it
    again, and the next frame lies where the last one was freed, which is near. Lists, dicts and the like are copied to
    their depth, because they can be changed, too. `schema` is the output as a StructType. `joined`: Spark joins the
    frames with one that has the names of the output and no types (applyInPandasWithState), so that a column that a
    frame lacks is null, one of nothing but NaN or NaT has no type, and whole numbers and flags are objects.
    """

    def __init__(self, schema: Any, output: pa.Schema, settings: FrameSettings, *, joined: bool = False) -> None:
        from pandas import DataFrame
        from pyarrow.types import is_nested

        self._schema = schema
        self._kind = DataFrame
        self._nested = [place for place, kind in enumerate(output.types) if is_nested(kind)]
        self._output = output
        self._settings = settings
        self._joined = joined
        self._foreign = [_foreign(kind) if joined else "" for kind in output.types]
        self._objects = [_objects(kind) if joined else "" for kind in output.types]
        self._runs: list[_JoinedFrames] = []
        # where frames with some columns have those of the output
        self._places: dict[tuple[Any, ...], Sequence[int | None]] = {}

    def extend(self, frames: Iterable[Any]) -> None:
        """Take frames. O(values), and a few calls for each frame.

        Raises PySparkValueError for what is not a frame, and KeyError or IndexError for a frame without a column of the
        output.
        """
        for frame in frames:
            if not isinstance(frame, self._kind):
                from pyspark.errors import PySparkValueError

                given = type(frame).__name__
                door = "; transform_with_state takes Rows" if given == "Row" else ""
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the specified "
                    f"return type is StructType. (found {given}{door})"
                )
            manager = frame._mgr
            columns, index = manager.axes
            if not (rows := len(index)) and self._joined:
                continue
            names, blocks = columns.tolist(), manager.blocks
            if self._runs and self._runs[-1].names == names and self._runs[-1].add(blocks, rows):
                continue
            if (places := self._places.get(tuple(names))) is None:
                reading = _places_joined if self._joined else _places
                places = reading(names, self._schema.names, self._settings.by_name)
                self._places[tuple(names)] = places
            if rows:
                self._runs.append(_JoinedFrames(names, blocks, rows, places, self._nested))

    def table(self) -> pa.Table:
        """Return the frames so far as a table. O(rows).

        Raises what Spark raises for the same: TypeError and ValueError for values of other types.
        """
        import numpy as np
        import pandas as pd
        import pyarrow as pa

        if not self._runs:
            return self._output.empty_table()
        arrays = []
        several = len(self._runs) > 1 or len(self._runs[0].ends) > 1
        for place, field in enumerate(self._schema.fields):
            given = [run.column(place) for run in self._runs]
            foreign, objects = self._foreign[place], self._objects[place]
            typed = partial(_with_its_type, foreign=foreign, objects=objects)
            if any(column.dtype.kind in foreign + objects for column in given):
                given = [typed(column) for run in self._runs for column in run.columns(place)]
            kind = self._output.field(place).type
            chunks: list[Any] = []
            joined = None
            if len(given) == 1:
                joined = given[0]
            elif len({column.dtype for column in given}) == 1 and isinstance(given[0].dtype, np.dtype):
                joined = np.concatenate([np.asarray(column) for column in given])
            if joined is not None:
                # of its type, because pandas makes datetime64 of objects: in the zone of the session, and Spark in UTC
                series = pd.Series(joined, dtype=joined.dtype)
                # Arrow takes numbers, or texts of numbers, but not both in one column; frames may differ in that.
                with suppress(*((TypeError, ValueError) if several else ())):
                    chunks = [_array(series, field, kind, self._settings)]
            if not chunks:
                given = [typed(column) for run in self._runs for column in run.columns(place)]
                chunks = [_array(pd.Series(each, dtype=each.dtype), field, kind, self._settings) for each in given]
            arrays.append(pa.chunked_array(chunks, kind))
        return pa.Table.from_arrays(arrays, schema=self._output)


class _JoinedFrames:
    """Frames in turn whose columns lie alike in pandas' blocks (not public): the values of each block, joined.

    A block has columns of one type as rows of an array. A Series of each column takes longer than all else, and so does
    the memory of an array for each frame. A frame with a block of another class (`category`, `Int64`) is a run alone.
    """

    def __init__(
        self, names: list[Any], blocks: Sequence[Any], rows: int, places: Sequence[int | None], nested: Sequence[int]
    ) -> None:
        import numpy as np

        self.names = names
        # behind the rows of each frame
        self.ends = [rows]
        self._room = rows
        self._plain = np.ndarray
        self._layout = [(type(block.values), block.values.dtype, _locations(block)) for block in blocks]
        self._joins = all(_joins(block.values) for block in blocks)
        given = [getattr(block.values, "_ndarray", block.values) if self._joins else block.values for block in blocks]
        self._values = [values.copy() for values in given]
        lying = {
            column: (number, row) for number, block in enumerate(blocks) for row, column in enumerate(block.mgr_locs)
        }
        # the block, and the row in it, of the columns of the output; None for a column of nulls
        self._places = [None if place is None else lying[place] for place in places]
        deep = [self._places[place] for place in nested if self.column(place).dtype == object]
        self._nested = [place for place in deep if place is not None]
        self._copy_to_their_depth(0, rows)

    def add(self, blocks: Sequence[Any], rows: int) -> bool:
        """Take a frame; False, without a change, if its columns lie in another way."""
        start = self.ends[-1]
        end = start + rows
        if not self._joins or len(blocks) != len(self._layout):
            return False
        if end > self._room:
            self._grow(start, 2 * end)
        for block, whole, (kind, dtype, locations) in zip(blocks, self._values, self._layout, strict=True):
            values = block.values
            if type(values) is not kind or values.dtype != dtype or _locations(block) != locations:
                return False
            # behind the rows so far, and so no change yet
            whole[:, start:end] = values if kind is self._plain else values._ndarray
        self.ends.append(end)
        if self._nested:
            self._copy_to_their_depth(start, end)
        return True

    def _grow(self, rows: int, room: int) -> None:
        import numpy as np

        for number, values in enumerate(self._values):
            self._values[number] = np.empty((len(values), room), values.dtype)
            self._values[number][:, :rows] = values[:, :rows]
        self._room = room

    def _copy_to_their_depth(self, start: int, end: int) -> None:
        for number, row in self._nested:
            part = self._values[number][row, start:end]
            part[:] = deepcopy(part)

    def column(self, place: int) -> Any:
        """Return the values of a column of the output, as an array."""
        import numpy as np

        lying = self._places[place]
        if lying is None:
            return np.full(self.ends[-1], None, object)
        number, row = lying
        values = self._values[number]
        if not self._joins:
            return values if values.ndim == 1 else values[row]
        kind, dtype, _ = self._layout[number]
        column = values[row, : self.ends[-1]]
        return kind._simple_new(column, dtype=dtype) if hasattr(kind, "_simple_new") else column

    def columns(self, place: int) -> list[Any]:
        """Return the values of a column of the output, as an array for each frame."""
        column = self.column(place)
        return [column[start:end] for start, end in pairwise([0, *self.ends])]


def _locations(block: Any) -> Any:
    """Return which columns a block has, as what can be compared."""
    locations = block.mgr_locs.indexer
    return locations if type(locations) is slice else locations.tolist()


def _joins(values: Any) -> bool:
    """Whether the values of blocks are numpy's, or moments or durations, which pandas keeps in an array of numpy's."""
    import numpy as np
    import pandas as pd

    return isinstance(values, np.ndarray | pd.arrays.DatetimeArray | pd.arrays.TimedeltaArray)


def _foreign(kind: Any) -> str:
    """Return the kinds of numpy's types, of floats and of times, whose nulls Arrow does not take in a column."""
    from pyarrow.types import is_decimal, is_floating, is_integer, is_nested, is_temporal

    if is_nested(kind):
        return ""
    if is_temporal(kind):
        return "f"
    return "M" if is_decimal(kind) or is_floating(kind) or is_integer(kind) else "fM"


def _objects(kind: Any) -> str:
    """Return the kinds of numpy's types, of flags and of whole numbers, whose values are objects for a column."""
    from pyarrow.types import is_boolean, is_integer

    return ("u" if is_boolean(kind) else "ub") + ("" if is_integer(kind) else "i")


def _with_its_type(column: Any, foreign: str, objects: str) -> Any:
    """Return a column of a frame as Spark joins it: as objects, if it is of `objects`, or of `foreign` and null."""
    import numpy as np
    import pandas as pd

    kind = column.dtype.kind
    changes = kind in foreign and pd.isna(column).all()
    changes |= kind in objects and isinstance(column.dtype, np.dtype)
    return column.astype(object) if changes else column


def _places(given: Sequence[Any], names: Sequence[str], by_name: bool) -> Sequence[int | None]:
    """Return where a frame with some columns has those of the output: by name, or by place where no column has a name.
    A frame without a column has nulls.

    Raises the errors that pandas raises for a column that is missing: KeyError, and IndexError by place.
    """
    import pandas as pd

    if not given:
        return [None] * len(names)
    if not by_name or not any(isinstance(name, str) for name in given):
        if len(given) < len(names):
            raise IndexError("single positional indexer is out-of-bounds")
        return range(len(names))
    if not {*names} <= {*given}:
        pd.DataFrame(columns=given)[list(names)]
    return [given.index(name) for name in names]


def _places_joined(given: Sequence[Any], names: Sequence[str], by_name: bool) -> Sequence[int | None]:
    """Return the same for a frame that is joined with one that has all columns of the output."""
    if by_name:
        return [given.index(name) if name in given else None for name in names]
    return [place if place < len(given) else None for place in range(len(names))]


def _array(series: Any, field: Any, kind: Any, settings: FrameSettings) -> Any:
    """Return a column as an array of a type. Raises Spark's errors, in its words, for values that the type has not."""
    import pandas as pd
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError, PySparkValueError
    from pyspark.sql.pandas.types import _create_converter_from_pandas

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    convert: Callable[[Any], Any] = _create_converter_from_pandas(
        field.dataType, timezone=settings.zone, error_on_duplicated_field_names=False
    )
    series = convert(series)
    if settings.decimals and pa.types.is_decimal(kind) and pd.api.types.is_integer_dtype(series):
        series = series.astype(object).map(lambda number: Decimal(int(number)), na_action="ignore")
    mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
    try:
        try:
            array = pa.Array.from_pandas(series, mask=mask, type=kind, safe=settings.safely)
        except pa.ArrowInvalid:
            array = pa.Array.from_pandas(series, mask=mask)
        # arrays of Arrow in older pandas come as they are, whatever the type that was asked for
        return array if array.type == kind else array.cast(kind, safe=settings.safely)
    except TypeError as error:
        raise PySparkTypeError(
            f"Cannot convert the output value of the column '{field.name}' with type '{series.dtype}' to the specified "
            f"return type of the column: '{kind}'. Please check if the data types match and try again."
        ) from error
    except ValueError as error:
        raise PySparkValueError(
            f"Failed to convert the value of the column '{field.name}' with type '{series.dtype}' to Arrow type "
            f"'{kind}'.{_UNSAFELY if settings.safely else ''}"
        ) from error
