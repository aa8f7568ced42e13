"""Line: the segments of a place's newest version, and walks along them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from changelog.identity import Identity
from changelog.segment import Position, parse_segment_name
from changelog.storage import Storage, named_path
from recovery.layout import CHANGELOG, MOVED, CheckpointName, LogName
from recovery.line import Segment, SegmentShape, Step, Walk, log_segments
from recovery.meta import CheckpointMeta
from recovery.object_log import object_name, object_segments, with_content
from recovery.rule import NOTE, Run, Runs, begun, counting, counts
from recovery.runs import newest_claim
from recovery.shard_log import ShardLog

from .places import Place


class SegmentLine(NamedTuple):
    """The segments of a place, oldest first, and the shape of versions in them. `objects` is the storage of a plain
    store on an object store, whose segments are read during the walk; elsewhere None. `identity` is what is known of
    the state that belongs there.

    Of a shard: `newest` is the version reached (None elsewhere), `runs` decide which objects count, `void` returns why
    an object does not count, by its name ("": it counts), and `absent` are the versions behind the newest segment whose
    expected objects are absent. What is older than version `begin` is not in the log any more (0: nothing is).
    """

    segments: list[Segment]
    shape: SegmentShape
    newest: int | None = None
    void: Mapping[LogName, str] = MappingProxyType({})
    runs: Runs = ()
    absent: tuple[int, ...] = ()
    objects: Storage | None = None
    identity: Identity | None = None
    begin: int = 0

    def takes(self, name: CheckpointName) -> bool:
        """True for a checkpoint that may be of this line.

        In a shard its launch counts, and its version is a step of the line, or is below all that can be read of it."""
        if self.newest is None:
            return True
        run, steps = counting(self.runs, name.version), self.steps()
        counted = run is not None and run.launch == name.launch
        return counted and (name.version in steps or name.version < min(steps, default=name.version + 1))

    def walk(
        self,
        at: Step | None,
        *,
        start: Position | None = None,
        identity: Identity | None = None,
        through: int | None = None,
        skim: bool = False,
    ) -> Walk:
        """Return a walk along the versions behind `at` (None: behind the version that the oldest segment continues).

        In a log, `start` is where that version ends, and the walk may be ended at any version; in a shard it ends at
        `through`.
        """
        identity = identity or self.identity
        if self.objects is not None:
            return self._walk_objects(self.objects, at, start, identity, through, skim)
        if self.shape is SegmentShape.SHARD:
            base = 0 if at is None else at.version
            chosen = [s for s in self.segments if s.first > base and (through is None or s.first <= through)]
        elif start is None:
            chosen = self.segments
        else:
            chosen = [s for s in self.segments if s.first >= start.segment]
        return Walk(chosen, at, shape=self.shape, start=start, identity=identity, skim=skim)

    def _walk_objects(
        self,
        objects: Storage,
        at: Step | None,
        start: Position | None,
        identity: Identity | None,
        through: int | None,
        skim: bool,
    ) -> Walk:
        base = 0 if at is None else at.version
        chosen = [segment for segment in self.segments if segment.first > base]
        # A directory may have been copied to an object store: its segments then hold many versions, and a checkpoint
        # may end in the middle of a segment. (The object of a checkpoint's own version is not read, and may be pruned.)
        begun = [segment for segment in self.segments if start is not None and segment.first == start.segment]
        if start is None or not begun or (chosen and chosen[0].first == base + 1):
            start = None
        elif objects.size(object_name(start.segment)) > start.offset:
            chosen = begun + [segment for segment in chosen if segment.first > start.segment]
        else:
            start = None
        chosen = [segment for segment in chosen if through is None or segment.first <= through]
        return Walk(with_content(objects, chosen), at, start=start, identity=identity, skim=skim, whole=True)

    def steps(self) -> dict[int, bytes]:
        """Return the digest of every version that has a segment in a shard's line."""
        return {segment.step.version: segment.step.digest for segment in self.segments if segment.step is not None}


def line_of(place: Place, *, needed: int = 0, floor: int = 0, start: Position | None = None) -> SegmentLine:
    """Return the line of a place. In a shard, an object above version `needed` must be there.

    `start` is, in a log, the begin of the requested part; versions up to `floor` are not requested. Raises as
    `newest_claim`. O(files); the content of a shard's objects above `floor` is read.
    """
    storage, identity = place.storage, place.identity()
    if place.form == "segment":
        data = None if place.path else partial(storage.get, place.name)
        named = named_path(place.where)
        return SegmentLine([Segment(named, parse_segment_name(named.name) or 0, None, data)], SegmentShape.LOG)
    if place.shard is None and place.path is not None:
        return SegmentLine(log_segments(place.path / CHANGELOG, start), SegmentShape.LOG, identity=identity)
    if place.shard is None:
        after = floor if start is None else start.segment - 1
        return SegmentLine(object_segments(storage, after), SegmentShape.LOG, objects=storage, identity=identity)
    operator = place.operator_storage
    claim = None if operator is None else newest_claim(operator)
    runs = () if claim is None else claim.runs
    log = ShardLog(storage, identity)
    names = log.names()
    if claim is None:
        runs = _guessed(names)
    standing = log.standing(runs)
    if place.path is None:
        wanted = [name for version, attempts in standing.attempts.items() if version > floor for name in attempts]
        log = ShardLog(storage, identity, log.contents(wanted))
    segments = log.segments(standing, needed, floor)
    chosen = {segment.path.name for segment in segments}
    void = {
        name: "void: a newer run has done its batch"
        if not counts(runs, name)
        else ""
        if name.attempt == NOTE or name.version <= floor or str(name).rpartition("/")[2] in chosen
        else "another attempt counts"
        for name in names
    }
    moved = operator is not None and bool(operator.list(MOVED))
    reached = max(needed, floor, segments[-1].first if segments else 0)
    absent = () if moved or claim is None else tuple(standing.absent(reached, standing.newest - 1))
    first = segments[0].first if segments else 0
    begin = 0 if moved or claim is None or first < 2 or standing.has(first - 1) else first
    return SegmentLine(
        segments, SegmentShape.SHARD, standing.newest, void, runs, absent, identity=identity, begin=begin
    )


def walk_behind(place: Place, meta: CheckpointMeta, *, skim: bool = False) -> Walk:
    """Return a walk along the versions behind a checkpoint, which their owner removes last. Raises as `line_of`."""
    version, start = meta.version, meta.position if place.shard is None and meta.position.segment else None
    line = line_of(place, needed=version, floor=version, start=start)
    return line.walk(Step(version, meta.digest), start=start, identity=meta.identity, skim=skim)


def _guessed(names: list[LogName]) -> Runs:
    """Return the runs that follow from names, for a shard without its operator's folder: each launch began with the
    batch of its oldest object.
    """
    runs: Runs = ()
    for launch in sorted({name.launch for name in names}):
        first = min(name.version for name in names if name.launch == launch) - 1
        runs = begun(runs, Run(launch, first))
    return runs
