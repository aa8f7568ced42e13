"""Restart: what opening a state directory would do, and how long it would take, without doing it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from changelog.errors import ForeignFileError
from recovery.plan import RestorePlan
from recovery.plan import plan as plan_restore

from .lock import check_for_loss
from .policy import SPEED, Logged


def plan(path: str | PathLike[str]) -> RestorePlan:
    """Return what a restore of the state directory `path` would do, and the estimate of its time; nothing is changed.

    Also when it would be refused: `problem` then says why. Raises ForeignFileError when there is no such directory.
    O(tail).
    """
    where = Path(path)
    if not where.is_dir():
        raise ForeignFileError(f"{where}: not a state directory")
    restart = plan_restore(where, check=lambda reached: check_for_loss(where, reached))
    restart.seconds = SPEED.estimate(
        Logged.of(restart.tail_versions, restart.tail_bytes, restart.tail_counts, restart.kinds)
    )
    return restart
