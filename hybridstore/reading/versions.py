"""Versions: the commits that a place holds, and the newest of them at a time.

Only commit frames are read: frames of mutations are passed over by their headers, unchecked, because a large changelog
would take seconds to list. What is in them is checked when it is applied, and by `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from changelog.errors import UnsupportedVersionError
from changelog.reader import LoggedVersion
from changelog.storage import named_path
from recovery.layout import list_checkpoints
from recovery.line import Segment, SegmentShape, Walk
from recovery.pages import PageCheckpoint

from .line import line_of, walk_behind
from .places import Place
from .texts import iso
from .view import open_view, retry_while_changing


class Commit(NamedTuple):
    """One version in the changelog: the time of the commit (ms), its segment, packed bytes, digest, stream times by
    store number, records by mutation code.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> (commit,) = hs.inspect("state").versions
    >>> commit.version, commit.segment, len(commit.digest)
    (1, 1, 16)
    """

    version: int
    wall_ms: int
    segment: int
    size: int
    digest: bytes
    times: dict[int, int]
    records: dict[int, int]

    def __repr__(self) -> str:
        return (
            f"<Commit {self.version}, {iso(self.wall_ms)}, {sum(self.records.values())} mutations, {self.size} bytes, "
            f"segment {self.segment}, digest {self.digest.hex()[:8]}>"
        )


class Reach(NamedTuple):
    """The versions that can be opened: commits in order, checkpoint versions, the oldest version within reach, faults,
    and the version that the oldest segment continues (None: no segment exists).
    """

    commits: list[Commit]
    checkpoints: list[int]
    oldest: int
    faults: list[str]
    begins: int | None = None


def reach(place: Place) -> Reach:
    """Return the versions of a place; of those that its owner removes while they are read, none.

    Raises OSError or HybridStoreError when nothing can be read. O(bytes of the changelog).
    """

    def behind(checkpoint: PageCheckpoint) -> Reach:
        return _reach([checkpoint.meta.version], walk_behind(place, checkpoint.meta, skim=True))

    return retry_while_changing(place, lambda: reach_once(place), lambda within: bool(within.faults), behind)


def reach_once(place: Place) -> Reach:
    """As `reach`, for a caller that tries again itself while files change."""
    if place.form == "checkpoint":
        view = open_view(place)
        return Reach([], [view.version], view.version, [])
    names = list_checkpoints(place.storage) if place.form == "directory" else []
    checkpoints = sorted({name.version for name in names})
    return _reach(checkpoints, line_of(place, needed=min(checkpoints, default=0)).walk(None, skim=True))


def _reach(checkpoints: list[int], walk: Walk) -> Reach:
    commits: list[Commit] = []
    faults: list[str] = []
    for item in walk:
        if isinstance(item, LoggedVersion):
            commits.append(_commit(item))
        elif isinstance(item.error, (UnsupportedVersionError, OSError)):
            raise item.error
        else:
            faults.append(str(item.raised()))
    # Before the oldest checkpoint, the changelog counts only if its first version is present.
    whole = walk.begins == 0 and bool(commits)
    oldest = 1 if whole else min(checkpoints, default=(walk.begins or 0) + 1)
    return Reach(commits, checkpoints, oldest, faults, walk.begins)


def _commit(version: LoggedVersion) -> Commit:
    number, digest, records, wall_ms, times, *_ = version.commit
    return Commit(number, wall_ms, version.position.segment, version.size, digest, times, records)


def committed_by(place: Place, moment: int, within: Reach) -> int | None:
    """Return the newest version that can be opened and was committed by a time (ms); None if none exists."""
    before = [commit.version for commit in within.commits if commit.wall_ms <= moment]
    if before:
        return max(before)
    for version in reversed(within.checkpoints):
        view = open_view(place, version)
        if view.wall_ms is not None and view.wall_ms <= moment:
            return version
    return None


class SegmentState(NamedTuple):
    """One segment file: its bytes, its versions (first, last, number), the time of its last commit (ms), the reason why
    its end does not count ("": all counts), the damage, and the reason why its versions do not count, if any.
    """

    path: Path
    size: int
    first: int
    last: int
    number: int
    wall_ms: int | None
    end: str
    damage: str
    void: str


def segment_states(place: Place) -> Iterator[SegmentState]:
    """Yield every segment of a place, oldest first, on its line or not.

    Segments that a writer removes meanwhile are left out. O(frames).
    """
    line = line_of(place)
    if line.newest is None:
        yield from _states(line.walk(None, skim=True), "")
        return
    for name, void in line.void.items():
        data = None if place.path else partial(place.storage.get, str(name))
        segment = Segment(named_path(f"{place.storage.url}/{name}"), name.version, None, data)
        yield from _states(Walk([segment], None, shape=SegmentShape.SHARD, skim=True), void)


def _states(walk: Walk, void: str) -> Iterator[SegmentState]:
    versions: dict[int, list[LoggedVersion]] = {segment.first: [] for segment in walk.segments}
    damage: dict[str, str] = {}
    for item in walk:
        if isinstance(item, LoggedVersion):
            versions[item.position.segment].append(item)
        elif isinstance(item.error, UnsupportedVersionError):
            raise item.error
        elif not isinstance(item.error, FileNotFoundError):
            damage.setdefault(item.file, str(item.raised()))
    for segment in walk.segments:
        try:
            size = walk.sizes[segment.first] if segment.data else segment.path.stat().st_size
        except FileNotFoundError:
            continue
        except KeyError:  # its header is not sound, or it is gone
            size = 0
        inside = versions[segment.first]
        end = "closed" if segment.first in walk.marked else ""
        if not inside and segment.first <= (walk.begins or 0):
            end = "the claim of an owner, which is kept"
        if walk.cut is not None and walk.cut.path == str(segment.path):
            end = f"torn tail of {walk.cut.size} bytes"
        last, wall_ms = (inside[-1].commit.version, inside[-1].commit.wall_ms) if inside else (segment.first, None)
        yield SegmentState(
            segment.path, size, segment.first, last, len(inside), wall_ms, end, damage.get(str(segment.path), ""), void
        )
