"""Copies on a disk of states on an object store that nobody has committed to: forks, and fresh shards."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from changelog.bucket import Bucket
from changelog.storage import storage_at
from hybridstore.cli import run
from tests.state.test_far_forks import Place, build
from tests.state.test_rewind import rows


def copied_to(folder: Path, where: Bucket) -> Path:
    """Copy all objects to a folder, as a sync tool does."""
    storage = storage_at(where)
    for name in storage.list():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(storage.get(name))
    return folder


@pytest.mark.parametrize("version", [5, 7, 9, 12])
def test_a_copy_of_a_fork_on_a_disk_is_a_state(place: Place, version: int, tmp_path: Path) -> None:
    """Also of a fork that nobody has opened, which begins at a checkpoint, and of a fork of it."""
    seen = build(place("s"))
    hs.fork(place("s"), place("f"), at=version)
    hs.fork(place("f"), place("of f"))
    for name in ("f", "of f"):
        folder = copied_to(tmp_path / name, place(name))
        assert run(["inspect", "verify", str(folder)]) == 0
        with hs.open(folder) as state:
            assert (state.version, rows(state)) == (version, seen[version])
            state.key_value("rows").put("more", "1")
            state.commit()
        with hs.open(folder) as state:
            assert rows(state) == {**seen[version], "more": "1"}


def test_a_copy_of_a_rescaled_state_on_a_disk_is_a_state_before_its_first_commit(place: Place, tmp_path: Path) -> None:
    counts = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), emit="commit")
    source = [{"k": f"k{t % 7}", "t": t} for t in range(40)]
    first = [*counts.run(source[:20], place("s"), shards=2, commit_rows=5)]
    assert hs.rescale(place("s"), shards=3).into == 3
    folder = copied_to(tmp_path / "copy", place("s"))
    results = [sorted(map(repr, counts.run(source, where, shards=3, commit_rows=5))) for where in (folder, place("s"))]
    assert results[0] == results[1] != []
    assert first
