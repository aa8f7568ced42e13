"""Aggregators whose results are rows, `where`, and counts of distinct values: against full scans, however commits are
cut, and their laws."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from changelog.codec import pack
from hybridstore.aggregation import OfRows, check_laws, choose

NAN = float("nan")


def is_odd(row: dict[str, Any]) -> bool:
    return bool(row["n"] % 2)


def oldest_first(row: dict[str, Any]) -> tuple[int, bytes]:
    """The event order, of whole rows."""
    return row["t"], pack(row)


Scan = Callable[[list[dict[str, Any]]], Any]


def best(rows: list[dict[str, Any]], sign: int) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (sign * row["n"], *oldest_first(row)))


# Each aggregator beside what a full scan gives.
AGGREGATES: dict[str, tuple[hs.Aggregator, Scan]] = {
    "max_by": (hs.MaxBy("n"), lambda rows: best(rows, -1)[0]),
    "min_by": (hs.MinBy("n"), lambda rows: best(rows, 1)[0]),
    "first_by": (hs.FirstBy("n"), lambda rows: best(rows, 1)[0]),
    "last_by": (hs.LastBy("n"), lambda rows: max(rows, key=lambda row: (row["n"], *oldest_first(row)))),
    "last": (hs.LastBy("t"), lambda rows: max(rows, key=oldest_first)),
    "top": (hs.TopK(3, by="n"), lambda rows: best(rows, -1)[:3]),
    "distinct": (hs.CountDistinct("n"), lambda rows: len({row["n"] for row in rows})),
    "odd": (hs.Count(where=is_odd), lambda rows: sum(map(is_odd, rows))),
    "odd_sum": (hs.Sum("n", where=is_odd), lambda rows: sum(row["n"] for row in rows if is_odd(row))),
    "odd_max": (
        hs.MaxBy("n", "id", where=is_odd),
        lambda rows: next((row["id"] for row in best(list(filter(is_odd, rows)), -1)), None),
    ),
}
AGGREGATORS = {name: aggregator for name, (aggregator, _) in AGGREGATES.items()}
SIZE = 40


def rows_of(r: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows out of order by less than the grace, with ties of values and of times."""
    return [
        {"k": r.choice("ab"), "t": max(0, 3 * i + r.randint(-20, 20)), "n": r.randint(0, 9), "id": r.randint(0, 3)}
        for i in range(count)
    ]


WINDOWS: dict[str, tuple[Any, Callable[[int], list[int]]]] = {
    "tumbling": (hs.TumblingWindows(SIZE, grace=50), lambda t: [t // SIZE * SIZE]),
    "hopping": (
        hs.HoppingWindows(SIZE, 20, grace=50),
        lambda t: [s for s in (t // 20 * 20 - 20, t // 20 * 20) if s >= 0],
    ),
    "no windows": (None, lambda t: [0]),
}


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.stress
def test_final_results_are_full_scans_however_commits_are_cut(
    windows: str, seed: int, rounds: int, tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    shape, starts = WINDOWS[windows]
    stream = hs.stream(key="k", timestamp="t")
    stream = stream if shape is None else stream.windowed_by(shape)
    topology = stream.aggregate(emit="commit", **AGGREGATORS)
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows = rows_of(r, 60)
        expected = {}
        for key in "ab":
            for start in sorted({start for row in rows for start in starts(row["t"])}):
                inside = [row for row in rows if row["k"] == key and start in starts(row["t"])]
                if inside:
                    expected[key, start] = {name: scan(inside) for name, (_, scan) in AGGREGATES.items()}
        for size in (1, r.randint(2, 20), 60):
            state, last = tmp_path / f"{number} {size}", {}
            tables = [pa.Table.from_pylist(rows[at : at + size]).to_batches()[0] for at in range(0, 60, size)]
            ways: list[Any] = [topology.run(rows, commit_rows=size, shards=r.choice([1, 3])), topology.run(tables)]
            # two starts: what is not in memory any more comes out of the state
            ways.append([*topology.run(rows[: 30 // size * size], state, commit_rows=size)])
            ways[-1] += topology.run(rows, state, commit_rows=size)
            for way in ways:
                last = {(row["k"], row.get("window_start", 0)): dict(row) for row in way}
                assert {k: {name: row[name] for name in AGGREGATES} for k, row in last.items()} == expected


@pytest.mark.stress
def test_sessions_and_sliding_windows_are_full_scans_however_commits_are_cut(seed: int, rounds: int) -> None:
    gap = 7
    sessions = hs.stream(key="k", timestamp="t").windowed_by(hs.SessionWindows(gap, grace=10**6))
    slides = hs.stream(key="k", timestamp="t").windowed_by(hs.SlidingWindows(SIZE))
    kafka = hs.stream(key="k", timestamp="t").windowed_by(hs.KafkaSlidingWindows(SIZE, grace=10**6))
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows = rows_of(r, 60)
        for size in (1, r.randint(2, 20)):
            merged = sessions.aggregate(emit="close", **AGGREGATORS).run(rows, commit_rows=size, flush=True)
            for row in merged:
                bounds = row["window_start"], row["window_end"]
                inside = [other for other in rows if other["k"] == row["k"] and bounds[0] <= other["t"] <= bounds[1]]
                assert {name: row[name] for name in AGGREGATES} == {
                    n: scan(inside) for n, (_, scan) in AGGREGATES.items()
                }
            closed = kafka.aggregate(emit="close", **AGGREGATORS).run(rows, commit_rows=size, flush=True)
            for row in closed:
                inside = [
                    other for other in rows if other["k"] == row["k"] and 0 <= other["t"] - row["window_start"] <= SIZE
                ]
                assert {name: row[name] for name in AGGREGATES} == {
                    n: scan(inside) for n, (_, scan) in AGGREGATES.items()
                }
            ordered = sorted(rows, key=lambda row: row["t"])
            for row in slides.aggregate(emit="commit", **AGGREGATORS).run(ordered, commit_rows=size):
                seen = ordered[: row.commit * size]
                inside = [other for other in seen if other["k"] == row["k"] and row["window_start"] <= other["t"]]
                assert {name: row[name] for name in AGGREGATES} == {
                    n: scan(inside) for n, (_, scan) in AGGREGATES.items()
                }


@given(
    st.lists(
        st.tuples(st.integers(0, 3) | st.sampled_from([0.5, 2.0]), st.integers(0, 2), st.integers(0, 2)), min_size=3
    )
)
def test_aggregators_of_rows_keep_their_laws(values: list[tuple[Any, int, int]]) -> None:
    samples = [[by, time, {"n": by, "id": number}] for by, time, number in values]
    for aggregator, _ in AGGREGATES.values():
        if isinstance(aggregator, OfRows):
            check_laws(aggregator, samples)


@given(st.lists(st.integers(0, 5) | st.sampled_from([NAN, "a", b"b", 0.5]), min_size=3))
def test_counts_of_distinct_values_keep_their_laws(values: list[Any]) -> None:
    for aggregator in (hs.CountDistinct("x"), hs.CollectSet("x")):
        check_laws(aggregator, values)


def test_each_nan_is_the_same_value_of_a_set_over_a_restart(tmp_path: Path) -> None:
    slides = hs.stream(key="k", timestamp="t").windowed_by(hs.SlidingWindows(5))
    topology = slides.aggregate(emit="commit", seen=hs.CollectSet("x"), n=hs.CountDistinct("x"))
    rows = [{"k": "a", "t": t, "x": float("nan") if t % 3 else 1.0} for t in range(20)]
    results = [*topology.run(rows[:10], tmp_path, commit_rows=1), *topology.run(rows, tmp_path, commit_rows=1)]
    assert [(sorted(map(repr, row["seen"])), row["n"]) for row in results[4:]] == [(["1.0", "nan"], 2)] * 16


def test_a_sketch_takes_equal_decimals_and_equal_moments_for_one_value() -> None:
    pytest.importorskip("datasketches")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    values = [Decimal("1.1"), Decimal("1.10"), noon, noon.astimezone(timezone(timedelta(hours=2)))]
    for approximate in (False, True):
        assert hs.CountDistinct("x", approximate=approximate).of(values) == 2


def test_columns_choose_what_results_have() -> None:
    rows = [{"n": 1, "id": 7, "x": "a"}, {"n": 3, "id": 8, "x": "b"}, {"n": None, "id": 9}, {"n": NAN, "id": 9}]
    assert hs.MaxBy("n").of(rows) == {"n": 3, "id": 8, "x": "b"}
    assert hs.MaxBy("n", ["x", "id"]).of(rows) == {"x": "b", "id": 8}
    assert hs.MinBy("n", "id").of(rows) == 7
    assert hs.TopK(5, by="n", columns="id").of(rows) == [8, 7]
    assert hs.MaxBy("n").of([]) is hs.LastBy("n", "id").of(rows[2:]) is None
    assert repr(hs.TopK(2, by="n", columns=["id"])) == "TopK(2, by='n', columns=('id',))"
    assert hs.CountDistinct("n").of([NAN, float("nan"), 1, 1.0, True]) == 2


def test_equal_values_without_an_order_are_tied() -> None:
    rows = [{"n": {"a": 1}, "id": number} for number in (2, 1, 3)]
    for top in (hs.TopK(2, by="n", columns="id"), hs.TopK(3, by="n", columns="id")):
        assert top.of(rows) == [2, 1, 3][: top.parameters[0]]
    with pytest.raises(TypeError, match="not supported between"):
        hs.TopK(1, by="n", columns="id").of([*rows, {"n": {"a": 2}, "id": 4}])


@pytest.mark.parametrize("missing", ["n", "id"])
def test_rows_without_a_column_have_none_there(missing: str, tmp_path: Path) -> None:
    rows = [{"k": "a", "t": at, "n": at % 3, "id": f"i{at}"} for at in range(6)]
    del rows[2][missing]
    top = hs.stream(key="k", timestamp="t").aggregate(emit="commit", top=hs.TopK(2, by="n", columns=["n", "id"]))
    (result,) = top.run(rows, tmp_path, commit_rows=6)
    expected = [{"n": 2, "id": "i5"}, {"n": 1, "id": "i1"}]
    if missing == "id":
        expected = [{"n": 2, "id": None}, {"n": 2, "id": "i5"}]
    assert result["top"] == expected


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda: hs.MaxBy(""), TypeError, "max_by: by: found ''"),
        (lambda: hs.MinBy("n", 3), TypeError, "min_by: columns: found 3"),  # type: ignore[arg-type]
        (lambda: hs.LastBy("n", []), ValueError, r"last_by: columns: found \[\], expected at least one name"),
        (lambda: hs.TopK(0, by="n"), ValueError, "topk: k: found 0"),
        (lambda: hs.TopK(2, columns="n"), ValueError, "columns: found 'n' without by"),
        (lambda: hs.TopK(2, "x", by="n"), ValueError, "column: found 'x' beside by='n', expected columns='x'"),
        (lambda: hs.Count(where=3), TypeError, "aggregator: where: found int"),  # type: ignore[arg-type]
        (lambda: hs.CountDistinct("n", precision=3), ValueError, "precision: found 3, expected an int of 4 to 21"),
        (lambda: choose(hs.Sum(where=bool)), ValueError, "which looks at rows, expected an aggregator of values"),
        (
            lambda: hs.stream(key="k", timestamp="t").aggregate(n=hs.CountDistinct()),
            ValueError,
            "aggregate: n: found CountDistinct of whole rows, expected a column",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(make: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        make()


def test_an_error_of_where_says_where() -> None:
    topology = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(where=is_odd))
    with pytest.raises(KeyError) as caught:
        list(topology.run([{"k": "a", "t": 1}]))
    assert caught.value.__notes__ == ["where is_odd: while looking at a row"]


def test_a_stored_aggregate_of_rows_is_compared_by_its_columns_and_its_where(tmp_path: Path) -> None:
    stream = hs.stream(key="k", timestamp="t").windowed_by(hs.SlidingWindows(SIZE))
    rows = [{"k": "a", "t": 1, "n": 5, "id": 1}, {"k": "a", "t": 2, "n": 4, "id": 2}]
    list(stream.aggregate(m=hs.MaxBy("n", ["id"]), c=hs.Count(where=is_odd)).run(rows[:1], tmp_path))
    assert stream.aggregate(m=hs.MaxBy("n", ["id"]), c=hs.Count(where=is_odd)).compare(tmp_path) == []
    other = stream.aggregate(m=hs.MaxBy("n", ["t"]), c=hs.Count(where=bool))
    assert [change.verdict for change in other.compare(tmp_path)] == ["refused", "refused"]
    renamed = stream.aggregate(m=hs.MaxBy("price", ["id"]), c=hs.Count(where=is_odd))
    (change,) = renamed.compare(tmp_path, allow="rename n to price")
    assert change.verdict == "consent"
    more = stream.aggregate(m=hs.MaxBy("n", ["id"]), c=hs.Count(where=is_odd), s=hs.Sum("n"))
    (change,) = more.compare(tmp_path)
    results = list(more.run(rows, tmp_path, allow=change.consent))
    assert [(row["m"], row["c"]) for row in results] == [({"id": 1}, 1)]


# --- about how many ---------------------------------------------------------------------------------------------------


def test_sketches_are_within_their_error_over_a_thousand_seeds() -> None:
    pytest.importorskip("datasketches")
    about = hs.CountDistinct("x", approximate=True, precision=10)
    errors = []
    for seed in range(1000):
        r = random.Random(seed)
        distinct = r.choice([600, 1500, 4000])
        state = about.fold(about.init(), [f"{seed} {i}" for i in range(distinct)])
        errors.append(about.finish(state) / distinct - 1)
    # the documented standard error, with room for a thousand samples of it
    bound = 1.04 / math.sqrt(2**10)
    assert 0.6 * bound < math.sqrt(sum(error * error for error in errors) / 1000) < 1.1 * bound
    assert abs(sum(errors) / 1000) < bound / 5
    assert max(map(abs, errors)) < 5 * bound


@pytest.mark.parametrize("distinct", [0, 1, 9, 100, 300, 5000])
def test_a_sketch_depends_on_the_set_of_values_alone(distinct: int, seed: int) -> None:
    library = pytest.importorskip("datasketches")
    about, r = hs.CountDistinct("x", approximate=True), random.Random(seed)
    values: list[Any] = [
        r.choice([i, f"{i}", i + 0.5, -i, 2**70 + i, bytes([i % 256, i // 256])]) for i in range(distinct)
    ]
    whole = about.fold(about.init(), values)
    again = values + values[: distinct // 2]
    r.shuffle(again)
    parts = []
    while again:
        size = r.randint(1, len(again))
        parts.append(about.fold(about.init(), again[:size]))
        again = again[size:]
    merged = about.init()
    for part in parts:
        assert about.merge is not None
        merged = about.merge(merged, part)
    assert about.finish(whole) == about.finish(merged)
    assert abs(about.finish(whole) - distinct) <= (0 if distinct < 150 else 0.08 * distinct)
    if distinct:
        # the bytes are the library's own
        assert round(library.hll_sketch.deserialize(whole).get_estimate()) == about.finish(whole)
        assert len(whole) < 2**12 + 100


def test_sketches_are_kept_over_restarts_and_session_merges(tmp_path: Path) -> None:
    pytest.importorskip("datasketches")
    about = {"n": hs.CountDistinct("x", approximate=True), "exact": hs.CountDistinct("x")}
    for number, windows in enumerate(
        [hs.SessionWindows(5, grace=10**6), hs.HoppingWindows(40, 10), hs.SlidingWindows(20)]
    ):
        topology = hs.stream(key="k", timestamp="t").windowed_by(windows).aggregate(emit="commit", **about)
        rows = [{"k": "a", "t": (i * 7) % 50 if number == 0 else i // 4, "x": i % 60} for i in range(150)]
        results = [*topology.run(rows[:70], tmp_path / str(number), commit_rows=7)]
        results += topology.run(rows, tmp_path / str(number), commit_rows=7)
        assert len(results) > 20
        assert all(row["n"] == row["exact"] for row in results)


def test_without_the_library_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(
        hs.HybridStoreError, match=r"approximate: found no datasketches.*pip install 'hybridstore\[sket"
    ):
        hs.CountDistinct("x", approximate=True)
