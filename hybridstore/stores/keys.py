"""Keys: which keys a store accepts. All keys of a store have one type, so that they always have an order.

Python finds 1, 1.0 and True equal, and cannot compare "a" with 1: both would break an ordered map, so the first key of
a store decides the type of all (for tuples: of every position).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from changelog.codec import INT64_MAX, INT64_MIN
from changelog.journal import MAX_KEY_BYTES, SMALL, key_bytes, too_long

SCALARS: Final[dict[type, str]] = {str: "str", bytes: "bytes", int: "int", float: "float", bool: "bool"}
_FAST: Final = (str, bytes)
_TEXTS: Final = frozenset(_FAST)
_BY_NAME: Final = {name: kind for kind, name in SCALARS.items()}


def _plain_tuples(keys: list[Any], parts: tuple[type, ...]) -> bool:
    """Whether all keys are tuples with parts of these types, none of which needs a look of its own. O(n)."""
    if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {len(parts)} or float in parts:
        return False
    for kind, column in zip(parts, zip(*keys, strict=True), strict=True):
        if set(map(type, column)) != {kind}:
            return False
        if kind is int and (min(column) < INT64_MIN or max(column) > INT64_MAX):
            return False
        if kind in _TEXTS and max(map(len, column)) > SMALL:
            return False
    return True


def shown(key: Any) -> str:
    """Return a key as errors show it: its repr, or the beginning of a long repr. O(key)."""
    text = repr(key)
    return text if len(text) <= 200 else f"{text[:150]}... ({len(text):,} characters)"


class Lookups:
    """How often a store looked for a key (in one of its buckets) while memory was limited (`asked`), and how often it
    read a block for that (`missed`).
    """

    __slots__ = ("asked", "missed")

    def __init__(self) -> None:
        self.asked = self.missed = 0


class KeyRule:
    """The type of a store's keys. `fast` is the type that needs no further check as long as a key is short (str,
    bytes), or None; `read` is the one that needs none when a key is read.

    On a hot path: `if type(key) is not rule.fast or len(key) > SMALL: small = rule.admit(key) and small`.
    """

    __slots__ = ("_parts", "_scalar", "_store", "fast", "read")

    def __init__(self, store: str) -> None:
        self._store = store
        self._scalar: type | None = None
        self._parts: tuple[type, ...] | None = None
        self._be_fast(None)

    def admit(self, key: Any, *, pin: bool = True) -> bool:
        """Raise TypeError or ValueError unless `key` may be a key of this store. Return whether the key is short.

        With `pin`, an accepted first key decides the type.
        """
        kind = type(key)
        if kind is tuple:
            if self._scalar is not None:
                raise self._mismatch(key)
            kinds = tuple(map(type, key))
            if kinds == self._parts and _TEXTS.issuperset(kinds):  # as below: all that they say is how long they are
                return sum(map(len, key)) <= SMALL or self._is_short(key)
            for part, part_kind in zip(key, kinds, strict=True):
                self._admit_scalar(part, part_kind)
            short = self._is_short(key)
            known = self._parts
            if known is not None:
                for i, (a, b) in enumerate(zip(kinds, known, strict=False)):
                    if a is not b:
                        raise TypeError(
                            f"store {self._store!r}: key {shown(key)}: element {i}: found {a.__name__}, expected "
                            f"{b.__name__} as in the store's other keys"
                        )
            if pin and (known is None or len(kinds) > len(known)):
                self._parts = kinds
            return short
        self._admit_scalar(key, kind)
        short = (kind is not str and kind is not bytes) or self._is_short(key)
        if kind is self._scalar:
            return short
        if self._scalar is not None or self._parts is not None:
            raise self._mismatch(key)
        if pin:
            self._scalar = kind
            self._be_fast(kind)
        return short

    def check(self, key: Any) -> None:
        """Raise as `admit`, and decide nothing: the key is a bound, or is not read now."""
        if type(key) is not self.fast or len(key) > SMALL:
            self.admit(key, pin=False)

    def _be_fast(self, kind: type | None) -> None:
        self.fast = self.read = kind if kind in _FAST else None

    def _is_short(self, key: Any) -> bool:
        size = key_bytes(key)
        if size > MAX_KEY_BYTES:
            raise ValueError(f"store {self._store!r}: key {shown(key)}: {too_long(size)}")
        return size <= SMALL

    def admit_all(self, keys: list[Any]) -> None:
        """Admit every key of a column, or raise and decide nothing. O(n), at C speed for text, bytes, bool and int, and
        tuples of them.
        """
        known = self._scalar, self._parts
        try:
            self._admit_all(keys)
        except BaseException:
            self._scalar, self._parts = known
            self._be_fast(self._scalar)
            raise

    def _admit_all(self, keys: list[Any]) -> None:
        if keys and self._scalar is None:
            self.admit(keys[0])
        alike = self._scalar is not None and [*map(type, keys)].count(self._scalar) == len(keys)
        if alike and self._scalar is int and keys:
            alike = min(keys) >= INT64_MIN and max(keys) <= INT64_MAX
        if (not alike or self._scalar is float) and not (self._parts and _plain_tuples(keys, self._parts)):
            for key in keys:
                self.admit(key)

    def _admit_scalar(self, key: Any, kind: type) -> None:
        if kind not in SCALARS:
            raise TypeError(
                f"store {self._store!r}: key {shown(key)}: found {kind.__name__}, expected str, bytes, int, float, "
                "bool or a tuple of these"
            )
        if kind is float and key != key:
            raise ValueError(f"store {self._store!r}: key nan: found a float without order, expected a number")
        if kind is int and not INT64_MIN <= key <= INT64_MAX:
            raise ValueError(
                f"store {self._store!r}: key {shown(key)}: found an int beyond 64 bits, expected at most 64"
            )

    def _mismatch(self, key: Any) -> TypeError:
        expected = self._scalar.__name__ if self._scalar is not None else "tuple"
        return TypeError(
            f"store {self._store!r}: key {shown(key)}: found {type(key).__name__}, expected {expected} as in the "
            "store's other keys"
        )

    def pin(self, keys: Iterable[Any]) -> None:
        """Decide the type by keys of a replay, if it is not decided yet: a put decides the type, `apply` does not."""
        if not self.known:
            for key in islice(keys, 1):
                self.admit(key)

    @property
    def known(self) -> bool:
        """True once the type is decided."""
        return self._scalar is not None or self._parts is not None

    def describe(self) -> list[str] | None:
        """Return the type in a form that can be stored: ["str"], ["tuple", "str", "int"], or None when undecided."""
        if self._scalar is not None:
            return [SCALARS[self._scalar]]
        if self._parts is not None:
            return ["tuple", *(SCALARS[kind] for kind in self._parts)]
        return None

    def restore(self, description: list[str] | None) -> None:
        """Use a stored description."""
        self._scalar = self._parts = None
        if description and description[0] == "tuple":
            self._parts = tuple(_BY_NAME[name] for name in description[1:])
        elif description:
            self._scalar = _BY_NAME[description[0]]
        self._be_fast(self._scalar)


class CountedKeys(KeyRule):
    """The rule of a key-value store under a limit of memory: it counts the keys that are read. No type is `read`: a
    read of a `fast` one counts by itself, and every other key passes here. Without a limit, a read that finds its key
    in memory pays for no count.
    """

    __slots__ = ("_counts",)

    def __init__(self, store: str, counts: Lookups) -> None:
        self._counts = counts
        super().__init__(store)

    def admit(self, key: Any, *, pin: bool = True) -> bool:
        """As the rule; without `pin`, a key is read."""
        if not pin:
            self._counts.asked += 1
            if type(key) is self.fast:
                return True  # also of a key that is too long, as without a limit: no record has it
        return super().admit(key, pin=pin)

    def check(self, key: Any) -> None:
        if type(key) is not self.fast or len(key) > SMALL:
            super().admit(key, pin=False)

    def _be_fast(self, kind: type | None) -> None:
        super()._be_fast(kind)
        self.read = None


class ShutKeys(KeyRule):
    """The rule of a store whose state was closed. The rule refuses every key, so that a put needs no check of whether
    the store is open.
    """

    __slots__ = ("_error",)

    def __init__(self, store: str, error: Exception) -> None:
        super().__init__(store)
        self._error = error

    def admit(self, key: Any, *, pin: bool = True) -> bool:
        raise self._error

    def admit_all(self, keys: list[Any]) -> None:
        raise self._error


def check_prefix(store: str, prefix: Any, key_from: Any, key_to: Any) -> None:
    """Check the prefix of a scan. Raises ValueError beside another bound of keys, TypeError for what has no prefix."""
    if key_from is not None or key_to is not None:
        raise ValueError(f"store {store!r}: prefix: found with key_from or key_to, expected one of them")
    if type(prefix) not in (str, bytes, tuple):
        raise TypeError(
            f"store {store!r}: prefix {prefix!r}: found {type(prefix).__name__}, expected str, bytes or tuple"
        )
