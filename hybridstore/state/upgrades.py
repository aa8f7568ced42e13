"""Upgrades: conversion of a store's values from an earlier version to the present one.

    values of version 1 ── upgrade to 2 ──▶ ── upgrade to 3 ──▶ values of version 3

All values of a store have one version, because the functions convert them together, as part of one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recovery.errors import ProgramMismatchError

Upgrade = Callable[[Any], Any]


class Upgrades:
    """The version of a store's values, and the functions that convert values of one version to the next.

    `upgrade` is one function, which makes values of `version`, or a mapping of version to function for older states. A
    function gets a value and returns the new one. Its result must depend on the value alone, because a failed commit
    runs the function again. Raises TypeError or ValueError.
    """

    __slots__ = ("functions", "version")

    def __init__(self, version: int, upgrade: Upgrade | Mapping[int, Upgrade] | None) -> None:
        if type(version) is not int or version < 0:
            raise ValueError(f"version: found {version!r}, expected a whole number of 0 or more")
        functions = upgrade if isinstance(upgrade, Mapping) else {} if upgrade is None else {version: upgrade}
        for number, function in functions.items():
            if type(number) is not int or not 1 <= number <= version:
                raise ValueError(
                    f"upgrade: found a function for version {number!r}, expected versions 1 to {version} (the version "
                    "of the store, which rises with every change of its values: version=1 at the first)"
                )
            if not callable(function):
                raise TypeError(f"upgrade: found {type(function).__name__}, expected a function of one value")
        self.version = version
        self.functions = dict(functions)

    def function(self, name: str, before: int) -> Upgrade | None:
        """Return the function for values of version `before`; None if that is the present version.

        `name` is the store's, for messages. Raises ProgramMismatchError if no function converts them.
        """
        if before == self.version:
            return None
        if before > self.version:
            raise ProgramMismatchError(
                f"store {name!r}: the state has values of version {before}, the program is at version {self.version} "
                f"(run the program of version {before}, or a later one)"
            )
        steps = range(before + 1, self.version + 1)
        for step in steps:
            if step not in self.functions:
                raise ProgramMismatchError(
                    f"store {name!r}: the state has values of version {before}, the program is at version "
                    f"{self.version} and cannot make those of version {step} (upgrade={{{step}: function}})"
                )
        functions = [self.functions[step] for step in steps]

        def change(value: Any) -> Any:
            for function in functions:
                value = function(value)
            if value is None:
                raise TypeError("found None, expected a value (an upgrade deletes nothing)")
            return value

        return change
