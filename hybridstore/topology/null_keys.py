"""Null keys: with `stream(..., null_keys="group")`, null is a key like other keys. All keys are then stored as JSON
text.

    None ─▶ null     "a" ─▶ "a"     5 ─▶ 5     ("a", None) ─▶ ["a",null]     not a number ─▶ {"float":"NaN"}
    a date ─▶ {"date":days}     a moment ─▶ {"timestamp":µs}     a time without zone ─▶ {"clock":"its text"}
    a decimal ─▶ {"decimal":"1.1"}     a struct or an array ─▶ [the texts of its parts]

A store needs keys of one type with an order, but None cannot be compared with text, and nan has no order. The surprise:
Spark makes the same text in SQL (`hybridstore.spark.sharding`), because the shard of a row is the hash of this text. So
only the backslash and the quotation mark are escaped, and a float is written in hexadecimal, in Java's format.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from json import JSONDecoder
from math import isinf, isnan
from typing import TYPE_CHECKING, Any, Final

from changelog.codec import INT64_MAX, INT64_MIN, short_text

if TYPE_CHECKING:
    import pyarrow as pa

NULL: Final = "null"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
QUOTED: Final = (("\\", "\\\\"), ('"', '\\"'))


def stored_key(key: Any) -> str:
    """Return the text of a key. The key is a value, or a tuple of the values of several columns, with None for null.

    Equal values have the same text: -0.0 and 0.0, the decimals 1.1 and 1.10, a moment in any zone; and so have all nan.
    Raises TypeError or ValueError for a value that cannot be a key. O(length).
    """
    if type(key) is tuple:
        return f"[{','.join(map(_text, key))}]"
    return _text(key)


def given_key(text: str) -> Any:
    """Return the key of a stored text. O(length)."""
    if text[0] == '"' and "\\" not in text:
        return text[1:-1]
    key = _DECODER.decode(text)
    return tuple(key) if type(key) is list else key


def given_keys(texts: Iterable[str]) -> list[Any]:
    """Return the keys of stored texts. Equal texts are decoded once. O(n)."""
    texts = list(texts)
    known = {text: given_key(text) for text in set(texts)}
    return [known[text] for text in texts]


def stored_column(columns: list[Any]) -> pa.ChunkedArray:
    """Return the text of `stored_key` for every row of Arrow columns, in which nulls are keys. O(rows), and a call for
    each distinct value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from .columns.buffers import text_array

    comma, opened, closed, nothing, null = text_array([",", "[", "]", "", NULL])
    parts = []
    for column in columns:
        encoded = (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).dictionary_encode()
        texts = text_array(list(map(_text, encoded.dictionary.to_pylist())))
        parts.append(pc.fill_null(texts.take(encoded.indices), null))
    if len(parts) == 1:
        return pa.chunked_array(parts)
    joined = pc.binary_join_element_wise(*parts, comma)
    return pa.chunked_array([pc.binary_join_element_wise(opened, joined, closed, nothing)])


def _text(part: Any) -> str:
    kind = type(part)
    if kind is str:
        for plain, escaped in QUOTED:
            part = part.replace(plain, escaped)
        return f'"{part}"'
    if part is None:
        return NULL
    if kind is bool:
        return "true" if part else "false"
    if kind is int:
        if not INT64_MIN <= part <= INT64_MAX:
            raise ValueError(f"key {part}: found an int beyond 64 bits, expected at most 64")
        return str(part)
    if kind is float:
        return f'{{"float":"{_hexadecimal(part)}"}}'
    if kind is bytes:
        return f'{{"hex":"{part.hex().upper()}"}}'
    if isinstance(part, datetime):
        if part.tzinfo is None:
            return f'{{"clock":"{clock_text(part)}"}}'
        return f'{{"timestamp":{(part - _EPOCH) // _MICROSECOND}}}'
    if isinstance(part, date):
        return f'{{"date":{part.toordinal() - _EPOCH_DAY}}}'
    if kind is Decimal:
        return f'{{"decimal":"{short_text(part)}"}}'
    if isinstance(part, dict):  # a struct of Arrow's, in the order of its fields
        return f"[{','.join(map(_text, part.values()))}]"
    if isinstance(part, tuple | list):
        return f"[{','.join(map(_text, part))}]"
    raise TypeError(f"key: found {kind.__name__}, expected str, bytes, int, float, bool, None or a tuple of these")


def clock_text(moment: datetime) -> str:
    """Return a time without a zone as Spark casts it to text: without zeros at the end of its fraction."""
    text = str(moment.replace(tzinfo=None))
    return text.rstrip("0") if "." in text else text


def _hexadecimal(number: float) -> str:
    """Return a float in the format of Java's `%a`; 0.0 for -0.0."""
    if isnan(number):
        return "NaN"
    if isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    digits, _, exponent = (number + 0.0).hex().partition("p")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}p{int(exponent)}"


def _special(fields: dict[str, Any]) -> Any:
    if "date" in fields:
        return date.fromordinal(fields["date"] + _EPOCH_DAY)
    if "timestamp" in fields:
        return _EPOCH + fields["timestamp"] * _MICROSECOND
    if "clock" in fields:
        return datetime.fromisoformat(fields["clock"])
    if "decimal" in fields:
        return Decimal(fields["decimal"])
    return float.fromhex(fields["float"]) if "float" in fields else bytes.fromhex(fields["hex"])


_DECODER: Final = JSONDecoder(object_hook=_special, strict=False)
