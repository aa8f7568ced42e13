"""The command `upgrade`: the effect that a start with a changed program would have on a state."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from .. import options as o
from ..look import Look


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    what = "The program: a module and the name of the topology in the module (jobs.clicks:topology)."
    parser.add_argument("--program", metavar="MODULE:NAME", required=True, help=what)
    parser.add_argument("--operator", metavar="NAME", help="The operator, if a Spark location has several.")
    what = "Consent that the start would have (the words of allow=). The option may be given several times."
    parser.add_argument("--allow", metavar="WORDS", action="append", default=[], help=what)
    o.looking(parser)


def run(look: Look, given: Namespace) -> int:
    """Show the effect of a start with a changed program: changes that are accepted, changes that need consent, and
    changes that are refused. The state is not changed. The program's module is imported, so its code runs.

    Exit code 1 when the start would be refused, or when consent is missing.
    """
    topology = _loaded(given.program)
    changes = topology.compare(look.location, operator=given.operator, allow=given.allow)
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
    """Import the object that MODULE:NAME names. Raises UsageError if the object is no topology."""
    loaded = o.imported("--program", program, "jobs.clicks:topology")
    if not hasattr(loaded, "compare") or not hasattr(loaded, "describe"):
        raise o.UsageError(f"--program: {program!r}: found {type(loaded).__name__}, expected a topology")
    return loaded
