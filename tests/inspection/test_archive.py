"""An archive of `pack` is looked into like what was packed; one that was changed, or made up, is refused and writes
nowhere else.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.reading import archive
from tests.inspection.test_spark import location
from tests.inspection.test_write import build

__all__ = ["location"]


def packed(path: Path, to: Path) -> Path:
    assert run(["inspect", "pack", str(path), "--to", str(to)]) == 0
    return to


def rewritten(source: Path, to: Path, change: Any) -> Path:
    """Copy an archive, its files and manifest as `change(files, manifest)` leaves them."""
    with zipfile.ZipFile(source) as old:
        files = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    change(files, manifest)
    with zipfile.ZipFile(to, "w") as new:
        for name, data in files.items():
            new.writestr(name, data)
        new.writestr("manifest.json", json.dumps(manifest))
    return to


def test_an_archive_shows_what_was_packed(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "s", seed)
    zipped = packed(tmp_path / "s", tmp_path / "s.zip")
    for command in (["info"], ["list"], ["verify", "--full"], ["restart"], ["log", "--commits"], ["stat"]):
        assert run(["inspect", command[0], str(zipped), *command[1:]]) == 0
    assert run(["inspect", "diff", str(zipped), str(tmp_path / "s")]) == 0
    assert run(["inspect", "scan", str(zipped), "kv", "--at", "11", "--limit", "2"]) == 0
    capsys.readouterr()
    state = hs.inspect(zipped)
    assert isinstance(state.version, int)  # type: ignore[union-attr]


def test_shards_are_packed_with_what_routes_their_keys(location: Path, tmp_path: Path) -> None:
    zipped = packed(location, tmp_path / "all.zip")
    with zipfile.ZipFile(zipped) as archive:
        assert "hybridstore/totals/operator/0000000001.json" in archive.namelist()
    assert list(hs.inspect(zipped).shards) == ["totals/0", "totals/1", "totals/2"]
    assert run(["inspect", "get", str(zipped), "sums", "k1"]) == 0


def test_a_single_file_can_be_packed(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    checkpoint = max((tmp_path / "s" / "checkpoints").glob("*.lmdb"))
    zipped = packed(checkpoint, tmp_path / "c.zip")
    assert run(["inspect", "verify", str(zipped)]) == 0
    segment = min((tmp_path / "s" / "changelog").glob("*.log"))
    assert run(["inspect", "log", str(packed(segment, tmp_path / "l.zip"))]) == 0


def test_an_existing_file_is_left_alone(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "s", seed)
    (tmp_path / "s.zip").write_text("precious")
    assert run(["inspect", "pack", str(tmp_path / "s"), "--to", str(tmp_path / "s.zip")]) == 3
    assert "cannot write: " in (error := capsys.readouterr().err)
    assert error.endswith("s.zip: exists already (give a new name)\n")
    assert (tmp_path / "s.zip").read_text() == "precious"


def test_what_was_unpacked_is_gone_when_the_process_ends(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    zipped = packed(tmp_path / "s", tmp_path / "s.zip")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "hybridstore", "inspect", "info", str(zipped)],
        env={"TMPDIR": str(scratch), "PATH": ""},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(scratch) in done.stdout
    assert list(scratch.iterdir()) == []


def change_a_file(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    name = manifest["files"][0]["name"]
    files[name] = files[name][:-1] + b"?"


def lengthen_a_file(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    files[manifest["files"][0]["name"]] += bytes(1 << 22)


def lose_a_file(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    del files[manifest["files"][0]["name"]]


def newer_format(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["hybridstore_pack"] = 2


def another_name(name: str) -> Any:
    def change(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
        files[name] = files.pop(manifest["files"][0]["name"])
        manifest["files"][0]["name"] = name

    return change


def huge(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["files"][0]["bytes"] = 1 << 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_a_file, "is not what the manifest says"),
        (lengthen_a_file, "is not what the manifest says"),
        (lose_a_file, "cannot be unpacked"),
        (newer_format, "expected 1"),
        (another_name("../LOCK"), "which no state has"),
        (another_name("/etc/LOCK"), "which no state has"),
        (another_name("changelog/../../head"), "which no state has"),
        (another_name("run.sh"), "which no state has"),
        (another_name("."), "which no state has"),
        (huge, "to unpack it (set TMPDIR"),
    ],
)
def test_an_archive_that_was_changed_is_refused(
    tmp_path: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "s", 1)
    zipped = rewritten(packed(tmp_path / "s", tmp_path / "s.zip"), tmp_path / "changed.zip", change)
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    assert run(["inspect", "info", str(zipped)]) == 3
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_any_other_zip_file_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("readme.txt", "hello")
    assert run(["inspect", "info", str(tmp_path / "other.zip")]) == 3
    assert "expected one that `hybridstore inspect pack` wrote" in capsys.readouterr().err
    (tmp_path / "cut.zip").write_bytes((tmp_path / "other.zip").read_bytes()[:40])
    assert run(["inspect", "info", str(tmp_path / "cut.zip")]) == 3
    assert "cannot be unpacked" in capsys.readouterr().err


def test_an_archive_is_unpacked_once_in_a_process(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    zipped = packed(tmp_path / "s", tmp_path / "s.zip")
    assert archive.unpacked(zipped) == archive.unpacked(zipped)
