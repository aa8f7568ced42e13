"""Bucket log: writes the changelog of a state on an object store: a commit is one create.

    claim      an empty version, which makes the commits of earlier owners fail
    frame      kept in memory
    commit     one object, durable when the store has acknowledged it

See `recovery.object_log` for the objects, and for why an owner looks before it commits after a long pause.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final, NoReturn

from changelog.errors import StorePoisonedError
from changelog.frame import Commit
from changelog.segment import HEADER_BYTES, Position
from changelog.storage import Storage
from recovery.layout import FENCES, fence_name
from recovery.line import Step
from recovery.object_log import FENCE_SECONDS, object_commit, object_name, versions_after
from recovery.restore import Reached
from recovery.shard_log import encode_object

from ..errors import HybridStoreError, StateDirectoryLockedError
from .group import StoreGroup
from .log_lines import warn
from .policy import Logged

# How often an owner looks for another owner that claims the state. Without this look an owner that commits as fast as
# the store answers could always be ahead of the claimant.
LOOK_SECONDS: Final = 5.0
# The field of a commit that names its owner; in the version that claimed the state it describes the owner.
OWNER = "owner"
CLAIM = "claim"


class Overtaken(StateDirectoryLockedError):
    """The name of the next version is taken: another owner writes."""


class BucketLog:
    """Creates versions behind the restored version. `storage` is the state's."""

    def __init__(self, storage: Storage, reached: Reached) -> None:
        self.position = reached.resume.reached or Position(0, 0, 0)
        self.bytes_written = 0
        self._storage = storage
        self._store_id = reached.report.store_id
        self._owner = os.urandom(8)
        self._bodies: list[bytes] = []
        self._failure: BaseException | None = None
        self._contact = self._looked = time.monotonic()
        self._noted = ""  # the note that this owner claims the state

    def claim(self, group: StoreGroup) -> None:
        """Create the next version, empty.

        Raises Overtaken when that version exists: apply it and claim again. Two requests.
        """
        wall_ms = int(time.time() * 1000)
        self._noted = fence_name(group.version + 1, wall_ms)
        self._storage.create(self._noted, b"")
        who = {"pid": os.getpid(), "host": os.uname().nodename, "since": wall_ms}
        self._create(group, {}, wall_ms, {CLAIM: who})

    @property
    def poisoned(self) -> bool:
        """See `Log`."""
        return self._failure is not None

    def poison(self, error: BaseException) -> None:
        """See `Log`."""
        if self._failure is None:
            self._failure = error

    def check(self) -> None:
        """See `Log`."""
        if self._failure is not None:
            raise StorePoisonedError(
                f"{self._storage.url}: {self._failure} (open the state again: what was acknowledged is intact)"
            ) from self._failure

    def frame(self, body: bytes) -> None:
        """See `Log`. Nothing is written before the commit."""
        self.check()
        self._bodies.append(body)

    def commit(self, group: StoreGroup) -> Logged:
        """See `Log`. One request. Raises Overtaken, OSError."""
        self.check()
        self._look(group.version)
        return self._create(group, group.journal.records, int(time.time() * 1000), {})

    def _look(self, version: int) -> None:
        """Raise Overtaken if another owner claims the state. A request every LOOK_SECONDS."""
        now = time.monotonic()
        if now - self._contact > FENCE_SECONDS / 2 and versions_after(self._storage, version):
            self._overtaken(version + 1)
        if now - self._looked > LOOK_SECONDS:
            if self._storage.list(f"{FENCES}/", after=self._noted):
                self._overtaken(version + 1)
            self._looked = now

    def _create(self, group: StoreGroup, records: dict[int, int], wall_ms: int, extra: dict[str, Any]) -> Logged:
        digest = group.journal.seal()
        version, records = group.version + 1, dict(records)
        commit = Commit(version, digest, records, wall_ms, group.stream_times(), {OWNER: self._owner, **extra})
        data = encode_object(self._store_id, Step(group.version, group.digest), commit, self._bodies)
        if not self._created(version, data):
            self._overtaken(version)
        self._contact = time.monotonic()
        self.position = Position(version, len(data), len(self._bodies) + 1)
        self.bytes_written += len(data)
        self._bodies = []
        group.committed(version, digest)
        return Logged.of(1, len(data) - HEADER_BYTES, records, group.kinds)

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
        raise Overtaken(
            f"{self._storage.url}: version {version} is that of {who}, so this one commits nothing more; what it has "
            "acknowledged is in the state (open the state again to take it back, and let one process alone write to it)"
        )

    def rollback(self, group: StoreGroup) -> None:
        """See `Log`."""
        self._bodies = []
        group.journal.restart(group.digest)

    def part_here(self) -> None:
        """See `Log`. Every version is an object of its own."""

    def sync(self) -> None:
        """See `Log`. Every acknowledged object is durable."""

    def close(self, group: StoreGroup | None) -> None:
        """See `Log`. There is nothing to close."""
