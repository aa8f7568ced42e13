"""Every benchmark runs on tiny sizes, checks its answers, and forms its table. No figure is judged here."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, compare, probe_suite
from benchmarks.measure import content, fresh_process, plots
from benchmarks.measure.result import Line, Result, Target, line, number, show
from benchmarks.measure.timing import Spread, WrongAnswerError, check, interleaved
from benchmarks.measure.workload import SHAPES, Rows, Stream
from benchmarks.suites import catching_up, changelog_speed, checkpoint_speed, peers, restore, stores


def test_a_stream_is_the_same_each_time_and_its_values_differ() -> None:
    for shape in SHAPES:
        stream = Stream(500, keys=20, shape=shape, late=0.1, disorder_ms=50)
        rows = stream.rows()
        assert rows == stream.rows()
        assert len(set(rows.values)) == 500
        assert {len(value) for value in rows.values} == {16}
        assert len(set(rows.keys)) <= 20


def test_fingerprint_tells_every_change_apart() -> None:
    rows = Stream(200, keys=10).rows()

    def of(rows: Rows) -> int:
        return content.fingerprint((key, *columns) for key, columns in content.per_key(rows).items())

    assert of(rows) == of(Rows(*(column[::-1] for column in rows)))  # type: ignore[arg-type]  # order does not count
    changed = {
        of(rows.part(0, 199)),
        of(rows._replace(keys=["key-0000099", *rows.keys[1:]])),
        of(rows._replace(times=[rows.times[0] + 1000, *rows.times[1:]])),
        of(rows._replace(values=[b"another value...", *rows.values[1:]])),
    }
    assert len(changed | {of(rows)}) == 5


def test_interleaved_runs_take_turns_and_begin_with_another_each_round() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return float(len(order))

    spreads = interleaved({"a": lambda: case("a"), "b": lambda: case("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert spreads["a"].samples == (1.0, 4.0, 5.0)
    assert spreads["b"].over(spreads["a"]).samples == (2.0, 0.75, 1.2)


def test_percentiles_are_samples() -> None:
    spread = Spread(tuple(float(i) for i in range(1, 101)))
    assert (spread.percentile(0.5), spread.percentile(0.95), spread.percentile(1.0)) == (50.0, 95.0, 100.0)
    assert Spread((3.0,)).percentile(0.95) == 3.0


def test_a_wrong_answer_stops() -> None:
    check(True, "fine")
    with pytest.raises(WrongAnswerError, match=r"^wrong answer: the sum \(no figure is shown\)$"):
        check(False, "the sum")


def test_lines_carry_ratio_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = line("put", Spread((2e-6, 4e-6)), "µs", base=Spread((1e-6, 1e-6)), against="bare", target=Target(2.5))
    assert (comparison.value, comparison.ratio, comparison.met) == (3.0, 3.0, False)
    fast = line("load", Spread((9.0,)), "M records/s", target=Target(8, "value", at_least=True))
    assert fast.verdict() == "≥ 8 M records/s: reached"
    result = Result("stores", {"records": 2}, [comparison, fast], ["a sentence"])
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result
    table = result.markdown().splitlines()
    assert table[0] == "|  | median | lowest - highest | ratio | target |"
    assert table[2] == "| put | 3.00 µs | 2.00 - 4.00 | 3.00x bare | ≤ 2.5x: missed |"
    assert result.find("load") is fast
    show(result)
    assert "a sentence" in capsys.readouterr().out


def test_a_table_fits_eighty_columns_with_all_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    spread, base = Spread((0.0008512, 0.0009123, 0.0012345)), Spread((0.0004, 0.0004, 0.0004))
    lines = [
        line("window, sparse: the longest put of a steady state", spread, "ns", base=base, against="bare Packer"),
        line("window, sparse: second", spread, "ns", base=base, against="list by hand", target=Target(1.5)),
        line("alone", Spread((12_345.6,)), "M records/s", target=Target(8, "value", at_least=True)),
    ]
    show(Result("restore", {"records": 1_000_000}, lines))
    printed = capsys.readouterr().out
    assert all(len(text) <= 80 for text in printed.splitlines())
    assert "…" not in printed
    for figure in ("851,200 - 1,234,500", "2.28x", "12,346 M/s", "≤ 1.5x ✗", "≥ 8 ✓", "✓ target reached"):
        assert figure in printed
    assert printed.count("window, sparse") == 1  # over its lines


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0123, "0.012"), (0.5, "0.50"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_figures_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def whole(result: Result) -> Result:
    """Every line has a figure above nothing, and the table has a row for each."""
    assert result.lines
    assert all(each.low <= each.value <= each.high for each in result.lines)
    assert len(result.markdown().splitlines()) == len(result.lines) + 2
    return result


@pytest.mark.slow
def test_stores_benchmark(tmp_path: Path) -> None:
    whole(stores.measure(tmp_path, records=300, stored=2000, sessions=300, repeats=1))
    assert list(tmp_path.iterdir()) == []


def test_changelog_benchmark(tmp_path: Path) -> None:
    whole(changelog_speed.measure(tmp_path, records=1500, repeats=1))


def test_checkpoint_benchmark(tmp_path: Path) -> None:
    whole(checkpoint_speed.measure(tmp_path, records=2000, changes=200, repeats=1))


@pytest.mark.slow
@pytest.mark.parametrize(("stores", "cold"), [(1, False), (2, True)])
def test_restore_benchmark(tmp_path: Path, stores: int, cold: bool) -> None:
    result = whole(restore.measure(tmp_path, records=1000, tail=100, stores=stores, cold=cold, repeats=1))
    engines = {each.name.partition(":")[0] for each in result.lines}
    assert {"hybridstore", "replay"} <= engines
    assert stores == 2 or {"lmdb", "sqlite", "pickle"} <= engines
    # what has its tail in its own log is copied before each run, which warms a cache
    assert ("sqlite-log" in engines) == (stores == 1 and not cold)


def test_restore_benchmark_refuses_another_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_sum_of", lambda *_: 0)
    with pytest.raises(WrongAnswerError, match="hybridstore: what was loaded is not what was put"):
        restore.measure(tmp_path, records=500, tail=10, baselines=False, repeats=1)


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: None)
    assert peers.missing("rocksdb") == "rocksdb is left out: rocksdict is not installed (pip install rocksdict)"
    assert peers.missing("sqlite") is None


def test_what_fails_in_a_fresh_process_fails_here() -> None:
    with pytest.raises(WrongAnswerError, match="a reason"):
        fresh_process.call("benchmarks.measure.timing:check", holds=False, what="a reason")
    with pytest.raises(RuntimeError, match=r"timing:nothing in a fresh process: AttributeError"):
        fresh_process.call("benchmarks.measure.timing:nothing")


def test_growth_is_drawn_from_the_lines_that_have_a_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [Line(f"put, {size} records", 1, 1, 1, "ns", 1.5, 1.0, 2.0) for size in ("10", "1,000")]
    plots.growth(Result("scale", {}, [*lines, Line("commit of a shard", 1, 1, 1, "ms")]), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_has_a_curve_for_each_loop_and_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[dict[str, list[plots.Point]], dict[float, str]]] = []
    monkeypatch.setattr(plots, "_draw", lambda curves, x, y, path, marks: drawn.append((curves, marks)))
    lines = [
        Line("paced at 50 %, no checkpoint: p50", 1, 1, 1, "ms"),
        Line("paced at 50 %, no checkpoint: p99.9", 2, 2, 2, "ms"),
        Line("paced at 50 %, no checkpoint: longest", 9, 9, 9, "ms"),
        Line("paced at 50 %, checkpoints: p50", 3, 3, 3, "ms"),
        Line("paced at 50 %, checkpoints: made", 4, 4, 4, ""),
    ]
    plots.latencies(Result("commit latency", {}, lines), tmp_path / "plot.png")
    lines = [
        Line("hybridstore, zipf: state 0.5x the limit", 9, 9, 9, "/s"),
        Line("hybridstore, zipf: state 50x the limit", 3, 3, 3, "/s"),
        Line("hybridstore, zipf, anonymous memory: state 50x the limit", 7, 7, 7, "MB"),
        Line("RocksDB, zipf: state 50x the limit", 5, 5, 5, "/s"),
    ]
    plots.limits(Result("state by limit", {}, lines), tmp_path / "plot.png")
    assert drawn == [
        (
            {
                "paced at 50 %, no checkpoint": [(2.0, 1, 1, 1), (1000.0, 2, 2, 2)],
                "paced at 50 %, checkpoints": [(2.0, 3, 3, 3)],
            },
            {2.0: "p50", 1000.0: "p99.9"},
        ),
        (
            {"hybridstore, zipf": [(0.5, 9, 9, 9), (50.0, 3, 3, 3)], "RocksDB, zipf": [(50.0, 5, 5, 5)]},
            {0.5: "0.5", 50.0: "50"},
        ),
    ]


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [
        Result(
            "restore",
            {"records": size},
            [Line("hybridstore: ready", 2, 1, 3, "ms"), Line("replay: to the first read and write", 9, 8, 10, "ms")],
        )
        for size in (10, 1000)
    ]
    plots.restart_times(points, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    shares = [Line(f"hybridstore, zipf: state {share}x the limit", 9, 9, 9, "/s") for share in ("0.5", "2")]
    plots.limits(Result("state by limit", {}, shares), tmp_path / "marks.png")
    assert (tmp_path / "marks.png").read_bytes().startswith(b"\x89PNG")


def test_only_what_noise_cannot_explain_is_a_change() -> None:
    noise = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02]
    assert compare.judge("same", noise, noise[::-1]).alone == ""
    assert compare.judge("up", noise, [sample * 1.5 for sample in noise]).alone == "slower"
    assert compare.judge("down", noise, [sample / 1.5 for sample in noise]).alone == "faster"
    # one measurement calls nothing slower
    assert compare.judge("up", noise, [sample * 1.5 for sample in noise]).verdict == ""
    assert compare.judge("down", noise, [sample / 1.5 for sample in noise]).verdict == "faster"


# Figures of a probe: before, after in the first measurement and after in the second one, and the verdict.
MEASURED = {
    "same": (1.0, 1.0, 1.0, ""),
    "always slower": (1.0, 1.4, 1.3, "slower"),
    "slower once": (1.0, 1.4, 1.0, ""),
    "slower and then faster": (1.0, 1.4, 0.5, ""),
    "slower and then missing": (1.0, 1.4, -1.0, ""),
    "slower in the second alone": (1.0, 1.0, 1.4, ""),
    "faster": (1.0, 0.5, 1.0, "faster"),
}


def fake_probe(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> list[str]:
    """Let two trees have the figures of these names in runs of three, and return the list of trees that are probed."""
    probed: list[str] = []

    def probe(tree: Path, records: int, suite: str) -> dict[str, float]:
        second = len(probed) >= 6
        probed.append(tree.name)
        return {name: MEASURED[name][(1 + second) if tree.name == "after" else 0] for name in names}

    monkeypatch.setattr(compare, "unpack", lambda ref, folder: folder)
    monkeypatch.setattr(compare, "probe", probe)
    return probed


def test_only_what_two_measurements_call_slower_is_slower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probed = fake_probe(monkeypatch, list(MEASURED))
    assert commands.run(["compare", "a", "b", "--runs", "3", "--json"]) == 1
    # both measurements in turn, and the second one begins with the other tree
    assert "".join(tree[0] for tree in probed) == "baabba" + "abbaab"
    changes = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {name: each["verdict"] for name, each in changes.items()} == {
        name: verdict for name, (*_, verdict) in MEASURED.items()
    }
    assert {name: each["again"] and each["again"]["ratio"] for name, each in changes.items()} == {
        "same": None,
        "always slower": 1.3,
        "slower once": 1.0,
        "slower and then faster": 0.5,
        "slower and then missing": None,
        "slower in the second alone": None,
        "faster": None,
    }


def test_a_figure_that_is_slower_once_is_shown_with_both_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fake_probe(monkeypatch, ["same", "slower once"])
    assert commands.run(["compare", "a", "b", "--runs", "3"]) == 0
    printed = capsys.readouterr().out
    rows = {line[1:12].rstrip(): line.rstrip() for line in printed.splitlines()}
    assert rows["same"].endswith("1.00  1.00 - 1.00")
    assert "1.40  1.40 - 1.40   1.00 (1.00  slower once," in rows["slower once"]
    assert printed.rstrip().endswith("without a verdict: no change beyond noise")
    assert max(map(len, printed.splitlines())) <= 80


def test_what_is_not_slower_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = fake_probe(monkeypatch, ["same", "slower in the second alone", "faster"])
    assert commands.run(["compare", "a", "b", "--runs", "3", "--json"]) == 0
    assert len(probed) == 6


@pytest.mark.slow
def test_two_versions_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    if not (compare.ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    code = commands.run(["compare", "HEAD", "--runs", "2", "--records", "300", "--json"])
    assert code in (0, 1)
    names = {each["name"] for each in json.loads(capsys.readouterr().out)}
    assert {"window.put", "restart", "full load", "session.find_sessions", "suppression.put", "sliding.add"} <= names


def test_a_suite_as_a_probe_prints_seconds_by_todays_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = Result("catching up", {})
    measured.lines += [line("window: get_column, touched", Spread((2e-6,)), "µs"), line("all", Spread((0.003,)), "ms")]
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(catching_up, "measure", lambda folder, **options: asked.append(options) or measured)
    monkeypatch.setattr(sys, "argv", ["probe_suite", "catching-up", "500"])
    probe_suite.main()
    assert json.loads(capsys.readouterr().out) == pytest.approx({"window: get_many, touched": 2e-6, "all": 0.003})
    assert asked[0]["rows"] == asked[0]["tail"] == asked[0]["columns"] == 500


def test_figures_that_are_missing_or_not_above_zero_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"a": 1.0, "b": 2.0, "c": 1.0}, {"a": 0.5, "b": -2.0, "d": 1.0}])
    asked: list[Any] = []
    monkeypatch.setattr(compare, "unpack", lambda ref, folder: folder)
    monkeypatch.setattr(compare, "probe", lambda *words: asked.append(words[1:]) or next(answers))
    (change,) = compare.compare_refs("before", "after", runs=1, suite="spark")
    assert (change.name, change.ratio) == ("a", 0.5)
    assert asked == [(20_000, "spark")] * 2


def test_an_unknown_ref_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no-such-ref: "):
        compare.compare_refs("no-such-ref", runs=3)


@pytest.mark.slow
def test_every_option_of_a_restart_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plot.png"
    sizes = ["--records", "400", "--records", "800", "--value-size", "32", "--tail", "40", "--stores", "2"]
    rest = ["--cold", "--baselines", "--runs", "1", "--json", "--folder", str(tmp_path)]
    drawn = ["--plot", str(picture)] if plots.missing() is None else []
    assert commands.run(["restore", *sizes, *rest, *drawn]) == 0
    results = [Result.from_json(each) for each in json.loads(capsys.readouterr().out)["results"]]
    assert [result.settings["records"] for result in results] == [400, 800]
    for result in results:
        assert {"value_size": 32, "tail": 40, "stores": 2, "runs": 1}.items() <= result.settings.items()
        for name in ("open", "attach", "tail", "first read", "first write", "full load", "derived"):
            assert result.find(f"hybridstore: {name}").value > 0
        for engine in ("hybridstore", "replay"):
            assert result.find(f"{engine}: peak memory beyond a bare start").unit == "MB"
            assert result.find(f"{engine}: read by calls").unit == "MB"
        assert result.find("hybridstore: ready").p95 >= result.find("hybridstore: ready").value
    assert picture.exists() is bool(drawn)


def test_a_restart_is_compared_with_sparks_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def call(target: str, **arguments: Any) -> Any:
        asked.append((target, arguments["keys"]))
        return Result("spark restart", {"keys": 5}, [Line("hybridstore: first batch", 1, 1, 1, "ms")]).to_json()

    monkeypatch.setattr(restore, "measure", lambda *_, **settings: Result("restore", settings))
    monkeypatch.setattr(fresh_process, "call", call)
    command = ["restore", "--records", "5", "--spark", "--json", "--folder", str(tmp_path)]
    assert commands.run(command) == 0
    assert asked == [("benchmarks.suites.spark_suite:restart_fields", 5)]
    assert [each["suite"] for each in json.loads(capsys.readouterr().out)["results"]] == ["restore", "spark restart"]

    def fail(target: str, **arguments: Any) -> Any:
        raise RuntimeError("no Java")

    monkeypatch.setattr(fresh_process, "call", fail)
    assert commands.run(command) == 1
    assert "no Java" in capsys.readouterr().err


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["changelog", "--records", "1000", "--runs", "1", "--json", "--folder", str(tmp_path)]
    assert commands.run(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["machine"]["cores"] >= 1
    assert answer["results"][0]["suite"] == "changelog"


@pytest.mark.parametrize(
    ("suite", "option", "known"),
    [
        ("beyond-memory", "--kinds", "key-value, window, session, sliding, suppression"),
        ("beyond-memory", "--works", "uniform, zipf, hot 1 %"),
        ("beyond-memory", "--peers", "rocksdb, lmdb"),
        ("nexmark", "--queries", "q0, q1"),
    ],
)
def test_an_unknown_name_is_refused_by_one_sentence_before_anything_runs(
    capsys: pytest.CaptureFixture[str], suite: str, option: str, known: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        commands.run([suite, option, known.split(", ")[0] + ",zapf"])
    assert stopped.value.code == 2
    assert f"argument {option}: found 'zapf', expected some of {known}" in capsys.readouterr().err
