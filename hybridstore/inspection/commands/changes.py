"""The command `changes`: what a start with a changed program would do to a state."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any

from .. import options as o
from ..look import Look


def arguments(parser: ArgumentParser) -> None:
    """Declare what `changes` takes."""
    o.path(parser)
    what = "The program: a module and the topology in it, as Python finds it from here (jobs.clicks:topology)."
    parser.add_argument("--program", metavar="MODULE:NAME", required=True, help=what)
    parser.add_argument("--operator", metavar="NAME", help="Which operator, where a Spark location has several.")
    what = "Words of consent that the start would have (allow=); may be given several times."
    parser.add_argument("--allow", metavar="WORDS", action="append", default=[], help=what)
    o.looking(parser)


def run(look: Look, given: Namespace) -> int:
    """Say what a start with a changed program would do: what it takes over by itself, what needs consent, and what it
    refuses; nothing is changed. The program's module is imported, and so run.

    Exit code 1 when the start would be refused, also for want of consent.
    """
    topology = _loaded(given.program)
    changes = topology.changes(look.location, operator=given.operator, allow=given.allow)
    refused = [each for each in changes if each.verdict == "refused"]
    words = [each.consent for each in changes if each.consent and each.consent not in given.allow]
    out = look.out
    if out.form != "table":
        out.rows((each._asdict() for each in changes), ("what", "verdict", "note", "consent"))
    else:
        for each in changes:
            out.paragraph(f"{each.verdict:<8} {each.what}", indent=9)
            out.paragraph(f"{'':<8} {each.note}", indent=9)
        if refused:
            out.line("A start would be refused; nothing would be changed.")
        elif words:
            out.paragraph(f"A start needs consent: allow={words if len(words) > 1 else words[0]!r}", indent=4)
        else:
            out.line("A start takes this over by itself." if changes else "A start takes the state as it is.")
    return o.NEGATIVE if refused or words else o.FINE


def _loaded(program: str) -> Any:
    """Import what MODULE:NAME names. Raises UsageError where it is no topology."""
    module, _, name = program.partition(":")
    if not module or not name:
        raise o.UsageError(f"--program {program!r}: expected a module and a name in it, such as jobs.clicks:topology")
    sys.path.insert(0, os.getcwd())
    try:
        loaded = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise o.UsageError(f"--program {program!r}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    if not hasattr(loaded, "changes") or not hasattr(loaded, "describe"):
        raise o.UsageError(f"--program {program!r}: found {type(loaded).__name__}, expected a topology")
    return loaded
