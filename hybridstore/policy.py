"""Checkpoint policy: when to checkpoint, by how long a restart may take.

The estimate of a restart is the time to attach a checkpoint plus the time to replay what was logged since, at the speed of
this machine: a short replay is timed once in each process, and every real restore corrects it. A checkpoint is due
when the estimate passes the target, or by count of commits, or by age, whichever comes first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Final

from changelog.codec import pack, unpack
from changelog.errors import ForeignFileError
from recovery import plan as recovery_plan
from recovery.plan import RestorePlan

from .clock import Duration, duration_ms

# On the machine where the sample below took _SAMPLE_SECONDS (docs/performance.md).
_ATTACH_SECONDS: Final = 0.002
_SECONDS_PER_MUTATION: Final = 0.85e-6
_SECONDS_PER_BYTE: Final = 7.0e-9
_SAMPLE_SECONDS: Final = 170e-6
_SAMPLE: Final = [item for i in range(1000) for item in (19, f"k{i % 100}", "x" * 16, i)]
# A restore of fewer mutations says little about speed.
_ENOUGH: Final = 2000


class RestoreSpeed:
    """How fast restores are in this process: the estimate for a reference machine times a factor that is measured."""

    def __init__(self) -> None:
        self._factor: float | None = None
        self._attach = _ATTACH_SECONDS

    @property
    def factor(self) -> float:
        """How many times slower this machine is than the reference. The first call takes under a millisecond."""
        if self._factor is None:
            body = pack(_SAMPLE)
            self._factor = min(_timed_replay(body) for _ in range(3)) / _SAMPLE_SECONDS
        return self._factor

    def estimate(self, log_bytes: int, mutations: int) -> float:
        """Return the estimated seconds from opening to the first read with this much changelog behind the checkpoint."""
        return self._attach + self.factor * _reference(log_bytes, mutations)

    def observe(self, attach_seconds: float, replay_seconds: float, log_bytes: int, mutations: int) -> None:
        """Learn from a restore that was done; it counts as much as all that was known before."""
        self._attach = (self._attach + attach_seconds) / 2
        if mutations >= _ENOUGH:
            self._factor = (self.factor + replay_seconds / _reference(log_bytes, mutations)) / 2


def _reference(log_bytes: int, mutations: int) -> float:
    return mutations * _SECONDS_PER_MUTATION + log_bytes * _SECONDS_PER_BYTE


def _timed_replay(body: bytes) -> float:
    started = time.perf_counter()
    flat, rows = unpack(body), dict[Any, Any]()
    for i in range(0, len(flat), 4):
        rows[flat[i + 1], flat[i + 3]] = flat[i + 2]
    return time.perf_counter() - started


# Of the process: the speed is the machine's, and one state's restore tells about the next one's.
SPEED: Final = RestoreSpeed()


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When to checkpoint. Durations are a timedelta, an int of ms, or text such as "5 minutes".

    max_restore    checkpoint when the estimated restart (to the first read) would take longer
    every_commits  also after this many commits, at least 1 (None: no such bound)
    max_age        also when the last checkpoint is older than this and something was committed since (None: no such bound)
    keep           how many checkpoints, with the changelog behind them, are retained (at least 1)

    Raises TypeError for other types, ValueError for other values.
    """

    max_restore: Duration = timedelta(seconds=1)
    every_commits: int | None = None
    max_age: Duration | None = None
    keep: int = 2
    _restore_seconds: float = field(init=False, repr=False, compare=False)
    _age_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, count in (("keep", self.keep), ("every_commits", self.every_commits)):
            if count is None and name == "every_commits":
                continue
            if type(count) is not int:
                raise TypeError(f"{name}: found {type(count).__name__}, expected int")
            if count < 1:
                raise ValueError(f"{name}: found {count}, expected 1 or more")
        object.__setattr__(self, "_restore_seconds", _seconds(self.max_restore, "max_restore"))
        age = float("inf") if self.max_age is None else _seconds(self.max_age, "max_age")
        object.__setattr__(self, "_age_seconds", age)

    def estimate(self, log_bytes: int, mutations: int) -> float:
        """Return the estimated seconds from opening to the first read with this much changelog behind the checkpoint."""
        return SPEED.estimate(log_bytes, mutations)

    def due(self, log_bytes: int, mutations: int, commits: int, age_seconds: float) -> bool:
        """True when a checkpoint should begin now."""
        if commits == 0:
            return False
        if self.every_commits is not None and commits >= self.every_commits:
            return True
        return age_seconds >= self._age_seconds or self.estimate(log_bytes, mutations) > self._restore_seconds


def _seconds(value: Duration, name: str) -> float:
    if isinstance(value, timedelta) and value > timedelta(0):
        return value.total_seconds()  # a restart may be bounded in microseconds
    return duration_ms(value, name) / 1000


def plan(path: str | PathLike[str]) -> RestorePlan:
    """Return what a restore of the state directory `path` would do, and the estimate of its time; nothing is changed.

    Also when it would be refused: `problem` then says why. Raises ForeignFileError when there is no such directory. O(tail).
    """
    where = Path(path)
    if not where.is_dir():
        raise ForeignFileError(f"{where}: not a state directory")
    made = recovery_plan.plan(where)
    made.seconds = SPEED.estimate(made.tail_bytes, made.tail_mutations)
    return made
