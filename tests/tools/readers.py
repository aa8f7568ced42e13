"""Every reader of a state, as a function of the state's location that returns the version which it opens.

A reader that refuses the newest version raises; what refuses by an exit code or by a list of faults raises here, too.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hybridstore as hs
from hybridstore import cli
from hybridstore.errors import HybridStoreError
from hybridstore.inspection.commands.verify import PlaceVerifier
from hybridstore.progress import Progress
from hybridstore.reading.places import resolve


class RefusedError(HybridStoreError):
    """A reader that raises nothing has named faults, or ended with an exit code."""


def opened(path: Path) -> int:
    with hs.open(path) as state:
        return state.version


def opened_newest(path: Path) -> int:
    with hs.open(path, at="newest") as state:
        return state.version


def planned(path: Path) -> int:
    plan = hs.inspect(path).restart()
    if plan.problem is not None:
        raise RefusedError(plan.problem)
    return plan.version


def verified(path: Path) -> None:
    """Verify names every fault, also those that no reader meets."""
    for place in resolve(path):
        verifier = PlaceVerifier(place, Progress("", 0, shown=False))
        verifier.run()
        if verifier.faults:
            raise RefusedError(str(verifier.faults[0]))


def inspected(path: Path) -> int:
    look: Any = hs.inspect(path)
    faults = look.faults
    if faults:
        raise RefusedError(faults[0])
    version: int = look.version
    return version


def followed(path: Path) -> int:
    with hs.inspect(path).follow() as view:
        return view.version


def command(*arguments: str) -> Callable[[Path], None]:
    """A command of `hybridstore`; {} is the location, {new} a free name."""

    def call(path: Path) -> None:
        with TemporaryDirectory() as folder:
            code = cli.run([text.replace("{new}", f"{folder}/new.zip").replace("{}", str(path)) for text in arguments])
        if code:
            raise RefusedError(f"{arguments}: exit code {code}")

    return call


# Readers of the newest version of one state or shard. Those that take a lock or write come last.
READERS: dict[str, Callable[[Path], int | None]] = {
    "open at newest": opened_newest,
    "plan": planned,
    "inspect": inspected,
    "follow": followed,
    "info": command("inspect", "info", "{}"),
    "list": command("inspect", "list", "{}"),
    "stat": command("inspect", "stat", "{}"),
    "versions": command("inspect", "versions", "{}"),
    "log": command("inspect", "log", "{}"),
    "restart": command("inspect", "restart", "{}"),
    "watch": command("inspect", "watch", "{}", "--count", "1", "--interval", "0.05"),
    "repair": command("inspect", "repair", "{}", "--to", "{new}", "--write"),
    "compact": command("inspect", "compact", "{}", "--to", "{new}", "--write"),
    "pack": command("inspect", "pack", "{}", "--to", "{new}"),
    "open": opened,
}
