"""Declared stores: the stores of custom logic (`Topology.process`), declared with the topology.

The functions take the parameters of the methods of `State` with the same names, and check them at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from ..state.named_stores import NamedStores
from ..state.upgrades import Upgrades


class StoreDeclaration:
    """A store by name, kind and parameters, to be opened in every shard. Made by `key_value_store` and its kin."""

    __slots__ = ("bound", "kind", "name", "parameters", "upgrades")

    def __init__(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None) -> None:
        if type(name) is not str or not name:
            raise ValueError(f"store name: found {name!r}, expected text that is not empty")
        self.name = name
        self.kind = kind
        self.parameters = parameters
        self.bound: Any = None
        self.upgrades = upgrades or Upgrades(0, None)

    def bind(self, function: Any) -> None:
        """Remember an argument that is not a plain parameter: every opened store gets it."""
        self.bound = function

    def __repr__(self) -> str:
        return f"<{self.kind} store {self.name!r}>"


class _Declared(NamedStores):
    """Returns declarations instead of stores."""

    def _open_store(
        self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None
    ) -> StoreDeclaration:
        return StoreDeclaration(name, kind, parameters, upgrades)


_DECLARED = _Declared()
P = ParamSpec("P")


def _declares(method: Callable[Concatenate[NamedStores, P], object], example: str) -> Callable[P, StoreDeclaration]:
    """Return a function that takes what a method of `NamedStores` takes, and declares the store.

    `example` has the arguments of a call for the docstring; the store's name is "example".
    """

    def declare(*args: P.args, **kwargs: P.kwargs) -> StoreDeclaration:
        declaration = method(_DECLARED, *args, **kwargs)
        assert isinstance(declaration, StoreDeclaration)
        return declaration

    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    name = method.__name__
    declare.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation="StoreDeclaration"
    )
    declare.__name__ = declare.__qualname__ = f"{name}_store"
    declare.__doc__ = f"""Declare a {name.replace("_", "-")} store for `Topology.process`; see `State.{name}`.

    Raises ValueError or TypeError.

    >>> hs.{name}_store("example"{example})
    <{name} store 'example'>
    """
    return declare


key_value_store = _declares(NamedStores.key_value, ', ttl="1 day"')
window_store = _declares(NamedStores.window, ', retention="1 hour", grace="5 minutes"')
session_store = _declares(NamedStores.session, ', retention="1 hour"')
suppression_store = _declares(NamedStores.suppression, ', until_window_closes="1 minute"')
sliding_store = _declares(NamedStores.sliding, ', size="5 minutes", aggregator=hs.Sum()')
