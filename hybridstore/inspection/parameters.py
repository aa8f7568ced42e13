"""Parameters: how commands declare their arguments, and a parser for what is plainly right.

typer draws the help, completes and complains, but importing it costs more than most answers. So commands declare their parameters
here, in `Annotated`; `parse` understands command lines without any doubt in them, and whatever it does not understand goes to
typer (`hybridstore.cli`), which is given the same declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, get_args, get_type_hints


class Argument:
    """A positional parameter. `metavar` is its name in the help; `show_default` is for typer."""

    __slots__ = ("help", "metavar", "show_default")

    def __init__(self, *, metavar: str | None = None, help: str = "", show_default: bool = True) -> None:
        self.metavar = metavar
        self.help = help
        self.show_default = show_default


class Option:
    """A parameter by name. Without names it has the function's, with dashes; `min` bounds a number."""

    __slots__ = ("help", "metavar", "min", "names", "show_default")

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        help: str = "",
        show_default: bool = True,
        min: float | None = None,
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.show_default = show_default
        self.min = min


class Declared(NamedTuple):
    """A parameter of a command: its name, its plain type (None taken out), how it is given, its default."""

    name: str
    kind: Any
    how: Argument | Option
    default: Any
    annotation: Any


_NEEDED: Final = Parameter.empty


def declared(command: Callable[..., int]) -> list[Declared]:
    """Return the parameters of a command, in order."""
    hints = get_type_hints(command, include_extras=True)
    found = []
    for name, parameter in signature(command).parameters.items():
        annotation, how = get_args(hints[name])
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        kind = kinds[0] if isinstance(annotation, UnionType) else annotation
        found.append(Declared(name, kind, how, parameter.default, annotation))
    return found


def option_names(parameter: Declared) -> tuple[str, ...]:
    """Return the names of an option: those declared, or its own with dashes."""
    assert isinstance(parameter.how, Option)
    return parameter.how.names or (f"--{parameter.name.replace('_', '-')}",)


def parse(command: Callable[..., int], words: list[str]) -> dict[str, Any] | None:
    """Return the arguments that the words give, or None when there is any doubt about them."""
    parameters = declared(command)
    options = {name: one for one in parameters if isinstance(one.how, Option) for name in option_names(one)}
    places = [one for one in parameters if isinstance(one.how, Argument)]
    values: dict[str, Any] = {one.name: one.default for one in parameters}
    given: set[str] = set()
    try:
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or word == "-":
                one = places.pop(0)
                values[one.name] = _value(one, word)
                given.add(one.name)
                continue
            name, equals, text = word.partition("=")
            one = options[name]
            if one.name in given or (equals and not name.startswith("--")):
                return None
            given.add(one.name)
            if one.kind is bool:
                if equals:
                    return None
                values[one.name] = True
            else:
                value = text if equals else next(rest)
                if value.startswith("-"):
                    return None
                values[one.name] = _value(one, value)
    except (KeyError, IndexError, ValueError, StopIteration):
        return None
    return None if any(value is _NEEDED for value in values.values()) else values


def _value(parameter: Declared, text: str) -> Any:
    kind = parameter.kind
    if kind is str:
        return text
    if kind is int:
        if not text.isascii() or not text.isdecimal():
            raise ValueError(text)
        return _bounded(parameter, int(text))
    if kind is float:
        return _bounded(parameter, float(text))
    if kind is Path or issubclass(kind, StrEnum):
        return kind(text)
    raise ValueError(text)


def _bounded(parameter: Declared, number: float) -> float:
    least = parameter.how.min if isinstance(parameter.how, Option) else None
    if least is not None and not number >= least:
        raise ValueError(number)
    return number
