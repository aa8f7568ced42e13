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

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Part = tuple[Literal["count", "sum", "mean"], int]
"""What is asked for, and the place of its column among those of a value."""
# The limit for the absolute sums of a column, for totals and for times, so that no result exceeds 64 bits.
_LARGEST: Final = 2**60
# The limit for sums of a mean: a mean divides two doubles, and doubles are exact for ints up to 2**53.
_EXACT: Final = 2**53


class Batch(NamedTuple):
    """The rows of a batch, in order of time.

    codes    for each row, its key as a place among the keys of the batch; every key has a row
    times    for each row, its time
    columns  the values of the rows by column
    """

    codes: Ints
    times: Ints
    columns: list[Ints]


class Grouped(NamedTuple):
    """A batch with the keys that its codes stand for."""

    names: list[Any]
    batch: Batch


class Slid(NamedTuple):
    """The results of a batch.

    results  for each part, the result of each row in the given order: an array
    totals   for each key, the aggregates of the values that are live after its last row
    times    the times of the new rows that are live after the batch, key by key
    values   the values of these rows
    stops    for each key, the end of its rows in `times` and `values`
    """

    results: list[Any]
    totals: list[list[Any]]
    times: array[int]
    values: list[Any]
    stops: list[int]


class Sorted(NamedTuple):
    """A batch sorted by key, then by time.

    batch   the batch as it was given
    order   for each sorted row, its given place
    codes   for each sorted row, its key
    times   for each sorted row, its time
    last    for each key, its last row
    sizes   for each key, the number of its rows
    """

    batch: Batch
    order: Ints
    codes: Ints
    times: Ints
    last: Ints
    sizes: Ints

    @classmethod
    def of(cls, batch: Batch, keys: int) -> Sorted:
        """Sort a batch with so many keys. O(rows), and O(rows log rows) with more than 65,536 keys."""
        given = batch.codes.astype(np.uint16) if keys <= 2**16 else batch.codes  # numpy sorts 16 bits in linear time
        order = np.argsort(given, kind="stable")
        sizes = np.bincount(batch.codes, minlength=keys)
        return cls(batch, order, batch.codes[order], batch.times[order], np.cumsum(sizes) - 1, sizes)

    @property
    def begins(self) -> Ints:
        """Return for each key the time of its first row."""
        begins: Ints = self.times[self.last - self.sizes + 1]
        return begins

    @property
    def ends(self) -> Ints:
        """Return for each key the time of its last row."""
        ends: Ints = self.times[self.last]
        return ends


class Before(NamedTuple):
    """The state of the keys before a batch, key by key.

    totals   for each key, the aggregates of its live values; of none, if no value is in the window of its first row
    counts   for each key, the number of values that its last row finds expired, but its first row might not
    times    the times of these values
    values   these values
    """

    totals: list[Any]
    counts: list[int]
    times: array[int]
    values: list[Any]


class _Line(NamedTuple):
    """The expiring and the new values of each key, joined in one line. Rows are sorted by key, then by time.

    rows    the batch
    places  for each row, its place in the line
    begins  for each row, the place where its window begins
    firsts  for each key, its first place in the line
    news    for each key, the place of its first row
    """

    rows: Sorted
    places: Ints
    begins: Ints
    firsts: Ints
    news: Ints

    def column(self, expiring: Ints, new: Ints) -> Ints:
        """Return the line of a column: expiring values (key by key) and new values (in the given order)."""
        return _lined(self.places, expiring, new[self.rows.order])

    def added(self, column: Ints) -> Ints:
        """Return the change of each row's window against the total of its key before the batch."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(column)))
        expiring = running[self.news] - running[self.firsts]
        return running[self.places + 1] - running[self.begins] - expiring[self.rows.codes]

    def counted(self) -> Ints:
        """Return `added` of a column of ones."""
        return self.places + 1 - self.begins - (self.news - self.firsts)[self.rows.codes]

    def as_given(self, column: Any) -> Any:
        """Return a column in the given order of the rows."""
        given = np.empty_like(column)
        given[self.rows.order] = column
        return given

    @property
    def live(self) -> Any:
        """Return for each row whether the row is in the window of its key's last row."""
        begin = self.begins[self.rows.last]
        return self.places >= begin[self.rows.codes]


def batch_of(codes: list[int], times: list[int], values: list[Any], width: int) -> Batch | None:
    """Return a batch whose values have so many columns, or None if a value is no int or exceeds 64 bits. O(rows)."""
    columns = _columns(values, width)
    return None if columns is None else Batch(np.array(codes, np.int64), np.array(times, np.int64), columns)


def width_of(parts: Sequence[Part]) -> int:
    """Return the number of columns that a value needs for these parts."""
    return max(place for _, place in parts) + 1


def slide(parts: Sequence[Part], rows: Sorted, values: list[Any], size: int, before: Before) -> Slid | None:
    """Return the results for windows of `size` ms of many keys, or None if a value is no int or numbers are too large
    for 64 bits.

    parts   the parts of an aggregate
    values  the values of the rows as they are stored: a list for each value if there are several columns

    No row is earlier than a live value. O(rows + expiring values), at C speed.
    """
    width = width_of(parts)
    new = rows.batch.columns[:width]
    old = _columns(before.values, width)
    if old is None:
        return None
    line = _line(rows, np.array(before.counts, np.int64), before.times, size)
    if line is None:
        return None
    length = len(values) + len(before.values)
    if any(_largest(column) * length >= _LARGEST for column in (*new, *old)):
        return None
    counted = line.counted()
    summed = [line.added(line.column(expiring, added)) for expiring, added in zip(old, new, strict=True)]
    results: list[Any] = []
    totals: list[list[Any]] = []
    for (kind, place), base in zip(parts, zip(*before.totals, strict=True), strict=True):
        numbers = _columns(base, 2 if kind == "mean" else 1)
        if numbers is None or any(_largest(column) >= _LARGEST for column in numbers):
            return None
        column: Any = numbers[0][rows.codes] + (counted if kind == "count" else summed[place])
        total = column[rows.last].tolist()
        if kind == "mean":
            count = numbers[1][rows.codes] + counted
            if _largest(column) > _EXACT:
                return None
            total = list(zip(total, count[rows.last].tolist(), strict=True))
            column = column / count
        results.append(line.as_given(column))
        totals.append(total)
    live = line.live
    return Slid(
        results,
        list(map(list, zip(*totals, strict=True))),
        array("q", rows.times[live].tobytes()),
        list(map(values.__getitem__, rows.order[live].tolist())),
        np.cumsum(np.bincount(rows.codes[live], minlength=len(rows.last))).tolist(),
    )


def _line(rows: Sorted, counts: Ints, old_times: array[int], size: int) -> _Line | None:
    """Return the line, sorted by key; `counts` has the number of `old_times` of each key. None if times differ too
    much.
    """
    keys = np.arange(len(rows.last))
    ahead = np.cumsum(counts)
    places = np.arange(len(rows.codes)) + ahead[rows.codes]
    lined = _lined(places, np.frombuffer(old_times, np.int64), rows.times)
    oldest = int(lined.min())
    # an offset for each key, so that the moments ascend along the line
    span = int(lined.max()) - oldest + 1
    if span * len(keys) >= _LARGEST:
        return None
    moments = lined - oldest + np.repeat(keys * span, rows.sizes + counts)
    begins = np.searchsorted(moments, np.maximum(moments[places] - size, rows.codes * span))
    news = places[rows.last] - rows.sizes + 1
    return _Line(rows, places, begins, news - counts, news)


def _lined(places: Ints, expiring: Ints, new: Ints) -> Ints:
    """Return a line with the new values at their places and the expiring values at the other places."""
    if not len(expiring):
        return new
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
