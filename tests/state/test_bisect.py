"""`hybridstore bisect`: the first bad version of a key, in log2(versions) + 1 reads."""

from __future__ import annotations

import json
import random
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.inspection.api import InspectedState
from hybridstore.inspection.options import UsageError
from hybridstore.rewinding.predicate import expression
from hybridstore.state.opening import Tuning
from tests.state.test_rewind import SMALL
from tests.tools.checkpoints import flip
from tests.tools.shard_tools import OFTEN, provider, write

NEVER = hs.CheckpointPolicy(every_commits=None)


def counted(path: Path, values: list[int], checkpoints: tuple[int, ...] = (), tuning: Tuning = SMALL) -> None:
    """Commit a value of `ann` after the other."""
    with hs.open(path, checkpoints=NEVER, _tuning=tuning) as state:
        for value in values:
            state.key_value("totals")["ann"] = value
            state.key_value("totals")["bob"] = 1
            if state.commit() in checkpoints:
                state.checkpoint(wait=True)


def commits_of(path: Path) -> list[Any]:
    state = hs.inspect(path)
    assert isinstance(state, InspectedState)
    return state.versions


@pytest.mark.parametrize("seed", range(10))
def test_the_first_bad_version_is_found_in_few_reads(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    number = draw.randrange(2, 120)
    first = draw.randrange(2, number + 1)
    values = [draw.randrange(9) + 2 * version for version in range(first - 1)]
    counted(tmp_path, values + [-value for value in range(1, number - first + 2)], (number // 3,))
    answer = hs.bisect(tmp_path, "totals", "ann", "value < 0")
    retained = [commit.version for commit in commits_of(tmp_path)]
    assert answer.versions == len(retained)
    assert answer.reads <= ceil(log2(len(retained))) + 1
    assert answer.version == first
    if first in retained and first - 1 in retained:
        assert (answer.good, answer.before[0].value) == (first - 1, values[-1])
        assert answer.rows == [("ann", (), -1)]
        assert not answer.skipped
        (commit,) = [commit for commit in commits_of(tmp_path) if commit.version == first]
        assert answer.wall_ms == commit.wall_ms
    assert hs.bisect(tmp_path, "totals", "ann", lambda value: value < 0) == answer


def test_a_planted_bug_among_thousands_of_versions(tmp_path: Path) -> None:
    counted(tmp_path, [*range(3000), *range(-1, -1001, -1)], (), Tuning())
    answer = hs.bisect(tmp_path, "totals", "ann", "value < 0")
    assert (answer.version, answer.good, answer.versions) == (3001, 3000, 4000)
    assert answer.reads <= 13


def test_the_command_prints_the_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted(tmp_path, [4, 6, -1, -2])
    assert run(["bisect", str(tmp_path), "totals", "ann", "--bad", "value < 0"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row.pop("committed") == commits_of(tmp_path)[2].wall_ms
    assert row == {"version": 3, "before": 6, "value": -1, "good": 2, "versions": 4, "reads": 3}
    assert run(["bisect", str(tmp_path), "totals", "ann", "--bad", "value > 3"]) == 1
    assert "totals ann: not bad at version 4, the newest of 4" in capsys.readouterr().err
    assert run(["bisect", str(tmp_path), "totals", "ann", "--bad", "value < 9"]) == 1
    assert "bad at version 1 already, the oldest that can be read" in capsys.readouterr().err
    assert run(["bisect", str(tmp_path), "totals", "eve", "--bad", "value is None"]) == 1
    assert run(["bisect", str(tmp_path), "totals", "eve", "--bad", "value < 0"]) == 1
    for words, message in (
        (["nothing", "ann", "--bad", "value < 0"], "no store 'nothing' (known: totals)"),
        (["totals", "int:5", "--bad", "value < 0"], "found int, expected str"),
        (["totals", "ann"], "expected either --bad EXPRESSION or --predicate"),
        (["totals", "ann", "--bad", "value['n'] < 0"], "version 4, value -2: TypeError"),
        (["totals", "ann", "--predicate", "nothing.py:f"], "expected FILE.py:FUNCTION"),
    ):
        assert run(["bisect", str(tmp_path), *words]) == 2, words
        assert message in capsys.readouterr().err
    (tmp_path / "empty" / "changelog").mkdir(parents=True)
    assert run(["bisect", str(tmp_path / "empty"), "totals", "ann", "--bad", "value < 0"]) == 3
    assert "empty: no version can be read, expected one" in capsys.readouterr().err


def test_a_predicate_may_be_a_function_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted(tmp_path / "s", [4, 6, -1, -2])
    (tmp_path / "bad.py").write_text("def negative(value):\n    return value < 0\n")
    assert run(["bisect", str(tmp_path / "s"), "totals", "ann", "--predicate", f"{tmp_path}/bad.py:negative"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 3
    assert run(["bisect", str(tmp_path / "s"), "totals", "ann", "--predicate", f"{tmp_path}/bad.py:other"]) == 2
    assert "found no function other in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("value < 0", -1, True),
        ("0 <= value < 5 and not value == 3", 4, True),
        ("value['n'] < 0 or len(value) > 1", {"n": 1}, False),
        ("'n' in value and value['n'][-1] == 7", {"n": [1, 7]}, True),
        ("'n' in value and value['n'] == 7", {}, False),
        ("value is None", None, True),
        ("value[1:] == [2] if len(value) > 1 else False", [1, 2], True),
        ("sum(value) / len(value) >= 2.5", [2, 3], True),
        ("abs(value) % 2 in (1, 3)", -3, True),
        ("max(value[0], 3) - min(2, 1) * 2 == +1", [1], True),
        ("(value or 10) > 5", None, True),
        ("(value and value['n']) > 3", {"n": 9}, True),
        ("(value and value['n'] or 0) > 3", {}, False),
        ("(0 or None) is None", 1, True),
    ],
)
def test_expressions(text: str, value: Any, expected: bool) -> None:
    assert bool(expression(text)(value)) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "value <",
        "other < 0",
        "value.real < 0",
        "__import__('os').system('true')",
        "().__class__.__bases__",
        "open('x')",
        "eval('1')",
        "getattr(value, 'x')",
        "[each for each in value]",
        "(lambda: 1)()",
        "9 ** 9 ** 9 ** 9",
        "1 << 99999999",
        "f'{value}'",
        "sorted(value, key=len)",
        "value := 3",
        "{**value}",
        "len.__self__",
        "(len)(*value)",
        "(" * 3000 + "value" + ")" * 3000,
    ],
)
def test_what_is_no_expression_over_the_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--bad: found "):
        expression(text)


def test_windows_may_be_chosen(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        clicks = state.window("clicks", retention="1 hour")
        for ts, value in ((1000, 1), (2000, -1), (3000, 1), (4000, -1)):
            clicks.put("ann", value, ts)
            state.commit()
    assert hs.bisect(tmp_path, "clicks", "ann", "value < 0").version == 2
    answer = hs.bisect(tmp_path, "clicks", "ann", "value < 0", time_from=2500)
    assert (answer.version, answer.rows) == (4, [("ann", (4000,), -1)])
    words = ["bisect", str(tmp_path), "clicks", "ann", "--bad", "value < 0", "--time-from", "2500", "--time-to", "3500"]
    assert run(words) == 1


def test_a_pin_is_a_version_and_a_gap_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    counted(path, [1, 2, 3, 4])
    hs.pin(path, "old", at=2)
    with hs.open(path, checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1), _tuning=SMALL) as state:
        for number in range(6):
            state.key_value("totals")["ann"] = -number
            state.key_value("totals")["filler"] = "x" * 3000
            state.commit()
            state.checkpoint(wait=True)
    oldest = min(commit.version for commit in commits_of(path))
    assert oldest > 6
    answer = hs.bisect(path, "totals", "ann", "value < 0")
    assert (answer.good, answer.version) == (2, oldest)
    assert list(answer.skipped) == list(range(3, oldest))
    assert run(["bisect", str(path), "totals", "ann", "--bad", "value < 0"]) == 0
    assert f"cannot be read: the first bad version is one of 3 to {oldest}" in capsys.readouterr().err


def test_a_version_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    counted(tmp_path, [*range(1, 30), *[-1] * 11], (20, 35))
    first = {int(path.stem): path for path in (tmp_path / "changelog").iterdir()}
    damaged = max(version for version in first if version <= 28)
    flip(first[damaged], 200)
    answer = hs.bisect(tmp_path, "totals", "ann", "value < 0")
    assert answer.version is not None
    assert answer.good is not None
    assert answer.good < 30 <= answer.version
    assert list(answer.skipped) == list(range(answer.good + 1, answer.version))
    assert not answer.skipped or answer.good < damaged <= answer.version


def test_the_program_and_the_shard_of_a_topology(tmp_path: Path) -> None:
    source = [{"k": f"{number % 5}", "ts": number} for number in range(400)]
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(1000)).aggregate(n=hs.Count())
    for _ in topology.run(source, tmp_path, shards=3, commit_rows=10):
        pass
    for key in "01234":
        answer = hs.bisect(tmp_path, "windows", key, "value > 3")
        assert (answer.program, answer.rows[0].key) == (1, key)
        assert answer.before[0].value <= 3 < answer.rows[0].value <= 5


def test_where_null_is_a_key_the_shard_is_that_of_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = [{"k": f"key-{number % 7}" if number % 9 else None, "ts": number} for number in range(400)]
    stream = hs.stream(key="k", timestamp="ts", null_keys="group")
    for _ in (
        stream.windowed_by(hs.TumblingWindows(1000))
        .aggregate(n=hs.Count())
        .run(source, tmp_path, shards=4, commit_rows=50)
    ):
        pass
    for key in ("json:null", *(f"key-{number}" for number in range(7))):
        assert run(["bisect", str(tmp_path), "windows", key, "--bad", "value and value > 20"]) == 0, key
        assert json.loads(capsys.readouterr().out)["before"] <= 20
    assert run(["bisect", str(tmp_path), "windows", "key-9", "--bad", "value and value > 20"]) == 1


def test_an_expression_that_no_value_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("totals")["bob"] = 1
        state.commit()
        state.key_value("totals")["ann"] = 5
        state.commit()
    assert run(["bisect", str(tmp_path), "totals", "ann", "--bad", "int(str(value)) > 3"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 2
    assert run(["bisect", str(tmp_path), "totals", "ann", "--bad", "1 / (value - 5) > 3"]) == 2
    assert run(["bisect", str(tmp_path), "totals", "ann", "--bad", "'a' * 999999999999999 == value"]) == 2
    assert "value 5: MemoryError" in capsys.readouterr().err


def test_a_shard_of_a_spark_query(tmp_path: Path) -> None:
    shard = provider(tmp_path, policy=OFTEN)
    for version in range(8):
        write(shard, version, a=version, b=1)
    row = hs.bisect(tmp_path, "default", "a", "value >= 5")
    assert (row.version, row.good) == (6, 5)
