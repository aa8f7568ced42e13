"""Sizes: how many bytes records take in memory, from a sample of a store's maps.

    size of a map = its table, as Python counts it + entries x the mean of a sample of keys and values

The numbers were measured on CPython 3.11 (benchmarks/suites/beyond_memory.py reads the memory from outside). The
surprise: the packed size says little. A record of 18 packed bytes takes 120 bytes in a key-value store, 290 in a
suppression buffer, and 670 as the only value of a sliding window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any, Final, TypeVar

from .cold_blocks import Cold, ColdPage, DecodedBlock, taken_sets

K = TypeVar("K")
V = TypeVar("V")

# So many entries of a map are measured, and so many items of what is long in a value.
SAMPLE: Final = 32
_LONG: Final = 8 * SAMPLE
# An entry of a heap: its place, a pair and a number.
HEAP_BYTES: Final = 104
# A cold block: its line of the directory. A record of a decoded one.
BLOCK_BYTES: Final = 600
DECODED_BYTES: Final = 120
# The open table of a cold block: views of its parts, and what finds its hashes. A layer has few: estimated as that of a
# block, the tables of a few checkpoints left no room for records.
TABLE_BYTES: Final = 1900
LAYER_BYTES: Final = 700
# The state of a sliding window beside its times and values.
STATE_BYTES: Final = 350
# Python's allocator rounds up to this.
_ROUND: Final = 16
# small integers exist once
_SHARED: Final = range(-5, 257)
NUMBER_BYTES: Final = 32


def deep(value: Any) -> int:
    """Return the bytes of a value, of whatever a store can hold, with everything in it; what is long in it is
    estimated. O(value), and of its long parts O(sample).
    """
    kind = type(value)
    if value is None or kind is bool or (kind is int and value in _SHARED):
        return 0
    size = -(-getsizeof(value) // _ROUND) * _ROUND
    if kind is dict:
        if len(value) > _LONG:
            return map_bytes(value, deep)
        return size + sum(deep(key) + deep(item) for key, item in value.items())
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        if len(value) > _LONG:
            sample = list(islice(value, 0, None, len(value) // SAMPLE + 1))
            return size + len(value) * sum(map(deep, sample)) // len(sample)
        return size + sum(map(deep, value))
    return size


def run_bytes(run: Any) -> int:
    """Return about how many bytes the records of one key take: a value, a tuple, or a list of columns. O(sample)."""
    if type(run) is not list:
        return deep(run)
    return getsizeof(run) + sum(column_bytes(part) if type(part) is list else deep(part) for part in run)


def column_bytes(values: Sequence[Any]) -> int:
    """Return about how many bytes a long list of values takes. O(sample)."""
    if not values:
        return 0
    sample = values[:: len(values) // SAMPLE + 1]
    return getsizeof(values) + len(values) * sum(map(deep, sample)) // len(sample)


def ends(entries: dict[K, V], most: int) -> list[tuple[K, V]]:
    """Return a sample of the entries of a map, of both ends: the first records may be shorter. O(most)."""
    items = entries.items()
    return [*islice(items, most // 2), *islice(reversed(items), most // 2)]


def map_bytes(entries: dict[Any, Any], size_of: Callable[[Any], int] = run_bytes) -> int:
    """Return about how many bytes a map takes, with `size_of` its values. O(sample)."""
    if not entries:
        return 0
    sample = ends(entries, SAMPLE)
    # the first keys may be small integers, which exist once: those behind them do not
    mean = sum((deep(key) or NUMBER_BYTES) + size_of(value) for key, value in sample) / len(sample)
    return int(getsizeof(entries) + len(entries) * mean)


def cold_bytes(cold: Sequence[Cold]) -> int:
    """Return about how many bytes cold blocks take by being known. O(blocks)."""
    size = BLOCK_BYTES * len(cold)
    for block in cold:
        if isinstance(block, ColdPage):
            # Open tables of its blocks, and what those know of layers, may be kept for readers to come: they are no
            # block's but the process's, a bounded number (`recovery.pack.KeptTables`), and in the part of the limit
            # that is not for records (`memory_budget.usable`).
            continue
        if tables := block.tables:
            size += TABLE_BYTES + LAYER_BYTES * (tables - 1) + block.layer_bytes
        if type(block) is DecodedBlock:
            size += DECODED_BYTES * block.records
    return size + sum(map(getsizeof, taken_sets(cold)))
