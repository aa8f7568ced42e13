"""Every kind of windows, with every emission, every way in and every strategy, gives the same rows.

The product is enumerated, and what a declaration refuses is enumerated with it: a new kind of windows, emission or
strategy is tested by its name in a list. What the rows have to be is the matter of `test_windows_models.py`, which
compares one way with full scans.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

import hybridstore as hs
from hybridstore.aggregation.strategy import STRATEGIES
from hybridstore.clock import Watermark
from hybridstore.shards import shard_of
from hybridstore.spark.contract import Runner
from hybridstore.spark.program import TopologyProgram
from hybridstore.spark.worker import Counts
from hybridstore.state.group import StoreGroup
from hybridstore.topology.columns.why import Why
from hybridstore.topology.plan import Emit, Plan
from tests.conftest import STRESS
from tests.tools.ways import few_go_together, row_by_row, shard_run

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures(few_go_together.__name__)
ROOT = Path(__file__).resolve().parents[2]

WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (hs.TumblingWindows(20), {}),
    "tumbling with grace": (hs.TumblingWindows(15, grace=25), {}),
    "tumbling kept": (hs.TumblingWindows(20, grace=5), {"retention": 90}),
    "hopping": (hs.HoppingWindows(20, 5, grace=10), {}),
    "hopping with rests": (hs.HoppingWindows(20, 7), {}),
    "hopping kept": (hs.HoppingWindows(20, 5, grace=10), {"retention": 90}),
    "sessions": (hs.SessionWindows(8), {}),
    "sessions with grace": (hs.SessionWindows(6, grace=9), {}),
    "sliding": (hs.SlidingWindows(30), {}),
    "sliding of kafka": (hs.KafkaSlidingWindows(12, grace=10), {}),
    "sliding of kafka kept": (hs.KafkaSlidingWindows(12, grace=10), {"retention": 40}),
    "no windows": (None, {}),
    "aligned": (hs.TumblingWindows(20, align_to=7, grace=5), {}),
    "hopping aligned": (hs.HoppingWindows(20, 7, align_to=3), {}),
    "hopping with gaps": (hs.HoppingWindows(6, 15, grace=4), {}),
}
EMITS: tuple[Emit, ...] = get_args(Emit)
HOLDS: dict[str, Any] = {
    "given at once": None,
    "held for a time": {"until": 15},
    "held in a full buffer": {"max_records": 3},
    "held until final": {"until": "close"},
}
AGGREGATES: dict[str, dict[str, Any]] = {
    "sums": {"n": hs.Count(), "total": hs.Sum("n"), "mean": hs.Mean("n")},
    "extremes": {"least": hs.Min("n"), "most": hs.Max("n")},
    "one": {"n": hs.Count()},
    "rows": {
        "most": hs.MaxBy("n"),
        "least": hs.MinBy("n", "time"),
        "first": hs.FirstBy("time", ["n"]),
        "last": hs.LastBy("n", ["user", "time"]),
        "top": hs.TopK(2, by="n", columns=["time", "n"]),
    },
    "chosen": {"most": hs.MaxBy("n", ["time", "n"]), "top": hs.TopK(3, by="time", columns="n")},
    "where": {
        "n": hs.Count(where=lambda row: row["n"] > 5),
        "total": hs.Sum("n", where=lambda row: row["time"] % 2 == 0),
        "distinct": hs.CountDistinct("n"),
        "last": hs.LastBy("time", "n", where=lambda row: row["n"] > 0),
    },
}
STRATEGY_NAMES: tuple[str | None, ...] = (None, *STRATEGIES)


def topology_of(windows: str, emit: Emit, suppressed: str, aggregates: str, strategy: str | None) -> hs.Topology:
    shape, options = WINDOWS[windows]
    declared = hs.stream(key="user", timestamp="time")
    declared = declared if shape is None else declared.windowed_by(shape, **options)
    topology = declared.aggregate(emit=emit, strategy=strategy, **AGGREGATES[aggregates])
    return topology if HOLDS[suppressed] is None else topology.hold(**HOLDS[suppressed])


def refused(windows: str, emit: Emit, suppressed: str, strategy: str | None) -> bool:
    """What cannot be declared, whatever the aggregates."""
    shape, _ = WINDOWS[windows]
    slides = isinstance(shape, hs.SlidingWindows) and shape.flavour == "kip450"
    return (
        ((slides or shape is None) and (emit == "close" or suppressed == "held until final"))
        or (emit == "close" and suppressed != "given at once")
        or (strategy is not None and not isinstance(shape, hs.SlidingWindows))
    )


PRODUCT = list(product(WINDOWS, EMITS, HOLDS, AGGREGATES, STRATEGY_NAMES))
DECLARED = [case for case in PRODUCT if not refused(case[0], case[1], case[2], case[4])]


def test_what_is_refused_is_refused_when_it_is_declared() -> None:
    for windows, emit, suppressed, aggregates, strategy in PRODUCT:
        if refused(windows, emit, suppressed, strategy):
            with pytest.raises(ValueError, match=r"^(aggregate|hold|strategy)[: ]"):
                topology_of(windows, emit, suppressed, aggregates, strategy)


def strategies_of(windows: str, emit: Emit, suppressed: str) -> dict[str, list[str | None]]:
    """By aggregates, the strategies that have the powers they need."""
    allowed: dict[str, list[str | None]] = {aggregates: [] for aggregates in AGGREGATES}
    for *case, aggregates, strategy in DECLARED:
        if case == [windows, emit, suppressed]:
            try:
                topology_of(windows, emit, suppressed, aggregates, strategy)
            except ValueError as error:
                assert str(error).startswith("strategy"), error  # noqa: PT017
            else:
                allowed[aggregates].append(strategy)
    return allowed


def stream_of(r: random.Random) -> Iterator[dict[str, Any]]:
    """Rows with ties, disorder, late ones and jumps of time; some streams keep to the boundaries of windows."""
    now, grid = 0, r.choice([1, 5])
    for _ in range(r.randint(20, 60)):
        now += r.choice([0, 0, 1, 2, 5]) if r.random() < 0.95 else r.randint(20, 150)
        time = max(0, now - r.randint(0, 45)) if r.random() < 0.4 else now
        yield {"user": r.choice("abcde"), "time": time // grid * grid, "n": r.randint(-9, 40)}


def batches_of(rows: list[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def table_of(rows: list[dict[str, Any]]) -> Any:
    kinds = pa.schema([("user", pa.string()), ("time", pa.int64()), ("n", pa.int64())])
    return pa.Table.from_pylist(rows, schema=kinds)


def same_bytes(plan: Plan) -> bool:
    """Whether both ways write the same bytes: distinct values are kept in the order in which they came, or by column in
    their own."""
    return not any(part.name == "count_distinct" for part in plan.combined.parts)


class Runners:
    """Spark's runners of all shards, without Spark; they are given rows as Spark gives them."""

    def __init__(self, topology: hs.Topology, shards: int, *, clocked: bool = False, by_row: bool = False) -> None:
        self.program = TopologyProgram(topology, clocked=clocked)
        self.groups = [StoreGroup(lambda body: None) for _ in range(shards)]
        self.runners = [self.program.open(group) for group in self.groups]
        if by_row:
            for runner in self.runners:
                row_by_row(runner)

    def batch(self, rows: list[dict[str, Any]], clock: Watermark | None = None) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for shard, (runner, group) in enumerate(zip(self.runners, self.groups, strict=True)):
            table = table_of([row for row in rows if shard_of(row["user"], len(self.groups)) == shard])
            results += runner.process(table, self.program.output_schema(table.schema), clock).to_pylist()
            group.reached(group.version + 1, group.journal.seal())
        return results

    @property
    def state(self) -> list[Any]:
        same, pairs = same_bytes(self.program.plan), zip(self.groups, self.runners, strict=True)
        return [(group.digest if same else None, runner.dropped) for group, runner in pairs]


def by_commit(rows: Any) -> list[tuple[int, str]]:
    return [(row.commit, repr(dict(row))) for row in rows]


@pytest.mark.parametrize(("windows", "emit", "suppressed"), dict.fromkeys(case[:3] for case in DECLARED))
@pytest.mark.stress
def test_every_way_gives_the_same_rows(windows: str, emit: Emit, suppressed: str, seed: int, rounds: int) -> None:
    strategies_by_aggregates = strategies_of(windows, emit, suppressed)
    # which aggregates a case takes is drawn; in `make stress` each takes all
    drawn = list(AGGREGATES) if STRESS else [random.Random(seed).choice(list(AGGREGATES))]
    for number, aggregates in product(range(rounds), drawn):
        strategies = strategies_by_aggregates[aggregates]
        r = random.Random(f"{seed} {number} {aggregates}")
        shards, size, rows = r.choice([1, 2]), r.choice([5, 20]), list(stream_of(r))
        batches = batches_of(rows, size)
        tables = [table_of(batch).to_batches()[0] for batch in batches]
        expected: list[tuple[int, str]] | None = None
        for strategy in strategies:
            topology = topology_of(windows, emit, suppressed, aggregates, strategy)
            given = by_commit(topology.run(rows, commit_rows=size, shards=shards))
            expected = given if expected is None else expected
            assert given == expected, strategy
            assert by_commit(topology.run(tables, shards=shards)) == expected, strategy
            sides = [Runners(topology, shards), Runners(topology, shards, by_row=True)]
            for side in sides:
                results = [(commit, repr(row)) for commit, batch in enumerate(batches, 1) for row in side.batch(batch)]
                assert results == expected, strategy
            assert sides[0].state == sides[1].state, strategy


@pytest.mark.parametrize(("windows", "emit", "suppressed"), dict.fromkeys(case[:3] for case in DECLARED))
@pytest.mark.stress
def test_every_way_gives_the_same_rows_by_a_watermark(
    windows: str, emit: Emit, suppressed: str, seed: int, rounds: int
) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        topology = topology_of(windows, emit, suppressed, r.choice(list(AGGREGATES)), None)
        sides = [Runners(topology, 1, clocked=True), Runners(topology, 1, clocked=True, by_row=True)]
        late = newest = 0
        for batch in batches_of(list(stream_of(r)), r.choice([1, 7, 40])):
            clock = Watermark(late, max(late, newest - 20))
            assert sides[0].batch(batch, clock) == sides[1].batch(batch, clock)
            late, newest = clock.now_ms, max(newest, *(row["time"] for row in batch))
        assert sides[0].state == sides[1].state


def test_each_kind_of_windows_goes_by_column_where_it_can() -> None:
    """Otherwise the ways compared above would be one."""
    r = random.Random(1)
    rows = list(stream_of(r))
    went = set()
    for windows in WINDOWS:
        runners = Runners(topology_of(windows, "commit", "given at once", "sums", None), 1)
        runners.batch(rows)
        if shard_run(runners.runners[0]).why is None:
            went.add(windows)
    assert went == {name for name in WINDOWS if "session" not in name and "kafka" not in name}


def test_an_engine_counts_the_batches_that_went_row_by_row_by_their_reason(tmp_path: Path) -> None:
    topology = topology_of("tumbling", "commit", "given at once", "sums", None)
    good = table_of([{"user": "a", "time": 1, "n": 1}, {"user": "b", "time": 2, "n": 2}])
    large = table_of([{"user": "a", "time": 3, "n": 2**61}])
    with topology.open(tmp_path) as engine:
        for number, table in enumerate([good, large, good]):
            engine.process_batch(0, engine.split_batch(table, number)[0])
        assert engine.by_row == {"numbers are too large to be summed exactly by column": 1}
        engine.commit()
    with topology_of("sessions", "commit", "given at once", "sums", None).open(tmp_path / "sessions") as engine:
        engine.process_batch(0, engine.split_batch(good, 0)[0])
        assert list(engine.by_row.values()) == [1]


def test_a_runner_says_why_its_last_batch_went_row_by_row() -> None:
    runners = Runners(topology_of("tumbling", "record", "given at once", "sums", None), 1)
    reasons = []
    for n in (1, 2**61, 1):
        runners.batch([{"user": "a", "time": 3, "n": n}])
        reasons.append(runners.runners[0].by_row)
    assert reasons == [None, str(Why.LARGE), str(Why.STORED)]


class Silent(Runner):
    """A runner of a user's program that counts nothing."""

    def process(self, table: Any, output: Any, watermark: Any = None) -> Any:
        return table


def test_what_a_runner_does_not_count_is_none_in_the_metrics() -> None:
    before = Counts.of(Runners(topology_of("tumbling", "commit", "given at once", "one", None), 1).runners[0])
    assert before == Counts.of(Silent()) == (0, 0, 0)
    assert Counts(5, 2, 1).since(Counts(3, 2, 0)) == {"late": 2, "null_key": 0, "null_timestamp": 1}


RUN_OF_DICTS = """
import sys
import hybridstore as hs
counts = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(emit="close", n=hs.Count())
print([row["n"] for row in counts.run([{"k": "a", "t": t} for t in range(25)], sys.argv[1], flush=True)])
others = {f"hybridstore.stores.{kind}" for kind in ("session", "sliding", "suppression")}
print(sorted({"concurrent.futures", "numpy", "pandas", "pyarrow", "tempfile", "uuid", *others} & sys.modules.keys()))
"""


def test_a_run_of_dicts_loads_neither_numpy_nor_other_kinds_of_stores(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN_OF_DICTS, str(tmp_path / "state")]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["[10, 10, 5]", "[]"]
