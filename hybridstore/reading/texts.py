"""Texts: the text forms in which people type and read keys, values and sizes.

    alice   text            int:5   float:1.5   bool:true   hex:00ff
    date:2026-01-31   time:2026-01-31T12:00:00Z   decimal:1.10
    json:["a", 5]  a tuple  text:int:5  the text "int:5"

The text that is shown for a key can be typed as an argument. JSON shows bytes as text if they are printable, otherwise
as `hex:`; tuples and sets as lists; times in ISO form.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ..markup import one_line

_PREFIXES: Final = ("text:", "int:", "float:", "bool:", "hex:", "date:", "time:", "decimal:", "json:")

_PLAIN: Final = frozenset({str, int, bool, type(None)})


def parse_key(text: str) -> Any:
    """Return the key that a text of the command line means. Raises ValueError, which names the text."""
    kind, colon, rest = text.partition(":")
    if not colon or f"{kind}:" not in _PREFIXES:
        return text
    try:
        match kind:
            case "text":
                return rest
            case "int":
                return int(rest)
            case "float":
                return float(rest)
            case "hex":
                return bytes.fromhex(rest)
            case "bool":
                return {"true": True, "false": False}[rest.lower()]
            case "date":
                return date.fromisoformat(rest)
            case "time":
                return datetime.fromisoformat(rest)
            case "decimal":
                return Decimal(rest)
            case _:
                return _tuples(json.loads(rest))
    except (ValueError, KeyError, InvalidOperation):
        raise ValueError(
            f"key {text!r}: found {rest!r}, expected {kind} (keys are typed: text, int:5, float:1.5, bool:true, "
            "hex:00ff, date:2026-01-31, time:2026-01-31T12:00:00Z, decimal:1.10, "
            'json:["a", 5] for a tuple, text:... to take it as it is)'
        ) from None


def _tuples(value: Any) -> Any:
    if type(value) is list:
        return tuple(parse_key(item) if type(item) is str else _tuples(item) for item in value)
    if type(value) is dict:
        raise ValueError("a map is not a key")
    return value


def format_key(key: Any) -> str:
    """Return the text that `parse_key` reads back as this key."""
    kind = type(key)
    if kind is str:
        return f"text:{key}" if key.startswith(_PREFIXES) else str(key)
    if kind is bool:
        return f"bool:{str(key).lower()}"
    if kind is int:
        return f"int:{key}"
    if kind is float:
        return f"float:{key!r}"
    if kind is bytes:
        return f"hex:{key.hex()}"
    if kind is date:
        return f"date:{key.isoformat()}"
    if kind is datetime:
        return f"time:{key.isoformat()}"
    if kind is Decimal:
        return f"decimal:{key}"
    if kind is tuple:
        return "json:" + json.dumps([_element(part) for part in key], ensure_ascii=False)
    return repr(key)


def _element(part: Any) -> Any:
    if part is None or type(part) in (bool, int):
        return part
    if type(part) is float and math.isfinite(part):
        return part
    return format_key(part)


def plain_key(key: Any) -> Any:
    """Return a key in a form that JSON can encode, and that names this key in a request: `parse_key` reads its texts
    back.
    """
    return [_element(part) for part in key] if type(key) is tuple else _element(key)


def printable(data: bytes) -> str:
    """Return bytes as text if the text is printable, otherwise as `hex:...`."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return text if text.isprintable() else f"hex:{data.hex()}"


def plain(value: Any) -> Any:
    """Return a value in a form that JSON can encode and people can read. O(size)."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if kind is bytes:
        return printable(value)
    if kind is datetime or kind is date:
        return value.isoformat()
    if kind is Decimal:
        return str(value)
    if kind is dict:
        return {item if type(item) is str else format_key(item): plain(value[item]) for item in value}
    if kind in (set, frozenset):
        return sorted((plain(item) for item in value), key=repr)
    if kind in (list, tuple):
        return [plain(item) for item in value]
    return repr(value)


_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=repr).encode
_ENCODE_ASCII: Final = json.JSONEncoder(allow_nan=False, default=repr).encode


def to_json(value: Any) -> str:
    """Return one line of JSON for a result of `plain`."""
    line = _ENCODE(value)
    # Text is escaped if it has a control character for terminals (U+009B begins a sequence) or a lone surrogate, which
    # is legal in a stored text but not in UTF-8.
    return line if line.isprintable() else _ENCODE_ASCII(value)


def iso(ms: int) -> str:
    """Return a timestamp (ms) in ISO form, UTC. A timestamp outside of the calendar stays a number."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def size_text(size: int) -> str:
    """Return bytes for people: 12.3 MB."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.5 or unit == "TB":
            return f"{amount:.1f} {unit}" if amount < 100 else f"{amount:.0f} {unit}"
    raise AssertionError("unreachable")  # pragma: no cover


def say(text: str) -> None:
    """Write one line that is not data to standard error."""
    print(f"hybridstore: {one_line(text)}", file=sys.stderr)
