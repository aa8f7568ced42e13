"""The commands of `hybridstore bench`. Each prints a table, or JSON with --json; a wrong answer prints no figure and exits with 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Any

import typer

from .machine import describe
from .result import Result, show
from .timing import WrongAnswerError

_ROOT = Path(__file__).resolve().parent.parent.parent
_Records = Annotated[list[int], typer.Option("--records", help="Records in the state; may be given several times.")]
_Runs = Annotated[int, typer.Option("--runs", min=1, help="How often each case runs; the median is shown.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, with the machine, instead of a table.")]
_Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where to make the states (default: the system's temporary folder).")
]


def _run(measures: list[Callable[[], Result]], as_json: bool, folder: Path) -> tuple[int, list[Result]]:
    """Run the suites, print what they found, and return the exit code with the results."""
    results = []
    try:
        for measure in measures:
            results.append(measure())  # a failure keeps what came before it
            if not as_json:
                show(results[-1])
    except (WrongAnswerError, RuntimeError) as error:  # the latter when a fresh process failed
        typer.echo(str(error), err=True)
        return 1, results
    if as_json:
        typer.echo(
            json.dumps({"machine": describe(folder), "results": [result.to_json() for result in results]}, indent=2)
        )
    return 0, results


def _place(folder: Path | None) -> Path:
    return folder or Path(gettempdir())


def restore(
    records: _Records = [100_000, 1_000_000],  # noqa: B006  # typer's way to say a default list
    value_size: Annotated[int, typer.Option("--value-size", min=8, help="Bytes of each value.")] = 16,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Mutations behind the checkpoint.")] = 20_000,
    stores: Annotated[int, typer.Option("--stores", min=1, help="Over how many stores the records are spread.")] = 1,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop the files from the kernel's cache before each run.")
    ] = False,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Also measure the other engines.")
    ] = True,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also restart a query on Spark's engines (checkout and Java; minutes).")
    ] = False,
    runs: _Runs = 5,
    as_json: _Json = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw time against records into this file.")] = None,
    folder: _Folder = None,
) -> int:
    """Measure a restart by phase, against a full replay, RocksDB, LMDB, SQLite and pickle with the same records."""
    from . import plots
    from .restore import measure

    place = _place(folder)

    def one(count: int) -> Callable[[], Result]:
        return lambda: measure(
            place,
            records=count,
            value_size=value_size,
            tail=tail,
            stores=stores,
            cold=cold,
            baselines=baselines,
            repeats=runs,
        )

    measures = [one(count) for count in records]
    if spark:
        if not _has_suite("spark_suite"):
            return 1
        measures.append(lambda: _spark_restart(place, max(records)))
    code, results = _run(measures, as_json, place)
    results = [result for result in results if result.suite == "restore"]
    if plot is not None and results:
        if why := plots.missing():
            typer.echo(why, err=True)
            return code or 1
        plots.restart_times(results, plot)
    return code


def stores(
    records: Annotated[int, typer.Option("--records", help="Records that are put.")] = 200_000,
    held: Annotated[int, typer.Option("--held", help="Records in the stores that are read and weighed.")] = 1_000_000,
    sessions: Annotated[int, typer.Option("--sessions", help="Sessions in the store that is searched.")] = 300_000,
    runs: _Runs = 5,
    as_json: _Json = False,
    folder: _Folder = None,
) -> int:
    """Measure puts, batches, reads, memory and expiry of each store, as ratios to what one would write by hand."""
    from .stores import measure

    place = _place(folder)
    return _run([lambda: measure(place, records=records, held=held, sessions=sessions, repeats=runs)], as_json, place)[
        0
    ]


def changelog(
    records: Annotated[int, typer.Option("--records", min=1000, help="Mutations that are logged and read.")] = 200_000,
    runs: _Runs = 5,
    as_json: _Json = False,
    folder: _Folder = None,
) -> int:
    """Measure packing, writing, syncing and reading the changelog, against the bare steps."""
    from .changelog_speed import measure

    place = _place(folder)
    return _run([lambda: measure(place, records=records, repeats=runs)], as_json, place)[0]


def checkpoint(
    records: Annotated[int, typer.Option("--records", min=1000, help="Records in the store.")] = 1_000_000,
    changes: Annotated[int, typer.Option("--changes", help="Mutations between two checkpoints.")] = 100_000,
    runs: _Runs = 3,
    as_json: _Json = False,
    folder: _Folder = None,
) -> int:
    """Measure a first and an incremental checkpoint, the owner's pause, and what puts feel beside it."""
    from .checkpoint_speed import measure

    place = _place(folder)
    return _run([lambda: measure(place, records=records, changes=changes, repeats=runs)], as_json, place)[0]


def sliding(
    quick: Annotated[bool, typer.Option("--quick", help="Windows of up to 1,000 records only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each figure.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Only draw cost against the window's size.")] = None,
) -> int:
    """Measure the strategies of sliding windows. Needs a checkout: the suite is in benchmarks/."""
    flags = [name for name, given in (("--quick", quick), ("--json", as_json)) if given]
    return _suite("bench_sliding", *flags, *(["--plot", str(plot.absolute())] if plot else []))


def spark(
    work: Annotated[str, typer.Option("--work", help="Some of count,tumbling,sliding.")] = "count",
    keys: Annotated[str, typer.Option("--keys", help="Numbers of keys, separated by commas.")] = "10000",
    rows: Annotated[int, typer.Option("--rows", min=100, max=100_000, help="Rows of a batch.")] = 100_000,
    batches: Annotated[int, typer.Option("--batches", min=2, help="Batches; the first are not counted.")] = 10,
    engines: Annotated[
        str,
        typer.Option(
            "--engines",
            help=(
                "Some of hybridstore,hybridstore-worker,hybridstore-holder,bare,native,native-changelog,native-hdfs,"
                "tws-row,apws,tws-pandas; ours first."
            ),
        ),
    ] = "hybridstore,native,native-changelog,native-hdfs,tws-row",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each engine runs, in turn.")] = 1,
) -> int:
    """Measure the Spark operator against Spark's own. Needs a checkout, Java and time: the suite is in benchmarks/."""
    given = {"work": work, "keys": keys, "rows": rows, "batches": batches, "engines": engines, "rounds": rounds}
    return _suite("bench_spark", *[part for name, value in given.items() for part in (f"--{name}", str(value))])


def _has_suite(name: str) -> bool:
    """True when the checkout's benchmarks/ folder has this suite; says so when it has not."""
    if (_ROOT / "benchmarks" / f"{name}.py").exists():
        return True
    typer.echo(
        f"benchmarks/{name}.py: not there (this suite is part of a checkout, not of the installed package)", err=True
    )
    return False


def _suite(name: str, *arguments: str) -> int:
    """Run a suite of the checkout's benchmarks/ folder in a process of its own and return its exit code."""
    import subprocess
    import sys

    if not _has_suite(name):
        return 1
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=_ROOT).returncode


def _spark_restart(place: Path, keys: int) -> Result:
    from . import fresh_process

    return Result.from_json(fresh_process.call("benchmarks.spark_suite:restart_fields", folder=str(place), keys=keys))


def compare(
    ref: Annotated[str, typer.Argument(help="A commit, branch or tag to compare with.")],
    other: Annotated[str, typer.Argument(help="What to compare: another ref; by default the files as they are.")] = "",
    runs: Annotated[int, typer.Option("--runs", min=3, help="How often each of the two runs, in turn.")] = 10,
    records: Annotated[int, typer.Option("--records", min=100, help="Records that each measurement takes.")] = 100_000,
    as_json: _Json = False,
) -> int:
    """Run two versions in turn and say what changed beyond noise. Exit code 1: something became slower."""
    from .compare import compare_refs, show_changes

    changes = compare_refs(ref, other, runs=runs, records=records)
    if as_json:
        found: list[dict[str, Any]] = [change._asdict() | {"verdict": change.verdict} for change in changes]
        typer.echo(json.dumps(found, indent=2))
    else:
        show_changes(changes, ref, other)
    return int(any(change.verdict == "slower" for change in changes))
