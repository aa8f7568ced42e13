"""Exact text: values as JSON that loses nothing, for `dump` and `load`.

JSON carries None, bool, int, finite float, text, list and maps with text keys as they are. The rest is a map with one key:

    {"$t": [..]} tuple   {"$b": "00ff"} bytes   {"$d": [[key, value], ..]} map with other keys   {"$m": "..."} packed, in hex
"""

from __future__ import annotations

import json
import math
from typing import Any

from changelog.codec import pack, unpack


def encode(value: Any) -> Any:
    """Return a value in the form that JSON can carry. O(size)."""
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is str and not any("\ud800" <= c <= "\udfff" for c in value):
        return value
    if kind is list:
        return [encode(item) for item in value]
    if kind is tuple:
        return {"$t": [encode(item) for item in value]}
    if kind is bytes:
        return {"$b": value.hex()}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value) and all(map(_is_text, value)):
            return {key: encode(item) for key, item in value.items()}
        return {"$d": [[encode(key), encode(item)] for key, item in value.items()]}
    return {"$m": pack(value).hex()}


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def decode(found: Any) -> Any:
    """Return the value that `encode` made this of. Raises ValueError for anything else."""
    if type(found) is list:
        return [decode(item) for item in found]
    if type(found) is not dict:
        return found
    if len(found) == 1:
        ((tag, inner),) = found.items()
        match tag:
            case "$t":
                return tuple(decode(item) for item in inner)
            case "$b":
                return bytes.fromhex(inner)
            case "$d":
                return {decode(key): decode(item) for key, item in inner}
            case "$m":
                return unpack(bytes.fromhex(inner))
    if any(key.startswith("$") for key in found):
        raise ValueError(f"a map with the unknown mark {next(iter(found))!r}")
    return {key: decode(item) for key, item in found.items()}


def to_line(fields: dict[str, Any]) -> str:
    """Return one line of a dump: compact JSON in ASCII."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False)
