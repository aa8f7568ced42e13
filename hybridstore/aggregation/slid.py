"""Slid: the windows of a batch of rows of many keys, all at once by numpy, where counts, sums and means of ints are
asked for.

    rows in order of time ── by key ──▶ line:  what expires of a | new of a | what expires of b | new of b | ...
                                               a window ends at its row, and begins where its first live value is

What a row adds to the total of its key is a difference of running sums over the line. The surprise: this is for ints
alone. A sum of floats is merged from rungs, and its last bits depend on where the rungs were when each row came.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from .value_log import TimeLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Part = tuple[Literal["count", "sum", "mean"], int]
"""What is asked for, and the place of its column among those of a value."""
# No sum of what stays below this, as often as it is added, leaves 64 bits.
_LARGEST: Final = 2**60
# Doubles are exact up to here, and a mean is a division of two of them.
_EXACT: Final = 2**53


class Slid(NamedTuple):
    """What has become of the keys of a batch.

    results  of each part the result of each row, in the order of the rows
    totals   of each key the aggregates of what is live behind its last row
    ends     of each key the time of its last row
    times    the new rows that are live then, key by key: their times
    values   and their values
    stops    of each key where its rows end in these
    """

    results: list[list[Any]]
    totals: list[list[Any]]
    ends: list[int]
    times: array[int]
    values: list[Any]
    stops: list[int]


class _Line(NamedTuple):
    """What expires and what is new of each key, one behind the other. Rows stand by key, and then by time.

    order   of the rows as they were given
    codes   of each row its key
    times   of each row its time
    places  of each row its place in the line
    begins  of each row the place where its window begins
    last    of each key its last row
    firsts  of each key its first place in the line
    news    of each key the place of its first row
    """

    order: Ints
    codes: Ints
    times: Ints
    places: Ints
    begins: Ints
    last: Ints
    firsts: Ints
    news: Ints

    def column(self, expiring: Ints, new: Ints) -> Ints:
        """Return the line of values that expire, key by key, and of new ones in the order in which they were given."""
        return _lined(self.places, expiring, new[self.order])

    def added(self, column: Ints) -> Ints:
        """Return what is in the window of each row and was not in the total of its key before."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(column)))
        expiring = running[self.news] - running[self.firsts]
        return running[self.places + 1] - running[self.begins] - expiring[self.codes]

    def as_given(self, column: Any) -> list[Any]:
        """Return a column in the order of the rows as they were given."""
        given = np.empty_like(column)
        given[self.order] = column
        listed: list[Any] = given.tolist()
        return listed

    @property
    def live(self) -> Any:
        """Return of each row whether it is in the window of its key's last row."""
        begin = self.begins[self.last]
        return self.places >= begin[self.codes]


def slide(
    parts: Sequence[Part],
    codes: list[int],
    values: list[Any],
    times: list[int],
    size: int,
    before: Sequence[tuple[list[Any], TimeLog | None]],
) -> Slid | None:
    """Return what becomes of the windows of `size` ms of many keys, or None if a value is no int or numbers are too
    large for 64 bits.

    parts   what an aggregate is made of
    codes   of each row its key, as a place in `before`; every key has a row
    values  lists where they have several columns
    times   in order, and none before what is live
    before  of each key its total, and its log (None: it is empty)

    O(rows + what expires), at C speed, and O(log 512) a key.
    """
    width = max(place for _, place in parts) + 1
    given = np.array(codes, np.uint16 if len(before) <= 2**16 else np.int64)  # 16 bits are sorted in linear time
    order = np.argsort(given, kind="stable")
    new = _columns(values, width)
    last = np.cumsum(np.bincount(given, minlength=len(before))) - 1
    by_key = np.array(times, np.int64)[order]
    ends = by_key[last]
    counts, old_times, old_values = _expiring((ends - size).tolist(), before)
    old = _columns(old_values, width)
    if new is None or old is None:
        return None
    line = _line(order, given[order].astype(np.int64), by_key, last, counts, old_times, size)
    if line is None:
        return None
    length = len(values) + len(old_values)
    if any(_largest(column) * length >= _LARGEST for column in (*new, *old)):
        return None
    counted = line.added(np.ones(length, np.int64))
    summed = [line.added(line.column(expiring, added)) for expiring, added in zip(old, new, strict=True)]
    results: list[list[Any]] = []
    totals: list[list[Any]] = []
    for (kind, place), base in zip(parts, zip(*[total for total, _ in before], strict=True), strict=True):
        numbers = _columns(base, 2 if kind == "mean" else 1)
        if numbers is None or any(_largest(column) >= _LARGEST for column in numbers):
            return None
        column: Any = numbers[0][line.codes] + (counted if kind == "count" else summed[place])
        total = column[last].tolist()
        if kind == "mean":
            rows = numbers[1][line.codes] + counted
            if _largest(column) > _EXACT:
                return None
            total = list(zip(total, rows[last].tolist(), strict=True))
            column = column / rows
        results.append(line.as_given(column))
        totals.append(total)
    live = line.live
    return Slid(
        results,
        list(map(list, zip(*totals, strict=True))),
        ends.tolist(),
        array("q", by_key[live].tobytes()),
        list(map(values.__getitem__, order[live].tolist())),
        np.cumsum(np.bincount(line.codes[live], minlength=len(before))).tolist(),
    )


def _expiring(lows: list[int], before: Sequence[tuple[Any, TimeLog | None]]) -> tuple[Ints, array[int], list[Any]]:
    """Return how many live values each key has before its low, and their times and values."""
    counts: list[int] = []
    times: array[int] = array("q")
    values: list[Any] = []
    for low, (_, log) in zip(lows, before, strict=True):
        count = 0
        if log is not None and log.oldest < low:
            its_times, its_values = log.before(low)
            times += its_times
            values += its_values
            count = len(its_values)
        counts.append(count)
    return np.array(counts, np.int64), times, values


def _line(
    order: Ints, codes: Ints, times: Ints, last: Ints, counts: Ints, old_times: array[int], size: int
) -> _Line | None:
    """Lay out the line of rows by key; `counts` of `old_times` expire of each. None: times are too far apart."""
    keys = np.arange(len(last))
    ahead = np.cumsum(counts)
    places = np.arange(len(codes)) + ahead[codes]
    lined = _lined(places, np.array(old_times, np.int64), times)
    oldest = int(lined.min())
    # so that keys follow one another as in the line
    span = int(lined.max()) - oldest + 1
    if span * len(keys) >= _LARGEST:
        return None
    sizes = np.diff(last, prepend=-1)
    moments = lined - oldest + np.repeat(keys * span, sizes + counts)
    begins = np.searchsorted(moments, np.maximum(moments[places] - size, codes * span))
    news = places[last] - sizes + 1
    return _Line(order, codes, times, places, begins, last, news - counts, news)


def _lined(places: Ints, expiring: Ints, new: Ints) -> Ints:
    """Return a line with the new at their places, and what expires at the others."""
    line = np.empty(len(expiring) + len(new), np.int64)
    is_new = np.zeros(len(line), bool)
    is_new[places] = True
    line[places] = new
    line[~is_new] = expiring
    return line


def _columns(values: Sequence[Any], width: int) -> list[Ints] | None:
    """Return the columns of values, or None if some are no ints, or too large for 64 bits. O(n), at C speed."""
    try:
        if not {int, bool}.issuperset(map(type, values if width < 2 else chain.from_iterable(values))):
            return None
        return list(np.array(values, np.int64).reshape(len(values), max(width, 1)).T)[:width]
    except (OverflowError, TypeError, ValueError):  # a value that does not have the columns is no list of ints
        return None


def _largest(column: Ints) -> int:
    """Return the largest of the numbers without their signs, 0 of none."""
    return max(-int(column.min()), int(column.max())) if len(column) else 0
