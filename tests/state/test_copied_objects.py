"""Python's `copy` of open states: it is refused, and the state goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

import hybridstore as hs


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
