"""A Spark checkpoint location: all operators and shards, keys routed to theirs, and only the line of versions that
counts.
"""

import json
import random
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from changelog.codec import pack, unpack
from changelog.errors import UnsupportedVersionError
from hybridstore.cli import run
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.shards import shard_of
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import agree_on_description, operator_storage
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from recovery.block import seal
from recovery.runs import newest_claim
from tests.tools.sizes import SMALL_PARTS

SHARDS = 3


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A checkpoint location with an operator of three shards after six batches; batch 3 has rows for shard 0 only."""
    root = tmp_path / "checkpoint"
    operator = operator_storage(root, "totals")
    agree_on_description(operator, {"shards": SHARDS}, 0)
    run = begin(operator, 0)
    draw = random.Random(7)
    for shard in range(SHARDS):
        cache = ShardCache()
        provider = StateStoreProvider(
            StateStoreId(str(root), "totals", shard),
            cache=cache,
            policy=CheckpointPolicy(every_commits=2),
            sizes=SMALL_PARTS._replace(block_records=3),
            claim=run,
        )
        for batch in range(6):
            store = provider.get_store(batch)
            if batch != 3 or shard == 0:
                sums = store.key_value("sums")
                for key in (f"k{i}" for i in range(20)):
                    if shard_of(key, SHARDS) == shard:
                        sums.put(key, [batch, draw.randrange(5)])
            store.commit()
        provider.close()
    (root / "offsets").mkdir()
    return root


def test_parquet_files_of_stores_of_one_name_in_two_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    root = tmp_path / "checkpoint"
    for operator in ("totals", "visits"):
        shard = StateStoreId(str(root), operator, 0)
        store = StateStoreProvider(shard, claim=begin(StateStoreProvider(shard).operator, 0)).get_store(0)
        if operator == "totals":
            store.key_value("sums")["ann"] = 7
        else:
            store.window("sums", retention="1 hour").put("bob", "text", 5)
        store.commit()
    assert run(["inspect", "export", str(root), "--to", str(tmp_path / "tables")]) == 0
    totals, visits = (
        parquet.read_table(tmp_path / "tables" / operator / "sums.parquet").to_pylist()
        for operator in ("totals", "visits")
    )
    assert totals == [{"shard": "totals/0", "key": "ann", "value": 7}]
    assert [(row["shard"], row["key"], row["value"]) for row in visits] == [("visits/0", "bob", "text")]
    assert run(["inspect", "export", str(root), "sums", "--to", str(tmp_path / "sums.parquet")]) == 2
    assert "for 2 stores, expected one store in a Parquet file" in capsys.readouterr().err


def rows(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    assert run(["inspect", *map(str, arguments), "-o", "jsonl"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_location_an_operator_and_a_shard_can_be_given(location: Path) -> None:
    labels = [place.label for place in resolve(location)]
    assert labels == ["totals/0", "totals/1", "totals/2"]
    assert [place.label for place in resolve(location / "hybridstore")] == labels
    assert [place.label for place in resolve(location / "hybridstore" / "totals")] == labels
    assert [place.label for place in resolve(location / "hybridstore" / "totals" / "000000" / "000001")] == ["totals/1"]


def test_every_version_of_every_shard_is_what_the_provider_loads(location: Path) -> None:
    for place in resolve(location):
        provider = StateStoreProvider(StateStoreId(str(location), "totals", place.shard or 0), cache=ShardCache())
        for version in range(1, 7):
            loaded = provider.get_read_store(version)
            view = open_view(place, version)
            assert view.faults == []
            expected = [(key, (), value) for key, value in loaded.key_value("sums").all()]
            assert [tuple(row) for row in view.store("sums").records()] == expected
            assert view.seen == version
        provider.close()


def test_keys_go_to_their_shard(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(20):
        (row,) = rows(capsys, "get", location, "sums", f"k{i}")
        assert row["shard"] == f"totals/{shard_of(f'k{i}', SHARDS)}"
    assert len(rows(capsys, "scan", location, "sums")) == 20
    some = rows(capsys, "scan", location, "sums", "--shard", 1)
    assert len(some) == sum(1 for i in range(20) if shard_of(f"k{i}", SHARDS) == 1)
    assert rows(capsys, "get", location, "sums", "k1", "--at", 2)[0]["value"][0] == 1
    assert [row["version"] for row in rows(capsys, "history", location, "sums", "k1")][-1] == 6


def test_info_tells_shards_and_totals(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [(row["shard"], row["version"]) for row in rows(capsys, "info", location)] == [
        (f"totals/{shard}", 6) for shard in range(SHARDS)
    ]
    assert run(["inspect", "info", str(location), "-o", "table"]) == 0
    out = capsys.readouterr().out
    assert "totals" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_objects_that_are_void_are_listed_and_do_not_count(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task of an older run that ends late leaves a sound object that does not count, and so does a later attempt."""
    (place,) = [place for place in resolve(location) if place.shard == 0]
    identity = StateStoreId(str(location), "totals", 0)
    operator = operator_storage(location, "totals")
    old = newest_claim(operator)
    late = StateStoreProvider(identity, cache=ShardCache(), claim=old, attempts=count(100))
    store = late.get_store(6)
    for key in (f"k{i}" for i in range(20)):
        if shard_of(key, SHARDS) == 0:
            store.key_value("sums").put(key, "never committed")
    new = StateStoreProvider(identity, cache=ShardCache(), claim=begin(operator, 6))
    other = new.get_store(6)
    other.key_value("sums").put("k1", [6, 0])
    other.commit()
    before = [tuple(row) for row in open_view(place).store("sums").records()]
    store.commit()
    for path in (location, place.path):
        assert run(["inspect", "verify", "--full", str(path)]) == 0
        assert "1 object void: a newer run has done their batches" in capsys.readouterr().err
        assert rows(capsys, "info", path)[0]["version"] == 7
    assert [tuple(row) for row in open_view(place).store("sums").records()] == before
    listed = rows(capsys, "list", place.path, "--logs")
    assert [row["detail"] for row in listed if row["detail"]] == ["void: a newer run has done its batch"]
    key = next(f"k{i}" for i in range(20) if shard_of(f"k{i}", SHARDS) == 0)
    assert "never committed" not in json.dumps(rows(capsys, "history", location, "sums", key))
    assert "never committed" not in json.dumps(rows(capsys, "diff", f"{place.path}@6", "@7", code=1))


def test_a_lost_object_is_named_and_not_passed_over(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place,) = [place for place in resolve(location) if place.shard == 0]
    for checkpoint in place.path.glob("checkpoints/*"):
        checkpoint.unlink()
    for path in (place.path / "log").glob(f"{5:020d}-*"):
        path.unlink()
    code = run(["inspect", "scan", str(place.path), "sums"])
    assert code in (3, 4)
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "fault"), [("nonsense", "cannot be read"), ('{"format": 99}', "format 99")])
def test_a_description_that_no_query_can_start_with_is_a_fault(
    location: Path, capsys: pytest.CaptureFixture[str], text: str, fault: str
) -> None:
    name = "hybridstore/totals/operator/0000000001.json"
    (location / name).write_text(text)
    (row,) = rows(capsys, "verify", location, code=1)
    assert row["file"] == name
    assert fault in row["fault"]


def test_batches_without_rows_show_the_version_below(location: Path) -> None:
    (place,) = [place for place in resolve(location) if place.shard == 1]
    third, fourth = open_view(place, 3), open_view(place, 4)
    assert (third.version, fourth.version, fourth.seen) == (3, 4, 4)
    assert [tuple(row) for row in third.store("sums").records()] == [
        tuple(row) for row in fourth.store("sums").records()
    ]


def test_a_run_of_a_newer_format_is_refused_by_its_number(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (location / "hybridstore/totals/runs").iterdir()
    fields = unpack(path.read_bytes()[4:])
    newer = fields["format"] + 1
    path.write_bytes(seal(pack(fields | {"format": newer, "min_reader": newer})))
    wanted = f"format {newer} needs a reader of version {newer}, this one reads {newer - 1}"
    with pytest.raises(UnsupportedVersionError, match=wanted):
        StateStoreProvider(StateStoreId(str(location), "totals", 0), cache=ShardCache()).get_read_store(6)
    shard = location / "hybridstore/totals/000000/000000"
    with pytest.raises(UnsupportedVersionError, match=wanted):
        open_view(resolve(shard)[0])
    for command in ("info", "verify", "log", "scan", "stat"):
        assert run(["inspect", command, str(shard)]) != 0
        shown = capsys.readouterr()
        assert wanted in shown.out + shown.err, command


def test_a_shard_without_its_operators_folder_is_read_by_its_names(location: Path, tmp_path: Path) -> None:
    place = resolve(location)[0]
    shutil.copytree(place.path, tmp_path / "000000" / "000000")
    (alone,) = resolve(tmp_path / "000000" / "000000")
    view, whole = open_view(alone), open_view(place)
    assert (view.version, view.faults) == (whole.version, [])
    assert list(view.store("sums").records()) == list(whole.store("sums").records())


def test_a_shard_is_repaired_into_a_state_directory(location: Path, tmp_path: Path) -> None:
    place = resolve(location)[0]
    (lost,) = (place.path / "log").glob(f"{6:020d}-*")
    lost.write_bytes(lost.read_bytes()[:-3])
    assert run(["inspect", "repair", str(place.path), "--to", str(tmp_path / "mended"), "--write"]) == 1
    (mended,) = resolve(tmp_path / "mended")
    view = open_view(mended)
    assert (view.version, view.faults) == (5, [])
    assert list(view.store("sums").records()) == list(open_view(place, 5).store("sums").records())
