"""Column types: which Arrow columns an aggregate can take, the type of its results, and results as Arrow arrays.

A column that an aggregate cannot take is refused when the schema is first seen; a result that does not fit its column
raises an error with the result's key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..aggregation import Aggregator, OfRows, SlidingWindows
from ..stores.keys import shown
from .batch import ROW
from .plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

# the most digits of a decimal of Spark's, and how many more a sum and a mean may have than the values
_DIGITS: Final = 38
_SUM_DIGITS: Final = 10
_MEAN_DIGITS: Final = 4


def check_columns(plan: Plan, schema: pa.Schema) -> None:
    """Raise TypeError, naming aggregate and column, for a column that an aggregate cannot take. O(columns).

    Columns that a `map` or `filter` may change are not checked.
    """
    aggregates = plan.aggregates
    if aggregates is None or plan.pending:
        return
    for name, part in zip(aggregates.names, aggregates.parts, strict=True):
        if isinstance(part, OfRows):
            _check_rows(name, part, schema)
            continue
        if part.name == "count" or (part.column is not None and part.column not in schema.names):
            continue
        # the rows themselves are kept for sliding windows alone
        whole = schema.names if isinstance(plan.windows, SlidingWindows) else []
        for column in whole if part.column is None else [part.column]:
            kind = schema.field(column).type
            expected = _expected(part, kind)
            if expected is not None:
                raise TypeError(
                    f"aggregate {name!r}: column {column!r}: found {kind}, expected {expected} (cast it before)"
                )


def _check_rows(name: str, part: OfRows, schema: pa.Schema) -> None:
    """Raise TypeError for a column of rows that an aggregate cannot choose by, or keep."""
    import pyarrow.types as t

    for column in _chosen(part, schema):
        unknown = _unstorable(schema.field(column).type) if column in schema.names else None
        if unknown is not None:
            raise TypeError(
                f"aggregate {name!r}: column {column!r}: found {unknown}, expected values that can be stored (cast it "
                "before)"
            )
    if part.by in schema.names and t.is_nested(schema.field(part.by).type):
        kind = schema.field(part.by).type
        raise TypeError(f"aggregate {name!r}: column {part.by!r}: found {kind}, expected values that have an order")


def _chosen(part: OfRows, schema: pa.Schema) -> list[str]:
    """Return the columns that an aggregate of rows keeps."""
    columns = part.chosen_columns
    return list(schema.names) if columns is None else [columns] if isinstance(columns, str) else list(columns)


def _expected(part: Aggregator, kind: pa.DataType) -> str | None:
    """Return the expected type of a column, or None if this type is accepted."""
    import pyarrow.types as t

    if t.is_null(kind):
        return None
    if part.name in ("sum", "mean", "variance"):
        if part.name == "mean" and t.is_decimal(kind) and kind.scale + _MEAN_DIGITS > _DIGITS:
            return f"decimals of {_DIGITS - _MEAN_DIGITS} places at most"
        if t.is_decimal(kind) and part.name != "variance":
            return None
        return None if t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) else "numbers"
    unknown = _unstorable(kind)
    if unknown is not None:
        return f"values that can be stored, which {unknown} is not"
    # an array has none either: nulls in it cannot be compared
    if part.name in ("min", "max", "topk") and t.is_nested(kind):
        return "values that have an order"
    return (
        "values that are not nested" if part.name in ("count_distinct", "collect_set") and t.is_nested(kind) else None
    )


def _unstorable(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in this one that no store can hold, or None."""
    import pyarrow.types as t

    if t.is_nested(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return next((unstorable for part in inner if (unstorable := _unstorable(part)) is not None), None)
    plain = (t.is_null, t.is_boolean, t.is_integer, t.is_floating, t.is_string, t.is_large_string, t.is_binary)
    more = (t.is_large_binary, t.is_fixed_size_binary, t.is_date, t.is_timestamp, t.is_decimal, t.is_dictionary)
    return None if any(is_of(kind) for is_of in (*plain, *more)) else kind


def aggregate_type(name: str, part: Aggregator, schema: pa.Schema) -> pa.DataType:
    """Return the type of an aggregate's results. Raises ValueError if the type does not follow from the input."""
    import pyarrow as pa

    kind = schema.field(part.column).type if part.column is not None and part.column in schema.names else None
    if part.name in ("count", "count_distinct"):
        return pa.int64()
    if isinstance(part, OfRows) and {part.by, *_chosen(part, schema)} <= set(schema.names):
        fields = [schema.field(column) for column in _chosen(part, schema) if column != ROW]
        row = fields[0].type if isinstance(part.chosen_columns, str) else pa.struct(fields)
        return pa.list_(row) if part.name == "topk" else row
    if kind is not None and pa.types.is_decimal(kind) and part.name in ("sum", "mean"):
        more, places = (_SUM_DIGITS, 0) if part.name == "sum" else (_MEAN_DIGITS, _MEAN_DIGITS)
        return pa.decimal128(min(_DIGITS, kind.precision + more), kind.scale + places)
    if part.name in ("mean", "variance"):
        return pa.float64()
    if kind is not None:
        if part.name == "sum":
            return pa.int64() if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else pa.float64()
        if part.name in ("min", "max", "first", "last"):
            return kind
        if part.name in ("collect", "collect_set", "topk"):
            return pa.list_(kind)
    raise ValueError(
        f"apply: aggregate {name!r}: the type of {part!r} is not known (give it: apply(..., "
        f"types={{{name!r}: 'bigint'}}))"
    )


def result_array(plan: Plan, column: Any, field: pa.Field, key_of: Callable[[int], Any]) -> pa.Array:
    """Return a column of results as an Arrow array; `key_of` returns the key of the result at a place. O(results).

    Raises OverflowError or ValueError, naming the aggregate, its column and the key, if a result does not fit.
    """
    import pyarrow as pa

    try:
        array = column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
        return array if array.type == field.type else array.cast(field.type)
    except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        place = _first_unfit(column, field.type)
        aggregates = plan.aggregates
        if place is None or aggregates is None or field.name not in aggregates.names:
            raise
        part = aggregates.parts[aggregates.names.index(field.name)]
        of = "" if part.column is None else f" of column {part.column!r}"
        kind = type(error) if isinstance(error, OverflowError) else ValueError
        raise kind(
            f"aggregate {field.name!r}: {part.name}{of}: key {shown(key_of(place))}: found {shown(column[place])}, "
            f"expected a value that fits in {_sql_name(field.type)} (give it a wider type: apply(..., "
            f"types={{{field.name!r}: 'decimal(38,0)'}}))"
        ) from error


def _first_unfit(column: Sequence[Any], kind: pa.DataType) -> int | None:
    import pyarrow as pa

    for place, value in enumerate(column):
        try:
            pa.array([value], type=kind)
        except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError):
            return place
    return None


def _sql_name(kind: pa.DataType) -> str:
    return "bigint, 64 bits" if str(kind) == "int64" else str(kind)
