"""Directory log: writes the changelog of a state directory.

    frame   a part of the version in progress          commit   the version, durable
    rollback                                           close    an end mark, synced

Before each write the log checks that the directory is still the locked one, because paths are looked up by name each
time, and a directory that replaces a moved one belongs to another writer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from changelog.files import Files
from changelog.frame import CommitFrame
from changelog.segment import Position, list_segments, segment_name
from changelog.writer import PRUNABLE_BYTES, ChangelogWriter
from recovery.restore import Reached

from .group import StoreGroup
from .lock import DirectoryLock
from .policy import Logged

# The least time between two such checks: no other process can open the state and commit in less.
_OWN_SECONDS: Final = 0.0002


def sync_log(changelog: Path, files: Files) -> None:
    """Return when all segments of a changelog are on disk, whichever process has written them. O(segments)."""
    for first in list_segments(changelog):
        files.sync_path(changelog / segment_name(first))
    files.sync_directory(changelog)


class DirectoryLog:
    """Appends versions behind the restored version. `synced` False leaves durability to the kernel."""

    def __init__(
        self, changelog: Path, lock: DirectoryLock, files: Files, reached: Reached, *, synced: bool, segment_bytes: int
    ) -> None:
        report, resume = reached.report, reached.resume
        # Where the newest version ends. A writer may continue elsewhere: after a clean close, in a segment that does
        # not exist before the next commit.
        self.position = resume.reached or Position(0, 0, 0)
        self._changelog = changelog
        self._lock = lock
        self._files = files
        self._synced = synced
        self._checked_at = 0.0
        self._size = 0  # of the version in progress, as a restart counts it: without headers
        # A clean close has synced everything; the last segment of a killed process may be in the kernel's cache only.
        lock.hold(self.position.segment if lock.closed else lock.segment)
        self._writer = ChangelogWriter(
            changelog, report.belongs_to, sync=synced, segment_bytes=segment_bytes, files=files, on_segment=lock.hold
        )
        self.health = self._writer.health
        for path in resume.stale:
            files.remove(path)
        if resume.position is not None:
            self._writer.resume(resume.position, resume.header, report.version, report.digest)
        else:
            self._writer.begin(report.version, report.digest)

    @property
    def bytes_written(self) -> int:
        return self._writer.bytes_written

    def check_place(self) -> None:
        """Raise ForeignFileError unless the directory is still the locked one; looks at most every 0.2 ms. O(1)."""
        now = time.monotonic()
        if now - self._checked_at > _OWN_SECONDS:
            self._lock.check()
            self._checked_at = now

    def frame(self, body: bytes) -> None:
        """Append a part of the version in progress. O(bytes)."""
        self.check_place()
        self._writer.mutations(body)
        self._size += len(body)

    def commit(self, group: StoreGroup) -> Logged:
        self.check_place()
        digest = group.journal.seal()
        counts = group.journal.records
        commit = CommitFrame(group.version + 1, digest, counts, int(time.time() * 1000), group.stream_times(), {})
        self._writer.commit(commit)
        group.committed(commit.version, digest)
        self.position = self._writer.position
        size, self._size = self._size, 0
        return Logged.of(1, size, counts, group.kinds)

    def rollback(self, group: StoreGroup) -> None:
        self.check_place()
        group.journal.restart(group.digest)
        self._writer.rollback()
        self._size = 0

    def check_owner(self) -> None:
        self._lock.check()

    def part_here(self) -> None:
        self._writer.leave(PRUNABLE_BYTES)

    def part_now(self, version: int) -> None:
        """See `Log`. The new segment is durable on return."""
        self.check_place()
        self._writer.part()
        self.position = self._writer.position
        self.sync()

    def sync(self) -> None:
        """Return when all segments are on disk. O(segments), if they were not synced before."""
        if not self._synced:
            sync_log(self._changelog, self._files)

    def close(self, group: StoreGroup | None) -> None:
        """Close the file; with `group`, write a synced end mark before. Closing twice is harmless."""
        end = None
        if group is not None:
            end = CommitFrame(group.version, group.digest, {}, int(time.time() * 1000), group.stream_times(), {})
        self._writer.close(end)
