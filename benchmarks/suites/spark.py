"""State in a streaming query: hybridstore beside what Spark offers, on the same data, answers compared.

    python -m benchmarks.suites.spark --work count --keys 10000,100000 --engines hybridstore,native,tws-row
    python -m benchmarks.suites.spark --work sliding --keys 100000 --engines hybridstore,tws-pandas --timeout 1500
    python -m benchmarks.suites.spark --work count --rows 1000 --batches 30          latency
    python -m benchmarks.suites.spark --work join --rows 20000 --engines hybridstore,native,native-v4
    python -m benchmarks.suites.spark --engines hybridstore,hybridstore-pandas,tws-pandas,hybridstore-apws,apws

Every engine runs in a process and a JVM of its own, in turn, `--rounds` times, with Unix sockets on and state commits
durable. The figure is the median of `triggerExecution` over the batches after the first ones (three, and of the pandas
doors, Spark's and ours, those of the first 30 s, in which Java compiles, and of ours those before the holders have done
two), into a sink that throws rows away; one more and smaller batch then has its rows compared with ours. Beside it
stands the processor time of a batch over all of the engine's processes, which other work on the machine disturbs less.
Engines that take seconds a batch get fewer batches, and one that takes longer than `--timeout` is left out by name.

count: rows and sum per key so far, a row out per key and batch. tumbling: the count per key and 10 s window. sliding:
count and sum over the last 10 s, a row out per row in (native: a hopping stand-in, 10 s by 2 s, not the same answers).
variables: a value, a list and a map for each key, in a class for transformWithState, on Spark's engine and on ours.
totals: as count, by `len` and `sum` of each frame (pandas doors only), without a copy of the frames.
join: rows with an even value with rows with an odd one of the same key, 1.0 partner a row, by the watermark;
native-v3 and native-v4: with Spark's other formats of a join's state.
hybridstore-tws, hybridstore-pandas, hybridstore-apws: the classes and functions of Spark's three doors, on ours.
bare: rows to Python and back, no state. hybridstore-worker and hybridstore-holder: ours, told where to keep its shards.
hybridstore-worker-limited, hybridstore-holder-limited: the same with `--memory-limit`.

Beside the times is the highest anonymous memory of a Python process that has rows or state (a worker or a holder), read
from outside; that of the engine bare, or of the limit, tells which part is state:

    python -m benchmarks.suites.spark --keys 300000 --batches 8 --memory-limit 12000000 \
        --engines hybridstore-worker,hybridstore-worker-limited,bare,native-changelog
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure.watched import anonymous_bytes
from benchmarks.suites.spark_queries import WINDOW_MS, plan

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINES = (
    "hybridstore",
    "hybridstore-worker",
    "hybridstore-holder",
    "hybridstore-worker-limited",
    "hybridstore-holder-limited",
    "hybridstore-tws",
    "hybridstore-pandas",
    "hybridstore-apws",
    "bare",
    "native",
    "native-changelog",
    "native-hdfs",
    "native-v3",
    "native-v4",
    "tws-row",
    "apws",
    "tws-pandas",
)
# engines that take seconds a batch run this many batches at most, up to 10,000 keys and above
SLOW = {
    "hybridstore-tws": (6, 6),
    "hybridstore-pandas": (30, 3),
    "hybridstore-apws": (30, 3),
    "tws-row": (5, 4),
    "apws": (8, 3),
    "tws-pandas": (8, 3),
}
# what is compared of a batch's rows: how many, and a sum of their hashes, which no order changes
ANSWER = ("count(*)", "sum(cast(xxhash64(*) as decimal(38)))")
WORKS: tuple[str, ...] = ("count", "tumbling", "sliding", "variables", "totals", "join")
# the engines that have a work, where not all have it; ours comes first
ENGINES_OF: dict[str, tuple[str, ...]] = {
    "variables": ("hybridstore-tws", "tws-row"),
    "totals": ("hybridstore-pandas", "tws-pandas", "hybridstore-apws", "apws"),
    "join": ("hybridstore", "native", "native-v3", "native-v4"),
}
# our doors, each with Spark's own, and how many times as long as ours a batch of Spark's is meant to take
DOORS = {"hybridstore-tws": ("tws-row", 6), "hybridstore-pandas": ("tws-pandas", 10), "hybridstore-apws": ("apws", 10)}
WARM = 3
# Java compiles for as long as that, on the processors that the batches need, whether it is in three batches or twenty
PANDAS_DOORS = ("hybridstore-pandas", "hybridstore-apws", "tws-pandas", "apws")
WARM_MS = 30_000
HELD = 2  # batches of holders, which take the shards from the workers while the query runs
LEAST = 4  # batches of the pandas doors that are timed all the same
# how long between two looks at the memory of the processes
_LOOK_SECONDS = 0.02
# how many looks are at the same processes, because it takes milliseconds to find them
_LOOKS = 25
SCHEMA = "k string, v long, ms long, t timestamp"


def write_input(folder: Path, keys: int, rows: int, batches: int) -> None:
    """One Parquet file per batch in `in`, and its first rows in `check`; batch b holds the ten seconds from b * 10
    s on, in no order.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    for batch in range(batches):
        names = [f"key{i}" for i in random.integers(0, keys, rows)]
        ms = 1_760_000_000_000 + batch * WINDOW_MS + random.permutation(WINDOW_MS * 10)[:rows] // 10 % WINDOW_MS
        table = pa.table(
            {
                "k": names,
                "v": random.integers(0, 100, rows),
                "ms": ms,
                "t": pa.array(ms).cast(pa.timestamp("ms")).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        for part, count in (("in", rows), ("check", max(1, rows // 20))):
            path = folder / part / f"{batch:04d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(table.slice(0, count), path)
            os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))


# --- one run, in a process of its own -------------------------------------------------------------------------------


def settings_of(engine: str) -> dict[str, str]:
    """Return the session's settings for an engine, all in favour of Spark's own: durable state, Unix sockets, Arrow."""
    store = "HDFSBackedStateStoreProvider" if engine == "native-hdfs" else "RocksDBStateStoreProvider"
    return {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.stateStore.providerClass": f"org.apache.spark.sql.execution.streaming.state.{store}",
        # the faster of the two for everything but the engine that shows the other
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": str(engine != "native").lower(),
        # of the rows that wait for a partner
        "spark.sql.streaming.join.stateFormatVersion": {"native-v3": "3", "native-v4": "4"}.get(engine, "2"),
    }


def run(
    folder: Path, engine: str, work: str, batches: int, turn: int, keys: int, rows: int, limit: int | None = None
) -> dict[str, Any]:
    """Run `batches` timed batches, and one more whose rows are told."""
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    sys.path.insert(0, str(ROOT))
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings_of(engine).items():
        builder = builder.config(name, value)
    session = (hsp.configure(builder) if engine.startswith(("hybridstore", "bare")) else builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    checkpoint = folder / f"checkpoint-{engine}-{batches}-{turn}"
    source = folder / f"in-{engine}-{batches}-{turn}"
    source.mkdir()
    answer: list[str] = []

    def tell(batch: Any, number: int) -> None:
        row = [str(part) for part in batch.selectExpr(*ANSWER).first()]
        if row[0] != "0":  # a batch without data may follow, which moves Spark's watermark
            answer[:] = row

    def step(files: Sequence[Path], timed: bool) -> list[Any]:
        for path in files:
            os.link(path, source / path.name)
        df = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        frame, mode = plan(df, engine, work, str(checkpoint), keys, rows, limit)
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
        writer = writer.format("noop") if timed else writer.foreachBatch(tell)
        query = writer.trigger(availableNow=True).start()
        with_holders: set[int] = set()
        while not query.awaitTermination(0.1):
            if not timed or marks or not (past := durations(query)):
                continue
            if engine in DOORS and all(shard["placement"] == "holder" for shard in hsp.metrics(checkpoint)):
                with_holders.add(len(past))
            if is_warm(engine, past, batches, len(with_holders)):
                warm.append(len(past))
                marks.append((query.lastProgress.batchId, processor_ms()))
        if timed and marks:
            marks.append((query.lastProgress.batchId, processor_ms()))
        return [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]

    def durations(query: Any) -> list[float]:
        return [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]

    marks: list[tuple[int, float]] = []
    warm: list[int] = []
    with PythonMemory() as memory:
        phases = step(sorted((folder / "in").iterdir())[:batches], True)
    shards = hsp.metrics(checkpoint) if engine.startswith("hybridstore") else []
    step(sorted((folder / "check").iterdir())[batches : batches + 1], False)
    session.stop()
    times = [phase["triggerExecution"] for phase in phases]
    # a query that ended before it was seen to be warm: its last batches
    warm.append(next(count for count in range(len(times) + 1) if is_warm(engine, times[:count], batches)))
    figures: dict[str, Any] = {
        "engine": engine,
        "all_ms": times,
        "timed": times[warm[0] :],
        "phases": phases,
        "shards": shards,
        "anonymous": memory.highest,
    }
    # A process that ended between the marks without a parent that waits for it took its time with it: no figure then.
    if len(marks) == 2 and marks[1][0] > marks[0][0] and (used := marks[1][1] - marks[0][1]) > 0:
        figures["processor_ms"] = used / (marks[1][0] - marks[0][0])
    return figures | {"answer": answer}


def is_warm(engine: str, past: Sequence[float], batches: int, of_holders: int = HELD) -> bool:
    """Whether an engine is warm after some of its batches (ms each), of which holders have done some (`of_holders`)."""
    if len(past) < (WARM if batches > 2 * WARM else batches // 2):
        return False
    if engine not in PANDAS_DOORS or len(past) >= batches - LEAST:
        return True
    return sum(past) >= WARM_MS and (engine not in DOORS or of_holders >= HELD)


def processor_ms() -> float:
    """Return the processor time that this session's processes (driver, JVM, workers) have used; 0 where the system
    does not tell.
    """
    session, ticks = os.getsid(0), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has just ended
            fields = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))  # its own and its children's that have ended
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


class PythonMemory:
    """A block whose thread reads, every few ms, the anonymous memory of this session's other Python processes."""

    def __init__(self) -> None:
        self.highest = 0  # of one process (bytes)
        self._looks = 0
        self._pids: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PythonMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Read the memory once."""
        if self._looks % _LOOKS == 0:
            self._pids = python_processes()
        self._looks += 1
        self.highest = max([self.highest, *map(anonymous_bytes, self._pids)])


def python_processes() -> list[int]:
    """Return the Python processes of this session but this one; none where the system does not tell."""
    session, pids = os.getsid(0), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has just ended
            pid = int(path.parent.name)
            name, _, fields = path.read_text(encoding="ascii", errors="replace").partition("(")[2].rpartition(")")
            if pid != os.getpid() and name.startswith("python") and int(fields.split()[3]) == session:
                pids.append(pid)
    return pids


def measure(
    folder: Path,
    engine: str,
    work: str,
    batches: int,
    turn: int,
    keys: int,
    rows: int,
    timeout: float,
    limit: int | None = None,
) -> dict[str, Any]:
    """`run` in a process of its own. Raises RuntimeError with its last words, or TimeoutError."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.suites.spark",
        "--one",
        engine,
        "--folder",
        str(folder),
        "--work",
        work,
    ]
    command += ["--batches", str(batches), "--turn", str(turn), "--keys", str(keys), "--rows", str(rows)]
    command += [] if limit is None else ["--memory-limit", str(limit)]
    return spark_process(command, engine, timeout)


def spark_process(command: list[str], engine: str, timeout: float) -> dict[str, Any]:
    """Run a command that ends with a JSON object on its last line, and return that.

    Raises RuntimeError with its last words, or TimeoutError.
    """
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a restart of an installed program compiles nothing
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own group: the JVM and the workers go with it
        process.communicate()
        raise TimeoutError(f"{engine}: not done after {timeout:g} s") from None
    if process.returncode:
        # below Spark's exceptions stands a plan
        lines = err.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{engine}: {next((line for line in lines if 'Exception: ' in line), lines[-1])}")
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def batches_of(engine: str, batches: int, keys: int, rows: int) -> int:
    """Return how many batches an engine is timed over."""
    return min(batches, SLOW[engine][keys > 10_000]) if engine in SLOW and rows >= 10_000 else batches


def compare(
    folder: Path,
    work: str,
    keys: int,
    rows: int,
    batches: int,
    engines: Sequence[str],
    rounds: int,
    timeout: float,
    limit: int | None = None,
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Run all engines in turn, `rounds` times.

    Returns their runs, each with "agrees" (None for a stand-in), and sentences on those left out. Every other round
    goes the other way round, so that neither of two engines is always the one that runs first.
    """
    ours = [engine for engine in engines if engine in ("hybridstore", "hybridstore-worker", "hybridstore-holder")]
    reference = engines[0] if work in ENGINES_OF else (ours or ["hybridstore"])[0]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        place = Path(scratch)
        write_input(place, keys, rows, batches + 1)
        # our answers after as many batches as the others have run
        expected: dict[int, list[str]] = {}
        answers: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        left_out: list[str] = []
        for turn in range(rounds):
            for engine in engines if turn % 2 == 0 else reversed(engines):
                if turn and not answers[engine]:
                    continue
                count = batches_of(engine, batches, keys, rows)
                try:
                    answer = measure(place, engine, work, count, turn, keys, rows, timeout, limit)
                except (RuntimeError, TimeoutError) as error:
                    left_out.append(f"{work}, {keys:,} keys: {error}")
                    continue
                if engine == reference:
                    expected.setdefault(count, answer["answer"])
                elif engine != "bare" and count not in expected:
                    expected[count] = measure(place, reference, work, count, rounds, keys, rows, timeout)["answer"]
                stand_in = engine == "bare" or (work == "sliding" and engine.startswith("native"))
                answer["agrees"] = None if stand_in else answer["answer"] == expected[count]
                answers[engine].append(answer)
                print(f"  {work}, {keys:,} keys, {engine}: {answer['timed']}", file=sys.stderr, flush=True)
    return {engine: runs for engine, runs in answers.items() if runs}, left_out


def milliseconds(runs: list[dict[str, Any]]) -> list[float]:
    """Return the timed batches of all rounds."""
    return [float(ms) for run in runs for ms in run["timed"]]


def processor(runs: list[dict[str, Any]]) -> float | None:
    """Return the median processor time of a batch in ms, over all processes of the engine; None where it is not
    known.
    """
    samples = [float(run["processor_ms"]) for run in runs if run.get("processor_ms")]
    return statistics.median(samples) if samples else None


def show_runs(engines: dict[str, list[dict[str, Any]]], work: str, keys: int, rows: int) -> int:
    """Print a table; returns how many engines gave other answers than ours."""
    print(f"\n{work}, {keys:,} keys, {rows:,} rows a batch, median ms of a batch")
    first = next(iter(engines.values()))
    ours, used = statistics.median(milliseconds(first)), processor(first)
    wrong = 0
    for engine, runs in engines.items():
        times = milliseconds(runs)
        middle = statistics.median(times)
        agrees = [run["agrees"] for run in runs]
        wrong += False in agrees
        note = "DIFFERS" if False in agrees else "agrees" if True in agrees else "stand-in"
        bound = target(work, keys, rows, engine)
        judged = "" if bound is None else f"target x{bound:g}: {'reached' if middle / ours >= bound else 'MISSED'}"
        spread = f"{min(times):,.0f} - {max(times):,.0f}, {len(times)} batches"
        spread += f"; a process {max(run.get('anonymous', 0) for run in runs) / 1e6:,.0f} MB"
        mine = processor(runs)
        if used and mine:
            spread += f"; processor {mine:,.0f} ms, x{mine / used:.2f}"
        print(f"  {engine:<18} {middle:>8,.0f} ms  x{middle / ours:<6.2f} {note:<9} {judged:<24} {spread}")
    for door, (theirs, bound) in DOORS.items():
        if door in engines and theirs in engines:
            show_door(door, engines[door], theirs, engines[theirs], bound)
    return wrong


def show_door(door: str, ours: list[dict[str, Any]], name: str, theirs: list[dict[str, Any]], bound: float) -> None:
    """Print how many times as long as ours Spark's own operator takes for the same class or function."""
    ratio = statistics.median(milliseconds(theirs)) / statistics.median(milliseconds(ours))
    mine, used = processor(theirs), processor(ours)
    spent = f", processor x{mine / used:.2f}" if mine and used else ""
    print(
        f"  {name} beside {door}: x{ratio:.2f}{spent}, target x{bound:g}: {'reached' if ratio >= bound else 'MISSED'}"
    )


# how many times as long as ours a batch of each engine takes, at 10,000 and at 100,000 keys
TARGETS = {
    "count": {
        "tws-pandas": (20, 50),
        "tws-row": (4.5, 10),
        "apws": (12, 40),
        "native": (1, 1),
        "native-changelog": (1, 1),
    },
    "sliding": {
        "tws-pandas": (15, 50),
        "tws-row": (4, 10),
        "apws": (9, 35),
        "native": (1.8, 4),
        "native-changelog": (1.8, 4),
    },
}


def target(work: str, keys: int, rows: int, engine: str) -> float | None:
    """Return the ratio that the engine's batch is meant to take, None where there is no target."""
    if work == "join":
        return 1 / 1.5
    if rows == 1000:
        return 1.0 if engine.startswith("native") and work == "count" else None
    bounds = TARGETS.get(work, {}).get(engine)
    return None if bounds is None or keys not in (10_000, 100_000) or rows != 100_000 else bounds[keys == 100_000]


def main() -> int:
    """Run from the command line; exit code 1 when an engine's answers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", default="10000", help="sizes, separated by commas")
    parser.add_argument("--rows", type=int, default=100_000, help="rows per batch (at most 100,000)")
    parser.add_argument("--batches", type=int, default=10, help="timed batches, the first ones not counted")
    parser.add_argument("--rounds", type=int, default=1, help="how often each engine runs, in turn")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one engine")
    parser.add_argument("--work", default="count", help=f"some of {','.join(WORKS)}")
    parser.add_argument("--engines", default="hybridstore,native,native-changelog,native-hdfs,tws-row")
    parser.add_argument("--memory-limit", type=int, help="bytes of the shards of a process, of the limited engines")
    parser.add_argument("--raw", type=Path, help="append what was measured to this file, one JSON object a line")
    for hidden in ("--one", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        sizes = (asked.batches, asked.turn, int(asked.keys), asked.rows, asked.memory_limit)
        print(json.dumps(run(Path(asked.folder), asked.one, asked.work, *sizes)))
        return 0
    engines, works = asked.engines.split(","), asked.work.split(",")
    if asked.memory_limit is None and any(engine.endswith("-limited") for engine in engines):
        parser.error("--memory-limit: expected the bytes of the limited engines")
    asked_for: list[tuple[str, tuple[str, ...]]] = [(work, WORKS) for work in works]
    asked_for += [(engine, ENGINES_OF.get(work, ENGINES)) for work in works for engine in engines]
    for value, known in asked_for:
        if value not in known:
            parser.error(f"{value!r}: expected some of {', '.join(known)}")
    wrong = 0
    for work in works:
        for keys in map(int, asked.keys.split(",")):
            folder, bounds = Path(tempfile.gettempdir()), (asked.rounds, asked.timeout, asked.memory_limit)
            runs, left_out = compare(folder, work, keys, asked.rows, asked.batches, engines, *bounds)
            wrong += show_runs(runs, work, keys, asked.rows)
            for sentence in left_out:
                print(f"  left out: {sentence}")
            for shard in runs.get("hybridstore", [{}])[-1].get("shards", []):
                shown = ("load", "load_ms", "read_ms", "process_ms", "commit_ms", "segment_bytes", "rows_out")
                print("  last batch, shard", shard["shard"], {name: shard.get(name) for name in shown})
            if asked.raw:
                with asked.raw.open("a", encoding="utf-8") as file:
                    for engine, several in runs.items():
                        fields = {"work": work, "keys": keys, "rows": asked.rows, "engine": engine, "runs": several}
                        file.write(json.dumps(fields) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
