"""Line: the versions of one state, each named by its number and digest, each the child of the one before it."""

from __future__ import annotations

from typing import Final, NamedTuple

from changelog.journal import EMPTY_DIGEST


class Step(NamedTuple):
    """A version on a line: its number and its digest; (0, zeros) is the empty state."""

    version: int
    digest: bytes


EMPTY: Final = Step(0, EMPTY_DIGEST)
