"""Bounds of suppression: `until_time_limit(...)` and `until_window_closes(...)`, for topologies and for the plain
store.

The functions return declarations; the buffer itself is `hybridstore.stores.suppression`.
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

    `final`: only final results are emitted, `grace_ms` after the window's end.

    >>> print(hs.until_time_limit("5 minutes", max_records=1_000))
    until time_limit_ms=300000, max_records=1000, timer=latest, on_full=emit
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

    max_records, max_bytes  bounds of the buffer; the oldest results are emitted first
    timer                   "latest": an update restarts the time of its key; "first": a key is emitted at the latest
                            `time_limit` after its first update
    on_full                 "emit": results are emitted early; "raise": BufferFullError

    Raises ValueError or TypeError for a wrong bound or duration.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> fewer = minutes.aggregate(n=hs.Count()).suppress(hs.until_time_limit("10 seconds"))
    >>> rows = [{"user": "ann", "ts": 0}, {"user": "ann", "ts": 500}, {"user": "bob", "ts": 10_500}]
    >>> [(row["user"], row["n"]) for row in fewer.run(rows)]
    [('ann', 2)]
    """
    limit = None if time_limit is None else duration_ms(time_limit, "until_time_limit: time_limit", zero=True)
    return Suppression(limit, max_records, max_bytes, timer, on_full)


def until_window_closes(
    grace: Duration | None = None, *, max_records: int | None = None, max_bytes: int | None = None
) -> Suppression:
    """Hold a window's result until no record can change it any more, so that it is emitted once and is final.

    `grace` (default: that of the windows) is how long after its end a window still changes. A bound makes the
    buffer raise BufferFullError when it is reached: emitting early would not be final.

    >>> clicks = hs.stream(key="user", timestamp="ts")
    >>> minutes = clicks.windowed_by(hs.TumblingWindows("1 minute", grace="10 seconds"))
    >>> final = minutes.aggregate(n=hs.Count()).suppress(hs.until_window_closes())
    >>> rows = [{"user": "ann", "ts": ts} for ts in (0, 60_000, 69_999, 70_000)]
    >>> [(row["window_start"], row["n"]) for row in final.run(rows)]
    [(0, 1)]
    """
    grace_ms = None if grace is None else duration_ms(grace, "until_window_closes: grace", zero=True)
    bounded = max_records is not None or max_bytes is not None
    return Suppression(
        None, max_records, max_bytes, on_full="raise" if bounded else "emit", final=True, grace_ms=grace_ms
    )
