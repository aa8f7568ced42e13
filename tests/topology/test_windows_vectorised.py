"""Batches that numpy groups and batches that go row by row: the same results, the same state, the same bytes in the
changelog.
"""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from hybridstore.topology import engine  # noqa: E402  (it needs both)
from hybridstore.topology.columns.why import Why  # noqa: E402
from hybridstore.topology.shard_run import ShardRun  # noqa: E402
from tests.tools.ways import few_go_together, row_by_row, went_by_column  # noqa: E402

pytestmark = pytest.mark.usefixtures(few_go_together.__name__)

AGGREGATES: dict[str, dict[str, Any]] = {
    "count": {"n": hs.Count()},
    "sum": {"total": hs.Sum("n")},
    "added": {"rows": hs.Count(), "values": hs.Count("n"), "total": hs.Sum("n"), "mean": hs.Mean("m")},
    "extremes": {"least": hs.Min("n"), "n": hs.Count(), "most": hs.Max("m"), "total": hs.Sum("m")},
    "where": {
        "odd": hs.Count(where=lambda row: row["m"] % 2),
        "known": hs.Count("n", where=lambda row: row["m"] % 3),
        "users": hs.Count("user", where=lambda row: row["user"] < "u3"),
        "total": hs.Sum("n", where=lambda row: row["n"] is not None and row["n"] > 0),
        "mean": hs.Mean("m", where=lambda row: row.get("none", row["n"])),
        "least": hs.Min("n", where=lambda row: row["m"] % 3),
        "all": hs.Sum("m"),
    },
    "rows": {
        "most": hs.MaxBy("n", ["m", "user"]),
        "least": hs.MinBy("n", "m"),
        "greatest": hs.MinBy("n", "user", where=lambda row: row["m"] % 3),
        "first": hs.FirstBy("time", ["n"]),
        "last": hs.LastBy("time", ["m", "n"], where=lambda row: row["m"] % 2),
        "top": hs.TopK(2, by="n", columns=["user", "m"]),
        "newest": hs.TopK(3, by="time", columns="n", where=lambda row: row["m"] % 3),
        "n": hs.Max("n"),
    },
}
# with a result of each record, in windows that overlap or that move
BY_ROW: dict[str, set[str]] = {
    "record": {"extremes", "where", "rows"},
    "hopping": {"rows"},
    "sliding": {"where", "rows"},
}


class Shard:
    """A runner on stores whose changelog is kept in memory."""

    def __init__(self, topology: hs.Topology, *, by_row: bool, clocked: bool = False) -> None:
        self.group = StoreGroup(lambda body: None)
        self.program = TopologyProgram(topology, clocked=clocked)
        self.runner = self.program.open(self.group)
        self.went = False
        if by_row:
            row_by_row(self.runner)

    def process(self, table: Any, clock: Watermark | None) -> list[dict[str, Any]]:
        results = self.runner.process(table, self.program.output_schema(table.schema), clock)
        self.went = went_by_column(self.runner, table)
        self.group.reached(self.group.version + 1, self.group.journal.seal())
        rows: list[dict[str, Any]] = results.to_pylist()
        return rows


def batch(r: random.Random, now: int, rows: int, keys: int, *, nulls: bool, timestamps: bool, two: bool) -> Any:
    times = [max(0, now + r.randint(-60, 40)) for _ in range(rows)]
    numbers = [None if nulls and r.random() < 0.2 else r.randint(-40, 90) for _ in range(rows)]
    columns: dict[str, Any] = {
        "user": pa.array([f"u{r.randrange(keys)}é" for _ in range(rows)], pa.string()),
        "time": pa.array(times, pa.timestamp("ms", "UTC") if timestamps else pa.int64()),
        "n": pa.array(numbers, pa.int32()),
        "m": pa.array([r.randint(0, 10**9) for _ in range(rows)], pa.int64()),
    }
    if two:
        columns["page"] = pa.array([r.randrange(-2, 3) for _ in range(rows)], pa.int16())
    return pa.table(columns)


@pytest.mark.parametrize(
    "windows",
    [
        hs.TumblingWindows(20),
        hs.TumblingWindows(15, grace=25),
        hs.HoppingWindows(20, 5, grace=10),
        hs.HoppingWindows(20, 7),
    ],
    ids=repr,
)
@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize("kind", AGGREGATES)
@pytest.mark.stress
def test_vectorised_batches_equal_those_by_row(windows: Any, emit: Any, kind: str, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        nulls, timestamps, two = r.random() < 0.3, r.random() < 0.5, r.random() < 0.4
        topology = (
            hs.stream(key=["user", "page"] if two else "user", timestamp="time")
            .windowed_by(windows)
            .aggregate(emit=emit, **AGGREGATES[kind])
        )
        clocked = number % 3 == 2 or r.random() < 0.4
        fast, slow = (Shard(topology, by_row=by_row, clocked=clocked) for by_row in (False, True))
        now, vectorised, late = 0, 0, 0
        for _ in range(12):
            now += r.choice([0, 5, 30, 200])
            table = batch(r, now, r.choice([0, 1, 7, 60]), 5, nulls=nulls, timestamps=timestamps, two=two)
            clock = Watermark(late, late := max(0, now - 20)) if clocked else None
            assert fast.process(table, clock) == slow.process(table, clock)
            vectorised += fast.went
            assert fast.group.digest == slow.group.digest
            assert fast.runner.dropped == slow.runner.dropped
        hopping = isinstance(windows, hs.HoppingWindows) and kind in BY_ROW["hopping"]
        if not hopping and (emit != "record" or not (nulls or kind in BY_ROW["record"])):
            assert vectorised, "no batch was vectorised"


DISTINCT: dict[str, hs.Aggregator] = {
    "pages": hs.CountDistinct("page"),
    "users": hs.CountDistinct("user", where=lambda row: row["m"] % 3),
    "numbers": hs.CountDistinct("n"),
    "positive": hs.CountDistinct("n", where=lambda row: row["n"] is not None and row["n"] > 0),
    "n": hs.Sum("n"),
    "newest": hs.Max("large"),
    "least": hs.Min("large", where=lambda row: row["m"] % 2),
}


@pytest.mark.parametrize("windows", [hs.TumblingWindows(20), hs.TumblingWindows(15, align_to=4, grace=25), None])
@pytest.mark.parametrize("emit", ["commit", "close"])
@pytest.mark.stress
def test_distinct_values_by_column_equal_those_by_row(windows: Any, emit: Any, seed: int, rounds: int) -> None:
    if windows is None and emit == "close":
        return
    for number in range(rounds):
        r = random.Random(seed + number)
        nulls, clocked = r.random() < 0.5, r.random() < 0.4
        stream = hs.stream(key="page", timestamp="time")
        declared = stream if windows is None else stream.windowed_by(windows)
        topology = declared.aggregate(emit=emit, **DISTINCT)
        fast, slow = (Shard(topology, by_row=by_row, clocked=clocked) for by_row in (False, True))
        now, late = 0, 0
        for _ in range(12):
            now += r.choice([0, 5, 30, 200])
            table = batch(r, now, r.choice([1, 7, 60]), 5, nulls=nulls, timestamps=False, two=True)
            large = pa.array([r.choice([-(2**62), 2**62, 2**61]) for _ in range(table.num_rows)], pa.int64())
            table = table.append_column("large", large)
            clock = Watermark(late, late := max(0, now - 20)) if clocked else None
            results = [shard.process(table, clock) for shard in (fast, slow)]
            assert results[0] == results[1]
            assert fast.went
            windows_of = [list(shard.group.stores["windows"].all()) for shard in (fast, slow)]
            assert windows_of[0] == windows_of[1]
            assert fast.runner.dropped == slow.runner.dropped


def test_many_keys_in_many_windows_are_grouped_as_row_by_row() -> None:
    r = random.Random(7)
    topology = (
        hs.stream(key="key", timestamp="time")
        .windowed_by(hs.TumblingWindows(20))
        .aggregate(emit="commit", **DISTINCT, **{f"{name} row": part for name, part in AGGREGATES["rows"].items()})
    )
    fast, slow = (Shard(topology, by_row=by_row) for by_row in (False, True))
    for _ in range(2):
        table = batch(r, 0, 300, 5, nulls=True, timestamps=False, two=True)
        table = table.set_column(1, "time", pa.array([r.randrange(4000) for _ in range(300)]))
        for name in ("key", "large"):
            table = table.append_column(name, pa.array([r.randrange(100) for _ in range(300)]))
        assert fast.process(table, None) == slow.process(table, None)
        assert fast.went


@pytest.mark.parametrize(
    ("aggregator", "n", "why"),
    [
        (hs.CountDistinct("n"), [1.5, 1.5, None], Why.VALUES),
        (hs.Max("n"), [2**62 + 1, 3, None], Why.LARGE),
        (hs.MaxBy("n", "user"), [2**62 + 1, 3, None], Why.LARGE),
        (hs.MaxBy("n", "user"), ["b", "a", None], Why.VALUES),
        (hs.MaxBy("n", "user"), [1.5, float("nan"), None], None),
        (hs.MinBy("n", "user"), [float("inf"), float("-inf"), 0.0], None),
        (hs.LastBy("n", ["n", "user"]), [datetime(2024, 1, 1), datetime(2023, 1, 1), None], None),
    ],
)
def test_values_that_have_no_way_by_column_go_row_by_row(aggregator: Any, n: Any, why: Why | None) -> None:
    topology = hs.stream(key="user", timestamp="time").aggregate(emit="commit", n=aggregator)
    table = pa.table({"user": ["a", "a", "b"], "time": [1, 2, 3], "n": n})
    runs = [ShardRun(topology, StoreGroup(lambda body: None)) for _ in range(2)]
    row_by_row(runs[1])
    results = [repr(run.table(run.process_batch(table), "ms").arrow().to_pylist()) for run in runs]
    assert results[0] == results[1]
    assert runs[0].why is why


@pytest.mark.parametrize(
    ("aggregator", "windows"),
    [
        (hs.CountDistinct("n"), hs.HoppingWindows(20, 10)),
        (hs.CollectSet("n"), None),
        (hs.Last(where=lambda row: True), None),
    ],
)
def test_what_has_no_way_by_column_goes_row_by_row(aggregator: Any, windows: Any) -> None:
    stream = hs.stream(key="user", timestamp="time")
    topology = (stream if windows is None else stream.windowed_by(windows)).aggregate(emit="commit", n=aggregator)
    run = ShardRun(topology, StoreGroup(lambda body: None))
    run.process_batch(pa.table({"user": ["a"], "time": [1], "n": [1]}))
    assert run.why in (Why.AGGREGATES, Why.WHOLE_ROWS)


def test_a_sketch_of_distinct_values_goes_row_by_row() -> None:
    pytest.importorskip("datasketches")
    test_what_has_no_way_by_column_goes_row_by_row(hs.CountDistinct("n", approximate=True), None)


def test_a_record_too_late_for_a_window_that_the_clock_closes_is_not_in_it() -> None:
    """It goes into a pane that the window shares with a later one, in the same commit."""
    topology = (
        hs.stream(key="user", timestamp="time")
        .windowed_by(hs.HoppingWindows(20, 5))
        .aggregate(emit="close", n=hs.Count())
    )
    results = []
    for by_row in (False, True):
        shard = Shard(topology, by_row=by_row, clocked=True)
        shard.process(pa.table({"user": ["a"], "time": [10]}), Watermark(0, 0))
        # the shard had no row in the batch before, which moved the watermark to 26
        results.append(
            [
                shard.process(pa.table({"user": ["a"], "time": [time]}), Watermark(late, clock))
                for time, late, clock in ((12, 26, 26), (50, 26, 60))
            ]
        )
        assert shard.group.digest
    assert results[0] == results[1]
    assert [row["n"] for row in results[0][0]] == [1, 1]
    assert [row["n"] for row in results[0][1]] == [2, 1, 1]


@pytest.mark.parametrize("emit", ["record", "commit"])
def test_numbers_too_large_for_exact_sums_go_row_by_row(emit: Any) -> None:
    topology = (
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(10)).aggregate(emit=emit, s=hs.Sum("n"))
    )
    shard = Shard(topology, by_row=False)
    for first in (True, False):
        table = pa.table({"user": ["a", "a"], "time": [1, 2], "n": pa.array([2**61, 1], pa.int64())})
        results = shard.process(table, None)
        assert results[-1]["s"] == (2**61 + 1) * (1 if first else 2)
        assert not shard.went
    small = pa.table({"user": ["a"], "time": [3], "n": pa.array([1], pa.int64())})
    assert shard.process(small, None)[-1]["s"] == 2 * (2**61 + 1) + 1


@pytest.mark.parametrize("column", [[True, False], ["x", "y"]])
def test_what_are_no_numbers_goes_row_by_row(column: list[Any]) -> None:
    most = hs.Max("n")
    topology = (
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(10)).aggregate(emit="commit", most=most)
    )
    shard = Shard(topology, by_row=False)
    results = shard.process(pa.table({"user": ["a", "a"], "time": [1, 2], "n": column}), None)
    assert results == [{"user": "a", "window_start": 0, "window_end": 10, "most": max(column)}]
    assert not shard.went


def test_times_before_the_epoch_are_refused_by_name() -> None:
    topology = (
        hs.stream(key="user", timestamp="time")
        .windowed_by(hs.TumblingWindows(10))
        .aggregate(emit="commit", n=hs.Count())
    )
    shard = Shard(topology, by_row=False)
    with pytest.raises(ValueError, match="'time': found -1, expected a time of 0 or later"):
        shard.process(pa.table({"user": ["a", "b"], "time": [1, -1]}), None)


@pytest.mark.parametrize("emit", ["record", "commit"])
@pytest.mark.parametrize("kind", AGGREGATES)
@pytest.mark.stress
def test_sliding_batches_by_column_equal_those_by_row(emit: Any, kind: str, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        nulls, timestamps, two = r.random() < 0.3, r.random() < 0.5, r.random() < 0.4
        topology = (
            hs.stream(key=["user", "page"] if two else "user", timestamp="time")
            .windowed_by(hs.SlidingWindows(30))
            .aggregate(emit=emit, **AGGREGATES[kind])
        )
        clocked = r.random() < 0.3
        fast, slow = (TopologyProgram(topology, clocked=clocked) for _ in range(2))
        groups = [StoreGroup(lambda body: None) for _ in range(2)]
        runners = [program.open(group) for program, group in zip((fast, slow), groups, strict=True)]
        row_by_row(runners[1])
        now = late = 0
        for _ in range(12):
            now += r.choice([0, 5, 30, 200])
            table = batch(r, now, r.choice([0, 1, 7, 60]), 5, nulls=nulls, timestamps=timestamps, two=two)
            clock = Watermark(late, late := max(0, now - 20)) if clocked else None
            results = [runner.process(table, fast.output_schema(table.schema), clock) for runner in runners]
            assert results[0].to_pylist() == results[1].to_pylist()
            for group in groups:
                group.reached(group.version + 1, group.journal.seal())
            assert groups[0].digest == groups[1].digest
            assert runners[0].dropped == runners[1].dropped


# --- plain runs over Arrow batches --------------------------------------------------------------------------------


def run_batches(topology: hs.Topology, batches: list[Any], state: Path, shards: int) -> tuple[list[Any], list[Any]]:
    """Return what a run over batches gives, and the digests that its shards reach."""
    results = [(row.commit, repr(dict(row))) for row in topology.run(batches, location=state, shards=shards)]
    with topology.open(state, shards=shards) as opened:
        return results, [store.group.digest for store in opened.states]


@pytest.mark.parametrize("windows", [hs.TumblingWindows(20), hs.HoppingWindows(20, 5, grace=10), hs.SlidingWindows(30)])
@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize("kind", AGGREGATES)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_run_over_arrow_batches_by_column_equals_one_by_row(
    windows: Any, emit: Any, kind: str, shards: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if emit == "close" and isinstance(windows, hs.SlidingWindows):
        return
    r = random.Random(seed)
    two = shards == 3
    topology = (
        hs.stream(key=["user", "page"] if two else "user", timestamp="time")
        .windowed_by(windows)
        .aggregate(emit=emit, **AGGREGATES[kind])
    )
    now, batches = 0, []
    for number in range(8):
        now += r.choice([0, 5, 30, 200])
        table = batch(r, now, r.choice([1, 7, 60]), 5, nulls=number == 5, timestamps=kind == "sum", two=two)
        batches += table.to_batches()
    reasons: list[Why | None] = []
    by_column_or_why = ShardRun._by_column

    def watched(self: ShardRun, batch: Any, clock: Any) -> Any:
        results = by_column_or_why(self, batch, clock)
        reasons.append(self.why)
        return results

    monkeypatch.setattr(ShardRun, "_by_column", watched)
    by_column = run_batches(topology, batches, tmp_path / "columns", shards)
    monkeypatch.setattr(engine, "never", lambda *_, **__: Why.NO_NUMPY)
    by_row = run_batches(topology, batches, tmp_path / "rows", shards)
    assert by_column == by_row
    # minima and maxima have no column of running results, and what is chosen by a function has neither
    slides, hops = isinstance(windows, hs.SlidingWindows), isinstance(windows, hs.HoppingWindows)
    shape = "sliding" if slides else "record" if emit == "record" else "hopping" if hops else ""
    fits = kind not in BY_ROW.get(shape, set())
    assert (None in reasons) == fits


def test_a_column_that_no_batch_has_adds_nothing_where_a_function_chooses(tmp_path: Path) -> None:
    topology = hs.stream(key="user", timestamp="time").aggregate(
        emit="commit", n=hs.Count(where=lambda row: row["time"] > 1), total=hs.Sum("n", where=lambda row: True)
    )
    batch = pa.table({"user": ["a", "b", "a"], "time": [1, 2, 3]})
    for rows in (batch, batch.to_pylist()):
        results = topology.run(rows)
        assert [(row["user"], row["n"], row["total"]) for row in results] == [("a", 1, 0), ("b", 1, 0)]
    run = ShardRun(topology, StoreGroup(lambda body: None))
    run.process_batch(batch)
    assert run.why is Why.MISSING


def test_a_bad_row_of_a_batch_is_found_before_any_shard_commits(tmp_path: Path) -> None:
    topology = hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Count())
    rows = [{"user": user, "time": 1} for user in "abcdef"]
    good, broken = (pa.Table.from_pylist(part) for part in (rows, [*rows, rows[0] | {"time": -1}]))
    with pytest.raises(ValueError, match="column 'time': found"):
        list(topology.run([good, broken], location=tmp_path, shards=3))
    with topology.open(tmp_path, shards=3) as opened:
        assert [store.settings["run"]["commit"] for store in opened.states] == [1, 1, 1]
    with pytest.raises(ValueError, match="column 'time' is missing: found user"):
        list(topology.run([good, good.select(["user"])], location=tmp_path, shards=3))
