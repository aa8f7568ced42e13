"""The `hybridstore` command: the list of all commands, their help, and the handling of their errors.

A command is a module with `arguments(parser)` and `run(...)`. The module is imported when the command is called, so
that every command starts quickly.

Exit codes: 0 fine, 1 a negative answer, 2 wrong usage, 3 cannot read, 4 damaged so that the answer is incomplete.
"""

from __future__ import annotations

import errno
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn

from .inspection.options import FINE, UNREADABLE, USAGE, UsageError
from .inspection.show.output import bold, terminal_width
from .reading.texts import say


class Command(NamedTuple):
    """A command that is not imported yet: its line in a help, an example, and its module, if it is in no group."""

    summary: str
    example: str
    module: str = ""


class CommandGroup(NamedTuple):
    """Commands that belong together: their purpose, the place of their modules, and the sections of their help."""

    summary: str
    modules: str
    path: str
    note: str
    sections: dict[str, dict[str, Command]]

    @property
    def commands(self) -> dict[str, Command]:
        """All commands, in the order of the help."""
        return {name: command for section in self.sections.values() for name, command in section.items()}


# what the operating system says of a place that takes no more bytes: a command has written there, not read
_OF_WRITES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
SECTIONS: Final[dict[str, dict[str, Command]]] = {
    "reading": {
        "info": Command("Overview: version, checkpoint, stores, last writer.", "state/"),
        "list": Command("Stores, checkpoints, segments, versions that --at can read.", "state/ --iso"),
        "get": Command("The records of one key.", "state/ clicks alice --at 42"),
        "scan": Command("The records of a store.", "state/ clicks --time-from 2026-01-31 --limit 10"),
        "keys": Command("The distinct keys of a store.", "state/ clicks --prefix al"),
        "waiting": Command("The rows of a join that wait: since when, for what, until when.", "state/ --alone --iso"),
    },
    "changes over time": {
        "history": Command("Every change of a key, old and new value.", "state/ clicks alice --iso"),
        "log": Command("The changelog; --follow also shows new versions.", "state/ --store clicks --since 2026-01-31"),
        "diff": Command("Differences between versions, times or directories.", "state/@40 @42 --summary"),
        "watch": Command("Rates of a running writer.", "state/ --interval 5"),
    },
    "sizes, programs, restart, checks": {
        "stat": Command("Sizes, ages, the largest keys and values, growth.", "state/ clicks --top 10 --by-age"),
        "versions": Command("The programs that wrote the state, with their versions.", "state/"),
        "upgrade": Command("The effect of a start with a changed program.", "state/ --program jobs.clicks:topology"),
        "restart": Command("The steps of a restart, and an estimate of its time.", "state/"),
        "metrics": Command("The numbers of a state as OpenMetrics text, for Prometheus.", "checkpoint/"),
        "verify": Command("Check every checksum, every digest and the order.", "state/ --full"),
    },
    "export": {
        "export": Command("Records as JSON lines, CSV or Parquet.", "state/ clicks --to clicks.parquet"),
        "pack": Command("One zip file with checksums, which every command reads.", "state/ --to state.zip"),
        "report": Command("One HTML page about the state.", "state/ -o report.html"),
    },
    "a new directory from an old directory": {
        "compact": Command("A copy with one fresh checkpoint.", "state/ --to small/ --write"),
        "repair": Command("A copy of all readable data that can be opened.", "state/ --to repaired/ --write"),
    },
}
GROUPS: Final = {
    "inspect": CommandGroup(
        "Read a state: offline or beside a live writer, read-only, without the job's code.",
        "hybridstore.inspection.commands.{}",
        "PATH",
        "Exit codes: 0 fine, 1 a negative answer (not found, different, faults), 2 wrong usage, 3 cannot read, "
        "4 damaged so that the answer is incomplete.",
        SECTIONS,
    ),
    "bench": CommandGroup(
        "Measure on your machine. The restored state is checked; a wrong state gives no figure.",
        "hybridstore.inspection.bench",
        "[DIR]",
        "Exit codes: 0 fine, 2 wrong usage, 3 cannot read, or the restored state is wrong.",
        {"commands": {"restore": Command("The time of a restart, of your state or of a generated state.", "state/")}},
    ),
}
COMMANDS: Final = {
    "rescale": Command(
        "Give the state of a stopped job another number of shards.",
        "/checkpoints/totals totals --shards 16 --dry-run",
        "hybridstore.rescaling.command",
    ),
    "import": Command(
        "Let a stopped Spark query of Spark's own operators go on as a job of ours.",
        "--from-spark /checkpoints/clicks --job jobs.clicks:applied",
        "hybridstore.importing.command",
    ),
    "serve": Command(
        "Serve a state over HTTP, read-only, beside its job.", "state/ --port 8700", "hybridstore.serving.command"
    ),
    "rewind": Command(
        "Go back to an older version of the state of a stopped job.", "state/ --to 41", "hybridstore.rewinding.command"
    ),
    "fork": Command(
        "Begin another state at a version of a state, by reference, beside its job.",
        "state/@41 canary/",
        "hybridstore.rewinding.fork",
    ),
    "pin": Command(
        "Give a version of a state a name, so that it is kept; without a name, list the pins.",
        "state/@41 good",
        "hybridstore.rewinding.pins",
    ),
    "bisect": Command(
        "Find the first version at which the value of a key is bad.",
        "state/ totals ann --bad 'value < 0'",
        "hybridstore.rewinding.bisect",
    ),
    "erase": Command(
        "Remove a key of a stopped job's state from every file.", "state/ alice --prove", "hybridstore.rewinding.erase"
    ),
    "unpin": Command("Remove a pin.", "state/ good", "hybridstore.rewinding.unpin"),
}
_ASKED: Final = ("-h", "--help")


class _Formatter(RawDescriptionHelpFormatter):
    """Help in the width of the terminal, with bold headings on a terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(terminal_width(sys.stdout), 100))

    def start_section(self, heading: str | None) -> None:
        super().start_section(None if heading is None else bold(heading, sys.stdout))


class Parser(ArgumentParser):
    """A parser that raises its errors as UsageError, with the next step for the user."""

    def __init__(self, prog: str, description: str | None, example: str = "") -> None:
        from textwrap import fill

        width = min(terminal_width(sys.stdout), 100)
        paragraphs = [fill(" ".join(text.split()), width) for text in (description or "").split("\n\n")]
        super().__init__(
            prog,
            description="\n\n".join(paragraphs),
            epilog=example and f"{bold('Example', sys.stdout)}:\n  {prog} {example}",
            formatter_class=_Formatter,
            add_help=False,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        message = message.replace("the following arguments are required:", "Missing argument")
        raise UsageError(f"{message} (usage: {self.usage}; --help says more)")

    def parse(self, words: list[str]) -> Namespace:
        """Return the arguments. Raises UsageError, or SystemExit when the user asked for help."""
        self.usage = self._short_usage()
        # an intermixed parse of Python 3.11 loses what is behind `--`
        parse = self.parse_known_args if "--" in words else self.parse_known_intermixed_args
        given, unknown = parse(words)
        options = [word for word in unknown if word.startswith("-")]
        if options:
            name = options[0].partition("=")[0]
            self.error(f"No such option {name}{_nearest(name, self.options())}")
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        return given

    def options(self) -> list[str]:
        """Return the names of all options."""
        return [name for action in self._actions for name in action.option_strings]

    def _short_usage(self) -> str:
        """Return a usage line without the optional options, which the help lists below the usage line."""
        words = [self.prog]
        for action in self._actions:
            name = str(action.metavar)
            if not action.option_strings:
                words.append(f"[{name}]" if action.nargs == "?" else name)
            elif action.required:
                words.append(f"{action.option_strings[0]} {name}")
        return " ".join([*words, "[OPTIONS]"])


def _nearest(word: str, known: Any) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def command_parser(group: str, name: str) -> tuple[Any, Parser]:
    """Import a command and return its module and its parser; `group` is "" for one without. O(one import)."""
    command = GROUPS[group].commands[name] if group else COMMANDS[name]
    module = import_module(GROUPS[group].modules.format(name) if group else command.module)
    parser = Parser(f"hybridstore {group} {name}".replace("  ", " "), module.run.__doc__, command.example)
    module.arguments(parser)
    return module, parser


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code. No exception is raised.

    Data is written to standard output, everything else to standard error; nothing to one that is closed.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). /dev/null replaces standard output, because Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        return stop.code if type(stop.code) is int else 0
    except Exception as error:
        if "--debug" in arguments:
            raise
        return _explain(error)


def _run(arguments: list[str]) -> int:
    if COMPLETE in os.environ:
        return complete(os.environ.get("COMP_WORDS", "").split(), int(os.environ.get("COMP_CWORD", "0")))
    match arguments:
        case ["--version", *_]:
            print(_release())
            return FINE
        case ["--completion", *_]:
            print(_COMPLETION)
            return FINE
        case [group, name, *words] if group in GROUPS and name in GROUPS[group].commands:
            return _call(group, name, words)
        case [name, *words] if name in COMMANDS:
            module, parser = command_parser("", name)
            return int(module.run(parser.parse(words)))
        case [group, name, *_] if group in GROUPS and name not in _ASKED:
            near = _nearest(name, GROUPS[group].commands)
            if "/" in name or os.path.exists(name):
                near = f"; a command comes before the path: hybridstore {group} COMMAND {name}"
            raise UsageError(f"{group}: No such command {name!r}{near} (hybridstore {group} --help lists all)")
        case [group, *_] if group in GROUPS:
            _group_help(group).print_help()
        case [name, *_] if name not in _ASKED:
            grouped = [f"{group} {name}" for group in GROUPS if name in GROUPS[group].commands]
            near = f" (did you mean {grouped[0]}?)" if grouped else _nearest(name, [*GROUPS, *COMMANDS])
            raise UsageError(f"No such command {name!r}{near} (hybridstore --help lists all)")
        case _:
            _help().print_help()
    return FINE if arguments and arguments[-1] in _ASKED else USAGE


def _call(group: str, name: str, words: list[str]) -> int:
    module, parser = command_parser(group, name)
    given = parser.parse(words)
    if group == "bench":
        return int(module.run(given))
    from .inspection.look import Look

    form, progress = given.output, not given.no_progress
    look = Look(given.path, at=given.at, shard=given.shard, form=form, iso=given.iso, progress=progress)
    return int(module.run(look, given))


def _help() -> Parser:
    """Return a parser that is only used for its help, which lists the groups in the place of arguments."""
    parser = Parser("hybridstore", "Fault-tolerant state for stream processing: read, measure and change state.")
    parser.usage = "hybridstore COMMAND ..."
    commands = parser.add_argument_group("commands")
    for name, group in GROUPS.items():
        commands.add_argument(name, help=group.summary)
    for name, command in COMMANDS.items():
        commands.add_argument(name, help=command.summary)
    options = parser.add_argument_group("options")
    options.add_argument("--version", action="store_true", help="Print the release.")
    shell = 'Print the completion script for bash: put eval "$(hybridstore --completion)" into ~/.bashrc.'
    options.add_argument("--completion", action="store_true", help=shell)
    options.add_argument("-h", "--help", action="help", help="Show this help. Each command has its own help.")
    return parser


def _group_help(group: str) -> Parser:
    """Return a parser that is only used for its help, which lists the commands of a group."""
    about = GROUPS[group]
    parser = Parser(f"hybridstore {group}", f"{about.summary}\n\n{about.note}")
    parser.usage = f"hybridstore {group} COMMAND {about.path} [OPTIONS]"
    for title, section in about.sections.items():
        commands = parser.add_argument_group(title)
        for name, command in section.items():
            commands.add_argument(name, help=command.summary)
    parser.epilog = f"hybridstore {group} COMMAND --help shows the arguments of a command, with an example."
    return parser


COMPLETE: Final = "_HYBRIDSTORE_COMPLETE"
_COMPLETION: Final = f"""\
_hybridstore() {{
    COMPREPLY=($(COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=$COMP_CWORD {COMPLETE}=bash hybridstore))
}}
complete -o default -F _hybridstore hybridstore"""


def complete(words: list[str], place: int) -> int:
    """Print the words that can stand at a place of a command line, one per line; no word for a path. Returns 0."""
    start = words[place] if place < len(words) else ""
    known: list[str] = []
    match words[1:place]:
        case []:
            known = [*GROUPS, *COMMANDS, "--help", "--version", "--completion"]
        case [group] if group in GROUPS:
            known = [*GROUPS[group].commands, "--help"]
        case [group, name, *_] if group in GROUPS and name in GROUPS[group].commands and start.startswith("-"):
            known = command_parser(group, name)[1].options()
        case [name, *_] if name in COMMANDS and start.startswith("-"):
            known = command_parser("", name)[1].options()
    print("\n".join(word for word in known if word.startswith(start)))
    return 0


def _release() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"hybridstore {version('hybridstore')}"
    except PackageNotFoundError:
        return "hybridstore, from a checkout that is not installed"


def _explain(error: Exception) -> int:
    """Report an error on standard error and return the exit code."""
    from changelog.errors import HybridStoreError

    from .errors import StateLockedError
    from .inspection.rebuild import OccupiedError

    sys.stdout.flush()
    if isinstance(error, UsageError):
        say(str(error))
        return USAGE
    full = isinstance(error, OSError) and error.errno in _OF_WRITES
    if full or isinstance(error, OccupiedError | StateLockedError):
        say(f"cannot write: {error}")
    elif isinstance(error, (HybridStoreError, OSError)):
        say(f"cannot read: {error}")
    else:
        say(f"cannot read: {type(error).__name__}: {error} (--debug shows where)")
    return UNREADABLE


def main() -> None:
    """Entry of the `hybridstore` script."""
    sys.exit(run(sys.argv[1:]))
