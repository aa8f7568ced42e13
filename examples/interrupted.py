"""The demonstration around `traffic.py`: kill the job in the middle, restart it, and compare every result.

log ──▶ batches (files) ──▶ job in a process group of its own ── SIGKILL ──▶ the same job again ──▶ results
                 └────────▶ the same topologies in plain Python, never interrupted ──▶ must be the same rows
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from traffic import TOPOLOGIES, job
from weblog import BadLines, at_least, generate, parse_all

import hybridstore as hs

MARK = ".hybridstore-demo"
SHARDS = 4
SOCKETS = "HYBRIDSTORE_DEMO_SOCKETS"
# So often that a log of this size shows one; a real job leaves it to the default: a restart within a second.
CHECKPOINTS = hs.CheckpointPolicy(every_commits=4)
console = Console(highlight=False, soft_wrap=True)


class DemoError(Exception):
    """Something that a person has to know, in one sentence."""


# --- the job, in the process that will be killed ------------------------------------------------------------------


def run_on_spark(options: argparse.Namespace, work: Path) -> None:
    """Run the job on Spark until all batches are done, then gather what the file sink holds into one file a
    topology.
    """
    from pyspark.sql import SparkSession

    from hybridstore.spark import configure

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("traffic").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "spark" / "warehouse"),
        "spark.local.dir": str(work / "spark" / "local"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work / 'spark'}",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.dir": os.environ[SOCKETS],
    }.items():
        builder = builder.config(name, value)
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    logs, results, checkpoints = (str(work / name) for name in ("batches", "results", "state"))
    for query in list(job(spark, logs, results, checkpoints, options.shards, options.state)):
        query.awaitTermination()
    for name in TOPOLOGIES:
        rows = spark.read.parquet(str(work / "results" / name)).toArrow()
        import pyarrow.parquet as pq

        pq.write_table(rows, work / f"{name}.parquet")
    spark.stop()


def run_in_plain_python(options: argparse.Namespace, work: Path) -> None:
    """Run the topologies with `Topology.run`; a commit's results become a file under their number, written once."""
    from itertools import chain

    batches = sorted((work / "batches").glob("*.log"))
    sizes = [sum(1 for _ in parse_all(path.read_text("utf-8", "replace").splitlines())) for path in batches]
    size = max(sizes)
    for name, topology in TOPOLOGIES.items():
        rows = chain.from_iterable(parse_all(path.read_text("utf-8", "replace").splitlines()) for path in batches)
        results = work / "results" / name
        results.mkdir(parents=True, exist_ok=True)
        written = {int(path.stem) for path in results.glob("*.json")}
        pending: list[dict[str, Any]] = []
        at = 0
        # the last commit is written after the end of the run, so that it is asked for again
        for row in topology.run(
            rows,
            location=state_of(options, work, name),
            shards=options.shards,
            commit_rows=size,
            checkpoints=CHECKPOINTS,
            replay_last=True,
        ):
            if row.commit != at:
                _write_commit(results, at, pending, written)
                at, pending = row.commit, []
            pending.append(row)
        _write_commit(results, at, pending, written)


def _write_commit(results: Path, commit: int, rows: list[dict[str, Any]], written: set[int]) -> None:
    """Keep a commit's results, unless they are there from before the restart: so each counts exactly once."""
    if not commit or commit in written:
        return
    temporary = results / f".{commit}.tmp"
    temporary.write_text(json.dumps(rows))
    temporary.rename(results / f"{commit:06}.json")


# --- the demonstration around it ------------------------------------------------------------------------------------


def main() -> int:
    """Parse the command line and run the demonstration; 0 when no row differs."""
    parser = argparse.ArgumentParser(
        prog="traffic.py",
        description="Stream web server logs, kill the job in the middle, restart it, and compare every result.",
    )
    parser.add_argument(
        "--engine", choices=("spark", "plain"), default="spark", help="what runs the job (default: spark)"
    )
    parser.add_argument("--log", type=Path, help="an Apache combined log; default: 200,000 generated lines")
    parser.add_argument(
        "--workdir", type=Path, default=Path("demo-state"), help="the folder for everything (default: demo-state)"
    )
    parser.add_argument(
        "--batches", type=at_least(1), default=12, help="into how many batches the log is cut (default: 12)"
    )
    parser.add_argument("--lines", type=at_least(1), default=200_000, help="lines to generate without --log")
    parser.add_argument(
        "--shards", type=at_least(1), default=SHARDS, help=f"shards of the key space (default: {SHARDS})"
    )
    parser.add_argument("--kills", type=at_least(0), default=2, help="how often the job is killed (default: 2)")
    where = "keep the state there instead: a bucket (s3://, gs://, abfss://), with credentials in the environment"
    parser.add_argument("--state", metavar="URL", help=where)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stays", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.workdir.resolve()
    if options.child:
        parent = os.getppid()
        (run_on_spark if options.engine == "spark" else run_in_plain_python)(options, work)
        (work / "done").touch()
        while options.stays and os.getppid() == parent:  # a kill is to come, however fast the job was
            time.sleep(0.02)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the job is ended, too
    try:
        return demonstrate(options, work)
    except KeyboardInterrupt:
        print("traffic: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except (DemoError, OSError) as error:
        print(f"traffic: {error}", file=sys.stderr)
        return 1


def state_of(options: argparse.Namespace, work: Path, name: str) -> str:
    """Return where the state of a topology is: a folder of the demonstration, or below the location that was given."""
    return f"{options.state or work / 'state'}/{name}"


def times(count: int) -> str:
    """Return `once`, `2 times`."""
    return "once" if count == 1 else f"{count} times"


def is_state(location: str) -> bool:
    """True when a location has a state."""
    try:
        hs.inspect(location)
    except (hs.errors.ForeignFileError, FileNotFoundError):
        return False
    return True


def demonstrate(options: argparse.Namespace, work: Path) -> int:
    """Prepare, run with kills, compare, show."""
    prepare(work)
    for name in TOPOLOGIES if options.state is not None else ():
        place = state_of(options, work, name)
        if any(is_state(location) for location in (place, f"{place}/0")):
            raise DemoError(f"{place}: found a state, expected a new location (name another --state)")
    begun = time.perf_counter()
    batches = cut_into_batches(options, work)
    kills = run_with_kills(options, work, batches)
    console.print(f"[bold]job[/] killed with SIGKILL {times(len(kills))}, restarted, and finished")
    for when, report in kills:
        console.print(f"[bold]killed[/] {when}; what the restart found and read:")
        for line in report:
            console.print(f"    {line}")
    compared = different = 0
    reference = run_reference(options, work)
    results: dict[str, Counter[Any]] = {}
    for name in TOPOLOGIES:
        results[name] = results_of(options, work, name)
        for paths in batches_of(options, work, name):
            if len(paths) > 1:
                together = " and ".join(path.name for path in paths)
                console.print(
                    f"[dim]{name}: after a kill Spark took {together} together in one batch; so does the "
                    "uninterrupted run[/]"
                )
        missing, extra = reference[name] - results[name], results[name] - reference[name]
        compared += sum(reference[name].values())
        different += sum(missing.values()) + sum(extra.values())
        for label, rows in (("missing", missing), ("not expected", extra)):
            for row in list(rows)[:3]:
                console.print(f"[red]{name}: {label}: {row}[/]")
    show_busiest(results["clients"])
    colour = "red" if different else "green"
    console.print(
        f"[bold]compared[/] {compared:,} result rows with an uninterrupted run: [{colour}]{different} differences[/]"
    )
    look = state_of(options, work, "clients")
    if options.state is None:
        look = os.path.relpath(look)
    console.print(f"[bold]look inside[/] {command()} inspect info {look}")
    console.print(f"[dim]{time.perf_counter() - begun:.0f} seconds in all; everything is in {os.path.relpath(work)}[/]")
    return 1 if different or not compared else 0


def command() -> str:
    """Return how to call `hybridstore` from here: by name where that is this installation's, else by its path."""
    beside = Path(sys.executable).with_name("hybridstore")
    return "hybridstore" if shutil.which("hybridstore") == str(beside) else os.path.relpath(beside)


def prepare(work: Path) -> None:
    """Make the folder empty, but only one that an earlier demonstration made."""
    if work.exists():
        if any(work.iterdir()) and not (work / MARK).exists():
            raise DemoError(f"{work}: not empty and not from an earlier demonstration (name another --workdir)")
        shutil.rmtree(work)
    (work / "batches").mkdir(parents=True)
    (work / "spark").mkdir()
    (work / MARK).touch()


def cut_into_batches(options: argparse.Namespace, work: Path) -> list[Path]:
    """Cut the log into files of equal numbers of lines; Spark takes them one a batch, oldest first."""
    source: Path = options.log or work / "access.log"
    if options.log is None:
        generate(source, lines=options.lines, bad_lines=3)
    elif not source.is_file():
        raise DemoError(f"{source}: no such file (give the path of an Apache combined log)")
    lines = source.read_text("utf-8", "replace").splitlines(keepends=True)
    bad = BadLines()
    requests = sum(1 for _ in parse_all(lines, bad))
    if not requests:
        raise DemoError(f"{source}: found no line in the combined log format among {len(lines):,}")
    console.print(
        f"[bold]input[/] {requests:,} requests in {options.batches} batches, from {options.log or 'a seeded generator'}"
    )
    if bad.count:
        console.print(f"[yellow]{bad}[/]", markup=True)
    size = -(-len(lines) // options.batches)
    batches = []
    # The plain engine commits by number of requests, Spark by file: both cut where a file has `size` good lines.
    for number, chunk in enumerate(
        _chunks(lines, size if options.engine == "spark" else None, -(-requests // options.batches))
    ):
        path = work / "batches" / f"{number:04}.log"
        path.write_text("".join(chunk))
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
        batches.append(path)
    return batches


def _chunks(lines: list[str], size: int | None, good: int) -> Iterator[list[str]]:
    """Cut lines into pieces of `size` lines, or of `good` lines that parse."""
    if size is not None:
        for start in range(0, len(lines), size):
            yield lines[start : start + size]
        return
    chunk: list[str] = []
    count = 0
    for line in lines:
        chunk.append(line)
        count += sum(1 for _ in parse_all([line]))
        if count == good:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk


def done_batches(options: argparse.Namespace, work: Path) -> int:
    """Count the batches committed so far, over all topologies."""
    if options.engine == "plain":
        return sum(1 for _ in (work / "results").glob("*/*.json"))
    return sum(1 for path in (work / "state").glob("*/commits/*") if path.name.isdigit())


def run_with_kills(options: argparse.Namespace, work: Path, batches: list[Path]) -> list[tuple[str, list[str]]]:
    """Run the job until it ends by itself, killing its whole process group after some batches.

    Return when it was killed, and what was there to restore.
    """
    total = len(batches) * len(TOPOLOGIES)
    targets = [total * (i + 1) // (options.kills + 2) for i in range(options.kills)]
    killed: list[tuple[str, list[str]]] = []
    # Paths of Unix sockets are short by law (108 bytes), so these cannot be in the folder, wherever that is.
    with (
        tempfile.TemporaryDirectory(prefix="hs") as sockets,
        (work / "job.log").open("wb") as log,
        Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as bar,
    ):
        task = bar.add_task("batches committed", total=total)
        while True:
            process = start(options, work, log, sockets, stays=bool(targets))
            try:
                while process.poll() is None:
                    done = done_batches(options, work)
                    bar.update(task, completed=done, description=f"batches committed, {len(killed)} kills")
                    if targets and (done >= targets[0] or (work / "done").exists()):
                        targets.pop(0)
                        end(process)
                        killed.append((f"after {done} of {total} batches", list(restores(options, work))))
                        break
                    time.sleep(0.02)
                code = process.returncode
            finally:
                if process.returncode is None:
                    end(process)
            if code == 0:
                bar.update(task, completed=done_batches(options, work))
                return killed
            if code != -signal.SIGKILL:
                raise DemoError(
                    f"the job failed with exit code {code}: {last_line(work / 'job.log')} (see {work / 'job.log'})"
                )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the job with its whole process group, and wait for its end.

    `Popen.wait` would wait for ever after a signal that arrived inside of `Popen.poll`, which then keeps its lock.
    """
    with suppress(ProcessLookupError, ChildProcessError):
        os.killpg(process.pid, signal.SIGKILL)
        process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def start(options: argparse.Namespace, work: Path, log: Any, sockets: str, *, stays: bool) -> subprocess.Popen[bytes]:
    """Start the job in a process group of its own; with `stays` it does not end by itself."""
    script = Path(__file__).with_name("traffic.py").resolve()
    command = [
        sys.executable,
        str(script),
        "--child",
        "--engine",
        options.engine,
        "--workdir",
        str(work),
        "--shards",
        str(options.shards),
        *([] if options.state is None else ["--state", options.state]),
        *(["--stays"] if stays else []),
    ]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, SOCKETS: sockets}
    return subprocess.Popen(
        command, stdout=log, stderr=log, cwd=work / "spark", start_new_session=True, env=environment
    )


def last_line(path: Path) -> str:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith("at ")]
    return (errors or lines or ["it printed nothing"])[-1]


def run_reference(options: argparse.Namespace, work: Path) -> dict[str, Counter[Any]]:
    """Run the topologies in plain Python over the same batches and shards, without interruption."""
    results: dict[str, Counter[Any]] = {}
    for name, topology in TOPOLOGIES.items():
        rows: Counter[Any] = Counter()
        with topology.open(work / "reference" / name, shards=options.shards, durability="os") as engine:
            for paths in batches_of(options, work, name):
                lines = (line for path in paths for line in path.read_text("utf-8", "replace").splitlines())
                emitted = engine.process_many(list(parse_all(lines))) + engine.commit()
                rows.update(tuple(row.values()) for row in emitted)
        results[name] = rows
    shutil.rmtree(work / "reference")
    return results


def batches_of(options: argparse.Namespace, work: Path, name: str) -> list[list[Path]]:
    """Return the files of each batch as the job took them.

    Spark says so in its logs: killed between writing down a file and writing down the batch that has it, it takes that
    file and the next one together after the restart.
    """
    batches = work / "batches"
    if options.engine == "plain":
        return [[path] for path in sorted(batches.glob("*.log"))]
    state = work / "state" / name
    files: dict[int, set[Path]] = {}
    for log in (state / "sources" / "0").iterdir():
        if not log.name.startswith("."):
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                files.setdefault(entry["batchId"], set()).add(batches / Path(entry["path"]).name)
    taken: list[list[Path]] = []
    first = 0
    for log in sorted(
        (path for path in (state / "offsets").iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    ):
        last = json.loads(log.read_text().splitlines()[-1])["logOffset"]
        taken.append(sorted(path for number in range(first, last + 1) for path in files.get(number, ())))
        first = last + 1
    return taken


def results_of(options: argparse.Namespace, work: Path, name: str) -> Counter[Any]:
    """Return what the job wrote: rows as tuples, times in ms."""
    if options.engine == "plain":
        commits = [json.loads(path.read_text()) for path in sorted((work / "results" / name).glob("*.json"))]
        return Counter(tuple(row.values()) for rows in commits for row in rows)
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(work / f"{name}.parquet")
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
        columns.append(column.to_pylist())
    return Counter(zip(*columns, strict=True))


class Restored(NamedTuple):
    """A shard that was opened: version, records, version of its checkpoint, versions and bytes of the tail behind
    that.
    """

    version: int
    records: int
    checkpoint: int
    tail_versions: int
    tail_bytes: int


def restored(options: argparse.Namespace, base: str, name: str) -> Iterator[Restored]:
    """Open every shard of a topology, one after the other, and read one row of each store."""
    if options.engine == "plain":
        # killed while it made its shards, a job leaves some of them without a state
        for place in (f"{base}/{shard}" for shard in range(options.shards)):
            if not is_state(place):
                continue
            with hs.open(place, at="newest") as state:
                for store in state.stores.values():
                    next(iter(store.all()), None)
                report = state.restore_report
                records = sum(state.metrics().records.values())
                yield Restored(
                    report.version, records, report.checkpoint_version or 0, report.tail_versions, report.tail_bytes
                )
        return
    from hybridstore.spark import MissingVersionError
    from hybridstore.spark.location import locate
    from hybridstore.spark.reading import open_version, shards

    try:
        states = shards(locate(base), name)
    except MissingVersionError:  # killed before a run of it began
        states = []
    for shard in states:
        opened = open_version(shard, shard.version)
        for name in opened.stores:
            next(opened.rows(name), None)
        checkpoint, tail = opened.reader, opened.tail
        records = sum(store.num_records for store in opened.stores.values())
        yield Restored(
            shard.version, records, 0 if checkpoint is None else checkpoint.meta.version, tail.commits, tail.bytes
        )


def restores(options: argparse.Namespace, work: Path) -> Iterator[str]:
    """Restore every shard that the killed job left behind, read one row of it, and say what it had and how long
    it took.
    """
    for name in TOPOLOGIES:
        opened: list[Restored] = []
        milliseconds = []
        begun = time.perf_counter()
        for shard in restored(options, state_of(options, work, name), name):
            milliseconds.append((time.perf_counter() - begun) * 1000)
            opened.append(shard)
            begun = time.perf_counter()
        if any(shard.version for shard in opened):
            yield (
                f"{name}: {sum(shard.records for shard in opened):,} records in {len(opened)} shards at version "
                f"{max(shard.version for shard in opened)}: checkpoint {max(shard.checkpoint for shard in opened)} "
                f"and a tail of {sum(shard.tail_versions for shard in opened)} versions "
                f"({sum(shard.tail_bytes for shard in opened):,} bytes), first read within {max(milliseconds):.1f} ms "
                "of opening a shard"
            )


def show_busiest(clients: Counter[Any]) -> None:
    """Print the clients with the most requests in any 5 minutes."""
    busiest: dict[str, tuple[int, int, int]] = {}
    for ip, _, end, requests, size in clients:
        if requests is not None and (requests, size) > busiest.get(ip, (0, 0, 0))[:2]:
            busiest[ip] = (requests, size, end)
    table = Table(title="busiest clients, over any 5 minutes", title_justify="left")
    table.add_column("client")
    table.add_column("until (UTC)")
    table.add_column("requests", justify="right")
    table.add_column("bytes", justify="right")
    for ip, (requests, size, end) in sorted(busiest.items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))[:8]:
        table.add_row(ip, f"{datetime.fromtimestamp(end / 1000, UTC):%Y-%m-%d %H:%M:%S}", f"{requests:,}", f"{size:,}")
    console.print(table)
