"""A state on an object store is looked into where it is: only what is needed is read, and nothing is written there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from changelog.cloud_storage import CloudStorage
from changelog.storage import LocalStorage
from hybridstore.cli import run
from hybridstore.errors import ForeignFileError
from hybridstore.inspection.api import InspectedShards, InspectedState
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import agree_on_description, operator_storage
from hybridstore.spark.shard.provider import SHARD_SIZES, StateStoreProvider
from hybridstore.spark.shard.shard import Shard
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.opening import Tuning
from hybridstore.state.policy import CheckpointPolicy, Logged
from recovery.errors import RestoreError
from tests.tools.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 6000
SECRET = "SECRET-OF-THE-TEST"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)


@pytest.fixture(scope="module")
def state(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a state whose checkpoint has many blocks, with two versions behind it."""
    url = server.url("state")
    cache = tmp_path_factory.mktemp("cache")
    never = hs.CheckpointPolicy(every_commits=None)
    tuning = Tuning(block_records=32)
    with hs.open(server.bucket("state", cache), checkpoints=never, _tuning=tuning) as state:
        names, clicks = state.key_value("names"), state.window("clicks", retention=10_000_000)
        for number in range(RECORDS):
            names.put(f"k{number:05d}", os.urandom(16).hex())
            clicks.put(f"c{number % 100:03d}", number, ts=number * 10)
        state.commit()
        state.checkpoint(wait=True)
        names.put("k00007", "changed")
        state.commit()
        names.put("alice", 1)
        state.commit()
    return url


def size_of(server: S3Server, url: str) -> int:
    storage = CloudStorage(url, server.options)
    return sum(storage.size(name) for name in storage.list())


def rows(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    assert run(["inspect", *words, "-o", "jsonl"]) == code, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_command_reads_what_it_needs_and_writes_nothing(
    server: S3Server, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = CloudStorage(state, server.options)
    before, whole = storage.list(), size_of(server, state)

    def share(*words: str) -> float:
        server.reset()
        assert run(["inspect", *words]) == 0
        assert set(server.count) <= {"get", "head", "list"}
        return server.bytes_sent / whole

    # The index of a checkpoint is two pages of LMDB, and a list has some 300 bytes a name.
    assert share("info", state, "-o", "jsonl") < 0.1
    assert share("get", state, "names", "k03000", "-o", "jsonl") < 0.12
    assert share("scan", state, "names", "--prefix", "k0300", "-o", "jsonl") < 0.12
    assert share("scan", state, "names", "--from", "k01000", "--to", "k01999", "-o", "jsonl") < 0.3
    # Half of this state is its changelog, which `verify` reads once, and `report` twice: for versions, and for keys.
    assert share("verify", state, "--quick") < 0.8
    assert share("report", state, "--to", str(tmp_path / "page.html"), "--sample", "20") < 1.4
    assert share("scan", state, "clicks", "-o", "jsonl") < 1
    # Everything, and what is read ahead and not used.
    assert share("verify", state) < 1.6
    assert storage.list() == before
    assert SECRET not in (tmp_path / "page.html").read_text()
    assert SECRET not in capsys.readouterr().err


def test_commands_say_of_a_url_what_they_say_of_a_directory(
    server: S3Server, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, copy = CloudStorage(state, server.options), tmp_path / "state"
    for name in storage.list():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(storage.get(name))
    for words in (
        ("get", "names", "k00007"),
        ("get", "names", "k00007", "--at", "2"),
        ("get", "clicks", "c001"),
        ("scan", "names", "--from", "a", "--to", "k00020"),
        ("scan", "clicks", "--time-from", "5000", "--time-to", "6000"),
        ("keys", "names"),
        ("list", "--logs"),
        ("list", "--checkpoints"),
        ("log",),
        ("history", "names", "k00007"),
        ("stat", "--top", "3"),
        ("verify",),
    ):
        here, there = rows(capsys, words[0], str(copy), *words[1:]), rows(capsys, words[0], state, *words[1:])
        assert there == here, words
    assert rows(capsys, "diff", f"{state}@2", "@4", code=1) == rows(capsys, "diff", f"{copy}@2", "@4", code=1)
    assert rows(capsys, "diff", state, str(copy)) == []
    view = hs.inspect(server.bucket("state"))
    assert isinstance(view, InspectedState)
    assert [record.value for record in view["names"].get("alice")] == [1]
    assert len(view["clicks"]) == RECORDS


def test_a_copied_directory_is_looked_into_by_its_segments(
    server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state"
    with hs.open(path) as opened:
        names = opened.key_value("names")
        for number in range(8):
            names.put("alice", number)
            opened.commit()
            if number == 3:
                opened.checkpoint(wait=True)
    storage = CloudStorage(server.url("uploaded"), server.options)
    for file in path.rglob("*"):
        if file.is_file():
            storage.create(file.relative_to(path).as_posix(), file.read_bytes())
    for version in (2, 4, 6, 8):
        assert rows(capsys, "get", storage.url, "names", "alice", "--at", str(version))[0]["value"] == version - 1
    assert rows(capsys, "verify", storage.url) == []


def test_pack_repair_and_compact_take_and_give_urls(
    server: S3Server, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "pack", state, "--to", str(tmp_path / "state.zip")]) == 0
    assert run(["inspect", "pack", str(tmp_path / "state.zip"), "--to", server.url("packed/state.zip")]) == 0
    assert run(["inspect", "pack", state, "--to", server.url("packed/state.zip")]) == 3, "it is there already"
    capsys.readouterr()
    for archive in (str(tmp_path / "state.zip"), server.url("packed/state.zip")):
        assert rows(capsys, "get", archive, "names", "alice") == [{"key": "alice", "value": 1}]
    assert rows(capsys, "verify", server.url("packed/state.zip")) == []
    mended = server.url("mended")
    assert run(["inspect", "repair", state, "--to", mended, "--write"]) == 0
    assert run(["inspect", "compact", mended, "--to", str(tmp_path / "compact"), "--write"]) == 0
    assert run(["inspect", "repair", str(tmp_path / "compact"), "--to", server.url("again"), "--write"]) == 0
    assert run(["inspect", "repair", state, "--to", mended, "--write"]) == 3, "never over anything"
    capsys.readouterr()
    for copy in (mended, str(tmp_path / "compact"), server.url("again")):
        assert rows(capsys, "diff", state, copy) == []
        assert rows(capsys, "verify", copy) == []
    # What was written to an object store opens, and goes on.
    with hs.open(server.bucket("again", tmp_path / "cache")) as opened:
        opened.stores["names"].put("bob", 2)
        opened.commit()
        assert opened.stores["names"].get("alice") == 1
    assert rows(capsys, "get", server.url("again"), "names", "bob") == [{"key": "bob", "value": 2}]


def test_what_is_damaged_on_an_object_store_is_named(
    server: S3Server, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, damaged = CloudStorage(state, server.options), CloudStorage(server.url("damaged"), server.options)
    for name in storage.list():
        data = storage.get(name)
        if name.startswith("packs/"):
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        damaged.create(name, data)
    assert rows(capsys, "verify", damaged.url, code=1)
    damaged.delete([name for name in damaged.list() if name.startswith("packs/")])
    assert run(["inspect", "info", damaged.url]) == 0
    assert "passed over" in capsys.readouterr().err
    newest = damaged.list("changelog/")[-2]
    damaged.delete([newest])
    assert run(["inspect", "info", damaged.url]) == 4
    assert "missing" in capsys.readouterr().err


def test_shards_on_an_object_store(
    server: S3Server, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards of two operators, with checkpoints; of one shard only its own objects are read."""
    folder = tmp_path / "query"
    for operator in ("first", "second"):
        storage = operator_storage(folder, operator)
        agree_on_description(storage, {"query_id": "", "shards": 2}, 0)
        launched = begin(storage, 0)
        for shard in range(2):
            often = CheckpointPolicy(every_commits=4)
            provider = StateStoreProvider(StateStoreId(str(folder), operator, shard), claim=launched, policy=often)
            for batch in range(10):
                store = provider.get_store(batch)
                store.key_value("sums").put(f"k{batch}", [batch, shard])
                store.key_value("texts").put(batch, "text" * 1000)  # so that lists of names are few of the bytes
                store.commit()
                provider.maintain(wait=True)
    bucket = CloudStorage(server.url("query"), server.options)
    bucket.create("offsets/0", b"Spark's")
    for file in folder.rglob("*"):
        if file.is_file():
            bucket.create(file.relative_to(folder).as_posix(), file.read_bytes())
    for words in (("info",), ("scan", "sums"), ("verify",), ("history", "sums", "k9"), ("list", "--logs"), ("stat",)):
        here, there = rows(capsys, words[0], str(folder), *words[1:]), rows(capsys, words[0], bucket.url, *words[1:])
        for row in (*here, *there):
            row.pop("path", None)
            row.pop("estimated_restore_ms", None)  # with requests, where there are some
        assert there == here, words
    server.reset()
    assert rows(capsys, "get", f"{bucket.url}/hybridstore/first/000000/000001", "sums", "k9")[0]["value"] == [9, 1]
    read, whole = server.bytes_sent, size_of(server, bucket.url)
    assert read < whole / 3
    look = hs.inspect(bucket.url)
    assert isinstance(look, InspectedShards)
    states = look.shards
    assert list(states) == ["first/0", "first/1", "second/0", "second/1"]
    assert states["second/1"].version == 10
    with look.follow("first") as followed:
        assert (followed.version, [row[0] for row in followed.get("sums", "k9")]) == (10, ["k9"])
    view = hs.inspect(state)
    assert isinstance(view, InspectedState)
    with view.follow() as followed, hs.open(server.bucket("state")) as writer:
        writer.key_value("later")["k"] = 1
        writer.commit()
        assert followed.refresh()
        assert (followed.version, followed.get("later", "k")[0].value) == (writer.version, 1)
        assert not followed.refresh()
    assert run(["inspect", "pack", bucket.url, "--to", str(tmp_path / "all.zip")]) == 0
    assert len(rows(capsys, "scan", str(tmp_path / "all.zip"), "sums")) == 40
    shutil.rmtree(folder)


def test_a_file_on_an_object_store(server: S3Server, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = CloudStorage(state, server.options).list()
    (index,) = [name for name in names if name.endswith(".lmdb")]
    assert rows(capsys, "info", f"{state}/{index}")[0]["checkpoint"] == 2
    segment = [name for name in names if name.endswith(".log")][-1]
    assert rows(capsys, "log", f"{state}/{segment}")


def test_the_estimate_of_a_restart_counts_the_requests(
    server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.url("requests")
    never = hs.CheckpointPolicy(max_restore="1 hour")
    with hs.open(server.bucket("requests", tmp_path), checkpoints=never) as state:
        for number in range(160):
            state.key_value("names")["a"] = number
            state.commit()
        estimate_ms = state.metrics().restore_estimate_ms
    steps = {row["step"]: row for row in rows(capsys, "restart", url)}
    versions = state.version  # the first one claimed the state
    assert steps["requests"]["detail"].startswith(f"{versions} objects ")
    # 16 at a time, a request of 20 ms each
    assert steps["requests"]["estimate_ms"] == pytest.approx(versions * 20 / 16, abs=0.1)
    parts = sum(steps[step]["estimate_ms"] for step in ("replay", "requests"))
    assert steps["serve"]["estimate_ms"] >= round(parts, 1) > 200
    assert rows(capsys, "info", url)[0]["estimated_restore_ms"] > 200 < estimate_ms
    assert rows(capsys, "metrics", url)[0]["restore_estimate_ms"] > 200
    assert rows(capsys, "watch", url, "--count", "1", "--interval", "0.05")[0]["restart_ms"] > 200


def test_shards_count_the_requests_of_a_restart_on_an_object_store(server: S3Server, tmp_path: Path) -> None:
    far, near = (
        Shard(storage, CheckpointPolicy(), SHARD_SIZES).checkpoints
        for storage in (CloudStorage(server.url("shard"), server.options), LocalStorage(tmp_path))
    )
    logged = Logged(commits=160)
    assert far.estimate(logged) - near.estimate(logged) == pytest.approx(160 * 0.02 / 16)


def test_a_restart_from_an_object_store_is_measured(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "restore", state, "--runs", "1", "-o", "jsonl"]) == 0
    phases = {row["phase"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert phases["open"]["median_ms"] > 0
    assert phases["first block"]["median_ms"] > 0


def test_nothing_below_a_url_is_named(server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ForeignFileError, match="found neither changelog/ nor checkpoints/ in it"):
        hs.inspect(server.url("none"))
    assert run(["inspect", "info", server.url("none")]) == 3
    assert run(["inspect", "info", server.url("none/1.log")]) == 3
    assert run(["inspect", "info", "hdfs://host/state"]) == 3
    capsys.readouterr()


def test_a_process_takes_credentials_from_the_environment(state: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "hybridstore", "inspect", "get", state, "names", "alice", "-o", "raw"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert answer.stdout == "1\n", answer.stderr


def test_a_state_on_an_object_store_is_served_beside_its_owner(server: S3Server, tmp_path: Path) -> None:
    url, cache = server.url("served"), tmp_path / "cache"
    with hs.open(server.bucket("served", cache)) as state:
        users = state.key_value("users")
        users["ann"] = 1
        state.commit()
        state.checkpoint(wait=True)
        for memory_limit in (None, 10**9):
            with hs.serve(url, refresh_ms=10**9, memory_limit=memory_limit) as serving:

                def rows(serving: Any = serving, **query: Any) -> Any:
                    target = f"{serving.url}/stores/users/rows?{urlencode({'key': 'ann', **query})}"
                    with urlopen(target) as answer:
                        return json.load(answer)

                before = rows()
                assert (before["version"], before["rows"]) == (state.version, [{"key": "ann", "value": users["ann"]}])
                users["ann"] += 1
                version = state.commit()
                assert rows() | {"behind_ms": 0} == before | {"behind_ms": 0}
                serving._shared.refresh()
                after = rows(min_version=version)
                assert (after["version"], after["rows"]) == (version, [{"key": "ann", "value": users["ann"]}])


def test_claims_of_earlier_owners_are_no_damage(
    server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pruning leaves the claim of each owner and takes the versions between; a fork has no object of its checkpoint's
    version; an erase takes all versions but claims."""
    bucket, keep = server.bucket("claims", tmp_path / "cache"), CheckpointPolicy(every_commits=None, keep=1)
    url = server.url("claims")
    for number in range(3):
        with hs.open(bucket / "s", checkpoints=keep) as state:
            for key in "abc":
                state.key_value("kv")[key] = number
                state.commit()
            state.checkpoint(wait=True)
    with pytest.raises(RestoreError, match="version 9 is not retained: the nearest below it is 1"):
        hs.open(bucket / "s", at=9)
    hs.fork(bucket / "s", bucket / "fork")
    hs.pin(bucket / "fork", "old")
    for name in ("s", "fork", "fork/pins/old"):
        assert rows(capsys, "verify", f"{url}/{name}", "--full") == [], name
    assert [row["version"] for row in rows(capsys, "log", f"{url}/s", "--commits")] == [12]
    assert [row["detail"] for row in rows(capsys, "list", f"{url}/s", "--logs")][:1] == [
        "the claim of an owner, which is kept"
    ]
    with hs.open(bucket / "s", checkpoints=keep) as state:
        kv = state.key_value("kv")
        kv["d"] = 1
        state.commit()
        kv.erase("a", leave_forks=True)
        state.commit()
        hs.fork(bucket / "s", bucket / "erased", at=15)
        kv["e"] = 1
        assert state.commit() == 17
    for name in ("s", "erased"):
        assert rows(capsys, "verify", f"{url}/{name}", "--full") == [], name
    assert run(["inspect", "pack", f"{url}/s", "--to", str(tmp_path / "s.zip")]) == 0
    assert rows(capsys, "verify", str(tmp_path / "s.zip"), "--full") == []


def test_a_lost_commit_behind_a_claim_that_a_checkpoint_is_of_is_a_fault(
    server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = server.bucket("lost", tmp_path / "cache")
    with hs.open(bucket) as state:
        state.checkpoint(wait=True)
        for key in "abc":
            state.key_value("kv")[key] = 1
            state.commit()
    storage = CloudStorage(server.url("lost"), server.options)
    storage.delete([name for name in storage.list("changelog/") if name.endswith("2.log")])
    (fault,) = rows(capsys, "verify", storage.url, code=1)
    assert fault["file"] == "changelog/00000000000000000003.log"
    assert fault["fault"].startswith("version 2 is missing before it")


def test_a_state_without_commits_folds_to_nothing_on_an_object_store(
    server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hs.open(tmp_path / "empty").close()
    assert run(["inspect", "compact", str(tmp_path / "empty"), "--to", server.url("empty"), "--write"]) == 0
    assert capsys.readouterr().out.endswith("-> 0 B (1.00x), version 0\n")
