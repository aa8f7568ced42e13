"""The options and exit codes that are promised: each command has those that fit it, and each does what it says."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import GROUPS, command_parser, run

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
KEYS = {"--from", "--to", "--prefix", "--limit", "--reverse", "--count-only"}
WINDOWS = {"--time-from", "--time-to"}
# What each command must have; all have --debug, and --shard where there may be several.
EXPECTED: dict[str, set[str]] = {
    "info": {"--at", "--iso", "-o"},
    "list": {"--stores", "--checkpoints", "--logs", "--iso", "-o"},
    "stat": {"--at", "--top", "--by-age", "--histogram", "--iso", "--no-progress", "-o"},
    "keys": KEYS | {"--at", "-o"},
    "waiting": KEYS | {"--input", "--alone", "--at", "--iso", "-o"},
    "get": WINDOWS | {"--at", "--iso", "-o"},
    "scan": KEYS | WINDOWS | {"--keys-only", "--at", "--iso", "-o"},
    "history": {"--since", "--until", "--limit", "--iso", "-o"},
    "log": {"--follow", "--from-version", "--to-version", "--store", "--op", "--since", "--until", "--limit", "-o"},
    "diff": {"--summary", "--store", "--limit", "--iso", "-o"},
    "verify": {"--quick", "--full", "--no-progress", "-o"},
    "restart": {"--at", "-o"},
    "versions": {"-o"},
    "upgrade": {"--program", "--operator", "--allow", "-o"},
    "export": {"--to", "--redact", "--guard-formulas", "--at", "--no-progress", "-o"},
    "repair": {"--to", "--write", "-o"},
    "compact": {"--to", "--write", "--at"},
    "pack": {"--to", "--no-progress"},
    "report": {"-o", "--no-progress"},
    "watch": {"--interval", "--count", "-o"},
    "metrics": {"-o"},
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with hs.open(path) as s:
        names, clicks = s.key_value("names"), s.window("clicks", retention="1 hour")
        for i in range(30):
            names.put(f"{'ab'[i % 2]}{i:02d}", {"n": i, "text": "wide " * 30})
            clicks.put(f"u{i % 3}", i, i * 1000)
            if i % 10 == 9:
                s.commit()
        s.checkpoint(wait=True)
        names.put("a00", "later")
        s.commit()
    return path


def rows(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    assert run(["inspect", *map(str, arguments), "-o", "jsonl"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_command_has_the_options_that_are_promised() -> None:
    assert EXPECTED.keys() == GROUPS["inspect"].commands.keys()
    for command, expected in EXPECTED.items():
        names = {*command_parser("inspect", command)[1].options()}
        assert expected | {"--debug", "--shard", "--help"} <= names, command


def test_bounds_and_counts_of_scan_and_keys(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def keys(*options: object) -> list[str]:
        return [row["key"] for row in rows(capsys, "scan", state, "names", *options)]

    assert keys("--prefix", "b0") == ["b01", "b03", "b05", "b07", "b09"]
    assert keys("--prefix", "b0", "--reverse", "--limit", 2) == ["b09", "b07"]
    assert keys("--from", "a10", "--to", "a14") == ["a10", "a12", "a14"]
    assert keys("--from", "a10", "--to", "a14", "--at", 1) == []
    assert rows(capsys, "scan", state, "names", "--prefix", "a", "--count-only") == [{"store": "names", "records": 15}]
    assert rows(capsys, "keys", state, "clicks", "--count-only") == [{"keys": 3}]
    assert [row["key"] for row in rows(capsys, "keys", state, "clicks", "--from", "u1", "--reverse")] == ["u2", "u1"]
    assert all("value" not in row for row in rows(capsys, "scan", state, "names", "--keys-only"))
    times = [row["ts"] for row in rows(capsys, "scan", state, "clicks", "--time-from", 5000, "--time-to", 9000)]
    assert times == [5000, 6000, 7000, 8000, 9000]
    assert [row["ts"] for row in rows(capsys, "get", state, "clicks", "u0", "--time-to", "1970-01-01T00:00:03")] == [
        0,
        3000,
    ]
    assert rows(capsys, "scan", state, "clicks", "--limit", 1, "--iso")[0]["ts"] == "1970-01-01T00:00:00.000Z"


def test_history_and_log_take_times(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["op"] for row in rows(capsys, "history", state, "names", "a00")] == ["put", "put"]
    assert rows(capsys, "history", state, "names", "a00", "--until", "1999-01-01", code=1) == []
    assert len(rows(capsys, "history", state, "names", "a00", "--limit", 1)) == 1
    assert [row["version"] for row in rows(capsys, "log", state, "--commits", "--since", "1999-01-01")] == [1, 2, 3, 4]
    assert rows(capsys, "log", state, "--from-version", 4)[0]["value"] == "later"


def test_history_takes_a_key_in_the_forms_that_get_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where null is a key, and in a processor of Spark's, a store has the text of a key in place of the key."""
    counted = hs.stream(key="user", timestamp="ts", null_keys="group").windowed_by(hs.TumblingWindows(10))
    list(counted.aggregate(n=hs.Count()).run([{"user": user, "ts": 1} for user in ("ann", None)], tmp_path / "s"))
    for key in ("ann", "json:null"):
        assert len(rows(capsys, "get", tmp_path / "s", "windows", key)) == 1
        assert [row["op"] for row in rows(capsys, "history", tmp_path / "s", "windows", key)] == ["put"]


def test_follow_shows_what_is_committed_later_and_ends_with_an_interrupt(state: Path) -> None:
    command = [sys.executable, "-m", "hybridstore", "inspect", "log", str(state), "--from-version", "4", "--follow"]
    with subprocess.Popen(
        [*command, "-o", "jsonl"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert json.loads(follower.stdout.readline())["value"] == "later"
        with hs.open(state) as s:
            s.key_value("names").put("a00", "now")
            s.commit()
        assert json.loads(follower.stdout.readline())["value"] == "now"
        follower.send_signal(signal.SIGINT)
        assert b"Traceback" not in follower.stderr.read()
    assert follower.returncode == 130


def test_exit_codes(state: Path, tmp_path: Path) -> None:
    def code(*arguments: object) -> int:
        return run(["inspect", *map(str, arguments)])

    assert [code("get", state, "names", key) for key in ("a00", "nobody")] == [0, 1]
    assert [code("diff", f"{state}@4", f"@{version}") for version in (4, 3)] == [0, 1]
    assert code("diff", f"{state}@4", "@99") == 3
    assert [code("verify", state), code("scan", state, "--limit", "many"), code("info", tmp_path / "none")] == [0, 2, 3]
    segment = max((state / "changelog").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[raw.rindex(b"later")] ^= 1
    segment.write_bytes(raw)
    assert code("verify", state) == 1
    assert code("scan", state) == 4


@pytest.mark.parametrize(
    "command", [name for name in GROUPS["inspect"].commands if name not in ("pack", "report", "export")]
)
def test_every_table_fits_80_columns(
    state: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    more: dict[str, list[str]] = {
        "get": ["names", "a02"],
        "keys": ["names"],
        "history": ["names", "a00"],
        "diff": ["@3"],
        "stat": ["--top", "3", "--by-age", "--histogram"],
        "watch": ["--interval", "0.05", "--count", "1"],
        "upgrade": ["--program", f"{__name__}:TOPOLOGY"],
    }
    how = [] if command == "compact" else ["-o", "table"]
    assert run(["inspect", command, str(state), *more.get(command, []), *how]) in (0, 1)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()), default=0) <= 80


@pytest.mark.parametrize("command", ["scan", "log", "keys", "export"])
def test_a_pipe_that_is_closed_is_quiet(state: Path, command: str) -> None:
    with hs.open(state) as s:
        s.key_value("names").put_columns([f"k{i}" for i in range(20_000)], ["x" * 20] * 20_000)
        s.commit()
    more = ["names"] if command in ("scan", "keys") else []
    line = [sys.executable, "-m", "hybridstore", "inspect", command, str(state), *more]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("inspect sc", ["scan"]),
        ("inspect verify --f", ["--full"]),
        ("ben", ["bench"]),
        ("bench restore --rec", ["--records"]),
        ("inspect info ", []),
        ("inspect nothing --", []),
    ],
)
def test_bash_completes_once_it_is_taught(words: str, offered: list[str], tmp_path: Path) -> None:
    line = f"hybridstore {words}"
    program = tmp_path / "hybridstore"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hybridstore "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(hybridstore --completion)"
        COMP_WORDS=($LINE "${EMPTY[@]}") COMP_CWORD=$PLACE
        _hybridstore
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    answer = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LINE": line, "PLACE": str(line.count(" "))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == offered


def test_the_shell_can_be_taught(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert 'eval "$(hybridstore --completion)"' in " ".join(capsys.readouterr().out.split())
