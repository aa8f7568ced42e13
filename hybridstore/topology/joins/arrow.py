"""Arrow: a commit of an interval join by column, where both inputs are Arrow tables.

    tables ─ arranged ─▶ Arranged: both sides as one column of keys, times, values, in canonical order
                            └─ matched, with the stored rows that are near ─▶ Pairs

numpy does the work, without Python code per row. Results and changelog are those of the way by row (`interval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...clock import INT64_MAX
from ...shards import shard_of
from ..batch import arrow_rows, key_columns
from ..columns.arrow import keys_of, plain_key, times_of
from ..columns.buffers import array_of, numbers_of, taken_at
from ..columns.why import Why
from ..plan import Plan
from ..times import arrow_list
from .interval import Arrivals, Arrived, Fetched
from .pairs import Pairs
from .rows import Sides, input_plan
from .shapes import Shape
from .spec import LEFT, RIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_LARGE = 2**62


class Arranged(NamedTuple):
    """The rows of both sides in canonical order.

    rows    the rows as the way by row has them
    names   the distinct keys, in order
    codes   of each row the place of its key in `names`
    sides   of each row its side
    times   of each row its time (ms)
    late    how many rows were too late, and are not among them
    asked   of each side the places in `names` of its different keys
    numbers  `names` as numbers; None for text, and for keys of several columns
    """

    rows: Arrivals
    names: list[Any]
    codes: Ints
    sides: Ints
    times: Ints
    late: int
    asked: tuple[Ints, Ints]
    numbers: Ints | None


class _Keyed(NamedTuple):
    names: list[Any]
    codes: Ints
    sides: Ints
    times: Ints
    numbers: Ints | None


def fits(plan: Plan, sides: Sides) -> Why | None:
    """Return why the rows of a commit must go row by row, or None. O(columns)."""
    join = plan.joined
    assert join is not None
    steps = not plan.stepped and any(source.steps for source in join.inputs)
    if not join.interval or join.late is not None or steps:
        return Why.WHOLE_ROWS
    if plan.null_keys == "group":
        return Why.KEYS
    for source, table in zip(join.inputs, sides, strict=True):
        if table is None:
            continue
        if not {*source.key, source.timestamp, *(source.columns or ())} <= set(table.column_names):
            return Why.MISSING
        if table.column(source.timestamp).null_count:
            return Why.TIMES
        # a float may be nan, which is no key, and rows without a key are taken one by one
        if any(table.column(name).null_count or not plain_key(table.schema.field(name).type) for name in source.key):
            return Why.KEYS
    return None


def split(plan: Plan, sides: Sides, shards: int) -> list[Sides] | Why:
    """Return the part of a commit for each shard, or the reason why its rows must be checked one by one. O(rows)."""
    if shards == 1:
        return [sides]
    keyed = _keyed(plan, sides)
    if isinstance(keyed, Why):
        return keyed
    of_key = np.array([shard_of(name, shards) for name in keyed.names], np.int64)
    places = of_key[keyed.codes]
    parts = []
    for shard in range(shards):
        tables = []
        for side, table in enumerate(sides):
            chosen = np.flatnonzero(places[keyed.sides == side] == shard)
            tables.append(None if table is None else table.take(array_of(chosen)))
        parts.append(Sides(*tables))
    return parts


def _keyed(plan: Plan, sides: Sides) -> _Keyed | Why:
    """Return keys, sides and times of the left rows, and the right rows behind them."""
    join = plan.joined
    assert join is not None
    times: list[Ints] = []
    numbers: list[Ints] = []
    keys: list[list[Any]] = [[] for _ in join.left_side.key]
    for side, source in enumerate(join.inputs):
        table = sides[side]
        if table is None or not table.num_rows:
            continue
        of_side = times_of(table.column(source.timestamp))
        if of_side is None:
            return Why.TIMES
        times.append(of_side)
        numbers.append(np.full(len(of_side), side))
        for place, column in enumerate(key_columns(input_plan(plan, source), table)):
            whole_number = pa.types.is_integer(column.type)
            keys[place].append(column.cast(pa.int64()) if whole_number else column)
    if not times:
        return Why.NO_ROWS
    if any(part.type != parts[0].type for parts in keys for part in parts):
        return Why.KEYS
    joined = [pa.chunked_array([chunk for part in parts for chunk in _chunks(part)]) for parts in keys]
    whole = np.concatenate(times)
    known = keys_of(joined, len(whole))
    if known is None:
        return Why.KEYS
    plain = len(known.parts) == 1 and pa.types.is_integer(known.parts[0].type)
    of_names = numbers_of(known.parts[0]) if plain else None
    return _Keyed(known.names, known.codes, np.concatenate(numbers), whole, of_names)


def _chunks(column: Any) -> Sequence[Any]:
    chunks: Sequence[Any] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return chunks


def arranged(plan: Plan, sides: Sides, shapes: tuple[Shape, Shape], late_through: int) -> Arranged | Why:
    """Return the rows of a commit in canonical order, without those up to the time `late_through` (ms); or why they
    must go row by row. O(rows log rows).
    """
    keyed = _keyed(plan, sides)
    if isinstance(keyed, Why):
        return keyed
    names, codes, numbers, times, of_names = keyed
    order = _order(sides, keyed)
    if order is None:
        return Why.ORDER
    kept = order[times[order] > late_through]
    late = len(order) - len(kept)
    codes, numbers, times = codes[kept], numbers[kept], times[kept]
    # the place of each row in the table of its side
    places = kept - (0 if sides[LEFT] is None else sides[LEFT].num_rows) * numbers
    of_sides = []
    asked = []
    for side in (LEFT, RIGHT):
        table, here = sides[side], numbers == side
        values = [] if table is None or not here.any() else _values(shapes[side], table, places[here])
        if values is None:
            return Why.MISSING
        of_side = codes[here]
        asked.append(np.flatnonzero(np.bincount(of_side, minlength=len(names))))
        keys, distinct = (
            list(map(names.__getitem__, chosen.tolist())) if of_names is None else of_names[chosen].tolist()
            for chosen in (of_side, asked[side])
        )
        of_sides.append(Arrived(keys, times[here].tolist(), values, distinct))
    rows = Arrivals(numbers, (of_sides[LEFT], of_sides[RIGHT]))
    return Arranged(rows, names, codes, numbers, times, late, (asked[LEFT], asked[RIGHT]), of_names)


def _order(sides: Sides, keyed: _Keyed) -> Ints | None:
    """Return the canonical order: by time, left before right, key, and content; None if content has no order."""
    names, codes, numbers, times, _ = keyed
    low = int(times.min())
    if (int(times.max()) - low + 1) * 2 * len(names) >= _LARGE:
        return None
    place = ((times - low) * 2 + numbers) * len(names) + codes
    order = np.argsort(place, kind="stable")
    ascending = place[order]
    equal = np.flatnonzero(ascending[1:] == ascending[:-1])
    if not len(equal):
        return order
    # rows of one time, side and key: by content, as Python's rows
    tied = np.union1d(equal, equal + 1)
    rows: list[Any] = [None] * len(order)
    offset = 0
    for table in sides:
        width = 0 if table is None else table.num_rows
        if width:
            here = [int(place) for place in order[tied] if offset <= place < offset + width]
            for at, row in zip(here, arrow_rows(taken_at(table, [at - offset for at in here])), strict=True):
                if any(value != value for value in row.values()):
                    return None  # nan has no order
                rows[at] = sorted(row.items())
        offset += width
    groups = np.split(tied, np.flatnonzero(ascending[tied][1:] != ascending[tied][:-1]) + 1)
    try:
        for group in groups:
            order[group] = sorted(order[group].tolist(), key=rows.__getitem__)
    except TypeError:  # values that Python cannot compare: all rows are compared in another way
        return None
    return order


def _values(shape: Shape, table: Any, places: Ints) -> list[Any] | None:
    """Return the stored values of rows, as `Shape.encoded` gives them; None for rows with columns of their own."""
    names = shape.named(table.column_names)
    if names is None:
        return None
    moments = table.column(shape.timestamp)
    taken = [table.column(name) for name in names]
    if not pa.types.is_integer(moments.type):
        taken.append(moments)  # a store keeps whole milliseconds
    if len(places) < table.num_rows or (places[1:] < places[:-1]).any():
        at = array_of(places)
        taken = [column.take(at) for column in taken]
    return shape.joined([_listed(column) for column in taken], len(places))


def _listed(column: Any) -> list[Any]:
    """Return a column as `arrow_rows` gives its values."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return arrow_list(column)


class _Side(NamedTuple):
    """Rows of a side, by key and time: stored ones, and those of the commit behind them.

    at       their places in `times` and `values`, in order of key, time and arrival
    places   key and time in one number, ascending
    """

    at: Ints
    places: Ints
    times: Ints
    ranks: Ints
    codes: Ints
    values: list[Any]


def matched(
    new: Arranged, near: tuple[Fetched, Fetched], reach: tuple[tuple[int, int], tuple[int, int]]
) -> Pairs | None:
    """Return each pair of rows that are near each other, at the later of the two to arrive, partners by time; None if
    times are too far apart for numbers of 64 bits. O(rows log rows + results log results).

    near   the stored rows of each side that the rows of the commit may meet
    reach  how far (ms) before and behind the time of a row of each side its partners are
    """
    ends = [end for side in near if side.times for end in (min(side.times), max(side.times))]
    base = min(int(new.times[0]), *ends, INT64_MAX)
    last = max(int(new.times[-1]), *ends, 0)
    width = last - base + 2
    if width * len(new.names) >= _LARGE:
        return None
    sides = []
    for side in (LEFT, RIGHT):
        ranks = np.flatnonzero(new.sides == side)
        stored = near[side]
        # the stored rows are of the keys of the other side
        codes = np.concatenate([new.asked[1 - side][np.array(stored.places, np.int64)], new.codes[ranks]])
        times = np.concatenate([np.array(stored.times, np.int64), new.times[ranks]])
        values = stored.values + new.rows.of_sides[side].values
        places = codes * width + (times - base)
        at = np.argsort(places, kind="stable")
        ranks = np.concatenate([np.full(len(stored.times), -1), ranks])
        sides.append(_Side(at, places[at], times, ranks, codes, values))
    lefts, rights = sides
    firsts: list[Ints] = []
    seconds: list[Ints] = []
    for fresh, stored_only in ((True, False), (False, True)):
        # left rows of the commit meet all right rows; stored ones meet the right rows of the commit
        places_of_left = np.flatnonzero((lefts.ranks[lefts.at] >= 0) == fresh)
        others = np.flatnonzero(rights.ranks[rights.at] >= 0) if stored_only else np.arange(len(rights.at))
        a, b = _ranges(lefts, places_of_left, rights, others, base, width, reach[LEFT])
        firsts.append(a)
        seconds.append(b)
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    i, j = lefts.at[first], rights.at[second]
    rank, other = lefts.ranks[i], rights.ranks[j]
    # where both are of the commit, the later one gives the result; its partners come by time and arrival
    partner = np.where(rank > other, second, first)
    order = np.argsort(np.maximum(rank, other) * max(len(lefts.at), len(rights.at)) + partner, kind="stable")
    i, j = i[order], j[order]
    codes = lefts.codes[i]
    return Pairs(
        list(map(new.names.__getitem__, codes.tolist())) if new.numbers is None else new.numbers[codes],
        lefts.times[i],
        list(map(lefts.values.__getitem__, i.tolist())),
        rights.times[j],
        list(map(rights.values.__getitem__, j.tolist())),
    )


def later(lefts: Ints, rights: Ints) -> Ints:
    """Return the later time of each pair. O(results)."""
    return np.maximum(lefts, rights)


def _ranges(
    lefts: _Side, of_left: Ints, rights: _Side, of_right: Ints, base: int, width: int, reach: tuple[int, int]
) -> tuple[Ints, Ints]:
    """Return the pairs of some left rows with some right rows, as their places in the order of each side."""
    at = lefts.at[of_left]
    start = lefts.codes[at] * width
    since = lefts.times[at] - base
    reach = min(reach[0], width), min(reach[1], width)  # numbers of 64 bits: no partner is farther than all rows
    places = rights.places[of_right]
    low = np.searchsorted(places, start + np.clip(since - reach[0], 0, width - 1), "left")
    high = np.searchsorted(places, start + np.clip(since + reach[1], -1, width - 1), "right")
    counts = np.maximum(high - low, 0)
    firsts = np.repeat(of_left, counts)
    ends = np.cumsum(counts)
    within = np.arange(len(firsts)) - np.repeat(ends - counts, counts)
    return firsts, of_right[np.repeat(low, counts) + within]
