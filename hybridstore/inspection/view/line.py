"""Line: the segments that a place's newest version is made of, and walks along them."""

from __future__ import annotations

from typing import NamedTuple

from changelog.segment import Position, parse_segment_name, segment_name
from recovery.layout import CHANGELOG
from recovery.line import Segment, Shape, Step, Walk, log_segments, shard_segments

from ...shard_head import HEAD_NAME, Head, read_head
from .places import Place


class Line(NamedTuple):
    """The segments of a place, oldest first, how versions lie in them, and the head of a shard."""

    segments: list[Segment]
    shape: Shape
    head: Head | None

    def walk(
        self,
        at: Step | None,
        *,
        start: Position | None = None,
        store_id: bytes | None = None,
        through: int | None = None,
        skim: bool = False,
    ) -> Walk:
        """Return a walk along what lies behind version `at` (None: behind whatever the oldest segment continues).

        In a log, `start` is where that version ends, and the walk may be ended at any version; in a shard it ends at
        `through`.
        """
        if self.shape is Shape.SHARD:
            base = 0 if at is None else at.version
            chosen = [s for s in self.segments if s.first > base and (through is None or s.first <= through)]
        elif start is None:
            chosen = self.segments
        else:
            chosen = [s for s in self.segments if s.first >= start.segment]
        return Walk(chosen, at, shape=self.shape, start=start, store_id=store_id, skim=skim)

    def steps(self) -> dict[int, bytes]:
        """Return the digest of every version that has a segment in a shard's line."""
        return {segment.step.version: segment.step.digest for segment in self.segments if segment.step is not None}


def line_of(place: Place, *, needed: int = 0, start: Position | None = None) -> Line:
    """Return the line of a place. In a shard, a segment above version `needed` must be there.

    `start` says, in a log, where the part begins that is asked for. Raises as `read_head`. O(files).
    """
    if place.form == "segment":
        first = parse_segment_name(place.path.name) or 0
        return Line([Segment(place.path, first)], Shape.LOG, None)
    changelog = place.path / CHANGELOG
    head = read_head(place.path / HEAD_NAME)
    if head is None:
        return Line(log_segments(changelog, start), Shape.LOG, None)
    return Line(
        shard_segments(
            head.tip, lambda step: Segment(changelog / segment_name(step.version), step.version, step), needed
        ),
        Shape.SHARD,
        head,
    )
