"""A state in an object store is copied and looked into; nothing is written outside of the copy, and nothing there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.errors import ForeignFileError
from hybridstore.inspection.api import InspectedState
from hybridstore.inspection.view import fetched
from tests.tools.memory_storage import MemoryStorage

ROOT = Path(__file__).resolve().parents[2]


def uploaded(folder: Path, storage: Any, prefix: str = "") -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            storage.create(prefix + file.relative_to(folder).as_posix(), file.read_bytes())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with hs.open(path) as state:
        names = state.key_value("names")
        names.put("alice", 1)
        state.commit()
        state.checkpoint(wait=True)
        names.put("alice", 2)
        state.commit()
    return path


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryStorage]:
    storage = MemoryStorage()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(fetched, "storage_at", lambda url: storage)
    monkeypatch.setattr(fetched, "_fetched", {})
    return storage


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["inspect", *words, "-o", "jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_url_is_looked_into(state: Path, storage: MemoryStorage, capsys: pytest.CaptureFixture[str]) -> None:
    uploaded(state, storage)
    before = {name: storage.get(name) for name in storage.list()}
    assert rows(capsys, "get", "s3://bucket/state", "names", "alice") == [{"key": "alice", "value": 2}]
    assert rows(capsys, "get", "s3://bucket/state", "names", "alice", "--at", "1") == [{"key": "alice", "value": 1}]
    assert run(["inspect", "diff", "s3://bucket/state@1", "@2"]) == 1
    assert run(["inspect", "diff", "s3://bucket/state", str(state)]) == 0
    assert run(["inspect", "verify", "s3://bucket/state"]) == 0
    assert "s3://bucket/state: sound" in capsys.readouterr().err
    view = hs.inspect("s3://bucket/state")
    assert isinstance(view, InspectedState)
    assert [record.value for record in view["names"].get("alice")] == [2]
    assert {name: storage.get(name) for name in storage.list()} == before


def test_of_a_checkpoint_location_only_what_is_ours_is_copied(
    tmp_path: Path, state: Path, storage: MemoryStorage
) -> None:
    uploaded(state, storage, "hybridstore/")
    storage.create("offsets/0", b"Spark's")
    path = fetched.local("s3://bucket/query/")
    assert [entry.name for entry in path.iterdir()] == ["hybridstore"]
    assert fetched.local("s3://bucket/query") == path


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a\\..\\evil"])
def test_no_name_leads_out_of_the_copy(tmp_path: Path, name: str) -> None:
    class Named(MemoryStorage):
        def list(self, prefix: str = "", after: str = "") -> list[str]:
            return [other for other in (name, "LOCK") if other.startswith(prefix)]

        def get(self, name: str) -> bytes:
            return b"content"

    fetched.fetch(Named(), "s3://bucket/state", tmp_path / "copy" / "state")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["LOCK"]


def test_nothing_below_a_url_is_said(storage: MemoryStorage, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ForeignFileError, match="nothing is below it"):
        fetched.local("s3://bucket/none")
    assert run(["inspect", "info", "s3://bucket/none"]) == 3
    assert run(["inspect", "info", "hdfs://host/state"]) == 3
    capsys.readouterr()


def test_a_bucket_is_looked_into_with_credentials_of_the_environment(state: Path) -> None:
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    from changelog.cloud_storage import CloudStorage
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        uploaded(state, CloudStorage(server.url("state"), server.options))
        options = {f"AWS_{name.upper()}": value for name, value in server.options.items()} | {"AWS_ALLOW_HTTP": "true"}
        answer = subprocess.run(
            [sys.executable, "-m", "hybridstore", "inspect", "get", server.url("state"), "names", "alice", "-o", "raw"],
            cwd=ROOT,
            env={**os.environ, **options},
            capture_output=True,
            text=True,
        )
    assert answer.stdout == "2\n", answer.stderr
    assert "copied into" in answer.stderr
