"""The suites of benchmarks/ run on tiny sizes, and the pages are made from what they found."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "__main__.py").exists(), reason="not a checkout")


@pytest.mark.slow
def test_all_suites_run_and_write_their_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import __main__ as suites

    docs, results = tmp_path / "docs", tmp_path / "results"
    arguments = ["--quick", "--docs", str(docs), "--results", str(results), "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    assert suites.main() == 0
    (raw,) = results.iterdir()
    lines = [json.loads(text) for text in raw.read_text(encoding="utf-8").splitlines()]
    assert {one["suite"] for one in lines[1:]} == {
        "restore",
        "stores",
        "changelog",
        "checkpoint",
        "scale",
        "changelog bytes",
    }
    page = (docs / "performance.md").read_text(encoding="utf-8")
    for title in ("## Restart", "## Stores", "## Changelog", "## Checkpoints", "## Where Python is the wall"):
        assert title in page
    assert "window, sparse: put + changelog" in page
    assert "10,000 shards" in (docs / "scale.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in page

    # written anew from the raw results alone, the pages are the same
    again = tmp_path / "again"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--report", str(raw), "--docs", str(again)])
    assert suites.main() == 0
    assert (again / "performance.md").read_text(encoding="utf-8") == page
    capsys.readouterr()


def test_a_calculation_follows_its_assumptions() -> None:
    from benchmarks.scale_model import Cluster, Measured, rows_of

    measured = Measured(0.001, 1e-9, 1e-6, 24)
    small = dict(row[:2] for row in rows_of(Cluster(), measured))
    assert small["a shard"] == "10.0 GB, 100,000,000 records"
    assert small["files written per batch"] == "2,000"
    assert small["commit overhead of a node in a batch"] == "0.02 s of 10 s, one core"
    finer = dict(row[:2] for row in rows_of(Cluster(shards=10_000), measured))
    assert finer["a checkpoint of one shard"] == "1.0 s of disk"


def test_no_number_of_the_pages_is_typed_by_hand() -> None:
    from benchmarks import report, scale_model

    page = ROOT / "docs" / "performance.md"
    if not page.exists():
        pytest.skip("not measured yet")
    text = page.read_text(encoding="utf-8")
    name = text.partition("benchmarks/results/")[2].partition("`")[0]
    head, results = report.read(ROOT / "benchmarks" / "results" / name)
    assert report.performance(head, results, name, "(restart.png)" in text) == text
    scale = next(result for result in results if result.suite == "scale")
    assert scale_model.page(head, scale, results, report.machine(head), name) == (ROOT / "docs" / "scale.md").read_text(
        encoding="utf-8"
    )
