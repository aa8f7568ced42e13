"""The laws of the algebra of columns, against plain lists of (key, records, from)."""

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recovery.columns import WHOLE, Columns, joined
from recovery.planner import _unequal

Plain = list[tuple[int, list[tuple[int, Any]], int]]

records = st.lists(st.tuples(st.integers(-9, 9), st.sampled_from(["a", None, 1.5, float("nan")])), max_size=3)
plain = st.dictionaries(st.integers(0, 40), st.tuples(records, st.integers(WHOLE, 5)), max_size=12).map(
    lambda rows: [(key, *rows[key]) for key in sorted(rows)]
)
single = plain.map(lambda rows: [(key, (of_key or [(0, "b")])[:1], time) for key, of_key, time in rows])


def columns(rows: Plain) -> Columns:
    flat = [record for _, of_key, _ in rows for record in of_key]
    counts = [len(of_key) for _, of_key, _ in rows]
    froms = [time for _, _, time in rows]
    ints = (array("q", [ts for ts, _ in flat]),)
    values = [value for _, value in flat]
    ones, whole = counts.count(1) == len(counts), froms.count(WHOLE) == len(froms)
    return Columns([key for key, _, _ in rows], None if ones else counts, ints, values, None if whole else froms)


def content(part: Columns) -> str:
    """Return the records in plain lists, as text: nan is not equal to itself."""
    offsets = part.offsets()
    (times,), froms = part.ints, part.froms or [WHOLE] * len(part.keys)
    rows = list(zip(times, part.values, strict=True))
    return repr([(key, rows[offsets[i] : offsets[i + 1]], froms[i]) for i, key in enumerate(part.keys)])


@given(plain | single, st.data())
def test_cuts_are_slices_and_joined_pieces_are_the_whole(rows: Plain, data: st.DataObject) -> None:
    whole = columns(rows)
    assert content(whole) == repr(rows)
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4))), len(rows)]
    pieces = list(whole.pieces(bounds))
    for piece, first, last in zip(pieces, bounds, bounds[1:], strict=False):
        assert content(piece) == content(whole.cut(first, last)) == repr(rows[first:last])
        assert piece.counts is None or set(piece.counts) != {1}
    assert joined(pieces).same_as(whole)
    assert repr([*whole.rows()]) == repr([(key, (ts,), value) for key, of_key, _ in rows for ts, value in of_key])
    low, high = data.draw(st.integers(0, 40) | st.none()), data.draw(st.integers(0, 40) | st.none())
    within = [row for row in rows if (low is None or row[0] >= low) and (high is None or row[0] <= high)]
    assert content(whole.between(low, high)) == repr(within)
    rows_of = whole.rows_by_key()
    for key in range(-1, 42):
        assert content(rows_of(key)) == content(whole.between(key, key))


@given(plain | single, st.integers(1, 6))
def test_split_pieces_are_the_whole_and_no_longer_than_said(rows: Plain, limit: int) -> None:
    whole = columns(rows)
    pieces = whole.split(limit)
    if len(whole):
        assert joined(pieces).same_as(whole)
        longest = max((len(of_key) for _, of_key, _ in rows), default=0)
        assert all(len(piece) <= max(limit + limit // 2, longest) for piece in pieces)
    if len(rows) > 1:
        first, second = whole.halves()
        assert joined([first, second]).same_as(whole)
        assert 0 <= len(second.keys) - len(first.keys) <= 1


@given(plain | single, st.integers(1, 6), st.integers(0, 255))
def test_parts_of_other_sizes_are_the_whole(rows: Plain, limit: int, by: int) -> None:
    whole = columns(rows)
    parts = _unequal(whole, limit, by)
    longest = 2 * limit + limit // 4
    assert len(parts) == (2 if limit + limit // 2 < len(whole) <= longest and len(rows) > 1 else 1)
    assert joined(parts).same_as(whole)
    assert len(whole) == 0 or all(part.keys for part in parts)


def test_the_parts_of_a_block_differ_by_its_hash() -> None:
    single, pairs = ([(i, [(1, "v")] * each, None) for i in range(7000 // each)] for each in (1, 2))
    for rows in (single, pairs):
        firsts = [len(_unequal(columns(rows), 4096, by)[0]) for by in range(256)]
        assert firsts == sorted(firsts)
        assert len(set(firsts)) > 100
        assert 0.4 < firsts[0] / 7000 < 0.401 < 0.599 < firsts[-1] / 7000 < 0.6


@given(plain | single, st.data())
def test_take_picks_keys_in_any_order_and_in_order_restores_it(rows: Plain, data: st.DataObject) -> None:
    whole = columns(rows)
    places = data.draw(st.permutations(range(len(rows))))
    mixed = whole.take(places)
    assert content(mixed) == repr([rows[place] for place in places])
    assert mixed.in_order().same_as(whole)
    some = places[: len(places) // 2]
    assert content(whole.take(some)) == repr([rows[place] for place in some])


@given(plain | single, plain | single)
def test_the_same_means_the_same_content(rows: Plain, other: Plain) -> None:
    assert columns(rows).same_as(columns([(key, list(of_key), time) for key, of_key, time in rows]))
    assert columns(rows).same_as(columns(other)) == (repr(rows) == repr(other))
    assert content(joined([columns(rows), columns(other)])) == repr(rows + other)


def test_records_that_differ_in_a_single_place_are_not_the_same() -> None:
    rows: Plain = [(1, [(5, "a"), (6, "b")], 2), (3, [(7, None)], WHOLE)]
    others: list[Plain] = [
        [(0, [(5, "a"), (6, "b")], 2), (3, [(7, None)], WHOLE)],
        [(1, [(5, "a")], 2), (3, [(6, "b"), (7, None)], WHOLE)],
        [(1, [(5, "a"), (9, "b")], 2), (3, [(7, None)], WHOLE)],
        [(1, [(5, "a"), (6, "c")], 2), (3, [(7, None)], WHOLE)],
        [(1, [(5, "a"), (6, "b")], 4), (3, [(7, None)], WHOLE)],
    ]
    assert [columns(rows).same_as(columns(other)) for other in others] == [False] * len(others)
    nans: list[Plain] = [[(1, [(5, float("nan"))], 2)] for _ in range(2)]
    assert columns(nans[0]).same_as(columns(nans[1]))
