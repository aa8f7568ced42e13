"""Open files: a process has as many states as its hard limit lets it, and where that is reached nothing is lost."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.errors import StateDirectoryError
from hybridstore.state.opening import Tuning
from recovery import pack
from recovery.mapping import keep_room

TUNING = Tuning(block_records=10)
ROWS = {f"key {i:04d}": i for i in range(1100)}
OTHERS = 40  # files that a program may open beside the states


def make(path: Path) -> Path:
    """A state with 110 packs and a tail."""
    with hs.open(path, _tuning=TUNING) as state:
        state.key_value("kv").put_many(ROWS)
        state.commit()
        state.checkpoint(wait=True)
        state.key_value("kv").put("last", 1)
        state.commit()
    assert len(list((path / "packs").iterdir())) > 100
    return path


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.pack_bytes", lambda: 100)


def cannot_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mount that cannot map files: a pack takes a descriptor in every Python."""

    def refused(fd: int, size: int) -> None:
        raise OSError(errno.ENODEV, "cannot be mapped")

    monkeypatch.setattr(pack, "map_file", refused)


@pytest.fixture
def soft_limit() -> Iterator[Callable[[int], int]]:
    """Lower the soft limit of this process to so many open files more than it has; it is as before behind the test."""
    before, fill = resource.getrlimit(resource.RLIMIT_NOFILE), []

    def lower(more: int) -> int:
        highest = max(map(int, os.listdir("/dev/fd")))
        while not fill or fill[-1] < highest:  # no number below is free
            fill.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fill[-1] + 1 + more, before[1]))
        return fill[-1] + 1 + more

    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for fd in fill:
        os.close(fd)


@pytest.mark.parametrize("more", [100, 250])  # for less than one state, and for two of four
@pytest.mark.parametrize("mapped", [True, False])
def test_states_with_more_packs_than_the_soft_limit_of_open_files_are_open_beside_each_other(
    tmp_path: Path,
    soft_limit: Callable[[int], int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mapped: bool,
    more: int,
) -> None:
    if not mapped:
        cannot_map(monkeypatch)
    paths = [make(tmp_path / str(i)) for i in range(4)]
    caplog.set_level("INFO")
    soft = soft_limit(more)
    states = [hs.open(path, _tuning=TUNING) for path in paths]
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(OTHERS)]  # room for the program is left
    for i, state in enumerate(states):
        state.key_value("kv").put("key 0000", -i)
        state.commit()
        state.checkpoint(wait=True)
        assert dict(state.key_value("kv")) == ROWS | {"last": 1, "key 0000": -i}
        state.close()
    for fd in others:
        os.close(fd)
    raised = [record.getMessage() for record in caplog.records if "soft limit of open files" in record.getMessage()]
    if not mapped or sys.version_info < (3, 13):
        assert f"the soft limit of open files is {2 * soft}, was {soft}" in raised[0]
    else:
        assert raised == []


def test_a_state_for_which_the_hard_limit_is_too_low_says_so_and_is_whole(
    tmp_path: Path, soft_limit: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "s")
    cannot_map(monkeypatch)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = soft_limit(40)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    with pytest.raises(
        StateDirectoryError,
        match=rf"the checkpoint has 1\d\d packs, an open file each, and this process may have {soft} \(raise .*ulimit "
        r"-Hn.*no data was lost",
    ):
        hs.open(path, _tuning=TUNING)
    monkeypatch.undo()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with hs.open(path, _tuning=TUNING) as state:
        assert state.restore_report.skipped == []
        assert dict(state.key_value("kv")) == ROWS | {"last": 1}


def test_a_checkpoint_for_which_no_file_can_be_opened_does_not_count_as_damaged(
    tmp_path: Path, soft_limit: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "s")
    cannot_map(monkeypatch)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in range(8):  # the files of the lock, of the index, of LMDB, and the first packs
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        soft = soft_limit(more)
        with monkeypatch.context() as context:
            context.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
            with pytest.raises(StateDirectoryError, match=r"Too many open files.*no data was lost"):
                hs.open(path, _tuning=TUNING)


def test_a_low_number_of_the_file_that_is_mapped_does_not_hide_that_others_are_taken(
    soft_limit: Callable[[int], int],
) -> None:
    soft = soft_limit(5)
    keep_room(0)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft
