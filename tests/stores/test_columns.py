"""Columns in: whatever holds them, a store gets the same Python objects."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.stores.columns import all_flat, beside_each_other, column_list
from tests.tools.hooks import force_cold

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

KEYS = ["b", "a", "é", "a", "\U0001f600", "b", "a"]
TIMES = [7, 3, 2**62, 0, 5, 5, 6]
DATA = [b"", b"\x00", b"abc", b"abc", b"d", b"e", b"f"]


def exact(values: list[Any]) -> list[tuple[type, Any]]:
    return [(type(value), value) for value in values]


@pytest.mark.parametrize(
    "column",
    [
        TIMES,
        tuple(TIMES),
        np.array(TIMES),
        np.array(TIMES, dtype=np.uint64),
        np.array(TIMES, dtype=object),
        np.repeat(np.array(TIMES), 2)[::2],
        pa.array(TIMES),
        pa.array([0, *TIMES, 1]).slice(1, 7),
        pa.chunked_array([TIMES[:3], [], TIMES[3:]]),
        pa.array(TIMES).dictionary_encode(),
    ],
    ids=lambda column: type(column).__name__,
)
def test_times_are_ints_whatever_holds_them(column: Any) -> None:
    assert exact(column_list(column)) == exact(TIMES)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
@pytest.mark.parametrize("chunked", [True, False])
def test_text_is_text_whatever_holds_it(kind: Any, chunked: bool) -> None:
    given = [*KEYS, None]
    column = pa.chunked_array([given[:2], given[2:]], kind) if chunked else pa.array(given, kind)
    assert exact(column_list(column)) == exact(given) == exact(column.to_pylist())
    assert column_list(np.array(KEYS)) == KEYS
    assert column_list(pa.chunked_array([], kind)) == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([*DATA, None], pa.binary()),
        pa.array([1.5, None, float("inf")]),
        pa.array([True, None, False]),
        pa.array([[1, 2], None, [3]]),
        pa.array([{"a": 1}, {"a": None}]),
        pa.array([None, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_arrow_values_are_what_arrow_says(column: Any) -> None:
    assert exact(column_list(column)) == exact(column.to_pylist())


@pytest.mark.parametrize("kind", ["window", "session"])
def test_a_batch_of_arrays_leaves_what_lists_leave(kind: str, tmp_path: Path) -> None:
    times = [time % 1000 for time in TIMES]
    actual = []
    for number, arrays in enumerate((False, True)):
        keys: Any = pa.chunked_array([pa.array(KEYS).dictionary_encode()]) if arrays else KEYS
        moments: Any = np.array(times) if arrays else times
        values: Any = pa.array(DATA) if arrays else DATA
        with hs.open(tmp_path / str(number), durability="os") as state:
            if kind == "window":
                store: Any = state.window("s", retention=10_000)
                store.put_columns(keys, values, moments)
            else:
                store = state.session("s", retention=10_000)
                store.put_columns(keys, values, moments, moments)
            state.commit()
            actual.append((list(store.all()), state.digest))
    assert actual[0] == actual[1]


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (np.array([1.0, 2.0]), TypeError, r"times\[0\]: found float"),
        (np.array([True, False]), TypeError, r"times\[0\]: found bool"),
        (np.array([1, 2**63], dtype=np.uint64), ValueError, r"times\[1\]: found 9223372036854775808"),
        (pa.array([1, None]), TypeError, r"times\[1\]: found NoneType"),
        (np.array([1, -1]), ValueError, r"times\[1\]: found -1"),
    ],
)
def test_times_that_are_none_are_named(times: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with hs.open(tmp_path, durability="os") as state:
        store = state.window("s", retention=1000)
        with pytest.raises(error, match=message):
            store.put_columns(["a", "b"], [1, 2], times)
        assert len(store) == 0


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (None, True),
        ([1, "a", None], True),
        ([3, ([1, 0, 2], 5), [0.5]], True),
        ([3, ([1, 0, object()], 5)], False),
        ([3, {"a": 1, 2: [None]}], True),
        ({"a": {"b": object()}}, False),
        ({(1, object()): 2}, False),
        ([3, (4, object())], False),
        ([[[[[1]]]]], False),
    ],
    ids=[
        "null",
        "list",
        "levels",
        "object in levels",
        "dict",
        "object in dict",
        "object in key",
        "object in tuple",
        "many levels",
    ],
)
def test_values_of_atoms_in_few_levels_need_no_check_of_their_own(value: Any, flat: bool) -> None:
    values = [1, [2, (3, "b")], value]
    assert all_flat(set(map(type, values)), values) is flat


def test_a_list_that_contains_itself_is_refused_where_it_is_put(tmp_path: Path) -> None:
    endless: list[Any] = [1]
    endless += [endless, endless]
    store = hs.open(tmp_path).key_value("store")
    with pytest.raises(TypeError, match=r"value of key 'b', \[1\]: .*contains itself"):
        store.put_columns(["a", "b"], [1, endless])
    assert len(store) == 0


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_many_keys_are_those_of_each_key(seed: int, tmp_path: Path) -> None:
    """Few keys or many, in buckets of few keys and of many, with one row and several, loaded or not."""
    rng = random.Random(seed)
    state = hs.open(tmp_path, durability="os")
    store = state.window("w", retention=640, retain_duplicates=seed % 2 == 0)
    for number in range(rng.randint(1, 400)):
        # the keys of late times are few
        ts = int(900 * rng.random() ** 2)
        store.put(rng.randrange(max(2, 60 - ts // 15)), number, ts)
    if seed % 3 == 0:
        force_cold(state)
    for _ in range(10):
        keys = rng.sample(range(70), rng.choice((0, 1, 5, 70)))
        bounds = rng.choice([(None, None), (rng.randrange(900), None), (rng.randrange(500), 500 + rng.randrange(400))])
        expected = {key: list(store.fetch(key, *bounds)) for key in keys}
        expected = {key: rows for key, rows in expected.items() if rows}
        many = store.fetch_many(keys, *bounds)
        assert {key: list(zip(*columns, strict=True)) for key, columns in many.items()} == expected
        flat = [(keys[place], ts, value) for place, ts, value in zip(*store.fetch_columns(keys, *bounds), strict=True)]
        assert sorted(flat) == sorted((key, ts, value) for key, rows in expected.items() for ts, value in rows)
        for key, rows in expected.items():
            assert [(ts, value) for of_row, ts, value in flat if of_row == key] == rows
    state.close()


def test_values_beside_each_other_are_in_order_and_without_the_expired(seed: int) -> None:
    dice = random.Random(seed)
    number = iter(range(10**6))

    def run(first: int) -> list[tuple[int, int]]:
        return sorted((dice.randrange(first, first + 12), next(number)) for _ in range(dice.randrange(4)))

    for _ in range(2000):
        older, newer, low = run(0), run(dice.choice([0, 6, 11])), dice.randrange(20)
        columns = [((array("q", [ts for ts, _ in rows]),), [value for _, value in rows]) for rows in (older, newer)]
        (times,), values = beside_each_other(low, *columns)
        # of equal times the older first: its number is lower
        assert list(zip(times, values, strict=True)) == [row for row in sorted(older + newer) if row[0] >= low]
