"""Content: one number for everything that a state holds, the same for every engine that holds it.

for each key: crc32 over its times (8 bytes each, little-endian, in order), then its values; all keys added up with
their names
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
        crc = crc32(key.encode())
        crc = crc32(times.tobytes(), crc)
        total += crc32(b"".join(values), crc) * (len(values) + 1)
    return total % 2**64


def per_key(rows: Rows) -> dict[str, tuple[array[int], list[bytes]]]:
    """Group rows by key, each key's by time; a later row replaces an earlier one of the same key and time.

    O(n log n).
    """
    latest = dict(zip(zip(rows.keys, rows.times, strict=True), rows.values, strict=True))
    rows_of: dict[str, tuple[array[int], list[bytes]]] = {}
    for (key, ts), value in sorted(latest.items()):
        if key not in rows_of:
            rows_of[key] = (array("q"), [])
        rows_of[key][0].append(ts)
        rows_of[key][1].append(value)
    return rows_of


def columns_of(records: Mapping[str, Sequence[tuple[int, bytes]]]) -> list[tuple[str, array[int], list[bytes]]]:
    """Return `(key, times, values)` of fetched rows."""
    return [(name, array("q", [row[0] for row in rows]), [row[1] for row in rows]) for name, rows in records.items()]
