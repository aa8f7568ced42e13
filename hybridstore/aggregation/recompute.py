"""Recompute: adds all live values again, in event order.

The only strategy that is right for every aggregator. If order matters and `merge` is missing, it is also the best
possible one, because windows with different beginnings then share nothing but `init()`.
"""

from __future__ import annotations

from typing import Any

from .window_state import Strategy, WindowState


class RecomputeState(WindowState):
    """Keeps the aggregate of the live records as long as no record expires or arrives out of order."""

    __slots__ = ("begun", "hi", "running", "strategy")

    def __init__(self, strategy: Recompute) -> None:
        super().__init__()
        self.strategy = strategy
        self.running: Any = None
        # positions: `running` is the aggregate of begun..hi-1, or of no value if begun is -1
        self.begun = -1
        self.hi = 0

    def displaced(self, position: int, ts: int, value: Any) -> None:
        if position < self.hi:
            self.begun = -1

    def value(self) -> Any:
        strategy = self.strategy
        start = self.start
        if self.begun != start:
            # an aggregate that is not kept need not be copied
            if strategy.aggregator.linear:
                return strategy.finish(strategy.fold(strategy.init(), self.slice(start, self.end)))
            self.begun = self.hi = start
            self.running = strategy.init()
        if self.hi < self.end:
            self.running = strategy.fold(self.running, self.slice(self.hi, self.end))
            self.hi = self.end
        return strategy.finish(self.running)


class Recompute(Strategy[RecomputeState]):
    """N adds a record, right for any aggregator."""

    name = "recompute"
    state = RecomputeState

    __slots__ = ()
