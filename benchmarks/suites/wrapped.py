"""Wrapped: a program of the Spark operator, or its runner, that does what another one does, and something beside it."""

from __future__ import annotations

from typing import Any


class Wrapped:
    """Has the attributes of `inner`, except those that a subclass defines."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        # a worker that unpickles the object asks for attributes before it has any
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
