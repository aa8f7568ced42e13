"""A plain topology of several shards is one location for every command: a key is looked up in its shard."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run

USERS = [f"u{i}" for i in range(12)]


def topology() -> Any:
    return hs.stream(key="user", timestamp="ts").aggregate(n=hs.Count(), total=hs.Sum("bytes"))


def rows(count: int) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"user": USERS[i * 7 % 12], "ts": i, "bytes": i}


@pytest.fixture(params=[2, 3])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A state of several shards; where they are three, they come from a rescale."""
    place, shards = str(tmp_path / "s"), request.param
    list(topology().run(rows(40), place, shards=2, commit_rows=10))
    if shards == 3:
        assert run(["rescale", place, "--shards", "3"]) == 0
    list(topology().run(rows(60), place, shards=shards, commit_rows=10))
    return place


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    """Return the rows that a command of `inspect` prints."""
    capsys.readouterr()
    assert run(["inspect", *words]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def name_of_store(location: str) -> str:
    return next(name for name in hs.inspect(location).shards["0"] if "last commits" not in name)


def test_a_key_is_found_in_its_shard_and_in_no_other(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    state, store = hs.inspect(location), name_of_store(location)
    for user in USERS:
        (row,) = asked(capsys, "get", location, store, user)
        assert [record.value for record in state.shards[row["shard"]][store] if record.key == user] != []
        history = asked(capsys, "history", location, store, user)
        assert {each["shard"] for each in history} <= {row["shard"]}
        assert asked(capsys, "get", location, store, user, "--shard", row["shard"])[0]["value"] == row["value"]
        other = str((int(row["shard"]) + 1) % len(state.shards))
        assert asked(capsys, "get", location, store, user, "--shard", other, code=1) == []


def test_scan_and_keys_have_every_record_once(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = name_of_store(location)
    assert sorted(row["key"] for row in asked(capsys, "scan", location, store)) == sorted(USERS)
    assert sorted(row["key"] for row in asked(capsys, "keys", location, store)) == sorted(USERS)


def test_a_version_is_that_of_one_commit_in_every_shard(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = name_of_store(location)
    newest = hs.inspect(location).shards["0"].version
    before = asked(capsys, "scan", location, store, "--at", str(newest - 2))
    # each commit is of 10 rows, which add the numbers from 0 on
    totals = sum(row["value"][0] for row in before)
    assert totals % 10 == 0
    assert totals < sum(row["value"][0] for row in asked(capsys, "scan", location, store))


@pytest.mark.parametrize(
    "command",
    ["info", "list", "stat", "versions", "restart", "verify", "log", "metrics", "watch --count 1 --interval 0.05"],
)
def test_every_command_tells_of_all_shards(location: str, capsys: pytest.CaptureFixture[str], command: str) -> None:
    name, *more = command.split()
    capsys.readouterr()
    assert run(["inspect", name, location, *more, *(["-o", "jsonl"] if name == "metrics" else [])]) == 0
    out, _ = capsys.readouterr()
    if name == "verify":
        return
    assert {str(json.loads(line)["shard"]) for line in out.splitlines()} == set(hs.inspect(location).shards)
    capsys.readouterr()
    assert run(["inspect", "info", location, "-o", "table"]) == 0
    assert "operator" not in capsys.readouterr().out


def test_what_takes_one_shard_says_how_to_choose_it(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "a.zip")
    capsys.readouterr()
    assert run(["inspect", "pack", location, "--to", to]) == 2
    assert "expected one to pack (choose it with --shard)" in capsys.readouterr().err
    assert run(["inspect", "pack", location, "--shard", "1", "--to", to]) == 0
    assert run(["inspect", "info", to]) == 0
    capsys.readouterr()
    assert run(["inspect", "get", location, "x", "u1", "--shard", "7"]) == 2
    assert "no shard 7 (known: 0, 1" in capsys.readouterr().err
