"""Typer commands: the command line as typer sees it, for help, completion, and whatever is not plainly right.

Made from the declarations in `hybridstore.inspection.parameters`; imported only when it is needed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

_HELP = {"help_option_names": ["-h", "--help"]}


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


app = typer.Typer(
    name="hybridstore",
    help="Fault-tolerant state for stream processing: look into it, measure it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
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


@bench_app.callback()
def _bench() -> None:
    """The group has no options of its own."""


def run_typer(arguments: list[str]) -> int:
    """Run a command line through typer and return its exit code. Raises what the command raises, and typer's usage errors."""
    code = app(args=arguments, prog_name="hybridstore", standalone_mode=False)
    return code if type(code) is int else 0
