"""Reader: frames out of a segment; tells a torn tail from damage.

A torn tail is the end that a dead writer leaves: bytes after the last sound frame, without committed data behind them.
The reader returns a torn tail as a value (`SegmentReader.tail`). Damage with a sound commit behind it is
`CorruptFrameError`: data that was committed would be lost.

The surprise: after a power loss the last commit frame may be on disk while a frame before it is not, since the kernel
writes pages in any order until the sync returns. That is a torn tail too. Two signs identify it: the damage holds a
512-byte sector of zeros (never written), and the only commit behind the damage is the last frame of the log.
"""

from __future__ import annotations

import io
from collections.abc import Container, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from .errors import CorruptFrameError, ForeignFileError
from .frame import (
    COMMIT,
    END,
    HEADER,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    MAX_BODY_BYTES,
    MUTATIONS,
    CommitFrame,
    Frame,
    decode_commit,
    problem,
)
from .identity import ID_BYTES, Identity
from .segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from .segment import Position, SegmentHeader, decode_header, parse_segment_name, seed_of

SECTOR: Final = 512
# Read at once where frames are small; of a larger frame the body is read to where it stays, without a copy.
_BUFFER_BYTES: Final = 1 << 14


class Tail(NamedTuple):
    """The bytes after the last sound frame of a segment: where, how many, and why they do not count."""

    path: str
    offset: int
    size: int
    reason: str


class LoggedVersion(NamedTuple):
    """One committed version: its commit, the packed bodies of its frames (none where only commits are read) and their
    size in bytes, the offset of its first frame, and the position after it."""

    commit: CommitFrame
    bodies: list[bytes]
    size: int
    start: int
    position: Position


def _unwritten(damaged: bytes, offset: int) -> bool:
    """True when the damaged bytes, which start at this offset of the file, hold an aligned sector of zeros, or
    begin with the rest of one.
    """
    first = -offset % SECTOR
    if 0 < first <= len(damaged) and not any(damaged[:first]):
        return True
    return any(not any(damaged[at : at + SECTOR]) for at in range(first, len(damaged) - SECTOR + 1, SECTOR))


class SegmentReader:
    """Reads one segment. `last` says that a torn tail is allowed: only the newest segment may end with one.

    `data` is the segment's content where the file is not on a local disk; `path` then only names it. After a
    CorruptFrameError `resume` is the position of the next sound frame, or None: nothing sound follows.

    Raises ForeignFileError, UnsupportedVersionError or CorruptFrameError when the header is not sound, and sets
    `torn_header` instead when the newest segment died while its header was being written.
    """

    def __init__(self, path: Path, *, last: bool, data: bytes | None = None) -> None:
        self.path = path
        self.last = last
        self.tail: Tail | None = None
        self.ended: CommitFrame | None = None
        self.torn_header = False
        self.resume: Position | None = None
        self._data = data
        with self._open() as file:
            self.raw_header = file.read(SEGMENT_HEADER_BYTES)
            self.size = size = file.seek(0, io.SEEK_END)
            file.seek(len(self.raw_header))
            # A writer that died while it created the segment leaves a short header or, on some file systems, zeros: the
            # segment has no commit.
            if last and size <= 1 << 20 and (not self.raw_header or not any(self.raw_header)) and not any(file.read()):
                self._tear_header(size, "empty or zero-filled")
                return
        try:
            self.header = decode_header(self.raw_header, path)
        except (CorruptFrameError, ForeignFileError) as error:
            if last and size < SEGMENT_HEADER_BYTES:
                self._tear_header(size, "header cut short")
                return
            raise error
        named = parse_segment_name(path.name)
        if named is not None and named != self.header.first_version:
            raise ForeignFileError(
                f"{path}: found versions from {self.header.first_version}, expected those from {named}, as its name "
                "says (give the file its name back, or restore it from a copy)"
            )
        self.seed = seed_of(self.raw_header)

    def _open(self, buffering: int = -1) -> BinaryIO:
        return self.path.open("rb", buffering=buffering) if self._data is None else io.BytesIO(self._data)

    def _tear_header(self, size: int, reason: str) -> None:
        self.torn_header = True
        self.header = SegmentHeader(Identity(bytes(ID_BYTES)), 0, 0, bytes(16))
        self.seed = 0
        self.tail = Tail(str(self.path), 0, size, f"segment header {reason}")

    def frames(self, offset: int = SEGMENT_HEADER_BYTES, sequence: int = 0) -> Iterator[Frame]:
        """Yield sound frames from a position on.

        Sets `tail` at a torn end; raises CorruptFrameError at damage. O(bytes).
        """
        if self.torn_header:
            return
        with self._open(_BUFFER_BYTES) as file:
            file.seek(offset)
            while True:
                header = file.read(HEADER_BYTES)
                if not header:
                    return
                length = HEADER.unpack(header)[3] if len(header) == HEADER_BYTES else 0
                body = file.read(length) if 0 < length <= MAX_BODY_BYTES else b""
                reason = problem(header, body, sequence, self.seed)
                if reason is not None:
                    self._damaged(file, offset, sequence, reason)
                    return
                end = offset + HEADER_BYTES + length
                yield Frame(header[2], sequence, offset, end, body)
                offset = end
                sequence += 1

    def _damaged(self, file: BinaryIO, offset: int, sequence: int, reason: str) -> None:
        file.seek(offset)
        rest = file.read()
        if not self.last:
            self._resume_in(rest, offset, sequence)
            raise CorruptFrameError(
                self.path,
                offset,
                f"{reason} (later segments follow, so committed data is damaged; restore this file from a copy)",
            )
        survivor, ends = self._committed_after(rest, sequence)
        if survivor is not None and not (ends and _unwritten(rest[:survivor], offset)):
            self._resume_in(rest, offset, sequence)
            raise CorruptFrameError(
                self.path,
                offset,
                f"{reason}, and a sound commit follows at byte {offset + survivor}, so committed data is damaged "
                "(restore this file from a copy)",
            )
        self.tail = Tail(str(self.path), offset, len(rest), reason)

    def _resume_in(self, rest: bytes, offset: int, sequence: int) -> None:
        for at, _, number, _ in self._sound_frames(rest, sequence, KINDS):
            self.resume = Position(self.header.first_version, offset + at, number)
            return
        self.resume = None

    def _committed_after(self, rest: bytes, sequence: int) -> tuple[int | None, bool]:
        """Return where in `rest` the first sound commit or end frame is (or None), and whether it is a commit that ends
        the segment. Uncommitted frames behind a tear do not count."""
        for at, kind, _, end in self._sound_frames(rest, sequence, (COMMIT, END)):
            return at, kind == COMMIT and end == len(rest)
        return None, False

    def _sound_frames(self, rest: bytes, sequence: int, kinds: Container[int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield (start, kind, sequence, end) of the sound frames of these kinds in what follows damage in frame
        `sequence`. O(bytes)."""
        at = rest.find(MAGIC)
        while at >= 0:
            header = rest[at : at + HEADER_BYTES]
            if len(header) == HEADER_BYTES and header[2] in kinds:
                _, _, _, length, number, _ = HEADER.unpack(header)
                end = at + HEADER_BYTES + length
                if number > sequence and problem(header, rest[at + HEADER_BYTES : end], None, self.seed) is None:
                    yield at, header[2], number, end
            at = rest.find(MAGIC, at + 1)

    def versions(self, start: Position | None = None) -> Iterator[LoggedVersion]:
        """Yield committed versions from a position on (default: the first). Frames without a commit are not yielded:
        they become the `tail`. Raises as `frames`, and CorruptFrameError for a commit that cannot be read. O(bytes)."""
        offset, sequence = (start.offset, start.sequence) if start else (SEGMENT_HEADER_BYTES, 0)
        first = self.header.first_version
        bodies: list[bytes] = []
        committed = offset
        for frame in self.frames(offset, sequence):
            if frame.kind != MUTATIONS or self.ended is not None:
                after = Position(first, frame.end, frame.sequence + 1)
                if self.ended is not None:
                    self.resume = after
                    raise CorruptFrameError(
                        self.path,
                        frame.offset,
                        "found a frame behind the end mark, expected none (restore this file from a copy)",
                    )
                try:
                    commit = decode_commit(frame.body)
                except ValueError as error:
                    self.resume = after
                    raise CorruptFrameError(
                        self.path, frame.offset, f"commit cannot be read: {error} (restore this file from a copy)"
                    ) from error
                if frame.kind == END:
                    self.ended = commit
                else:
                    yield LoggedVersion(commit, bodies, sum(map(len, bodies)), committed, after)
                    bodies = []
                committed = frame.end
            else:
                bodies.append(frame.body)
            offset = frame.end
        if self.tail is None and offset > committed:
            if not self.last:
                self.resume = None
                raise CorruptFrameError(
                    self.path,
                    committed,
                    "the segment ends inside a version, but later segments follow (restore this file from a copy)",
                )
            self.tail = Tail(str(self.path), committed, offset - committed, "mutations without a commit")
        elif self.tail is not None and self.tail.offset > committed:
            size = self.tail.offset + self.tail.size - committed
            self.tail = Tail(self.tail.path, committed, size, self.tail.reason)

    def commits(self) -> Iterator[LoggedVersion]:
        """Yield all committed versions without their bodies, which are passed over by their headers, unchecked.

        Sets `tail` and `ended`, and raises, as `versions` does. O(frames).
        """
        first = self.header.first_version
        start = Position(first, SEGMENT_HEADER_BYTES, 0)
        offset, sequence, size = start.offset, 0, 0
        with self._open(4096) as file:
            while len(header := self._at(file, offset, HEADER_BYTES)) == HEADER_BYTES:
                magic, kind, _, length, number, _ = HEADER.unpack(header)
                after = offset + HEADER_BYTES + length
                if magic != MAGIC or number != sequence or after > self.size or not length:
                    break
                if kind == MUTATIONS:
                    size += length
                elif kind == COMMIT:
                    body = file.read(length)
                    if problem(header, body, sequence, self.seed) is not None:
                        break
                    try:
                        commit = decode_commit(body)
                    except ValueError:
                        break
                    position = Position(first, after, sequence + 1)
                    yield LoggedVersion(commit, [], size, start.offset, position)
                    start, size = position, 0
                else:
                    break
                offset, sequence = after, sequence + 1
        # The rest is the end of the segment, sound or not: `versions` interprets it.
        for version in self.versions(start):
            yield version._replace(bodies=[])

    @staticmethod
    def _at(file: BinaryIO, offset: int, size: int) -> bytes:
        file.seek(offset)
        return file.read(size)
