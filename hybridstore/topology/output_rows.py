"""Output rows: checks the rows of custom logic against their declared schema, alike on every engine.

    "k string, n bigint"  a StructType  an Arrow schema  ──▶  columns, each with what may stand in it
                                                         ──▶  rows by column, or one sentence

Rows are checked by column: the types of a whole column at C speed, single values only if that is not enough. The
surprise: nothing is converted. Arrow would turn 1.5 into 1 in a column of ints, and a number into microseconds in a
column of timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

from ..stores.keys import shown

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[A-Za-z0-9_]+|[<>(),:])")
_INTEGERS: Final = {
    "tinyint": 8, "byte": 8, "smallint": 16, "short": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64,
}  # fmt: skip
_NAMES: Final = {
    "string": "string", "char": "string", "character": "string", "varchar": "string", "binary": "binary",
    "boolean": "boolean", "bool": "boolean", "float": "float", "real": "float", "double": "double", "date": "date",
    "timestamp": "timestamp", "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz",
    "decimal": "decimal", "dec": "decimal", "numeric": "decimal",
}  # fmt: skip
_SQL: Final = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}
_TYPES: Final[dict[str, frozenset[type]]] = {
    "string": frozenset({str}),
    "binary": frozenset({bytes, bytearray}),
    "boolean": frozenset({bool}),
    "float": frozenset({float}),
    "double": frozenset({float}),
    "date": frozenset({date}),
    "timestamp": frozenset({datetime}),
    "timestamp_ntz": frozenset({datetime}),
}
_NONE: Final[frozenset[type]] = frozenset({NoneType})
_WHOLE_NUMBERS: Final = frozenset({int, NoneType})
# whole numbers that a column of floats holds exactly
_WHOLE: Final = {"float": 2**24, "double": 2**53}


class ColumnKind(NamedTuple):
    """The values that a column accepts: its name, types that need no further check, and a function that finds the fault
    of a value of another type.
    """

    name: str
    quick: frozenset[type]
    fits: Callable[[Any], bool]
    bounds: tuple[int, int] | None = None
    """Of whole numbers: the least and the greatest."""
    parts: tuple[Column, ...] = ()
    """Of an array its elements, of a map keys and values, of a struct its columns."""

    def first_unfit(self, values: Sequence[Any]) -> int | None:
        """Return the place of the first value that does not fit, or None. O(values), at C speed where all types are
        quick.
        """
        kinds = set(map(type, values))
        if kinds <= self.quick:
            return None
        if self.bounds is not None and kinds <= _WHOLE_NUMBERS:
            numbers = values if NoneType not in kinds else [value for value in values if value is not None]
            if min(numbers) >= self.bounds[0] and max(numbers) <= self.bounds[1]:
                return None
        for place, value in enumerate(values):
            if value is not None and type(value) not in self.quick and not self.fits(_plain(value)):
                return place
        return None


class Column(NamedTuple):
    """A column of the output: its name, the values that it accepts, and whether it may be null."""

    name: str
    kind: ColumnKind
    nullable: bool = True


def _plain(value: Any) -> Any:
    """Return a numpy scalar or array as Python's."""
    return value.tolist() if hasattr(value, "dtype") else value


def quoted(name: str) -> str:
    """Return the name of a column as Spark's text for a schema has it: in backticks where it is no plain word."""
    return name if name.isidentifier() and name.isascii() else f"`{name.replace('`', '``')}`"


def _anything(name: str) -> ColumnKind:
    """A type that is not checked here: Spark checks it."""
    return ColumnKind(name, _NONE, lambda _: True)


def _scalar(name: str) -> ColumnKind:
    types = _TYPES[name]

    def fits(value: Any) -> bool:
        if name in _WHOLE:
            return type(value) is float or (type(value) is int and abs(value) <= _WHOLE[name])
        if name == "date":
            return isinstance(value, date) and not isinstance(value, datetime)
        return isinstance(value, tuple(types)) and (name == "boolean" or not isinstance(value, bool))

    return ColumnKind(name, types | _NONE, fits)


def _integer(bits: int) -> ColumnKind:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return ColumnKind(_SQL[bits], _NONE, lambda value: type(value) is int and low <= value <= high, (low, high))


def _decimal(precision: int, scale: int) -> ColumnKind:
    def fits(value: Any) -> bool:
        if type(value) is int:
            value = Decimal(value)
        if not isinstance(value, Decimal) or not value.is_finite():
            return False
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        while exponent < -scale and digits[-1:] == (0,):
            digits, exponent = digits[:-1], exponent + 1
        return exponent >= -scale and (not any(digits) or len(digits) + exponent <= precision - scale)

    return ColumnKind(f"decimal({precision},{scale})", _NONE, fits)


def _array(item: ColumnKind) -> ColumnKind:
    def fits(value: Any) -> bool:
        return isinstance(value, list | tuple | set | frozenset) and item.first_unfit(list(value)) is None

    return ColumnKind(f"array<{item.name}>", _NONE, fits, parts=(Column("element", item),))


def _map(key: ColumnKind, item: ColumnKind) -> ColumnKind:
    def fits(value: Any) -> bool:
        try:
            entries = dict(value)
        except (TypeError, ValueError):
            return False
        return key.first_unfit(list(entries)) is None and item.first_unfit(list(entries.values())) is None

    return ColumnKind(f"map<{key.name},{item.name}>", _NONE, fits, parts=(Column("key", key), Column("value", item)))


def _struct(columns: Sequence[Column]) -> ColumnKind:
    names = [column.name for column in columns]

    def fits(value: Any) -> bool:
        if isinstance(value, Mapping):
            if set(value) != set(names):
                return False
            parts = [value[name] for name in names]
        elif isinstance(value, tuple) and len(value) == len(names):
            parts = list(value)
        else:
            return False
        return all(column.kind.first_unfit([part]) is None for column, part in zip(columns, parts, strict=True))

    name = f"struct<{','.join(f'{quoted(column.name)}:{column.kind.name}' for column in columns)}>"
    return ColumnKind(name, _NONE, fits, parts=tuple(columns))


class _Ddl:
    """Reads Spark's text for a schema. Raises ValueError for other text."""

    def __init__(self, text: str, what: str = "schema") -> None:
        self.text = text
        self.what = what
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        if _TOKEN.sub("", text).strip():
            raise self.error()

    def error(self) -> ValueError:
        return ValueError(
            f"{self.what}: found {self.text!r}, expected columns with Spark's types, such as 'k string, n bigint'"
        )

    def take(self, wanted: str = "") -> str:
        token: str = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if not token or (wanted and token.upper() != wanted):
            raise self.error()
        self.at += 1
        return token

    def follows(self, *words: str) -> bool:
        following = [token.upper() for token in self.tokens[self.at : self.at + len(words)]]
        if following != list(words):
            return False
        self.at += len(words)
        return True

    def columns(self, end: str = "") -> list[Column]:
        columns: list[Column] = []
        while True:
            name = self.take()
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            self.follows(":")
            kind = self.kind()
            nullable = not self.follows("NOT", "NULL")
            if self.follows("COMMENT"):
                self.take()
            columns.append(Column(name, kind, nullable))
            if not self.follows(","):
                break
        if (self.take() != end) if end else (self.at < len(self.tokens)):
            raise self.error()
        return columns

    def kind(self) -> ColumnKind:
        word = self.take().lower()
        if word == "array":
            self.take("<")
            kind = _array(self.kind())
            self.take(">")
            return kind
        if word == "map":
            self.take("<")
            key = self.kind()
            self.take(",")
            kind = _map(key, self.kind())
            self.take(">")
            return kind
        if word == "struct":
            self.take("<")
            return _struct([] if self.follows(">") else self.columns(">"))
        numbers: list[int] = []
        if self.follows("("):
            while not self.follows(")"):
                token = self.take()
                numbers += [int(token)] if token.isdigit() else []
        kind = kind_of(word, numbers)
        if kind.name == "string" and self.follows("COLLATE"):
            self.take()
        if kind.name == word and word not in _NAMES and word not in _INTEGERS:
            # the rest of a type that is not known here, as in "interval day to second"
            while self.at < len(self.tokens) and self.tokens[self.at].upper() not in (",", ">", "NOT", "COMMENT"):
                self.at += 1
        return kind


def kind_of(word: str, numbers: Sequence[int] = ()) -> ColumnKind:
    """Return the kind of a type by Spark's name for it; values of an unknown type are not checked."""
    if word in _INTEGERS:
        return _integer(_INTEGERS[word])
    name = _NAMES.get(word)
    if name == "decimal":
        return _decimal(*(numbers if len(numbers) == 2 else (*numbers, 0) if numbers else (10, 0)))
    return _anything(word) if name is None else _scalar(name)


def _json_kind(kind: Any) -> ColumnKind:
    """The kind of a type as Spark's `jsonValue` has it."""
    if isinstance(kind, str):
        return _Ddl(f"c {kind}").columns()[0].kind
    match kind.get("type"):
        case "array":
            return _array(_json_kind(kind["elementType"]))
        case "map":
            return _map(_json_kind(kind["keyType"]), _json_kind(kind["valueType"]))
        case "struct":
            return _struct(_json_columns(kind))
    return _anything(str(kind.get("type")))


def _json_columns(struct: dict[str, Any]) -> list[Column]:
    return [Column(field["name"], _json_kind(field["type"]), field["nullable"]) for field in struct["fields"]]


def _arrow_kind(kind: Any) -> ColumnKind:
    import pyarrow.types as t

    if t.is_integer(kind):
        signed = t.is_signed_integer(kind)
        return _integer(kind.bit_width) if signed else _anything(str(kind))
    if t.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if t.is_map(kind):
        return _map(_arrow_kind(kind.key_type), _arrow_kind(kind.item_type))
    if t.is_struct(kind):
        return _struct([Column(field.name, _arrow_kind(field.type), field.nullable) for field in kind])
    if t.is_list(kind) or t.is_large_list(kind):
        return _array(_arrow_kind(kind.value_type))
    known = {
        "string": t.is_string(kind) or t.is_large_string(kind),
        "binary": t.is_binary(kind) or t.is_large_binary(kind),
        "boolean": t.is_boolean(kind),
        "float": t.is_float32(kind),
        "double": t.is_float64(kind),
        "date": t.is_date(kind),
        "timestamp": t.is_timestamp(kind) and kind.tz is not None,
        "timestamp_ntz": t.is_timestamp(kind),
    }
    return next((_scalar(name) for name, holds in known.items() if holds), _anything(str(kind)))


def columns_of_schema(schema: Any, what: str = "process: output_schema") -> list[Column] | None:
    """Return the columns of a schema: DDL text, a StructType or an Arrow schema; None of None. Errors call it `what`.

    Raises ValueError for text that is no schema and for a column named twice, TypeError for anything else.
    """
    if schema is None:
        return None
    if isinstance(schema, str):
        text = schema.strip()
        inner = re.fullmatch(r"(?is)struct\s*<(.*)>", text)
        columns = _Ddl(inner.group(1) if inner else text, what).columns()
    elif type(schema).__name__ == "StructType" and hasattr(schema, "jsonValue"):
        columns = _json_columns(schema.jsonValue())
    elif type(schema).__module__.startswith("pyarrow") and hasattr(schema, "names"):
        columns = [Column(field.name, _arrow_kind(field.type), field.nullable) for field in schema]
    else:
        raise TypeError(
            f"{what}: found {type(schema).__name__}, expected Spark's DDL text, a StructType or an Arrow schema"
        )
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what}: found column {name!r} twice, expected each name once")
    return columns


class OutputRows:
    """The check of every row of custom logic."""

    def __init__(self, schema: Any, step: str = "process") -> None:
        self._step = step
        self._columns = columns_of_schema(schema, f"{step}: output_schema")
        self.names = tuple(column.name for column in self._columns or ())
        # with one name an itemgetter would return the value instead of a tuple
        self._pick = itemgetter(*self.names, *self.names[:1]) if self.names else None

    def rows(self, results: list[Any]) -> list[dict[str, Any]]:
        """Return rows as dicts. Raises TypeError or ValueError naming the column of the first value that does not fit.

        O(rows).
        """
        rows = results if {dict}.issuperset(map(type, results)) else [self._as_dict(row) for row in results]
        if self._columns is not None:
            kept = self.columns(rows)
            if any(any(hasattr(kind, "dtype") for kind in set(map(type, cells))) for cells in kept):
                # numpy's numbers become Python's, because rows are kept with the commit
                plain = [list(map(_plain, cells)) for cells in kept]
                return [dict(zip(self.names, cells, strict=True)) for cells in zip(*plain, strict=True)]
        return rows

    def columns(self, results: list[Any]) -> list[Sequence[Any]]:
        """Return rows by column, checked against the schema. Raises as `rows`."""
        assert self._columns is not None
        if not results:
            return [() for _ in self._columns]
        rows = results if {dict}.issuperset(map(type, results)) else [self._as_dict(row) for row in results]
        assert self._pick is not None
        try:
            picked = list(map(self._pick, rows))
        except KeyError:
            raise self._other_columns(rows) from None
        if not {len(self._columns)}.issuperset(map(len, rows)):
            raise self._other_columns(rows)
        values: list[Any] = [*zip(*picked, strict=True)][: len(self._columns)]
        for column, cells in zip(self._columns, values, strict=True):
            place = column.kind.first_unfit(cells)
            if place is None and not column.nullable and None in cells:
                place = cells.index(None)
            if place is not None:
                cell = cells[place]
                raise (ValueError if type(cell) in (int, Decimal) else TypeError)(
                    f"{self._step}: column {column.name!r}: found {type(cell).__name__} {shown(cell)}, expected "
                    f"{column.kind.name}{'' if column.nullable else ', not null'}"
                )
        return values

    def _as_dict(self, row: Any) -> dict[str, Any]:
        if isinstance(row, Mapping):
            return dict(row)
        as_dict = getattr(row, "_asdict", None) or getattr(row, "asDict", None)
        if as_dict is None:
            columns = f" with the columns {', '.join(self.names)}" if self.names else ""
            raise TypeError(
                f"{self._step}: found a row of {type(row).__name__} {shown(row)}, expected a dict or named "
                f"tuple{columns}"
            )
        fields: dict[str, Any] = as_dict()
        return fields

    def _other_columns(self, rows: Iterable[dict[str, Any]]) -> ValueError:
        """The error for the first row that has other columns."""
        for row in rows:
            missing = [name for name in self.names if name not in row]
            unknown = [name for name in row if name not in self.names]
            if missing:
                return ValueError(
                    f"{self._step}: column {missing[0]!r} is missing: found {', '.join(map(str, row)) or 'no columns'}"
                )
            if unknown:
                return ValueError(
                    f"{self._step}: column {unknown[0]!r} is not in the schema: expected {', '.join(self.names)}"
                )
        raise AssertionError("unreachable")  # pragma: no cover
