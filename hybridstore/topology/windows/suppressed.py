"""Suppressed: results held back in a suppression buffer, keyed by key and window."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from ...clock import BY_ADVANCE
from ...state.group import StoreGroup
from ...stores.kinds import SUPPRESSION
from ..plan import Plan
from ..results import Result

SUPPRESSED: Final = "suppressed"


def buffer_parameters(plan: Plan, *, clocked: bool) -> dict[str, Any]:
    """Return the parameters of the buffer behind the windows of a plan that has one."""
    suppression, windows = plan.suppression, plan.windows
    assert suppression is not None
    assert windows is not None
    parameters = suppression.describe()
    if suppression.final and parameters["grace_ms"] is None:
        parameters["grace_ms"] = windows.closing_ms(clocked=clocked)
    return parameters | (BY_ADVANCE if clocked else {})


class Suppressed:
    """One shard's suppression buffer behind its windows.

    A buffered value is the list of aggregates; None removes a session.
    """

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        self._buffer = SUPPRESSION.open(group, SUPPRESSED, buffer_parameters(plan, clocked=clocked))
        self.released: list[tuple[Any, Any, int]] = []
        """What has left the buffer already, to be handed out with the next that leaves it."""

    def hold(self, results: list[Result]) -> list[Result]:
        """Buffer results and return those that they push out."""
        released = list(map(_result, self.released))
        self.released = []
        put = self._buffer.put
        for key, start, end, aggregates, ts in results:
            released += map(
                _result,
                put(
                    (key, start, end) if type(key) is not tuple else (*key, start, end),
                    None if aggregates is None else list(aggregates),
                    ts,
                ),
            )
        return released

    def advance(self, stream_time: int) -> list[Result]:
        """Move the buffer's stream time and return the due results."""
        return [] if stream_time < 0 else list(map(_result, chain.from_iterable(self._buffer.advance(stream_time))))

    def flush(self) -> list[Result]:
        """Emit all results held back, and return them."""
        return list(map(_result, chain.from_iterable(self._buffer.flush())))


def _result(emitted: tuple[Any, Any, int]) -> Result:
    group_key, value, ts = emitted
    *key, start, end = group_key
    return Result(key[0] if len(key) == 1 else tuple(key), start, end, None if value is None else tuple(value), ts)
