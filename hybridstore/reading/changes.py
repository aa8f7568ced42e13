"""Changes: the changes in the changelog, version by version, one for each record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from changelog.changes import Change, changes_of
from changelog.errors import HybridStoreError, UnsupportedVersionError
from changelog.frame import CommitFrame
from changelog.mutation import ALTERED, DROPPED, SYSTEM
from recovery.layout import list_checkpoints
from recovery.line import Fault, Walk
from recovery.pages import PageCheckpoint

from .line import line_of, walk_behind
from .places import Place


class ChangedVersion(NamedTuple):
    """One committed version and its place: its commit, its changes, bytes of mutations, segment, and the file offset
    after it.
    """

    commit: CommitFrame
    changes: list[Change]
    size: int
    segment: str
    offset: int


class ChangeHistory:
    """The changelog of a place, read in order.

    `faults` lists the faults; reading continues behind a fault if possible. `removed` says whether the owner has
    removed segments since they were listed, which is no fault. With `behind` only what is behind this checkpoint is
    read.
    """

    def __init__(self, place: Place, behind: PageCheckpoint | None = None) -> None:
        self.place = place
        self.behind = behind
        self.faults: list[str] = []
        self.removed = False
        self.names: dict[int, str] = {SYSTEM: ""}
        self.kinds: dict[int, str] = {}
        self.parameters: dict[int, dict[str, Any]] = {}
        self._oldest = 0
        if behind is not None:
            self._names_from(behind)
        elif place.form == "directory":
            self._names_from_checkpoints()

    def _names_from_checkpoints(self) -> None:
        names = list_checkpoints(self.place.storage)
        self._oldest = min((name.version for name in names), default=0)
        for name in names:
            try:
                self._names_from(PageCheckpoint(self.place.storage, name))
            except (OSError, HybridStoreError):
                continue

    def _names_from(self, checkpoint: PageCheckpoint) -> None:
        for record in checkpoint.meta.stores:
            self._name(record.number, record.name, record.kind, record.parameters)

    def _name(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> None:
        self.names[number], self.kinds[number], self.parameters[number] = name, kind, parameters

    def versions(self, after: int = 0, through: int | None = None) -> Iterator[ChangedVersion]:
        """Yield the committed versions in after < version <= through, in order. O(bytes), also of those before."""
        if self.behind is not None:
            yield from self._walked(walk_behind(self.place, self.behind.meta), through)
            return
        line = line_of(self.place, needed=self._oldest)
        begun = [i for i, segment in enumerate(line.segments) if segment.first <= after + 1]
        before = begun[-1] if begun else 0
        if not self.kinds:
            # The names of stores are in a skipped segment, unless a checkpoint has them.
            for _ in self._walked(line._replace(segments=line.segments[:before]).walk(None), None):
                pass
        for logged in self._walked(line._replace(segments=line.segments[before:]).walk(None), through):
            if logged.commit.version > after:
                yield logged

    def _walked(self, walk: Walk, through: int | None) -> Iterator[ChangedVersion]:
        for item in walk:
            if isinstance(item, Fault):
                if isinstance(item.error, UnsupportedVersionError):
                    raise item.error
                if isinstance(item.error, FileNotFoundError):
                    self.removed = True
                else:
                    self.faults.append(str(item.raised()))
                continue
            if through is not None and item.commit.version > through:
                return
            path = Path(self.place.where) if walk.reader is None else walk.reader.path
            changes = self._changes(item.bodies, path, item.commit.version)
            yield ChangedVersion(item.commit, changes, item.size, path.name, item.position.offset)

    def _changes(self, bodies: list[bytes], path: Path, version: int) -> list[Change]:
        try:
            changes = changes_of(bodies)
        except Exception as error:  # forged mutations may raise anything
            self.faults.append(f"{path}: version {version} cannot be decoded: {error}")
            return []
        for change in changes:
            if change.op == "define" and change.store == SYSTEM and change.value["kind"] not in (DROPPED, ALTERED):
                parameters = dict(change.value)
                self._name(parameters.pop("number"), change.key, parameters.pop("kind"), parameters)
        return changes

    def name(self, number: int) -> str:
        """Return the name of a store by number, or `#number` when no retained version defines it."""
        return self.names.get(number, f"#{number}")
