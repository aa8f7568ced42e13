"""The suite of other engines beside ours: its events, its oracle, its programs, and what it makes of results."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import findings
from benchmarks.measure import plots
from benchmarks.measure.result import Line, Result, Target
from benchmarks.measure.timing import WrongAnswerError
from benchmarks.suites import peer_engines, peer_programs
from benchmarks.suites.peer_engines import NAMES, Case, changes_of, extra, results_of
from benchmarks.suites.peer_programs import Commits, Job


def test_the_oracle_counts_each_window_of_an_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps({"k": "a", "t": t, "v": v}) + "\n" for t, v in ((59_999, 1), (61_000, 5))))
    assert peer_engines.sums_of(path, "tumbling") == {("a", 0): (1, 1), ("a", 60_000): (1, 5)}
    hopping = peer_engines.sums_of(path, "hopping")
    # a second is in 60 windows; 58 of the 62 hold both events
    assert (min(hopping), max(hopping)) == (("a", 0), ("a", 61_000))
    assert Counter(hopping.values()) == {(1, 1): 2, (2, 6): 58, (1, 5): 2}


@pytest.mark.parametrize("engine", peer_engines.ENGINES)
def test_a_program_gives_what_the_oracle_gives(tmp_path: Path, engine: str) -> None:
    if engine == "hybridstore-arrow":
        pytest.importorskip("pyarrow")
    if why := peer_engines.missing(engine):
        pytest.skip(why)
    cases = [Case(engine, engine != "pathway")]
    result = peer_engines.measure(tmp_path, "hopping", events=1500, keys=3, per_second=50, runs=1, cases=cases)
    figures = ["processor per event", "clock per event", "written per event", "most memory"]
    timed = ["longest between commits"] if engine not in ("bytewax", "pathway") else []
    assert [line.name.rpartition(": ")[2] for line in result.lines] == [*figures, *timed]
    assert result.notes == [peer_engines.QUIX]
    assert list(tmp_path.iterdir()) == []


class CrashError(Exception):
    pass


class CrashingCommits(Commits):
    count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.count == 4:
            raise CrashError


@pytest.mark.parametrize("engine", ["hybridstore", "hybridstore-arrow"])
def test_our_program_goes_on_after_a_crash_with_each_result_once(tmp_path: Path, engine: str) -> None:
    if engine == "hybridstore-arrow":
        pytest.importorskip("pyarrow")
    path, program = tmp_path / "events.jsonl", peer_programs.PROGRAMS[engine][0]
    peer_engines.write_events(path, 900, 5, 3)
    job = Job(engine, "tumbling", str(path), str(tmp_path), 200)
    with pytest.raises(CrashError):
        program(job, CrashingCommits())
    before = results_of(job.results)
    expected = peer_engines.sums_of(path, "tumbling")
    assert 0 < before.total() < len(expected)
    program(job, Commits())
    assert extra(results_of(job.results), expected, "ours") == 0


def test_what_is_missing_or_wrong_is_no_figure_and_what_is_there_twice_is_counted(tmp_path: Path) -> None:
    expected = {("a", 0): (1, 2), ("b", 0): (3, 4)}
    lines = [b'["a", 0, 1, 2]', b'["b", 0, 3, 4, 17]', b'{"k": "a", "start": 0, "n": 1, "total": 2, "diff": 1}']
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\n".join(lines) + b'\n["a", 0, 1')
    assert extra(results_of(path), expected, "all") == 1
    assert results_of(tmp_path / "none") == Counter()
    taken_back = Counter(dict(changes_of([b'{"k": "b", "start": 0, "n": 9, "total": 9, "diff": -1}'])))
    assert extra(results_of(path) + taken_back, expected, "all") == 1
    other = Counter(result for result, _ in changes_of([lines[0], b'["b", 0, 3, 5]']))
    for results, message in ((other, "1 of 2 results are not so, 1 are missing"), (Counter(), "2 are missing")):
        with pytest.raises(WrongAnswerError, match=message):
            extra(results, expected, "some")


def test_a_program_is_killed_where_it_has_read_so_far_and_new_results_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    peer_engines.write_events(path, 10, 2, 1)
    job = Job("duckdb", "tumbling", str(path), str(tmp_path), 5)
    reader = f"file = open({str(path)!r}); file.seek({path.stat().st_size * 6 // 10 + 1}); input()"
    with subprocess.Popen([sys.executable, "-c", reader], stdin=subprocess.PIPE, text=True) as process:
        peer_engines.kill_at(job, process, *peer_engines._progress(job))
    assert process.returncode == -9
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.PIPE, text=True) as process:
        peer_engines.kill_at(job, process, peer_engines._processor_of, 0.01)
    assert process.returncode == -9
    assert peer_engines.first_new(job, process, Counter()) is None
    job.results.write_bytes(b'["a", 0, 1, 2]\n')
    assert peer_engines.first_new(job, process, Counter()) is None, "what is there before the start is not new"


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_engines, "find_spec", lambda _: None)
    sentence = "DuckDB beside our plain engine: duckdb is not installed (benchmarks/README.md, peer_engines.py)"
    assert peer_engines.missing("duckdb") == sentence
    assert peer_engines.missing("hybridstore") is None


def test_bars_are_drawn_for_every_engine(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [Line(f"{name}: {what}", 2, 1, 3, "µs") for name in NAMES.values() for what in ("processor per event", "x")]
    results = [
        Result("peer engines", {"work": work, "events": 5000}, lines) for work in ("tumbling", "tumbling, killed")
    ]
    plots.engines(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_surprising_is_told_only_where_it_was_measured() -> None:
    def line(name: str, value: float, ratio: float | None = None) -> Line:
        target = None if ratio is None else Target(1, at_least=True)
        return Line(name, value, value, value, "ms", ratio, ratio, ratio, "ours", target)

    lines = [line("hybridstore, Arrow: start and imports", 300), line("DuckDB: start and imports", 200)]
    lines += [line("hybridstore, Arrow: to the first new result", 500)]
    ahead, behind = (line("DuckDB: to the first new result", 400, ratio) for ratio in (0.8, 1.2))
    for last, sentences in ((ahead, 1), (behind, 0)):
        result = Result("peer engines", {"work": "tumbling, killed", "events": 5}, [*lines, last])
        assert len(findings.peer_engines(findings.Figures([result]))) == sentences
    memory = [line("Pathway: most memory", 1000), line("hybridstore, dicts: most memory", 40)]
    result = Result("peer engines", {"work": "hopping", "events": 5}, memory)
    (sentence,) = findings.peer_engines(findings.Figures([result]))
    assert sentence.startswith("hopping: Pathway takes 1,000 ms for 5 events, ours 40.0 ms: ")
