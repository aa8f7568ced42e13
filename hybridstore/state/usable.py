"""Usable: whether an open state may be used. A closed, inherited, read-only or half-changed state may not.

Code that changes memory in steps, or writes to the log, marks the state before it begins and removes the mark at its
end (`MarkedStep`). After any interruption in between (an error, Ctrl-C, a timeout, a lack of memory) the state stays
marked. A marked state refuses every call, because a further commit could make uncommitted changes durable or lose
committed ones.

A forked child refuses the states that it inherited, and closes their files: a child that wrote to an inherited
changelog would mix its frames with its parent's, and one that kept the lock's descriptor would keep the directory
locked after the parent's death.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final

from ..errors import HybridStoreError, StateClosedError, StateLockedError, StatePoisonedError
from .group import StoreGroup
from .log import Log

# The states of which a forked child is told, as long as they live.
OPEN: Final[weakref.WeakSet[Usable]] = weakref.WeakSet()


class Usable(ABC):
    """The part of an open state that checks whether the state may be used."""

    _group: StoreGroup

    def __init__(self, path: Path | str, *, read_only: bool) -> None:
        self.path = path
        self._read_only = read_only
        # None until the state is restored, and in a read-only state.
        self._log: Log | None = None
        self._pid = os.getpid()
        self._closed = False
        # The step that changes the state at present, and the error that stopped the step, if one has.
        self._apart: str | None = None
        self._failure: BaseException | None = None

    def _usable(self) -> Log:
        """Return the log for changes.

        Raises StateClosedError, HybridStoreError (read-only) or StatePoisonedError unless the state may be changed.
        O(1).
        """
        log = self._writable()
        if self._apart is not None:
            raise self._refusal(self._apart, self._failure)
        return log

    def _writable(self) -> Log:
        """The checks of `_usable` that also hold in the middle of a commit."""
        if self._closed:
            raise StateClosedError(f"{self.path}: the store is closed (open it again)")
        if os.getpid() != self._pid:
            raise StateClosedError(self._not_here())
        if self._log is None:
            raise HybridStoreError(
                f"{self.path}: opened read-only at version {self._group.version} (open it without `at` to write)"
            )
        return self._log

    @abstractmethod
    def _inherited(self) -> None:
        """Refuse every call from now on and close all files without writing: this process was forked."""

    def _not_here(self) -> str:
        return (
            f"{self.path}: opened by process {self._pid}, used in its child {os.getpid()} (open it again there, after "
            "the parent closed it)"
        )

    def _refusal(self, step: str, error: BaseException | None) -> StatePoisonedError:
        """Return the error of a state that is half-changed since `step`, because of `error` (None: the step may still
        run).
        """
        if isinstance(error, StatePoisonedError):
            return error
        reason = (
            "did not finish: it was interrupted, or another thread is still running it (one thread at a time may use "
            "a store)"
        )
        if error is not None:
            text = str(error).removeprefix(f"{self.path}: ")
            reason = f"was cut short by {type(error).__name__}" + (f": {text}" if text else "")
        # where another owner has the state, the error itself says what to do
        advice = "" if isinstance(error, StateLockedError) else " (reopen the store: the last commit is intact)"
        return StatePoisonedError(f"{self.path}: {step} {reason}{advice}")

    def _broke(self, step: str, error: BaseException) -> None:
        """Refuse every call from now on: `error` interrupted `step`, so memory and the end of the log are undefined."""
        self._apart, self._failure = step, error
        if self._log is not None:
            self._log.health.poison(error)
        self._group.refuse_calls(self._refusal(step, error))


class MarkedStep:
    """A `with` block around steps that change a state; after an exception in the block the state stays marked."""

    __slots__ = ("_before", "_state", "_step")

    def __init__(self, state: Usable, step: str) -> None:
        self._state = state
        self._step = step

    def __enter__(self) -> None:
        self._before = self._state._apart
        self._state._apart = self._step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._state._apart = self._before
        else:
            self._state._broke(self._step, error)


def _in_child() -> None:
    for state in list(OPEN):
        state._inherited()


os.register_at_fork(after_in_child=_in_child)
