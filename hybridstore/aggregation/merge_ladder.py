"""The merge ladder: with a commutative `merge`, a few adds and one merge a record, whatever the size of the window.

    values   start [a b c | d e f g h i | j k l m n o p] .. cut [q r s t ..] .. end
    rungs          0 1 2   3              4                     back: the aggregate of cut..end
                   each the aggregate of everything from its lo to `cut`

A result is `merge(nearest rung, back)`. Rungs stop at `cut`, so an arrival touches only the back. The front is divided
into 32 steps, and its first step is divided again when the window's start reaches it, down to a rung for every record.
When the front is used up, the back becomes the front.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from .aggregator import Aggregator
from .ladder import require_commutative
from .window_state import Strategy, WindowState


class MergeLadderState(WindowState):
    """One key's rungs, back and cut. `los` is None without rungs: with few records, or after a restore."""

    __slots__ = ("back", "cut", "hi", "los", "rungs", "strategy")

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.strategy = strategy
        # beside each other, the nearest to the window's start last
        self.los: list[int] | None = None
        self.rungs: Any = None
        self.back: Any = None
        self.cut = 0
        self.hi = 0

    def clear(self) -> None:
        super().clear()
        self.take_down()

    def take_down(self) -> None:
        """Forget everything but the values."""
        self.los = self.back = self.rungs = None

    def displaced(self, position: int, ts: int, value: Any) -> None:
        rungs = self.rungs
        los = self.los
        if los is None or position >= self.hi:
            return
        self.hi += 1
        add = self.strategy.add
        if position >= self.cut:
            self.back = add(self.back, value)
            return
        self.cut += 1
        for i, lo in enumerate(los):
            if position <= lo:
                los[i] = lo + 1
            else:
                rungs[i] = add(rungs[i], value)

    def update(self, ts: int, value: Any, lo: int) -> Any:
        in_order = self.push(ts, value, lo)
        los = self.los
        hi = self.hi
        if not in_order or los is None or hi + 1 != self.end:
            return self.value()
        strategy = self.strategy
        self.hi = hi + 1
        back = self.back = strategy.add(self.back, value)
        start = self.start
        rungs = self.rungs
        if los[-1] < start:
            del los[-1], rungs[-1]
        if not los or los[-1] != start:
            return self.value()
        front = rungs[-1]
        if strategy.copy is not None:
            front = strategy.copy(front)
        front = strategy.merge(front, back)
        return front if strategy.result is None else strategy.result(front)

    def value(self) -> Any:
        strategy = self.strategy
        start = self.start
        end = self.end
        rungs = self.rungs
        los = self.los
        if los is None:
            if end - start < strategy.promote:
                total = strategy.fold(strategy.init(), self.slice(start, end))
                return total if strategy.result is None else strategy.result(total)
            los, rungs = self._build()
        else:
            missing = end - self.hi
            if missing:
                if missing == 1:
                    self.back = strategy.add(self.back, self.values[-1])
                else:
                    self.back = strategy.fold(self.back, self.slice(self.hi, end))
                self.hi = end
            while los and los[-1] < start:
                los.pop()
                rungs.pop()
            if not los:
                if end - start < strategy.promote // 2:
                    self.take_down()
                    return self.value()
                los, rungs = self._build()
            elif los[-1] > start:
                self._divide(start)
        front = rungs[-1]
        if strategy.copy is not None:
            front = strategy.copy(front)
        # the older of the two is the first argument, by the contract of `merge`
        front = strategy.merge(front, self.back)
        return front if strategy.result is None else strategy.result(front)

    def _build(self) -> tuple[list[int], list[Any]]:
        """Make all live values the front, with an add for each value."""
        strategy = self.strategy
        self.cut = self.hi = self.end
        self.back = strategy.init()
        self.los = [self.cut]
        self.rungs = [strategy.init()]
        self._divide(self.start)
        return self.los, self.rungs

    def _divide(self, start: int) -> None:
        """Put rungs into the gap between `start` and the nearest rung, ever closer to `start`."""
        strategy = self.strategy
        los, rungs = self.los, self.rungs
        assert los is not None
        copy = strategy.copy
        fan = strategy.fan
        lo = los[-1]
        while lo - start > 2 * fan:
            step = max(2 * fan, -(-(lo - start) // fan))
            while lo - start > step:
                aggregate = rungs[-1] if copy is None else copy(rungs[-1])
                rungs.append(strategy.fold(aggregate, self.slice(lo - step, lo)))
                lo -= step
                los.append(lo)
        values = self.slice(start, lo)
        if copy is None:
            # not `initial=`, for which None means no initial value
            steps = accumulate([rungs.pop(), *reversed(values)], strategy.add)
            rungs.extend(steps)
        else:
            for value in reversed(values):
                rungs.append(strategy.add(copy(rungs[-1]), value))
        los.extend(range(lo - 1, start - 1, -1))


class MergeLadder(Strategy[MergeLadderState]):
    """About log32(N) + 1 adds and one merge a record; needs `commutative` and `merge`.

    Raises ValueError if the aggregator lacks one of them.
    """

    name = "merge"
    state = MergeLadderState

    __slots__ = ("fan", "promote")

    def __init__(self, aggregator: Aggregator, *, fan: int = 32, promote: int = 8) -> None:
        super().__init__(aggregator)
        require_commutative(self.name, aggregator)
        if aggregator.merge is None:
            raise ValueError(
                f"strategy merge: aggregator {aggregator.name}: found no merge, expected one (give merge=, or use "
                "strategy='ladder')"
            )
        self.fan = fan
        self.promote = promote
