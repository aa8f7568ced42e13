"""What a row of state costs as workers are added: where shards are served, what is replayed, held and asked of storage.

    python -m benchmarks.suites.scale_out --masters "local[1],local[2],local[16]" --placements worker,auto
    python -m benchmarks.suites.scale_out --masters "local-cluster[4,2,1024],standalone[2,2]" \\
        --engines hybridstore,native-changelog

Every master runs the same batches over the same shards, in processes and JVMs of its own; only the number of workers
differs. Each batch's rows are told in brief and compared among all of them. After warm batches it is counted, per shard
and batch, how the version came into memory, what was replayed, what loading and processing took of a processor, what
was asked of storage; and, at the end, how many copies of the state all processes hold together, and their memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.suites.spark import ANSWER, SCHEMA, settings_of, spark_process, write_input
from benchmarks.suites.spark_queries import native

ROOT = Path(__file__).resolve().parent.parent.parent
SHARDS = 16
MASTERS = (
    *(f"local[{workers}]" for workers in (1, 2, 4, 8, 16)),
    "local-cluster[4,1,1024]",
    "local-cluster[2,2,1024]",
    "local-cluster[4,2,1024]",
    "standalone[2,2]",
)
ENGINES = ("hybridstore", "native-changelog", "native-hdfs")
# by this variable of their environment a run knows its processes
MARK = "HYBRIDSTORE_SCALE_OUT"
WORKS = ("count", "sliding")


def workers_of(master: str) -> int:
    """Return how many tasks a master runs at once."""
    numbers = [int(part) for part in master.rstrip("]").partition("[")[2].split(",")]
    return numbers[0] * (numbers[1] if len(numbers) > 1 else 1)


@contextmanager
def address_of(master: str, folder: Path) -> Iterator[str]:
    """Yield what Spark calls the master; `standalone[workers,cores]` is started below `folder`."""
    if not master.startswith("standalone"):
        yield master
        return
    from tests.tools.standalone import standalone

    workers, cores = (int(part) for part in master.rstrip("]").partition("[")[2].split(","))
    with standalone(folder, workers, cores) as address:
        yield address


def our_processes() -> dict[int, str]:
    """Return the processes of this run, but for itself: "java" or "python" by process id."""
    mark, processes = f"{MARK}={os.environ[MARK]}".encode(), {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # one that has just ended
            if mark in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                name = os.path.basename(os.readlink(path / "exe"))
                processes[int(path.name)] = "java" if name.startswith("java") else "python"
    return processes


def used() -> dict[str, float]:
    """Return the processor time of this run's processes so far, in ms, by kind."""
    total = {"java": 0.0, "python": 0.0}
    for pid, kind in our_processes().items():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            total[kind] += (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
    return total


def memory(part: str = "Pss") -> float:
    """Return the memory of this run's Python processes in MB, what they share counted once: all of it, or "Pss_Anon",
    what they allocated, or "Pss_File", the pages of files that they have mapped.
    """
    kilobytes = 0
    for pid, kind in our_processes().items():
        if kind == "python":
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
                kilobytes += int(next(text for text in lines if text.startswith(f"{part}:")).split()[1])
    return kilobytes / 1024


def plan(df: Any, engine: str, work: str, placement: str, folder: Path) -> tuple[Any, str]:
    """Return the streaming DataFrame of the work, and its output mode."""
    if engine != "hybridstore":
        return native(df, work, 1, 1)
    import hybridstore as hs
    from benchmarks.suites.scale_out_probe import Probed
    from hybridstore import spark as hsp
    from hybridstore.spark.program import TopologyProgram

    program: Any
    if work == "count":
        from tests.tools.spark_programs import RunningCount

        program = RunningCount()
    else:
        stream = hs.stream(key="k", timestamp="ms").windowed_by(hs.SlidingWindows("10 seconds"))
        program = TopologyProgram(stream.aggregate(n=hs.Count(), total=hs.Sum("v")).complete())
    checkpoint = str(folder / "checkpoint")
    probed = Probed(program, str(folder / "notes"), checkpoint + "/hybridstore")
    options: dict[str, Any] = {"placement": placement} if placement else {}
    answers = hsp.apply_program(df, probed, name="bench", location=checkpoint, shards=SHARDS, **options)
    return answers.selectExpr("k", "window_end as ms", "n", "total") if work == "sliding" else answers, "append"


def run(folder: Path, master: str, engine: str, work: str, placement: str, warm: int) -> dict[str, Any]:
    """Run all batches of `folder`/in and tell what they took; in a process of its own."""
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    os.environ[MARK] = str(os.getpid())
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory(dir=folder) as scratch, address_of(master, Path(scratch)) as address:
        place = Path(scratch)
        (place / "notes").mkdir()
        builder = SparkSession.builder.master(address)
        for name, value in (settings_of(engine) | {"spark.sql.shuffle.partitions": str(SHARDS)}).items():
            builder = builder.config(name, value)
        builder = builder.config(f"spark.executorEnv.{MARK}", os.environ[MARK]).config("spark.local.dir", scratch)
        session = (hsp.configure(builder) if engine == "hybridstore" else builder).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        answers: list[list[str]] = []
        shards: list[list[dict[str, Any]]] = []
        marks: list[tuple[dict[str, float], dict[str, int]]] = []
        megabytes: list[float] = []

        def notes() -> list[dict[str, Any]]:
            paths = [path for path in (place / "notes").iterdir() if not path.suffix]
            alive = our_processes()
            read = [(int(path.name), json.loads(path.read_text(encoding="utf-8"))) for path in paths]
            return [note | {"alive": pid in alive} for pid, note in read]

        def asked() -> dict[str, int]:
            total: Counter[str] = Counter()
            for note in notes():
                total.update(note["asked"])
            return dict(total)

        def tell(batch: Any, number: int) -> None:
            if number == warm:
                marks.append((used(), asked()))
            row = [str(part) for part in batch.selectExpr(*ANSWER).first()]
            if row[0] == "0":  # a batch without data may follow, which moves Spark's watermark
                return
            answers.append(row)
            if engine == "hybridstore":
                shards.append(hsp.metrics(str(place / "checkpoint")))
            if number == batches - 1:
                marks.append((used(), asked()))
                megabytes.append(memory())

        batches = len(list((folder / "in").iterdir()))
        df = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        output, mode = plan(df, engine, work, placement, place)
        writer = output.writeStream.outputMode(mode).option("checkpointLocation", str(place / "checkpoint"))
        query = writer.foreachBatch(tell).trigger(availableNow=True).start()
        query.awaitTermination()
        times = [
            progress["durationMs"]["triggerExecution"] for progress in query.recentProgress if progress["numInputRows"]
        ]
        copies = sum(note["records"] for note in notes() if note["alive"])
        session.stop()
    (first, before), (last, after) = marks
    state = sum(sum(shard["records"].values()) for shard in shards[-1]) if shards else 0
    return {
        "master": master,
        "engine": engine,
        "placement": placement,
        "answers": answers,
        "shards": shards,
        "batches": batches - warm,
        "times": times[warm:],
        "used": {kind: last[kind] - first[kind] for kind in last},
        "asked": {name: after[name] - before.get(name, 0) for name in after},
        "copies": copies / state if state else 0.0,
        "memory": megabytes[0],
    }


def figures(outcome: dict[str, Any], rows: int) -> dict[str, Any]:
    """Return what a run says per shard and batch, and per row (µs of a processor)."""
    count = outcome["batches"]
    calls = [shard for batch in outcome["shards"][-count:] for shard in batch]
    total = rows * count
    replayed = sum(
        _rows_of_last(outcome["shards"][:number], shard["shard"], shard["replayed_segments"])
        for number, batch in enumerate(outcome["shards"])
        if number >= len(outcome["shards"]) - count
        for shard in batch
        if shard["load"] != "none"
    )

    def each(name: str) -> float:
        return sum(float(shard.get(name) or 0) for shard in calls)

    kinds = Counter(str(shard["load"]) for shard in calls)
    worked = max(1, sum(kinds.values()) - kinds["none"])
    return {
        "workers": workers_of(outcome["master"]),
        "hits": kinds["hit"] / worked,
        "kinds": dict(kinds),
        "segments": each("replayed_segments") / worked,
        "replayed rows": replayed / worked,
        "loading": each("load_cpu_ms") * 1000 / total,
        "processing": each("process_cpu_ms") * 1000 / total,
        "python": outcome["used"]["python"] * 1000 / total,
        "java": outcome["used"]["java"] * 1000 / total,
        "requests": sum(outcome["asked"].values()) / worked,
        "copies": outcome["copies"],
        "memory": outcome["memory"],
        "batch ms": sorted(outcome["times"])[len(outcome["times"]) // 2],
    }


def _rows_of_last(batches: list[list[dict[str, Any]]], shard: int, segments: int) -> int:
    """Return how many rows the last `segments` batches that had any for a shard brought it."""
    rows = [int(batch[shard]["rows"]) for batch in batches]
    return sum([count for count in rows if count][-segments:] if segments else [])


def measure(
    folder: Path,
    work: str,
    masters: Sequence[str],
    engines: Sequence[str],
    placements: Sequence[str],
    keys: int = 20_000,
    rows: int = 16_000,
    batches: int = 12,
    warm: int = 12,
    timeout: float = 600,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run every master with every engine, ours first and with every placement. Returns their figures, with "agrees",
    and sentences on those left out.
    """
    results: list[dict[str, Any]] = []
    left_out: list[str] = []
    expected: dict[bool, list[list[str]]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write_input(Path(scratch), keys, rows, warm + batches)
        for master in masters:
            # Spark's own operator keeps its partitions where they are: beside ours it is shown in local mode
            for engine in engines if master.startswith("local[") else engines[:1]:
                for placement in placements if engine == "hybridstore" else [""]:
                    command = [
                        sys.executable,
                        "-m",
                        "benchmarks.suites.scale_out",
                        "--one",
                        master,
                        "--folder",
                        scratch,
                    ]
                    command += ["--work", work, "--engines", engine, "--placements", placement, "--warm", str(warm)]
                    what = f"{master}, {engine}{', ' if placement else ''}{placement}"
                    try:
                        outcome = spark_process(command, what, timeout)
                    except (RuntimeError, TimeoutError) as error:
                        left_out.append(str(error))
                        continue
                    # hopping windows stand in for sliding ones: they are compared among themselves
                    stand_in = work == "sliding" and engine != "hybridstore"
                    answers = expected.setdefault(stand_in, outcome["answers"])
                    entry = {name: outcome[name] for name in ("master", "engine", "placement")}
                    entry |= figures(outcome, rows) | {"agrees": outcome["answers"] == answers, "stand-in": stand_in}
                    results.append(entry)
                    print(f"  {what}: {entry}", file=sys.stderr, flush=True)
    return results, left_out


def show(results: list[dict[str, Any]]) -> None:
    """Print a table."""
    print(
        "per shard and batch: hits, segments, rows replayed, requests; µs of a processor per row: loading, "
        "processing, all Python, JVM;"
    )
    print("copies of the state, MB of all Python processes, median ms of a batch")
    for entry in results:
        cost = " + ".join(f"{entry[name]:.2f}" for name in ("loading", "processing"))
        who = f"{entry['master']:<24} {entry['engine'] + ' ' + entry['placement']:<20}"
        loads = (
            f"{entry['hits']:>6.1%} {entry['segments']:>5.2f} {entry['replayed rows']:>7,.0f} {entry['requests']:>5.1f}"
        )
        times = f"{cost:>13}  {entry['python']:>6.2f} {entry['java']:>6.2f}"
        rest = f"x{entry['copies']:<5.2f} {entry['memory']:>6,.0f} {entry['batch ms']:>6,.0f}"
        print(f"  {who} {loads}  {times}  {rest}  {'' if entry['agrees'] else 'DIFFERS'}")


def main() -> int:
    """Run from the command line; exit code 1 when answers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--masters", default=";".join(MASTERS), help="separated by semicolons")
    parser.add_argument("--engines", default="hybridstore", help=f"some of {','.join(ENGINES)}")
    parser.add_argument("--placements", default="", help="of ours, separated by commas: auto, worker, holder")
    parser.add_argument("--work", default="sliding", choices=WORKS)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=16_000, help="rows per batch (at most 100,000)")
    parser.add_argument("--batches", type=int, default=12, help="batches that count")
    parser.add_argument("--warm", type=int, default=12, help="batches before them")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one run")
    for hidden in ("--one", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run(Path(asked.folder), asked.one, asked.engines, asked.work, asked.placements, asked.warm)))
        return 0
    results, left_out = measure(
        Path(tempfile.gettempdir()),
        asked.work,
        asked.masters.split(";"),
        asked.engines.split(","),
        asked.placements.split(","),
        asked.keys,
        asked.rows,
        asked.batches,
        asked.warm,
        asked.timeout,
    )
    show(results)
    for sentence in left_out:
        print(f"  left out: {sentence}")
    return 0 if all(entry["agrees"] for entry in results) and not left_out else 1


if __name__ == "__main__":
    sys.exit(main())
