"""Faces: public names that are imported when they are first asked for.

A command that only looks, a job that only opens a store, a fresh worker of Spark: each pays for what it works with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package: relative module -> its names, separated by
    spaces; `name=public` is another name outside. No name may be that of a module of the package, which would take its
    place.
    """
    homes: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for each in names.split():
            name, _, public = each.partition("=")
            homes[public or name] = module, name

    def from_home(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, inside = homes[name]
        value = getattr(import_module(module, package), inside)
        setattr(sys.modules[package], name, value)
        return value

    return from_home, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)
