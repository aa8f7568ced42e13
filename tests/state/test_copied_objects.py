"""Python's `copy` of open states: it is refused, and the state goes on."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import hybridstore as hs
from changelog.files import AppendFile
from recovery.pack import OpenedPack


@pytest.mark.parametrize(
    "part",
    [lambda state: state, lambda state: state.key_value("users"), lambda state: state.snapshot()],
    ids=["state", "store", "snapshot"],
)
def test_a_deep_copy_is_refused_and_the_state_keeps_its_lock_and_files(
    tmp_path: Path, part: Callable[[hs.State], object]
) -> None:
    with hs.open(tmp_path / "state") as state:
        users = state.key_value("users")
        users["ann"] = 1
        state.commit()
        with pytest.raises(TypeError):
            copy.deepcopy(part(state))
        with pytest.raises(hs.StateLockedError):
            hs.open(tmp_path / "state")
        users["ann"] = 2
        assert state.commit() == 2
    with hs.open(tmp_path / "state") as state:
        assert dict(state.key_value("users").all()) == {"ann": 2}


@pytest.mark.parametrize("opened", [lambda path: AppendFile(path, create=False), OpenedPack], ids=["log", "pack"])
def test_a_copy_of_an_open_file_is_refused_and_the_file_stays_open(
    tmp_path: Path, opened: Callable[[Path], AppendFile | OpenedPack]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    file = opened(path)
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(file)
    os.fstat(file._fd)
