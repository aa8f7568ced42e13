"""The command `verify`: every checksum, digest and order, and that each checkpoint is what the changelog gives.

Read through `pages`, so that a file which would end the process inside the storage engine is only a line of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from changelog.codec import unpack
from changelog.errors import CorruptFrameError, HybridStoreError
from changelog.journal import chain
from changelog.mutation import mutations
from changelog.segment import list_segments, segment_name
from recovery import verify as recovery_verify
from recovery.block import HASH_BYTES, BlockEntry, Columns
from recovery.checkpoint import checkpoint_name, list_checkpoints, parse_checkpoint_name
from recovery.page_sums import sums_path
from recovery.restore import CHANGELOG, CHECKPOINTS

from ..lock import read_note
from . import options as o
from .diff import compare
from .output import Out, counted, say, size_text
from .pages import PageCheckpoint
from .parameters import Option
from .places import Place
from .progress import Progress
from .reader import line, open_view, read_head, signature
from .session import Inspection
from .versions import reach


class Fault(NamedTuple):
    """One thing that is wrong: the file, the byte where it is known, and what."""

    path: Path
    offset: int | None
    what: str


class Checked(NamedTuple):
    """How much was read: checkpoints, blocks, segments, versions, and bytes."""

    checkpoints: int
    blocks: int
    segments: int
    versions: int
    size: int


class Verifier:
    """Checks one place. `faults` fills while `run` goes on; nothing is raised for damage, whatever it is."""

    def __init__(self, place: Place, progress: Progress, *, quick: bool = False, full: bool = False) -> None:
        self.place = place
        self.faults: list[Fault] = []
        self._progress = progress
        self._quick = quick
        self._full = full
        self._counts = [0, 0, 0, 0, 0]

    def _fault(self, path: Path, error: Exception | str, offset: int | None = None) -> None:
        if isinstance(error, CorruptFrameError):
            offset, error = error.offset, error.reason
        self.faults.append(Fault(path, offset, str(error).removeprefix(f"{path}: ")))

    def run(self) -> Checked:
        """Check everything. O(bytes); with `full` also O(replay) per checkpoint."""
        place = self.place
        if place.form == "checkpoint":
            self._checkpoint(place.path, parse_checkpoint_name(place.path.name))
        elif place.form == "segment":
            self._changelog()
        else:
            folder = place.path / CHECKPOINTS
            sound = [
                version
                for version in list_checkpoints(folder)
                if self._checkpoint(folder / checkpoint_name(version), version)
            ]
            self._changelog()
            self._joints(sound)
            if self._full and not self.faults and not place.label:
                # The files have the form that the engine trusts by now, so a restore's own reader may have its say.
                for fault in recovery_verify.verify(place.path):
                    self._fault(Path(fault.file), fault.what, fault.offset)
        return Checked(*self._counts)

    def _checkpoint(self, path: Path, named: int | None) -> bool:
        before = len(self.faults)
        self._counts[0] += 1
        try:
            reader = PageCheckpoint(path)
            self._counts[4] += reader.size
            if not reader.summed:
                self._fault(path, f"{sums_path(path).name} is missing, so it is not used")
            if named is not None and reader.meta.version != named:
                self._fault(path, f"holds version {reader.meta.version}, its name says {named}")
            for record in reader.meta.stores:
                entries = reader.directory(record.number)
                if sum(entry.records for entry in entries) != record.records:
                    self._fault(
                        path, f"store {record.name!r}: the directory's records do not add up to {record.records}"
                    )
                if not self._quick:
                    self._blocks(path, reader, record.number, entries)
            if not self._quick:
                reader.walk()
            reader.close()
        except FileNotFoundError:
            return False  # pruned by its writer meanwhile
        except Exception as error:  # a file that someone made up may raise anything
            self._fault(path, error)
        return len(self.faults) == before

    def _blocks(self, path: Path, reader: PageCheckpoint, store: int, entries: list[BlockEntry]) -> None:
        last: dict[int, Any] = {}
        for entry in entries:
            where = f"block {entry.block} of store {store}"
            try:
                data = bytes(reader.raw_block(store, entry.block))
                columns = reader.block(store, entry.block)
                problem = _block_problem(entry, data, columns)
                if problem is None and entry.bucket in last and not last[entry.bucket] < entry.first:
                    problem = f"begins at key {entry.first!r}, at or before the last of the block before it"
                last[entry.bucket] = entry.last
                if problem is not None:
                    self._fault(path, f"{where}: {problem}")
            except Exception as error:  # a block that someone made up may raise anything
                self._fault(path, error if isinstance(error, HybridStoreError) else f"{where}: {error}")
            self._counts[1] += 1
            self._progress.advance(entry.size if type(entry.size) is int else 0)

    def _changelog(self) -> None:
        place = self.place
        if place.form == "segment":
            from changelog.reader import SegmentReader

            try:
                readers = [SegmentReader(place.path, last=True)]
            except HybridStoreError as error:
                self._fault(place.path, error)
                return
        else:
            head = read_head(place)
            found = line(place.path / CHANGELOG, None if head is None else head.version, -1, shard=head is not None)
            names = list_segments(place.path / CHANGELOG)
            for text in found.faults:
                name = next((segment_name(first) for first in names if segment_name(first) in text), "")
                self._fault(place.path / CHANGELOG / name, text)
            readers = [link.reader for link in found.links]
            if head is None and len(found.links) < len(names) - (found.torn is not None):
                known = {link.first for link in found.links}
                for first in names:
                    if first not in known and not any(segment_name(first) in fault.what for fault in self.faults):
                        self._fault(place.path / CHANGELOG / segment_name(first), "not on the line of versions")
        version: int | None = None
        digest = b""
        for reader in readers:
            self._counts[2] += 1
            header = reader.header
            if reader.torn_header:
                continue
            if version is not None and (header.parent_version, header.parent_digest) != (version, digest):
                self._fault(
                    reader.path,
                    f"continues version {header.parent_version} ({header.parent_digest.hex()}), but version {version} ({digest.hex()}) was reached",
                )
            version, digest = header.parent_version, header.parent_digest
            try:
                for one in reader.versions():
                    size = sum(map(len, one.bodies))
                    self._counts[3] += 1
                    self._counts[4] += size
                    self._progress.advance(size)
                    if not place.label and one.commit.version != version + 1:
                        self._fault(
                            reader.path, f"version {one.commit.version} follows version {version}", one.position.offset
                        )
                    if chain(digest, one.bodies) != one.commit.digest:
                        self._fault(
                            reader.path,
                            f"version {one.commit.version}: its digest does not continue version {version}",
                            one.position.offset,
                        )
                    if not self._quick:
                        self._decode(reader.path, one.bodies, one.commit.version, one.position.offset)
                    version, digest = one.commit.version, one.commit.digest
                if reader.ended is not None and (reader.ended.version, reader.ended.digest) != (version, digest):
                    self._fault(
                        reader.path, f"was closed at version {reader.ended.version}, but version {version} was reached"
                    )
            except HybridStoreError as error:
                self._fault(reader.path, error)
        note = read_note(place.path).get("closed") if place.form == "directory" else None
        closed = note.get("version") if isinstance(note, dict) else None
        if type(closed) is int and readers and readers[-1].tail is not None:
            tail = readers[-1].tail
            self._fault(
                readers[-1].path, f"was closed at version {closed}, but its end is damaged: {tail.reason}", tail.offset
            )
        if type(closed) is int and version is not None and closed > version:
            self._fault(place.path, f"was closed at version {closed}, but the changelog ends at version {version}")

    def _decode(self, path: Path, bodies: list[bytes], version: int, offset: int) -> None:
        try:
            for body in bodies:
                for _ in mutations(unpack(body)):
                    pass
        except Exception as error:  # mutations that someone made up may raise anything
            self._fault(path, f"version {version} cannot be decoded: {error}", offset)

    def _joints(self, checkpoints: list[int]) -> None:
        """Check that checkpoints and changelog tell one story: digests, and with `full` every record."""
        place = self.place
        if self.faults:
            return
        found = reach(place)
        digests = {commit.version: commit.digest for commit in found.commits}
        for version in checkpoints:
            path = place.path / CHECKPOINTS / checkpoint_name(version)
            try:
                view = open_view(place, version)
            except HybridStoreError as error:
                self._fault(path, error)
                continue
            if version in digests and digests[version] != view.digest:
                self._fault(path, f"has digest {view.digest.hex()}, the changelog says {digests[version].hex()}")
            if (self._full and version > found.oldest) or (self._full and found.oldest == 1):
                self._rebuild(path, version)

    def _rebuild(self, path: Path, version: int) -> None:
        held = open_view(self.place, version)
        rebuilt = open_view(self.place, version, below=version)
        if rebuilt.settings != held.settings:
            self._fault(path, "its settings are not those that the changelog gives")
        for name in held.stores.keys() | rebuilt.stores.keys():
            mine, other = held.stores.get(name), rebuilt.stores.get(name)
            if mine is None or other is None:
                self._fault(path, f"store {name!r} is {'missing' if mine is None else 'not in the changelog'}")
                continue
            if mine.stream_time != other.stream_time:
                self._fault(
                    path, f"store {name!r}: stream time {mine.stream_time}, the changelog gives {other.stream_time}"
                )
            difference = next(compare(other, mine), None)
            if difference is not None:
                self._fault(
                    path,
                    f"store {name!r}: key {difference.key!r} is {difference.change} against a rebuild from the changelog",
                )


def _block_problem(entry: BlockEntry, data: bytes, columns: Columns) -> str | None:
    if blake2b(data[4:], digest_size=HASH_BYTES).digest() != entry.hash:
        return "its content is not what the directory's hash says"
    if len(data) != entry.size or len(columns.keys) != entry.keys or len(columns) != entry.records:
        return (
            f"{len(columns.keys)} keys and {len(columns)} records, the directory says {entry.keys} and {entry.records}"
        )
    if any(not a < b for a, b in zip(columns.keys, columns.keys[1:], strict=False)):
        return "its keys are not in order"
    if (columns.keys[0], columns.keys[-1]) != (entry.first, entry.last):
        return "its keys are not those of its line in the directory"
    times = columns.ints[0] if columns.ints else ()
    if (min(times, default=-1), max(times, default=-1)) != (entry.low, entry.high):
        return "its times are not those of its line in the directory"
    return None


def verify(
    path: o.Where,
    quick: Annotated[bool, Option("--quick", help="Structure and digests only: blocks are not read.")] = False,
    full: Annotated[
        bool,
        Option(
            "--full",
            help="Also compare each checkpoint with a rebuild from the changelog, and read all as a restore does.",
        ),
    ] = False,
    shard: o.Shard = None,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
    debug: o.Debug = False,
) -> int:
    """Check every checksum, digest and order. Each fault is listed with its file; exit code 1 when there is any."""
    if quick and full:
        raise o.UsageError("--quick and --full: expected one of them")
    inspection = Inspection(path, shard=shard)
    out = Out(output)
    totals = [0, 0, 0, 0, 0]
    faults = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal faults
        for place in inspection.places:
            size = sum(size for _, size, _ in signature(place))
            with Progress("verifying", size, shown=not no_progress) as progress:
                verifier = _steady(place, progress, quick, full)
                for i, count in enumerate(verifier[1]):
                    totals[i] += count
            for fault in verifier[0].faults:
                faults += 1
                relative = fault.path.relative_to(path) if path in fault.path.parents else fault.path
                row = {"file": str(relative), "offset": fault.offset, "fault": fault.what}
                yield ({"shard": place.label} if inspection.several else {}) | row

    out.rows(rows(), ("shard", "file", "offset", "fault"))
    checkpoints, blocks, segments, versions, size = totals
    verdict = "sound" if not faults else counted(faults, "fault")
    nouns = zip((checkpoints, blocks, segments, versions), ("checkpoint", "block", "segment", "version"), strict=True)
    say(f"{path}: {verdict}: {', '.join(counted(*pair) for pair in nouns)}, {size_text(size)}")
    return o.NEGATIVE if faults else o.FINE


def _steady(place: Place, progress: Progress, quick: bool, full: bool) -> tuple[Verifier, Checked]:
    """Verify, and again when a writer changed files meanwhile and a fault was found: it may be of the change."""
    for _ in range(3):
        before = signature(place)
        verifier = Verifier(place, progress, quick=quick, full=full)
        checked = verifier.run()
        if not verifier.faults or signature(place) == before:
            break
    return verifier, checked
