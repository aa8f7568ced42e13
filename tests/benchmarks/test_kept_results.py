"""Which results the pages have: those of a whole run, of suites measured since, and of long ones of other runs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure.result import Line, Result
from tests.benchmarks.test_suites import MACHINE, ROOT, result_of

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "__main__.py").exists(), reason="not a checkout")


def kept(folder: Path, name: str, results: list[Result], **head: Any) -> Path:
    """Write a file of raw results."""
    fields = [{"machine": MACHINE, "started": name, "full": False, **head}, *(each.to_json() for each in results)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in fields), encoding="utf-8")
    return path


def test_a_page_takes_over_the_newest_results_of_sparks_engines(tmp_path: Path) -> None:
    from benchmarks import pages as report

    def spark(ms: float) -> Result:
        peer = "Spark's own operator, RocksDB with changelog"
        lines = [Line("hybridstore", ms, ms, ms, "ms"), Line(peer, 2 * ms, 2 * ms, 2 * ms, "ms", 2.0, 2.0, 2.0, "ours")]
        return Result("spark", {"work": "count", "keys": 7, "rows": 5}, lines)

    bare = kept(tmp_path, "2026-01-03T0000", [result_of("changelog", pack=1)])
    report.write(tmp_path / "none", bare)
    assert "## Spark" not in (tmp_path / "none" / "performance-tables.md").read_text(encoding="utf-8")
    kept(tmp_path, "2026-01-01T0000", [spark(111)])
    kept(tmp_path, "2026-01-02T0000", [spark(222)])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "spark.md").write_text(f"above\n{report.SPEED[0]}\nold\n{report.SPEED[1]}\nbelow\n")
    report.write(tmp_path / "docs", bare)
    spark_page = (tmp_path / "docs" / "spark.md").read_text(encoding="utf-8")
    assert spark_page.startswith(f"above\n{report.SPEED[0]}\n```\nmeasured   2026-01-02T0000Z")
    assert spark_page.endswith(f"{report.SPEED[1]}\nbelow\n")
    assert "| count and sum per key, 7 keys, 5 rows a batch | 222 | 444 (2.00x) |" in spark_page
    assert "old" not in spark_page
    page = (tmp_path / "docs" / "performance-tables.md").read_text(encoding="utf-8")
    assert "measured   2026-01-03T0000Z" in page
    assert (
        "Work count, keys 7, rows 5 (measured 2026-01-02T0000Z at commit abc, load average 0.0 at the start, one):"
        in page
    )
    assert "| hybridstore | 222 ms |" in page
    assert "111" not in page
    # a run that has its own takes no other
    report.write(tmp_path / "own", kept(tmp_path, "2026-01-04T0000", [spark(333)]))
    own_page = (tmp_path / "own" / "performance-tables.md").read_text(encoding="utf-8")
    assert "| hybridstore | 333 ms |" in own_page
    assert "(measured" not in own_page


def test_what_was_measured_anew_takes_the_place_of_the_same_measurement(tmp_path: Path) -> None:
    from benchmarks import pages as report
    from benchmarks.raw import read_all, same

    def checkpoints(changes: int, value: float) -> Result:
        line = Line("hot key: bytes", value, value, value, "bytes")
        return Result("checkpoint bytes", {"checkpoints": 400, "changes": changes}, [line])

    whole = kept(tmp_path, "2026-01-02T0000", [result_of("changelog", pack=111), checkpoints(5000, 222)])
    larger = Result("beyond memory", {"records": 50_000_000, "limit": 500_000_000}, [])
    kept(tmp_path, "2026-01-01T0000", [result_of("changelog", pack=333), result_of("stores", put=444), larger])
    kept(tmp_path, "2026-01-03T000000", [result_of("changelog", pack=555), checkpoints(1000, 666)])
    kept(tmp_path, "2026-01-04T000000", [result_of("changelog", pack=777)], quick=True)
    head, results, earlier = read_all(whole)
    assert head["started"] == "2026-01-02T0000"
    assert [same(result) for result in results] == [("checkpoint bytes", 400, 5000)]
    (_, last) = earlier.pop(next(place for place, (_, result) in enumerate(earlier) if result.suite == "beyond memory"))
    assert last.settings == larger.settings
    assert {same(result): result.lines[0].value for _, result in earlier} == {
        ("changelog", None, None, None, None): 555,
        ("checkpoint bytes", 400, 1000): 666,
    }
    report.write(tmp_path / "docs", whole)
    page = (tmp_path / "docs" / "performance-tables.md").read_text(encoding="utf-8")
    assert "| hot key: bytes | 222 bytes |" in page
    assert "| hot key: bytes | 666 bytes |" in page
    assert (
        "changes 1000 (measured 2026-01-03T000000Z at commit abc, load average 0.0 at the start, one):"
        in page.replace("1,000", "1000")
    )
    assert "| pack | 555 ms |" in page


def test_a_suite_by_itself_is_kept_and_the_pages_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import __main__ as main
    from benchmarks import commands, pages, raw
    from benchmarks.suites import changelog_speed

    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    pages.write(docs, kept(results, "2026-01-01T0000", [result_of("stores", put=1), result_of("changelog", pack=2)]))
    for module in (raw, commands, main):
        monkeypatch.setattr(module, "RESULTS", results)
    monkeypatch.setattr(pages, "DOCS", docs)

    def page() -> str:
        return (docs / "performance-tables.md").read_text(encoding="utf-8")

    monkeypatch.setattr(changelog_speed, "measure", lambda *_, **__: result_of("changelog", pack=33))
    assert commands.run(["changelog"]) == 0
    assert "| pack | 2.00 ms |" in page()
    assert commands.run(["changelog", "--keep"]) == 0
    assert "| put | 1.00 ms |" in page()
    assert "| pack | 33.0 ms |" in page()
    # the start of a run has its second: the next one is later
    for path in results.glob("[!2]*"):
        path.unlink()
    path = max(results.glob("*.jsonl"))
    path.rename(results / "2026-01-02T000000-abc.jsonl")
    monkeypatch.setattr(changelog_speed, "measure", lambda *_, **__: result_of("changelog", pack=44))
    monkeypatch.setattr(
        sys, "argv", ["benchmarks", "--only", "changelog", "--results", str(results), "--docs", str(docs)]
    )
    assert main.main() == 0
    assert "| pack | 44.0 ms |" in page()
    assert "benchmarks/results/2026-01-01T0000.jsonl" in page()
    before = page()

    def failing(*_: Any, **__: Any) -> Result:
        raise RuntimeError("the engine said no")

    monkeypatch.setattr(changelog_speed, "measure", failing)
    assert main.main() == 1
    assert commands.run(["changelog"]) == 1
    assert capsys.readouterr().err == "changelog: the engine said no\nthe engine said no\n"
    (docs / "performance.md").write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--report", "--docs", str(docs)])
    assert main.main() == 0
    assert page() == before
    assert (docs / "performance.md").read_text(encoding="utf-8").startswith("# Performance")
    with pytest.raises(ValueError, match="no page of figures there"):
        pages.refresh(tmp_path)


def test_parts_of_a_table_have_their_order(tmp_path: Path) -> None:
    from benchmarks.raw import carried

    works = ["native, worker", "hybridstore, worker", "plain, process", "flink, process"]
    results = [Result("shuffle bench", {"work": work, "repeats": 1}) for work in works]
    results += [Result("nexmark on spark", {"query": query}) for query in ("q11", "q2", "q0")]
    kept(tmp_path, "2026-01-03T0000", results)
    order = [result.settings.get("work", result.settings.get("query")) for _, result in carried(tmp_path / "none", [])]
    assert order == ["q0", "q2", "q11", "plain, process", "flink, process", "hybridstore, worker", "native, worker"]
