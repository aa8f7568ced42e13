"""What the suite `scale-out` says of a run follows from the metrics of its batches."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "__main__.py").exists(), reason="not a checkout")


def of_shard(shard: int, rows: int, load: str, segments: int = 0) -> dict[str, Any]:
    metrics = {"shard": shard, "rows": rows, "load": load, "replayed_segments": segments, "records": {"s": rows}}
    return metrics | {"load_cpu_ms": 2.0 * segments, "process_cpu_ms": rows / 100}


def test_figures_are_per_shard_and_batch_and_per_row() -> None:
    from benchmarks.suites.scale_out import figures, workers_of

    batches = [
        [of_shard(0, 100, "empty"), of_shard(1, 60, "empty")],
        [of_shard(0, 0, "none"), of_shard(1, 200, "hit")],
        [of_shard(0, 50, "catch-up", 1), of_shard(1, 150, "catch-up", 2)],
    ]
    outcome = {"master": "local-cluster[4,2,1024]", "shards": batches, "batches": 2, "times": [30, 10], "copies": 1.5}
    outcome |= {"used": {"python": 8.0, "java": 16.0}, "asked": {"create": 5, "list": 4}, "memory": 100.0}
    result = figures(outcome, 200)
    assert result["workers"] == workers_of("local-cluster[4,2,1024]") == 8
    # three calls had rows in the batches that count: one hit; 1 + 2 segments, of 100 and 60 + 200 rows
    assert result["kinds"] == {"none": 1, "hit": 1, "catch-up": 2}
    assert (result["hits"], result["segments"], result["replayed rows"], result["requests"]) == (1 / 3, 1.0, 120.0, 3.0)
    assert result["loading"] == pytest.approx(6.0 * 1000 / 400)
    assert result["processing"] == pytest.approx(4.0 * 1000 / 400)
    assert (result["python"], result["java"]) == (20.0, 40.0)


def test_the_page_has_a_row_for_each_master_and_the_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import pages
    from benchmarks.measure import plots
    from benchmarks.suites import scale_out, spark_suite

    def entry_of(master: str, placement: str, loading: float) -> dict[str, Any]:
        entry = {"master": master, "engine": "hybridstore", "placement": placement, "agrees": True, "stand-in": False}
        named: dict[str, float] = dict.fromkeys(spark_suite.SCALE_OUT, 1.0)
        return entry | named | {"loading": loading, "java": 2.0}

    entries = [
        entry_of("local[1]", "auto", 1.0),
        entry_of("local[16]", "auto", 2.0),
        entry_of("local[16]", "worker", 9.0),
    ]
    monkeypatch.setattr(scale_out, "measure", lambda *asked: (entries, []))
    result = spark_suite.scale_out(tmp_path)
    work = result.find("local[16], hybridstore (auto): state work, of a processor per row")
    assert (work.value, work.ratio, work.met) == (3.0, 1.5, False)
    assert result.find("local[16], hybridstore (worker): state work, of a processor per row").met is None
    table = pages.subjects_table(result).splitlines()
    assert [row.split(" | ")[0] for row in table[2:]] == [
        "| local[1], hybridstore (auto)",
        "| local[16], hybridstore (auto)",
        "| local[16], hybridstore (worker)",
    ]
    assert "3.00 µs (≤ 1.3x: missed)" in table[3]
    if not plots.missing():
        plots.workers(result, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_process_notes_what_it_holds_and_asks_of_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    pa = pytest.importorskip("pyarrow")
    from benchmarks.suites import scale_out_probe
    from changelog.storage import LocalStorage
    from hybridstore.spark.contract import Batch
    from hybridstore.spark.launches import STARTS
    from hybridstore.spark.location import locate
    from hybridstore.spark.shard.cache import CACHE
    from hybridstore.spark.shipped import Operator
    from hybridstore.spark.worker import ShardWork
    from recovery.rule import Run
    from recovery.runs import Claim
    from tests.tools.spark_programs import RunningCount

    monkeypatch.setattr(CACHE, "drop", CACHE.drop)
    # without what other tests of this process have left
    monkeypatch.setattr(CACHE, "_entries", type(CACHE._entries)())
    monkeypatch.setattr(scale_out_probe, "_asked", {})
    monkeypatch.setattr(scale_out_probe, "_watched", set())
    for verb in scale_out_probe.VERBS:
        monkeypatch.setattr(LocalStorage, verb, getattr(LocalStorage, verb))
    for name in ("state", "notes"):
        (tmp_path / name).mkdir()
    program = scale_out_probe.Probed(RunningCount(), str(tmp_path / "notes"), str(tmp_path / "state/hybridstore"))
    output = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
    operator = Operator(program, "op", locate(tmp_path / "state"), 2, ("string",), "stream", output)
    for shard, keys in ((0, ["a", "b"]), (1, ["c"])):
        batch = Batch(0, "query", "run", shard, 0, 0, Claim("run", 1, (Run(STARTS, 0),)), 1)
        ShardWork(operator, batch).shard(shard, pa.table({"k": keys, "v": [1] * len(keys)}), 0.0)
    (path,) = (tmp_path / "notes").iterdir()
    notes = json.loads(path.read_text())
    assert notes["records"] == 3
    # the note is of the time when the second shard was processed, and not yet committed
    assert notes["asked"]["create"] == 1
    assert notes["asked"]["list"] > 0
    CACHE.drop(tmp_path / "state")
    assert json.loads(path.read_text())["records"] == 0
