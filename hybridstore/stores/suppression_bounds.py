"""Bounds of suppression: what `Topology.hold` and the plain buffer wait for.

The buffer itself is `hybridstore.stores.suppression`.
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
                raise ValueError(f"{name}: found {bound!r}, expected a whole number of 0 or more, or None")
        if self.timer not in ("latest", "first"):
            raise ValueError(f'timer: found {self.timer!r}, expected "latest" or "first"')
        if self.on_full not in ("emit", "raise"):
            raise ValueError(f'on_full: found {self.on_full!r}, expected "emit" or "raise"')
        if self.final and self.on_full == "emit" and (self.max_records is not None or self.max_bytes is not None):
            raise ValueError(
                'on_full: found "emit" with a bound, though only final results are wanted, expected "raise" (what '
                "is emitted early is not final)"
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
        shown = {name: value for name, value in self.describe().items() if name != "final" and value is not None}
        bounds = [f"{name}={value}" for name, value in shown.items()]
        return ("until window closes " if self.final else "until ") + ", ".join(bounds)


def bounds_of(
    until: Duration | Literal["close"] | None = None,
    *,
    grace: Duration | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
    timer: Timer = "latest",
    on_full: OnFull | None = None,
) -> Suppression:
    """Return the bounds for the arguments of `Topology.hold`. Raises ValueError or TypeError for wrong ones.

    >>> from hybridstore.stores.suppression_bounds import bounds_of
    >>> print(bounds_of("5 minutes", max_records=1_000))
    until time_limit_ms=300000, max_records=1000, timer=latest, on_full=emit
    >>> print(bounds_of("close", max_records=1_000))
    until window closes max_records=1000, timer=latest, on_full=raise
    """
    if until == "close":
        bounded = max_records is not None or max_bytes is not None
        grace_ms = None if grace is None else duration_ms(grace, "hold: grace", zero=True)
        if timer != "latest":
            raise ValueError(f'hold: timer: found {timer!r} with "close", expected no timer')
        on_full = on_full or ("raise" if bounded else "emit")
        return Suppression(None, max_records, max_bytes, on_full=on_full, final=True, grace_ms=grace_ms)
    if grace is not None:
        raise ValueError(f'hold: grace: found {grace!r} without "close", expected no grace')
    limit = None if until is None else duration_ms(until, "hold: until", zero=True)
    return Suppression(limit, max_records, max_bytes, timer, on_full or "emit")
