"""Slid: computes counts, sums and means of ints for the sliding windows of a whole batch of rows at once, with numpy.

    rows in order of time ── by key ──▶ line:  what expires of a | new of a | what expires of b | new of b | ...
                                               a window ends at its row, and begins where its first live value is

The change that a row makes to the total of its key is a difference of running sums over the line. The surprise: this
works only for ints. A sum of floats is merged from rungs, so its last bits depend on the rungs at each row's arrival.
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
# The limit for the absolute sums of a column, for totals and for times, so that no result exceeds 64 bits.
_LARGEST: Final = 2**60
# The limit for sums of a mean: a mean divides two doubles, and doubles are exact for ints up to 2**53.
_EXACT: Final = 2**53


class Slid(NamedTuple):
    """The results of a batch.

    results  for each part, the result of each row in the given order
    totals   for each key, the aggregates of the values that are live after its last row
    ends     for each key, the time of its last row
    times    the times of the new rows that are live after the batch, key by key
    values   the values of these rows
    stops    for each key, the end of its rows in `times` and `values`
    """

    results: list[list[Any]]
    totals: list[list[Any]]
    ends: list[int]
    times: array[int]
    values: list[Any]
    stops: list[int]


class _Line(NamedTuple):
    """The expiring and the new values of each key, joined in one line. Rows are sorted by key, then by time.

    order   for each sorted row, its given place
    codes   for each row, its key
    times   for each row, its time
    places  for each row, its place in the line
    begins  for each row, the place where its window begins
    last    for each key, its last row
    firsts  for each key, its first place in the line
    news    for each key, the place of its first row
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
        """Return the line of a column: expiring values (key by key) and new values (in the given order)."""
        return _lined(self.places, expiring, new[self.order])

    def added(self, column: Ints) -> Ints:
        """Return the change of each row's window against the total of its key before the batch."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(column)))
        expiring = running[self.news] - running[self.firsts]
        return running[self.places + 1] - running[self.begins] - expiring[self.codes]

    def as_given(self, column: Any) -> list[Any]:
        """Return a column in the given order of the rows."""
        given = np.empty_like(column)
        given[self.order] = column
        listed: list[Any] = given.tolist()
        return listed

    @property
    def live(self) -> Any:
        """Return for each row whether the row is in the window of its key's last row."""
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
    """Return the results for windows of `size` ms of many keys, or None if a value is no int or numbers are too large
    for 64 bits.

    parts   the parts of an aggregate
    codes   for each row, its key as a place in `before`; every key has a row
    values  a list for each value if there are several columns
    times   in order, and none earlier than a live value
    before  for each key, its total and its log (None: no values)

    O(rows + expiring values), at C speed, and O(log 512) for each key.
    """
    width = max(place for _, place in parts) + 1
    given = np.array(codes, np.uint16 if len(before) <= 2**16 else np.int64)  # numpy sorts 16 bits in linear time
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
    """Return the number of live values of each key before its `low`, and the times and values of these."""
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
    """Return the line, sorted by key; `counts` has the number of `old_times` of each key. None if times differ too
    much.
    """
    keys = np.arange(len(last))
    ahead = np.cumsum(counts)
    places = np.arange(len(codes)) + ahead[codes]
    lined = _lined(places, np.array(old_times, np.int64), times)
    oldest = int(lined.min())
    # an offset for each key, so that the moments ascend along the line
    span = int(lined.max()) - oldest + 1
    if span * len(keys) >= _LARGEST:
        return None
    sizes = np.diff(last, prepend=-1)
    moments = lined - oldest + np.repeat(keys * span, sizes + counts)
    begins = np.searchsorted(moments, np.maximum(moments[places] - size, codes * span))
    news = places[last] - sizes + 1
    return _Line(order, codes, times, places, begins, last, news - counts, news)


def _lined(places: Ints, expiring: Ints, new: Ints) -> Ints:
    """Return a line with the new values at their places and the expiring values at the other places."""
    line = np.empty(len(expiring) + len(new), np.int64)
    is_new = np.zeros(len(line), bool)
    is_new[places] = True
    line[places] = new
    line[~is_new] = expiring
    return line


def _columns(values: Sequence[Any], width: int) -> list[Ints] | None:
    """Return the columns of the values, or None if a value is no int or exceeds 64 bits. O(n), at C speed."""
    try:
        if not {int, bool}.issuperset(map(type, values if width < 2 else chain.from_iterable(values))):
            return None
        return list(np.array(values, np.int64).reshape(len(values), max(width, 1)).T)[:width]
    except (OverflowError, TypeError, ValueError):  # an int beyond 64 bits, or a value with another number of columns
        return None


def _largest(column: Ints) -> int:
    """Return the largest absolute value, 0 for an empty column."""
    return max(-int(column.min()), int(column.max())) if len(column) else 0
