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
import pyarrow.compute as pc

from ...clock import INT64_MAX
from ...shards import shard_of
from ..batch import key_columns
from ..columns.arrow import ascending_of, keys_of, plain_key, times_of
from ..columns.buffers import array_of, numbers_of, taken_at, text_array, whole
from ..columns.why import Why
from ..plan import Plan
from ..row_columns import rows_of_arrow
from ..times import arrow_list
from .interval import Arrivals, Arrived, Fetched
from .pairs import Pairs, values_of
from .rows import Sides, input_plan
from .shapes import Shape
from .spec import LEFT, RIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_LARGE = 2**62
# So many texts of a column say whether many are equal.
_SAMPLE = 256


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
    texts    `names` as an Arrow array of text, where results have such keys
    widths   of each side how many values a stored row has besides a time of its own; None while that is unknown
    columns  of each side the values of its rows by column as Arrow arrays, if results can have such columns
    """

    rows: Arrivals
    names: list[Any]
    codes: Ints
    sides: Ints
    times: Ints
    late: int
    asked: tuple[Ints, Ints]
    numbers: Ints | None
    texts: Any
    widths: tuple[int | None, ...]
    columns: tuple[list[Any] | None, list[Any] | None]


class _Keyed(NamedTuple):
    names: list[Any]
    codes: Ints
    sides: Ints
    times: Ints
    numbers: Ints | None
    texts: Any


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
    moments = np.concatenate(times)
    known = keys_of(joined, len(moments))
    if known is None:
        return Why.KEYS
    plain = len(known.parts) == 1 and pa.types.is_integer(known.parts[0].type)
    of_names = numbers_of(known.parts[0]) if plain else None
    texts = known.parts[0] if len(known.parts) == 1 and pa.types.is_string(known.parts[0].type) else None
    return _Keyed(known.names, known.codes, np.concatenate(numbers), moments, of_names, texts)


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
    names, codes, numbers, times, of_names, texts = keyed
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
    by_column: list[list[Any] | None] = []
    for side in (LEFT, RIGHT):
        table, here = sides[side], numbers == side
        columns = [] if table is None or not here.any() else _columns(shapes[side], table, places[here])
        if columns is None:
            return Why.MISSING
        of_side = codes[here]
        values = values_of([_listed(column) for column in columns], len(of_side))
        different = np.flatnonzero(np.bincount(of_side, minlength=len(names)))
        keys = _named(keyed, of_side)
        asked.append(different)
        plain = all(_atoms(column.type) for column in columns)
        of_sides.append(Arrived(keys, times[here].tolist(), values, _named(keyed, different), plain))
        exact = [_exact(column) for column in columns]
        by_column.append(None if any(column is None for column in exact) else exact)
    rows, both = Arrivals(numbers, (of_sides[LEFT], of_sides[RIGHT])), (asked[LEFT], asked[RIGHT])
    results = by_column[LEFT], by_column[RIGHT]
    widths = tuple(None if shape.names is None else len(shape.names) for shape in shapes)
    return Arranged(rows, names, codes, numbers, times, late, both, of_names, texts, widths, results)


def _named(keyed: _Keyed, codes: Ints) -> list[Any]:
    """Return keys by their places in `names`."""
    named: list[Any] = (
        list(map(keyed.names.__getitem__, codes.tolist())) if keyed.numbers is None else keyed.numbers[codes].tolist()
    )
    return named


def _order(sides: Sides, keyed: _Keyed) -> Ints | None:
    """Return the canonical order: by time, left before right, key, and content; None if content has no order."""
    names, codes, numbers, times, *_ = keyed
    low = int(times.min())
    if (int(times.max()) - low + 1) * 2 * len(names) >= _LARGE:
        return None
    place = ((times - low) * 2 + numbers) * len(names) + codes
    order, ascending = ascending_of(place)
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
            for at, row in zip(here, rows_of_arrow(taken_at(table, [at - offset for at in here])), strict=True):
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


def _columns(shape: Shape, table: Any, places: Ints) -> list[Any] | None:
    """Return the columns of the stored values of rows, as `Shape.encoded` gives them; None for rows with columns of
    their own.
    """
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
    return taken


def _atoms(kind: pa.DataType) -> bool:
    """Whether Python has the values of a type as None, bool, int, float, str or bytes."""
    types = pa.types
    tests = types.is_integer, types.is_floating, types.is_string, types.is_large_string, types.is_boolean, types.is_null
    return any(test(kind) for test in (*tests, types.is_binary))


def _exact(column: Any) -> Any:
    """Return a column, not empty, as an array of the type that Arrow infers from its values; None if it has nulls, or
    values that are neither whole numbers nor floats nor text.
    """
    kind = column.type
    if column.null_count or pa.types.is_uint64(kind) or not len(column):
        return None
    if pa.types.is_string(kind):
        return whole(column)
    if pa.types.is_integer(kind):
        return whole(column.cast(pa.int64()))
    return whole(column.cast(pa.float64())) if pa.types.is_float32(kind) or pa.types.is_float64(kind) else None


def _listed(column: Any) -> list[Any]:
    """Return a column as `rows_of_arrow` gives its values. Equal texts are one object where many are equal, which takes
    less memory, and less time with every later look at them.
    """
    if pa.types.is_string(column.type) and len(column) and not column.null_count:
        sample = column.slice(0, _SAMPLE)
        if 2 * pc.count_distinct(sample).as_py() <= len(sample):
            encoded = whole(column).dictionary_encode()
            return list(map(arrow_list(encoded.dictionary).__getitem__, numbers_of(encoded.indices).tolist()))
    return arrow_list(column)


class _Side(NamedTuple):
    """Rows of a side, by key and time: stored ones, and those of the commit behind them.

    at       their places in `times`, in order of key, time and arrival
    places   key and time in one number, ascending
    """

    at: Ints
    places: Ints
    times: Ints
    ranks: Ints
    codes: Ints


def matched(
    new: Arranged, near: tuple[Fetched, Fetched], reach: tuple[tuple[int, int], tuple[int, int]]
) -> Pairs | None:
    """Return each pair of rows that are near each other, at the later of the two to arrive, partners by time; None if
    times are too far apart for numbers of 64 bits. O(rows log rows + results log results).

    near   the stored rows of each side that the rows of the commit may meet
    reach  how far (ms) before and behind the time of a row of each side its partners are
    """
    stored_times = [np.fromiter(side.times, np.int64, len(side.times)) for side in near]
    ends = [int(end) for times in stored_times if len(times) for end in (times.min(), times.max())]
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
        of_keys = new.asked[1 - side][np.fromiter(stored.places, np.int64, len(stored.places))]
        codes = np.concatenate([of_keys, new.codes[ranks]])
        times = np.concatenate([stored_times[side], new.times[ranks]])
        places = codes * width + (times - base)
        ranks = np.concatenate([np.full(len(stored.times), -1), ranks])
        sides.append(_Side(*ascending_of(places), times, ranks, codes))
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
    order, _ = ascending_of(np.maximum(rank, other) * max(len(lefts.at), len(rights.at)) + partner)
    i, j = i[order], j[order]
    codes = lefts.codes[i]
    keys = (
        new.numbers[codes]
        if new.numbers is not None
        else list(map(new.names.__getitem__, codes.tolist()))
        if new.texts is None
        else new.texts.take(array_of(codes))
    )
    pairs = Pairs(keys, lefts.times[i], right_times=rights.times[j])
    pairs.left_values, pairs.left_columns = _taken(near[LEFT].values, new, LEFT, i)
    pairs.right_values, pairs.right_columns = _taken(near[RIGHT].values, new, RIGHT, j)
    return pairs


def _taken(stored: list[Any], new: Arranged, side: int, at: Ints) -> tuple[list[Any], list[Any] | None]:
    """Return the values of results by their places among the stored rows of a side and the rows of the commit behind
    them: as columns, where all have the same number, else as values.
    """
    columns, behind = new.columns[side], at >= len(stored)
    if columns is not None and behind.all():
        chosen = array_of(at - len(stored))
        return [], [column.take(chosen) for column in columns]
    if len(stored) <= 2 * len(at):
        above = _by_type(stored, new.widths[side])
        if above is not None and behind.any():
            above = None if columns is None else _one_above_the_other(above, columns)
        if above is not None:
            return [], [_at(column, at) for column in above]
    both = stored + new.rows.of_sides[side].values if behind.any() else stored
    return list(map(both.__getitem__, at.tolist())), None


def _at(column: Any, at: Ints) -> Any:
    return list(map(column.__getitem__, at.tolist())) if isinstance(column, tuple) else column.take(array_of(at))


def _by_type(values: list[Any], width: int | None) -> list[Any] | None:
    """Return stored values by column, texts as they are, numbers as Arrow arrays; None unless each column has texts,
    floats or whole numbers of 64 bits alone, and no row has a time of its own behind `width` values.
    """
    if set(map(type, values)) != {list} or set(map(len, values)) != {width}:
        return None
    columns: list[Any] = []
    for column in zip(*values, strict=True):
        kinds = set(map(type, column))
        if kinds == {str}:
            columns.append(column)
        elif kinds == {float}:
            columns.append(array_of(np.array(column, np.float64)))
        elif kinds == {int} and min(column) >= -INT64_MAX and max(column) <= INT64_MAX:
            columns.append(array_of(np.array(column, np.int64)))
        else:
            return None
    return columns


def _one_above_the_other(stored: list[Any], columns: list[Any]) -> list[Any] | None:
    """Return columns of stored rows (`_by_type`) with those of the rows of the commit behind them, or None unless their
    types are the same.
    """
    try:
        above = [text_array(column) if isinstance(column, tuple) else column for column in stored]
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    if [column.type for column in above] != [column.type for column in columns]:
        return None
    return list(map(pa.concat_arrays, zip(above, columns, strict=True)))


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
