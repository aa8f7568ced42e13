"""Pruning: remove the objects of a shard that no kept checkpoint and no loadable version needs, and void objects.

A crash in the middle leaves extra objects, never a missing one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from changelog.errors import ForeignFileError, HybridStoreError
from changelog.segment import HEADER_BYTES
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError
from recovery.ladder import checked
from recovery.layout import CHECKPOINTS, LOG, PACKS, LogName, damage_name, list_checkpoints
from recovery.line import Step
from recovery.prune import collect_packs
from recovery.rule import CountingObjects, MissingParent, Runs, counts, launch_of, note_of
from recovery.runs import newest_claim
from recovery.shard_log import encode_note

from .log import AttemptLog


class Kept(NamedTuple):
    """What stays loadable: the newest `checkpoints`, `versions` versions below the newest, and `oldest_replay` and
    later (None: no version is replayed).
    """

    checkpoints: int
    versions: int
    oldest_replay: int | None = None

    def needed(self, newest: int) -> int:
        """Return the oldest version that stays loadable."""
        needed = newest - self.versions
        return max(0, needed if self.oldest_replay is None else min(needed, self.oldest_replay))


def prune(log: AttemptLog, runs: Runs, kept: Kept, parents: dict[LogName, Step]) -> list[str]:
    """Remove objects on which neither kept checkpoints nor loadable versions depend, and void objects; return the
    removed names.

    Nothing is removed if the line cannot be followed down to the loadable versions (the query was turned back below
    them, or an object is damaged), or if a newer run has begun. A checkpoint that is damaged or of another line does
    not count as kept.

    `parents` has the parents of objects that were read or written before: their headers are not read again. Those that
    are read are added to it, and those of objects that are gone leave it. O(objects).
    """
    outlook = log.outlook

    def parent_of(name: LogName) -> Step:
        if name not in parents:
            parents[name] = log.objects.parent(name)
        return parents[name]

    try:
        outlook.begin({LOG: "", PACKS: ""})
        claim = newest_claim(log.operator)
        names = log.objects.names()
        if claim is None or claim.launch != runs[-1].launch or any(name.launch > claim.launch for name in names):
            return []
        standing = CountingObjects(names, runs)
        needed = kept.needed(standing.newest)
        greatest = [tried[0] for tried in standing.attempts.values()]
        outlook.fetch([str(name) for name in greatest if name not in parents], whole=0, head=HEADER_BYTES)
        line = _line_down(standing, parent_of)
        reached = max((version for version in line if version <= needed), default=0)
        if not reached and standing.top(needed, parent_of) is not None:
            return []
        # A query that is rewound to a version continues with the greatest attempt of the version, on the line or not.
        base = min((reached, *_meetings(standing, line, reached, parent_of)))
        # Behind the packs: a checkpoint that was finished meanwhile is seen, and so are the packs that it names.
        outlook.extend({CHECKPOINTS: ""})
        checkpoints, oldest, newest = _superfluous(log, line, base, kept.checkpoints, runs)
        removed = [name for name in names if name.version < oldest or not counts(runs, name)]
        removed += _quiet(log, standing, reached, needed)
        superfluous = [*checkpoints, *(str(name) for name in dict.fromkeys(removed))]
        if superfluous:
            outlook.delete(superfluous)
        for name in parents.keys() - set(names).difference(removed):
            del parents[name]
        return superfluous + collect_packs(outlook, below=newest)
    finally:
        outlook.end()


def _line_down(standing: CountingObjects, parent_of: Callable[[LogName], Step]) -> dict[int, str]:
    """Return the digests of the line that counts, by version, from the newest down to the first gap."""
    line: dict[int, str] = {}
    with suppress(MissingParent, FileNotFoundError, HybridStoreError):
        for name, _ in standing.line(standing.newest, parent_of):
            line[name.version] = name.digest8
    return line


def _meetings(
    standing: CountingObjects, line: dict[int, str], reached: int, parent_of: Callable[[LogName], Step]
) -> Iterator[int]:
    """Yield the versions at which the greatest attempts of loadable versions meet the line, if they are not on it: 0
    for an attempt that begins the shard. One call of `parent_of` for each object beside the line.
    """
    for version, tried in standing.attempts.items():
        if version < reached:
            continue
        name: LogName | None = tried[0]
        # an object that is lost already keeps nothing
        with suppress(FileNotFoundError, HybridStoreError):
            while name is not None and line.get(name.version) != name.digest8:
                parent = parent_of(name)
                version, name = parent.version, standing.parent(parent)
            if name is not None or version == 0:
                yield version


def _superfluous(
    log: AttemptLog, line: dict[int, str], reached: int, keep: int, runs: Runs
) -> tuple[list[str], int, int]:
    """Return the checkpoints that are not needed, the version of the oldest needed one (0: every object is needed), and
    that of the newest sound one.

    The object of the oldest version stays, too, because it has the digest of the version.
    """
    removed: list[str] = []
    sound: list[int] = []
    for name in reversed(list_checkpoints(log.outlook)):
        if (len(sound) >= keep and sound[-1] <= reached) or name.launch != launch_of(runs, name.version):
            removed += [str(name), damage_name(str(name))]
        elif name.version in line:
            with suppress(CheckpointError, ForeignFileError, FileNotFoundError):
                reader = checked(CheckpointReader(log.outlook, name), name, log.identity)
                if reader.meta.digest[:4].hex() == line[name.version]:
                    sound.append(name.version)
    oldest = sound[-1] if len(sound) >= keep and sound[-1] <= reached else 0
    return removed, oldest, max(sound, default=0)


def _quiet(log: AttemptLog, standing: CountingObjects, reached: int, needed: int) -> list[LogName]:
    """Return the notes that are not needed: those below an object that lies below every loadable version, and those up
    to `needed`, which one new note then spans.
    """
    removed = [name for version, name in standing.notes.items() if version < reached]
    quiet = [name for version, name in standing.notes.items() if reached < version <= needed]
    if len(quiet) > 1 and log.lenient():
        return removed + quiet
    if len(quiet) > 1 and all(standing.has(version) for version in range(reached + 1, needed + 1)):
        whole = note_of(needed, launch_of(standing.runs, needed), needed - reached)
        log.storage.create(str(whole), encode_note(log.identity, needed, int(time.time() * 1000), {}))
        removed += [name for name in quiet if name != whole]
    return removed
