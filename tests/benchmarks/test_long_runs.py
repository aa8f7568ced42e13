"""What the long suites rest on: rows that follow from their number, a sink without lost or double outputs, verdicts."""

from __future__ import annotations

import json
import math
import os
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

import hybridstore as hs  # noqa: E402
from benchmarks.suites import shuffle_bench, soak_hours  # noqa: E402


def test_keys_of_an_array_are_those_of_its_numbers() -> None:
    numbers = np.arange(5000, dtype=np.int64)
    keys = [soak_hours.keys_of(number, 700) for number in range(5000)]
    assert soak_hours.keys_of(numbers, 700).tolist() == keys
    assert len(set(keys)) > 500
    below = sum(key < 350 for key in keys)
    assert 0.7 < below / len(keys) < 0.8


def test_what_grows_is_named() -> None:
    flat = [{"memory MB": 10.0, "files": 5.0}] * 4
    assert soak_hours.verdict("plain", flat) == []
    grown = [*flat[:3], {"memory MB": 13.0, "files": 5.0}]
    assert soak_hours.verdict("plain", grown) == ["plain: memory MB 10 -> 13"]


def test_files_are_counted_for_each_shard_that_counts(tmp_path: Path) -> None:
    job = soak_hours.Job(str(tmp_path / "state"), Namespace(keys=50, rate=100_000, limit=1_000_000), 1, {})
    job.settle()
    job.shards, job.begun = 4, True
    hs.rescale(tmp_path / "state", shards=4, routes={"counts": "key"})
    job.settle()
    files = sum(path.is_file() for path in (tmp_path / "state" / "000001").rglob("*"))
    assert 4 * job.files() == files < sum(path.is_file() for path in tmp_path.rglob("*"))


def test_a_job_that_is_silent_is_told_from_a_job_that_is_kept_from_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = soak_hours.Job(str(tmp_path / "state"), Namespace(), 1, {})
    program = "print('[1, 2.0]', flush=True); import threading; threading.Event().wait()"

    def command(most: int) -> list[str]:
        return [sys.executable, "-X", "faulthandler", "-c", program]

    monkeypatch.setattr(job, "command", command)
    monkeypatch.setattr(soak_hours, "SILENT", 1e-9)
    monkeypatch.setattr(soak_hours, "waits", lambda pid: {"1": math.inf})
    job.run(0)
    assert job.done["kills"] == len(job.restarts) == 1
    monkeypatch.setattr(soak_hours, "waits", lambda pid: {})
    with pytest.raises(SystemExit, match="WRONG: the job has not committed for"):
        job.settle()
    # and what it writes besides is no reason to wait
    program = "import sys; sys.stderr.write(10**6 * 'x'); sys.exit(3)"
    monkeypatch.setattr(soak_hours, "SILENT", math.inf)
    with pytest.raises(SystemExit, match="WRONG: the job ended: xxx"):
        job.run(0)


def test_waits_for_a_processor_are_read() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not tell")
    assert str(os.getpid()) in soak_hours.waits(os.getpid())


@pytest.mark.parametrize("failures", [0, 2, 4])
def test_a_query_that_fails_behind_the_last_file_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failures: int
) -> None:
    errors = pytest.importorskip("pyspark.errors")
    from benchmarks.suites import soak_spark

    class Query:
        def __init__(self, number: int) -> None:
            self.number, self.stopped = number, False

        def processAllAvailable(self) -> None:
            if self.number < failures:
                raise errors.StreamingQueryException("a worker was killed")

        def exception(self) -> str:
            return f"failure {self.number}"

        def stop(self) -> None:
            self.stopped = True

    soak = soak_spark.Soak(tmp_path, Namespace(seed=1), None)
    queries = [Query(0)]

    def started(*form: Any) -> Query:
        queries.append(Query(len(queries)))
        return queries[-1]

    monkeypatch.setattr(soak, "started", started)
    if failures > soak_spark.FAILURES:
        with pytest.raises(SystemExit, match="the query failed 4 times"):
            soak.finished(queries[0], 4, False)
    else:
        soak.finished(queries[0], 4, False)
        assert [query.stopped for query in queries] == [False] * failures + [True]
    printed = capsys.readouterr().out
    assert all(f"failure {number}" in printed for number in range(failures))


def test_one_record_in_five_meets_a_rule() -> None:
    rules = Counter(shuffle_bench.rule_of(number) for number in range(100_000))
    assert rules.pop(None) == pytest.approx(80_000, rel=0.02)
    assert len(rules) == shuffle_bench.RULES


def test_outputs_of_a_run_that_is_continued_are_complete_and_single(tmp_path: Path) -> None:
    for most in (30_000, 61_000):
        shuffle_bench.plain(str(tmp_path), 0, 0, most)
    lines = [json.loads(text) for text in (tmp_path / "outputs.jsonl").read_text(encoding="utf-8").splitlines()]
    outputs = Counter((rule, n) for _, _, part in lines for rule, n, _ in part)
    totals = Counter(rule for number in range(61_000) if (rule := shuffle_bench.rule_of(number)) is not None)
    assert outputs == Counter((rule, n) for rule, total in totals.items() for n in range(10, total + 1, 10))


def test_outputs_that_are_lost_or_double_are_counted() -> None:
    totals = Counter({1: 35, 2: 9})
    outputs = Counter([(1, 10), (1, 20), (1, 30)])
    assert shuffle_bench.wrong_outputs(outputs, totals) == (0, 0)
    assert shuffle_bench.wrong_outputs(outputs + Counter([(1, 20), (2, 10)]), totals) == (0, 2)
    assert shuffle_bench.wrong_outputs(outputs - Counter([(1, 20)]), totals) == (1, 0)


@pytest.mark.parametrize("name", ["native", "flink"])
def test_outputs_of_engines_that_read_files_are_read_once_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(shuffle_bench.Engine, "start", lambda self: setattr(self, "process", None))
    query = shuffle_bench.Engine(tmp_path / "run", name, "worker")
    sink = tmp_path / "run" / "out"

    def write(batch: int, rows: list[list[int]]) -> None:
        if name == "native":
            (sink / str(batch)).write_text(json.dumps([batch, 7.5 + batch, rows]), encoding="utf-8")
        else:
            text = "".join(f"{rule},{n},{i},abc\n" for rule, n, i in rows)
            (sink / f"part-{batch}").write_text(text, encoding="utf-8")
            (sink / f".part-{batch + 1}.inprogress").write_text("1,", encoding="utf-8")

    for batch in range(2):
        query.show(query.write(30_000))
        records = [json.loads(text) for text in (tmp_path / f"run/in/{batch:06}.json").read_text().splitlines()]
        assert [shuffle_bench.rule_of(record["i"]) for record in records] == [record["rule"] for record in records]
        assert {len(record["data"]) for record in records} == {1024}
        before, after = (shuffle_bench.totals_of(30_000 * part) for part in (batch, batch + 1))
        if name == "native":
            rows = [[rule, n, 5] for rule, n in after.items()]
        else:
            rows = [[rule, n, 5] for rule in after for n in range(10, after[rule] + 1, 10) if n > before[rule]]
        assert query.wrong()[0] > 0
        write(batch, rows[1:])
        assert query.wrong()[1] == 0 < query.wrong()[0]
        write(batch + 10, rows[:1])
        assert query.wrong() == (0, 0)
    assert len(query.outputs()) == 4
    write(20, [[1, 10**6, 5]])
    assert query.wrong()[1] > 0


def test_latency_is_back_where_no_late_window_follows_for_a_while() -> None:
    before = [(moment / 10, 0.01) for moment in range(100)]
    behind = [(12.0, 2.0), (12.4, 1.6), (12.9, 0.3), *((moment / 10 + 0.05, 0.01) for moment in range(130, 300))]

    def judge(*more: tuple[float, float]) -> shuffle_bench.Outcome:
        return shuffle_bench.judge("plain", "process", 100, [*before, *more], 10.0, 0.005)

    outcome = judge(*behind)
    assert (outcome.p50, outcome.p95) == (10, 10)
    assert (outcome.first, outcome.peak) == (2.0, 2000)
    assert outcome.back == pytest.approx(2.9)
    assert (outcome.late_before, outcome.late_again) == (0, 0)
    # a window that is late much later is told by itself; one that comes soon belongs to the catching up
    assert judge(*behind, (20.06, 0.5))[-5:] == pytest.approx((2.9, 0, 1 / 170, 0, 0))
    assert judge(*behind, (16.06, 0.5)).back == pytest.approx(6.06)
    # neither silence nor the end of the measurement is calm
    assert judge((10.0, 0.5), (19.0, 9), *((moment / 10 + 0.05, 0.01) for moment in range(191, 300))).back == 9
    assert judge(*behind[:40]).back == float("inf")
    assert judge().back == float("inf")
    assert judge((10.1, 0.01), (16.0, 0.01)).back == pytest.approx(0.1)


def test_repeats_of_a_kill_are_medians_and_a_repeat_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import commands, pages, raw

    backs = iter([0.4, None, 7.0, 0.5])

    def kill(folder: Path, rate: float, asked: Namespace) -> shuffle_bench.Outcome:
        back = next(backs)
        if back is None:
            raise shuffle_bench.FailedError("no record for 30 s behind the kill")
        return shuffle_bench.Outcome("plain", "process", rate, 1, 2, 3, 400, 0.3, back, 0, 0.5, int(back), 0)

    monkeypatch.setattr(shuffle_bench, "sustained_by", lambda folder, engine, most: 2000.0)
    monkeypatch.setattr(shuffle_bench, "kill_plain", kill)
    first = shuffle_bench.measure(tmp_path, "plain", "process", runs=3)
    assert first.notes == ["ShuffleBench, plain, process, repeat 2 failed: no record for 30 s behind the kill"]
    back, lost = (first.find(f"plain, process killed: {what}") for what in ("p95 back", "lost"))
    assert (back.value, back.low, back.high, back.met) == (3.7, 0.4, 7.0, False)
    assert (lost.value, lost.met) == (7, False)
    assert first.find("plain, process killed: load").value == 1000
    assert (first.settings["repeats"], first.settings["sustained"]) == (2, "2,000 records/s")
    second = shuffle_bench.measure(tmp_path, "plain", "process", runs=1, rate=900)
    # on the page the repeats of a day are together
    head = {"machine": {"commit": "abc", "load_average": 0.0, "processor": "one"}, "started": "", "full": True}
    for name, result in (("2026-01-01T1", first), ("2026-01-02T1", first), ("2026-01-02T2", second)):
        text = "".join(json.dumps(each) + "\n" for each in (head | {"started": name}, result.to_json()))
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    ((of, both),) = raw.carried(tmp_path / "2026-01-01T0.jsonl", [])
    assert (of["started"], both.settings["repeats"]) == ("2026-01-02T2", 3)
    assert both.find("plain, process killed: p95 back").value == pytest.approx(2.1)
    assert both.find("plain, process killed: lost").value == 7
    other = shuffle_bench.Outcome("native", "driver", 9, 1, 2, 3, math.inf, math.inf, math.inf, 0, 0, 0, 0)
    never = raw.Result("shuffle bench", {"work": "native, driver"}, shuffle_bench.lines_of([other]))
    table = pages.subjects_table(both, never).splitlines()
    assert table[2].startswith("| plain, process killed | 950 records/s (900 - 1,000) | 1.00 ms |")
    assert "2.10 s (0.40 - 7.00) (≤ 1 s: missed)" in table[2]
    assert table[3].startswith("| Spark's own, driver killed | 9.00 records/s |")
    assert "| ∞ s |" in table[3]
    backs = iter([7.0, 0.9, None])
    words = ["shuffle", "--engines", "plain", "--runs", "1", "--folder", str(tmp_path)]
    assert [commands.run(words) for _ in range(2)] == [1, 0]
    with pytest.raises(RuntimeError, match="repeat 1 failed"):
        shuffle_bench.measure(tmp_path, "plain", "process", runs=1)
