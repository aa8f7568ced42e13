"""Slid: computes counts, sums and means for the sliding windows of a whole batch of rows at once, with numpy.

    rows in order of time ── by key ──▶ line:  what expires of a | new of a | what expires of b | new of b | ...
                                               a window ends at its row, and begins where its first live value is

The change that a row makes to the total of its key is a difference of running sums over the line. The surprise: that is
exact for floats, too, because their sums are sums of whole numbers (`exact_columns`). A column has ints or floats; one
with both, or with decimals, is added up row by row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from .exact_columns import Scale, largest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[Any]  # ints or floats

Part = tuple[Literal["count", "sum", "mean"], int]
"""What is asked for, and the place of its column among those of a value."""
# The limit for the absolute sums of a column, for totals and for times, so that no result exceeds 64 bits.
_LARGEST: Final = 2**60
# The limit for sums of a mean: a mean divides two doubles, and doubles are exact for ints up to 2**53.
_EXACT: Final = 2**53
_ROOM: Final = 62  # bits for a running sum of floats' limbs


class TimedRows(NamedTuple):
    """The rows of a batch, in order of time.

    codes    for each row, its key as a place among the keys of the batch; every key has a row
    times    for each row, its time
    columns  the values of the rows by column: ints or floats
    """

    codes: Ints
    times: Ints
    columns: list[Numbers]


class Grouped(NamedTuple):
    """A batch with the keys that its codes stand for."""

    names: list[Any]
    batch: TimedRows


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

    batch: TimedRows
    order: Ints
    codes: Ints
    times: Ints
    last: Ints
    sizes: Ints

    @classmethod
    def of(cls, batch: TimedRows, keys: int) -> Sorted:
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

    def column(self, expiring: Numbers, new: Numbers) -> Numbers:
        """Return the line of a column: expiring values (key by key) and new values (in the given order)."""
        lined: Numbers = _lined(self.places, expiring, new[self.rows.order])
        return lined

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


def batch_of(codes: list[int], times: list[int], values: list[Any], width: int) -> TimedRows | None:
    """Return a batch whose values have so many columns, or None if a column has other values than ints of 64 bits, or
    than floats. O(rows).
    """
    columns = _columns(values, width)
    return None if columns is None else TimedRows(np.array(codes, np.int64), np.array(times, np.int64), columns)


def width_of(parts: Sequence[Part]) -> int:
    """Return the number of columns that a value needs for these parts."""
    return max(place for _, place in parts) + 1


def slide(parts: Sequence[Part], rows: Sorted, values: list[Any], size: int, before: Before) -> Slid | None:
    """Return the results for windows of `size` ms of many keys, or None if a column has other values than ints, or than
    floats, or ints are too large for 64 bits.

    parts   the parts of an aggregate
    values  the values of the rows as they are stored: a list for each value of several columns

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
    bases = list(zip(*before.totals, strict=True))
    counted = line.counted()
    sums: list[_Sums | None] = []
    for place, (expiring, added) in enumerate(zip(old, new, strict=True)):
        totals = [
            [total for total, _ in base] if kind == "mean" else base
            for (kind, at), base in zip(parts, bases, strict=True)
            if at == place and kind != "count"
        ]
        if not len(expiring):
            expiring = expiring.astype(added.dtype)
        sums.append(None if not totals else _sums(line, expiring, added, totals[0], counted))
        if totals and sums[-1] is None:
            return None
    results: list[Any] = []
    totals_of: list[list[Any]] = []
    for (kind, place), base in zip(parts, bases, strict=True):
        if kind == "count":
            counts = _whole(base)
            if counts is None:
                return None
            column = counts[rows.codes] + counted
            results.append(line.as_given(column))
            totals_of.append(column[rows.last].tolist())
            continue
        sum_of = sums[place]
        assert sum_of is not None
        if kind == "sum":
            results.append(line.as_given(sum_of.sums()))
            totals_of.append(sum_of.totals(rows.last))
            continue
        counts = _whole([count for _, count in base])
        if counts is None:
            return None
        count = counts[rows.codes] + counted
        means = sum_of.means(count)
        if means is None:
            return None
        results.append(line.as_given(means))
        totals_of.append(list(zip(sum_of.totals(rows.last), count[rows.last].tolist(), strict=True)))
    live = line.live
    return Slid(
        results,
        list(map(list, zip(*totals_of, strict=True))),
        array("q", rows.times[live].tobytes()),
        list(map(values.__getitem__, rows.order[live].tolist())),
        np.cumsum(np.bincount(rows.codes[live], minlength=len(rows.last))).tolist(),
    )


class _Sums(NamedTuple):
    """The sums of each row's window over a column. `scale` is None for ints.

    columns   ints: the sums; floats: their limbs
    floats    how many of the values are floats
    """

    scale: Scale | None
    columns: list[Ints]
    floats: Ints

    def sums(self) -> Numbers:
        """Return the sums, rounded if they are floats."""
        return self.columns[0] if self.scale is None else self.scale.sums(self.columns)

    def means(self, counts: Ints) -> Numbers | None:
        """Return the means, or None if they cannot be computed by column."""
        if self.scale is not None:
            return self.scale.means(self.columns, counts)
        return None if largest(self.columns[0]) > _EXACT else self.columns[0] / counts

    def totals(self, places: Ints) -> list[Any]:
        """Return the totals, of `exact`, at these places."""
        columns = [column[places] for column in self.columns]
        if self.scale is None:
            totals: list[Any] = columns[0].tolist()
            return totals
        return self.scale.totals(columns, self.floats[places], lowest=False)


def _sums(line: _Line, expiring: Numbers, added: Numbers, totals: Sequence[Any], counted: Ints) -> _Sums | None:
    """Return the sums of each row's window over a column, on top of the totals of the keys before the batch."""
    codes, addends = line.rows.codes, len(expiring) + len(added)
    if expiring.dtype != added.dtype:
        return None
    if added.dtype == np.int64:
        base = _whole(totals)
        if base is None or max(largest(expiring), largest(added)) * addends >= _LARGEST:
            return None
        return _Sums(None, [base[codes] + line.added(line.column(expiring, added))], counted)
    if not {int, list}.issuperset(map(type, totals)):
        return None
    floats = np.array([total[2] if type(total) is list else 0 for total in totals], np.int64)[codes] + counted
    scale = Scale.of([expiring, added], totals, addends + 1, _ROOM, int(floats.max()) + addends)
    parts = zip(scale.split_totals(totals), scale.split(expiring), scale.split(added), strict=True)
    return _Sums(scale, [base[codes] + line.added(line.column(old, new)) for base, old, new in parts], floats)


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


def _lined(places: Ints, expiring: Any, new: Any) -> Any:
    """Return a line with the new values at their places and the expiring values at the other places."""
    if not len(expiring):
        return new
    line = np.empty(len(expiring) + len(new), new.dtype)
    is_new = np.zeros(len(line), bool)
    is_new[places] = True
    line[places] = new
    line[~is_new] = expiring
    return line


def _columns(values: Sequence[Any], width: int) -> list[Numbers] | None:
    """Return the columns of the values, or None if a column has other values than ints of 64 bits, or than floats.

    O(n), at C speed.
    """
    if width < 2:
        columns: list[Any] = [_column(values)][:width]
    elif not values:
        columns = [np.empty(0, np.int64)] * width
    else:
        try:
            columns = [_column(column) for column in zip(*values, strict=True)]
        except (TypeError, ValueError):  # a value with another number of columns
            return None
    return None if any(column is None for column in columns) else columns[:width]


def _column(values: Sequence[Any]) -> Numbers | None:
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, np.float64)
    return _whole(values) if kinds <= {int, bool} else None


def _whole(values: Sequence[Any]) -> Ints | None:
    """Return a column of ints, or None if a value is no int, or is 2**60 or more."""
    if not {int, bool}.issuperset(map(type, values)):
        return None
    try:
        column = np.array(values, np.int64)
    except OverflowError:
        return None
    return column if largest(column) < _LARGEST else None
