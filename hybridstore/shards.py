"""Shards: which piece of the key space a key belongs to. The same number in Python, and as a Spark SQL expression.

    shard = crc32(canonical bytes of the key) mod shards

The canonical bytes of text are its UTF-8, of bytes themselves, of an int its decimal digits, of a bool "true" or "false", of a
tuple those of its elements, each followed by a zero byte and preceded by its length in digits. The number is part of the state on disk: it
never changes.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32


def canonical(key: Any) -> bytes:
    """Return the bytes that decide a key's shard. Raises TypeError for what cannot be a key."""
    kind = type(key)
    if kind is str:
        return bytes(key.encode("utf-8", "surrogatepass"))
    if kind is bytes:
        return bytes(key)
    if kind is bool:
        return b"true" if key else b"false"
    if kind is int:
        return b"%d" % key
    if kind is float:
        return struct.pack(">d", key + 0.0)
    if kind is tuple:
        parts = [canonical(part) for part in key]
        return b"".join(b"%d:%b\0" % (len(part), part) for part in parts)
    raise TypeError(
        f"key {key!r}: {kind.__name__} is not a key type (str, bytes, int, float, bool, or tuples of these)"
    )


def shard_of(key: Any, shards: int) -> int:
    """Return the shard of a key, 0 to shards - 1. O(length of the key)."""
    return crc32(canonical(key)) % shards
