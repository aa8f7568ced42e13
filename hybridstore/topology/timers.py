"""Timers: moments at which custom logic is called for a key, without a row. They are stores like others, so they
commit, replay and rewind with the state.

    stores.timers.set(ms) ─▶ due: (ms, key) in order ── time passes ──▶ on_timer(Timer(key, ms, "event"), stores)

Timers of event time fire when the stream time of the shard, or the watermark, reaches them; timers by the clock when
the clock of a commit does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from ..state.group import StoreGroup
from ..stores.kinds import KEY_VALUE
from .null_keys import given_key

TIMERS: Final = "timers"
CLOCK_TIMERS: Final = "clock"
_NEVER: Final = 1 << 63


class Timers:
    """Timers of all keys: (expiry, key) in order, and each key's own. `name` begins the names of the two
    stores. A key is a value, or a tuple of values.
    """

    def __init__(self, group: StoreGroup, name: str = TIMERS) -> None:
        self._due = KEY_VALUE.open(group, f"{name}:due", {"ttl_ms": None})
        self._of_key = KEY_VALUE.open(group, f"{name}:key", {"ttl_ms": None})

    def of(self, key: Any) -> list[int]:
        """Return a key's timers in order."""
        return list(self._of_key.get(key) or ())

    def register(self, key: Any, expiry_ms: int) -> None:
        """Add a timer; adding the same timer again changes nothing."""
        mine = self.of(key)
        if expiry_ms not in mine:
            self._of_key.put(key, sorted([*mine, expiry_ms]))
            self._due.put(_due(expiry_ms, key), True)

    def delete(self, key: Any, expiry_ms: int) -> None:
        """Remove a timer; an absent timer is no error."""
        mine = self.of(key)
        if expiry_ms in mine:
            mine.remove(expiry_ms)
            self._of_key.put(key, mine or None)
            self._due.delete(_due(expiry_ms, key))

    def expired(self, now_ms: int) -> list[tuple[int, Any]]:
        """Return (expiry, key) of the timers with expiry <= now, in order. O(result)."""
        return [(due[0], _key(due)) for due, _ in self._due.scan(None, (now_ms + 1,)) if due[0] <= now_ms]

    def first(self) -> tuple[int, Any] | None:
        """Return (expiry, key) of the timer that is due first, None without timers. O(log n)."""
        for due, _ in self._due.scan(None, None):
            return due[0], _key(due)
        return None


def _due(expiry_ms: int, key: Any) -> tuple[Any, ...]:
    return (expiry_ms, *key) if type(key) is tuple else (expiry_ms, key)


def _key(due: tuple[Any, ...]) -> Any:
    return due[1] if len(due) == 2 else due[1:]


class Timer(NamedTuple):
    """A timer that fires: its key, its time (ms), and whether event time or the clock ("wall") has reached it.

    >>> hs.Timer("ann", 60_000, "event").time
    60000
    """

    key: Any
    time: int
    clock: Literal["event", "wall"]


class KeyTimers:
    """The timers of the key in hand, of event time (`stores.timers`) or by the clock (`stores.clock_timers`).

    `now` is the time (ms) that decides which timers are due: stream time, the row in hand among its rows, or the
    watermark; of `clock_timers` the clock. -1 before the first.

    >>> def logged_in(row, stores):
    ...     stores.timers.set(stores.time + 60_000)
    >>> def remind(timer, stores):
    ...     yield {"user": timer.key, "at": timer.time}
    >>> reminders = hs.stream(key="user", timestamp="ts").process(logged_in, on_timer=remind)
    >>> [dict(row) for row in reminders.run([{"user": "ann", "ts": 0}, {"user": "bob", "ts": 70_000}])]
    [{'user': 'ann', 'at': 60000}]
    """

    def __init__(self, group: StoreGroup, name: str, clock: Literal["event", "wall"], *, texts: bool) -> None:
        self._timers = Timers(group, name)
        self._clock = clock
        # keys come as the texts that stores have
        self._texts = texts
        self._key: Any = None
        self._floor: int | None = None
        first = self._timers.first()
        # no timer is due before
        self._earliest = _NEVER if first is None else first[0]
        self.now = -1

    def set(self, time: int) -> None:
        """Set a timer of the key (ms); the same timer a second time changes nothing. A timer that is due already fires
        as soon as the function returns. O(timers of the key, and log n).

        Raises TypeError for another type, and ValueError, in `on_timer`, for a time that is not later than that of the
        timer which fires: it would fire for ever.
        """
        if type(time) is not int:
            raise TypeError(f"timers: set: found {type(time).__name__}, expected int (ms)")
        if self._floor is not None and time <= self._floor:
            raise ValueError(
                f"timers: set: found {time} while the timer {self._floor} fires, expected a later time (it would fire "
                "for ever)"
            )
        self._timers.register(self._key, time)
        self._earliest = min(self._earliest, time)

    def delete(self, time: int) -> None:
        """Delete a timer of the key (ms); an absent timer is no error. O(timers of the key, and log n)."""
        self._timers.delete(self._key, time)

    def list(self) -> list[int]:
        """Return the times (ms) of the key's timers, in order. O(timers of the key)."""
        return self._timers.of(self._key)

    def clear(self) -> None:
        """Delete all timers of the key. O(timers of the key)."""
        for time in self.list():
            self.delete(time)

    def select(self, key: Any) -> None:
        """Make this the key in hand."""
        self._key = key

    def fire(self, call: Callable[[Any, Timer], None]) -> None:
        """Call a function with each timer that is due, in the order of times, also with timers that it sets. O(due)."""
        while self._earliest <= self.now:
            first = self._timers.first()
            if first is None or first[0] > self.now:
                self._earliest = _NEVER if first is None else first[0]
                return
            time, key = first
            self._timers.delete(key, time)
            self._floor = time
            try:
                call(key, Timer(given_key(key) if self._texts else key, time, self._clock))
            finally:
                self._floor = None
