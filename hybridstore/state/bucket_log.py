"""Bucket log: writes the changelog of a state on an object store: a commit is one create.

    claim      an empty version, which makes the commits of earlier owners fail
    frame      kept in memory
    commit     one object, durable when the store has acknowledged it

See `recovery.object_log` for the objects, and for why no clock decides who owns a state.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

from changelog.frame import CommitFrame
from changelog.health import Health
from changelog.segment import Position
from changelog.storage import Storage
from recovery.layout import FENCES, fence_name, fences_after, parse_fence_name
from recovery.line import CLAIM, Step
from recovery.object_log import object_commit, object_name, versions_after
from recovery.restore import Reached
from recovery.shard_log import encode_object

from ..errors import HybridStoreError, StateLockedError
from .group import StoreGroup
from .log_lines import warn
from .policy import REQUEST_SECONDS, Logged

# How often an owner looks for another owner that claims the state. Without this look an owner that commits as fast as
# the store answers could always be ahead of the claimant.
LOOK_SECONDS: Final = 5.0
# The field of a commit that names its owner.
OWNER = "owner"


class Pace:
    """How long a request to the store takes, as the creates of commits show."""

    def __init__(self) -> None:
        # The next restart may be farther from the store than this process: never less than this.
        self.request_seconds = REQUEST_SECONDS

    def note(self, seconds: float) -> None:
        """Note how long a create took: a moving average over some twenty creates."""
        self.request_seconds = max(REQUEST_SECONDS, self.request_seconds + (seconds - self.request_seconds) / 20)


class BucketLog:
    """Creates versions behind the restored version. `storage` is the state's; `pace` learns from each create."""

    def __init__(self, storage: Storage, reached: Reached, pace: Pace) -> None:
        self.position = reached.resume.reached or Position(0, 0, 0)
        self.bytes_written = 0
        self.health = Health(storage.url)
        self._storage = storage
        self._report = reached.report
        self._pace = pace
        self._owner = os.urandom(8)
        self._bodies: list[bytes] = []
        self._looked = time.monotonic()
        self._claimed = 0  # the version by which this owner claims the state
        self._late: str | None = None  # the note of a claim that came too late

    def claim(self, group: StoreGroup) -> bool:
        """Create the next version, empty; False when it exists: apply it and claim again. The note of this claim then
        stays until the next one, so that an owner that commits faster than its commits are applied sees one.

        Raises StateLockedError when the state went on since it was restored, and the name was free only because its
        version was pruned: restore again. Three requests.
        """
        wall_ms = int(time.time() * 1000)
        self._claimed = group.version + 1
        noted_ms = max(0, wall_ms)
        # A note of its own: a claimant that loses removes its note, which must not be the winner's.
        while not self._storage.create(note := fence_name(self._claimed, noted_ms), self._owner):
            noted_ms += 1
        who = {"pid": os.getpid(), "host": os.uname().nodename, "since": wall_ms}
        claimed = self._create(group, {}, wall_ms, {CLAIM: who})
        self.withdraw()
        if claimed is None:
            self._late = note
            return False
        if versions_after(self._storage, self._claimed):
            raise StateLockedError(
                f"{self._storage.url}: another owner has written and pruned versions since this process restored "
                f"version {self._claimed - 1} (open the state again, and let one process alone write to it)"
            )
        return True

    def withdraw(self) -> None:
        """Remove the note of a claim that came too late: pruning may free its version's name. A request, or none."""
        note, self._late = self._late, None
        if note is not None:
            with suppress(OSError):
                self._storage.delete([note])

    def frame(self, body: bytes) -> None:
        """See `Log`. Nothing is written before the commit."""
        self.health.check()
        self._bodies.append(body)

    def commit(self, group: StoreGroup) -> Logged:
        """See `Log`. One request. Raises StateLockedError, OSError."""
        self.health.check()
        self._look()
        logged = self._create(group, group.journal.records, int(time.time() * 1000), {})
        if logged is None:
            self._overtaken(group.version + 1)
        return logged

    def _look(self) -> None:
        """Raise StateLockedError if another owner claims the state. A request every LOOK_SECONDS."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self.check_owner()
            self._looked = now

    def check_owner(self) -> None:
        later = self._storage.list(f"{FENCES}/", after=fences_after(self._claimed))
        versions = [version for version in map(parse_fence_name, later) if version is not None]
        if versions:
            self._overtaken(min(versions))

    def _create(self, group: StoreGroup, records: dict[int, int], wall_ms: int, extra: dict[str, Any]) -> Logged | None:
        """Create the next version; None when it exists."""
        digest = group.journal.seal()
        version, records = group.version + 1, dict(records)
        commit = CommitFrame(version, digest, records, wall_ms, group.stream_times(), {OWNER: self._owner, **extra})
        data = encode_object(self._report.belongs_to, Step(group.version, group.digest), commit, self._bodies)
        started = time.monotonic()
        if not self._created(version, data):
            return None
        self._pace.note(time.monotonic() - started)
        self.position = Position(version, len(data), len(self._bodies) + 1)
        self.bytes_written += len(data)
        size, self._bodies = sum(map(len, self._bodies)), []
        (group.claimed if CLAIM in extra else group.committed)(version, digest)
        return Logged.of(1, size, records, group.kinds)

    def _created(self, version: int, data: bytes) -> bool:
        name = object_name(version)
        try:
            return self._storage.create(name, data)
        except OSError as error:
            # The answer may be lost although the object exists: the owner's mark in the object identifies its writer.
            try:
                if self._storage.get(name) == data:
                    return True
            except OSError:
                pass
            raise error

    def _overtaken(self, version: int) -> NoReturn:
        who = "another owner"
        try:
            claim = object_commit(self._storage, version).extra.get(CLAIM)
            if isinstance(claim, dict):
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(claim["since"]) / 1000))
                who = f"process {claim['pid']} on {claim['host']}, which opened this state on {when}"
        except (OSError, HybridStoreError, KeyError, TypeError, ValueError):
            who = "another owner"
        warn("%s: version %d is that of %s: this owner commits nothing more", self._storage.url, version, who)
        raise StateLockedError(
            f"{self._storage.url}: version {version} is that of {who}, so this one commits nothing more; what it has "
            "acknowledged is in the state (open the state again to take it back, and let one process alone write to it)"
        )

    def rollback(self, group: StoreGroup) -> None:
        self._bodies = []
        group.journal.restart(group.digest)

    def part_here(self) -> None:
        """See `Log`. Every version is an object of its own."""

    def part_now(self, version: int) -> None:
        self.position = Position(version + 1, 0, 0)

    def sync(self) -> None:
        """See `Log`. Every acknowledged object is durable."""

    def close(self, group: StoreGroup | None) -> None:
        """See `Log`. Nothing to close."""
