"""The suites of benchmarks/ run on tiny sizes, and the pages are made from what they found."""

import json
import os
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure.result import Line, Result, Target

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {
    "processor": "one",
    "cores": 2,
    "load_average": 0.0,
    "file_system": "ext4",
    "system": "Linux",
    "python": "CPython",
    "commit": "abc",
    "packages": {"lmdb": "1"},
}
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "__main__.py").exists(), reason="not a checkout")


@pytest.mark.slow
def test_the_garbage_of_tasks_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from benchmarks.suites import task_garbage as bench_task_garbage

    result = bench_task_garbage.measure(tmp_path, records=2000, count=5)
    assert [entry.unit for entry in result.lines] == ["ms"] * 4
    assert [entry.target is not None for entry in result.lines] == [True, False] * 2


def test_the_readme_names_every_suite() -> None:
    files = (ROOT / "benchmarks" / "suites").glob("[a-z]*.py")
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [file.name for file in sorted(files) if file.name != "stores.py" and f"`{file.name}`" not in page] == []


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
    assert lines[0]["full"] is False
    assert {each["suite"] for each in lines[1:]} == {
        "restore",
        "stores",
        "changelog",
        "checkpoint",
        "checkpoint bytes",
        "commit latency",
        "beyond memory",
        "state by limit",
        "scale",
        "changelog bytes",
        "catching up",
        "joins",
        "walls",
        "profile",
        "changes",
    }
    page = (docs / "performance-tables.md").read_text(encoding="utf-8")
    short = (docs / "performance.md").read_text(encoding="utf-8")
    assert "| restart after a crash, 2,000 records, to the first read and write |" in short
    assert "| a put of a window store, logged |" in short
    for title in ("## Restart", "## Stores", "## Changelog", "## Checkpoints", "## Where Python is the wall"):
        assert title in page
    assert "window, sparse: put + changelog" in page
    assert "A native core could take those away" in page
    for title in ("## Bytes of checkpoints", "## Latency of commits", "## State beyond memory", "## Joins"):
        assert title in page
    for title in ("## Changelog bytes", "## Before and after", "## What is left out"):
        assert title in page
    assert "10,000 shards" in (docs / "scale.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in page

    # written anew from the raw results alone, the pages are the same
    again = tmp_path / "again"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--report", str(raw), "--docs", str(again)])
    assert suites.main() == 0
    assert (again / "performance-tables.md").read_text(encoding="utf-8") == page
    assert (again / "performance.md").read_text(encoding="utf-8") == short
    capsys.readouterr()


def result_of(suite: str, **figures: float) -> Result:
    return Result(suite, {}, [Line(name, value, value, value, "ms") for name, value in figures.items()])


def test_a_quick_run_writes_pages_only_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import __main__ as suites

    written: list[Path] = []
    monkeypatch.setattr(suites, "suites", lambda *_: {"restore": [lambda: result_of("restore", ready=1)]})
    monkeypatch.setattr(suites.pages, "write", lambda docs, _: written.append(docs))
    monkeypatch.setattr(suites.pages, "refresh", written.append)
    quick = ["benchmarks", "--quick", "--results", str(tmp_path / "results"), "--folder", str(tmp_path)]
    for more in ([], ["--only", "restore"], ["--docs", str(tmp_path / "docs")]):
        monkeypatch.setattr(sys, "argv", [*quick, *more])
        assert suites.main() == 0
    assert written == [tmp_path / "docs"]
    capsys.readouterr()


def test_a_finding_is_told_only_when_the_figures_say_so() -> None:
    from benchmarks.findings import Figures, checkpoint, left_out, wall

    whole, later = "first checkpoint, written whole", "incremental checkpoint of 5 mutations"
    (finding,) = checkpoint(Figures([result_of("checkpoint", **{whole: 200, later: 262})]))
    assert "takes 1.31 times as long" in finding
    assert checkpoint(Figures([result_of("checkpoint", **{whole: 200, later: 100})])) == []
    assert checkpoint(Figures([])) == []
    assert wall(Figures([])) == ["This was not measured in this run."]
    assert any("FULL=1" in sentence for sentence in left_out([], full=False))
    spark = [result_of("spark"), result_of("spark restart")]
    assert not any("FULL=1" in sentence for sentence in left_out(spark, full=True))


def test_a_missed_target_of_a_put_shows_its_profile() -> None:
    from benchmarks.findings import Figures, profiles

    stores = Result("stores", {}, [Line("session: put + changelog", 1, 1, 1, "ns", 4.0, 4.0, 4.0, "bare", Target(3.0))])
    profile = result_of("profile", **{"session: put: session.put": 40, "session: put_columns: session.put_columns": 9})
    (sentence,) = profiles(Figures([stores, profile]))
    assert sentence.startswith("session: `put` missed its target.")
    assert "`session.put` 40.0 %." in sentence
    assert profiles(Figures([stores])) == []
    assert profiles(Figures([profile])) == []


def test_findings_of_a_restart_name_who_was_sooner() -> None:
    from benchmarks.findings import Figures, restart

    def at(records: int, sqlite: float) -> Result:
        figures = {"hybridstore: ready": 10.0, "hybridstore: tail": 8.0, "hybridstore: attach": 1.0}
        result = result_of("restore", **figures, **{"sqlite: to the first read and write": sqlite})
        result.settings.update(records=records, tail=10, cache="warm", value_size=16)
        return result

    sentence = restart(Figures([at(100, 0.5)]))
    assert len(sentence) == 1
    assert "sqlite 0.50 ms: sooner than our 10.0 ms" in sentence[0]
    assert restart(Figures([at(100, 50)])) == []
    assert "100 times as many" in restart(Figures([at(10_000, 50), at(100, 50)]))[0]
    crashed = at(100, 50)
    crashed.lines.append(Line("rocksdb-log: to the first read and write", 4.0, 4.0, 4.0, "ms"))
    (said_of_logs,) = restart(Figures([crashed]))
    assert "With the same 10 records in their own logs, as a crash leaves them, it is rocksdb 4.00 ms" in said_of_logs


def test_the_pages_have_nexmark_beside_flink_and_say_where_flink_is_faster() -> None:
    from benchmarks import brief
    from benchmarks import pages as report
    from benchmarks.findings import LONG, left_out

    rates = {"q11, dicts: events/s and core": 1.39, "q11, Arrow: events/s and core": 0.9}
    lines = [
        Line(name, 50, 50, 50, "", ratio, ratio, ratio, "Flink", Target(1, "ratio", True))
        for name, ratio in rates.items()
    ]
    result = Result("nexmark", {"events": 7}, lines)
    page = report.tables({"machine": MACHINE, "started": "now", "full": True}, [result], "raw", ())
    assert "## Nexmark, beside Flink" in page
    assert "| q11, dicts | 50.0 (1.39x Flink) |" in page
    assert "* nexmark, q11, Arrow: events/s and core: 50.0 0.90x Flink (target ≥ 1x)" in page
    assert brief.slower([result]) == ["nexmark, 7 events: q11, Arrow: events/s and core 50.0 (0.90x Flink)."]
    within = {"key-value, ycsb e": 0.15, "key-value, hot 1 %": 1.03}
    lines = [Line(f"{name}: operations/s", 7, 7, 7, "/s", *[ratio] * 3, "RocksDB") for name, ratio in within.items()]
    memory = Result("beyond memory", {"records": 7000, "limit": "1/5"}, lines)
    assert brief.slower([memory]) == [
        "beyond memory, 7,000 records, limit 1/5: key-value, ycsb e: operations/s 7.00 /s (0.15x RocksDB)."
    ]
    assert [any(line.startswith("Flink") for line in left_out(part, True)) for part in ([], [result])] == [True, False]
    assert result.suite in LONG


def test_the_short_page_has_the_median_query_of_nexmark_and_kills_beside_other_engines() -> None:
    from benchmarks import brief

    def killed(engine: str, name: str, victim: str, back: float) -> Result:
        line = Line(f"{name}, {victim} killed: p95 back", back, back, back, "s")
        return Result("shuffle bench", {"work": f"{engine}, {victim}", "repeats": 3}, [line])

    rates = {"q7": (30.0, 4.0), "q11": (10.0, 0.5), "q12": (20.0, 1.5)}
    lines = [
        Line(f"{name}, dicts: events/s and core", rate, rate, rate, "", ratio, ratio, ratio, "Flink")
        for name, (rate, ratio) in rates.items()
    ]
    results = [Result("nexmark", {"events": 7}, lines)]
    results += [killed("plain", "plain", "process", 0.5), killed("flink", "Flink", "process", 11.0)]
    kill, nexmark = brief.figures(results)
    assert kill[1:] == ("0.50 s", "Flink 22.0x")
    assert "the median of 3 queries with state" in nexmark[0]
    assert nexmark[1:] == ("20.0", "Flink 1.50x (0.50x to 4.00x)")
    on_spark = [killed("hybridstore", "Spark with ours", "worker", 9.0), killed("native", "Spark's own", "worker", 8.0)]
    assert brief.slower(on_spark) == [
        "ShuffleBench, a worker killed: p95 back after 9.00 s, with Spark's own operator 8.00 s."
    ]
    assert brief.slower(on_spark[:1]) == []


def test_a_packed_block_gives_back_what_went_in_or_says_that_it_is_damaged() -> None:
    from array import array

    from benchmarks.suites.walls import PackedBlock, packed
    from recovery.block import Columns

    data = packed(Columns(["a", "bb"], [2, 1], (array("q", [1, 5, 3]),), [b"x", b"", b"yy"]))
    block = PackedBlock(data)
    assert [block.get("a", 1), block.get("a", 5), block.get("bb", 3)] == [b"x", b"", b"yy"]
    assert [block.get("a", 3), block.get("b", 3), block.get("bb", 1)] == [None, None, None]
    assert block.rows() == [(1, b"x"), (5, b""), (3, b"yy")]
    with pytest.raises(ValueError, match="checksum"):
        PackedBlock(data[:-1] + b"z")


def test_two_engines_in_rounds_are_judged_by_the_median_of_the_rounds_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import pages as report
    from benchmarks.measure.timing import WrongAnswerError
    from benchmarks.suites import spark, spark_suite

    def run(*timed: int, agrees: bool | None = True) -> dict[str, Any]:
        return {"timed": list(timed), "agrees": agrees, "processor_ms": 2 * timed[0]}

    def measured(notes: list[str], **engines: list[dict[str, Any]]) -> None:
        answers = {name.replace("_", "-"): runs for name, runs in engines.items()}
        monkeypatch.setattr(spark, "compare", lambda *_: (answers, notes))

    # a machine that is ten times slower in one round is that for both
    bare = [run(100, agrees=None), run(1000, agrees=None), run(100, agrees=None)]
    measured([], hybridstore=[run(90, 110, 500), run(1300), run(120)], bare=bare)
    over = spark_suite.over_bare(tmp_path, "count", 7, 1.2)
    assert [(each.name, each.value) for each in over.lines[:2]] == [
        ("rows to Python and back, no state", 100),
        ("hybridstore", 120),
    ]
    assert [each.ratio for each in over.lines] == [None, 1.2, None, 1.2]
    assert over.lines[1].verdict() == "≤ 1.2x: reached"
    assert spark_suite.over_bare(tmp_path, "count", 7, 1.1).lines[1].verdict() == "≤ 1.1x: missed"
    measured([], hybridstore_tws=[run(100), run(200)], tws_row=[run(600), run(800)])
    drop_in = spark_suite.drop_in(tmp_path, 7, 5)
    assert (drop_in.lines[1].name, drop_in.lines[1].ratio) == ("transformWithState in Python, rows", 5)
    assert drop_in.lines[1].verdict() == "≥ 5x: reached"
    report_of = report.tables({"machine": MACHINE, "started": "now", "full": True}, [over, drop_in], "raw", ())
    assert "## What state adds to a batch on Spark" in report_of
    assert "≥ 5x: reached" in report_of
    measured([], hybridstore_tws=[run(100)], tws_row=[run(600, agrees=False)])
    with pytest.raises(WrongAnswerError, match="tws-row: answers other than those of hybridstore-tws"):
        spark_suite.drop_in(tmp_path, 7, 5)
    measured(["count, 7 keys: bare: not done after 300 s"], hybridstore=[run(1)])
    with pytest.raises(WrongAnswerError, match="not done after 300 s"):
        spark_suite.over_bare(tmp_path, "count", 7, 1.2)


def test_a_calculation_follows_its_assumptions() -> None:
    from benchmarks.suites.scale_model import Cluster, Measured, rows_of

    measured = Measured(0.001, 1e-9, 1e-6, 24)
    small = dict(row[:2] for row in rows_of(Cluster(), measured))
    assert small["a shard"] == "10.0 GB, 100,000,000 records"
    assert small["files written per batch"] == "1,000"
    assert small["commit overhead of a node in a batch"] == "0.02 s of 10 s, one core"
    finer = dict(row[:2] for row in rows_of(Cluster(shards=10_000), measured))
    # 360 batches of 1,000 changes, each written 3.9 times
    assert finer["a checkpoint of one shard"] == "140 MB, 0.14 s of disk"
    how = {row[0]: row[2] for row in rows_of(Cluster(), measured)}["checkpoint bytes of a day, whole cluster"]
    assert "would be 240 TB, 7x" in how


def test_no_number_of_the_pages_is_typed_by_hand() -> None:
    from benchmarks import pages as report
    from benchmarks import raw

    docs = ROOT / "docs"
    measured = raw.source(docs)
    if measured is None:
        pytest.skip("not measured yet")
    texts = report.texts(docs, measured)
    assert set(texts) == {"performance.md", "performance-tables.md", "scale.md"}
    for name, text in texts.items():
        assert (docs / name).read_text(encoding="utf-8") == text


def test_a_rescale_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from benchmarks.suites import rescale

    assert rescale.measure(tmp_path, keys=500, shards=2, into=4)["seconds"] >= 0


def test_a_store_under_a_limit_is_measured_with_its_memory_from_outside(tmp_path: Path) -> None:
    from benchmarks.suites import beyond_memory

    result = beyond_memory.measure(tmp_path, records=2000, operations=200, kinds=["window"], works=["uniform"])
    names = [entry.name for entry in result.lines]
    assert names[:2] == ["window, load, no limit: operations/s", "window, load, no limit: anonymous memory"]
    assert "window, uniform: longest operation" in names
    memory = result.find("window, uniform: anonymous memory")
    assert memory.target is not None
    assert memory.target.bound == 1.3
    # a short phase may have freed more than it allocated since the base line
    every = [entry.value for entry in result.lines if entry.name.endswith(": anonymous memory")]
    assert sys.platform != "linux" or max(every) > 0
    killed = beyond_memory.measure(tmp_path, records=2000, operations=200, kinds=["key-value"], works=["ycsb d"])
    assert killed.find("key-value, restart after a kill: until the first record is read").value > 0
    assert killed.find("key-value, restart after a kill: operations/s").value > 0
    longest = killed.find("key-value, ycsb d: longest operation")
    assert 0 < killed.find("key-value, ycsb d: longest operation beside the kernel's sync").value <= longest.value
    given = beyond_memory.measure(tmp_path, records=500, operations=50, limit=1000, kinds=["session"], works=["zipf"])
    assert not any("no limit" in entry.name for entry in given.lines)


def test_turns_of_two_engines_have_a_ratio_each(tmp_path: Path) -> None:
    from benchmarks.suites import beyond_memory

    works = ["ycsb d", "uniform"]
    result = beyond_memory.measure(
        tmp_path, records=1000, operations=100, limit=10**6, turns=3, kinds=["key-value"], works=works, peers=["lmdb"]
    )
    assert result.settings["turns"] == 3
    speed = result.find("key-value, uniform: operations/s")
    assert speed.low <= speed.value <= speed.high
    assert result.find("lmdb, ycsb d: processor time").value >= 0
    assert result.find("key-value, restart after a kill: operations/s").value > 0
    turns = [
        (
            {"operations/s": rate, "p99.9": 1.0, "longest": 9 * rate, "beside sync": rate, "processor": 2, "others": 0},
            10**6,
        )
        for rate in (3.0, 1.0, 5.0)
    ]
    theirs = [{"operations/s": rate, "processor": 4.0} for rate in (2.0, 2.0, 5.0)]
    lines = {entry.name: entry for entry in beyond_memory._lines("ours", turns, 10**6, theirs, 1.5)}
    ratio = lines["ours: times RocksDB's rate"]
    assert (ratio.value, ratio.low, ratio.high, ratio.met) == (1.0, 0.5, 1.5, False)
    assert beyond_memory._bounds(5_000_000, 10**8)["zipf"] == 2
    assert beyond_memory._bounds(20_000_000, 10**8)["zipf"] == 1
    assert lines["ours: longest operation"].value == 45
    assert lines["ours: longest operation beside the kernel's sync"].value == 5
    assert lines["ours: longest operation beside the kernel's sync"].met
    assert lines["ours: processor time"].ratio == 0.5


IN_TURN = """
import os
import time
from pathlib import Path
from benchmarks.measure.watched import BASE, phase

def work(folder, name, fails):
    (Path(folder) / name).write_text(str(os.getpid()))
    phase(BASE)
    turns = []
    for turn in range(3):
        phase(f"turn {turn}")
        if fails and turn == 1:
            raise KeyError(name)
        pid = (Path(folder) / ("b" if name == "a" else "a")).read_text()
        turns.append([time.monotonic_ns(), name, stopped(pid)])
    return turns

def stopped(pid):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "TZ":
            return True
    return False
"""


def test_workers_that_are_called_together_work_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.measure import watched

    (tmp_path / "in_turn.py").write_text(IN_TURN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def calls(*, fails: bool) -> list[tuple[Any, dict[str, watched.Memory]]]:
        given = [{"folder": str(tmp_path), "name": name, "fails": fails and name == "b"} for name in "ab"]
        return watched.call_together("in_turn:work", given)

    answers = calls(fails=False)
    begun = sorted(entry for answer, _ in answers for entry in answer)
    assert [(name, stopped) for _, name, stopped in begun] == [(name, True) for name in "abbaab"]
    assert [list(memory) for _, memory in answers] == [["turn 0", "turn 1", "turn 2"]] * 2
    with pytest.raises(RuntimeError, match="KeyError: 'b'"):
        calls(fails=True)
    for name in "ab":
        # neither is left
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


def test_an_answer_that_is_wrong_shows_no_figure(tmp_path: Path) -> None:
    from benchmarks.measure.timing import WrongAnswerError
    from benchmarks.suites import beyond_memory_work as work

    for name in ("key-value", "window", "session", "lmdb"):
        tested = work.SUBJECTS[name](tmp_path / name, None, array("q", [0]) * 100)
        for i in range(10):
            tested.do("insert", i, i)
        tested.do("modify", 3, 20)
        tested.commit()
        tested.expected[3] = 21
        with pytest.raises(WrongAnswerError, match="record 3: found"):
            tested.do("modify", 3, 22)
        for together in (1, 1000):  # of a work, too, whose answers are checked behind the measured time
            tested.expected[5] = 21
            with pytest.raises(WrongAnswerError, match="record 5: found"):
                work._timed(tested, [("modify", 4, 4), ("modify", 5, 5)], 2, array("d", [0.0]) * 2, together)
        tested.expected[5] = 5
        if isinstance(tested, work.Keyed):
            tested.do("scan", 4, 5)
            for operation, number in (("read", 0), ("scan", 2)):
                tested.expected[8] = 21
                with pytest.raises(WrongAnswerError, match=r"records? 8"):
                    tested.do(operation, 8, number)
        tested.close()
    buffer = work.Suppression(tmp_path / "suppression", None, array("q", [0]) * 100, 5)
    for i in range(5):
        buffer.do("insert", i, i)
    buffer.expected[0] = 7
    with pytest.raises(WrongAnswerError, match="record 0: emitted"):
        buffer.do("insert", 5, 5)
    buffer.close()


def test_choices_follow_their_distributions() -> None:
    from collections import Counter

    from benchmarks.measure.choosing import chooser, fnv

    counts = {}
    for name in ("uniform", "hot", "zipf", "latest"):
        choose = chooser(name)
        counts[name] = Counter(choose(1000) for _ in range(20_000))
        assert all(0 <= i < 1000 for i in counts[name])
    assert max(counts["hot"]) == 9
    assert max(counts["uniform"].values()) < 60
    # of 1,000 records, the most frequent has 1 / (sum of rank ** -0.99) of all choices: 13 %
    assert 0.11 < counts["latest"][999] / 20_000 < 0.15
    assert 0.11 < counts["zipf"][fnv(0) % 1000] / 20_000 < 0.16
    growing = chooser("latest")
    assert growing(10) < 10
    assert {growing(20) for _ in range(200)} <= set(range(20))


def test_bytes_of_checkpoints_and_latencies_of_commits_are_measured(tmp_path: Path) -> None:
    from benchmarks.suites import checkpoint_bytes, commit_latency

    result = checkpoint_bytes.measure(tmp_path, checkpoints=3, changes=50, records=300)
    counted = [entry for entry in result.lines if entry.target is not None]
    assert len(counted) == 18
    # the log itself is one of them
    assert all(entry.low > 1 for entry in counted)
    for subject in ("window, retention 30 days", "key-value, few of 10 times as many records"):
        parts = [entry for entry in result.lines if entry.name.startswith(subject) and entry not in counted]
        mean = result.find(f"{subject}: written per changed byte").value
        assert abs(sum(part.value for part in parts) - mean) < 0.1 * mean  # the mean is of ratios, not of sums
    result = commit_latency.measure(tmp_path, records=300, commits=60, checkpoints=2)
    assert result.find("paced at 50 %, checkpoints: made").value >= 1
    assert result.find("unpaced, checkpoints: p99.9").ratio is not None


@pytest.mark.parametrize("kind", ["key-value", "window", "session"])
def test_the_price_of_a_turn_is_that_of_equal_puts(kind: str, tmp_path: Path) -> None:
    from benchmarks.suites.turn_price import measure

    assert min(measure(kind, 50, 2, tmp_path)) > 0  # it raises where the records differ


def test_the_memory_of_many_states_is_read_from_outside(tmp_path: Path) -> None:
    from benchmarks.suites.limit_outside import measure

    kinds = "key-value,window,session,sliding,suppression"
    closing = "close,close-sessions,close-hopping"
    lines = measure(
        records=600,
        operations=500,
        limit=1 << 40,
        states=3,
        shards=2,
        kinds=f"{kinds},{closing}",
        folder=tmp_path,
    )
    parts = ["load", "work", "iterate", "iterate, backwards", "lookups"]
    phases = [f"3 states, {kind}, {part}" for kind in kinds.split(",") for part in parts]
    phases.insert(-1, "3 states, suppression, flush")
    phases += [f"{kind}, {part}" for kind in closing.split(",") for part in ("load", "close")]
    assert list(lines) == [*phases, "2 shards, load", "2 shards, work", "2 shards to 4, rescale"]
    assert lines["3 states, key-value, lookups"] == "500 hits, 0 misses"


@pytest.mark.slow
def test_a_store_on_an_object_store_is_measured_under_a_limit(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from benchmarks.suites import beyond_memory

    result = beyond_memory.measure(
        tmp_path,
        records=1000,
        operations=100,
        limit=100_000,
        kinds=["key-value"],
        works=["uniform"],
        storage="s3",
    )
    assert result.settings["storage"] == "s3"
    assert result.find("key-value, uniform: anonymous memory").target is not None
    assert result.find("key-value, restart after a kill: until the first record is read").value > 0
    assert list(tmp_path.iterdir()) == []


def test_state_by_limit_has_a_rate_and_memory_of_each_share_and_work(tmp_path: Path) -> None:
    from benchmarks.suites import state_by_limit

    result = state_by_limit.measure(
        tmp_path, limit=50_000, sample=500, operations=50, shares=(2,), works=["zipf"], peers=False
    )
    names = [f"hybridstore, zipf{what}: state 2x the limit" for what in ("", ", anonymous memory")]
    assert [line.name for line in result.lines] == names
    assert result.lines[0].value > 0
