"""Shards: which of N fixed pieces of the key space a key belongs to, the same number in Python and in Spark SQL.

    shard = crc32(canonical bytes of the key) mod N

The canonical bytes are the text in UTF-8, the bytes themselves, an integer in decimal, `true` or `false`, a float
scaled by 2^20 and cut to an integer, and for a tuple its parts with a byte 0x1F between them. Keys that share canonical
bytes share a shard, no more: equality of keys is decided elsewhere. `hybridstore.spark.sharding` is the twin as a Spark
SQL expression; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

SEPARATOR: Final = b"\x1f"
FLOAT_SCALE: Final = 1048576.0
_INT64: Final = 2.0**63


def canonical_bytes(key: Any) -> bytes:
    """Return the bytes by which a key is hashed. Raises TypeError for what cannot be a key. O(length)."""
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
        scaled = key * FLOAT_SCALE
        # not a number, and what does not fit 64 bit, has no bytes: Spark's try_cast gives null there
        return b"%d" % int(scaled) if -_INT64 <= scaled < _INT64 else b""
    if kind is tuple:
        return SEPARATOR.join(map(canonical_bytes, key))
    raise TypeError(f"key: found {kind.__name__}, expected str, bytes, int, float, bool or a tuple of these")


def hash_of(key: Any) -> int:
    """Return the number (32 bit) whose remainder is the shard of a key. Raises TypeError for what cannot be a key.
    O(length).
    """
    if type(key) is str:
        return crc32(key.encode("utf-8", "surrogatepass"))
    return crc32(canonical_bytes(key))


def shard_of(key: Any, shards: int) -> int:
    """Return the shard (0 to shards - 1) of a key.

    It is fixed for ever: stored state depends on it. O(length of the key).
    """
    if type(key) is str:
        return crc32(key.encode("utf-8", "surrogatepass")) % shards
    return crc32(canonical_bytes(key)) % shards
