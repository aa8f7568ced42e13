"""Files: what is durable when a call returns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from changelog.files import Files, make_folders


class Noting(Files):
    """Notes what each synced directory has of a file at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[tuple[Path, int, bytes]] = []

    def sync_directory(self, path: Path) -> None:
        file = path / "segment.log"
        self.synced.append((path, file.stat().st_nlink, file.read_bytes()))
        super().sync_directory(path)


def test_a_file_with_a_second_name_is_copied_durably_before_it_is_appended_to(tmp_path: Path) -> None:
    owned, fork = tmp_path / "owned" / "segment.log", tmp_path / "fork" / "segment.log"
    for path in (owned, fork):
        path.parent.mkdir()
    owned.write_bytes(b"one")
    owned.chmod(0o640)
    os.link(owned, fork)
    files = Noting()
    appended = files.append(owned)
    # the copy's name is durable: without it a crash would bring back the shared file, and lose what was synced since
    assert files.synced == [(owned.parent, 1, b"one")]
    appended.write(b" two")
    appended.close()
    assert (owned.read_bytes(), fork.read_bytes()) == (b"one two", b"one")
    assert owned.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in owned.parent.iterdir()) == ["segment.log"]
    # a file of one name is opened as it is
    files.append(owned).close()
    assert len(files.synced) == 1


def test_a_path_is_synced_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    (tmp_path / "segment.log").write_bytes(b"one")
    Files().sync_path(tmp_path / "segment.log")
    Files().sync_directory(tmp_path)
    assert synced == [(tmp_path / "segment.log").stat().st_ino, tmp_path.stat().st_ino]


def test_the_names_of_new_directories_are_durable(tmp_path: Path) -> None:
    class Names(Files):
        """Notes what each synced directory has."""

        def __init__(self) -> None:
            super().__init__()
            self.synced: list[list[str]] = []

        def sync_directory(self, path: Path) -> None:
            self.synced.append([str(part.relative_to(tmp_path)) for part in path.iterdir()])

    (tmp_path / "a").mkdir()
    files = Names()
    make_folders(files, tmp_path / "a" / "b" / "c")
    assert files.synced == [["a"], ["a/b"], ["a/b/c"]]
    # those that another process has made, too
    make_folders(files, tmp_path / "a" / "b" / "c", tmp_path / "a" / "b")
    assert files.synced[-2:] == [["a/b/c"], ["a/b"]]
