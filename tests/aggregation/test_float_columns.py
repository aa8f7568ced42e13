"""Floats by column equal floats by row in every bit: results, state and changelog, whatever is rounded, infinite,
NaN or missing.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")

from hybridstore.topology.columns.groups import extremes_of  # noqa: E402  (they need both)
from tests.tools.ways import aggregating, row_by_row, went_by_column  # noqa: E402

AGGREGATES: dict[str, dict[str, Any]] = {
    "sum": {"total": hs.Sum("x")},
    "mean": {"mean": hs.Mean("x")},
    "max": {"most": hs.Max("x")},
    "extremes": {"least": hs.Min("x"), "most": hs.Max("x"), "values": hs.Count("x")},
    "all": {"rows": hs.Count(), "total": hs.Sum("x"), "mean": hs.Mean("x"), "least": hs.Min("x"), "most": hs.Max("y")},
    "two": {"total": hs.Sum("x"), "whole": hs.Sum("n"), "mean": hs.Mean("y"), "texts": hs.Count("text")},
    "where": {
        "total": hs.Sum("x", where=lambda row: row["n"] is None or row["n"] % 2),
        "least": hs.Min("x", where=lambda row: row["n"] is None or row["n"] % 2),
        "mean": hs.Mean("y", where=lambda row: row["y"] != row["x"]),
        "most": hs.Max("y"),
    },
}
WINDOWS = [
    hs.TumblingWindows(20, grace=15),
    hs.HoppingWindows(20, 5, grace=10),
    hs.HoppingWindows(20, 7),
    hs.HoppingWindows(20, 20),
]
ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e17, -1e17, 5e-324, 0.1, None]


class Side:
    """A runner on stores whose changelog is kept in memory."""

    def __init__(self, topology: hs.Topology, *, by_row: bool, clocked: bool = False) -> None:
        self.group = StoreGroup(lambda body: None)
        self.program = TopologyProgram(topology, clocked=clocked)
        self.runner = self.program.open(self.group)
        self.went = 0
        if by_row:
            row_by_row(self.runner)

    def process(self, table: Any, clock: Watermark | None, like: Any = None) -> tuple[str, Any, int, str]:
        """Return what is to be compared after a batch; results have the types that those of `like` have."""
        schema = self.program.output_schema((table if like is None else like).schema)
        results = self.runner.process(table, schema, clock).to_pylist()
        self.went += went_by_column(self.runner, table)
        self.group.reached(self.group.version + 1, self.group.journal.seal())
        # the text tells -0.0 from 0.0, and 0 from 0.0
        return repr(results), self.group.digest, self.runner.dropped, repr(aggregating(self.runner).windowed.live())


def differ(windows: Any, emit: Any, kind: str, tables: list[Any], clock: Watermark | None = None) -> int:
    """Run tables both ways, compare after each, and return how many went by column."""
    topology = hs.stream(key="user", timestamp="time").windowed_by(windows).aggregate(emit=emit, **AGGREGATES[kind])
    fast, slow = (Side(topology, by_row=by_row, clocked=clock is not None) for by_row in (False, True))
    for table in tables:
        assert fast.process(table, clock) == slow.process(table, clock)
    return fast.went


def table_of(rows: list[tuple[str, int, Any, Any, Any, Any]], kind: Any) -> Any:
    users, times, x, y, n, text = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [], [], [])
    return pa.table(
        {
            "user": pa.array(users, pa.string()),
            "time": pa.array(times, pa.int64()),
            "x": pa.array(x, kind),
            "y": pa.array(y, pa.float64()),
            "n": pa.array(n, pa.int32()),
            "text": pa.array(text, pa.string()),
        }
    )


@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize("kind", AGGREGATES)
@pytest.mark.stress
def test_floats_by_column_equal_floats_by_row(windows: Any, emit: Any, kind: str, seed: int, rounds: int) -> None:
    went = 0
    for number in range(rounds):
        r = random.Random(seed + number)
        odd, single, ties = r.random() < 0.5, r.random() < 0.2, r.random() < 0.5

        def value(r: random.Random = r, odd: bool = odd) -> Any:
            return (
                r.choice(ODD) if odd and r.random() < 0.1 else r.choice([-1, 1]) * r.random() * 10 ** r.randint(-9, 9)
            )

        tables, now = [], 0
        for _ in range(10):
            now += r.choice([0, 5, 30, 200])
            rows = r.choice([0, 1, 7, 60])
            spread = 100 if ties else 5000
            times = [max(0, now + r.randint(-spread, spread // 2)) for _ in range(rows)]
            tables.append(
                table_of(
                    [
                        (f"u{r.randrange(4)}", ts, value(), value(), r.randint(-9, 9), r.choice(["a", "b", None]))
                        for ts in times
                    ],
                    pa.float32() if single else pa.float64(),
                )
            )
        tables.append(table_of([(f"u{i % 2}", now + i, i / 10, i / 3, i, "a") for i in range(50)], pa.float64()))
        went += differ(
            windows, emit, kind, tables, Watermark(max(0, now - 35), max(0, now - 20)) if number % 3 == 2 else None
        )
    if emit != "record" or kind in ("sum", "mean"):
        assert went, "no batch went by column"


floats = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16]))
rows = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(0, 60), floats, floats, st.integers(-9, 9), st.sampled_from(["p", None])
    ),
    max_size=14,
)


@given(
    st.lists(rows, max_size=4),
    st.sampled_from(WINDOWS),
    st.sampled_from(["record", "commit", "close"]),
    st.sampled_from(sorted(AGGREGATES)),
)
def test_any_floats_by_column_equal_floats_by_row(batches: list[Any], windows: Any, emit: Any, kind: str) -> None:
    differ(windows, emit, kind, [table_of(batch, pa.float64()) for batch in batches])


def test_zeros_of_either_sign_nothing_and_whole_numbers_that_were_stored() -> None:
    rows = [("a", ts, x, x, 1, None) for ts, x in enumerate([0.0, -0.0, -0.0, 0.0, None, -0.0, math.nan])]
    tables = [table_of(part, pa.float64()) for part in (rows[:2], rows[4:5], rows[2:4], rows[5:6], rows[6:])]
    for kind in AGGREGATES:
        for emit in ("commit", "close"):
            assert differ(WINDOWS[0], emit, kind, tables) >= 3
    whole = pa.table({"user": ["a"], "time": [1], "x": pa.array([2**52 + 1], pa.int64())})
    halves = pa.table({"user": ["a", "b"], "time": [2, 2], "x": [0.5, 0.25]})
    for kind in ("sum", "mean", "max", "extremes"):
        for emit in ("commit", "record") if kind in ("sum", "mean") else ("commit",):
            assert differ(WINDOWS[0], emit, kind, [whole, halves, halves]) == 3


@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_whole_numbers_are_added_to_a_stored_float_by_column(windows: Any, kind: str) -> None:
    tenths = pa.table({"user": ["a"], "time": [50], "x": [0.1 + 2**30]})
    ones = pa.table({"user": ["a", "a", "b"], "time": [51, 52, 1], "x": pa.array([1, 2**40 + 1, 3], pa.int64())})
    topology = hs.stream(key="user", timestamp="time").windowed_by(windows).aggregate(emit="commit", **AGGREGATES[kind])
    fast, slow = Side(topology, by_row=False), Side(topology, by_row=True)
    for table in (tenths, ones):
        assert fast.process(table, None, tenths) == slow.process(table, None, tenths)
    assert fast.went == 2


def test_neither_ties_nor_nothing_nor_nan_send_sums_row_by_row() -> None:
    tied = table_of([("a", 1, 0.1, 0.5, 1, "p"), ("a", 1, 0.2, 0.5, 1, None)], pa.float64())
    missing = table_of([("a", 1, None, 0.5, 1, "p"), ("a", 1, 0.2, 0.5, 1, None)], pa.float64())
    nan = table_of([("a", 1, math.nan, 0.5, 1, "p"), ("b", 1, math.inf, 0.5, 1, "p")], pa.float64())
    for windows in WINDOWS:
        assert differ(windows, "commit", "two", [tied, missing, nan]) == 3
        assert differ(windows, "commit", "sum", [tied, missing, nan]) == 3


def test_the_last_of_two_zeros_needs_an_order() -> None:
    """Of -0.0 and 0.0 the last is the extreme; beside a missing value the order of rows cannot be told by column."""
    zeros = table_of([("a", 1, 0.0, 0.5, 1, "p"), ("a", 1, -0.0, 0.5, 1, None)], pa.float64())
    missing = table_of([("a", 1, None, 0.5, 1, "p"), ("a", 1, -0.0, 0.5, 1, None)], pa.float64())
    assert differ(WINDOWS[0], "commit", "max", [zeros]) == 1
    assert differ(WINDOWS[0], "commit", "max", [missing]) == 0


def test_extremes_of_groups() -> None:
    best, counts = extremes_of("max", np.array([0, 0, 1]), np.array([0.0, -0.0, math.nan]), np.ones(3, np.int64), 2)
    assert (repr(best[0]), counts.tolist()) == (repr(np.float64(-0.0)), [2, 0])
