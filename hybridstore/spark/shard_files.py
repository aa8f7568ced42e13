"""The files of one shard: published one version at a time, and read back along the line of versions that the head names.

    <shard>/head    <shard>/changelog/<version>.log    <shard>/checkpoints/<version>.lmdb

Nothing here lists the changelog to find a state: a line is walked from the head downwards, each segment naming its parent, so
that files of an abandoned line are never picked up, whoever left them there.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from changelog.errors import CorruptFrameError, ForeignFileError
from changelog.files import Files
from changelog.frame import COMMIT, END, MUTATIONS, Commit, encode, encode_commit
from changelog.journal import chain
from changelog.reader import SegmentReader
from changelog.segment import (
    HEADER_BYTES,
    Position,
    SegmentHeader,
    decode_header,
    list_segments,
    seed_of,
    segment_name,
)
from recovery.checkpoint import CheckpointReader, checkpoint_name, list_checkpoints
from recovery.errors import CheckpointError, DigestMismatchError
from recovery.page_sums import sums_path
from recovery.restore import CHANGELOG, CHECKPOINTS, apply_bodies

from ..policy import Logged
from ..store_group import StoreGroup
from .errors import MissingVersionError
from .head import EMPTY, HEAD_NAME, Head, Step, encode_head, read_head

# A version that is held in memory is caught up with, rather than a newer checkpoint attached, up to this distance.
CATCH_UP: int = 64
# A temporary file older than this is what a dead attempt left behind.
STALE_SECONDS: float = 3600.0


class Loaded(NamedTuple):
    """How a version came into memory: "empty", "hit", "catch-up", "checkpoint" or "changelog", with what was replayed and skipped."""

    kind: str
    checkpoint: CheckpointReader | None
    replayed: Logged
    seconds: float
    skipped: tuple[str, ...]


class ShardFiles:
    """The directory of a shard, for reading and publishing. It holds no state between calls."""

    def __init__(self, directory: Path, store_id: bytes, files: Files) -> None:
        self.path = directory
        self.store_id = store_id
        self.changelog = directory / CHANGELOG
        self.checkpoints = directory / CHECKPOINTS
        self._files = files

    # --- looking --------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """Read the head; None for a shard that was never committed. Raises ForeignFileError for another query's, CorruptFrameError."""
        head = read_head(self.path / HEAD_NAME)
        if head is not None and head.store_id != self.store_id:
            raise ForeignFileError(
                f"{self.path}: state of store {head.store_id.hex()}, this is {self.store_id.hex()}: it was written by another query, "
                "operator or shard (use a new checkpoint location, or remove the folder)"
            )
        return head

    def segment(self, version: int) -> Path:
        """Return the path of a version's segment."""
        return self.changelog / segment_name(version)

    def parent_of(self, step: Step) -> Step:
        """Return the step before `step`, as its segment says. Raises MissingVersionError, ForeignFileError, CorruptFrameError."""
        path = self.segment(step.version)
        try:
            with path.open("rb") as file:
                header = decode_header(file.read(HEADER_BYTES), path)
        except FileNotFoundError:
            raise MissingVersionError(
                f"{path}: missing, though version {step.version} belongs to the state (restore the file from a copy)"
            ) from None
        self._own(header, path)
        return Step(header.parent_version, header.parent_digest)

    def _own(self, header: SegmentHeader, path: Path) -> None:
        if header.store_id != self.store_id:
            raise ForeignFileError(
                f"{path}: belongs to store {header.store_id.hex()}, this shard is {self.store_id.hex()}"
            )

    def at(self, head: Head, version: int) -> Step:
        """Return the newest step at or below `version` on the head's line. O(versions above it). Raises as `parent_of`."""
        step = head.tip
        if step.version > version and head.parent is not None:
            step = head.parent
        while step.version > version:
            step = self.parent_of(step)
        return step

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, step: Step, group: StoreGroup, held: Step | None) -> Loaded:
        """Bring `group` to `step`: `held` is the step it is at (None: fill it anew).

        A damaged checkpoint is passed over for the one below it. Raises MissingVersionError, CorruptFrameError,
        DigestMismatchError or ForeignFileError, and the group is then good for nothing. O(blocks + segments replayed).
        """
        started = time.perf_counter()
        if held == step:
            # Served from memory, but a file that was lost is named now and not at the next restart.
            if step.version and not self.segment(step.version).exists():
                raise MissingVersionError(
                    f"{self.segment(step.version)}: missing, though version {step.version} belongs to the state"
                )
            return Loaded("hit", None, Logged(), time.perf_counter() - started, ())
        checkpoints = set(list_checkpoints(self.checkpoints))
        skipped: list[str] = []
        pending: list[Step] = []
        fallback: tuple[CheckpointReader, int] | None = None
        at = step
        reader: CheckpointReader | None = None
        while at != held and at.version:
            if at.version in checkpoints and fallback is None:
                found = self._checkpoint(at, skipped)
                if found is not None:
                    if held is None or not 0 < at.version - held.version <= CATCH_UP:
                        reader = found
                        break
                    fallback = found, len(pending)
            if fallback is not None and held is not None and at.version < held.version:
                break
            try:
                parent = self.parent_of(at)
            except MissingVersionError as error:
                if fallback is not None:
                    break
                if skipped:
                    raise MissingVersionError(f"{error}; skipped {'; '.join(skipped)}") from error
                raise
            pending.append(at)
            at = parent
        if at != held and fallback is not None:
            reader, keep = fallback
            del pending[keep:]
        kind = "catch-up"
        if reader is not None:
            kind = "checkpoint"
            self._attach(reader, group)
            at = Step(reader.meta.version, reader.meta.digest)
        elif at != held:
            kind = "changelog" if pending else "empty"
            group.reset()
            at = EMPTY
        replayed = self._replay(at, list(reversed(pending)), group)
        group.reached(step.version, step.digest)
        return Loaded(kind, reader, replayed, time.perf_counter() - started, tuple(skipped))

    def _checkpoint(self, step: Step, skipped: list[str]) -> CheckpointReader | None:
        path = self.checkpoints / checkpoint_name(step.version)
        try:
            reader = CheckpointReader(path, files=self._files)
        except CheckpointError as error:
            skipped.append(str(error))
            return None
        except FileNotFoundError:
            # pruned since the listing, by the process that has published a newer one
            return None
        if (reader.meta.version, reader.meta.digest, reader.meta.store_id) != (*step, self.store_id):
            skipped.append(f"{path}: version {reader.meta.version} of another line")
            return None
        return reader

    @staticmethod
    def _attach(reader: CheckpointReader, group: StoreGroup) -> None:
        group.reset()
        group.settings.update(reader.meta.settings)
        for record in reader.meta.stores:
            group.define(record.number, record.name, record.kind, record.parameters).attach(
                reader.loader(record.number), record.state, reader.directory(record.number)
            )

    def _replay(self, at: Step, pending: list[Step], group: StoreGroup) -> Logged:
        table: dict[int, Any] = {}
        replayed = Logged()
        for step in pending:
            path = self.segment(step.version)
            reader = SegmentReader(path, last=False)
            self._own(reader.header, path)
            versions = list(reader.versions())
            if len(versions) != 1 or reader.ended is None:
                raise CorruptFrameError(
                    path,
                    0,
                    f"found {len(versions)} commits and {'an' if reader.ended else 'no'} end mark, expected one of each (the file was cut short)",
                )
            version = versions[0]
            parent = Step(reader.header.parent_version, reader.header.parent_digest)
            digest = chain(parent.digest, version.bodies)
            if (
                parent != at
                or version.commit.version != step.version
                or not digest == version.commit.digest == step.digest
            ):
                raise DigestMismatchError(
                    f"{path}: version {version.commit.version} with digest {version.commit.digest.hex()} after version {parent.version}; the state has "
                    f"version {step.version} with digest {step.digest.hex()} after version {at.version} (it belongs to another attempt or line)"
                )
            apply_bodies(version.bodies, group, table)
            size = sum(map(len, version.bodies))
            replayed = replayed.plus(Logged.of(1, size, version.commit.records, group.kinds))
            at = step
        return replayed

    # --- publishing -----------------------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the shard against other publishers on file systems that can lock; elsewhere the head's re-reading must do."""
        self._files.mkdir(self.path)
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # a network file system may not be able to lock directories
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def write(self, path: Path, chunks: list[bytes]) -> Path:
        """Write a synced temporary file beside `path`, under a name that no other attempt has, and return it. Raises OSError."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        file = self._files.create(temporary)
        try:
            file.write(b"".join(chunks))
            file.sync()
        except OSError:
            self._files.remove(temporary)
            raise
        finally:
            file.close()
        return temporary

    def prepare(self) -> None:
        """Create the directories of a shard that has none, durably."""
        if not self.changelog.is_dir():
            self._files.mkdir(self.changelog)
            self._files.mkdir(self.checkpoints)
            self._files.sync_directory(self.path)
            self._files.sync_directory(self.path.parent)

    def write_segment(self, parent: Step, commit: Commit, bodies: list[bytes]) -> tuple[Path, int]:
        """Write the segment of a version under a temporary name, synced; return it and its size. Raises OSError."""
        header = SegmentHeader(self.store_id, commit.version, parent.version, parent.digest).encode()
        seed = seed_of(header)
        chunks = [header]
        chunks += [encode(MUTATIONS, i, body, seed) for i, body in enumerate(bodies)]
        packed = encode_commit(commit)
        chunks.append(encode(COMMIT, len(bodies), packed, seed))
        chunks.append(encode(END, len(bodies) + 1, packed, seed))
        return self.write(self.segment(commit.version), chunks), sum(map(len, chunks))

    def publish(self, temporary: Path, version: int) -> None:
        """Give a segment its name."""
        self._files.publish(temporary, self.segment(version))

    def discard(self, temporary: Path) -> None:
        """Remove a temporary file; an absent one is fine."""
        self._files.remove(temporary)

    def publish_head(self, head: Head) -> None:
        """Write the head and give it its name."""
        path = self.path / HEAD_NAME
        temporary = self.write(path, [encode_head(head)])
        try:
            self._files.publish(temporary, path)
        except OSError:
            self._files.remove(temporary)
            raise

    # --- clearing away --------------------------------------------------------------------------------------------

    def fence(self, version: int) -> None:
        """Remove segments and checkpoints above `version`: an abandoned future. The head must not name them any more."""
        for above in list_segments(self.changelog):
            if above > version:
                self._files.remove(self.segment(above))
        for above in list_checkpoints(self.checkpoints):
            if above > version:
                self.remove_checkpoint(above)

    def remove_checkpoint(self, version: int) -> None:
        """Remove a checkpoint, the file before its page sums."""
        path = self.checkpoints / checkpoint_name(version)
        self._files.remove(path)
        self._files.remove(sums_path(path))

    def prune(self, keep: int, needed: int) -> list[Path]:
        """Remove what neither the newest `keep` checkpoints nor version `needed` and later depend on, and return what was removed.

        A checkpoint that is damaged or of another line does not count as kept. A crash in the middle leaves extra files. O(files).
        """
        head = self.head()
        if head is None:
            return []
        removed: list[Path] = []
        line: dict[int, bytes] = {}
        step, lowest = head.tip, min(list_segments(self.changelog), default=0)
        while step.version >= max(lowest, 1):
            line[step.version] = step.digest
            try:
                step = self.parent_of(step)
            except MissingVersionError:
                break
        sound: list[int] = []
        for version in reversed(list_checkpoints(self.checkpoints)):
            if len(sound) >= keep and sound[-1] <= needed:
                removed.append(self.checkpoints / checkpoint_name(version))
                self.remove_checkpoint(version)
                continue
            if version in line and self._checkpoint(Step(version, line[version]), []) is not None:
                sound.append(version)
        if len(sound) >= keep and sound[-1] <= needed:
            for version in list_segments(self.changelog):
                # The segment of the checkpoint's own version stays: the checkpoint's position is its end.
                if version < sound[-1]:
                    removed.append(self.segment(version))
                    self._files.remove(self.segment(version))
        return removed

    def sweep(self) -> list[Path]:
        """Remove temporary files that dead attempts left more than an hour ago, and return them. O(files)."""
        removed: list[Path] = []
        now = time.time()
        for directory in (self.path, self.changelog, self.checkpoints):
            if not directory.is_dir():
                continue
            for entry in directory.iterdir():
                if not entry.name.endswith(".tmp") or not entry.name.startswith("."):
                    continue
                try:
                    old = now - entry.stat().st_mtime > STALE_SECONDS
                except FileNotFoundError:
                    continue
                if old:
                    self._files.remove(entry)
                    removed.append(entry)
        return removed

    def end_of(self, version: int) -> Position:
        """Return the position at the end of a version's segment, for its checkpoint."""
        reader = SegmentReader(self.segment(version), last=False)
        position = Position(version, HEADER_BYTES, 0)
        for found in reader.versions():
            position = found.position
        return position

    def usage(self) -> tuple[int, int]:
        """Return (files, bytes) below the shard's directory."""
        count = size = 0
        for directory in (self.path, self.changelog, self.checkpoints):
            if directory.is_dir():
                for entry in directory.iterdir():
                    if entry.is_file():
                        count += 1
                        size += entry.stat().st_size
        return count, size
