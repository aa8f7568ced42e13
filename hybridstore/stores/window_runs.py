"""Window runs: the rows of a key in a bucket, and appending a column of rows to many runs.

A run is the flat tuple `(time, value, time, value, ...)` up to six records, and `[array of times, list of values]`
beyond, always by time. Tuples take less memory, and the garbage collector does not track them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from recovery.block import Columns, Rows

from .buckets import TOMBSTONE, StoreBucket

# Items of the longest run that is a flat tuple, six records: beyond, an array and a list take less memory.
SHORT: Final = 12
_NONE: Final[tuple[Any, ...]] = ()


def parts_of(run: Any) -> tuple[Sequence[int], Sequence[Any]]:
    """Return a run's times and values."""
    return (run[::2], run[1::2]) if type(run) is tuple else (run[0], run[1])


def run_of(parts: Sequence[Any]) -> Any:
    """Return the run with these times and values, in order."""
    times, values = parts
    if len(times) == 1:
        return times[0], values[0]
    if 2 * len(times) <= SHORT:
        return tuple(chain.from_iterable(zip(times, values, strict=True)))
    return [array("q", times), list(values)]


def index_of(run: Any, ts: int) -> int:
    """Return the index of the first row at a time in a run, -1 without one. O(log n)."""
    times = run[::2] if type(run) is tuple else run[0]
    i = bisect_left(times, ts)
    return i if i < len(times) and times[i] == ts else -1


def append_rows(runs: dict[Any, Any], keys: list[Any], times: list[int], values: list[Any]) -> None:
    """Append rows to the runs of their keys: each row is later than all rows of its run, and long runs may be changed
    in place. O(rows).
    """
    get = runs.get
    for key, row in zip(keys, zip(times, values, strict=True), strict=True):
        run = get(key, _NONE)
        if type(run) is tuple:
            if len(run) < SHORT:
                runs[key] = run + row
            else:
                runs[key] = [array("q", (*run[::2], row[0])), [*run[1::2], row[1]]]
        else:
            run[0].append(row[0])
            run[1].append(row[1])


def rows_between(
    runs: dict[Any, Any], key_from: Any, key_to: Any, low: int, high: int
) -> Iterator[tuple[int, Any, Any]]:
    """Iterate over the `(time, key, value)` of a bucket in a range of keys (None: open) and times, by key as they came.

    O(keys + rows).
    """
    for key, run in runs.items():
        if (key_from is not None and key < key_from) or (key_to is not None and key > key_to):
            continue
        if type(run) is tuple and len(run) == 2:
            if low <= run[0] <= high:
                yield run[0], key, run[1]
            continue
        times, values = parts_of(run)
        i, j = bisect_left(times, low), bisect_right(times, high)
        for at in range(i, j):
            yield times[at], key, values[at]


def gathered(bucket: StoreBucket, keys: list[Any], *, changed: bool) -> tuple[Columns, set[Any]]:
    """Return the rows of these keys by column, and the keys without rows; with `changed`, only the rows that changed
    since the last checkpoint. O(keys log rows + rows returned).
    """
    runs, since, late = bucket.runs, bucket.since, bucket.late
    kept: list[Any] = []
    froms: list[int] = []
    counts: list[int] = []
    all_times: array[int] = array("q")
    all_values: list[Any] = []
    removed: set[Any] = set()
    for key in keys:
        run = runs.get(key)
        if run is None:
            removed.add(key)
            continue
        times, values = parts_of(run)
        if changed:
            time = late.get(key, since)
            first = bisect_left(times, time)
            if first == len(times) and key not in late:
                continue
            times, values = times[first:], values[first:]
            froms.append(time)
        kept.append(key)
        counts.append(len(times))
        all_times.extend(times)
        all_values.extend(values)
    counted = None if counts.count(1) == len(kept) else counts
    return Columns(kept, counted, (all_times,), all_values, froms if changed else None), removed


def combined(older: Rows, newer: Rows) -> Rows:
    """Lay rows of a key over older ones: at each time only the newer row stays, and a tombstone removes both.

    O(rows log rows), O(newer rows) where none is older.
    """
    if not older[1] and TOMBSTONE not in newer[1]:
        return newer
    rows = dict(zip(older[0][0], older[1], strict=True))
    rows.update(zip(newer[0][0], newer[1], strict=True))
    times = sorted(time for time, value in rows.items() if value is not TOMBSTONE)
    return (times,), [rows[time] for time in times]


def in_turn(older: Rows, newer: Rows) -> Rows:
    """Lay rows of a key behind older ones of the same time. O(rows log rows)."""
    values = [*older[1], *newer[1]]
    rows = sorted(zip([*older[0][0], *newer[0][0]], range(len(values)), strict=True))
    return ([time for time, _ in rows],), [values[i] for _, i in rows]
