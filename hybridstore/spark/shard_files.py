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

from changelog.errors import CorruptFrameError, ForeignFileError, HybridStoreError
from changelog.files import Files
from changelog.frame import COMMIT, END, MUTATIONS, Commit, encode, encode_commit
from changelog.journal import chain
from changelog.reader import SegmentReader, Version
from changelog.segment import HEADER_BYTES, Position, SegmentHeader, list_segments, seed_of, segment_name
from changelog.storage import LocalStorage
from recovery.apply import apply_version
from recovery.attach import attach
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError, DigestMismatchError
from recovery.layout import CHANGELOG, CHECKPOINTS, PACKS, CheckpointName, damage_name, list_checkpoints
from recovery.line import Step
from recovery.prune import collect_packs

from ..shard_head import HEAD_NAME, Head, encode_head, read_head
from ..state.group import StoreGroup
from ..state.policy import Logged
from .errors import MissingVersionError

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
        self.storage = LocalStorage(directory, files=files)
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
        """Return the step before `step`, as the header of its segment says. O(1).

        Raises MissingVersionError, ForeignFileError (also for a segment of other versions in this one's place),
        CorruptFrameError.
        """
        header = self._open(step.version).header
        return Step(header.parent_version, header.parent_digest)

    def _open(self, version: int) -> SegmentReader:
        path = self.segment(version)
        try:
            reader = SegmentReader(path, last=False)
        except FileNotFoundError:
            raise MissingVersionError(
                f"{path}: missing, though version {version} belongs to the state (restore the file from a copy)"
            ) from None
        header = reader.header
        if header.store_id != self.store_id:
            raise ForeignFileError(
                f"{path}: belongs to store {header.store_id.hex()}, this shard is {self.store_id.hex()}"
            )
        if header.parent_version >= version:
            raise ForeignFileError(f"{path}: continues version {header.parent_version}, expected one below {version}")
        return reader

    def _read(self, step: Step) -> tuple[Step, Version]:
        """Read the segment of `step`, and return the step before it and its content. O(bytes).

        Raises as `parent_of`, and DigestMismatchError.
        """
        reader = self._open(step.version)
        versions = list(reader.versions())
        if len(versions) != 1 or reader.ended is None:
            raise CorruptFrameError(
                reader.path,
                0,
                f"found {len(versions)} commits and {'an' if reader.ended else 'no'} end mark, expected one of each "
                "(the file was cut short)",
            )
        commit = versions[0].commit
        parent = Step(reader.header.parent_version, reader.header.parent_digest)
        if Step(commit.version, commit.digest) != step or chain(parent.digest, versions[0].bodies) != step.digest:
            raise DigestMismatchError(
                f"{reader.path}: version {commit.version} with digest {commit.digest.hex()} after version "
                f"{parent.version}; the state has version {step.version} with digest {step.digest.hex()} (the file "
                "belongs to another attempt or line: restore it from a copy)"
            )
        return parent, versions[0]

    def at(self, head: Head, version: int) -> Step:
        """Return the newest step at or below `version` on the head's line. O(bytes of the segments above it).

        Raises as `parent_of`, and DigestMismatchError for a segment that is not the line's: its parent would be another
        line's.
        """
        step = head.tip
        if step.version > version and head.parent is not None:
            step = head.parent
        while step.version > version:
            try:
                step, _ = self._read(step)
            except CorruptFrameError:
                # Bit rot in what is not asked for is no mix-up: a sound header says what came before.
                step = self.parent_of(step)
        return step

    def line(self, head: Head) -> list[Step]:
        """Return the steps of the head's line, the newest first, down to where its segments end or cannot be read.

        O(segments).
        """
        steps: list[Step] = []
        step = head.tip
        with suppress(HybridStoreError):
            while step.version:
                parent = self.parent_of(step)
                steps.append(step)
                step = parent
        return steps

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, step: Step, group: StoreGroup, current: Step | None) -> Loaded:
        """Bring `group` to `step`: `current` is the step it is at (None: fill it anew).

        A damaged checkpoint is passed over for the one below it. Raises MissingVersionError, CorruptFrameError,
        DigestMismatchError or ForeignFileError, and the group is then good for nothing. O(blocks + segments replayed).
        """
        started = time.perf_counter()
        if current == step:
            # Served from memory, but a file that was lost or overwritten is named now and not at the next restart.
            if step.version:
                self.parent_of(step)
            return Loaded("hit", None, Logged(), time.perf_counter() - started, ())
        skipped: list[str] = []
        pending: list[Step] = []
        try:
            reader, at = self._way(step, current, pending, skipped)
            if reader is not None:
                kind = "checkpoint"
                attach(reader, group)
            elif at != current:
                kind = "changelog" if pending else "empty"
                group.reset()
            else:
                kind = "catch-up"
            replayed = self._replay(at, list(reversed(pending)), group)
        except HybridStoreError:
            # A segment in the wrong place names a wrong one before it: the newest that does not fit is the one to
            # restore.
            for pending_step in pending:
                self._read(pending_step)
            raise
        group.reached(step.version, step.digest)
        return Loaded(kind, reader, replayed, time.perf_counter() - started, tuple(skipped))

    def _way(
        self, step: Step, current: Step | None, pending: list[Step], skipped: list[str]
    ) -> tuple[CheckpointReader | None, Step]:
        """Find from where to come to `step`: a checkpoint (or None), and the step there.

        `pending` gets the steps from there on, newest first.
        """
        checkpoints: dict[int, list[CheckpointName]] = {}
        for name in list_checkpoints(self.storage):
            checkpoints.setdefault(name.version, []).append(name)
        fallback: tuple[CheckpointReader, int] | None = None
        at = step
        while at != current and at.version:
            if at.version in checkpoints and fallback is None:
                candidate = self._checkpoint(checkpoints[at.version], at, skipped)
                if candidate is not None:
                    if current is None or not 0 < at.version - current.version <= CATCH_UP:
                        return candidate, at
                    fallback = candidate, len(pending)
            if fallback is not None and current is not None and at.version < current.version:
                break
            try:
                parent = self.parent_of(at)
            except HybridStoreError as error:
                if fallback is not None:
                    break
                if skipped and isinstance(error, MissingVersionError):
                    raise MissingVersionError(f"{error}; skipped {'; '.join(skipped)}") from error
                raise
            pending.append(at)
            at = parent
        if at == current or fallback is None:
            return None, at
        reader, keep = fallback
        del pending[keep:]
        return reader, Step(reader.meta.version, reader.meta.digest)

    def _checkpoint(self, names: list[CheckpointName], step: Step, skipped: list[str]) -> CheckpointReader | None:
        """Open the checkpoint of a step; `names` are those of its version, of whatever line."""
        for name in reversed(names):
            try:
                reader = CheckpointReader(self.storage, name, marks=True)
            except CheckpointError as error:
                skipped.append(str(error))
                continue
            except FileNotFoundError:
                # pruned since the listing, by the process that has published a newer one
                continue
            if (reader.meta.version, reader.meta.digest, reader.meta.store_id) == (*step, self.store_id):
                return reader
            skipped.append(f"{reader.where}: version {reader.meta.version} of another line")
        return None

    def _replay(self, at: Step, pending: list[Step], group: StoreGroup) -> Logged:
        table: dict[int, Any] = {}
        replayed = Logged()
        for step in pending:
            parent, version = self._read(step)
            if parent != at:
                raise DigestMismatchError(
                    f"{self.segment(step.version)}: continues version {parent.version} with digest "
                    f"{parent.digest.hex()}; the state has version {at.version} with digest {at.digest.hex()} before "
                    "it (the file belongs to another line)"
                )
            apply_version(version, group, table)
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
            self._files.mkdir(self.path / CHECKPOINTS)
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
        for name in list_checkpoints(self.storage):
            if name.version > version:
                self.remove_checkpoint(name)

    def remove_checkpoint(self, name: CheckpointName) -> None:
        """Remove a checkpoint, and its marker of damage; packs that it alone has named are removed by `prune`."""
        self.storage.delete([str(name), damage_name(str(name))])

    def prune(self, keep: int, needed: int) -> list[Path]:
        """Remove what neither the newest `keep` checkpoints nor version `needed` and later depend on, and return what was removed.

        Where the line cannot be followed down to version `needed` (the query was turned back below what an earlier call
        has kept, or a file is damaged), nothing is removed. A checkpoint that is damaged or of another line does not
        count as kept. A crash in the middle leaves extra files. O(files).
        """
        head = self.head()
        if head is None:
            return []
        removed: list[Path] = []
        steps = self.line(head)
        reached = next((step.version for step in steps if step.version <= needed), None)
        if reached is None:
            return []
        line = dict(steps)
        sound: list[int] = []
        for name in reversed(list_checkpoints(self.storage)):
            if len(sound) >= keep and sound[-1] <= reached:
                removed.append(self.path / str(name))
                self.remove_checkpoint(name)
                continue
            version = name.version
            if version in line and self._checkpoint([name], Step(version, line[version]), []) is not None:
                sound.append(version)
        removed += [self.path / name for name in collect_packs(self.storage, through=max(sound, default=0))]
        if len(sound) >= keep and sound[-1] <= reached:
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
        for directory in (self.path, self.changelog, self.path / CHECKPOINTS, self.path / PACKS):
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
        for directory in (self.path, self.changelog, self.path / CHECKPOINTS, self.path / PACKS):
            if directory.is_dir():
                for entry in directory.iterdir():
                    if entry.is_file():
                        count += 1
                        size += entry.stat().st_size
        return count, size
