"""Sliding store: values are the state, what is derived comes back by itself. Strategies have tests of their own."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.aggregation import Aggregator, Combined
from tests.conftest import STRESS
from tests.tools.hooks import crash, force_cold, logged
from tests.tools.topology_oracle import in_event_order
from tests.tools.vector_runner import SMALL


def opened(path: Path, **options: Any) -> hs.State:
    return hs.open(path / "s", durability="os", _tuning=SMALL, **options)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with opened(tmp_path) as state:
        yield state


def in_place() -> Aggregator:
    """The values as a list that every add changes in place: aliasing shows at once."""

    def add(values: list[Any], value: Any) -> list[Any]:
        values.append(value)
        return values

    return Aggregator(list, add, name="in place")


def counting(counter: list[int]) -> Aggregator:
    def add(total: int, value: int) -> int:
        counter[0] += 1
        return total + value

    return Aggregator(int, add, commutative=True, name="counting")


AGGREGATORS: dict[str, Any] = {
    "subtract": hs.Sum,
    "monotone": hs.Max,
    "merge": hs.Variance,
    "chunks": lambda: Aggregator(list, lambda a, v: [*a, v], lambda a, b: a + b, copy=False, name="in order"),
    "timed": hs.First,
    "ladder": lambda: counting([0]),
    "recompute": in_place,
}


def test_one_result_for_a_record_and_late_ones_are_counted(state: hs.State) -> None:
    store = state.sliding("s", size="10 ms", aggregator=hs.Sum())
    assert store.add("a", 1, 5) == ("a", 0, 5, 1)
    assert store.add("b", 2, 15) == ("b", 5, 15, 2)
    assert store.add("a", 4, 5) == ("a", 5, 15, 5)
    assert store.add("a", 8, 4) is None
    assert store.dropped == {"expired": 1}
    assert store.add("a", 16, 16) == ("a", 6, 16, 16)
    state.commit()
    assert logged(state, "s") == [("a", 5, 1), ("b", 15, 2), ("a", 5, 4), ("a", 16, 16)]
    assert list(store.all()) == [(("a", 16), 16), (("b", 15), 2)]
    assert list(store.aggregates()) == [("a", 16), ("b", 2)]
    assert store.get("b") == ("b", 6, 16, 2)
    assert store.get("c") is None


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("way", ["crash", "checkpoint", "cold", "rollback"])
def test_a_restart_in_mid_stream_changes_no_result(tmp_path: Path, name: str, way: str) -> None:
    chance = random.Random(13)
    aggregator = AGGREGATORS[name]()
    model: list[tuple[int, int, str, int]] = []
    now = 0
    state = opened(tmp_path)
    store = state.sliding("s", size=40, aggregator=aggregator)
    for number in range(200):
        ts = max(0, now + chance.choice([0, 0, 1, 3, -5, -39, -60]) + (500 if number == 110 else 0))
        key, value = chance.choice("abcd"), chance.randint(-9, 9)
        now = max(now, ts)
        actual = store.add(key, value, ts)
        if ts < now - 40:
            assert actual is None
        else:
            model.append((ts, number, key, value))
            values = [v for t, _, k, v in sorted(model) if k == key and t >= now - 40]
            expected = aggregator.of(values)
            if aggregator.timed:
                pairs = [(t, v) for t, _, k, v in model if k == key and t >= now - 40]
                expected = aggregator.of(in_event_order(pairs))
            assert actual is not None
            assert actual[:3] == (key, max(0, now - 40), now)
            assert actual[3] == pytest.approx(expected)
        store._check()
        if number % 20 == 19:
            state.commit()
            if way == "cold":
                force_cold(state)
            elif way == "rollback":
                store.add("a", 1, now + 30)
                state.rollback()
            else:
                if way == "checkpoint":
                    state.checkpoint(wait=True)
                    store.add("b", 1, now)
                crash(state)
                state = opened(tmp_path)
            store = state.sliding("s", size=40, aggregator=aggregator)
            assert store.stream_time == now
    state.close()


def test_a_restore_adds_every_value_once_at_the_first_touch(tmp_path: Path) -> None:
    adds = [0]
    with opened(tmp_path) as state:
        store = state.sliding("s", size=1000, aggregator=counting(adds))
        store.add_many([(f"k{number % 3}", 1, number) for number in range(300)])
        state.commit()
        state.checkpoint(wait=True)
        store.add_many([(f"k{number % 3}", 1, number) for number in range(300, 330)])
        state.commit()
        crash(state)
    adds[0] = 0
    with opened(tmp_path) as state:
        store = state.sliding("s", size=1000, aggregator=counting(adds))
        assert adds[0] == 0
        assert store.get("k1") == ("k1", 0, 329, 110)
        assert adds[0] == 110
        # and then it is a ladder like any other
        assert store.add("k1", 1, 330) == ("k1", 0, 330, 111)
        assert adds[0] < 130


def test_aggregates_handed_out_share_nothing(state: hs.State) -> None:
    store = state.sliding("s", size=100, aggregator=in_place())
    first = store.add("k", 1, 1)
    second = store.add("k", 2, 2)
    assert first is not None
    assert second is not None
    first[3].append("mine")
    second[3].clear()
    assert store.add("k", 3, 3) == ("k", 0, 3, [1, 2, 3])
    columns = store.add_columns(["k", "k"], [4, 5], [4, 5])
    columns[0].clear()
    assert columns[1] == [1, 2, 3, 4, 5]


def test_batches_are_as_single_adds(tmp_path: Path) -> None:
    chance = random.Random(2)
    rows = [(chance.choice("abc"), [i], max(0, i + chance.randint(-40, 5))) for i in range(300)]
    results = []
    for call in ("add", "add_many"):
        with opened(tmp_path / call) as state:
            store = state.sliding("s", size=30, aggregator=hs.Collect())
            actual = [store.add(*row) for row in rows] if call == "add" else getattr(store, call)(iter(rows))
            state.commit()
            results.append((actual, store.dropped, store.stream_time, list(store.all())))
            crash(state)
        with opened(tmp_path / call) as state:
            store = state.sliding("s", size=30, aggregator=hs.Collect())
            assert (store.stream_time, list(store.all())) == results[-1][2:]
    assert results[0] == results[1]
    with opened(tmp_path / "columns") as state:
        store = state.sliding("s", size=30, aggregator=hs.Collect())
        aggregates = store.add_columns(*map(list, zip(*rows, strict=True)))
        assert aggregates == [None if row is None else row[3] for row in results[0][0]]
        with pytest.raises(ValueError, match=r"columns: found .* expected equal lengths"):
            store.add_columns(["a"], [], [])


@pytest.mark.parametrize("call", ["add", "add_many"])
def test_a_record_that_the_aggregator_refuses_is_not_added(tmp_path: Path, call: str) -> None:
    with opened(tmp_path) as state:
        store = state.sliding("s", size=10, aggregator=hs.Sum())
        store.add("k", 1, 5)
        rows = [("l", 2, 7), ("k", "text", 8), ("k", 1, 9)]
        refused = (lambda: store.add(*rows[1])) if call == "add" else (lambda: store.add_many(rows))
        with pytest.raises(TypeError):
            refused()
        assert store.stream_time == 8
        assert store.add("k", 2, 8) == ("k", 0, 8, 3)
        expected = list(store.all())
        store._check()
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.sliding("s", size=10, aggregator=hs.Sum())
        assert (store.stream_time, list(store.all())) == (8, expected)
        store._check()


def test_what_cannot_be_stored_changes_nothing(state: hs.State) -> None:
    store = state.sliding("s", size=10, aggregator=hs.Count())
    for args in (("k", object(), 1), (None, 1, 1), ("k", 1, 1.0)):
        with pytest.raises(TypeError):
            store.add(*args)
        with pytest.raises(TypeError):
            store.add_many([("k", 1, 1), args])
    assert (list(store.all()), store.stream_time, logged(state, "s")) == ([], -1, [])


def test_quiet_keys_leave_memory_and_checkpoints(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.sliding("s", size=100, aggregator=hs.Count())
        store.add_many([(f"k{number:03}", number, number) for number in range(200)])
        store.add("k000", 1, 200)
        state.commit()
        state.checkpoint(wait=True)
        store.advance(260)
        assert store.num_records < 60
        store._check()
        state.commit()
        force_cold(state)
        assert store.num_records < 60
        # a block that goes on for the sake of one key loses the others when that key is touched
        store.advance(299)
        store.add("k199", 1, 299)
        force_cold(state)
        assert [key for (key, _), _ in store.all()] == ["k000", "k199", "k199"]
        assert store.num_records == 3
        store.advance(1000)
        force_cold(state)
        assert (store.num_records, store.cold_blocks) == (0, 0)


def test_a_restored_key_waits_beside_its_cold_block(state: hs.State) -> None:
    store = state.sliding("s", size=1000, aggregator=hs.Collect())
    store.add_many([(key, f"{key}{ts}", ts) for ts in range(0, 40, 10) for key in "abcdefgh"])
    force_cold(state)
    store.free(1000)
    blocks = store.cold_blocks
    store.apply_time(35)
    store.apply_rows(["b", "b"], ["late", "later"], [10, 35])  # as a restore does
    assert store.cold_blocks == blocks > 2
    assert list(store.fetch("b")) == [(0, "b0"), (10, "b10"), (10, "late"), (20, "b20"), (30, "b30"), (35, "later")]
    assert store.cold_blocks == blocks - 1
    assert list(store.fetch("b", reverse=True)) == list(store.fetch("b"))[::-1]


def test_another_strategy_takes_over_the_values(state: hs.State) -> None:
    store = state.sliding("s", size=100, aggregator=hs.Sum())
    store.add("k", 1, 1)
    assert state.sliding("s", size=100, aggregator=hs.Sum(), strategy="recompute") is store
    assert store.add("k", 2, 2) == ("k", 0, 2, 3)
    store._check()
    with pytest.raises(hs.ProgramMismatchError, match="aggregator"):
        state.sliding("s", size=100, aggregator=hs.Max())
    with pytest.raises(ValueError, match="size"):
        state.sliding("t", size=-1, aggregator=hs.Max())


def test_several_aggregates_at_once(state: hs.State) -> None:
    combined = Combined({"n": hs.Count(), "total": hs.Sum("bytes"), "most": hs.Max("bytes")})
    store = state.sliding("s", size=100, aggregator=combined)
    store.add("k", combined.project({"bytes": 5}), 1)
    assert store.add("k", combined.project({"bytes": 7}), 2) == ("k", 0, 2, (2, 12, 7))


@pytest.fixture
def no_hydration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.memory.hydrate", lambda *_: 1)
    monkeypatch.setattr("hybridstore.state.memory.read_ahead", lambda *_: None)


def test_a_checkpoint_after_a_restart_loads_no_block(tmp_path: Path, no_hydration: None) -> None:
    with hs.open(tmp_path, durability="os", _tuning=SMALL) as state:
        store = state.sliding("s", size=1000, aggregator=hs.Collect())
        store.add_many([(f"k{i % 50:02}", i, i) for i in range(200)])
        state.commit()
        state.checkpoint(wait=True)
        store.add_many([(f"k{i:02}", "tail", 100 + i) for i in range(0, 50, 7)])
        state.commit()
        expected = list(store.all())
        crash(state)
    with hs.open(tmp_path, durability="os", _tuning=SMALL) as state:
        store = state.sliding("s", size=1000, aggregator=hs.Collect())
        cold = store.cold_blocks
        assert cold > 10
        state.checkpoint(wait=True)
        assert store.cold_blocks == cold
        store._check()
        # a second one loads nothing for a newer value, whose key has values beside its block in the first already
        store.apply_time(299)
        store.apply_rows(["k14"], ["newer"], [299])
        state._group.journal.record(store.number * 16 + 3, "k14", "newer", 299)
        state.commit()
        state.checkpoint(wait=True)
        assert store.cold_blocks == cold
        # a third one loads the block of a value that may belong before some of those
        store.apply_rows(["k07"], ["late"], [103])
        state._group.journal.record(store.number * 16 + 3, "k07", "late", 103)
        store.apply_time(300)
        store.apply_rows(["k07"], ["more"], [300])
        state._group.journal.record(store.number * 16 + 3, "k07", "more", 300)
        state.commit()
        state.checkpoint(wait=True)
        assert store.cold_blocks == cold - 1
        crash(state)
    with hs.open(tmp_path, durability="os", _tuning=SMALL) as state:
        store = state.sliding("s", size=1000, aggregator=hs.Collect())
        actual = list(store.all())
        added = [(("k07", 103), "late"), (("k07", 300), "more"), (("k14", 299), "newer")]
        assert [row for row in actual if row[1] not in ("more", "late", "newer")] == expected
        assert [row for row in actual if row[1] in ("more", "late", "newer")] == added


@pytest.mark.parametrize("seed", range(10 if STRESS else 4))
def test_checkpoints_of_what_lies_beside_cold_blocks(tmp_path: Path, no_hydration: None, seed: int) -> None:
    """The same changes to a state that restarts and fails checkpoints, and to one that does not."""
    r = random.Random(seed)
    now = 0

    def opened(name: str) -> tuple[hs.State, Any]:
        state = hs.open(tmp_path / name, durability="os", _tuning=SMALL)
        return state, state.sliding("s", size=200, aggregator=hs.Collect())

    (a, restarting), (b, steady) = opened("a"), opened("b")
    for step in range(150):
        choice = r.random()
        if choice < 0.15:
            a.commit()
            b.commit()
            crash(a)
            a, restarting = opened("a")
        elif choice < 0.35:
            a.commit()
            b.commit()
            if r.random() < 0.3:  # as after a checkpoint that failed
                a._group.unseal(a._group.seal())
            a.checkpoint(wait=True)
        elif choice < 0.4:
            key = f"k{r.randrange(40):02}"
            assert list(restarting.fetch(key)) == list(steady.fetch(key))
        elif choice < 0.43:
            now += 150
            restarting.advance(now)
            steady.advance(now)
        else:
            for _ in range(r.randrange(8)):
                now += r.randrange(3)
                key, ts = f"k{r.randrange(40):02}", max(0, now - r.choice([0, 0, 20, 150]))
                restarting.add(key, step, ts) if r.random() < 0.5 else restarting.add_columns([key], [step], [ts])
                steady.add(key, step, ts)
        restarting._check()
    assert list(restarting.all()) == list(steady.all())
    a.close()
    b.close()


def test_values_beside_a_block_are_written_once_after_a_failed_checkpoint(tmp_path: Path, no_hydration: None) -> None:
    def opened() -> tuple[hs.State, Any]:
        state = hs.open(tmp_path, durability="os", _tuning=SMALL)
        return state, state.sliding("s", size=1000, aggregator=hs.Collect())

    state, store = opened()
    for i in range(100):
        store.add(f"k{i:02}", i, i)
    state.commit()
    state.checkpoint(wait=True)
    store.add("k50", "first", 300)
    state.commit()
    crash(state)
    state, store = opened()
    state.checkpoint(wait=True)  # "first" stays beside its block
    for value, ts in (("second", 310), ("late", 290)):  # as a worker that catches up
        store.apply_time(ts)
        store.apply_rows(["k50"], [value], [ts])
        if value == "second":
            state._group.unseal(state._group.seal())  # as after a checkpoint that failed
    expected = [(50, 50), (290, "late"), (300, "first"), (310, "second")]
    store._check()
    (capture,) = state._group.capture()
    state._group.unseal(state._group.seal())
    written = [(50, 50), (300, "first")]
    for change in capture.changed.values():
        for columns in (change.columns, change.over):
            for key, time in zip(columns.keys, columns.froms or [], strict=True) if columns is not None else ():
                assert key == "k50"
                assert columns is change.columns, "the writer would lay the values over the block once more"
                written = [row for row in written if row[0] < time]
                written += zip(columns.ints[0], columns.values, strict=True)
    assert written == expected
    assert list(store.fetch("k50")) == expected
    state.close()


@pytest.mark.parametrize("keys", [512, 2000])
def test_the_values_in_memory_are_counted_or_estimated_from_those_of_some_keys(tmp_path: Path, keys: int) -> None:
    with hs.open(tmp_path, durability="os", memory_limit=1 << 40) as state:
        store = state.sliding("it", size=100, aggregator=hs.Sum())
        store.add_columns(list(range(keys)) * 3, [1] * 3 * keys, [5] * 3 * keys)
        store.add_columns(list(range(7)), [1] * 7, [5] * 7)  # of some of which more values came
        right = 3 * keys + 7
        assert store.num_records == right
        assert store.records_in_memory == pytest.approx(right, abs=0 if keys == 512 else 7 * (keys // 512))


@pytest.mark.parametrize("keys", [300, 4000])
def test_a_key_of_many_values_is_not_taken_for_the_rule(tmp_path: Path, keys: int) -> None:
    with hs.open(tmp_path, durability="os", memory_limit=1 << 40) as state:
        store = state.sliding("it", size=100, aggregator=hs.Sum())
        store.add_columns(list(range(keys)), [1000] * keys, [5] * keys)
        before = store.bytes_in_memory
        store.add_columns([0] * 3000, list(range(1000, 4000)), [5] * 3000)
        # counted by itself, or with as many more as the sample is smaller
        assert keys + 3000 <= store.records_in_memory <= keys + 3000 * (keys // 1024 + 1)
        assert before + 3000 * 40 < store.bytes_in_memory < before + 3000 * 100 * (keys // 1024 + 1)


def test_a_key_whose_values_slid_out_while_its_block_was_cold_is_not_kept(tmp_path: Path) -> None:
    for again in (False, True):
        with hs.open(tmp_path) as state:
            store = state.sliding("s", size=10, aggregator=hs.Collect())
            if again:
                store.advance(15)
                state.hydrate(1e9)
            else:
                store.add("a", 1, 1)
                store.add("b", 1, 9)
            state.commit()
            state.checkpoint(wait=True)
            assert state._checkpoints.reader is not None
            assert state._checkpoints.reader.meta.records == (1 if again else 2)
