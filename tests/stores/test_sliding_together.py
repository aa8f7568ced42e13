"""Rows of a batch that go into a sliding store key by key: what comes of it is what comes of them one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

import hybridstore as hs
from hybridstore.aggregation import Combined
from hybridstore.stores import sliding_maps
from hybridstore.stores.sliding import SlidingStore
from tests.tools.hooks import crash, force_cold
from tests.tools.vector_runner import SMALL
from tests.tools.ways import few_go_together

pytestmark = pytest.mark.usefixtures(few_go_together.__name__)

Rows = tuple[list[str], list[Any], list[int]]
AGGREGATORS: dict[str, dict[str, hs.Aggregator]] = {
    "rows": {"n": hs.Count()},
    "of one column": {"mean": hs.Mean("a"), "n": hs.Count(), "sum": hs.Sum("a"), "values": hs.Count("a")},
    "mean": {"n": hs.Count(), "mean": hs.Mean("a")},
    "sum": {"sum": hs.Sum("a"), "n": hs.Count()},
    "of two columns": {"b": hs.Sum("b"), "mean": hs.Mean("a"), "n": hs.Count(), "a": hs.Sum("a")},
}
# What the numbers of a stream are: the rare ones keep some batches from going together.
NUMBERS: dict[str, list[Any]] = {
    "ints": [0],
    "ints and bools": [True, False],
    "ints and None": [None],
    "ints and floats": [0.1, 1e16, -0.3],
    # their sums are exact, whatever the rungs: a copy has others than the store that it follows
    "ints and exact floats": [0.5, 2.0**40, -0.25],
    "large ints": [2**52, -(2**55), 2**59, 2**62, 2**63, 2**64 - 1, -(2**63)],
}


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that was tried has gone together."""
    tried: list[bool] = []
    together = sliding_maps.SlidingMaps.apply_together

    def trying(store: Any, *arguments: Any, **options: Any) -> list[Any] | None:
        columns = together(store, *arguments, **options)
        tried.append(columns is not None)
        return columns

    monkeypatch.setattr(sliding_maps.SlidingMaps, "apply_together", trying)
    return tried


def batches(r: random.Random, width: int, rare: list[Any]) -> Iterator[Rows]:
    """Batches in order of time, some rows of which are older than the batch before, or late; time leaps now and then.

    The first two are ones that go together.
    """

    def number() -> Any:
        return r.choice(rare) if r.random() < share else r.randint(-9, 9)

    now = 0
    for batch in range(14):
        rows = []
        share = r.choice([0, 0.02]) if batch > 1 else 0
        for _ in range(r.choice([1, 6, 40, 300]) if batch > 1 else 40):
            now += r.choice([0, 0, 1, 3]) if r.random() < 0.99 else r.choice([30, 45, 200])
            late = r.randint(1, 60) if r.random() < 0.05 and batch != 1 else 0
            value = [number() for _ in range(width)]
            rows.append((max(0, now - late), r.choice("aaaabbcd") if r.random() < 0.9 else r.choice("efghijk"), value))
        rows.sort(key=lambda row: row[0])
        values = [value if width > 1 else value[0] if width else 0 for _, _, value in rows]
        yield [key for _, key, _ in rows], values, [ts for ts, _, _ in rows]


def added(store: SlidingStore, rows: Rows, *, each: bool) -> list[Any]:
    """The results of a batch: of every row, or of each key its last one."""
    if each:
        return [repr(result) for result in store.add_columns(*rows)]
    states = dict(zip(rows[0], store.hold_columns(*rows), strict=True))
    return [(key, state and repr(state.value())) for key, state in sorted(states.items())]


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("kind", AGGREGATORS)
def test_together_is_one_by_one(kind: str, numbers: str, tmp_path: Path, went: list[bool], seed: int) -> None:
    r = random.Random(f"{seed} {kind} {numbers}")
    aggregator = Combined(AGGREGATORS[kind])
    width = len(aggregator.columns)

    def opened(name: str) -> tuple[hs.State, SlidingStore]:
        state = hs.open(tmp_path / name, durability="os", _tuning=SMALL)
        return state, state.sliding("s", size=40, aggregator=aggregator)

    sides = [opened("together"), opened("in turn")]
    for rows in batches(r, width, NUMBERS[numbers]):
        each = r.random() < 0.8
        results = [added(sides[0][1], rows, each=each)]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sliding_maps, "_A_BATCH", len(rows[0]))
            results.append(added(sides[1][1], rows, each=each))
        assert results[0] == results[1]
        assert sides[0][1].stream_time == sides[1][1].stream_time
        assert sides[0][1].dropped == sides[1][1].dropped
        for state, store in sides:
            store._check()
            state.commit()
        digests = {state.group.digest for state, _ in sides}
        assert len(digests) == 1
        if r.random() < 0.3:
            assert list(sides[0][1].all()) == list(sides[1][1].all())
            assert list(map(repr, sides[0][1].aggregates())) == list(map(repr, sides[1][1].aggregates()))
        restart = r.choice(["cold", "crash", "checkpoint", *["none"] * 5])
        for side, name in enumerate(("together", "in turn")):
            state = sides[side][0]
            if restart == "cold":
                force_cold(state)
            elif restart != "none":
                if restart == "checkpoint":
                    state.checkpoint(wait=True)
                crash(state)
                sides[side] = opened(name)
    assert went[0]
    for state, _ in sides:
        state.close()


def test_what_is_no_sum_of_ints_goes_in_one_by_one(tmp_path: Path, went: list[bool]) -> None:
    with hs.open(tmp_path / "s", durability="os") as state:
        sums = state.sliding("sums", size=10, aggregator=Combined({"n": hs.Count(), "sum": hs.Sum("a")}))
        keys, times = ["a"] * 4, [1, 2, 3, 4]
        assert sums.add_columns(keys, [1, 2, 3, 4], times)[-1] == (4, 10)
        assert sums.add_columns(keys, [1, 2, 0.5, 4], [5, 6, 7, 8])[-1] == (8, 17.5)
        assert sums.add_columns(keys, [1, 1, 1, 1], [9, 9, 9, 9])[-1] == (12, 21.5)  # a float is still in the window
        assert sums.add_columns(keys, [1, 1, 1, 1], [18, 18, 18, 18])[-1] == (9, 12)
        assert sums.add_columns(keys, [1, 1, 1, 1], [19, 19, 19, 19])[-1] == (12, 12)
        assert sums.add_columns(["a", "b", "c", "d"], [1, 1, 1, 1], [20, 20, 20, 20])[-1] == (1, 1)
        assert sums.add_columns(keys, [1, 1, 1, 1], [20, 21, 20, 21])[-1] == (13, 13)  # times are not in order
        extremes = state.sliding("extremes", size=10, aggregator=Combined({"n": hs.Count(), "most": hs.Max("a")}))
        assert extremes.add_columns(keys, [1, 2, 3, 4], times)[-1] == (4, 4)
    assert went == [True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("aggregator", "values"),
    [
        (hs.Mean("a"), [2**53 + 1, 2**53 + 3, 5]),
        (hs.Sum("a"), [2**62] * 9),
        (hs.Sum("a"), [-(2**62)] * 9),
        (hs.Sum("a"), [2**59] * 99),
    ],
)
def test_sums_that_numpy_would_round_or_wrap_are_those_of_python(
    aggregator: hs.Aggregator, values: list[int], tmp_path: Path, went: list[bool]
) -> None:
    with hs.open(tmp_path / "s", durability="os") as state:
        store = state.sliding("s", size=1000, aggregator=Combined({"a": aggregator}))
        results = store.add_columns(["a"] * len(values), values, list(range(len(values))))
        assert results == [(aggregator.of(values[:count]),) for count in range(1, len(values) + 1)]
        # and on top of what is there
        assert store.add_columns(["a"] * 3, [1, 2, 3], [200] * 3)[-1] == (aggregator.of([*values, 1, 2, 3]),)
    assert went == [False, False]


@pytest.mark.parametrize("numbers", ["ints", "ints and exact floats", "large ints"])
def test_a_copy_that_catches_up_is_as_the_store_that_it_follows(
    numbers: str, tmp_path: Path, went: list[bool], seed: int
) -> None:
    r = random.Random(f"{seed} {numbers}")
    with hs.open(tmp_path / "s", durability="os") as state, hs.open(tmp_path / "copies", durability="os") as others:
        aggregator = Combined(AGGREGATORS["sum"])
        store = state.sliding("s", size=40, aggregator=aggregator)
        copies = [others.sliding(name, size=40, aggregator=aggregator) for name in ("together", "in turn")]
        caught_up = 0
        for number, rows in enumerate(batches(r, 1, NUMBERS[numbers])):
            results = store.add_columns(*rows)
            if number % 3 == 0:
                for copy in copies:
                    assert list(map(repr, copy.add_columns(*rows))) == list(map(repr, results))
                    copy._check()
                assert len({repr(list(each.all())) for each in (store, *copies)}) == 1
                assert len({repr(list(each.aggregates())) for each in (store, *copies)}) == 1
                continue
            logged = [row for row, result in zip(zip(*rows, strict=True), results, strict=True) if result is not None]
            if not logged:
                continue  # all of the batch came too late
            for copy, together in zip(copies, (True, False), strict=True):
                copy._tail.extend(*map(list, zip(*logged, strict=True)))
                copy.end_version(store.stream_time, 1)
                copy.pin_key_type()
                with pytest.MonkeyPatch.context() as patched:
                    if not together:
                        patched.setattr(sliding_maps, "_A_BATCH", len(logged))
                    tried = len(went)
                    copy.touch(rows[0][::2])
                    caught_up += together and any(went[tried:])
                copy._check()
        assert caught_up


def test_more_rows_of_a_key_than_a_block_holds_follow_expired_ones(tmp_path: Path, went: list[bool]) -> None:
    with hs.open(tmp_path / "s", durability="os") as state:
        store = state.sliding("s", size=1000, aggregator=Combined({"n": hs.Count(), "sum": hs.Sum("a")}))
        for begin in (0, 5000, 10_000):
            rows = ["a"] * 700, list(range(700)), list(range(begin, begin + 700))
            assert store.add_columns(*rows) == [(n + 1, n * (n + 1) // 2) for n in range(700)]
            store._check()
    assert went == [True] * 3


def test_a_copy_that_catches_up_forgets_what_has_expired(tmp_path: Path, went: list[bool]) -> None:
    with hs.open(tmp_path / "s", durability="os") as state:
        copy = state.sliding("s", size=10, aggregator=Combined({"n": hs.Count(), "sum": hs.Sum("a")}))
        copy.add("a", 1, 1)
        copy._tail.extend(["a", "b", "c", "a", "a", "d"], [1, 2, 3, 4, 5, 6], [2, 3, 24, 30, 31, 31])
        copy.end_version(35, 1)
        copy.pin_key_type()
        copy.touch(["a", "b", "c", "d"])
        copy._check()
        assert list(copy.all()) == [(("a", 30), 4), (("a", 31), 5), (("d", 31), 6)]
        assert copy.num_records == 3
    assert went == [True]
