"""The writer process makes the checkpoint of a long tail in pieces, which bound what it has in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import AppendFile, Files
from changelog.storage import LocalStorage
from hybridstore.state import checkpoint_job
from hybridstore.state.checkpoint_job import make
from hybridstore.state.checkpointer import Target
from recovery.layout import list_checkpoints
from recovery.write import CheckpointReport
from tests.tools.checkpoints import verify
from tests.tools.hooks import crash
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(max_restore="1 day")


def checkpoint_beside(state: hs.State, alive: Callable[[], None] = lambda: None) -> CheckpointReport:
    """Make a checkpoint as the process does, of which the owner never hears."""
    group, log = state._group, state._log
    assert log is not None
    target = Target(state._home.storage, state._identity, group.version, group.digest, log.position)
    reader = state._checkpoints.reader
    job = state._home.job(target, None if reader is None else str(reader.name))
    assert job is not None
    outcome = make(job, alive)
    assert (outcome.error, outcome.prune_error) == (None, None)
    assert outcome.report is not None
    return outcome.report


def test_a_checkpoint_of_the_process_has_the_type_of_keys(tmp_path: Path) -> None:
    with hs.open(tmp_path, durability="os", checkpoints=NEVER) as state:
        state.key_value("kv")[1] = "a"
        state.window("w", retention="1 hour").put(1, "a", 5)
        state.commit()
        checkpoint_beside(state)
        crash(state)
    with hs.open(tmp_path) as state:
        assert state.restore_report.tail_versions == 0
        with pytest.raises(TypeError, match="expected int as"):
            state.key_value("kv")["text"] = "b"
        with pytest.raises(TypeError, match="expected int as"):
            state.window("w", retention="1 hour").put("text", "b", 6)


def test_the_process_gives_a_sign_of_life_before_each_name_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Watched(Files):
        def create(self, path: Path) -> AppendFile:
            done.append("create")
            return super().create(path)

        def remove(self, path: Path) -> None:
            done.append("remove")
            super().remove(path)

    monkeypatch.setattr(checkpoint_job, "Files", Watched)
    with hs.open(tmp_path, durability="os", checkpoints=NEVER) as state:
        for number in range(6):
            state.key_value("kv").put(number, number)
            state.commit()
            checkpoint_beside(state, lambda: done.append("sign"))
    changes = [at for at, what in enumerate(done) if what != "sign"]
    assert {"create", "remove"} <= set(done)
    assert [at for at in changes if done[at - 1] != "sign"] == []


@pytest.mark.parametrize(("records", "size"), [(10, 1 << 20), (150_000, 1200)], ids=["by records", "by bytes"])
def test_many_changes_are_written_in_pieces_that_bound_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int, size: int
) -> None:
    monkeypatch.setattr(checkpoint_job, "PIECE_RECORDS", records)
    monkeypatch.setattr(checkpoint_job, "PIECE_BYTES", size)
    write, reports = checkpoint_job.write_checkpoint, list[CheckpointReport]()

    def reported(*given: Any, **named: Any) -> CheckpointReport:
        reports.append(write(*given, **named))
        return reports[-1]

    with hs.open(tmp_path, durability="os", checkpoints=NEVER) as state:
        kv = state.key_value("kv")
        kv["first"] = 0
        state.commit()
        state.checkpoint(wait=True)
        for commit in range(10):  # of 4 records and some 440 bytes; one of them has more than a piece
            for i in range(40 if commit == 5 else 4):
                kv[f"k{commit} {i}"] = "x" * 100
            state.commit()
        monkeypatch.setattr(checkpoint_job, "write_checkpoint", reported)
        last = checkpoint_beside(state)
        # that of version 1 is kept as well, which the owner reads
        assert [name.version for name in list_checkpoints(LocalStorage(tmp_path))] == [1, 9, 11]
        assert [report.version for report in reports] == [3, 5, 6, 7, 9, 11]
        assert (last.version, last.bytes_written) == (11, sum(report.bytes_written for report in reports))
        right = dict(kv.all())
        assert len(right) == 77
        kv["next"] = 1
        state.commit()
        checkpoint_beside(state)
        assert [name.version for name in list_checkpoints(LocalStorage(tmp_path))] == [1, 11, 12]
        assert list(verify(tmp_path, decode=True)) == []
        crash(state)
    with hs.open(tmp_path) as state:
        assert state.restore_report.tail_versions == 0
        assert dict(state.key_value("kv").all()) == right | {"next": 1}


def test_the_process_has_no_large_pack_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_job, "MOST_PACK_BYTES", 3000)
    dice = random.Random(1)
    with hs.open(tmp_path, durability="os", checkpoints=NEVER, _tuning=SMALL) as state:
        kv = state.key_value("kv")
        kv["first"] = b""
        state.commit()
        state.checkpoint(wait=True)
        rows = {f"key {i:03}": dice.randbytes(100) for i in range(200)}
        kv.put_many(list(rows.items()))
        state.commit()
        checkpoint_beside(state)
        sizes = [path.stat().st_size for path in (tmp_path / "packs").iterdir()]
        # the last lines of a pack come behind its blocks
        assert sum(sizes) > 20_000
        assert max(sizes) < 3600
        crash(state)
    with hs.open(tmp_path) as state:
        assert state.restore_report.tail_versions == 0
        assert dict(state.key_value("kv").all()) == {"first": b"", **rows}
