"""Restart: the plan of opening a state directory, and its estimated time, without opening the state."""

from __future__ import annotations

import os
from os import PathLike

from changelog.errors import ForeignFileError
from changelog.storage import LocalStorage, local_path
from recovery.plan import RestorePlan
from recovery.plan import plan as plan_restore

from .generations import identity_at
from .lock import check_for_loss, is_state
from .policy import SPEED, Logged


def plan(path: str | PathLike[str]) -> RestorePlan:
    """Return the plan of a restore of the state directory `path`, with the estimate of its time; nothing is changed.

    For a restore that would be refused, `problem` says why. Raises ForeignFileError when the directory does not exist.
    O(tail).
    """
    where = local_path(path)
    if not where.is_dir():
        raise ForeignFileError(
            f"{where}: found {'a file' if where.exists() else 'nothing'}, expected a state directory"
        )
    is_state(where, set(os.listdir(where)))
    restart = plan_restore(
        where, check=lambda reached: check_for_loss(where, reached), identity=identity_at(LocalStorage(where))
    )
    tail = Logged.of(restart.tail_versions, restart.tail_bytes, restart.tail_counts, restart.kinds)
    restart.duration_ms = SPEED.estimate(tail) * 1000
    return restart
