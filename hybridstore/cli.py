"""The `hybridstore` command. A command is imported when it is called, and typer only when it is needed, so that the shell
gets its answer quickly.

Exit codes: 0 fine, 1 a negative answer, 2 wrong usage, 3 cannot read, 4 damaged so that the answer is incomplete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, Final, NamedTuple

_PACKAGE: Final = "hybridstore.inspection.commands"


class Lazy(NamedTuple):
    """A command that is not imported yet: module, function, the line that `--help` shows, an example."""

    module: str
    function: str
    summary: str
    example: str


INSPECT: Final[dict[str, Lazy]] = {
    "info": Lazy("info", "info", "What is there: version, checkpoint, stores, last writer.", "info state/"),
    "list": Lazy("info", "list_command", "Stores, checkpoints, segments, versions in reach.", "list state/ --iso"),
    "keys": Lazy("scan", "keys", "The distinct keys of a store.", "keys state/ clicks --prefix al"),
    "get": Lazy("scan", "get", "The records of one key.", "get state/ clicks alice --at 42"),
    "scan": Lazy("scan", "scan", "The records of a store.", "scan state/ clicks --window-from 2026-01-31 --limit 10"),
    "history": Lazy(
        "history", "history", "Every change of a key, old and new value.", "history state/ clicks alice --iso"
    ),
    "log": Lazy(
        "log", "log", "The changelog; --follow as it is written.", "log state/ --store clicks --since 2026-01-31"
    ),
    "diff": Lazy(
        "diff", "diff", "What differs between versions, times or directories.", "diff state/@40 @42 --summary"
    ),
    "stat": Lazy(
        "stat", "stat", "How much, how old, what is heavy, what grows.", "stat state/ clicks --top 10 --by-age"
    ),
    "restart": Lazy("restart", "restart", "What a restart would do, and how long it would take.", "restart state/"),
    "export": Lazy(
        "export", "export", "Records as JSON lines, CSV, Parquet or SQLite.", "export state/ --to state.sqlite"
    ),
    "repair": Lazy("repair", "repair", "A copy that opens, of what can be read.", "repair state/ --to mended/ --write"),
    "compact": Lazy("compact", "compact", "A copy with one fresh checkpoint.", "compact state/ --to small/ --write"),
    "pack": Lazy("pack", "pack", "One zip file with checksums.", "pack state/ --to state.zip"),
    "report": Lazy("report", "report", "One HTML page to look at.", "report state/ -o report.html"),
    "watch": Lazy("watch", "watch", "Rates while a writer runs.", "watch state/ --interval 5"),
    "verify": Lazy("verify", "verify", "Every checksum, digest and order.", "verify state/ --full"),
}


def load(lazy: Lazy) -> Callable[..., int]:
    """Import a command."""
    function: Callable[..., int] = getattr(import_module(f"{_PACKAGE}.{lazy.module}"), lazy.function)
    return _quiet(function)


def _quiet(command: Callable[..., int]) -> Callable[..., int]:
    """Take a reader that has seen enough (`| head`) from the command itself: typer would call it a failure."""

    @wraps(command)
    def run_quietly(*args: Any, **options: Any) -> int:
        try:
            code = command(*args, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return code

    return run_quietly


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code; nothing is raised. Data goes to standard output, all else to standard error."""
    debug = "--debug" in arguments
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        return stop.code if type(stop.code) is int else 0
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _run(arguments: list[str]) -> int:
    if len(arguments) > 2 and arguments[0] == "inspect" and arguments[1] in INSPECT:
        from .inspection.parameters import parse

        command = load(INSPECT[arguments[1]])
        values = parse(command, arguments[2:])
        if values is not None:
            return command(**values)
    # Help, completion, and whatever is not plainly right.
    from .typer_commands import run_typer

    return run_typer(arguments)


def _explain(error: Exception) -> int:
    """Say what went wrong in one line and return the exit code."""
    from changelog.errors import HybridStoreError

    from .inspection.options import UNREADABLE, USAGE, UsageError
    from .inspection.show.output import say

    sys.stdout.flush()
    show = getattr(error, "show", None)
    if show is not None and hasattr(error, "exit_code"):  # typer's own: an unknown option, a missing argument
        show()
        return USAGE
    if type(error).__name__ == "Abort":  # typer's word for an interrupt
        return 130
    if isinstance(error, UsageError):
        say(str(error))
        return USAGE
    if isinstance(error, (HybridStoreError, OSError)):
        say(f"cannot read: {error}")
    else:
        say(f"cannot read: {type(error).__name__}: {error} (--debug shows where)")
    return UNREADABLE


def main() -> None:
    """Entry of the `hybridstore` script."""
    sys.exit(run(sys.argv[1:]))
