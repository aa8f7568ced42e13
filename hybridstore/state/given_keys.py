"""Given keys: which keys an erase takes, and the bytes by which a file that may have them is known."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

from changelog.codec import pack
from recovery.errors import RestoreError

# Text of fewer bytes is found in other values by accident.
_LEAST_BYTES: Final = 4
_SALT_BYTES: Final = 16


class GivenKeys:
    """The keys to erase: exactly these, or all that begin with one of them."""

    def __init__(self, keys: Iterable[Any], *, prefix: bool = False) -> None:
        self.keys = list(keys) if prefix else list(map(only_part, keys))
        self.prefix = prefix
        if not self.keys:
            raise RestoreError("erase: found no key, expected one or more")
        wrong = [key for key in self.keys if prefix and not (type(key) in (str, bytes, tuple) and key)]
        if wrong:
            raise RestoreError(f"erase: found the prefix {wrong[0]!r}, expected text, bytes or a tuple, not empty")

    def take(self, key: Any) -> bool:
        """Return whether a key, or the only part of one, is erased. O(keys)."""
        part = only_part(key)
        if self.prefix:
            return any(_begins(key, each) or _begins(part, each) for each in self.keys)
        return any(_same(part, each) for each in self.keys)

    def take_of_row(self, key: Any) -> bool:
        """Return whether a key is erased, as rows and results have it, or the only part of one. O(keys)."""
        return self.take(key)

    def needles(self) -> tuple[bytes, ...]:
        """Return bytes that each block with one of the keys has; () where that is not certain: 0.0 equals -0.0."""
        parts = [_parts(each, whole=not self.prefix) for each in self.keys]
        return () if any(part is None or not part for part in parts) else tuple(filter(None, parts))

    def parts(self) -> tuple[bytes, ...]:
        """Return bytes of which each block with the values of one of the keys has some, each value in a place of its
        own, whole numbers also in the columns of kept results; () as for `needles`.
        """
        parts: list[bytes] = []
        for key, needle in zip(self.keys, self.needles(), strict=False):
            value = max(key, key=lambda part: len(pack(part))) if type(key) is tuple and key else key
            parts.append(pack(value) if type(key) is tuple else needle)
            if type(value) is int:
                sizes = [size for size in (4, 8) if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1]
                parts += [value.to_bytes(size, "little", signed=True) for size in sizes]
        return tuple(parts)

    def same_as(self, note: bytes) -> bool:
        """Return whether a note of an erase that has begun is of these keys; True for a note that says nothing."""
        try:
            fields = json.loads(note)
            return bool(self._hash(bytes.fromhex(fields["salt"])) == fields["of"])
        except (ValueError, KeyError, TypeError):
            return True

    def note(self) -> bytes:
        """Return the note that an erase of these keys has begun. Nobody can read the keys in it."""
        salt = os.urandom(_SALT_BYTES)
        return json.dumps({"since": int(time.time() * 1000), "salt": salt.hex(), "of": self._hash(salt)}).encode()

    def _hash(self, salt: bytes) -> str:
        packed = pack([self.prefix, *sorted(map(pack, self.keys))])
        return blake2b(packed, digest_size=_SALT_BYTES, key=salt).hexdigest()

    def texts(self) -> list[bytes]:
        """Return the bytes of the keys that are text or bytes, as any file would have them; none that are short."""
        raw = [each.encode("utf-8", "surrogatepass") if type(each) is str else each for each in self.keys]
        return [each for each in raw if type(each) is bytes and len(each) >= _LEAST_BYTES]


def only_part(key: Any) -> Any:
    """Return the part of a key that has only one, another key as it is."""
    return key[0] if type(key) is tuple and len(key) == 1 else key


def _same(key: Any, other: Any) -> bool:
    """Return whether two keys are equal, and all their parts of the same types."""
    if type(key) is not type(other) or key != other:
        return False
    return type(key) is not tuple or [*map(type, key)] == [*map(type, other)]


def _begins(key: Any, prefix: Any) -> bool:
    return type(key) is type(prefix) and _same(key[: len(prefix)], prefix)


def _parts(key: Any, *, whole: bool) -> bytes | None:
    """Return the packed parts of a key, as tuples have them, too; of a prefix of text its bytes alone."""
    if type(key) is float:
        return None
    if type(key) is tuple:
        parts = [_parts(part, whole=True) for part in key]
        return None if None in parts else b"".join(filter(None, parts))
    if not whole:
        return key.encode("utf-8", "surrogatepass") if type(key) is str else bytes(key)
    return pack(key)
