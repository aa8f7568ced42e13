"""Session store: searches by bisection, batches, what is logged, and what survives.

Boundaries are proved by the vectors and the models.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, force_cold, logged
from tests.tools.model import ModelState
from tests.tools.vector_runner import SMALL


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with hs.open(tmp_path / "s", durability="os", _tuning=SMALL) as opened:
        yield opened


def rows(result: Any) -> list[Any]:
    return list(result)


def test_order_is_end_then_key_then_start_descending(state: hs.State) -> None:
    store = state.session("s", retention=1000)
    for key, start, end in [("b", 0, 10), ("a", 0, 10), ("a", 5, 10), ("a", 9, 9), ("a", 2, 10)]:
        store.put(key, 1, start=start, end=end)
    order = [("a", 9, 9), ("a", 5, 10), ("a", 2, 10), ("a", 0, 10), ("b", 0, 10)]
    assert [session for session, _ in store.all()] == order
    assert [session for session, _ in store.all(reverse=True)] == order[::-1]
    assert [session for session, _ in store.fetch("a", reverse=True)] == order[3::-1]


def test_start_after_end_and_bad_times_change_nothing(state: hs.State) -> None:
    store = state.session("s", retention=1000)
    with pytest.raises(ValueError, match="start: found 6, expected at most the end, 5"):
        store.put("k", "v", start=6, end=5)
    with pytest.raises(ValueError, match="start: found -1"):
        store.put("k", "v", start=-1, end=5)
    with pytest.raises(TypeError, match="end: found bool"):
        store.put("k", "v", start=0, end=True)
    with pytest.raises(TypeError, match=r"'k', \['field'\]: found object, expected None"):
        store.put("k", {"field": object()}, start=0, end=5)
    for changing in (store.get, store.delete):
        with pytest.raises(ValueError, match="start: found -1"):
            changing("k", -1, 5)
        with pytest.raises(TypeError, match="start: found str"):
            changing("k", "0", 5)  # type: ignore[arg-type]
    assert (store.stream_time, rows(store.all()), logged(state, "s")) == (-1, [], [])


def test_remove_moves_no_time_and_none_moves_it(state: hs.State) -> None:
    store = state.session("s", retention=10)
    store.put("k", "v", start=0, end=5)
    store.delete("k", 50, 60)
    assert (store.get("k", 0, 5), store.stream_time) == ("v", 5)
    store.put("k", None, start=50, end=60)
    assert (store.get("k", 0, 5), store.stream_time) == (None, 60)
    state.commit()
    assert logged(state, "s") == [("k", 0, 5, "v")]


def test_dropped_is_counted_and_not_logged(state: hs.State) -> None:
    store = state.session("s", retention=10)
    store.put("k", "v", start=100, end=100)
    store.put("k", "late", start=0, end=90)
    store.put("k", "just in time", start=0, end=91)
    assert store.dropped == {"expired": 1}
    assert [session for session, _ in store.all()] == [("k", 0, 91), ("k", 100, 100)]


@pytest.mark.parametrize("reverse", [False, True])
def test_searches_agree_with_the_model_on_overlapping_sessions(state: hs.State, reverse: bool) -> None:
    """Sessions of very unlike length, where a search by bisection could miss or add some."""
    model = ModelState({}).session("s", retention=500)
    store = state.session("s", retention=500)
    chance = random.Random(11)
    for _ in range(300):
        end = max(0, store.stream_time + chance.randint(-60, 10))
        length = chance.choice([0, 1, 5, 5, 5, 400])
        key = chance.choice("abc")
        value = chance.randint(0, 9)
        for each in (store, model):
            each.put(key, value, start=max(0, end - length), end=end)
        if chance.random() < 0.2:
            session, _ = chance.choice(rows(model.all()))
            for each in (store, model):
                each.delete(*session)
        at, latest = (max(0, store.stream_time - chance.randint(0, 600)) for _ in range(2))
        for call, *args in (
            ("find_sessions", key, at, latest),
            ("find_sessions_range", "a", "b", at, latest),
            ("find_sessions_range", None, "b", at, None),
            ("find_sessions_by_end", at, at + 30),
            ("scan", "b", None),
        ):
            actual, expected = (rows(getattr(each, call)(*args, reverse=reverse)) for each in (store, model))
            assert actual == expected, (call, args)
        store._check()


def test_a_search_looks_at_few_sessions(state: hs.State) -> None:
    """Not by walking every end: of 1,000 sessions of one key, an open-ended search reads those that overlap and no
    more.
    """
    store = state.session("s", retention="1 day")
    store.put_many([("k", i, 100 * i, 100 * i + 50) for i in range(1000)])
    seen: list[int] = []

    class Counting(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            seen.append(len(item) if isinstance(index, slice) else 1)
            return item

    for bucket in store._buckets.values():
        run = bucket.runs["k"]
        run[2] = Counting(run[2])
    assert [value for _, value in store.find_sessions("k", 40_020, 40_120)] == [400, 401]
    assert sum(seen) <= 4


def test_batches_are_as_single_puts(tmp_path: Path) -> None:
    chance = random.Random(3)
    records: list[Any] = []
    for i in range(500):
        end = max(0, i + chance.randint(-40, 3))
        records.append((chance.choice("abcd"), chance.choice([None, i, [i]]), max(0, end - chance.randint(0, 9)), end))
    actual = []
    for call in ("put", "put_many", "put_columns"):
        with hs.open(tmp_path / call, durability="os", _tuning=SMALL) as state:
            store = state.session("s", retention=30)
            if call == "put":
                for record in records:
                    store.put(*record)
            elif call == "put_many":
                store.put_many(iter(records))
            else:
                store.put_columns(*map(list, zip(*records, strict=True)))
            state.commit()
            actual.append((rows(store.all()), store.stream_time, store.dropped))
            crash(state)
        with hs.open(tmp_path / call, durability="os", _tuning=SMALL) as state:
            store = state.session("s", retention=30)
            assert (rows(store.all()), store.stream_time) == actual[-1][:2]
    assert actual[0] == actual[1] == actual[2]


def test_a_bad_row_in_a_batch_changes_nothing(state: hs.State) -> None:
    store = state.session("s", retention=30)
    with pytest.raises(ValueError, match="start: found 9"):
        store.put_many([("a", "v", 1, 2), ("a", "v", 9, 2)])
    with pytest.raises(TypeError, match="found object, expected None"):
        store.put_many([("a", "v", 1, 2), ("a", object(), 1, 2)])
    with pytest.raises(ValueError, match="columns: found 1 keys, 2 values"):
        store.put_columns(["a"], ["v", "w"], [1, 2], [2, 3])
    assert rows(store.all()) == []
    assert store.stream_time == -1


def test_iterators_are_snapshots(state: hs.State) -> None:
    store = state.session("s", retention=100)
    store.put_many([("k", i, i, i) for i in range(20)])
    before = rows(store.all())
    opened = [store.all(), store.find_sessions_by_end(0, 15), store.find_sessions_range("a", "z"), store.fetch("k")]
    expected = [before, before[:16], before, before]
    next(opened[0])
    store.delete("k", 10, 10)
    store.put("k", "other", start=11, end=11)
    store.put("k", "far", start=500, end=500)
    assert [rows(each) for each in opened] == [before[1:], *expected[1:]]


def test_deletes_over_cold_blocks(state: hs.State) -> None:
    store = state.session("s", retention=1000)
    store.put_many([(key, i, i, i + 5) for key in "abc" for i in range(30)])
    force_cold(state)
    assert store.cold_blocks > 0
    store.apply_delete("b", 3, 8)  # as a restore does: nothing is loaded for it
    store.apply_put("b", "new", 4, 9)
    cold = store.cold_blocks
    assert cold > 0
    assert store.get("b", 3, 8) is None
    assert store.get("b", 4, 9) == "new"
    assert store.cold_blocks < cold
    assert len(store) == 89
    store._check()


def test_other_parameters_are_refused(state: hs.State) -> None:
    state.session("s", retention="1 hour")
    with pytest.raises(hs.ProgramMismatchError, match="retention_ms 3600000, asked for retention_ms 60000"):
        state.session("s", retention="1 minute")
    with pytest.raises(ValueError, match="retention"):
        state.session("t", retention=0)


def test_a_scan_of_no_time_has_no_session(state: hs.State) -> None:
    store = state.session("s", retention="1 hour")
    store.put("ann", 1, start=3, end=10)
    assert [key for (key, *_), _ in store.scan(time_from=4, time_to=4)] == ["ann"]
    assert list(store.scan(time_from=6, time_to=4)) == []
    assert list(store.scan(prefix="a", time_from=6, time_to=4)) == []
    assert len(list(store.find_sessions("ann", 6, 4))) == 1
