"""Faces: public names that are imported when they are first asked for.

    if TYPE_CHECKING:                                      a type checker runs the block
        from .state.policy import Policy as Policy         `lazy` reads it: name -> where it is imported from

A command that only looks, a job that only opens a store, a fresh worker of Spark: each pays for what it works with. The
surprise: a face reads its own source, so that a name is written once, in the form that type checkers know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package, whose names are the imports `from module import
    name as name` of its block for type checkers, each on a line; `public = _name` is another name outside. No name may
    be that of a module of the package, which would take its place. Raises ImportError for a package without source and
    code.
    """
    homes = _homes(package)

    def from_home(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, inside = homes[name]
        value = getattr(import_module(module, package), inside)
        setattr(sys.modules[package], name, value)
        return value

    return from_home, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


def _homes(package: str) -> dict[str, tuple[str, str]]:
    """Return name -> module and the name inside, from the package's source, in a folder or an archive, or from its
    code where the source was left out.
    """
    spec: Any = sys.modules[package].__spec__
    try:
        block = spec.loader.get_data(spec.origin).decode().partition("TYPE_CHECKING:")[2].splitlines()
    except (AttributeError, OSError, UnicodeDecodeError):
        block = _block_of_code(package, spec.loader)
    homes: dict[str, tuple[str, str]] = {}
    for line in block:
        match line.split():
            case ("from", module, "import", name, "as", public):
                homes[public] = module, name
            case (public, "=", private) if private in homes:
                homes[public] = homes.pop(private)
    return homes


def _block_of_code(package: str, loader: Any) -> Iterator[str]:
    """Yield the imports of a package's block and the names that it gives again, as lines, from compiled code."""
    import dis  # only here: most installations have sources

    code = getattr(loader, "get_code", lambda name: None)(package)
    if code is None:
        raise ImportError(f"{package}: found neither source nor code of the package, expected one (reinstall it)")
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    begin = next(place for place, step in enumerate(steps) if step.argval == "TYPE_CHECKING")
    module = ""
    for place, step in enumerate(steps[begin:-1], begin):
        after = steps[place + 1]
        if step.opname == "IMPORT_NAME":
            module = "." * steps[place - 2].argval + step.argval
        elif step.opname == "IMPORT_FROM":
            yield f"from {module} import {step.argval} as {after.argval}"
        elif (step.opname, after.opname) == ("LOAD_NAME", "STORE_NAME"):
            yield f"{after.argval} = {step.argval}"
