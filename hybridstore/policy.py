"""Checkpoint policy: when to checkpoint, by how long a restart may take.

The estimate of a restart is the time to attach a checkpoint plus the time to replay what was logged since. A checkpoint is due
when the estimate passes the target, or by count of commits, or by age, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

# Measured on the reference machine (docs/performance.md); replaced by what this process measures in its own restores.
_ATTACH_SECONDS: Final = 0.003
_SECONDS_PER_MUTATION: Final = 1.0e-6
_SECONDS_PER_BYTE: Final = 2.0e-9


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When to checkpoint.

    max_restore    checkpoint when the estimated restart (to the first read) would take longer
    every_commits  also after this many commits (None: no such bound)
    max_age        also when the last checkpoint is older than this and something was committed since (None: no such bound)
    keep           how many checkpoints, with the changelog behind them, are retained (at least 1)
    """

    max_restore: timedelta = timedelta(seconds=1)
    every_commits: int | None = None
    max_age: timedelta | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep: found {self.keep}, expected 1 or more")
        if self.max_restore <= timedelta(0):
            raise ValueError(f"max_restore: found {self.max_restore}, expected a duration above 0")

    def estimate(self, log_bytes: int, mutations: int) -> float:
        """Return the estimated seconds from opening to the first read with this much changelog behind the checkpoint."""
        return _ATTACH_SECONDS + mutations * _SECONDS_PER_MUTATION + log_bytes * _SECONDS_PER_BYTE

    def due(self, log_bytes: int, mutations: int, commits: int, age_seconds: float) -> bool:
        """True when a checkpoint should begin now."""
        if commits == 0:
            return False
        if self.every_commits is not None and commits >= self.every_commits:
            return True
        if self.max_age is not None and age_seconds >= self.max_age.total_seconds():
            return True
        return self.estimate(log_bytes, mutations) > self.max_restore.total_seconds()
