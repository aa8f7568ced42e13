"""Batches of the key-value, sliding and suppression stores: they leave what single puts of the same rows leave, or
nothing at all.
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
from tests.tools.vector_runner import SMALL

Row = tuple[Any, ...]
Open = Callable[[hs.State], Any]


KINDS: dict[str, Open] = {
    "plain": lambda state: state.key_value("s"),
    "ttl": lambda state: state.key_value("s", ttl=100),
    "sliding": lambda state: state.sliding("s", size=100, aggregator=hs.Collect()),
    "held": lambda state: state.suppression("s", time_limit=50),
    "first seen": lambda state: state.suppression("s", time_limit=50, timer="first"),
    "few records": lambda state: state.suppression("s", max_records=10),
    "few bytes": lambda state: state.suppression("s", time_limit=500, max_bytes=200),
    "raises": lambda state: state.suppression("s", max_records=60, on_full="raise"),
}
SUPPRESSION = ("held", "first seen", "few records", "few bytes", "raises")


def rows_of(kind: str, r: random.Random, now: int) -> list[Row]:
    keys, late, gap = r.choice([3, 20, 500]), r.choice([0, 0, 30, 150]), r.choice([0, 1, 1, 9])
    values: Callable[[int], Any] = r.choice(
        [lambda n: n, lambda n: [n, "x"], lambda n: b"%d" % n, lambda n: r.choice([n, "x" * 300, None])]
    )
    if kind == "sliding":
        values = r.choice([lambda n: n, lambda n: [n]])
    rows = [
        (f"k{r.randrange(keys)}", values(n), max(0, now + n * gap - r.choice([0, late])))
        for n in range(r.choice([0, 1, 40, 150]))
    ]
    return [row[:2] for row in rows] if kind == "plain" else rows


def put(store: Any, call: str, rows: list[Row]) -> list[Any]:
    """Put rows and return what the calls gave, one after the other, and which error ended it."""
    results: list[Any] = []
    sliding = store.kind == "sliding"
    try:
        if call == "put":
            for row in rows:
                result = store.add(*row) if sliding else store.put(*row)
                results += [result] if sliding else (result or [])
        elif call == "put_many":
            results += (store.add_many if sliding else store.put_many)(iter(rows)) or []
        elif rows:
            columns = list(map(list, zip(*rows, strict=True)))
            results += (store.add_columns if sliding else store.put_columns)(*columns) or []
    except hs.BufferFullError as error:
        return [*results, *error.emitted, "full"]
    if sliding:  # by column, only the aggregates are given
        results = [result[3] if type(result) is tuple else result for result in results]
    return results


def content(store: Any) -> list[Any]:
    store._check()
    dropped = {reason: count for reason, count in store.dropped.items() if count}
    rows = list(store.buffered() if store.kind == "suppression" else store.all())
    return [rows, store.stream_time, dropped]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("small", [True, False], ids=["small", "usual"])
@pytest.mark.stress
def test_a_batch_of_any_shape_is_as_single_puts(kind: str, small: bool, tmp_path: Path, seed: int, rounds: int) -> None:
    tuning = SMALL if small else TUNING
    for number in range(rounds):
        r = random.Random(seed + number)
        paths = {call: tmp_path / f"{number}{call}" for call in ("put", "put_many", "put_columns")}
        states = {call: hs.open(path, durability="os", _tuning=tuning) for call, path in paths.items()}
        now = 0
        for _ in range(8):
            rows, change = rows_of(kind, r, now), r.random()
            results, contents = [], []
            for call, path in paths.items():
                store = KINDS[kind](states[call])
                results.append(put(store, call, rows))
                if change < 0.7:
                    states[call].commit()
                    if kind in SUPPRESSION:
                        results[-1].append([row[1:] for row in store.emitted()])
                if change < 0.2:
                    force_cold(states[call])
                elif change < 0.4:
                    crash(states[call])
                    states[call] = hs.open(path, durability="os", _tuning=tuning)
                    store = KINDS[kind](states[call])
                    store.dropped.update(dict.fromkeys(store.dropped, 0))
                elif change > 0.95:
                    states[call].rollback()
                contents.append(content(store))
            assert results[0] == results[1] == results[2], rows
            assert contents[0] == contents[1] == contents[2], rows
            now = max(now, contents[0][1]) + r.choice([0, 10])
        for state in states.values():
            state.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with hs.open(tmp_path / "s", durability="os", _tuning=SMALL) as opened:
        yield opened


TIMED = ("ttl", "sliding", *SUPPRESSION)
GOOD: list[Row] = [("a", 1, 5), ("b", 2, 6), ("a", 3, 7)]
BAD: list[tuple[Row, type[Exception], str]] = [
    (("c", object(), 8), TypeError, "'c': found object, expected None"),
    (("c", [1, {2: object()}], 8), TypeError, r"'c', \[1\]: found object, expected None"),
    ((3, 1, 8), TypeError, "key 3: found int"),
    ((None, 1, 8), TypeError, "found NoneType, expected str, bytes, int"),
    (("c", 1, -1), ValueError, r"times\[3\]: found -1"),
    (("c", 1, 2**63), ValueError, r"times\[3\]: found 9223372036854775808"),
    (("c", 1, True), TypeError, r"times\[3\]: found bool"),
]
CASES = [(kind, *case) for kind in ("plain", *TIMED) for case in BAD if kind in TIMED or case[2][:5] != "times"]


@pytest.mark.parametrize("fresh", [True, False], ids=["new store", "old store"])
@pytest.mark.parametrize("call", ["put_many", "put_columns"])
@pytest.mark.parametrize(("kind", "bad", "error", "message"), CASES)
def test_a_batch_with_a_bad_row_leaves_the_store_as_it_was_and_logs_nothing(
    state: hs.State, kind: str, bad: Row, error: type[Exception], message: str, call: str, fresh: bool
) -> None:
    store = KINDS[kind](state)
    width = 3 if kind in TIMED else 2
    if not fresh:
        put(store, "put", [("before", 0, 3)[:width]])
    version, before, rows_before = state.commit(), content(store), logged(state, "s")
    with pytest.raises(error, match=message):
        put(store, call, [row[:width] for row in [*GOOD, bad]])
    assert (content(store), logged(state, "s"), state.commit()) == (before, rows_before, version)
    # not even the type of the keys is decided
    put(store, "put", [(7 if fresh else "other", 0, 3)[:width]])
    store._check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_a_ragged_row_leaves_the_store_as_it_was(state: hs.State, kind: str) -> None:
    store = KINDS[kind](state)
    width = 3 if kind in TIMED else 2
    many, columns = (store.add_many, store.add_columns) if kind == "sliding" else (store.put_many, store.put_columns)
    version, before = state.commit(), content(store)
    with pytest.raises(ValueError, match=rf"row 2: found 1 fields, expected {width} \(key, value"):
        many([("a", 1, 5)[:width], ("b", 2, 6)[:width], ("c",)])
    with pytest.raises(ValueError, match=r"columns: found .* expected equal lengths"):
        columns(["a", "b"], [1], *([[5, 6]] if width == 3 else []))
    assert (content(store), logged(state, "s"), state.commit()) == (before, [], version)


def test_the_rows_up_to_the_one_that_fills_a_buffer_are_in_it(state: hs.State) -> None:
    buffer = state.suppression("s", max_records=2, on_full="raise")
    with pytest.raises(hs.BufferFullError):
        buffer.put_many([("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("d", 4, 4)])
    assert [row[0] for row in buffer.buffered()] == ["a", "b", "c"]
    state.commit()
    force_cold(state)
    assert [row[0] for row in buffer.buffered()] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["plain", "ttl"])
def test_deletions_alone_decide_no_type_of_keys(state: hs.State, kind: str) -> None:
    store = KINDS[kind](state)
    width = 3 if kind in TIMED else 2
    store.put_many([("a", None, 5)[:width], (1, None, 6)[:width]])
    store.put_many([(1, 2, 7)[:width]])
    assert list(store.all()) == [(1, 2)]
