"""Writer: appends frames to the newest segment, syncs at commits, rolls to a new segment when one is full.

Any write or sync that fails or is interrupted poisons the writer (`health`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .errors import StateInUseError
from .files import REAL_FILES, AppendFile, Files
from .frame import COMMIT, END, MUTATIONS, CommitFrame, encode, encode_commit
from .health import Health
from .identity import Identity
from .segment import HEADER_BYTES, Position, SegmentHeader, seed_of, segment_name

SEGMENT_BYTES: Final = 64 * 1024 * 1024
# A checkpoint begins a new segment if the present one has this many bytes, so that the old segment can be pruned; else
# a small state would keep megabytes of history.
PRUNABLE_BYTES: Final = 1024 * 1024


class ChangelogWriter:
    """Appends to the changelog of one store. `sync` False leaves durability to the kernel.

    `on_segment(first version)` is called at the first synced commit in each segment, when that is durable.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        *,
        sync: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        files: Files = REAL_FILES,
        on_segment: Callable[[int], None] | None = None,
    ) -> None:
        self.health = Health(directory)
        self._directory = directory
        self._on_segment = on_segment
        self._identity = identity
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._files = files
        self._file: AppendFile | None = None
        self._committed = Position(0, 0, 0)
        self._parent: tuple[int, bytes] = (0, bytes(16))
        self._announced = False
        self._full = False
        self._entered = threading.Lock()
        self.bytes_written = 0

    def begin(self, version: int, digest: bytes) -> None:
        """Start after this version: the next frame opens a new segment."""
        self._parent = (version, digest)

    def resume(self, position: Position, header: bytes, version: int, digest: bytes) -> None:
        """Continue in an existing segment, which is cut at `position` (before a torn tail or an uncommitted end)."""
        try:
            file = self._files.append(self._directory / segment_name(position.segment))
            self._file = file
            if file.size < position.offset:
                raise OSError(f"{file.path}: has {file.size} bytes, expected {position.offset} or more")
            if file.size > position.offset:
                file.truncate(position.offset)
                if self._sync:
                    file.sync()
        except OSError as error:
            raise self.health.poison(error) from error
        except BaseException as error:
            self.health.poison(error)
            raise
        self._segment, self._sequence, self._seed = position.segment, position.sequence, seed_of(header)
        self._committed = position
        self._parent = (version, digest)

    @property
    def position(self) -> Position:
        """The place just after the last commit; (0, 0, 0) before the first one of a new segment."""
        return self._committed

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context manager of every write: a second call meanwhile is refused, and any error in the block poisons."""
        if not self._entered.acquire(blocking=False):
            raise StateInUseError(
                f"{self._directory}: found a write in the middle of another one, expected one at a time"
            )
        try:
            self.health.check()
            try:
                yield
            except OSError as error:
                raise self.health.poison(error) from error
            except BaseException as error:
                self.health.poison(error)
                raise
        finally:
            self._entered.release()

    def _open_segment(self) -> AppendFile:
        version, digest = self._parent
        header = SegmentHeader(self._identity, version + 1, version, digest).encode()
        path = self._directory / segment_name(version + 1)
        file = self._files.create(path)
        self._file = file
        file.write(header)
        # Header and name must be durable before the first commit in this segment is; with the header synced apart, one
        # that is damaged later is known to be damage and not a torn birth.
        if self._sync:
            file.sync()
            self._files.sync_directory(self._directory)
        self._announced = self._full = False
        self._segment, self._sequence, self._seed = version + 1, 0, seed_of(header)
        self._committed = Position(version + 1, HEADER_BYTES, 0)
        return file

    def _write(self, kind: int, body: bytes) -> AppendFile:
        # The next frame, and not the last commit, ends a full segment, so that closing the state can still add the end
        # mark.
        if self._file is not None and self._full:
            self._file.close()
            self._file = None
        file = self._file or self._open_segment()
        data = encode(kind, self._sequence, body, self._seed)
        file.write(data)
        self._sequence += 1
        self.bytes_written += len(data)
        return file

    def mutations(self, body: bytes) -> None:
        """Append one frame of mutations; it counts only once a commit follows."""
        with self._alone():
            self._write(MUTATIONS, body)

    def commit(self, commit: CommitFrame) -> None:
        """Close the version: append its commit frame and, unless `sync` is off, return only when all is durable."""
        with self._alone():
            file = self._write(COMMIT, encode_commit(commit))
            if self._sync:
                file.sync()
                if not self._announced and self._on_segment is not None:
                    self._files.sync_directory(
                        self._directory
                    )  # the end of a resumed segment may be in the kernel's cache only
                    self._on_segment(self._segment)
                self._announced = True
            self._committed = Position(self._segment, file.size, self._sequence)
            self._parent = (commit.version, commit.digest)
            self._full = file.size >= self._segment_bytes

    def leave(self, size: int) -> None:
        """Begin a new segment with the next frame if the present one has this many bytes. Call only right after a
        commit.
        """
        self._full = self._full or (self._file is not None and self._file.size >= size)

    def part(self) -> None:
        """Begin a new segment now, behind the last commit, so that no later version needs a segment before it."""
        with self._alone():
            if self._file is not None and self._segment == self._parent[0] + 1:
                return  # it has no version yet
            if self._file is not None:
                self._file.close()
                self._file = None
            self._open_segment()

    def rollback(self) -> None:
        """Cut off the frames of the version in progress."""
        with self._alone():
            file = self._file
            if file is None or file.size == self._committed.offset:
                return
            file.truncate(self._committed.offset)
            # Without the sync a power loss could mix pages of these frames with pages of the frames written in their
            # place.
            if self._sync:
                file.sync()
            self._sequence = self._committed.sequence

    def close(self, commit: CommitFrame | None) -> None:
        """Append a synced end mark (unless None, or nothing is open) and close the file."""
        file = self._file
        self._file = None
        if file is None:
            return
        try:
            if commit is not None and not self.health.poisoned:
                file.write(encode(END, self._sequence, encode_commit(commit), self._seed))
                file.sync()
        except OSError as error:
            raise self.health.poison(error) from error
        finally:
            file.close()
