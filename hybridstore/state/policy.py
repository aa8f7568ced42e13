"""Checkpoint policy: when to checkpoint, given how long a restart may take.

The estimate of a restart is the time to attach a checkpoint plus the time to replay the records logged since, at the
speed of this machine. A short replay is timed once in each process, and every real restore corrects the speed. A
checkpoint is due when the estimate passes the target, or by count of commits, or by age, whichever comes first; and
earlier, for an aim, as long as checkpoints write few bytes in proportion to the logged bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

from changelog.codec import pack, unpack
from changelog.storage import LocalStorage, Storage
from recovery.object_log import ROUND

from ..clock import Duration, duration_ms
from ..stores.kinds import KINDS

# The following numbers are of the machine where the sample below took _SAMPLE_SECONDS
# (benchmarks/suites/restart_estimate.py).
_SAMPLE_SECONDS: Final = 170e-6
_SAMPLE: Final = [item for i in range(1000) for item in (19, f"k{i % 100}", "x" * 16, i)]
_ATTACH_SECONDS: Final = 0.002
# Reading, checksum, digest and unpacking, per byte of the log; finding and checking a version that was committed by
# itself.
_SECONDS_PER_BYTE: Final = 7.0e-9
_SECONDS_PER_COMMIT: Final = 20e-6
# Applying a record whose kind of store gives no time of its own (`Kind.seconds`).
_SECONDS_PER_OTHER_RECORD: Final = 0.4e-6
# Towards an aim, checkpoints write at most this many records more than are logged: the tail holds at least a third of
# what the last one did.
_AIM_RECORDS: Final = 3
# Not at every commit: a window of a few commits turns over so fast that each checkpoint would write all of it.
_AIM_COMMITS: Final = 2
# A restore of fewer records is too short to measure the speed.
_ENOUGH: Final = 2000
# What a request to an object store usually takes, at least.
REQUEST_SECONDS: Final = 0.02


def commit_seconds(storage: Storage, request_seconds: float = REQUEST_SECONDS) -> float:
    """Return how long a restart waits for a commit of a changelog on this storage, besides the replay.

    On an object store each commit is an object, and a round of requests takes as long as one of them; on a disk the
    kernel reads ahead. O(1).
    """
    return 0.0 if isinstance(storage, LocalStorage) else request_seconds / ROUND


# A record of more bytes than these counts as several where memory is short.
RECORD_BYTES: Final = 1024


class Logged(NamedTuple):
    """An amount of changelog: commits, bytes, records, and the seconds of their replay on the reference machine."""

    commits: int = 0
    bytes: int = 0
    records: int = 0
    seconds: float = 0.0

    @property
    def weight(self) -> int:
        """How many records these count as where memory is short: large ones as many as fit into their bytes. O(1)."""
        return max(self.records, self.bytes // RECORD_BYTES)

    @classmethod
    def of(cls, commits: int, size: int, counts: Mapping[int, int], kinds: Mapping[int, str]) -> Logged:
        """Return what this many commits and bytes with these records are: by mutation code, of stores of these kinds by
        number.

        O(codes).
        """
        seconds = commits * _SECONDS_PER_COMMIT + size * _SECONDS_PER_BYTE
        for code, count in counts.items():
            kind = KINDS.get(kinds.get(code >> 4, ""))
            seconds += count * (kind.seconds if kind else {}).get(code & 15, _SECONDS_PER_OTHER_RECORD)
        return cls(commits, size, sum(counts.values()), seconds)

    def plus(self, other: Logged) -> Logged:
        """Return the sum of both."""
        return Logged(
            self.commits + other.commits,
            self.bytes + other.bytes,
            self.records + other.records,
            self.seconds + other.seconds,
        )


class RestoreSpeed:
    """The speed of restores in this process: the estimate for the reference machine times a measured factor."""

    def __init__(self) -> None:
        # The sample's time here, divided by its time there. The sample takes a millisecond, so it runs when the factor
        # is first needed, and not at every opening.
        self._sampled: float | None = None
        # The factor is this share of that, and what restores have shown.
        self._share, self._observed = 1.0, 0.0
        self._attach = _ATTACH_SECONDS

    @property
    def factor(self) -> float:
        """How many times slower this machine is than the reference. The first call takes about a millisecond."""
        if self._sampled is None:
            body = pack(_SAMPLE)
            self._sampled = min(_timed_replay(body) for _ in range(3)) / _SAMPLE_SECONDS
        return self._share * self._sampled + self._observed

    def estimate(self, logged: Logged, commit_seconds: float = 0.0) -> float:
        """Return the estimated seconds from opening to the first read with this much changelog behind the
        checkpoint; `commit_seconds` is how long a restart waits for a commit, besides the replay.
        """
        return self._attach + self.factor * logged.seconds + commit_seconds * logged.commits

    def observe(self, attach_seconds: float, replay_seconds: float, logged: Logged) -> None:
        """Learn from a finished restore, which counts as much as all restores before. O(1)."""
        self._attach = (self._attach + attach_seconds) / 2
        if logged.records >= _ENOUGH:
            self._share /= 2
            self._observed = (self._observed + replay_seconds / logged.seconds) / 2


def _timed_replay(body: bytes) -> float:
    started = time.perf_counter()
    flat, rows = unpack(body), dict[Any, Any]()
    for i in range(0, len(flat), 4):
        rows[flat[i + 1], flat[i + 3]] = flat[i + 2]
    return time.perf_counter() - started


# One for the process: the speed is the machine's, so a restore of one state helps to estimate the next one.
SPEED: Final = RestoreSpeed()


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When to checkpoint. Durations are a timedelta, an int of ms, or text such as "5 minutes".

    max_restore    checkpoint when the estimated restart (to the first read) would take longer
    every_commits  also after this many commits, at least 1 (None: no such bound)
    max_age        also when the last checkpoint is older than this and something was committed since (None: no such
                   bound)
    keep           how many checkpoints, with the changelog behind them, are retained (at least 1)
    aim            checkpoint when the replay would take longer than this, as long as at most three records are written
                   for each logged record, and when the state is closed (None: no aim). Topologies and Spark's shards
                   aim at 25 ms

    Raises TypeError for other types, ValueError for other values.

    >>> policy = hs.CheckpointPolicy(every_commits=2)
    >>> state = hs.open("state", checkpoints=policy)
    >>> for visits in (1, 2):
    ...     state.key_value("users")["ann"] = visits
    ...     state.commit()
    1
    2
    >>> state.close()  # waits for the checkpoint
    >>> hs.inspect("state").restart().checkpoint_version
    2
    """

    max_restore: Duration = timedelta(seconds=1)
    every_commits: int | None = None
    max_age: Duration | None = None
    keep: int = 2
    aim: Duration | None = None
    _restore_seconds: float = field(init=False, repr=False, compare=False)
    _age_seconds: float = field(init=False, repr=False, compare=False)
    _aim_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, count in (("keep", self.keep), ("every_commits", self.every_commits)):
            if count is None and name == "every_commits":
                continue
            if type(count) is not int:
                raise TypeError(f"CheckpointPolicy: {name}: found {type(count).__name__}, expected int")
            if count < 1:
                raise ValueError(f"CheckpointPolicy: {name}: found {count}, expected 1 or more")
        object.__setattr__(self, "_restore_seconds", _seconds(self.max_restore, "max_restore"))
        age = float("inf") if self.max_age is None else _seconds(self.max_age, "max_age")
        object.__setattr__(self, "_age_seconds", age)
        aim = float("inf") if self.aim is None else _seconds(self.aim, "aim")
        object.__setattr__(self, "_aim_seconds", aim)

    def estimate(self, logged: Logged, commit_seconds: float = 0.0) -> float:
        """Return the estimated seconds from opening to the first read with this much changelog behind the
        checkpoint; `commit_seconds` is how long a restart waits for a commit, besides the replay (0 on a disk).
        """
        return SPEED.estimate(logged, commit_seconds)

    def due(self, logged: Logged, age_seconds: float, records: int, commit_seconds: float = 0.0) -> bool:
        """True when a checkpoint should begin now, given the amount logged since the last checkpoint, its age and its
        records, and how long a restart waits for a commit.
        """
        if logged.commits == 0:
            return False
        if self.every_commits is not None and logged.commits >= self.every_commits:
            return True
        if age_seconds >= self._age_seconds or self.estimate(logged, commit_seconds) > self._restore_seconds:
            return True
        return logged.commits >= _AIM_COMMITS and _AIM_RECORDS * logged.records >= records and self.due_at_close(logged)

    def due_at_close(self, logged: Logged) -> bool:
        """True when closing the state should make a checkpoint: without it the next restart would miss the aim."""
        return logged.commits > 0 and SPEED.factor * logged.seconds > self._aim_seconds


def _seconds(value: Duration, name: str) -> float:
    if isinstance(value, timedelta) and value > timedelta(0):
        return value.total_seconds()  # a restart may be bounded in microseconds
    return duration_ms(value, f"CheckpointPolicy: {name}") / 1000
