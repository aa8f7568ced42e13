"""The ladder of a restore, rung by rung: what is recovered and reported, what is refused, and in which words."""

import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.segment import list_segments, segment_name
from hybridstore.state.opening import Tuning
from recovery.ahead import ReadAhead
from recovery.block import seal
from recovery.index import META_KEY, encode
from tests.tools.checkpoints import flip, index_of, marker_of, own_packs, reader_of, replaced, versions
from tests.tools.hooks import check_stores, crash
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(segment_bytes=2000, block_records=8, parts=SMALL_PARTS)
VALUE = "x" * 400


def open_state(path: Path, **options: Any) -> hs.State:
    options.setdefault("checkpoints", hs.CheckpointPolicy(keep=3))
    return hs.open(path, _tuning=TUNING, **options)


def write(path: Path, versions: range, checkpoints: tuple[int, ...] = ()) -> hs.State:
    """Commit these versions, five rows each, with checkpoints after some of them; the state is left open."""
    state = open_state(path)
    kv = state.key_value("kv")
    for version in versions:
        for i in range(5):
            kv[f"{version:03d}-{i}"] = f"{version} {VALUE}"
        state.commit()
        if version in checkpoints:
            state.checkpoint(wait=True)
    return state


def expected(version: int) -> list[tuple[str, str]]:
    return [(f"{v:03d}-{i}", f"{v} {VALUE}") for v in range(1, version + 1) for i in range(5)]


def check(path: Path, version: int = 12, **options: Any) -> Any:
    """The state opens at this version, whole, goes on, and opens again; returns the report of the first opening."""
    with open_state(path, **options) as state:
        assert state.version == version
        assert list(state.key_value("kv").all()) == expected(version)
        check_stores(state)
        report = state.restore_report
        state.key_value("kv")["zzz"] = 1
        state.commit()
    with open_state(path) as state:
        assert state.version == version + 1
        assert list(state.key_value("kv").all()) == [*expected(version), ("zzz", 1)]
    return report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A state of a killed writer: 12 versions, checkpoints of 4 and 8, segments from 1 on (nothing is pruned)."""
    where = tmp_path / "state"
    crash(write(where, range(1, 13), (4, 8)))
    assert versions(where) == [4, 8]
    assert len(list_segments(where / "changelog")) > 4
    return where


def segments(path: Path) -> list[Path]:
    return [path / "changelog" / segment_name(first) for first in list_segments(path / "changelog")]


def test_a_sound_state_takes_the_newest_checkpoint_and_the_tail(path: Path) -> None:
    report = check(path)
    assert (report.checkpoint_version, report.tail_versions, report.tail_records) == (8, 4, 20)
    assert (report.cut, report.skipped, report.clean) == (None, [], False)
    assert "version 12 restored in" in report.summary()


def test_a_torn_tail_is_cut_and_reported(path: Path) -> None:
    last = segments(path)[-1]
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(b"hF\x01\x00\x99torn")
    report = check(path)
    assert (report.cut.path, report.cut.offset, report.cut.size) == (str(last), size, 9)
    assert f"cut 9 bytes at {last}:{size} (frame header cut short" in report.summary()


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(path: Path) -> None:
    index = index_of(path, 8)
    flip(index, 400)
    report = check(path)
    assert report.checkpoint_version == 4
    assert re.fullmatch(rf"{index}: its \d+ bytes are not those that its name has the hash of .*", report.skipped[0])


def test_a_truncated_checkpoint_is_refused_before_it_is_mapped(path: Path) -> None:
    os.truncate(index_of(path, 8), 300)
    report = check(path)
    assert report.checkpoint_version == 4
    assert "its 300 bytes are not those that its name has the hash of" in report.skipped[0]


def test_a_truncated_pack_is_refused_before_it_is_mapped(path: Path) -> None:
    (pack,) = own_packs(path, 8)
    size = pack.stat().st_size
    os.truncate(pack, size - 1)
    report = check(path)
    assert report.checkpoint_version == 4
    assert report.skipped == [f"{pack}: found {size - 1} bytes, expected {size} (the file was cut short)"]


def test_a_checkpoint_with_a_missing_pack_is_passed_over(path: Path) -> None:
    (pack,) = own_packs(path, 8)
    pack.unlink()
    report = check(path)
    assert report.checkpoint_version == 4
    assert report.skipped == [f"{pack}: the pack is missing"]


def test_a_missing_newest_checkpoint_means_a_longer_tail(path: Path) -> None:
    index_of(path, 8).unlink()
    report = check(path)
    assert (report.checkpoint_version, report.tail_versions) == (4, 8)


def test_a_damaged_previous_checkpoint_does_not_matter(path: Path) -> None:
    flip(index_of(path, 4), 30)
    report = check(path)
    assert (report.checkpoint_version, report.skipped) == (8, [])


def test_without_any_sound_checkpoint_the_changelog_is_enough(path: Path) -> None:
    flip(index_of(path, 4), 30)
    flip(index_of(path, 8), 30)
    report = check(path)
    assert (report.checkpoint_version, report.tail_versions, len(report.skipped)) == (None, 12, 2)


def test_with_no_checkpoint_and_a_pruned_changelog_every_failure_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = open_state(path, checkpoints=hs.CheckpointPolicy(keep=1))
    state.close()
    with open_state(path, checkpoints=hs.CheckpointPolicy(keep=1)) as state:
        for version in range(1, 9):
            for i in range(5):
                state.key_value("kv")[f"{version:03d}-{i}"] = VALUE
            state.commit()
        state.checkpoint(wait=True)
    assert versions(path) == [8]
    flip(index_of(path, 8), 30)
    with pytest.raises(
        hs.errors.RestoreError,
        match=r"no way to restore: .*00000000000000000008-[0-9a-f]+\.lmdb.*; .*versions 1 to \d+ are missing",
    ):
        open_state(path)


def test_a_gap_in_the_changelog_is_refused(path: Path) -> None:
    removed = next(segment for segment in segments(path)[1:-1] if int(segment.stem) > 9)
    following = segments(path)[segments(path).index(removed) + 1]
    removed.unlink()
    first, last = int(removed.stem), int(following.stem) - 1
    missing = f"version {first} is" if first == last else f"versions {first} to {last} are"
    with pytest.raises(hs.errors.ChangelogGapError, match=rf"{following}: {missing} missing before it \(restore"):
        open_state(path)
    # what the error says can be done
    before = open_state(path, at=first - 1)
    assert before.version == first - 1
    before.close()


def test_the_segment_that_a_checkpoint_refers_to_must_be_there(path: Path) -> None:
    for segment in segments(path):
        segment.unlink()
    with pytest.raises(hs.errors.ChangelogGapError, match=r"\.log: missing, though checkpoint 8 refers to it"):
        open_state(path)


def test_the_newest_segment_cannot_vanish(path: Path) -> None:
    last = segments(path)[-1]
    last.unlink()
    with pytest.raises(hs.errors.RestoreError, match=rf"{last}: missing, though the last owner wrote to it"):
        open_state(path)


def test_the_newest_segment_cannot_pass_for_one_that_died_at_birth(path: Path) -> None:
    last = segments(path)[-1]
    os.truncate(last, 10)
    with pytest.raises(hs.errors.RestoreError, match=rf"{last}: cut short, though the last owner wrote to it"):
        open_state(path)


def test_damage_in_the_middle_of_the_changelog_is_refused_not_shortened(path: Path) -> None:
    damaged = segments(path)[-2]
    flip(damaged, 200)
    with pytest.raises(
        hs.errors.CorruptFrameError, match=r"later segments follow, so committed data is damaged"
    ) as caught:
        open_state(path)
    assert caught.value.path == str(damaged)
    assert caught.value.offset <= 200


def test_damage_before_the_checkpoint_does_not_matter(path: Path) -> None:
    flip(segments(path)[0], 200)
    assert check(path).checkpoint_version == 8


def test_a_changelog_shorter_than_its_checkpoint_is_refused(path: Path) -> None:
    for segment in segments(path):
        if int(segment.stem) > 8:
            segment.unlink()
    holding = segments(path)[-1]
    os.truncate(holding, 100)
    with pytest.raises(hs.errors.CorruptFrameError, match="the file was cut short: checkpoint 8 refers to byte"):
        open_state(path)
    with open_state(path, at=8) as state:
        assert list(state.key_value("kv").all()) == expected(8)


def test_a_cleanly_closed_state_cannot_be_shortened(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write(path, range(1, 7), (4,)).close()
    with open_state(path) as state:
        assert state.restore_report.clean
        state.key_value("kv")["007-0"] = 1
        state.commit()
    last = segments(path)[-1]
    os.truncate(last, 100)
    with pytest.raises(
        hs.errors.RestoreError,
        match=r"was closed at version 7, but the changelog ends at version 6 .*`hybridstore inspect repair`",
    ):
        open_state(path)
    (path / "LOCK").unlink()
    with open_state(path) as state:
        assert state.version == 6


@pytest.mark.parametrize("name", ["changelog", "checkpoints", "LOCK"])
def test_part_of_a_state_is_known_for_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    write(path, range(1, 7), (4,)).close()
    for entry in list(path.iterdir()):
        if entry.name != name:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if name == "changelog":
        assert check(path, 6).checkpoint_version is None
    else:
        with pytest.raises(hs.errors.RestoreError):
            open_state(path)


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(hs.errors.ForeignFileError, match=r"found 'holiday\.jpg' in it, expected a state directory"):
        open_state(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_is_not_a_state_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(hs.errors.ForeignFileError, match="a file, expected a state directory"):
        open_state(tmp_path / "file")


def test_a_foreign_file_under_a_segments_name_is_refused(path: Path) -> None:
    segments(path)[-1].write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(hs.errors.ForeignFileError, match=r"not a changelog segment: found b'PK"):
        open_state(path)


def test_files_of_other_names_are_ignored(path: Path) -> None:
    for name in ("changelog/notes.txt", "checkpoints/old.lmdb", "checkpoints/.9.77.tmp"):
        (path / name).write_text("?")
    check(path)


def newer(raw: bytes, size: int, at: int = 8) -> bytes:
    head = bytearray(raw[:size])
    struct.pack_into("<HH", head, at, 7, 7)
    return bytes(head) + zlib.crc32(head).to_bytes(4, "little") + raw[size + 4 :]


def test_a_newer_segment_format_is_refused_by_name(path: Path) -> None:
    last = segments(path)[-1]
    last.write_bytes(newer(last.read_bytes(), 76))
    with pytest.raises(
        hs.errors.UnsupportedVersionError,
        match=r"segment format 7 needs a reader of version 7, this one reads 1 \(upgrade",
    ):
        open_state(path)


def test_a_newer_checkpoint_format_is_refused_not_skipped(path: Path) -> None:
    meta = seal(pack({"format": 7, "min_reader": 7}))
    replaced(path, 8, encode({META_KEY: meta}))
    with pytest.raises(hs.errors.UnsupportedVersionError, match=r"format 7 needs a reader of version 7"):
        open_state(path)


def test_a_segment_of_another_store_is_refused(path: Path, tmp_path: Path) -> None:
    crash(write(tmp_path / "other", range(1, 13), (4, 8)))
    shutil.copy(segments(tmp_path / "other")[-1], segments(path)[-1])
    with pytest.raises(
        hs.errors.ForeignFileError, match=r"belongs to store [0-9a-f]{32}, its place to store [0-9a-f]{32}"
    ):
        open_state(path)


def test_a_checkpoint_of_another_store_is_refused(path: Path, tmp_path: Path) -> None:
    crash(write(tmp_path / "other", range(1, 13), (4, 8)))
    index_of(path, 8).unlink()
    shutil.copytree(tmp_path / "other" / "checkpoints", path / "checkpoints", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "other" / "packs", path / "packs", dirs_exist_ok=True)
    with pytest.raises(
        hs.errors.ForeignFileError, match=r"belongs to store [0-9a-f]{32}, its place to store [0-9a-f]{32}"
    ):
        open_state(path)


def test_a_renamed_checkpoint_is_skipped(path: Path) -> None:
    other = path / "checkpoints" / index_of(path, 8).name.replace("08-", "09-")
    shutil.copy(index_of(path, 8), other)
    report = check(path)
    assert report.checkpoint_version == 8
    assert report.skipped == [f"{other}: holds version 8, its name says 9"]


def test_a_tail_of_another_line_is_refused_with_both_digests(path: Path, tmp_path: Path) -> None:
    first = segments(path)[-1]
    shutil.copytree(path, tmp_path / "copy")
    for where, value in ((path, 1), (tmp_path / "copy", 2)):
        state = write(where, range(13, 13))
        for _ in range(8):
            state.key_value("kv")["line"] = value
            state.key_value("kv")["more"] = VALUE * 3
            state.commit()
        crash(state)
    mine, other = segments(path), segments(tmp_path / "copy")
    assert [file.name for file in mine] == [file.name for file in other]
    at = mine.index(first) + 1
    shutil.copy(other[at], mine[at])
    with pytest.raises(
        hs.errors.DigestMismatchError, match=r"with digest [0-9a-f]{32}, the version before it has digest [0-9a-f]{32}"
    ):
        open_state(path)


def test_a_version_opens_as_it_was_read_only(path: Path) -> None:
    for version in range(1, 13):
        with open_state(path, at=version) as state:
            assert state.version == version
            assert list(state.key_value("kv").all()) == expected(version)
            with pytest.raises(hs.HybridStoreError, match=f"opened read-only at version {version}"):
                state.commit()
    with pytest.raises(hs.errors.RestoreError, match="version 99 is not retained: the nearest below it is 12"):
        open_state(path, at=99)


def test_a_version_that_is_open_read_only_refuses_every_change_and_keeps_its_records(tmp_path: Path) -> None:
    def opened(state: hs.State) -> dict[str, Any]:
        return {
            "keys": state.key_value("keys"),
            "rows": state.window("rows", retention=100),
            "sessions": state.session("sessions", retention=100),
            "waiting": state.suppression("waiting", time_limit=100),
            "sliding": state.sliding("sliding", size=100, aggregator=hs.Sum()),
        }

    with open_state(tmp_path) as state:
        stores = opened(state)
        stores["keys"].put("a", 1)
        stores["rows"].put("a", 1, 5)
        stores["sessions"].put("a", 1, start=1, end=5)
        stores["waiting"].put("a", 1, 5)
        stores["sliding"].add("a", 1, 5)
        state.commit()
    with open_state(tmp_path, at="newest") as state:
        stores = opened(state)
        for change in (
            lambda: stores["keys"].put("b", 2),
            lambda: stores["keys"].put("b", [2]),
            lambda: stores["keys"].delete("a"),
            lambda: stores["keys"].put_many([("b", 2), ("c", 3)]),
            lambda: stores["rows"].put("b", 2, 6),
            lambda: stores["rows"].delete("a", 5),
            lambda: stores["rows"].delete("b", 50),
            lambda: stores["rows"].put_columns(["b"], [2], [6]),
            lambda: stores["sessions"].put("b", 2, start=1, end=6),
            lambda: stores["sessions"].delete("a", 1, 5),
            lambda: stores["waiting"].put("b", 2, 6),
            lambda: stores["waiting"].advance(500),
            lambda: stores["sliding"].add("b", 2, 6),
        ):
            with pytest.raises(hs.HybridStoreError, match="opened read-only at version 1"):
                change()
        assert list(stores["keys"].all()) == [("a", 1)]
        assert list(stores["rows"].all()) == [(("a", 5), 1)]
        assert list(stores["sessions"].all()) == [(("a", 1, 5), 1)]
        assert list(stores["waiting"].buffered()) == [("a", 1, 5)]
        assert list(stores["sliding"].fetch("a")) == [(5, 1)]


def test_a_block_found_damaged_when_touched_is_named_and_does_not_come_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadAhead, "start", lambda self: None)  # so that the next commit is the one that loads
    (damaged,) = own_packs(path, 8)
    flip(damaged, damaged.read_bytes().rindex(VALUE.encode()))
    state = open_state(path)
    assert state.restore_report.checkpoint_version == 8
    with pytest.raises(
        hs.errors.CorruptCheckpointError, match=r"\.pack at byte \d+: block \d+ of store 1: block checksum mismatch"
    ):
        list(state.key_value("kv").all())
    # It does not pass for absent from then on.
    with pytest.raises(hs.errors.CorruptCheckpointError, match="block checksum mismatch"):
        list(state.key_value("kv").all())
    assert marker_of(index_of(path, 8)).exists()
    # What is not in that block goes on, once a commit has said that it could not load everything.
    state.key_value("kv")["013-0"] = f"13 {VALUE}"
    with pytest.raises(hs.errors.CorruptCheckpointError, match="block checksum mismatch"):
        state.commit()
    assert state.commit() == 13
    crash(state)
    with open_state(path) as state:
        assert state.restore_report.checkpoint_version == 4
        assert "found damaged earlier" in state.restore_report.skipped[0]
        assert list(state.key_value("kv").all()) == [*expected(12), ("013-0", f"13 {VALUE}")]
        state.checkpoint(wait=True)
    with open_state(path) as state:
        assert (state.restore_report.checkpoint_version, state.restore_report.skipped) == (13, [])


def test_a_damaged_page_of_the_directory_is_named_and_does_not_come_back(path: Path) -> None:
    reader = reader_of(path, 8)
    page = reader.directory(1).pages[0]
    (damaged,) = own_packs(path, 8)
    flip(damaged, page.offset + 20)
    state = open_state(path)
    for _ in range(2):
        with pytest.raises(
            hs.errors.CorruptCheckpointError, match=r"page of the directory: checksum mismatch \(reopen to fall"
        ):
            list(state.key_value("kv").all())
    assert state.key_value("kv")["012-0"] == f"12 {VALUE}"
    crash(state)
    assert check(path).checkpoint_version == 4


def test_a_block_that_both_checkpoints_share_leaves_the_changelog(path: Path) -> None:
    """Blocks are written once: what two checkpoints share is damaged in both, and named in both."""
    (shared,) = own_packs(path, 4)
    flip(shared, shared.read_bytes().index(VALUE.encode()))
    for checkpoint_version in (8, 4):
        with open_state(path) as state:
            assert state.restore_report.checkpoint_version == checkpoint_version
            with pytest.raises(hs.errors.CorruptCheckpointError, match="block checksum mismatch"):
                state.key_value("kv").get("001-0")
    report = check(path)
    assert (report.checkpoint_version, len(report.skipped)) == (None, 2)


def test_a_reader_leaves_no_marker(path: Path) -> None:
    (damaged,) = own_packs(path, 8)
    flip(damaged, damaged.read_bytes().rindex(VALUE.encode()))
    with (
        open_state(path, at=8) as state,
        pytest.raises(hs.errors.CorruptCheckpointError, match="block checksum mismatch"),
    ):
        list(state.key_value("kv").all())
    assert not marker_of(index_of(path, 8)).exists()


def test_a_checkpoint_is_not_made_from_a_damaged_block(path: Path) -> None:
    state = open_state(path)
    state.key_value("kv")["008-4"] = f"8 {VALUE}"  # the block is needed, because one of its rows changes
    state.commit()
    crash(state)
    (damaged,) = own_packs(path, 8)
    flip(damaged, damaged.read_bytes().rindex(VALUE.encode()))
    state = open_state(path)
    with pytest.raises(
        hs.errors.CheckpointError, match=r"the checkpoint of version 13 failed: .*block checksum mismatch"
    ):
        state.checkpoint(wait=True)
    assert state.metrics().failed_checkpoints == 1
    assert versions(path) == [4, 8]
    crash(state)
    with open_state(path) as state:
        assert (state.version, list(state.key_value("kv").all())) == (13, expected(12))


HOLDER = """
import sys
import hybridstore as hs
state = hs.open(sys.argv[1])
state.key_value("kv")["a"] = 1
state.commit()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_state_in_use_names_its_owner_and_that_of_a_dead_process_opens(tmp_path: Path) -> None:
    path = tmp_path / "state"
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        with pytest.raises(hs.StateLockedError, match=rf"in use by process {owner.pid} on \S+ since \d{{4}}-"):
            hs.open(path)
        owner.kill()
        owner.wait()
    assert f'"pid": {owner.pid}' in (path / "LOCK").read_text()
    with hs.open(path) as state:
        assert state.key_value("kv")["a"] == 1
