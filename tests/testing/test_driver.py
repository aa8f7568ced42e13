"""The driver of topologies: rows, time, results, late rows, stores, restarts, rescales; it is what production does."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore import testing as ht
from hybridstore.clock import Watermark
from tests.topology.test_every_way import Runners, batches_of, stream_of
from tests.topology.test_topology import EMITS, WINDOWS, declared

MINUTES = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute", grace=0))
FINAL = MINUTES.aggregate(emit="close", n=hs.Count())


def clicks(*times: int, user: str = "ann") -> list[dict[str, Any]]:
    return [{"user": user, "ts": ts} for ts in times]


def test_rows_move_time_and_late_rows_are_kept_apart() -> None:
    with ht.Driver(FINAL) as driver:
        assert driver.push(*clicks(500, 900)) == []
        assert driver.push(*clicks(60_000)) == [{"user": "ann", "window_start": 0, "window_end": 60_000, "n": 2}]
        assert driver.push(*clicks(7, user="bob")) == []
        assert (driver.late, driver.dropped) == (clicks(7, user="bob"), 1)
        assert [row["window_start"] for row in driver.windows()] == [60_000]
        assert [row["n"] for row in driver.flush()] == [1]
        assert [row["n"] for row in driver.results] == [2, 1]


def test_a_topology_that_emits_late_rows_emits_them_here_too() -> None:
    with ht.Driver(FINAL.late("too_late")) as driver:
        driver.push(*clicks(60_000))
        (row,) = driver.push(*clicks(7))
        assert row["too_late"] == {"user": "ann", "ts": 7}
        assert driver.late == clicks(7)


def test_time_is_moved_without_rows() -> None:
    with ht.Driver(FINAL) as driver:
        driver.push(*clicks(500))
        assert driver.advance(59_999) == []
        assert [row["n"] for row in driver.advance("1970-01-01 00:01")] == [1]
        assert driver.advance(1) == []
        driver.push(*clicks(59_999))
        assert driver.late == clicks(59_999)


def test_a_watermark_follows_the_rows_a_batch_later() -> None:
    with ht.Driver(FINAL, time="watermark", delay="10 seconds", shards=2) as driver:
        assert driver.push(*clicks(500, 69_999)) == []
        assert (driver.push(*clicks(59_999)), driver.watermark) == ([], 59_999)
        assert [row["n"] for row in driver.push(*clicks(70_001))] == [2]
        assert driver.push(*clicks(60_001)) == []
        assert driver.late == []  # its window is still open
        assert driver.push(*clicks(59_999)) == []
        assert driver.late == clicks(59_999)
    with pytest.raises(ValueError, match='delay: found with time="stream"'):
        ht.Driver(FINAL, delay=1)
    with pytest.raises(ValueError, match="time: found 'wall'"):
        ht.Driver(FINAL, time="wall")  # type: ignore[arg-type]


def test_a_program_that_raises_starts_again_from_its_last_commit() -> None:
    def count(row: dict[str, Any], stores: Any) -> Any:
        n = (stores["seen"].get(row["user"]) or 0) + 1
        stores["seen"].put(row["user"], n)
        if row["ts"] == 13:
            raise RuntimeError("thirteen")
        yield {"n": n}

    counts = hs.stream(key="user", timestamp="ts").process(count, stores=[hs.key_value_store("seen")])
    with ht.Driver(counts) as driver:
        assert driver.push(*clicks(1, 2)) == [{"n": 1}, {"n": 2}]
        with pytest.raises(RuntimeError, match="thirteen"):
            driver.push(*clicks(3, 13))
        assert driver.store("seen").get("ann") == 2
        assert driver.push(*clicks(14)) == [{"n": 3}]
        driver.rescale(3)
        driver.restart()
        assert driver.push(*clicks(15)) == [{"n": 4}]
        assert [driver.store("seen", shard).get("ann") for shard in range(3)].count(4) == 1
    with ht.Driver(FINAL) as driver, pytest.raises(TypeError, match=r"windows\(\) reads windows"):
        driver.store("windows")


def test_timers_by_the_clock_fire_when_the_clock_is_moved() -> None:
    def remind(row: dict[str, Any], stores: Any) -> None:
        stores.clock_timers.set(stores.clock_timers.now + 1000)

    def fire(timer: Any, stores: Any) -> Any:
        yield {"user": timer.key, "at": timer.time}

    topology = hs.stream(key="user", timestamp="ts").process(remind, on_timer=fire, clock_ticks="1 second")
    with ht.Driver(topology) as driver:
        assert driver.push(*clicks(7)) == []
        assert driver.advance_clock(999) == []
        assert driver.advance_clock(1000) == [{"user": "ann", "at": 1000}]


@pytest.mark.parametrize("time", ["stream", "watermark"])
def test_a_join_takes_rows_by_the_names_of_its_inputs(time: Any) -> None:
    orders = hs.stream(name="orders", key="order", timestamp="at", columns=["item"])
    payments = hs.stream(name="payments", key="order", timestamp="paid", columns=[])
    joined = orders.join(payments, within=("0 s", "1 minute"), how="left")
    with ht.Driver(joined, time=time) as driver:
        assert driver.push({"orders": [{"order": n, "at": 500, "item": "tea"} for n in (1, 2)]}) == []
        (pair,) = driver.push({"payments": [{"order": 1, "paid": 900}]})
        assert (pair["order"], pair["paid"]) == (1, 900)
        assert driver.advance(60_500) == []
        assert [(row["order"], row["paid"]) for row in driver.advance(60_501)] == [(2, None)]
        driver.push({"orders": [{"order": 3, "at": 5, "item": "tea"}]})
        assert driver.late == [{"input": "orders", "order": 3, "at": 5, "item": "tea"}]
        with pytest.raises(TypeError, match="one dict of rows by the names of the inputs"):
            driver.push({"order": 1}, {"order": 2})


@pytest.mark.parametrize(("name", "emit"), EMITS)
def test_the_driver_gives_what_a_run_and_what_spark_give(name: str, emit: str, seed: int, tmp_path: Path) -> None:
    """Results of each commit, by stream time as `run`, and by a watermark as the runners of Spark."""
    topology, r = declared(WINDOWS[name], emit), random.Random(seed)
    batches = batches_of(list(stream_of(r)), r.choice([1, 7, 20]))
    with ht.Driver(topology, shards=2) as driver, topology.open(tmp_path, shards=2) as engine:
        for number, batch in enumerate(batches):
            rows = [
                row
                for shard, part in enumerate(engine.split_batch(batch, number))
                for row in engine.process_batch(shard, part)
            ]
            assert driver.push(*batch) == rows
        assert driver.dropped == engine.dropped
    runners, clock, newest = Runners(topology, 2, clocked=True), Watermark(0, 0), 0
    with ht.Driver(topology, time="watermark", shards=2) as driver:
        for batch in batches:
            assert driver.push(*batch) == runners.batch(batch, clock)
            newest = max(newest, *(row["time"] for row in batch))
            clock = Watermark(clock.now_ms, max(clock.now_ms, newest - 20))
            assert driver.advance(newest - 20) == runners.batch([], clock)
            clock = Watermark(clock.now_ms, clock.now_ms)


def test_importing_the_tools_imports_none_of_what_they_may_need() -> None:
    code = (
        "import sys, hybridstore.testing;"
        "print(*(m for m in ('pyspark', 'pyarrow', 'numpy', 'hypothesis', 'pytest') if m in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""


@pytest.mark.parametrize(
    "way",
    [
        lambda: ht.crash_everywhere(0),
        lambda: ht.cut_anyhow(times=0),
        lambda: ht.rescaled(2, 3, times=0),
        lambda: ht.shuffled("1 minute", times=0),
        lambda: ht.cut_anyhow(times=True),
    ],
)
def test_a_way_that_would_run_nothing_is_refused(way: Callable[[], ht.Way]) -> None:
    with pytest.raises(ValueError, match="expected a whole number of 1 or more"):
        way()


def numbered() -> hs.Topology:
    """A program that numbers rows since its start."""
    numbers = itertools.count()
    return hs.stream(key="user", timestamp="ts").process(lambda row, stores: [{"n": next(numbers)}])


def test_a_program_that_is_a_function_is_made_anew_at_every_start() -> None:
    with ht.Driver(numbered) as driver:
        assert driver.push({"user": "a", "ts": 1}, {"user": "a", "ts": 2}) == [{"n": 0}, {"n": 1}]
        driver.restart()
        assert driver.push({"user": "a", "ts": 3}) == [{"n": 0}]
        driver.rescale(2)
        assert driver.push({"user": "a", "ts": 4}) == [{"n": 0}]
        with pytest.raises(ValueError, match="shard: found 2, expected 0 to 1"):
            driver.store("none", 2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda rows: ht.check(numbered, iter(rows)), TypeError, "rows: found list_iterator, expected a list"),
        (
            lambda rows: ht.check(numbered, rows, ht.crash_everywhere),
            TypeError,
            "ways: found crash_everywhere, expected",
        ),
        (lambda rows: ht.check(numbered, rows, [ht.cut_anyhow()]), TypeError, "ways: found list, expected ways"),
        (
            lambda rows: ht.check(numbered, rows, by="user"),
            ValueError,
            "by: found no column 'user' in a result, expected some of n",
        ),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call([{"user": "a", "ts": 1}])


def test_an_error_of_the_program_has_a_note_of_the_way_in_which_it_was_raised() -> None:
    def divided(row: dict[str, Any], stores: Any) -> None:
        numbers.append(1 // (25 - len(numbers)))

    numbers: list[int] = []
    program = hs.stream(key="user", timestamp="ts").process(divided)
    with pytest.raises(ZeroDivisionError) as raised:
        ht.check(program, [{"user": "a", "ts": ts} for ts in range(20)], ht.cut_anyhow(), seed=7)
    assert raised.value.__notes__[-1] == "check: raised in cut_anyhow(), seed 7"


def test_a_check_that_had_nothing_to_compare_says_so() -> None:
    def silent(row: dict[str, Any], stores: Any) -> None:
        stores["seen"].put(row["user"], row["ts"])

    def named(name: str) -> hs.Topology:
        return hs.stream(name=name, key="user", timestamp="ts")

    clicks = hs.stream(key="user", timestamp="ts")
    rows = [{"user": "a", "ts": ts} for ts in range(20)]
    for program, given in (
        (clicks.process(silent, stores=[hs.key_value_store("seen")]), rows),
        (clicks.filter(lambda row: row["ts"] > 20).aggregate(n=hs.Count()), rows),
        (named("left").join(named("right"), within=5), {"left": rows, "right": []}),
    ):
        with pytest.warns(UserWarning, match="check: found no result of 20 rows in any way, so nothing was compared"):
            ht.check(program, given, ht.cut_anyhow(times=2), ht.rescaled(2, times=1))
    # a way that gives a result is enough
    ht.check(clicks.aggregate(n=hs.Count()), rows, ht.cut_anyhow(times=2))
