"""Forked: a child process refuses the states that it inherited, and closes their files.

A child that wrote to an inherited changelog would mix its frames with its parent's frames, and a child that kept the
lock's descriptor would keep the directory locked after the parent's death.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    """An open state."""

    def _inherited(self) -> None:
        """Refuse every call from now on and close all files without writing."""


_open: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def watch(state: Inheritable) -> None:
    """Call `_inherited` of `state` in every forked child, as long as the state lives."""
    _open.add(state)


def _in_child() -> None:
    for state in list(_open):
        state._inherited()


os.register_at_fork(after_in_child=_in_child)
