"""Workload: seeded event streams, the same for ours and for every peer.

A stream is three columns: keys, values, timestamps. `dense` has many keys at each millisecond, `sparse` a millisecond
of its own for each record, `hot` keys by a Zipf law. Values are bytes of one length, no two alike, so that a wrong one
is noticed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

SHAPES: Final = ("dense", "sparse", "hot")
START_MS: Final = 1_700_000_000_000


class Rows(NamedTuple):
    """Columns of equal length."""

    keys: list[str]
    values: list[bytes]
    times: list[int]

    def part(self, start: int, end: int) -> Rows:
        """Return the rows from `start` to before `end`."""
        return Rows(self.keys[start:end], self.values[start:end], self.times[start:end])


@dataclass(frozen=True, slots=True)
class Stream:
    """A description of a stream: how many records, keys, bytes a value; its shape; what share arrives late, by up
    to `disorder_ms`.
    """

    records: int
    keys: int = 1000
    value_size: int = 16
    shape: str = "sparse"
    late: float = 0.0
    disorder_ms: int = 10_000
    seed: int = 1

    @property
    def span_ms(self) -> int:
        """The time from the first record to the last, in order (ms)."""
        return max(1, self.records // (self.keys if self.shape == "dense" else 10 if self.shape == "hot" else 1))

    def rows(self) -> Rows:
        """Make the records. The same description gives the same records everywhere. O(records)."""
        dice = random.Random(self.seed)
        names = [f"key-{number:07d}" for number in range(self.keys)]
        count = self.records
        if self.shape == "dense":
            keys = [names[i % self.keys] for i in range(count)]
            times = [START_MS + i // self.keys for i in range(count)]
        elif self.shape == "hot":
            weights = list(accumulate(1 / (rank + 1) ** 1.2 for rank in range(self.keys)))
            top = weights[-1]
            keys = [names[bisect_left(weights, dice.random() * top)] for _ in range(count)]
            times = [START_MS + i // 10 for i in range(count)]
        else:
            keys = dice.choices(names, k=count)
            times = [START_MS + i for i in range(count)]
        if self.late:
            for i in range(count):
                if dice.random() < self.late:
                    times[i] = max(START_MS, times[i] - dice.randrange(self.disorder_ms))
        return Rows(keys, values_of(count, self.value_size, self.seed), times)


def values_of(count: int, size: int, seed: int = 1) -> list[bytes]:
    """Return `count` byte values of `size` bytes: a number that tells them apart, and noise. O(count)."""
    noise = random.Random(seed).randbytes(size + 4096)
    if size < 8:
        return [(i % 256**size).to_bytes(size, "big") for i in range(count)]
    rest = size - 8
    return [i.to_bytes(8, "big") + noise[i % 4096 : i % 4096 + rest] for i in range(count)]
