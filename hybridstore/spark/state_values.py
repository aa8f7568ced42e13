"""State values: what a state variable of `transform_with_state` stores for a value, and what it returns, by its schema.

    value ─ put ─▶ stored: plain tuples, lists, dicts, moments in UTC ─ read ─▶ value in Spark's form: Rows, local times

Spark converts by the schema (`EvaluatePython.makeFromJava`), and so does this module: float32 is rounded, integers
wrap, a value of another type becomes null, every value becomes text for a string. The surprise: what is read is a copy
whenever it can be changed, because a processor may change what it has read without putting it back.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import cache
from pickle import HIGHEST_PROTOCOL
from time import mktime
from types import NoneType
from typing import Any, Final

from changelog.codec import pack

from ..topology.output_rows import Column, ColumnKind, columns_of_schema, quoted
from .state_refusals import refusal

Convert = Callable[[Any], Any]
_FLOAT32: Final = struct.Struct("<f")
# The Python types that need no conversion into a column of this kind, beside the bounds of integers.
_EXACT: Final[dict[str, type]] = {"string": str, "double": float, "boolean": bool, "binary": bytes}
# The Python types that Spark reads, whatever the column.
_KNOWN: Final = frozenset((
    bool, int, float, complex, Decimal, str, bytes, bytearray, date, datetime, time, timedelta,
    list, tuple, set, frozenset, array, NoneType,
))  # fmt: skip
# The types whose values pyspark converts.
_CONVERTED: Final = frozenset(("date", "timestamp", "timestamp_ntz", "time", "interval", "struct"))
_MICROSECOND: Final = timedelta(microseconds=1)
# The other types of Spark's that a column of state may have.
_OTHER: Final = frozenset(("time", "interval", "variant", "void", "geometry", "geography"))
# Types of which no two values are equal and packed in other bytes.
_UNLIKE: Final = frozenset((int, str, bytes, bool))
# So many packed values are kept, some 200 bytes each.
_MOST_PACKS: Final = 4096
# Avro's promotions: a stored kind, and the kinds that hold each of its values.
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "float", "double"),
    "bigint": ("float", "double"),
    "float": ("double",),
    "string": ("binary",),
    "binary": ("string",),
}


def schema_text(schema: Any, variable: str = "state") -> str:
    """Return the schema of a state variable in one form, given as DDL text or as a StructType: names and types.

    Raises Spark's error for text that is no schema, and for columns that may not be null.
    """
    try:
        columns = columns_of_schema(schema, f"variable {variable!r}") or []
    except (ValueError, TypeError) as error:
        raise refusal(f"Error parsing string schema: {error}") from error
    for name in _unknown(columns) if isinstance(schema, str) else ():
        raise refusal(
            f"Error parsing string schema: variable {variable!r}: found type {name!r} in {schema!r}, expected Spark's "
            "types, such as 'k string, n bigint'"
        )
    if not all(column.nullable for column in columns):
        raise refusal(
            f"Error initializing state: [TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE] found {schema!r}, but all "
            f"fields in the schema for column family {variable} must be nullable"
        )
    return ", ".join(f"{quoted(column.name)} {column.kind.name}" for column in columns)


def _unknown(columns: Sequence[Column]) -> Iterator[str]:
    """Yield the names of types that are none of Spark's, which a misspelt schema has."""
    for _, kind, _ in columns:
        yield from _unknown(kind.parts)
        if kind.name.isidentifier() and kind.quick == {NoneType} and kind.bounds is None and kind.name not in _OTHER:
            yield kind.name


class StateValues:
    """Converts the tuples of one schema: `put` into their stored form, `read` into the form for the user."""

    def __init__(self, schema: str) -> None:
        self.columns = columns_of_schema(schema) or []
        self._names = [column.name for column in self.columns]
        kinds = [column.kind for column in self.columns]
        # A tuple of exactly these types, with integers in these bounds, is stored as it is.
        self._exact = tuple(int if kind.bounds else _EXACT.get(kind.name, object) for kind in kinds)
        self._bounds = [(place, *kind.bounds) for place, kind in enumerate(kinds) if kind.bounds is not None]
        self._put = [_putting(kind) for kind in kinds]
        self._read = [_reading(kind) for kind in kinds]
        self._same = all(convert is None for convert in self._read)
        self._cut = any(map(_converts, self.columns))
        # whether values that are stored as they are differ wherever they are packed in other bytes (0.0 equals -0.0)
        self._unlike = _UNLIKE.issuperset(self._exact)
        # values that were packed before: many groups have entries of the same few keys
        self._packs: dict[tuple[Any, ...], bytes] = {}

    def put(self, value: Any) -> tuple[Any, ...]:
        """Return a value (a tuple, a Row, a list) in its stored form. O(value).

        Raises Spark's error if the number of fields differs or a decimal does not fit.
        """
        if type(value) is tuple and tuple(map(type, value)) == self._exact:
            for place, low, high in self._bounds:
                if not low <= value[place] <= high:
                    break
            else:
                return value
        if value is None:
            raise TypeError(f"state value: found None, expected a tuple of {len(self._put)} (clear() removes a value)")
        parts = tuple(value)
        return _each(self._put, parts, cut=self._cut)

    def packed(self, value: Any) -> tuple[bytes, tuple[Any, ...]]:
        """Return a value packed, and in its stored form. Raises as `put`. O(value)."""
        stored = self.put(value)
        if stored is not value or not self._unlike:  # True and 1 are one key of a dict
            return pack(list(stored)), stored
        packed = self._packs.get(stored)
        if packed is None:
            if len(self._packs) >= _MOST_PACKS:
                self._packs.clear()
            packed = self._packs[stored] = pack(list(stored))
        return packed, stored

    def read(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a stored value in the form for the user: the same object if nobody can change it. O(value)."""
        if self._same:
            return stored
        return tuple([
            part if part is None or read is None else read(part)
            for read, part in zip(self._read, stored, strict=True)
        ])  # fmt: skip

    def row(self, stored: tuple[Any, ...]) -> Any:
        """Return a stored value as a Row with the names of the columns. O(value)."""
        return row_of(self._names.copy(), self.read(stored))


# --- into the state ---------------------------------------------------------------------------------------------------


def _converts(column: Column) -> bool:
    """Whether pyspark converts values of a column's type before they are pickled (`DataType.needConversion`)."""
    return _word(column.kind) in _CONVERTED or any(map(_converts, column.kind.parts))


def _word(kind: ColumnKind) -> str:
    """Return the first word of a kind's name: `decimal` of `decimal(5,2)`, `interval` of `interval day to second`."""
    return re.split("[<( ]", kind.name, maxsplit=1)[0]


def _each(puts: Sequence[Convert], parts: Sequence[Any], *, cut: bool) -> tuple[Any, ...]:
    """Return the fields of a row or struct converted. `cut`: more values than fields are left out, as pyspark does it
    where it converts a field. Raises Spark's error for another number.
    """
    if cut:
        parts = parts[: len(puts)]
    if len(parts) != len(puts):
        raise refusal(
            "Error updating value state: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of "
            f"values required by the schema. {len(puts)} fields are required while {len(parts)} values are provided."
        )
    return tuple([None if part is None else put(part) for put, part in zip(puts, parts, strict=True)])


def _putting(kind: ColumnKind) -> Convert:
    """Return the function that converts a value, which is not None, for a column of a kind."""
    word = _word(kind)
    if word in ("array", "map", "struct"):
        return _PUT_NESTED[word](kind.parts)
    if kind.bounds is not None:
        return _whole(*kind.bounds)
    if word == "decimal":
        precision, scale = map(int, kind.name[len("decimal(") : -1].split(","))
        return lambda value: _decimal(_plain(value), precision, scale)
    return _PUT.get(word, lambda value: value)


def _plain(value: Any) -> Any:
    """Return a number, text or time of numpy or pandas as Python's; an array stays as it is."""
    if hasattr(value, "dtype"):
        import numpy as np

        return value.tolist() if isinstance(value, np.generic) else value
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _null(value: Any) -> Any:
    """Return the null that a value of another type than its column's becomes. Raises Spark's error for an object that
    its unpickler cannot make, so that the value is not silently lost.
    """
    value = _plain(value)
    kind = type(value)
    if kind is Decimal:
        _java_has(value)
    # arrays and frames of pandas, which hold arrays of numpy
    arrays = kind.__module__.startswith("pandas.core.")
    if kind not in _KNOWN and not isinstance(value, dict | type) and (arrays or not _is_made(value)):
        raise _unreadable(kind)
    return None


def _unreadable(kind: type) -> Exception:
    return refusal(
        f"Error updating value state: found {kind.__name__}, which Spark cannot read, expected a value of the column's "
        "type"
    )


def _java_has(value: Decimal) -> None:
    """Raise Spark's error for a decimal without a value in Java."""
    if value.is_infinite() or value.is_snan():
        raise _unreadable(Decimal)


def _is_made(value: Any) -> bool:
    """Whether Spark's unpickler makes an object: without arguments, and without elements that are added to it."""
    try:
        reduced = value.__reduce_ex__(HIGHEST_PROTOCOL)
    except TypeError:  # as of functions, locks and generators
        return False
    return isinstance(reduced, str) or (
        len(reduced[1]) == (reduced[0] is __newobj__) and all(each is None for each in reduced[3:4])
    )


def _whole(low: int, high: int) -> Convert:
    span = high - low + 1

    def convert(value: Any) -> Any:
        value = _plain(value)
        if type(value) is not int or not -(2**63) <= value < 2**63:
            return _null(value)
        return value if low <= value <= high else (value - low) % span + low

    return convert


def _float(value: Any) -> float | None:
    value = _double(value)
    if value is None:
        return None
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _double(value: Any) -> float | None:
    value = _plain(value)
    if type(value) is Decimal and value.is_qnan():
        return float("nan")
    return value if type(value) is float else _null(value)


def _boolean(value: Any) -> bool | None:
    value = _plain(value)
    return value if type(value) is bool else _null(value)


def _binary(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else _null(value)


def _text(value: Any) -> str:
    """Return a value as Java's `toString` shows it."""
    value = _plain(value)
    if value is None:
        return "null"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}={_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Decimal):
        _java_has(value)
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value)


def _float_text(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    digits = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(digits.exponent, int)
    text = "".join(map(str, digits.digits))
    sign = "-" if digits.sign else ""
    return f"{sign}{text[0]}.{text[1:] or '0'}E{digits.exponent + len(text) - 1}"


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if type(value) is not Decimal:
        null: None = _null(value)
        return null
    if not value.is_finite():
        _java_has(value)
        return None
    with localcontext() as context:
        context.prec = max(50, len(value.as_tuple().digits) + abs(value.adjusted()) + scale + 2)
        rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    if rounded and rounded.adjusted() >= precision - scale:
        raise refusal(
            f"[NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION] The {rounded} rounded half up from {value} cannot be "
            f"represented as Decimal({precision}, {scale})."
        )
    return rounded or abs(rounded)  # Java's has no negative zero


def _date(value: Any) -> date:
    value = _plain(value)
    if not isinstance(value, date) or value != value:  # NaT of pandas is a date, and differs from itself
        raise AttributeError(f"state value: found {type(value).__name__} {value!r}, expected a date")
    return value.date() if isinstance(value, datetime) else value


def _moment(value: Any) -> datetime:
    """Return a datetime as a moment in UTC. One without a zone is in the process's local time."""
    moment = _clock(value)
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    seconds = int(mktime(moment.timetuple()))  # the system chooses between two equal local times, as for Spark
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=moment.microsecond)


def _clock(value: Any) -> datetime:
    moment: Any = _plain(value)
    if isinstance(moment, datetime) and moment == moment:
        return moment
    raise AttributeError(f"state value: found {type(value).__name__} {value!r}, expected a datetime")


def _interval(value: Any) -> int:
    """Return an interval in microseconds."""
    value = _plain(value)
    if not isinstance(value, timedelta):
        raise AttributeError(f"state value: found {type(value).__name__} {value!r}, expected a timedelta")
    return value // _MICROSECOND


def _time_of_day(value: Any) -> int:
    """Return a time of day in microseconds."""
    if not isinstance(value, time):
        raise AttributeError(f"state value: found {type(value).__name__} {value!r}, expected a time")
    return (datetime.combine(date.min, value.replace(tzinfo=None)) - datetime.min) // _MICROSECOND


def _array(parts: Sequence[Column]) -> Convert:
    put = _putting(parts[0].kind)

    def convert(value: Any) -> Any:
        parts = value.tolist() if hasattr(value, "dtype") else value  # an array of numpy or pandas, too
        if isinstance(parts, bytes | bytearray):
            parts = array("b", parts)  # with a sign, as Java's bytes
        if not isinstance(parts, list | tuple | array):
            return _null(value)
        return [None if part is None else put(part) for part in parts]

    return convert


def _map(parts: Sequence[Column]) -> Convert:
    put_key, put = (_putting(part.kind) for part in parts)

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return _null(value)
        entries = {
            None if key is None else put_key(key): None if part is None else put(part) for key, part in value.items()
        }
        if None in entries:
            raise refusal("[NULL_MAP_KEY] Cannot use null as map key.")
        return entries

    return convert


def _struct(columns: Sequence[Column]) -> Convert:
    names = [column.name for column in columns]
    puts = [_putting(column.kind) for column in columns]
    cut = any(map(_converts, columns))

    def convert(value: Any) -> tuple[Any, ...]:
        value = _plain(value)
        parts: Any
        if isinstance(value, Mapping):
            parts = [value.get(name) for name in names]
        elif isinstance(value, tuple | list):
            parts = value
            if getattr(value, "__from_dict__", False):
                parts = [getattr(value, name) for name in names]
        elif hasattr(value, "__dict__"):
            parts = [vars(value).get(name) for name in names]
        else:
            raise _unexpected(value)
        return _each(puts, parts, cut=cut)

    return convert


def _unexpected(value: Any) -> Exception:
    from pyspark.errors import PySparkValueError

    return PySparkValueError(errorClass="UNEXPECTED_TUPLE_WITH_STRUCT", messageParameters={"tuple": str(value)})


_PUT: Final[dict[str, Convert]] = {
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "binary": _binary,
    "string": _text,
    "date": _date,
    "timestamp": _moment,
    "timestamp_ntz": lambda value: _clock(value).replace(tzinfo=None),
    "time": _time_of_day,
    "interval": _interval,
    "void": lambda value: None,
}
_PUT_NESTED: Final[dict[str, Callable[[Sequence[Column]], Convert]]] = {"array": _array, "map": _map, "struct": _struct}


# --- out of the state -------------------------------------------------------------------------------------------------


def _reading(kind: ColumnKind) -> Convert | None:
    """Return the function that converts a stored value, which is not None, for the user; None if it stays as it is."""
    word = _word(kind)
    if word in _READ:
        return _READ[word]
    if word in ("array", "map", "struct"):
        reads = [_reading(part.kind) for part in kind.parts]
        if word == "array":
            return _list_of(reads[0])
        if word == "map":
            return _dict_of(*reads)
        names = [part.name for part in kind.parts]
        return lambda value: row_of(names, [_applied(read, part) for read, part in zip(reads, value, strict=True)])
    return None


_READ: Final[dict[str, Convert]] = {
    "timestamp": lambda stored: stored.astimezone().replace(tzinfo=None),
    "time": lambda stored: (datetime.min + stored * _MICROSECOND).time(),
    "interval": lambda stored: stored * _MICROSECOND,
}


def _applied(read: Convert | None, part: Any) -> Any:
    return part if read is None or part is None else read(part)


def _list_of(read: Convert | None) -> Convert:
    if read is None:
        return list
    return lambda value: [_applied(read, part) for part in value]


def _dict_of(read_key: Convert | None, read: Convert | None) -> Convert:
    if read_key is None and read is None:
        return dict
    return lambda value: {_applied(read_key, key): _applied(read, part) for key, part in value.items()}


@cache
def _row_type() -> type:
    from pyspark.sql import Row

    return Row


def row_of(names: list[str], parts: Sequence[Any]) -> Any:
    """Return a Row of Spark's with these names. O(fields)."""
    row: Any = tuple.__new__(_row_type(), parts)
    row.__fields__ = names
    return row


# --- from one schema to another ---------------------------------------------------------------------------------------


def evolution(old: str, new: str) -> Convert | None:
    """Return the function from stored values of one schema to stored values of another, by the rules of Avro as Spark
    applies them: fields are matched by name; a new field is null, an old one is left out; integers and floats widen;
    text and bytes convert. None if the schemas do not allow that.
    """
    return _between(columns_of_schema(old) or [], columns_of_schema(new) or [])


def _between(old: Sequence[Column], new: Sequence[Column]) -> Convert | None:
    places = {column.name: place for place, column in enumerate(old)}
    steps: list[tuple[int | None, Convert | None]] = []
    for column in new:
        place = places.get(column.name)
        if place is None:
            steps.append((None, None))
            continue
        step = _widened(old[place].kind, column.kind)
        if step is None:
            return None
        steps.append((place, step))

    def convert(value: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([None if place is None else _applied(step, value[place]) for place, step in steps])

    return convert


def _widened(old: ColumnKind, new: ColumnKind) -> Convert | None:
    """Return the function between two kinds of one column; None if none exists."""
    if old.name == new.name:
        return lambda value: value
    if new.name in _WIDER.get(old.name, ()):
        if new.name in ("float", "double"):
            return (lambda value: _float(float(value))) if new.name == "float" else float
        if old.name == "string":
            return lambda value: value.encode()
        return (lambda value: value.decode(errors="replace")) if new.name == "string" else lambda value: value
    word, other = _word(old), _word(new)
    if word != other or not old.parts:
        return None
    if word == "struct":
        return _between(old.parts, new.parts)
    steps = [_widened(*kinds) for kinds in zip([p.kind for p in old.parts], [p.kind for p in new.parts], strict=True)]
    if any(step is None for step in steps):
        return None
    if word == "array":
        return _list_of(steps[0])
    return _dict_of(*steps)
