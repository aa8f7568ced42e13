"""Packed key: a key as the tables of blocks look for it: its bytes and their hash. Bytes: docs/format.md, "Table of a
block".
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final, NamedTuple

from changelog.codec import pack, pack_each, packer

# Keys of these types are equal only if their packed bytes are; 0.0 and -0.0 are equal, too.
EXACT: Final = (str, bytes, int, bool)


class _Packers(threading.local):
    """A packer for each thread: packing an atom runs no Python code, so nothing can use the packer meanwhile."""

    def __init__(self) -> None:
        self.pack = packer()


PACKERS: Final = _Packers()


def plain(key: Any) -> Any:
    """Return an equal key whose packed bytes are those of every equal key: without -0.0; or the key itself."""
    if type(key) is float:
        return key or 0.0
    if type(key) is tuple and 0.0 in key:
        return tuple(part or 0.0 if type(part) is float else part for part in key)
    return key


class PackedKey(NamedTuple):
    """A key as tables look for it: its packed bytes, their hash, and whether equal keys have equal bytes."""

    key: Any
    packed: bytes
    hash: int
    exact: bool


def packed_key(key: Any) -> PackedKey:
    """Return a key as tables look for it. O(key)."""
    exact = type(key) in EXACT
    packed = PACKERS.pack(key) if exact else pack(plain(key))
    # not PackedKey(...), a Python function that does this line
    return tuple.__new__(PackedKey, (key, packed, zlib.crc32(packed), exact))


class PackedKeys(NamedTuple):
    """Keys of one store as tables look for them, by column, as those of a `PackedKey`."""

    keys: Sequence[Any]
    packed: list[bytes]
    hashes: list[int]
    exact: bool

    def at(self, place: int) -> PackedKey:
        """Return one of the keys. O(1)."""
        return PackedKey(self.keys[place], self.packed[place], self.hashes[place], self.exact)


def packed_keys(keys: Sequence[Any], pack_one: Callable[[object], bytes] | None = None) -> PackedKeys:
    """Return keys of one store, at least one, as tables look for them: their own packed bytes, not those of an equal
    key. `pack_one` is a packer that the caller has: two of them at a time take 10 µs to make. O(keys).
    """
    pack_one = pack_one or packer()
    packed = pack_each(keys, pack_one)
    exact = type(keys[0]) in EXACT
    plains = keys if exact else list(map(plain, keys))
    same = exact or all(map(is_, keys, plains))
    hashes = list(map(zlib.crc32, packed if same else pack_each(plains, pack_one)))
    return PackedKeys(keys, packed, hashes, exact)
