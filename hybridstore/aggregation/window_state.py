"""What every strategy is made of: a `Strategy` shared by all keys, and the `WindowState` of one key.

    strategy = choose(aggregator)          once a store
    state = strategy.new()                 once a key
    state.update(ts, value, lo)            a record: insert, expire(lo), value() in one call
    state.columns()                        what is persisted: times and values, nothing else
    strategy.restore(times, values)        ...and back; whatever else a state holds is rebuilt at the first `value()`

The surprise: a state *is* its value log, not a holder of one, because an attribute less on the way to it is worth a
tenth of a record's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from .aggregator import Aggregator
from .value_log import TimeLog


class WindowState(TimeLog):
    """The live records of one key, and the aggregate of them. Made by `Strategy.new` and `Strategy.restore`."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the result for the live records; it shares nothing that changes with the state."""
        raise AttributeError(
            f"{type(self).__name__} computes no value"
        )  # pragma: no cover - every strategy has its own

    def update(self, ts: int, value: Any, lo: int) -> Any:
        """Insert a record, expire all before `lo`, and return the result: the same as the three calls, but faster.

        The record itself must not be late: `ts >= lo`.
        """
        self.insert(ts, value)
        if self.oldest < lo:
            self.expire(lo)
        return self.value()

    def hold(self, ts: int, value: Any, lo: int) -> None:
        """`update` without a result: it costs no add, but what one that is asked for later will need."""
        self.insert(ts, value)
        if self.oldest < lo:
            self.expire(lo)


State = TypeVar("State", bound=WindowState)


class Strategy(Generic[State]):
    """How a window's aggregate is kept up to date: one object for all keys of a store, holding nothing of any key."""

    name: ClassVar[str]
    state: Callable[[Any], State]
    """The class of the state of one key."""

    __slots__ = ("add", "add_many", "aggregator", "copy", "finish", "fold", "init", "merge", "result", "subtract")

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        # states reach these on every record: one step, not two
        self.init = aggregator.init
        self.add = aggregator.add
        self.add_many = aggregator.add_many
        self.merge = aggregator.merge
        self.subtract = aggregator.subtract
        self.copy = aggregator.copy
        self.result = aggregator.result
        self.fold = aggregator.fold
        self.finish = aggregator.finish

    def new(self) -> State:
        """Return the state of a key without records."""
        return self.state(self)

    def restore(self, times: Iterable[int], values: Iterable[Any]) -> State:
        """Return the state of a key with records in event order; nothing is added up before its first `value()`.

        Raises ValueError if the columns differ in length or the times are not sorted.
        """
        state = self.new()
        state.load(times, values)
        return state

    def describe(self) -> list[Any]:
        """Return the strategy's name and parameters, for people: it is no part of the stored state."""
        return [self.name]

    def __repr__(self) -> str:
        return f"<{' '.join(map(str, self.describe()))} of {self.aggregator!r}>"
