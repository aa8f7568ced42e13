"""One stream without late rows, cut at random into commits, batches, shards, runs and engines: equal final results.

Rows come out of order within the grace, with values that a sum in floats would round differently for each cut. The
results are compared in every bit, and with `fractions`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup
from hybridstore.testing import cut_rows
from tests.conftest import STRESS
from tests.tools.topology_oracle import KafkaSlidingOracle, SessionOracle, SlidingOracle, TimeOracle
from tests.tools.ways import few_go_together, shard_run

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures(few_go_together.__name__)

GRACE = 10_000
WINDOWS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "tumbling": (hs.TumblingWindows(20, grace=GRACE), lambda: TimeOracle(20, 20, GRACE)),
    "hopping": (hs.HoppingWindows(20, 5, grace=GRACE), lambda: TimeOracle(20, 5, GRACE)),
    "hopping with rests": (hs.HoppingWindows(20, 7, grace=GRACE), lambda: TimeOracle(20, 7, GRACE)),
    "sessions": (hs.SessionWindows(6, grace=GRACE), lambda: SessionOracle(6, GRACE)),
    "sliding": (hs.SlidingWindows(30), lambda: SlidingOracle(30)),
    "sliding of kafka": (hs.KafkaSlidingWindows(12, grace=GRACE), lambda: KafkaSlidingOracle(12)),
}
KINDS = pa.schema([("user", pa.string()), ("time", pa.int64()), ("x", pa.float64())])


def nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def total(values: list[float]) -> float:
    """The sum that IEEE 754 asks for: of what is finite exact, and rounded once."""
    if not all(map(math.isfinite, values)):
        return sum(value for value in values if not math.isfinite(value))
    return nearest(sum(map(Fraction, values), Fraction(0)))


def mean(values: list[float]) -> float:
    return (
        total(values)
        if not all(map(math.isfinite, values))
        else nearest(sum(map(Fraction, values), Fraction(0)) / len(values))
    )


def variance(values: list[float]) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan
    middle = sum(map(Fraction, values), Fraction(0)) / len(values)
    return nearest(sum(((Fraction(value) - middle) ** 2 for value in values), Fraction(0)) / len(values))


def first(values: list[float]) -> float:
    return values[0]


def last(values: list[float]) -> float:
    return values[-1]


def firsts(values: list[float]) -> list[float]:
    return values[:3]


# what is asked for, and its true value of the values of a window in event order
AGGREGATES: dict[str, Any] = {
    "ends": {"first": (hs.First("x"), first), "last": (hs.Last("x"), last)},
    "lists": {"all": (hs.Collect("x"), list), "some": (hs.Collect("x", limit=3), firsts), "n": (hs.Count(), len)},
    "sums": {"n": (hs.Count(), len), "total": (hs.Sum("x"), total), "mean": (hs.Mean("x"), mean)},
    "sum": {"total": (hs.Sum("x"), total)},
    "moments": {"mean": (hs.Mean("x"), mean), "variance": (hs.Variance("x"), variance)},
}


def value_of(r: random.Random, kind: str) -> float:
    if kind == "prices":
        return r.randint(1, 50_000) / 100
    if kind == "halves":
        return r.randint(-9, 9) / 2
    if kind == "far apart":
        return math.ldexp(r.random() - 0.5, r.randint(-1060, 1000))
    if kind == "odd" and r.random() < 0.2:
        return r.choice([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0])
    return (r.random() - 0.5) * 10.0 ** r.randint(-5, 5)


def stream_of(r: random.Random, kind: str, *, ordered: bool) -> list[dict[str, Any]]:
    """Rows in a random order, which the grace allows, many of equal times; for sliding windows, whose results come with
    each row, in the order of their times.
    """
    times = r.sample(range(150), 30) if ordered else [r.randint(0, 50) * 3 for _ in range(30)]
    rows = [{"user": r.choice("abcd"), "time": ts, "x": value_of(r, kind)} for ts in times]
    return sorted(rows, key=lambda row: row["time"]) if ordered else rows


def final(results: list[dict[str, Any]]) -> dict[Any, str]:
    """The last result of each window that is still there."""
    windows = {}
    for result in results:
        window = result["user"], result["window_start"], result["window_end"]
        windows[window] = repr([value for name, value in result.items() if name not in WINDOW])
    return {window: shown for window, shown in windows.items() if "None" not in shown}


WINDOW = ("user", "window_start", "window_end")


def by_spark(topology: hs.Topology, batches: list[Sequence[Any]], shards: int) -> tuple[list[dict[str, Any]], int]:
    """The results of Spark's runners of all shards, without Spark, and how many batches went by column."""
    program = TopologyProgram(topology, clocked=False)
    groups = [StoreGroup(lambda body: None) for _ in range(shards)]
    runners = [program.open(group) for group in groups]
    results: list[dict[str, Any]] = []
    went = 0
    for batch in batches:
        for shard, runner in enumerate(runners):
            rows = [row for row in batch if shard_of(row["user"], shards) == shard]
            table = pa.Table.from_pylist(rows, schema=KINDS)
            results += runner.process(table, program.output_schema(table.schema), None).to_pylist()
            groups[shard].reached(groups[shard].version + 1, groups[shard].journal.seal())
            went += bool(rows) and shard_run(runner).why is None
    return results, went


def in_parts(
    topology: hs.Topology, r: random.Random, batches: list[Sequence[Any]], place: Path
) -> list[dict[str, Any]]:
    """Run twice on one state, with a restart in between, and sometimes a rescale."""
    shards = r.choice([1, 2])
    results: list[dict[str, Any]] = []
    for number, part in enumerate([batches[: r.randint(1, len(batches))], batches]):
        if number and r.random() < 0.5:
            shards *= 2
            hs.rescale(place, shards=shards)
        tables = [pa.Table.from_pylist(batch, schema=KINDS) for batch in part]
        given: Any = tables if r.random() < 0.5 else [row for batch in part for row in batch]
        results += [dict(row) for row in topology.run(given, place, shards=shards)]
    return results


@pytest.mark.parametrize("aggregates", AGGREGATES)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.stress
def test_the_final_results_do_not_depend_on_the_cuts(windows: str, aggregates: str, seed: int, tmp_path: Path) -> None:
    r = random.Random(f"{seed} {windows} {aggregates}")
    kind = r.choice(["prices", "halves", "any", "far apart", "odd"])
    shape, oracle_of = WINDOWS[windows]
    slides = windows == "sliding"
    named = AGGREGATES[aggregates]
    parts = {name: part for name, (part, _) in named.items()}
    declared = hs.stream(key="user", timestamp="time").windowed_by(shape)
    topology = declared.aggregate(emit="record" if slides else "commit", **parts)
    rows = stream_of(r, kind, ordered=slides)
    oracles = {user: oracle_of() for user in "abcd"}
    expected: dict[Any, str] = {}
    each = []
    for row in rows:
        each += oracles[row["user"]].process(row["time"], row["user"], row["x"])
    if not slides:
        each = [row for oracle in oracles.values() for row in oracle.all()]
    for user, start, end, values in each:
        assert values is not None
        expected[user, start, end] = repr([function(values) for _, function in named.values()])
    went = 0
    for way in range(20 if STRESS else 12):
        given = rows if slides else r.sample(rows, len(rows))
        batches = cut_rows(given, r)
        if way % 4 == 0:
            run = topology.run(given, commit_rows=r.choice([1, 2, 7, 60]), shards=r.choice([1, 2, 3]))
            results = [dict(row) for row in run]
        elif way % 4 == 1:
            tables = [pa.Table.from_pylist(batch, schema=KINDS) for batch in batches]
            results = [dict(row) for row in topology.run(tables, shards=r.choice([1, 2, 3]))]
        elif way % 4 == 2:
            results, columns = by_spark(topology, batches, r.choice([1, 2, 3]))
            went += columns
        else:
            results = in_parts(topology, r, batches, tmp_path / f"{way}")
        assert final(results) == expected, way
    assert went or windows in ("sessions", "sliding of kafka") or aggregates not in ("sum", "sums")
