"""Object log: the changelog of a plain store on an object store: a segment for each version, named by the version
alone.

    changelog/<version>.log    header, frames of mutations, one commit: a segment that holds one version
    fences/<version>-<ms>      an owner was about to claim the state at this version and time

A copy of such a state on a disk is a state directory like any other.

Objects do not grow, so a commit is one `create`, and two owners cannot both create a version: the second `create`
returns False and its owner stops. Before its first commit an owner claims the state by creating the next version empty:
from then on the commit of any earlier owner fails, because the name is taken. docs/format.md, "A plain store on an
object store".

The surprise: an earlier owner may pause for so long that the version that should stop its commit was pruned. The commit
would then succeed, far behind the newest version, and be lost. So versions that claimed the state are kept for a day,
and an owner without a commit for half a day first lists the versions after its last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from changelog.frame import Commit
from changelog.reader import SegmentReader
from changelog.rounds import side_by_side
from changelog.segment import parse_segment_name, segment_name
from changelog.storage import Storage

from .layout import CHANGELOG, FENCES, parse_fence_name
from .line import Segment, Step, Walk

# How long a version that claimed the state is kept; after half of this time without a commit, an owner looks for later
# versions.
FENCE_SECONDS: Final = 24 * 3600.0
# How many objects a walk has in memory at once.
_ROUND: Final = 16


def object_name(version: int) -> str:
    """Return the name of a version's object."""
    return f"{CHANGELOG}/{segment_name(version)}"


def versions_after(storage: Storage, version: int) -> list[int]:
    """Return the versions above `version` that have an object, in order. O(names), one list."""
    prefix = f"{CHANGELOG}/"
    names = storage.list(prefix, after=object_name(version))
    return [parsed for name in names if (parsed := parse_segment_name(name.removeprefix(prefix))) is not None]


def object_segments(storage: Storage, after: int = 0) -> list[Segment]:
    """Return the objects of versions above `after` as segments, oldest first. One list; their content is not read."""
    return [
        Segment(Path(f"{storage.url}/{object_name(version)}"), version) for version in versions_after(storage, after)
    ]


def with_content(storage: Storage, segments: Iterable[Segment]) -> list[Segment]:
    """Return the same segments, for one walk: their content is read side by side, a few segments ahead of the walk. No
    request yet.
    """
    segments = list(segments)
    ahead = _Ahead(storage, [segment.first for segment in segments])
    return [segment._replace(data=partial(ahead.take, number)) for number, segment in enumerate(segments)]


class _Ahead:
    """Objects of a log, read side by side and ahead of the walk."""

    def __init__(self, storage: Storage, versions: list[int]) -> None:
        self._storage = storage
        self._versions = versions
        self._read: dict[int, bytes | OSError] = {}

    def take(self, number: int) -> bytes:
        """Return the content of the object at this place in the list. Raises OSError."""
        if number not in self._read:
            # One round of requests at a time, and no threads between rounds, because a walk may end anywhere.
            places = range(number, min(number + _ROUND, len(self._versions)))
            self._read = dict(zip(places, side_by_side(self._get, places), strict=True))
        content = self._read.pop(number)
        if isinstance(content, OSError):
            raise content
        return content

    def _get(self, place: int) -> bytes | OSError:
        try:
            return self._storage.get(object_name(self._versions[place]))
        except OSError as error:
            return error


def object_walk(storage: Storage, at: Step, *, store_id: bytes | None = None, through: int | None = None) -> Walk:
    """Return a walk along the objects behind `at`, up to version `through`. They are read before it begins, side by
    side. O(bytes).
    """
    segments = [s for s in object_segments(storage, at.version) if through is None or s.first <= through]
    read = [segment._replace(data=segment.content()) for segment in with_content(storage, segments)]
    return Walk(read, at, store_id=store_id, whole=True)


def object_commit(storage: Storage, version: int) -> Commit:
    """Return the commit of a version.

    Raises FileNotFoundError, or a HybridStoreError for content that cannot be read. O(bytes).
    """
    path = Path(f"{storage.url}/{object_name(version)}")
    (commit,) = [
        item.commit for item in SegmentReader(path, last=False, data=storage.get(object_name(version))).commits()
    ]
    return commit


def prune_objects(storage: Storage, below: int) -> list[str]:
    """Delete the objects of versions below `below`, except claims of the last day; return the names."""
    oldest_ms = (time.time() - FENCE_SECONDS) * 1000
    fences = [(name, parsed) for name in storage.list(f"{FENCES}/") if (parsed := parse_fence_name(name)) is not None]
    kept = {version for _, (version, wall_ms) in fences if wall_ms >= oldest_ms}
    names = [name for name, (version, wall_ms) in fences if wall_ms < oldest_ms and version < below]
    names += [object_name(version) for version in versions_after(storage, 0) if version < below and version not in kept]
    storage.delete(names)
    return names
