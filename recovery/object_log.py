"""Object log: the changelog of a plain store on an object store: a segment for each version, named by the version
alone.

    changelog/<version>.log    header, frames of mutations, one commit: a segment that holds one version
    fences/<version>-<ms>      an owner was about to claim the state at this version and time

A copy of such a state on a disk is a state directory like any other.

Objects do not grow, so a commit is one `create`, and two owners cannot both create a version: the second `create`
returns False and its owner stops. Before its first commit an owner claims the state by creating the next version empty:
from then on the commit of any earlier owner fails, because the name is taken. docs/format.md, "A plain store on an
object store".

The surprise: an earlier owner may sleep for any time, and no clock tells it so. If the version that stops its commit
were pruned, the commit would succeed, far behind the newest version, and be lost. The next name of an owner is always
the claim of the owner behind it, because an owner begins with a claim. So the name of a claim is never freed, and no
clock is asked. Only a claimant has no claim behind it yet: between its restore and its claim, an ordinary version may
have taken the name and been pruned. So a claim counts if no later version exists when it has been created; the newest
version is never pruned.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from changelog.frame import CommitFrame
from changelog.identity import Identity
from changelog.reader import SegmentReader
from changelog.rounds import side_by_side
from changelog.segment import parse_segment_name, segment_name
from changelog.storage import Storage, named_path

from .layout import CHANGELOG, FENCES, parse_fence_name
from .line import Segment, Step, Walk

# How many objects a walk has in memory at once.
ROUND: Final = 16


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
        Segment(named_path(f"{storage.url}/{object_name(version)}"), version)
        for version in versions_after(storage, after)
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
            places = range(number, min(number + ROUND, len(self._versions)))
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


def object_walk(storage: Storage, at: Step, *, identity: Identity | None = None, through: int | None = None) -> Walk:
    """Return a walk along the objects behind `at`, up to version `through`. They are read before it begins, side by
    side. O(bytes).
    """
    segments = [s for s in object_segments(storage, at.version) if through is None or s.first <= through]
    read = [segment._replace(data=segment.content()) for segment in with_content(storage, segments)]
    return Walk(read, at, identity=identity, whole=True)


def object_commit(storage: Storage, version: int) -> CommitFrame:
    """Return the commit of a version.

    Raises FileNotFoundError, or a HybridStoreError for content that cannot be read. O(bytes).
    """
    path = named_path(f"{storage.url}/{object_name(version)}")
    (commit,) = [
        item.commit for item in SegmentReader(path, last=False, data=storage.get(object_name(version))).commits()
    ]
    return commit


def claims(storage: Storage) -> set[int]:
    """Return the versions that owners were about to claim the state with: the names that are never freed. One list."""
    return {version for name in storage.list(f"{FENCES}/") if (version := parse_fence_name(name)) is not None}


def prune_objects(storage: Storage, below: int) -> list[str]:
    """Delete the objects of versions below `below`, except claims; return the names. Two lists."""
    # The versions first: the note of a claim is older than the claim, so a claim that is listed has its note listed.
    versions, kept = versions_after(storage, 0), claims(storage)
    names = [object_name(version) for version in versions if version < below and version not in kept]
    storage.delete(names)
    return names


def all_but_claims(storage: Storage) -> list[str]:
    """Return the names of a state that may be removed when the state is given up: all but claims and their notes. On a
    disk these are all names. Two lists.
    """
    names, kept = storage.list(), {object_name(version) for version in claims(storage)}
    return [name for name in names if name not in kept and not name.startswith(f"{FENCES}/")]
