"""Batches of the window and the session store: whatever their shape, they leave what single puts of the same rows
leave, or nothing at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.opening import TUNING
from tests.tools.hooks import crash, force_cold, logged
from tests.tools.vector_runner import SMALL, SMALL_RUNS

Row = tuple[Any, ...]
RETENTION = 400
SHAPES: dict[str, Callable[[random.Random, int], list[tuple[str, int]]]] = {
    "dense": lambda r, now: [(f"k{n % 20}", now + n // 20) for n in range(200)],
    "sparse": lambda r, now: [(f"k{r.randrange(20)}", now + n) for n in range(200)],
    "many keys": lambda r, now: [(f"k{r.randrange(5000)}", now + n) for n in range(200)],
    "one key": lambda r, now: [("k", now + n // r.choice([1, 1, 3])) for n in range(200)],
    "few of a time": lambda r, now: [(f"k{r.randrange(9)}", now + n // 3) for n in range(200)],
    "equal times": lambda r, now: sorted(
        ((f"k{r.randrange(30)}", now + n // 20) for n in range(200)), key=lambda row: row[1]
    ),
    "slightly late": lambda r, now: [
        (f"k{r.randrange(20)}", now + max(0, n - r.choice([0, 0, 0, 50]))) for n in range(200)
    ],
    "partly expired": lambda r, now: [
        (f"k{r.randrange(20)}", max(0, now + n - r.choice([0, 0, 500]))) for n in range(200)
    ],
    "all expired": lambda r, now: [("k", max(0, now - 1000))] * 5,
    "expiring on the way": lambda r, now: [(f"k{n % 20}", now + 5 * n) for n in range(200)],
    "far apart": lambda r, now: [(f"k{n % 20}", now + 10_000 * n) for n in range(50)],
    "empty": lambda r, now: [],
}  # fmt: skip
VALUES: list[Callable[[random.Random, int], Any]] = [
    lambda r, n: n,
    lambda r, n: b"%d" % n,
    lambda r, n: [n, "a", None],
    lambda r, n: {"n": [n]},
    lambda r, n: r.choice([n, "x", None, 2.5]),
]


def window_row(r: random.Random, key: str, ts: int, value: Any) -> Row:
    return key, value, ts


def session_row(r: random.Random, key: str, end: int, value: Any) -> Row:
    return key, value, max(0, end - r.choice([0, 0, 3, 40])), end


KINDS: dict[str, tuple[str, dict[str, Any], Callable[..., Row]]] = {
    "window": ("window", {}, window_row),
    "grace": ("window", {"grace": 100}, window_row),
    "no grace": ("window", {"grace": 0}, window_row),
    "duplicates": ("window", {"retain_duplicates": True}, window_row),
    "session": ("session", {}, session_row),
}


def content(store: Any) -> Any:
    store._check()
    counted = {reason: count for reason, count in store.dropped.items() if count}
    return list(store.all()), store.stream_time, counted, len(store)


def put(store: Any, call: str, rows: list[Row]) -> None:
    if call == "put":
        for row in rows:
            store.put(*row)
    elif call == "put_many":
        store.put_many(iter(rows))
    elif rows:
        columns = list(map(list, zip(*rows, strict=True)))
        plain = call == "put_plain" and None not in columns[1] and columns[2] == sorted(columns[2])
        (store.put_plain if plain else store.put_columns)(*columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("small", [True, False], ids=["small", "usual"])
@pytest.mark.stress
def test_a_batch_of_any_shape_is_as_single_puts(
    kind: str, small: bool, tmp_path: Path, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = SMALL if small else TUNING
    for place, fields in SMALL_RUNS.items() if small else ():
        monkeypatch.setattr(place, fields)
    method, parameters, row_of = KINDS[kind]
    for number in range(rounds):
        r = random.Random(seed + number)
        calls = ("put", "put_many", "put_columns", *(("put_plain",) if method == "window" else ()))
        states = {call: tmp_path / f"{number}{call}" for call in calls}
        opened = {call: hs.open(path, durability="os", _tuning=tuning) for call, path in states.items()}
        now = r.choice([0, 5000])
        for _ in range(8):
            shape, value = r.choice(list(SHAPES)), r.choice(VALUES)
            rows = [row_of(r, key, ts, value(r, n)) for n, (key, ts) in enumerate(SHAPES[shape](r, now))]
            iterating, change = r.random() < 0.3, r.random()
            expected, before = None, None
            for call in opened:
                store = getattr(opened[call], method)("s", retention=RETENTION, **parameters)
                iterator = (list(store.all()), store.all()) if iterating else ([], iter(()))
                put(store, call, rows)
                actual = content(store)
                assert expected in (None, actual), (call, shape)
                expected = actual
                assert list(iterator[1]) == iterator[0]
                if change < 0.6:
                    opened[call].commit()
                if change < 0.2:
                    force_cold(opened[call])
                elif change < 0.3:
                    list(store.find_sessions_range("a", "z") if kind == "session" else store.all())
                    list(store.find_sessions_by_end(now, now + 7) if kind == "session" else ())
                elif change < 0.5:
                    crash(opened[call])
                    opened[call] = hs.open(states[call], durability="os", _tuning=tuning)
                    store = getattr(opened[call], method)("s", retention=RETENTION, **parameters)
                    before = content(store)[:2] if before is None else before
                    assert content(store)[:2] == before == expected[:2], (call, shape, "restored")
                elif change > 0.95:
                    opened[call].rollback()
            now = max(now, expected[1] if expected else 0)
        for state in opened.values():
            state.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["put_many", "put_columns"])
def test_what_a_batch_changes_is_in_the_next_checkpoint(kind: str, call: str, tmp_path: Path, seed: int) -> None:
    method, parameters, row_of = KINDS[kind]
    r = random.Random(seed)
    with hs.open(tmp_path, durability="os", _tuning=SMALL) as state:
        store: Any = getattr(state, method)("s", retention=RETENTION, **parameters)
        for number, shape in enumerate(SHAPES):
            now = max(0, store.stream_time)
            put(store, call, [row_of(r, key, ts, n) for n, (key, ts) in enumerate(SHAPES[shape](r, now))])
            expected = content(store)
            state.commit()
            state.checkpoint(wait=True)
            if number % 2:
                force_cold(state)
                assert content(store) == expected, shape


@pytest.mark.parametrize("call", ["put", "put_many", "put_columns", "put_plain"])
@pytest.mark.parametrize("duplicates", [False, True])
def test_rows_of_a_batch_are_newer_than_the_rows_that_wait_after_a_restart(
    call: str, duplicates: bool, tmp_path: Path
) -> None:
    with hs.open(tmp_path, durability="os") as state:
        state.window("s", retention=RETENTION, retain_duplicates=duplicates).put_many([("a", 1, 5), ("b", 2, 5)])
        state.commit()
        crash(state)
    with hs.open(tmp_path, durability="os") as state:
        store = state.window("s", retention=RETENTION, retain_duplicates=duplicates)
        put(store, call, [("a", 3, 5), ("b", 4, 5)])
        values = [value for _, value in store.all()]
        assert values == ([1, 3, 2, 4] if duplicates else [3, 4])


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with hs.open(tmp_path / "s", durability="os", _tuning=SMALL) as opened:
        yield opened


GOOD: dict[str, list[Row]] = {
    "window": [("a", 1, 5), ("b", None, 6), ("a", [2], 7)],
    "session": [("a", 1, 1, 5), ("b", None, 2, 6), ("a", [2], 3, 7)],
}
BAD: list[tuple[str, Row, type[Exception], str]] = [
    ("window", ("c", object(), 8), TypeError, "'c': found object, expected None"),
    ("window", ("c", [1, {2: object()}], 8), TypeError, r"'c', \[1\]: found object, expected None"),
    ("window", (3, 1, 8), TypeError, "key 3: found int"),
    ("window", (None, 1, 8), TypeError, "found NoneType, expected str, bytes, int"),
    ("window", ("c", 1, -1), ValueError, r"times\[3\]: found -1"),
    ("window", ("c", 1, 2**63), ValueError, r"times\[3\]: found 9223372036854775808"),
    ("window", ("c", 1, True), TypeError, r"times\[3\]: found bool"),
    ("session", ("c", object(), 1, 8), TypeError, "'c': found object, expected None"),
    ("session", (b"c", 1, 1, 8), TypeError, "key b'c': found bytes"),
    ("session", ("c", 1, 9, 8), ValueError, "start: found 9, expected at most the end, 8"),
    ("session", ("c", 1, -1, 8), ValueError, r"starts\[3\]: found -1"),
    ("session", ("c", 1, 1, 8.0), TypeError, r"ends\[3\]: found float"),
]


@pytest.mark.parametrize("fresh", [True, False], ids=["new store", "old store"])
@pytest.mark.parametrize("call", ["put_many", "put_columns"])
@pytest.mark.parametrize(("kind", "bad", "error", "message"), BAD)
def test_a_batch_with_a_bad_row_leaves_the_store_as_it_was_and_logs_nothing(
    state: hs.State, kind: str, bad: Row, error: type[Exception], message: str, call: str, fresh: bool
) -> None:
    store = getattr(state, kind)("s", retention=RETENTION)
    if not fresh:
        put(store, "put", [("before", 0, 3) if kind == "window" else ("before", 0, 0, 3)])
    version, before, rows_before = state.commit(), content(store), logged(state, "s")
    with pytest.raises(error, match=message):
        put(store, call, [*GOOD[kind], bad])
    assert (content(store), logged(state, "s"), state.commit()) == (before, rows_before, version)
    # not even the type of the keys is decided
    key: Any = 7 if fresh else "other"
    put(store, "put", [(key, 0, 3) if kind == "window" else (key, 0, 0, 3)])
    store._check()


@pytest.mark.parametrize(("bad", "error", "message"), [
    (("c", 2**63), ValueError, "found an int beyond 64 bits"),
    (("c", -(2**63) - 1), ValueError, "found an int beyond 64 bits"),
    (("c", "1"), TypeError, "element 1: found str, expected int"),
    (("c", True), TypeError, "element 1: found bool, expected int"),
    ((None, 1), TypeError, "found NoneType, expected str"),
    (("c" * (1 << 24), 1), ValueError, "bytes, expected at most"),
    ("c", TypeError, "found str, expected tuple"),
    (["c", 1], TypeError, "found list, expected str"),
])  # fmt: skip
def test_a_batch_of_tuples_with_a_bad_key_leaves_the_store_as_it_was(
    state: hs.State, bad: Any, error: type[Exception], message: str
) -> None:
    store = state.window("s", retention=RETENTION)
    before = content(store)
    with pytest.raises(error, match=message):
        store.put_columns([("a", 1), ("b", -(2**63)), bad], [1, 2, 3], [5, 6, 7])
    assert (content(store), logged(state, "s")) == (before, [])
    store.put_columns([("a", 1), ("b", 2**63 - 1), ("b",)], [1, 2, 3], [5, 6, 7])
    assert len(store) == 3
    store._check()


@pytest.mark.parametrize(("kind", "row", "message"), [
    ("window", ("c", 1), r"row 3: found 2 fields, expected 3 \(key, value, ts\)"),
    ("session", ("c", 1, 8), r"row 3: found 3 fields, expected 4 \(key, value, start, end\)"),
])  # fmt: skip
def test_a_batch_with_a_ragged_row_leaves_the_store_as_it_was(
    state: hs.State, kind: str, row: Row, message: str
) -> None:
    store = getattr(state, kind)("s", retention=RETENTION)
    version, before = state.commit(), content(store)
    with pytest.raises(ValueError, match=message):
        store.put_many([*GOOD[kind], row])
    with pytest.raises(ValueError, match=r"columns: found .* expected equal lengths"):
        store.put_columns(*([*column, 1][: 4 - (i == 2)] for i, column in enumerate(zip(*GOOD[kind], strict=True))))
    assert (content(store), logged(state, "s"), state.commit()) == (before, [], version)


@pytest.mark.parametrize("kind", ["window", "session"])
def test_a_batch_of_values_too_large_for_one_mutation_is_cut_until_they_fit(
    state: hs.State, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.journal.MAX_MUTATION_BYTES", 1000)
    store = getattr(state, kind)("s", retention=RETENTION)
    rows: list[Row] = [("k", b"x" * 300, n) if kind == "window" else ("k", b"x" * 300, n, n) for n in range(20)]
    store.put_many(rows)
    state.commit()
    all_logged, expected = logged(state, "s"), content(store)
    assert len(all_logged) == expected[3] == 20
    too_large = ("k", b"y" * 2000, 21) if kind == "window" else ("k", b"y" * 2000, 21, 21)
    with pytest.raises(ValueError, match=r"a row: found 2,0\d\d bytes, expected at most 1,000"):
        store.put_many([*(row if kind == "session" else (row[0], row[1], row[2] + 20) for row in rows), too_large])
    assert (content(store), logged(state, "s")) == (expected, all_logged)


@pytest.mark.parametrize(
    ("rows", "description"),
    [(["ab", "cd"], "row 0: found str"), ([("a", 1), 7], "row 1: found int"), ([b"ab"], "row 0: found bytes")],
)
def test_what_is_no_row_is_named_and_never_taken_apart(rows: Any, description: str, tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        names = state.key_value("names")
        with pytest.raises(TypeError, match=rf"store 'names': {description}, expected \(key, value\)"):
            names.put_many(rows)
        assert len(names) == 0
