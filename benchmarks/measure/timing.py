"""Timing: interleaved runs, and the spread of what they measured.

A shared machine drifts, so cases that are compared run in turn, round after round, and each round begins with another
one. A case returns the figure that it measured itself; what it prepares and checks is then outside of the figure.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any


class WrongAnswerError(Exception):
    """A benchmark's result was not what it had to be: its figures are worth nothing and are not shown."""

    def __init__(self, what: str) -> None:
        super().__init__(f"wrong answer: {what} (no figure is shown)")


def check(holds: bool, what: str) -> None:
    """Raise WrongAnswerError unless `holds`. Where an operation is timed, raise it by hand: `what` is made here at each
    call, right or wrong.
    """
    if not holds:
        raise WrongAnswerError(what)


@dataclass(frozen=True, slots=True)
class Spread:
    """The samples of one figure, in the order they were taken."""

    samples: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def low(self) -> float:
        """The smallest sample."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The largest sample."""
        return max(self.samples)

    def percentile(self, share: float) -> float:
        """Return the smallest sample that `share` (0 to 1) of all samples do not exceed. O(n log n)."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1))]

    def scaled(self, factor: float) -> Spread:
        """Return the spread in another unit."""
        return Spread(tuple(sample * factor for sample in self.samples))

    def over(self, base: Spread) -> Spread:
        """Return the ratio to `base`, round by round: drift that both had in a round cancels out."""
        return Spread(tuple(a / b for a, b in zip(self.samples, base.samples, strict=True)))


def interleaved(cases: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Spread]:
    """Run every case `repeats` times in turn, beginning each round with the next case, and return the figures by name.

    What exists before a case is frozen while it runs: Python's collector walks what the case makes, not the benchmark's
    own data.
    """
    names = list(cases)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            gc.freeze()
            try:
                samples[name].append(cases[name]())
            finally:
                gc.unfreeze()
    return {name: Spread(tuple(runs)) for name, runs in samples.items()}


class Clock:
    """Seconds that passed inside a `stopwatch` block."""

    seconds = 0.0


@contextmanager
def stopwatch() -> Iterator[Clock]:
    """Measure a block: `with stopwatch() as clock: ...`, then `clock.seconds`."""
    clock = Clock()
    started = perf_counter()
    yield clock
    clock.seconds = perf_counter() - started


def seconds_per_call(call: Callable[[Any], Any], arguments: list[Any]) -> float:
    """Return the seconds that one call takes, over all arguments, the loop included."""
    started = perf_counter()
    for argument in arguments:
        call(argument)
    return (perf_counter() - started) / len(arguments)
