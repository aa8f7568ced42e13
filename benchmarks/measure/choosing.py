"""Choosing: which record an operation takes: the published distributions of YCSB, and a hot share.

    uniform    every record alike              zipf      YCSB's scrambled Zipf, exponent 0.99
    hot        1 % of the records, alike       latest    Zipf by age: the newest record most often

The Zipf generator is that of Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), as
YCSB has it: O(1) a choice, after a sum over all records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

THETA: Final = 0.99
HOT_SHARE: Final = 0.01
_FNV_OFFSET, _FNV_PRIME, _WORD = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
# from a number of records, which may grow, to one of them
Chooser = Callable[[int], int]


class Zipf:
    """Ranks 0, 1, ... by a Zipf law, the first most often; the number of records may grow."""

    def __init__(self, dice: random.Random, theta: float = THETA) -> None:
        self._random, self._theta = dice.random, theta
        self._records, self._zeta, self._eta = 0, 0.0, 0.0

    def rank(self, records: int) -> int:
        """Return a rank below `records`. O(1), and O(records added since the last call)."""
        theta = self._theta
        if records != self._records:
            self._zeta += sum(1 / rank**theta for rank in range(self._records + 1, records + 1))
            self._records = records
            self._eta = (1 - (2 / records) ** (1 - theta)) / (1 - (1 + 0.5**theta) / self._zeta)
        u = self._random()
        if u * self._zeta < 1:
            return 0
        if u * self._zeta < 1 + 0.5**theta:
            return 1
        return min(records - 1, int(records * (self._eta * u - self._eta + 1) ** (1 / (1 - theta))))


def fnv(number: int) -> int:
    """Return the FNV-1a hash of the 8 bytes of a number, with which YCSB scatters ranks over the records."""
    value = _FNV_OFFSET
    for _ in range(8):
        value = ((value ^ (number & 255)) * _FNV_PRIME) & _WORD
        number >>= 8
    return value


def chooser(name: str, seed: int = 1) -> Chooser:
    """Return a function that chooses one of so many records. Raises KeyError for another name."""
    dice = random.Random(seed)
    zipf = Zipf(dice)
    below = dice.randrange
    return {
        "uniform": below,
        "hot": lambda records: below(max(1, int(records * HOT_SHARE))),
        "zipf": lambda records: fnv(zipf.rank(records)) % records,
        "latest": lambda records: records - 1 - zipf.rank(records),
    }[name]
