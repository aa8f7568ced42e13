"""Buckets: the nested maps of every store: bucket -> key -> run; some parts are still in the checkpoint.

A window or session store has one bucket per span of time, any other store a single one. A run is the records of one key
in a bucket. A bucket over a checkpoint, by key:

    keys          a   b   c   d   e   f   g   h
    cold          [-- block 7 --]                       read when one of its keys is touched
    runs              b   X       e   f   g   h         over a cold block an overlay, which wins over it
    tombstoned            c                             deleted (X), though the block may hold it
    dirty             b   c       e                     changed since the last checkpoint
    owned             b           e                     not shared with a snapshot

    dirty       None while no checkpoint holds the bucket: then every key counts as changed
    since       no row in a checkpoint has this time or a later one: a changed key has new rows from there on only
    late        keys that changed before that, and from which time on
    owned       None while no snapshot shares the runs: then every run may be changed in place
    epoch       the snapshot epoch the bucket was made in: while a snapshot lives, an older bucket is copied before it
                is changed (`snapshots`), and `owned` begins as the empty set
    records     the number of records, an estimate while blocks are cold
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, Self

from ..clock import INT64_MAX
from .cold_blocks import Cold, copied, covering

# In place of a deleted record in an overlay, until its cold block is loaded.
TOMBSTONE: Final = type("Tombstone", (), {"__repr__": lambda self: "TOMBSTONE", "__slots__": ()})()


# Shared by all buckets without tombstones: never added to.
_NO_KEYS: Final[set[Any]] = set()


class SealedBucket(NamedTuple):
    """What a bucket knew of its changes (`dirty`, `since`, `late`) when it was sealed for a checkpoint."""

    dirty: set[Any] | None
    since: int
    late: dict[Any, int]


class Sealed(NamedTuple):
    """What a store knew of its changes when it was sealed: by the number of the bucket, and the buckets that expired.

    `beside` has the keys whose values lie beside a cold block that has none of them: see sliding_runs.py.
    """

    store: int
    buckets: dict[int, SealedBucket]
    dropped: set[int] = _NO_KEYS
    beside: set[Any] = _NO_KEYS


class StoreBucket:
    """One bucket: see the picture above.

    A store that is not cut by time has a single one, and takes no snapshots of it.
    """

    __slots__ = ("cold", "dirty", "epoch", "late", "owned", "records", "runs", "since", "tombstoned")

    def __init__(self, epoch: int) -> None:
        self.runs: dict[Any, Any] = {}
        self.cold: list[Cold] = []
        self.dirty: set[Any] | None = None
        self.since = 0
        self.late: dict[Any, int] = {}
        self.records = 0
        self.epoch = epoch
        # None: no run is shared with a snapshot. A set: the runs of all other keys are shared with a snapshot.
        self.owned: set[Any] | None = None
        # Keys whose run has tombstones over a cold block; the block may not even hold them.
        self.tombstoned: set[Any] = _NO_KEYS

    def clone(self, epoch: int) -> Self:
        """Return a copy that may be changed while snapshots keep this one. O(keys + blocks), runs are shared until
        written.
        """
        copy = type(self)(epoch)
        copy.runs = self.runs.copy()
        copy.cold = copied(self.cold)
        copy.dirty = self.dirty if self.dirty is None else self.dirty.copy()
        copy.since = self.since
        copy.late = self.late.copy()
        copy.records = self.records
        copy.owned = set()
        copy.tombstoned = self.tombstoned.copy() if self.tombstoned else _NO_KEYS
        return copy

    def over_newer(self, epoch: int, *, shared: bool) -> Self:
        """Return a bucket with the runs of the changed keys alone, to lie over blocks of the newest checkpoint. Where a
        snapshot has no share in the runs, they leave this bucket. O(changed), O(keys) where most have changed.
        """
        assert self.dirty is not None
        bucket, dirty, before = type(self)(epoch), self.dirty, self.runs
        if not shared and 2 * len(dirty) > len(before):
            self.runs = {key: before.pop(key) for key in [key for key in before if key not in dirty]}
            bucket.runs = before
        else:
            leave = before.get if shared else before.pop
            bucket.runs = runs = dict(zip(dirty, map(leave, dirty, repeat(None)), strict=True))
            for key in [key for key, run in runs.items() if run is None]:
                del runs[key]
        bucket.dirty, bucket.since, bucket.late = self.dirty, self.since, self.late
        bucket.owned = set() if shared else None
        bucket.tombstoned = self.tombstoned & self.dirty if self.tombstoned else _NO_KEYS
        return bucket

    def changed(self, keys: Collection[Any], times: Sequence[int]) -> None:
        """Note that rows of these keys changed at these times (at least one). O(rows)."""
        if self.dirty is not None:
            self.dirty.update(keys)
            self.note_late(keys, times)

    def note_late(self, keys: Iterable[Any], times: Sequence[int]) -> None:
        """Note the rows among those that changed, at these times, which may replace some of a checkpoint. O(rows)."""
        since, late = self.since, self.late
        if min(times) < since:
            for key, ts in zip(keys, times, strict=True):
                if ts < late.get(key, since):
                    late[key] = ts

    def captured(self, through: int) -> None:
        """All changes are in a checkpoint now, and none of its rows is later than `through`. O(1)."""
        if through >= self.since:
            self.since = through + 1 if through < INT64_MAX else INT64_MAX
        self.late = {}

    def uncaptured(self, sealed: SealedBucket) -> None:
        """The changes up to a seal are in no checkpoint, after all: add what changed since to them. O(late)."""
        since, late = sealed.since, sealed.late
        for key, time in self.late.items():
            if time < late.get(key, since):
                late[key] = time
        self.since, self.late = since, late

    def note_tombstone(self, key: Any) -> None:
        """Remember that the run of `key` has a tombstone."""
        if self.tombstoned is _NO_KEYS:
            self.tombstoned = set()
        self.tombstoned.add(key)

    def uncovered(self) -> list[Any]:
        """Forget and return the keys with tombstones that no cold block covers any more. O(keys with tombstones)."""
        uncovered = [key for key in self.tombstoned if self.covering(key) < 0]
        self.tombstoned.difference_update(uncovered)
        return uncovered

    def covering(self, key: Any) -> int:
        """Return the index in `cold` of the block whose key range holds `key`, or -1; see `cold_blocks.covering`."""
        return covering(self.cold, key)
