"""Routes: the operator's key to which a key of a store belongs, because that key decides the shard.

The routes of stores of windows and of stateful processors are known. A store of custom logic (`process`, a program) may
have any keys. If each of its keys lies in the shard of an equal operator's key, and the keys are so many that this
cannot be an accident, the store has the operator's keys; else the user must give the route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any, Final

from ..aggregation.windows import OnGrid, windows_of
from ..topology.joins.former import KEYLESS
from ..topology.joins.stores import keyless_name
from .report import RescaleError

Route = Callable[[Any], Any]
# The probability of an accident must be below two to the power of minus this.
_CERTAIN_BITS: Final = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """The store has keys with so many parts before and behind the operator's key."""

    before: int = 0
    behind: int = 0

    def __call__(self, key: Any) -> Any:
        return key[self.before : len(key) - self.behind] if self.before or self.behind else key


by_key: Final = Parts()
# a window's start and end
before_window: Final = Parts(behind=2)
before_last: Final = Parts(behind=1)
behind_first: Final = Parts(before=1)


def without_key(key: Any) -> Any:
    """The store has rows without a key, which are in shard 0 of any number of shards."""
    return KEYLESS


# The routes with names, as on the command line.
NAMED: Final[dict[str, Route]] = {"key": by_key, "key,last": before_last, "first,key": behind_first}
# Stores of `transform_with_state`, by the beginning of their names.
_PROCESSOR: Final = {
    "value:": by_key,
    "list:": by_key,
    "tail:": before_last,
    "entries:": before_last,
    "timers:due": behind_first,
    "timers:key": by_key,
}
# Timers of custom logic.
_TIMERS: Final = {"timers:due": behind_first, "timers:key": by_key, "clock:due": behind_first, "clock:key": by_key}


class Routes:
    """The routes of an operator's stores. `program` is the operator's description, `given` has the caller's routes by
    store name.
    """

    def __init__(self, program: Mapping[str, Any], given: Mapping[str, Route | str]) -> None:
        self._program = program
        self._given = {name: _named(name, route) for name, route in given.items()}
        self._join = program.get("join")
        self._keyless = () if self._join is None else {keyless_name(source["name"]) for source in self._join["inputs"]}

    def of(self, store: str) -> Route | None:
        """Return the route of a store; None for a store of custom logic without a given route. O(1)."""
        if store in self._given:
            return self._given[store]
        if "join" in self._program:
            return without_key if store in self._keyless else by_key
        if "processor" in self._program or "groups" in self._program:
            return next((route for start, route in _PROCESSOR.items() if store.startswith(start)), None)
        if self._program.get("process") is not None and store in _TIMERS:
            return _TIMERS[store]
        if "windows" in self._program and self._program.get("process") is None:
            return before_window if store == "suppressed" else by_key
        return None

    def check_join(self) -> None:
        """Raise RescaleError for a join whose shards cannot be shared out."""
        if self._join is not None and self._join["on"] is not None:
            raise RescaleError(
                "join: found a broadcast table, which is whole in every shard, expected another join (begin a new "
                "state with the new number of shards)"
            )

    @property
    def waits(self) -> bool:
        """Whether rows of a join wait until the time of their shard has passed, and come out then (`former`)."""
        join = self._join
        if join is None:
            return False
        return join["how"] not in ("inner", "semi") if join["within"] is not None else join["grace_ms"] is not None

    def check_names(self, stores: set[str]) -> None:
        """Raise RescaleError for a route of a store that does not exist."""
        for name in self._given:
            if name not in stores:
                raise RescaleError(f"route: no store {name!r} (known: {', '.join(sorted(stores)) or 'none'})")


def _named(store: str, route: Route | str) -> Route:
    if not isinstance(route, str):
        return route
    if route not in NAMED:
        raise RescaleError(
            f"route of store {store!r}: found {route!r}, expected {', '.join(map(repr, NAMED))}, or a function of the "
            "store's key that returns the operator's"
        )
    return NAMED[route]


def closing_ms(program: Mapping[str, Any], *, clocked: bool) -> tuple[int, int] | None:
    """Return how long after the time of a record of the store of windows (ms) the first and the last window close that
    it is part of; None for a program that hands out nothing at the close of windows."""
    if program.get("emit") != "close":
        return None
    windows = windows_of(program["windows"])
    closing = windows.closing_ms(clocked=clocked)
    last = windows.latest_end(0) + closing
    if "panes" in program["windows"]:
        return closing + 1, last
    # A day of a time zone may be shorter than its size, as it may be longer.
    first = last - 2 * (windows.longest_ms - windows.size_ms) if isinstance(windows, OnGrid) else last
    return first, last


def is_certain(keys: int, shards: int) -> bool:
    """True when this many keys cannot lie in the right ones of this many shards by accident."""
    return shards > 1 and keys * log2(shards) >= _CERTAIN_BITS
