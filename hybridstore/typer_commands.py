"""Typer commands: the command line as typer sees it, for help, completion, and whatever is not plainly right.

Made from the declarations in `hybridstore.inspection.parameters`; imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from .cli import INSPECT, load
from .inspection.parameters import Argument, Declared, declared

_HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """A group whose commands are known by name and imported when asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands, in the order of the help."""
        return list(INSPECT)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command. Returns None when there is none of this name."""
        lazy = INSPECT.get(cmd_name)
        if lazy is None:
            return None
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        one.command(
            cmd_name,
            short_help=lazy.summary,
            epilog=f"Example: hybridstore inspect {lazy.example}",
            context_settings=_HELP,
        )(_typed(load(lazy)))
        return get_command(one)


# What `hybridstore bench` has; its functions are typer's own, and slow enough by themselves.
BENCH = {
    "restore": "restore --records 1000000 --cold",
    "stores": "stores --runs 3",
    "changelog": "changelog --json",
    "checkpoint": "checkpoint --changes 10000",
    "sliding": "sliding --quick",
    "spark": "spark --work count,sliding --keys 10000,100000",
    "compare": "compare HEAD~1",
}


class BenchGroup(TyperGroup):
    """The group of the benchmarks."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands, in the order of the help."""
        return list(BENCH)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a benchmark. Returns None when there is none of this name."""
        if cmd_name not in BENCH:
            return None
        from .benchmark import commands

        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        example = f"Example: hybridstore bench {BENCH[cmd_name]}"
        one.command(cmd_name, epilog=example, context_settings=_HELP)(getattr(commands, cmd_name))
        return get_command(one)


def _typed(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with a signature that typer understands."""

    def call(**arguments: Any) -> int:
        return command(**arguments)

    parameters = declared(command)
    hints = {one.name: Annotated[one.annotation, _typer_info(one)] for one in parameters}
    call.__name__ = command.__name__
    call.__doc__ = command.__doc__
    call.__annotations__ = hints | {"return": int}
    vars(call)["__signature__"] = Signature(
        [
            Parameter(one.name, Parameter.POSITIONAL_OR_KEYWORD, default=one.default, annotation=hints[one.name])
            for one in parameters
        ]
    )
    return call


def _typer_info(one: Declared) -> Any:
    how = one.how
    if isinstance(how, Argument):
        return typer.Argument(metavar=how.metavar, help=how.help, show_default=how.show_default)
    return typer.Option(*how.names, metavar=how.metavar, help=how.help, show_default=how.show_default, min=how.min)


app = typer.Typer(
    name="hybridstore",
    help="Fault-tolerant state for stream processing: look into it, measure it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
inspect_app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    help="Look into state: offline or beside a live writer, read-only, without the job's code.\n\n"
    "Exit codes: 0 fine, 1 a negative answer (not found, different, faults), 2 wrong usage, 3 cannot read, "
    "4 damaged so that the answer is incomplete.",
    context_settings=_HELP,
)
app.add_typer(inspect_app, name="inspect")

bench_app = typer.Typer(
    cls=BenchGroup,
    no_args_is_help=True,
    help="Measure: every benchmark checks its answers, and prints no figure for a wrong one.",
    context_settings=_HELP,
)
app.add_typer(bench_app, name="bench")


def _say_version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"hybridstore {version('hybridstore')}")
        except PackageNotFoundError:
            typer.echo("hybridstore, from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the release and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """The command has no other options of its own: `--version` is done by its callback."""


@inspect_app.callback()
def _inspect() -> None:
    """The group has no options of its own."""


@bench_app.callback()
def _bench() -> None:
    """The group has no options of its own."""


def run_typer(arguments: list[str]) -> int:
    """Run a command line through typer and return its exit code. Raises what the command raises, and typer's usage errors."""
    code = app(args=arguments, prog_name="hybridstore", standalone_mode=False)
    return code if type(code) is int else 0
