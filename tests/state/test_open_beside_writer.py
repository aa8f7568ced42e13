"""Reading beside a writer that checkpoints and prunes all the time: a version, or one of our errors; never less than
was seen before.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.opening import Tuning
from recovery import ladder, line
from tests.tools.faults import QuickFiles

WRITER = """
import sys
import hybridstore as hs
from hybridstore.state.opening import Tuning
hasty = hs.CheckpointPolicy(max_restore="1 hour", keep=1)
state = hs.open(sys.argv[1], durability="os", checkpoints=hasty, _tuning=Tuning(segment_bytes=300, block_records=8))
kv = state.key_value("kv")
number = 0
while True:
    number += 1
    kv[number % 50] = number
    kv[-1] = number
    state.commit()
    if number % 2 == 0:
        state.checkpoint(wait=True)
    if number == 5:
        print("up", flush=True)
"""


@pytest.mark.slow
@pytest.mark.stress
def test_every_opening_beside_a_writer_that_prunes_every_other_version_gives_a_version(
    tmp_path: Path, rounds: int
) -> None:
    path = tmp_path / "state"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "up\n"
        last = openings = 0
        while openings < max(15, rounds) or last <= 15:  # however slow the writer is
            openings += 1
            with hs.open(path, at="newest") as state:
                kv = state.key_value("kv")
                assert kv[-1] == state.version >= last
                last = state.version
                expected = {number % 50: number for number in range(max(1, last - 49), last + 1)}
                assert dict(kv.all()) == expected | {-1: last}
    finally:
        writer.kill()
        writer.communicate()


class Hasty:
    """A writer whose commits, checkpoints and prunes come whenever a reader has listed files and not read them yet."""

    def __init__(self, path: Path, times: int) -> None:
        policy = hs.CheckpointPolicy(max_restore="1 hour", keep=1)
        self.state = hs.open(path, checkpoints=policy, _files=QuickFiles(), _tuning=Tuning(segment_bytes=200))
        self.times = times
        self.go_on()

    def go_on(self) -> None:
        for _ in range(3):
            self.state.key_value("kv")["n"] = self.state.version + 1
            self.state.commit()
        self.state.checkpoint(wait=True)
        self.state.key_value("kv")["n"] = self.state.version + 1
        self.state.commit()

    def meanwhile(self, real: Any) -> Any:
        def listed(path: Path) -> list[int]:
            versions: list[int] = real(path)
            if self.times:
                self.times -= 1
                self.go_on()
            return versions

        return listed


@pytest.mark.parametrize(
    ("module", "listing"), [(line, "list_segments"), (ladder, "list_checkpoints")], ids=["segments", "checkpoints"]
)
def test_what_is_pruned_between_its_listing_and_its_reading_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, listing: str
) -> None:
    writer = Hasty(tmp_path / "state", times=4)
    monkeypatch.setattr(module, listing, writer.meanwhile(getattr(module, listing)))
    with hs.open(tmp_path / "state", at="newest") as state:
        assert writer.times == 0
        assert state.key_value("kv")["n"] == state.version == writer.state.version
    writer.state.close()


def test_a_version_that_a_writer_prunes_all_the_time_is_refused_with_one_of_our_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Hasty(tmp_path / "state", times=1000)
    monkeypatch.setattr(line, "list_segments", writer.meanwhile(line.list_segments))
    monkeypatch.setattr("recovery.retrying._WAIT_SECONDS", 0)
    with pytest.raises(hs.HybridStoreError):
        hs.open(tmp_path / "state", at="newest")
    writer.times = 0
    writer.state.close()


def test_threads_of_one_process_open_the_same_checkpoint_at_once(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state", _files=QuickFiles()) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        state.checkpoint(wait=True)
    assert len(list((tmp_path / "state" / "checkpoints").glob("*.lmdb"))) == 1
    failures: list[BaseException] = []
    together = threading.Barrier(6)

    def read() -> None:
        try:
            together.wait()
            for _ in range(10):
                with hs.open(tmp_path / "state", at="newest") as state:
                    assert state.restore_report.skipped == []
                    assert state.key_value("kv")["a"] == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
