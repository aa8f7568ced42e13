"""Forked: what a child process does with the states that it inherited: it refuses them, and lets go of their files.

A child that wrote to an inherited changelog would mix its frames with its parent's, and one that merely kept the lock's
descriptor would keep the directory locked after the parent's death.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    """An open state."""

    def _inherited(self) -> None:
        """Refuse everything from now on and let go of all files, without writing to any."""


_open: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def watch(state: Inheritable) -> None:
    """Tell `state` of a fork, in the child, for as long as it lives."""
    _open.add(state)


def _in_child() -> None:
    for state in list(_open):
        state._inherited()


os.register_at_fork(after_in_child=_in_child)
