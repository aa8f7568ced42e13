"""The command `verify`: the faults that `recovery.verify` finds in each place, and the end of the changelog compared
with LOCK. With `--full` each checkpoint is also compared with a replay of the changelog.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from changelog.errors import HybridStoreError
from changelog.storage import is_url, local_path
from recovery import verify as recovery_verify
from recovery.layout import (
    CHECKPOINTS,
    ERASING,
    CheckpointName,
    list_checkpoints,
    list_operators,
    operator_name,
    parse_checkpoint_name,
)
from recovery.line import Fault
from recovery.rule import ABSENT
from recovery.verify import Checked

from ...progress import Progress
from ...reading.differences import compare
from ...reading.line import line_of
from ...reading.places import Place
from ...reading.texts import say, size_text
from ...reading.versions import reach
from ...reading.view import View, open_view, signature
from ...state.generations import OPERATOR_FORMAT, read_description
from ...state.lock import loss, read_note
from .. import options as o
from ..look import Look
from ..show.output import counted


class PlaceVerifier:
    """Checks one place. `run` adds each fault to `faults`; damage never raises an exception.

    `void` counts the objects of a shard that were written by older runs and do not count."""

    def __init__(self, place: Place, progress: Progress, *, quick: bool = False, full: bool = False) -> None:
        self.place = place
        self.faults: list[Fault] = []
        self.void = 0
        self._full = full
        self._files = recovery_verify.Verifier(
            quick=quick, decode=full, progress=progress.advance, identity=place.identity()
        )

    def _fault(self, where: str, error: Exception | str) -> None:
        self.faults.append(Fault(where, None, str(error).removeprefix(f"{where}: ")))

    def run(self) -> Checked:
        """Check everything. O(bytes); with `full` also O(replay) for each checkpoint."""
        place, files = self.place, self._files
        if place.form == "checkpoint":
            name = parse_checkpoint_name(f"{CHECKPOINTS}/{place.name.rpartition('/')[2]}")
            self.faults += files.checkpoint(place.storage, place.name, None if name is None else name.version)
        elif place.form == "segment":
            self.faults += files.changelog(line_of(place).walk(None))
        else:
            self._directory()
        return files.checked

    def _directory(self) -> None:
        place, files = self.place, self._files
        checkpoints = list_checkpoints(place.storage)
        if place.shard is None:
            self.faults += files.directory(place.storage, line_of(place).walk(None))
            if place.path is not None:
                if not files.pruned:
                    self._lost(place.path)
                if (place.path / ERASING).exists():
                    self._fault(str(place.path), "an erase has begun and has not ended (run the same erase again)")
        else:
            try:
                line = line_of(place, needed=min((name.version for name in checkpoints), default=0))
            except (HybridStoreError, OSError) as error:
                self._fault(place.where, error)
                return
            self.faults += files.changelog(line.walk(None), wanted=line.steps())
            for version in line.absent:
                self._fault(place.where, ABSENT.format(version, version - 1))
            self.void = sum(text.startswith("void") for text in line.void.values())
            # Checkpoints of other lines are void.
            checkpoints = [name for name in checkpoints if line.takes(name)]
            for name in checkpoints:
                self.faults += files.checkpoint(place.storage, str(name), name.version)
        if self._full and not self.faults:
            self._rebuilds(checkpoints)

    def _lost(self, path: Path) -> None:
        """Compare the end of the changelog with the note of the last owner in LOCK."""
        files = self._files
        version = files.version
        if version is None:
            if self.faults:
                return
            version = max(files.sound, default=0)
        tail, stale = files.tail, []
        if tail is not None:
            if read_note(path).get("closed"):
                self._fault(tail.path, f"was closed, but its end is damaged: {tail.reason}")
            if not tail.offset:
                stale = [Path(tail.path)]
        needed = files.sound[max(files.sound)].segment if files.sound else 0
        lost = loss(path, version=version, needed=needed, stale=stale)
        if lost is not None:
            self._fault(str(lost[0]), lost[1])

    def _rebuilds(self, checkpoints: list[CheckpointName]) -> None:
        """Compare each checkpoint with a replay of the changelog, if the changelog reaches back far enough."""
        within = reach(self.place)
        whole = within.begins == 0 and bool(within.commits)
        for name in checkpoints:
            where, version = f"{self.place.storage.url}/{name}", name.version
            try:
                if version > within.oldest or whole:
                    self._rebuild(where, version)
            except HybridStoreError as error:
                self._fault(where, error)

    def _rebuild(self, where: str, version: int) -> None:
        stored = open_view(self.place, version)
        if stored.checkpoint is None or stored.checkpoint.version != version:
            return  # the checkpoint belongs to another line of the shard's versions
        with TemporaryDirectory(prefix="hybridstore-verify-") as folder:
            self._compare(where, stored, open_view(self.place, version, below=version, scratch=Path(folder)))

    def _compare(self, where: str, stored: View, rebuilt: View) -> None:
        if rebuilt.settings != stored.settings:
            self._fault(where, "its settings are not those that the changelog gives")
        for name in stored.stores.keys() | rebuilt.stores.keys():
            mine, other = stored.stores.get(name), rebuilt.stores.get(name)
            if mine is None or other is None:
                self._fault(where, f"store {name!r} is {'missing' if mine is None else 'not in the changelog'}")
                continue
            if mine.stream_time != other.stream_time:
                self._fault(
                    where, f"store {name!r}: stream time {mine.stream_time}, the changelog gives {other.stream_time}"
                )
            difference = next(compare(other, mine), None)
            if difference is not None:
                self._fault(
                    where,
                    f"store {name!r}: key {difference.key!r} is {difference.change} against a rebuild from the "
                    "changelog",
                )


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="Structure and digests only: blocks are not read.")
    full = "Also unpack every block, and compare each checkpoint with a replay of the changelog."
    depth.add_argument("--full", action="store_true", help=full)
    o.looking(parser, progress=True)


def run(look: Look, given: Namespace) -> int:
    """Check every checksum, every digest and the order of records. Each fault is listed with its file. Exit code 1 if
    any is found.
    """
    totals = Checked()
    faults = void = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal faults, void
        for fault in _descriptions(look.places):
            faults += 1
            yield {"file": _relative(fault.file, look.location), "fault": fault.what}
        for place in look.places:
            size = sum(size for _, size, _ in signature(place))
            with look.progress("verifying", size) as progress:
                verifier, checked = _steady(place, progress, given.quick, given.full)
            totals.add(checked)
            void += verifier.void
            for fault in verifier.faults:
                faults += 1
                relative = _relative(fault.file, look.location)
                row = {"file": relative, "offset": fault.offset, "fault": fault.what}
                yield look.label(place) | row

    look.out.rows(rows(), ("shard", "file", "offset", "fault"))
    verdict = "sound" if not faults else counted(faults, "fault")
    nouns = ("checkpoint", "block", "segment", "version")
    counts = (totals.checkpoints, totals.blocks, totals.segments, totals.versions)
    parts = [counted(count, noun) for count, noun in zip(counts, nouns, strict=True)]
    say(f"{look.location}: {verdict}: {', '.join(parts)}, {size_text(totals.size)}")
    if void:
        say(f"{look.location}: {counted(void, 'object')} void: a newer run has done their batches (no fault)")
    return o.NEGATIVE if faults else o.FINE


def _descriptions(places: Iterable[Place]) -> Iterator[Fault]:
    """Yield the faults of the descriptions of Spark operators, without which no query starts. Requests: each once."""
    operators = {place.operator_storage.url: place.operator_storage for place in places if place.operator_storage}
    for operator in operators.values():
        for name in map(operator_name, list_operators(operator)):
            try:
                read_description(operator, name, OPERATOR_FORMAT, dict)
            except HybridStoreError as error:
                where = f"{operator.url}/{name}"
                yield Fault(where, None, str(error).removeprefix(f"{where}: "))


def _relative(file: str, location: str) -> str:
    """Return the name of a file relative to a location. A file outside of the location keeps its full name."""
    for prefix in (location, str(location if is_url(location) else local_path(location))):
        if file.startswith(f"{prefix.rstrip('/')}/"):
            return file.removeprefix(f"{prefix.rstrip('/')}/")
    return file


def _steady(place: Place, progress: Progress, quick: bool, full: bool) -> tuple[PlaceVerifier, Checked]:
    """Verify a place, and again if it has faults and a writer changed files meanwhile. If it always did, only a fault
    that is still there counts: damage stays, and a file that was removed is missed once.
    """
    known: set[tuple[str, int | None, str]] = set()
    for _ in range(3):
        before = signature(place)
        verifier = PlaceVerifier(place, progress, quick=quick, full=full)
        checked = verifier.run()
        if not verifier.faults or signature(place) == before:
            return verifier, checked
        again = [fault for fault in verifier.faults if fault[:3] in known]
        known = {fault[:3] for fault in verifier.faults}
    verifier.faults = again
    return verifier, checked
