"""Declared stores: the stores that one's own logic in `Topology.process` asks for, declared with the topology.

They take the parameters of the methods of `HybridStore` with the same names, and check them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..aggregation import Aggregator
from ..clock import Duration
from ..state.named_stores import NamedStores
from ..stores.suppression_bounds import OnFull, Suppression, Timer


class StoreDeclaration:
    """A store by name, kind and parameters, to be opened in every shard. Made by `key_value_store` and its kin."""

    __slots__ = ("bound", "kind", "name", "parameters")

    def __init__(self, name: str, kind: str, parameters: dict[str, Any]) -> None:
        if type(name) is not str or not name:
            raise ValueError(f"store name: found {name!r}, expected text")
        self.name = name
        self.kind = kind
        self.parameters = parameters
        self.bound: Any = None

    def bind(self, function: Any) -> None:
        """Remember what is not a plain parameter, a function that every opened store is given."""
        self.bound = function

    def __repr__(self) -> str:
        return f"<{self.kind} store {self.name!r}>"


class _Declared(NamedStores):
    """Hands out declarations where others hand out stores."""

    def _open_store(self, name: str, kind: str, parameters: dict[str, Any]) -> StoreDeclaration:
        return StoreDeclaration(name, kind, parameters)


_DECLARED = _Declared()


def _declaration(made: object) -> StoreDeclaration:
    assert isinstance(made, StoreDeclaration)
    return made


def key_value_store(name: str, *, ttl: Duration | None = None) -> StoreDeclaration:
    """Declare a key-value store for `Topology.process`; see `HybridStore.key_value`. Raises ValueError or TypeError."""
    return _declaration(_DECLARED.key_value(name, ttl=ttl))


def window_store(
    name: str,
    *,
    retention: Duration,
    window_size: Duration | None = None,
    grace: Duration | None = None,
    retain_duplicates: bool = False,
) -> StoreDeclaration:
    """Declare a window store for `Topology.process`; see `HybridStore.window`. Raises ValueError or TypeError."""
    return _declaration(
        _DECLARED.window(
            name, retention=retention, window_size=window_size, grace=grace, retain_duplicates=retain_duplicates
        ),
    )


def session_store(name: str, *, retention: Duration) -> StoreDeclaration:
    """Declare a session store for `Topology.process`; see `HybridStore.session`. Raises ValueError or TypeError."""
    return _declaration(_DECLARED.session(name, retention=retention))


def suppression_store(
    name: str,
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
    time_limit: Duration | None = None,
    timer: Timer = "latest",
    on_full: OnFull = "emit",
    size_of: Callable[[Any, Any], int] | None = None,
    until_window_closes: Suppression | Duration | None = None,
) -> StoreDeclaration:
    """Declare a suppression buffer for `Topology.process`; see `HybridStore.suppression`. Raises ValueError or TypeError."""
    return _declaration(
        _DECLARED.suppression(
            name,
            max_records=max_records,
            max_bytes=max_bytes,
            time_limit=time_limit,
            timer=timer,
            on_full=on_full,
            size_of=size_of,
            until_window_closes=until_window_closes,
        ),
    )


def sliding_store(
    name: str, *, size: Duration, aggregator: Aggregator, strategy: str | None = None, span: int | None = None
) -> StoreDeclaration:
    """Declare a store of sliding windows for `Topology.process`; see `HybridStore.sliding`. Raises ValueError or TypeError."""
    return _declaration(_DECLARED.sliding(name, size=size, aggregator=aggregator, strategy=strategy, span=span))
