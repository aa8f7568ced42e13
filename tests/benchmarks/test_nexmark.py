"""Nexmark: the generator's parameters, and the answers of all queries at a small size, in every way that they run.

The digests of `benchmarks/nexmark/answers.json` are of answers that other engines gave, too (`by`).
"""

from __future__ import annotations

import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("numpy")

from benchmarks.nexmark import oracles  # noqa: E402
from benchmarks.nexmark.generator import START_MS, generate  # noqa: E402
from benchmarks.nexmark.queries import QUERIES, answer_of, digest_of, results_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
STORED: dict[str, Any] = json.loads((ROOT / "benchmarks/nexmark/answers.json").read_text(encoding="utf-8"))


@cache
def stored_events() -> Any:
    """The events of the stored answers: made by who asks, because each process of tests imports this file."""
    return generate(**STORED["events"])


@pytest.mark.parametrize("query", QUERIES)
def test_the_answers_are_those_that_other_engines_gave(query: str, tmp_path: Path) -> None:
    declared, expected = QUERIES[query], STORED["answers"][query]

    def answer(**options: Any) -> str:
        return digest_of(answer_of(declared, results_of(declared, stored_events(), **options)))

    assert answer(commit_rows=700) == expected
    if declared.by_column:
        assert answer(arrow=True) == expected
    # windows that begin and end with the time of a shard are closed by a flush, whatever the shard
    assert answer(shards=3, commit_rows=300, location=tmp_path / "shards") == expected


@pytest.mark.parametrize("query", [name for name, query in QUERIES.items() if query.by_column])
def test_runners_of_spark_give_the_same(query: str) -> None:
    declared = QUERIES[query]
    plan = declared.stages[0].complete()
    if plan.custom is not None or plan.emit == "close" or len(declared.stages) > 1:
        return  # rows pass through, and final results need a flush
    program, group = TopologyProgram(plan), StoreGroup(lambda body: None)
    runner = program.open(group)
    rows = runner.process(stored_events().bids, program.output_schema(stored_events().bids.schema)).to_pylist()
    assert digest_of(answer_of(declared, rows)) == STORED["answers"][query]


@pytest.mark.parametrize("query", QUERIES)
def test_duckdb_agrees(query: str) -> None:
    pytest.importorskip("duckdb", reason="an oracle that is installed with the group peers")
    assert digest_of(oracles.by_duckdb(query, stored_events())) == STORED["answers"][query]


@pytest.mark.slow
def test_flink_agrees(tmp_path: Path) -> None:
    if oracles.flink_python() is None:
        pytest.skip(f"an oracle that is installed in an environment of its own: {oracles.FLINK_VARIABLE}=PYTHON")
    answers = oracles.by_flink(list(QUERIES), stored_events(), tmp_path)
    assert {query: digest_of(answer) for query, answer in answers.items()} == STORED["answers"]


def test_every_query_has_an_oracle_and_a_stored_answer() -> None:
    flink = runpy.run_path(str(oracles.FLINK_PROGRAM), run_name="flink")["QUERIES"]
    assert list(QUERIES) == list(oracles.DUCKDB) == list(flink) == list(STORED["answers"])
    assert list(QUERIES) == [f"q{number}" for number in range(23)]
    assert STORED["by"] == ["DuckDB 2.0.0", "Flink 2.3.0"]


def test_rows_of_flink_fold_to_answers(tmp_path: Path) -> None:
    given = {
        "q5": [[0, 7, 3], [0, 5, 3]],
        "q7": [[0, 1, 2, 30]],
        "q18": [[1, 2, 30, "Apple", 4]],
        "q19": [[9, 2, 40, 5, 2], [9, 1, 50, 6, 1]],
        "q3": [["b", 1], ["a", 2]],
    }
    (tmp_path / "answers.json").write_text(json.dumps(given), encoding="utf-8")
    assert oracles.flink_answers(tmp_path) == {
        "q5": [(0, ((5, 3), (7, 3)))],
        "q7": [(0, (1, 2, 30))],
        "q18": [(1, 2, (30, "Apple", 4))],
        "q19": [(9, ((1, 50, 6), (2, 40, 5)))],
        "q3": [("a", 2), ("b", 1)],
    }


def test_answers_depend_on_the_seed_alone() -> None:
    again, other = generate(5000, seed=3), generate(5000, seed=4)
    assert generate(5000, seed=3) == again
    assert again.bids != other.bids


def test_events_have_the_published_proportions() -> None:
    events = generate(50_000)
    assert [table.num_rows for table in (events.persons, events.auctions, events.bids)] == [1000, 3000, 46_000]
    assert events.bids["time"][-1].as_py() == START_MS + 4999
    for table in (events.persons, events.auctions):
        ids = table["id"].to_pylist()
        assert ids == list(range(1000, 1000 + len(ids)))
    hot = pc.mean(
        pc.equal(pc.subtract(events.bids["auction"], pc.multiply(pc.divide(events.bids["auction"], 100), 100)), 0)
    )
    assert 0.45 < hot.as_py() < 0.55
    prices = events.bids["price"]
    assert pc.min(prices).as_py() >= 100
    assert pc.max(prices).as_py() <= 100_000_000
    assert all(
        ends > begins
        for ends, begins in zip(*(events.auctions[name].to_pylist() for name in ("expires", "time")), strict=True)
    )


def test_disorder_is_bounded_and_changes_no_event() -> None:
    in_order, shuffled = generate(20_000, rate=1000), generate(20_000, rate=1000, disorder_ms=3000)
    times = shuffled.bids["time"].to_pylist()
    latest, worst = 0, 0
    for moment in times:
        latest = max(latest, moment)
        worst = max(worst, latest - moment)
    assert 1000 < worst <= 3000
    assert sorted(times) == in_order.bids["time"].to_pylist()
    assert digest_of(answer_of(QUERIES["q17"], results_of(QUERIES["q17"], shuffled))) == digest_of(
        answer_of(QUERIES["q17"], results_of(QUERIES["q17"], in_order))
    )


def test_the_suite_kills_itself_and_compares(tmp_path: Path) -> None:
    from benchmarks.suites import nexmark

    result = nexmark.measure(tmp_path, events=20_000, queries=["q17"])
    assert [line.name for line in result.lines] == [
        f"q17, {way}: {what}"
        for way in ("dicts", "Arrow")
        for what in (
            "events/s and core",
            "bytes logged per event",
            "state after the restart",
            "kill -9 to the next result",
            "the same with the start of the process",
            "processor until then",
        )
    ]
    assert all(line.value > 0 for line in result.lines)
    assert "results behind a kill are those of a whole run" in result.notes[0]


def test_the_example_prints_results(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/nexmark.py"), run_name="__main__")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["q15", "q16", "q17", "q18", "q19"]


def test_the_last_batch_on_spark_closes_windows_of_every_key(tmp_path: Path) -> None:
    from benchmarks.suites import nexmark_spark

    rows = generate(2000, rate=50).bids.to_pylist()
    nexmark_spark.write_input(tmp_path / "q12", QUERIES["q12"], rows)
    nexmark_spark.write_input(tmp_path / "q0", QUERIES["q0"], rows)
    files = {name: sorted((tmp_path / name / "all").iterdir()) for name in ("q0", "q12")}
    assert [len(part) for part in files.values()] == [nexmark_spark.BATCHES, nexmark_spark.BATCHES + 1]
    late = pq.read_table(files["q12"][-1]).to_pylist()
    assert len({row["bidder"] for row in late} - {row["bidder"] for row in rows}) == len(late) == 64
    assert min(row["time"] for row in late) > max(row["time"] for row in rows)
    assert [row for path in files["q12"][:-1] for row in pq.read_table(path).to_pylist()] == rows


def test_figures_on_spark_are_beside_those_of_sparks_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import pages
    from benchmarks.measure.timing import WrongAnswerError
    from benchmarks.suites import nexmark_spark

    rows = results_of(QUERIES["q0"], generate(500, rate=nexmark_spark.RATE))
    taken = {"hybridstore": {"rate": 200.0, "of a core": 90.0, "stored": 2e6, "silent": 4.0, "spent": 20e3}}
    taken["native"] = {"rate": 100.0, "of a core": 100.0, "stored": 8e6, "silent": 2.0, "spent": 30e3}
    monkeypatch.setattr(nexmark_spark, "measured", lambda folder, name, engine, timeout: taken[engine])
    monkeypatch.setattr(nexmark_spark, "_results", lambda sink: rows)
    result = nexmark_spark.measure(tmp_path, "q0", events=500)
    table = pages.subjects_table(result)
    assert (
        "| q0 | 200 (2.00x Spark's own) | 90.0 (0.90x Spark's own) | 2.00 MB (4.00x smaller than Spark's own) |"
        in table
    )
    assert "4.00 s (0.50x sooner than Spark's own)" in table
    assert "| 20.0 s (1.50x less than Spark's own) |" in table
    assert "| q0, Spark's own | 100 | 100 | 8.00 MB | 2.00 s | 30.0 s |" in table
    monkeypatch.setattr(nexmark_spark, "_results", lambda sink: rows[1:])
    with pytest.raises(WrongAnswerError, match="q0, hybridstore: "):
        nexmark_spark.measure(tmp_path, "q0", events=500)

    def failing(folder: Path, name: str, engine: str, timeout: float) -> dict[str, float]:
        if engine == "native":
            raise TimeoutError("native: not done after 600 s")
        return taken[engine]

    monkeypatch.setattr(nexmark_spark, "measured", failing)
    monkeypatch.setattr(nexmark_spark, "_results", lambda sink: rows)
    alone = nexmark_spark.measure(tmp_path, "q0", events=500)
    assert alone.notes[0] == "Nexmark on Spark, q0: native: not done after 600 s"
    assert [line.ratio for line in alone.lines] == [None] * 5
