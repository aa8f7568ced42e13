"""Groups: items of a batch by window start and key, added up by numpy.

    items     code (of the key)   1    0    1        grouped     0    1        by start, then key; with 2 keys
              start              20   20   20                   20   20        group = place of the start * keys + code
              value               5    7    1                    7    6
              rows                1    1    1                    1    2

An item is first a row, and then all rows of a key in a window, of which only sums, counts and extremes are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..times import arrow_list
from .buffers import array_of

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_INT64_MAX: Final = 2**63 - 1


class Coded(NamedTuple):
    """A column whose distinct values count: the value columns whose rows have a value of it (1, else 0), the distinct
    values, and the place of each item's value among them."""

    places: list[int]
    names: list[Any]
    codes: Ints


class ValueCounts(NamedTuple):
    """How often each group has each of its distinct values: the places of groups, values, and counts."""

    groups: list[int]
    values: list[Any]
    counts: list[int]


class Pick(NamedTuple):
    """How rows of a batch are chosen by a column: of rows with a value (1, else 0) the `most` with the greatest
    `deciding` and, of equal ones, with the greatest `order`; their times (ms), and as `columns` what decides and what
    is chosen of a row: the cells, or one `single` cell."""

    most: int
    valid: Ints
    deciding: Any
    order: Ints
    times: Ints
    columns: list[pa.ChunkedArray]
    single: bool

    def values(self, rows: Ints) -> list[list[Any]]:
        """Return the values of rows as an aggregator takes them: [what decides, time, what is chosen]. O(rows)."""
        places = array_of(rows)
        deciding, *cells = (arrow_list(column.take(places)) for column in self.columns)
        chosen = cells[0] if self.single else map(list, zip(*cells, strict=True))
        return list(map(list, zip(deciding, self.times[rows].tolist(), chosen, strict=True)))


class Winners(NamedTuple):
    """The groups and the rows that may be chosen: also those that are equal to the last but for what is chosen."""

    pick: Pick
    groups: Ints
    rows: Ints


class Items(NamedTuple):
    """Key code, window start, how many rows, and (values, how many) per value column.

    In groups the minima and maxima stand in columns behind the sums. Floats are not summed there; `limbs` has, for each
    value column, what sums of its floats are made of (`exact_columns`): nothing for ints.

    `at` are the places of items in the batch (of groups it says nothing), of which `coded` has the columns whose
    distinct values count, and `picks` how rows are chosen. In groups `tallies` says how often each value comes, by the
    value column, and `winners` which rows may be chosen, for each pick.
    """

    codes: Ints
    starts: Ints
    rows: Ints
    columns: list[tuple[Any, Ints]]
    limbs: list[list[Ints]]
    at: Ints
    coded: list[Coded]
    picks: list[Pick]
    tallies: dict[int, ValueCounts]
    winners: list[Winners]

    def chosen(self, which: Any) -> Items:
        """Return the items of a mask, or at these places. O(items)."""
        columns = [(values[which], valid[which]) for values, valid in self.columns]
        limbs = [[limb[which] for limb in column] for column in self.limbs]
        codes, starts, rows, at = self.codes[which], self.starts[which], self.rows[which], self.at[which]
        return self._replace(codes=codes, starts=starts, rows=rows, columns=columns, limbs=limbs, at=at)


def is_float(values: Any) -> bool:
    """Whether an array holds floats."""
    return bool(values.dtype.kind == "f")


def grouped(items: Items, keys: int, sums: int, summed: set[int], extremes: list[tuple[str, int]]) -> Items:
    """Return one item per start and key, by start and then key.

    keys      the number of distinct keys
    sums      the number of value columns; minima and maxima behind them are of an earlier grouping
    summed    the value columns that are added up
    extremes  "min" or "max" and its value column, of each

    O(items + groups), and O(items log items) where groups are sparse.
    """
    if not len(items.codes):
        return items
    starts, place = np.unique(items.starts, return_inverse=True)
    group = place * keys + items.codes
    length = len(starts) * keys
    ids: Ints
    if length > 8 * len(group) + 1024:
        ids, group = np.unique(group, return_inverse=True)
        length = len(ids)
        filled: Any = slice(None)
    else:
        filled = np.nonzero(np.bincount(group, minlength=length))[0]
        ids = filled
    columns: list[tuple[Any, Ints]] = []
    for column_at, (values, valid) in enumerate(items.columns[:sums]):
        counts = _added(group, valid, length)[filled]
        ints = column_at in summed and not is_float(values)
        columns.append((_added(group, values, length)[filled] if ints else np.zeros(len(counts)), counts))
    for kind, place_of in extremes:
        at = len(columns)
        values, valid = items.columns[at if len(items.columns) > at else place_of]
        if is_float(values):
            best, counts = extremes_of(kind, group, values, valid, length)
            columns.append((best[filled], counts[filled]))
            continue
        best = np.full(length, _INT64_MAX if kind == "min" else -_INT64_MAX, np.int64)
        present = valid > 0
        (np.minimum if kind == "min" else np.maximum).at(best, group[present], values[present])
        columns.append((best[filled], columns[place_of][1]))
    rows = _added(group, items.rows, length)[filled]
    limbs = [[_added(group, limb, length)[filled] for limb in column] for column in items.limbs]
    if len(ids) < length and (items.coded or items.picks):
        group = np.searchsorted(ids, group)
    tallies = _tallies(items, group)
    winners = [_winners(pick, group, items.at) for pick in items.picks]
    return Items(ids % keys, starts[ids // keys], rows, columns, limbs, ids, [], [], tallies, winners)


def _tallies(items: Items, group: Ints) -> dict[int, ValueCounts]:
    """Return how often each group has each value. O(items log items)."""
    tallies: dict[int, ValueCounts] = {}
    for places, names, codes in items.coded:
        pairs, each = np.unique(group * len(names) + codes[items.at], return_inverse=True)
        for place in places:
            counts = _added(each, items.columns[place][1], len(pairs))
            some = np.flatnonzero(counts)
            values = [names[code] for code in (pairs[some] % len(names)).tolist()]
            tallies[place] = ValueCounts((pairs[some] // len(names)).tolist(), values, counts[some].tolist())
    return tallies


def _winners(pick: Pick, group: Ints, at: Ints) -> Winners:
    """Return the rows that may be chosen. O(items log items)."""
    some = pick.valid[at] > 0
    rows, group = at[some], group[some]
    if not len(rows):
        return Winners(pick, group, rows)
    deciding, order = pick.deciding[rows], pick.order[rows]
    ascending = np.lexsort((order, deciding, group))
    rows, group, deciding, order = rows[ascending], group[ascending], deciding[ascending], order[ascending]
    ends = np.flatnonzero(np.append(group[1:] != group[:-1], True))
    sizes = np.diff(ends, prepend=-1)
    # the last of those that may be chosen, with which others may be equal
    least = np.repeat(np.maximum(ends - pick.most + 1, ends - sizes + 1), sizes)
    best = (np.arange(len(rows)) > least) | ((deciding == deciding[least]) & (order == order[least]))
    return Winners(pick, group[best], rows[best])


def _added(group: Ints, values: Ints, length: int) -> Ints:
    """Return the sum of the values of each group."""
    return np.bincount(group, weights=values, minlength=length).astype(np.int64)


class Runs(NamedTuple):
    """The items of each group behind one another, in their order: which those are, and where each group begins."""

    order: Ints
    first: Ints
    sizes: Ints

    def totals(self, values: Ints, base: Ints | list[int]) -> Ints:
        """Return running sums of values that stand group by group, each on top of its group's base. O(values)."""
        if not len(values):
            return values
        sums = np.cumsum(values)
        before = sums[self.first] - values[self.first] - np.array(base, np.int64)
        return sums - np.repeat(before, self.sizes)

    @property
    def ends(self) -> Ints:
        """Return the place of the last item of each group."""
        return self.first + self.sizes - 1

    def last(self, totals: Any) -> list[Any]:
        """Return the last total of each group."""
        last: list[Any] = totals[self.ends].tolist()
        return last

    def scattered(self, totals: Any) -> Any:
        """Return totals that stand group by group in the order of the items."""
        places = np.empty_like(totals)
        places[self.order] = totals
        return places


def runs_of(items: Items, keys: int) -> tuple[Runs, Ints, Ints]:
    """Return the runs of items by start and key, and the key codes and starts of their groups. O(items log items)."""
    starts, place = np.unique(items.starts, return_inverse=True)
    group = place * keys + items.codes
    order = np.argsort(group, kind="stable")
    ids, first = np.unique(group[order], return_index=True)
    runs = Runs(order, first, np.diff(np.append(first, len(group))))
    return runs, ids % keys, starts[ids // keys] if len(ids) else np.empty(0, np.int64)


def extremes_of(kind: str, group: Ints, values: Floats, valid: Ints, length: int) -> tuple[Floats, Ints]:
    """Return (least or greatest value of each group, how many values that are no NaN), equal to those row by row in
    every bit: of equal ones, -0.0 and 0.0, the last. O(values), and O(values log values) with a -0.0.
    """
    present = (valid > 0) & (values == values)
    group, values = group[present], values[present]
    counts = np.bincount(group, minlength=length)
    best = np.full(length, np.inf if kind == "min" else -np.inf)
    if (np.signbit(values) & (values == 0)).any():
        # stable, so that the last of equal values is behind the others, and it is the one that stays
        order = np.argsort(values if kind == "max" else -values, kind="stable")
        best[group[order]] = values[order]
    else:
        (np.minimum if kind == "min" else np.maximum).at(best, group, values)
    return best, counts
