"""What holds results back: `until_time_limit(...)` and `until_window_closes(...)`, for topologies and for the plain
store.

They are declarations; the buffer itself is `hybridstore.stores.suppression`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..clock import Duration, duration_ms

Timer = Literal["latest", "first"]
OnFull = Literal["emit", "raise"]


@dataclass(frozen=True, slots=True)
class Suppression:
    """Bounds of a suppression buffer (KIP-328).

    `final`: only final results leave, `grace_ms` after the window's end.
    """

    time_limit_ms: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    timer: Timer = "latest"
    on_full: OnFull = "emit"
    final: bool = False
    grace_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_records", "max_bytes"):
            bound = getattr(self, name)
            if bound is not None and (type(bound) is not int or bound < 0):
                raise ValueError(f"suppress: {name}: found {bound!r}, expected a whole number of 0 or more, or None")
        if self.timer not in ("latest", "first"):
            raise ValueError(f'suppress: timer: found {self.timer!r}, expected "latest" or "first"')
        if self.on_full not in ("emit", "raise"):
            raise ValueError(f'suppress: on_full: found {self.on_full!r}, expected "emit" or "raise"')
        if self.final and self.on_full == "emit" and (self.max_records is not None or self.max_bytes is not None):
            raise ValueError(
                'suppress: until_window_closes with a bound: on_full: found "emit", expected "raise" (emitting early '
                "would not be final)"
            )

    def describe(self) -> dict[str, Any]:
        """Return a stable, plain description."""
        return {
            "time_limit_ms": self.time_limit_ms,
            "max_records": self.max_records,
            "max_bytes": self.max_bytes,
            "timer": self.timer,
            "on_full": self.on_full,
            "final": self.final,
            "grace_ms": self.grace_ms,
        }

    def __str__(self) -> str:
        bounds = [f"{name}={value}" for name, value in self.describe().items() if value not in (None, False)]
        return ("until window closes " if self.final else "until ") + ", ".join(bounds)


def until_time_limit(
    time_limit: Duration | None = None,
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
    timer: Timer = "latest",
    on_full: OnFull = "emit",
) -> Suppression:
    """Hold a result for at most `time_limit` of stream time (None: no limit), or until a bound pushes it out.

    max_records, max_bytes  bounds of the buffer; the oldest results leave first
    timer                   "latest": an update restarts the time of its key; "first": a key leaves at the latest
                            `time_limit` after it was first seen
    on_full                 "emit": results leave early; "raise": BufferFullError

    Raises ValueError or TypeError for a bound or duration that is none.
    """
    limit = None if time_limit is None else duration_ms(time_limit, "until_time_limit: time_limit", zero=True)
    return Suppression(limit, max_records, max_bytes, timer, on_full)


def until_window_closes(
    grace: Duration | None = None, *, max_records: int | None = None, max_bytes: int | None = None
) -> Suppression:
    """Hold a window's result until no record can change it any more, so that it is emitted once and is final.

    `grace` (default: that of the windows) is how long after its end a window still changes. A bound makes the
    buffer raise BufferFullError when it is reached: emitting early would not be final.
    """
    grace_ms = None if grace is None else duration_ms(grace, "until_window_closes: grace", zero=True)
    bounded = max_records is not None or max_bytes is not None
    return Suppression(
        None, max_records, max_bytes, on_full="raise" if bounded else "emit", final=True, grace_ms=grace_ms
    )
