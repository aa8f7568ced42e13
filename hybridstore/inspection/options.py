"""Options: the arguments that commands share, declared once, and their meaning: times, keys, exit codes.

A command's `arguments` calls `path` first and `looking` last; its own arguments stand between them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from changelog.errors import HybridStoreError

from ..reading.texts import iso, parse_key
from .show.output import FORMS

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from ..reading.places import Place

FINE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
UNREADABLE: Final = 3
INCOMPLETE: Final = 4
# The values of options of `looking` that a command does not have.
DEFAULTS: Final = {"at": None, "shard": None, "output": None, "iso": False, "no_progress": False, "debug": False}


class UsageError(HybridStoreError):
    """An argument that cannot be understood, or that does not fit the state: exit code 2."""


def imported(option: str, place: str, example: str) -> Any:
    """Import the object that MODULE:NAME names; its code runs. Raises UsageError, naming the option."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise UsageError(f"{option}: found {place!r}, expected MODULE:NAME, such as {example}")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{option}: {place!r} cannot be imported: {error} (the folder that you are in is on the path)"
        ) from error
    finally:
        sys.path.remove(os.getcwd())


def path(parser: ArgumentParser) -> None:
    """Declare PATH."""
    what = (
        "State directory, shard, Spark checkpoint location, checkpoint file (.lmdb), "
        "changelog segment (.log) or archive"
    )
    parser.add_argument("path", metavar="PATH", help=f"{what}; or the URL of one (s3://, gs://, abfss://).")


def store(parser: ArgumentParser) -> None:
    """Declare STORE."""
    parser.add_argument("store", metavar="STORE", help="Name of the store; `info` lists them.")


def maybe_store(parser: ArgumentParser) -> None:
    """Declare [STORE]."""
    parser.add_argument("store", metavar="STORE", nargs="?", help="Only this store (default: all).")


def key(parser: ArgumentParser) -> None:
    """Declare KEY."""
    typed = 'Typed: text, int:5, float:1.5, bool:true, hex:00ff, date:2026-01-31, json:["a", 5] for a tuple.'
    parser.add_argument("key", metavar="KEY", help=typed)


def keys(parser: ArgumentParser) -> None:
    """Declare --from, --to, --prefix, --reverse, --count-only and --limit: which keys of a store."""
    group = parser.add_argument_group("which keys")
    group.add_argument("--from", dest="key_from", metavar="KEY", help="First key, inclusive.")
    group.add_argument("--to", dest="key_to", metavar="KEY", help="Last key, inclusive.")
    group.add_argument("--prefix", metavar="KEY", help="Keys that start with KEY.")
    group.add_argument("--reverse", action="store_true", help="In reverse order.")
    group.add_argument("--count-only", action="store_true", help="Only the number of records.")
    limit(group)


def windows(parser: ArgumentParser) -> None:
    """Declare --time-from and --time-to."""
    group = parser.add_argument_group("which windows")
    group.add_argument("--time-from", metavar="TIME", help="Windows from this time on (ms, or ISO in UTC).")
    group.add_argument("--time-to", metavar="TIME", help="Windows up to this time, inclusive.")


def limit(group: Any) -> None:
    """Declare --limit in a parser or a group."""
    group.add_argument("--limit", metavar="N", type=at_least(0), help="At most N rows.")


def committed(parser: ArgumentParser) -> None:
    """Declare --since and --until."""
    parser.add_argument("--since", metavar="TIME", help="Committed at or after (ms, or ISO in UTC).")
    parser.add_argument("--until", metavar="TIME", help="Committed at or before.")


def copy(parser: ArgumentParser) -> None:
    """Declare --to and --write of commands that write a new state."""
    new = "The new directory, or a URL. The place must not exist, or be empty."
    parser.add_argument("--to", metavar="NEW", help=new)
    parser.add_argument("--write", action="store_true", help="Write NEW. Without --write, only show the plan.")


def looking(
    parser: ArgumentParser, *, at: bool = False, output: bool = True, iso: bool = False, progress: bool = False
) -> None:
    """Declare the options of a `Look`: version, shard, form of the answer and of times."""
    group = parser.add_argument_group("where to look, how to answer")
    if at:
        what = "Read this retained version, or the newest version committed by this time (ISO, UTC; or @ms)."
        group.add_argument("--at", metavar="VERSION|TIME", help=what)
    group.add_argument("--shard", metavar="N", type=at_least(0), help="Only this shard of a topology or operator.")
    if output:
        what = f"{', '.join(FORMS)}. Default: table on a terminal, jsonl in a pipe."
        group.add_argument("-o", "--output", metavar="FORM", choices=FORMS, help=what)
    if iso:
        group.add_argument("--iso", action="store_true", help="Times in ISO form (UTC) instead of milliseconds.")
    last_options(group, progress=progress)
    parser.set_defaults(**{name: value for name, value in DEFAULTS.items() if parser.get_default(name) is None})


def last_options(group: Any, *, progress: bool = False) -> None:
    """Declare --debug and --help, and with `progress` --no-progress: the last options of every command."""
    if progress:
        group.add_argument("--no-progress", action="store_true", help="No progress bar.")
    group.add_argument("--debug", action="store_true", help="Show tracebacks.")
    group.add_argument("-h", "--help", action="help", help="Show this help.")


def named_texts(option: str, texts: Collection[str], form: str, example: str) -> dict[str, str]:
    """Return the pairs that an option gives, each as NAME=TEXT. Raises UsageError, naming the form and an example."""
    for text in texts:
        if "=" not in text:
            raise UsageError(f"{option}: found {text!r}, expected {form}, such as {example}")
    return {name: rest for name, _, rest in (text.partition("=") for text in texts)}


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return the type of an option that takes a number of at least `least`."""

    from argparse import ArgumentTypeError  # only here: inspection from Python parses no arguments

    def number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(least) - 1
        if not value >= least:
            name = "a whole number" if kind is int else "a number"
            raise ArgumentTypeError(f"found {text!r}, expected {name} of at least {least}")
        return value

    return number


def parse_time(text: str) -> int:
    """Return milliseconds for `1700000000000`, `@1700000000000` or an ISO time (UTC unless it has a zone).

    Raises UsageError.
    """
    digits = text.removeprefix("@")
    if digits.isdecimal():
        return int(digits)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"time: found {text!r}, expected milliseconds or an ISO time such as 2026-01-31T12:00:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def choose(place: Place, at: str | None) -> int | None:
    """Return the version that `--at` means for a place; None for the newest. Raises UsageError."""
    from ..reading.versions import committed_by, reach  # only here: most commands look at the newest version

    if at is None:
        return None
    if at.isdecimal():
        return int(at)
    moment, within = parse_time(at), reach(place)
    version = committed_by(place, moment, within)
    if version is None:
        oldest = min((commit.wall_ms for commit in within.commits), default=None)
        hint = "" if oldest is None else f" (the oldest commit of the changelog is of {iso(oldest)})"
        raise UsageError(f"{place.where}: found no retained version committed by {at}{hint}")
    return version


def maybe_time(text: str | None) -> int | None:
    """Return the time that an option names, None without one. Raises UsageError."""
    return None if text is None else parse_time(text)


def typed_key(text: str) -> Any:
    """Return the key that an argument names. Raises UsageError."""
    try:
        return parse_key(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
