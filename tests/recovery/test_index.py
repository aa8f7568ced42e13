"""The index of a checkpoint: made and read in memory, from bytes that were checked."""

import tempfile
import tracemalloc
import zlib
from pathlib import Path

import pytest

import hybridstore as hs
from recovery import index
from recovery.errors import CorruptCheckpointError

RECORDS = {b"meta": bytes(300_000), **{index.top_key(number): bytes([number]) * 5_000 for number in range(40)}}


def test_an_index_has_the_records_that_it_was_made_of() -> None:
    for records in ({}, {b"meta": b""}, RECORDS):
        assert index.decode(index.encode(records), "here") == records


def test_what_is_no_index_is_refused_with_its_place() -> None:
    for data in (b"", b"x", bytes(10_000), b"text" * 5_000):
        with pytest.raises(CorruptCheckpointError, match=r"^here: LMDB cannot read it"):
            index.decode(zlib.compress(data), "here")
    sound = index.encode(RECORDS)
    for data in (bytes(10_000), b"text" * 5_000):
        with pytest.raises(CorruptCheckpointError, match=r"^here: zlib cannot read it"):
            index.decode(data, "here")
    for data in (b"", b"x", sound[:-1], sound + b"x"):
        with pytest.raises(CorruptCheckpointError, match=r"^here: it does not end where its zlib stream does"):
            index.decode(data, "here")


def test_a_stream_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = index.encode(RECORDS)
    monkeypatch.setattr(index, "_MOST_BYTES", 100_000)
    with pytest.raises(CorruptCheckpointError, match=r"^here: found more than 100,000 bytes in a zlib stream"):
        index.decode(sound, "here")


def test_a_forged_stream_takes_no_memory_before_it_is_refused() -> None:
    forged = zlib.compress(bytes(100 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match=r"^here: found more than 27,\d+,\d+ bytes in a zlib"):
            index.inflate(forged, "here")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_an_index_of_few_different_bytes_is_read() -> None:
    records = {b"meta": bytes(20 << 20)}
    assert index.decode(index.encode(records), "here") == records


def test_no_checkpoint_and_no_opening_needs_the_hosts_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    for number in range(3):
        with hs.open(tmp_path / "state") as state:
            assert len(state.key_value("names")) == 100 * number
            state.key_value("names").put_many({f"{number}-{i}": i for i in range(100)})
            state.commit()
            state.checkpoint(wait=True)
    assert not (tmp_path / "missing").exists()


def test_checkpoints_are_made_and_read_where_no_proc_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.open(tmp_path / "state", checkpoints=hs.CheckpointPolicy(keep=1)) as state:
        state.key_value("names")["a"] = 1
        state.commit()
        state.checkpoint(wait=True)
    monkeypatch.setattr(index, "_DESCRIPTORS", str(tmp_path / "missing"))
    with hs.open(tmp_path / "state") as state:
        assert state.restore_report.skipped == []
        state.key_value("names")["b"] = 2
        state.commit()
        state.checkpoint(wait=True)
        assert state.metrics().failed_checkpoints == 0
    monkeypatch.undo()
    with hs.open(tmp_path / "state") as state:
        assert dict(state.key_value("names")) == {"a": 1, "b": 2}
