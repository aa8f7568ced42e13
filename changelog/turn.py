"""Turn: who may use a state now: one thread, and one call at a time.

    a call of a store or a state ─┬─ the turn is free, and the thread is the owner ─▶ `busy` as long as the call lasts
                                  └─ else ─▶ `take`: the first use decides the owner; a call of our own inside of a call
                                             continues; any other call is refused before it changes anything

A second call comes from another thread, or from a signal handler in the middle of a call of the same thread. The look
costs a put some 25 ns, since `busy` is one field, and an RLock, which the owner keeps, knows its thread. The surprise:
whether a call is really in progress is decided by the frames of the thread, because an exception from outside may end a
call between any two lines, also before `busy` is reset.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import Any, Final, ParamSpec, TypeVar

from .errors import StateInUseError

P = ParamSpec("P")
R = TypeVar("R")
_Method = TypeVar("_Method", bound=Callable[..., Any])

# The packages whose functions call stores inside of calls.
_OURS: Final = frozenset({"changelog", "recovery", "hybridstore"})
# The code of functions with a local variable `turn` that set `turn.busy`.
_ENTRIES: Final[set[CodeType]] = set()
# For the moments in which one thread takes over from another; a signal handler may come in between.
_SWITCH: Final = threading.RLock()


class Turn:
    """The turn of one state.

    busy    what is changed or read now: a store, or the turn itself for all stores; None between calls
    lock    kept by the owner's thread
    bound   False: any thread may continue between calls; somebody else sees to it that they come one at a time
    where   the place that messages name
    """

    __slots__ = ("bound", "busy", "lock", "thread", "where")

    def __init__(self) -> None:
        self.busy: object = None
        self.lock: Any = threading.RLock()
        self.thread: threading.Thread | None = None
        self.bound = False
        self.where: object = "state"

    def take(self, by: object, *, reads: bool = False) -> object:
        """Begin a call of `by`, and return what `busy` has to be at its end.

        A call that only `reads` may come inside of a call of another store. Raises StateInUseError. O(1), and O(frames)
        inside of another call.
        """
        if not self.lock._is_owned():
            self._bind()
        busy = self.busy
        if busy is None:
            return None
        inner = self._inner()
        if inner is None:  # an exception from outside has ended the call
            self.busy = None
            return None
        if inner or (reads and busy is not self and busy is not by):
            return busy
        raise StateInUseError(
            f"{self.where}: found a call in the middle of another call, as of a signal handler, expected one call at a "
            "time (let the handler set a flag, and call after the other call has returned)"
        )

    def _inner(self) -> bool | None:
        """Return whether only our own functions are between this call and the call in progress; None without one."""
        frame: FrameType | None = sys._getframe(2).f_back
        ours = True
        while frame is not None:
            if frame.f_code in _ENTRIES and frame.f_locals.get("turn") is self:
                return ours
            ours = ours and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS
            frame = frame.f_back
        return None

    def _bind(self) -> None:
        """Make this thread the owner. Raises StateInUseError while another thread is the owner."""
        with _SWITCH:
            if not self.lock.acquire(blocking=False):
                owner = self.thread
                living = owner is None or owner.is_alive()
                if living and (self.bound or self.busy is not None):
                    raise self._elsewhere()
                self.busy = None
                lock = threading.RLock()
                lock.acquire()
                self.lock = lock
            self.thread = threading.current_thread()

    def _elsewhere(self) -> StateInUseError:
        owner = "another thread" if self.thread is None else f"thread {self.thread.name!r}"
        return StateInUseError(
            f"{self.where}: found a call by thread {threading.current_thread().name!r}, expected {owner}: one thread "
            "owns a state (use the state in that thread, or call hand_over() there first)"
        )

    def check(self) -> None:
        """Raise StateInUseError unless this thread is the owner, or becomes the owner now. O(1)."""
        if not self.lock._is_owned():
            self._bind()

    def hand_over(self) -> None:
        """Let the next thread that makes a call be the owner. Raises StateInUseError in another thread than the
        owner's, and in the middle of a call.
        """
        if self.lock._is_owned():
            self.take(self)
            self.thread = None
            self.lock.release()
        elif self.thread is not None and self.thread.is_alive():
            raise self._elsewhere()

    def let_all(self) -> None:
        """Let every thread call from now on: the state is closed, and each call will say so."""
        self.bound = False
        self.busy = None


def in_place(method: _Method) -> _Method:
    """Mark a method that has the lines of `entry` in place: for the hottest methods, where a call more costs too
    much.
    """
    _ENTRIES.add(method.__code__)
    return method


def _entry(method: Callable[P, R], *, whole: bool, reads: bool) -> Callable[P, R]:
    @wraps(method)
    def entering(*args: P.args, **given: P.kwargs) -> R:
        by: Any = args[0]
        turn: Turn = by._turn
        before = turn.take(by, reads=reads) if turn.busy is not None or not turn.lock._is_owned() else None
        try:
            turn.busy = turn if whole else by
            return method(*args, **given)
        finally:
            turn.busy = before

    _ENTRIES.add(entering.__code__)  # type: ignore[attr-defined]  # a function
    return entering


def entry(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a store (with a `_turn`) that changes the store: it may begin between two calls only."""
    return _entry(method, whole=False, reads=False)


def read(method: Callable[P, R]) -> Callable[P, R]:
    """A method that reads a store, which may load what is cold: as `entry`, and inside of a call of another store."""
    return _entry(method, whole=False, reads=True)


def within(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a store that brings in what is cold or waits: as `entry`, and in the middle of any call, too."""

    @wraps(method)
    def beginning(*args: P.args, **given: P.kwargs) -> R:
        by: Any = args[0]
        turn: Turn = by._turn
        turn.check()
        before, turn.busy = turn.busy, by
        try:
            return method(*args, **given)
        finally:
            turn.busy = before

    _ENTRIES.add(beginning.__code__)  # type: ignore[attr-defined]  # a function
    return beginning


def entry_of_all(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a state that concerns all its stores: as `entry`."""
    return _entry(method, whole=True, reads=False)
