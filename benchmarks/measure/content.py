"""Content: one number for everything that a state holds, the same for every engine that holds it.

for each key: crc32 over its times (8 bytes each, little-endian, in order), then its values; all keys added up with their names
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from benchmarks.measure.workload import Rows


def fingerprint(state: Iterable[tuple[str, array[int], Sequence[bytes]]]) -> int:
    """Return the number for `(key, times, values)` of every key, each given once with its rows by time. O(records)."""
    total = 0
    for key, times, values in state:
        if sys.byteorder == "big":  # pragma: no cover
            times = times[:]
            times.byteswap()
        one = crc32(key.encode())
        one = crc32(times.tobytes(), one)
        total += crc32(b"".join(values), one) * (len(values) + 1)
    return total % 2**64


def per_key(rows: Rows) -> dict[str, tuple[array[int], list[bytes]]]:
    """Group rows by key, each key's by time; a later row replaces an earlier one of the same key and time. O(n log n)."""
    latest = dict(zip(zip(rows.keys, rows.times, strict=True), rows.values, strict=True))
    found: dict[str, tuple[array[int], list[bytes]]] = {}
    for (key, ts), value in sorted(latest.items()):
        if key not in found:
            found[key] = (array("q"), [])
        found[key][0].append(ts)
        found[key][1].append(value)
    return found


def columns_of(held: Mapping[str, Sequence[tuple[int, bytes]]]) -> list[tuple[str, array[int], list[bytes]]]:
    """Return `(key, times, values)` of fetched rows."""
    return [(name, array("q", [row[0] for row in rows]), [row[1] for row in rows]) for name, rows in held.items()]
