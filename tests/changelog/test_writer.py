"""Writer: one segment after the other, sync before acknowledgement, and poison after any failure."""

import errno
import os
from pathlib import Path

import pytest

from changelog.errors import StatePoisonedError
from changelog.files import AppendFile, Files
from changelog.frame import CommitFrame
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST
from changelog.reader import SegmentReader
from changelog.segment import HEADER_BYTES, list_segments, segment_name
from changelog.writer import ChangelogWriter

STORE = Identity(bytes(range(16)))


def commit(version: int) -> CommitFrame:
    return CommitFrame(version, bytes([version] * 16), {19: 1}, 0, {}, {})


def body(text: str) -> bytes:
    return b"\xdd\x00\x00\x00\x01" + bytes([0xA0 + len(text)]) + text.encode()


class Recording(Files):
    """Writes down what is asked of the file system, and fails where it is told to."""

    def __init__(self, fail: str = "", code: int = errno.ENOSPC) -> None:
        self.calls: list[str] = []
        self.fail = fail
        self.code = code

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fail:
            raise OSError(self.code, "the disk is full")

    def create(self, path: Path) -> AppendFile:
        self.note("create")
        return RecordingFile(self, path, True)

    def append(self, path: Path) -> AppendFile:
        self.note("append")
        return RecordingFile(self, path, False)

    def sync_directory(self, path: Path) -> None:
        self.note("sync_directory")


class RecordingFile(AppendFile):
    __slots__ = ("files",)

    def __init__(self, files: Recording, path: Path, create: bool) -> None:
        super().__init__(path, create=create)
        self.files = files

    def write(self, data: bytes) -> None:
        self.files.note("write")
        super().write(data)

    def sync(self) -> None:
        self.files.note("sync")

    def truncate(self, size: int) -> None:
        self.files.note("truncate")
        super().truncate(size)


def writer(path: Path, files: Files | None = None, **options: int) -> ChangelogWriter:
    writer = ChangelogWriter(path, STORE, files=files or Files(), **options)
    writer.begin(0, EMPTY_DIGEST)
    return writer


def versions(path: Path) -> list[int]:
    firsts = list_segments(path)
    readers = [SegmentReader(path / segment_name(first), last=first == firsts[-1]) for first in firsts]
    return [version.commit.version for reader in readers for version in reader.versions()]


def test_header_and_name_are_durable_before_the_first_commit(tmp_path: Path) -> None:
    files = Recording()
    log = writer(tmp_path, files)
    log.mutations(body("a"))
    log.commit(commit(1))
    assert files.calls == ["create", "write", "sync", "sync_directory", "write", "write", "sync"]
    log.mutations(body("b"))
    log.commit(commit(2))
    assert files.calls[7:] == ["write", "write", "sync"]
    log.close(None)


def test_without_sync_the_kernel_decides(tmp_path: Path) -> None:
    files = Recording()
    log = ChangelogWriter(tmp_path, STORE, sync=False, files=files)
    log.begin(0, EMPTY_DIGEST)
    log.commit(commit(1))
    assert "sync" not in files.calls
    log.close(commit(1))
    assert files.calls[-2:] == ["write", "sync"]


def test_a_full_segment_is_followed_by_a_new_one(tmp_path: Path) -> None:
    log = writer(tmp_path, segment_bytes=256)
    for version in range(1, 7):
        log.mutations(body("x" * 20))
        log.commit(commit(version))
    log.close(None)
    assert list_segments(tmp_path) == [1, 3, 5]
    assert versions(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert log.bytes_written == sum(path.stat().st_size - HEADER_BYTES for path in tmp_path.iterdir())
    header = SegmentReader(tmp_path / segment_name(5), last=True).header
    assert (header.identity, header.parent_version, header.parent_digest) == (STORE, 4, bytes([4] * 16))


def test_a_version_is_never_cut_by_a_new_segment(tmp_path: Path) -> None:
    log = writer(tmp_path, segment_bytes=100)
    for _ in range(20):
        log.mutations(body("x" * 20))
    log.commit(commit(1))
    log.close(None)
    assert list_segments(tmp_path) == [1]


def test_a_rollback_leaves_what_was_committed(tmp_path: Path) -> None:
    files = Recording()
    log = writer(tmp_path, files)
    log.mutations(body("a"))
    log.commit(commit(1))
    size = (tmp_path / segment_name(1)).stat().st_size
    log.mutations(body("b"))
    files.calls.clear()
    log.rollback()
    assert files.calls == ["truncate", "sync"]
    assert (tmp_path / segment_name(1)).stat().st_size == size
    log.mutations(body("c"))
    log.commit(commit(2))
    log.close(None)
    assert versions(tmp_path) == [1, 2]


def test_a_rollback_before_the_first_commit_leaves_the_header(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.mutations(body("a"))
    log.rollback()
    assert (tmp_path / segment_name(1)).stat().st_size == HEADER_BYTES
    log.commit(commit(1))
    log.close(None)
    assert versions(tmp_path) == [1]


def test_going_on_cuts_what_was_not_committed(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.commit(commit(1))
    position = log.position
    log.mutations(body("lost"))
    log.close(None)
    reader = SegmentReader(tmp_path / segment_name(1), last=True)
    assert [version.position for version in reader.versions()] == [position]
    log = ChangelogWriter(tmp_path, STORE)
    log.resume(position, reader.raw_header, 1, bytes([1] * 16))
    log.mutations(body("kept"))
    log.commit(commit(2))
    log.close(commit(2))
    reader = SegmentReader(tmp_path / segment_name(1), last=True)
    assert [version.bodies for version in reader.versions()] == [[], [body("kept")]]
    assert reader.ended == commit(2)


def test_a_segment_shorter_than_the_position_is_not_gone_on_with(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.commit(commit(1))
    log.close(None)
    path = tmp_path / segment_name(1)
    header = path.read_bytes()[:HEADER_BYTES]
    path.write_bytes(header)
    with pytest.raises(StatePoisonedError, match=f"has {HEADER_BYTES} bytes, expected"):
        ChangelogWriter(tmp_path, STORE).resume(log.position, header, 1, bytes(16))


@pytest.mark.parametrize("fail", ["create", "write", "sync", "sync_directory"])
def test_any_failure_poisons_and_names_the_cause(tmp_path: Path, fail: str) -> None:
    log = writer(tmp_path, Recording(fail))

    def both() -> None:
        log.mutations(body("a"))
        log.commit(commit(1))

    with pytest.raises(StatePoisonedError, match="the disk is full") as caught:
        both()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert log.health.poisoned
    for again in (lambda: log.mutations(body("b")), lambda: log.commit(commit(1)), log.rollback, log.health.check):
        with pytest.raises(StatePoisonedError, match="the disk is full"):
            again()
    log.close(commit(1))


def test_a_sync_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    files = Recording("sync", errno.EIO)
    log = writer(tmp_path, files)
    for _ in range(3):
        with pytest.raises(StatePoisonedError):
            log.commit(commit(1))
    log.close(commit(1))
    assert files.calls.count("sync") == 1


def test_a_poisoned_writer_writes_no_end_mark(tmp_path: Path) -> None:
    files = Recording()
    log = writer(tmp_path, files)
    log.commit(commit(1))
    files.fail = "write"
    with pytest.raises(StatePoisonedError):
        log.mutations(body("a"))
    files.fail = ""
    log.close(commit(1))
    reader = SegmentReader(tmp_path / segment_name(1), last=True)
    assert [version.commit.version for version in reader.versions()] == [1]
    assert reader.ended is None


def test_what_the_kernel_takes_in_pieces_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    file = AppendFile(tmp_path / "f", create=True)
    for text in (b"", b"1234567", bytes(range(100))):
        file.write(text)
    file.close()
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"1234567" + bytes(range(100))
    assert file.size == 107
