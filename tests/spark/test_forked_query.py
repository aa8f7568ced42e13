"""Forks and pins of a Spark query: a version of all operators' shards, with Spark's files up to the batch before."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import pack
from hybridstore.cli import run
from hybridstore.reading import view
from hybridstore.spark.errors import SparkSetupError
from hybridstore.spark.location import Location, locate
from recovery.errors import RestoreError
from recovery.layout import launch_name
from tests.state.test_erase import kill_from
from tests.state.test_fork import Killed

pytest.importorskip("pyarrow")

from tests.spark.test_erased_operator import KEY, going_on, has, program, rows_of, with_key_in
from tests.tools.rescaled_jobs import Job

BATCHES = 14


def begun(
    place: Path | Location, batches: int = BATCHES, seed: int = 1, name: str = "process", without: str = ""
) -> Job:
    """A query of two shards, one of which has no rows in some batches."""
    job = Job(place, program(name))
    job.query.create("sources/0/0", b"v1")
    job.query.create("metadata", b'{"id": "a-query"}')
    job.start(2)
    for batch in range(batches):
        job.batch(quiet(batch, seed, without))
    job.forget()
    return job


def quiet(batch: int, seed: int, without: str = "") -> list[dict[str, Any]]:
    rows = rows_of(batch, seed, without)
    return rows[-1:] if 4 < batch < 9 else rows


def moved(job: Job, root: Path | Location, version: int) -> Job:
    """The same program at another place, with so many batches done."""
    other = Job(root, program("process"))
    other.number = version
    return other


@pytest.mark.parametrize("version", [4, 8, 11, 14])
def test_a_fork_continues_as_a_query_that_has_done_so_many_batches(tmp_path: Path, version: int) -> None:
    origin = begun(tmp_path / "q")
    model = begun(tmp_path / "m", version)
    assert run(["fork", f"{tmp_path / 'q'}@{version}", str(tmp_path / "f")]) == 0
    fork = moved(origin, tmp_path / "f", version)
    names = {str(path.relative_to(tmp_path / "f")) for path in (tmp_path / "f").rglob("*") if path.is_file()}
    assert {f"commits/{version - 1}", f"offsets/{version - 1}", "metadata", "sources/0/0"} <= names
    assert not {f"commits/{version}", f"offsets/{version}"} & names
    assert not any(name.startswith("hybridstore/op/launches") for name in names)
    assert fork.rows() == model.rows()
    assert run(["inspect", "verify", str(tmp_path / "f"), "--full"]) == 0
    before = origin.rows()
    assert going_on(fork, version, 1, 2) == going_on(model, version, 1, 2)
    assert run(["inspect", "verify", str(tmp_path / "f"), "--full"]) == 0
    assert run(["inspect", "verify", str(tmp_path / "q"), "--full"]) == 0
    assert origin.rows() == before
    kept = fork.rows()
    shutil.rmtree(tmp_path / "q")
    assert fork.rows() == kept


def test_files_are_named_a_second_time(tmp_path: Path) -> None:
    begun(tmp_path / "q")
    path = hs.fork(tmp_path / "q", tmp_path / "f")
    copies = [each for each in path.rglob("*") if each.is_file() and each.stat().st_nlink == 1]
    # a note stands for the notes of batches without rows, and one file says where the origin is
    assert all(each.parent.name in ("log", "forks") for each in copies)
    assert len(copies) <= 3


def test_a_fork_and_a_pin_apply_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = begun(tmp_path / "q")
    rows = job.rows()
    with monkeypatch.context() as patched:
        patched.setattr(view, "apply_version", lambda *_: pytest.fail("a version was applied"))
        hs.fork(tmp_path / "q", tmp_path / "f")
        hs.pin(tmp_path / "q", "good")
        (pin,) = hs.pins(tmp_path / "q")
    assert (pin.version, pin.fault) == (BATCHES, "")
    assert moved(job, tmp_path / "f", BATCHES).rows() == rows


def test_a_pin_stays_its_version_whatever_happens_to_the_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = begun(tmp_path / "q", 6)
    pinned = moved(job, hs.pin(tmp_path / "q", "good").path, 6)
    rows = job.rows()
    assert pinned.rows() == rows
    job.start(2)
    for batch in range(6, 30):
        job.batch(quiet(batch, 1))
    job.forget()
    assert pinned.rows() == rows
    assert run(["pin", str(tmp_path / "q")]) == 0
    assert run(["inspect", "stat", str(tmp_path / "q")]) == 0
    assert "good" in capsys.readouterr().out
    (pin,) = hs.pins(tmp_path / "q")
    assert (pin.name, pin.version, pin.fault) == ("good", 6, "")
    assert pin.size > 0
    assert run(["rewind", str(tmp_path / "q"), "--to", "3", "--stopped"]) == 1
    assert "version 3 is not retained" in capsys.readouterr().err
    with pytest.raises(RestoreError, match="version 3 is not retained"):
        hs.fork(pin.path, tmp_path / "g", at=3)
    fork = moved(job, hs.fork(tmp_path / "q", tmp_path / "f", at="good"), 6)
    assert going_on(fork, 6, 1, 2)
    assert hs.unpin(tmp_path / "q", "good") > 0
    assert not hs.pins(tmp_path / "q")
    assert run(["inspect", "verify", str(tmp_path / "f"), "--full"]) == 0


def test_nothing_writes_into_a_pin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    from hybridstore.spark.operator import _begin

    job = begun(tmp_path / "q", 3)
    pin = hs.pin(tmp_path / "q", "good")
    with pytest.raises(SparkSetupError, match="belongs to the pin good, which is read and never written"):
        _begin(replace(job.operator, location=locate(pin.path)), 2)
    before = sorted((str(path), path.stat().st_ino) for path in pin.path.rglob("*"))
    assert run(["rewind", str(pin.path), "--to", "2", "--stopped", "--write"]) == 3
    assert "which is read and never written" in capsys.readouterr().err
    with pytest.raises(hs.RescaleError, match="belongs to the pin good, which is read and never written"):
        hs.rescale(pin.path, "op", shards=4, routes={"seen": "key"})
    assert sorted((str(path), path.stat().st_ino) for path in pin.path.rglob("*")) == before


def test_when_a_value_became_wrong_in_a_fork(tmp_path: Path) -> None:
    begun(tmp_path / "q")
    path = hs.fork(tmp_path / "q", tmp_path / "f")
    first = hs.bisect(path, "seen", "k-anna", "value > 0")
    assert first.version
    assert first.rows[0].value > 0


@pytest.mark.parametrize("what", ["fork", "pin"])
def test_whenever_it_is_killed_it_is_there_as_a_whole_or_not_at_all(tmp_path: Path, what: str) -> None:
    origin = begun(tmp_path / "origin", 5)
    rows, halves = origin.rows(), 0
    for last in itertools.count(0, 3):
        path = tmp_path / f"s{last}"
        shutil.copytree(tmp_path / "origin", path)
        new = tmp_path / f"f{last}" if what == "fork" else path / "pins" / "good"
        with pytest.MonkeyPatch.context() as patch:
            kill_from(patch, last)
            try:
                hs.fork(path, new) if what == "fork" else hs.pin(path, "good")
                done = True
            except Killed:
                done = False
        assert moved(origin, path, 5).rows() == rows
        if new.exists():
            assert moved(origin, new, 5).rows() == rows
            assert run(["inspect", "verify", str(new)]) == 0
        else:
            halves += 1
        if done:
            assert new.exists()
            break
    assert halves > 5


def test_an_erase_of_a_query_takes_its_pins_and_names_its_forks(tmp_path: Path) -> None:
    job, draw = begun(tmp_path / "q"), random.Random(1)
    pin = hs.pin(tmp_path / "q", "good", at=draw.randrange(9, BATCHES))
    fork = hs.fork(tmp_path / "q", tmp_path / "f", at="good")
    second = hs.fork(fork, tmp_path / "g")
    with pytest.raises(RestoreError, match=r"found forks that have the keys: .*/f, .*/g"):
        hs.erase(tmp_path / "q", KEY)
    with pytest.raises(RestoreError, match="belongs to the pin good"):
        hs.erase(pin.path, KEY)
    done = hs.erase(tmp_path / "q", KEY, forks="leave")
    assert done.holders == [fork, second]
    assert len(done.places) == 4
    assert not with_key_in(tmp_path / "q")
    assert not with_key_in(pin.path)
    assert not hs.prove(tmp_path / "q", "k-ann", prefix=False).traces or with_key_in(fork)
    assert with_key_in(fork)
    assert with_key_in(second)
    assert hs.erase(tmp_path / "q", KEY, forks="erase").holders == []
    assert not with_key_in(fork)
    assert not with_key_in(second)
    version = hs.pins(tmp_path / "q")[0].version
    assert going_on(moved(job, second, version), version, 1, 2)
    assert run(["inspect", "verify", str(second), "--full"]) == 0
    assert hs.fork(tmp_path / "q", tmp_path / "h", at="good").is_dir()


def test_forks_are_erased_in_the_named_operator_only_and_while_no_driver_is_alive(tmp_path: Path) -> None:
    begun(tmp_path / "q", 4)
    second = Job(tmp_path / "q", program("process"))
    second.name = "second"
    second.start(2)
    for batch in range(4):
        second.batch(quiet(batch, 1))
    second.forget()
    fork = hs.fork(tmp_path / "q", tmp_path / "f")

    def operators(root: Path) -> set[str]:
        return {path.relative_to(root).parts[1] for path in with_key_in(root)}

    driver = {"wall_ms": 0, "host": socket.gethostname(), "pid": os.getppid()}
    launches = locate(fork).operator("op")
    launches.create(launch_name(10**6), pack(driver))
    with pytest.raises(RestoreError, match=r"is alive .*--stopped"):
        hs.erase(tmp_path / "q", KEY, operator="op", forks="erase")
    assert operators(tmp_path / "q") == operators(fork) == {"op", "second"}
    launches.delete([launch_name(10**6)])
    assert hs.erase(tmp_path / "q", KEY, operator="op", forks="erase").holders == []
    assert operators(tmp_path / "q") == operators(fork) == {"second"}
    # the other operator has the key, and is not asked for
    assert not any("/second/" in trace for trace in hs.prove(tmp_path / "q", KEY, operator="op").traces)
    assert hs.prove(tmp_path / "q", KEY, operator="op").files > 0
    assert any("/second/" in trace for trace in hs.prove(tmp_path / "q", KEY).traces)
    assert hs.erase(tmp_path / "q", KEY, operator="op").records == 0
    with pytest.raises(RestoreError, match=r"found forks that have the keys: .*/f "):
        hs.erase(tmp_path / "q", KEY)


def test_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "q", 3)
    for at in (0, 4, 9):
        with pytest.raises(RestoreError, match=r"is none that the query can continue from .known: 1 to 3"):
            hs.fork(tmp_path / "q", tmp_path / "f", at=at)
    with pytest.raises(RestoreError, match="is inside of"):
        hs.fork(tmp_path / "q", tmp_path / "q" / "f")
    begun(locate(tmp_path / "query", tmp_path / "state"), 3)
    with pytest.raises(RestoreError, match=r"is inside of .*/query"):
        hs.fork(tmp_path / "query", tmp_path / "query" / "f", state_location=tmp_path / "state")
    (tmp_path / "plain").mkdir()
    with pytest.raises(RestoreError, match="found no Spark query"):
        hs.fork(tmp_path / "plain", tmp_path / "f", state_location=tmp_path / "q")
    assert not (tmp_path / "f").exists()


def test_a_query_on_an_object_store_is_forked_pinned_and_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    from changelog.cloud_storage import CloudStorage
    from changelog.storage import storage_at
    from tests.state.test_far_forks import kill_at
    from tests.tools.s3_server import S3Server

    with S3Server() as server:

        def place(name: str) -> Any:
            return server.bucket(name, tmp_path / "cache")

        def objects(name: str) -> dict[str, bytes]:
            storage = storage_at(place(name))
            return {each: storage.get(each) for each in storage.list() if not each.startswith("forks/")}

        def has_key(name: str) -> bool:
            return any(has(data) for data in objects(name).values())

        job, model = begun(locate(place("q"))), begun(tmp_path / "m", 8)
        before = objects("q")
        order: list[str] = []
        for verb in ("create", "take"):
            real = getattr(CloudStorage, verb)

            def noted(self: CloudStorage, name: str, *args: Any, real: Any = real) -> Any:
                order.append(name)
                return real(self, name, *args)

            monkeypatch.setattr(CloudStorage, verb, noted)
        hs.fork(place("q"), place("f"), at=8)
        monkeypatch.undo()
        assert (order[0], order[-1]) == ("forks/origin", "metadata")
        assert objects("q") == before
        fork = moved(job, locate(place("f")), 8)
        assert fork.rows() == model.rows()
        assert going_on(fork, 8, 1, 2) == going_on(model, 8, 1, 2)
        assert objects("q") == before
        pin = hs.pin(place("q"), "good", at=11)
        assert (pin.name, pin.version, pin.fault) == ("good", 11, "")
        assert moved(job, locate(pin.path), 11).rows() == begun(tmp_path / "n", 11).rows()
        with pytest.raises(RestoreError, match=r"found forks that have the keys: .*/f "):
            hs.erase(place("q"), KEY)
        done = hs.erase(place("q"), KEY, forks="leave")
        assert list(map(str, done.holders)) == ["s3://bucket/f"]
        assert not has_key("q")
        assert has_key("f")
        hs.erase(place("q"), KEY, forks="erase")
        assert not has_key("f")
        assert hs.unpin(place("q"), "good") > 0
        assert not [name for name in objects("q") if name.startswith("pins/")]
        rows, whole = job.rows(), 0
        for last in itertools.count(0, 5):
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, last)
                try:
                    hs.fork(place("q"), place(f"f{last}"))
                    whole += 1
                except Killed:
                    assert "metadata" not in objects(f"f{last}")
                    patch.undo()
                    hs.fork(place("q"), place(f"f{last}"))
            assert moved(job, locate(place(f"f{last}")), BATCHES).rows() == rows
            if whole:
                break
        assert last >= 20
