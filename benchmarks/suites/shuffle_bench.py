"""ShuffleBench with kills: a constant load, a process killed by signal 9, and the seconds until latency is back.

    python -m benchmarks shuffle                                            all engines, 3 repeats, killed at minute 2
    python -m benchmarks shuffle --minute 0.2 --after 0.2 --runs 1 --engines plain
    HYBRIDSTORE_FLINK=FLINK/bin/python python -m benchmarks shuffle --engines flink --keep

The workload is that of Dynatrace (ICPE 2024, defaults): records of 1,024 bytes, 1,000 rules of which one record in five
meets one, a counter and 32 bytes of state for each rule, an output for every tenth record of a rule. The method is that
of DEBS 2024: first what an engine sustains, then a load of `--load` of it, whose records come by a clock that no kill
stops; the latency of an output is from the moment of its record to the moment at which the output is in the sink. What
an engine sustains is measured before its first kill: a second backlog of `--sustained` records at once, until its last
output is in the sink (plain: with the start of its process).

Latency is looked at in windows: a tenth of a second for the plain engine, and a second for those that read files, which
come each half a second. A window is late if its 95th percentile is more than 1.1 times that of all outputs before the
kill, and more than `--floor` ms above it. Latency is back at the last late output before CALM seconds without a late
window. Later windows that are late are no part of the catching up: their share is told beside that of the time before
the kill, because a pause of the machine, or of a checkpoint, comes with a kill and without.

    plain                 the plain engine in a process; killed: that process
    hybridstore, native   Spark on local-cluster[2,1,1024], by `apply` and by Spark's own aggregation (RocksDB with
                          changelog): a file of records each half a second, an output of a rule for each batch with its
                          records; killed: an executor (worker), a process that holds shards (holder; ours alone), the
                          driver with all of its processes
    flink                 Flink's SQL (shuffle_flink.py) in the environment of HYBRIDSTORE_FLINK: two slots of one
                          process, the same files; killed: that process, and started from its newest checkpoint

The sinks of all have each output once: plain by its commits, Spark by the number of a batch, Flink by files that become
visible with a checkpoint (each half a second). The records that meet no rule are dropped where records are made, but in
the plain engine. Files stay until the end of a run: 220 bytes for each record of the load.

At the end every count is compared with the records: lost and double outputs are counted, and expected to be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count as numbers
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import hybridstore as hs
from benchmarks.measure.result import Line, Result, Target
from benchmarks.measure.timing import stopwatch

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = 1000
RECORD_BYTES: Final = 1024
STATE_BYTES: Final = 32
SELECTED: Final = 5
EACH: Final = 10
BACK: Final = 1.1
CALM: Final = 5.0
WINDOW: Final = {"plain": 0.1, "hybridstore": 1.0, "native": 1.0, "flink": 1.0}
COMMIT_ROWS: Final = 200
_POOL: Final = [random.Random(n).randbytes(RECORD_BYTES) for n in range(64)]
_TEXTS: Final = [data.hex()[:RECORD_BYTES] for data in _POOL]
_FILE_SECONDS: Final = 0.5
# Files of a backlog; seconds without what is waited for that are a fault.
_BACKLOG: Final = 20
_PATIENCE: Final = 600
NAMES: Final = {"plain": "plain", "hybridstore": "Spark with ours", "native": "Spark's own", "flink": "Flink"}
VICTIMS: Final = {
    "plain": ("process",),
    "hybridstore": ("worker", "holder", "driver"),
    "native": ("worker", "driver"),
    "flink": ("process",),
}


class FailedError(Exception):
    """A measurement that came to no end, with the last words of what was measured."""


def rule_of(number: int) -> int | None:
    """Return the rule that a record meets, or None, from the record's hash."""
    mixed = number * 2_654_435_761 % 4_294_967_296
    return None if mixed // 65_536 % SELECTED else mixed % RULES


def totals_of(records: int) -> Counter[int]:
    """Return how many of the first records meet each rule."""
    return Counter(rule for number in range(records) if (rule := rule_of(number)) is not None)


def wrong_outputs(outputs: Counter[tuple[int, int]], totals: Counter[int]) -> tuple[int, int]:
    """Return how many outputs are lost and double: a rule's tenth, twentieth ... record has one output each."""
    expected = {(rule, n) for rule, total in totals.items() for n in range(EACH, total + 1, EACH)}
    double = sum(times - 1 for times in outputs.values()) + len(outputs.keys() - expected)
    return len(expected - outputs.keys()), double


# --- the plain engine -------------------------------------------------------------------------------------------------


def consume(row: dict[str, Any], stores: Any) -> Iterator[dict[str, Any]]:
    """A consumer of a rule: a counter and some bytes, and an output for every tenth record."""
    n = (stores["consumers"].get(row["rule"]) or (0,))[0] + 1
    stores["consumers"].put(row["rule"], (n, row["data"][:STATE_BYTES]))
    if n % EACH == 0:
        yield {"rule": row["rule"], "n": n, "i": row["i"]}


def plain(folder: str, rate: float, begun: float, most: int) -> None:
    """Run behind the committed position; `begun` is the moment of record 0, and rate 0 is as fast as it goes. An output
    is in the sink when its line is in the file.
    """
    state, sink = Path(folder, "state"), Path(folder, "outputs.jsonl")
    moments = [time.time()]
    before = [json.loads(text) for text in sink.read_text().splitlines() if text.endswith("]")] if sink.exists() else []
    complete = before[-1][0] if before else 0

    def records(behind: int | None) -> Iterator[dict[str, Any]]:
        Path(folder, "moments.json").write_text(json.dumps([*moments, time.time()]))
        for number in numbers(0 if behind is None else behind + 1):
            if most and number >= most:
                return
            if rate and number % 20 == 0 and (ahead := begun + number / rate - time.time()) > 0:
                time.sleep(ahead)
            if (rule := rule_of(number)) is not None:
                yield {"rule": rule, "i": number, "data": _POOL[number % len(_POOL)]}

    stores = [hs.key_value_store("consumers")]
    program = hs.stream(key="rule", timestamp="i").process(consume, stores=stores)
    options: dict[str, Any] = {"position": "i", "commit_rows": COMMIT_ROWS, "commit_seconds": 0.02}
    commit, pending = 0, list[list[int]]()
    with sink.open("a") as file:

        def write() -> None:
            if pending and commit > complete:
                file.write(json.dumps([commit, time.time(), pending]) + "\n")
                file.flush()

        for row in program.run(records, state, replay_last=True, **options):
            if row.commit != commit:
                write()
                commit, pending = row.commit, []
            pending.append([row["rule"], row["n"], row["i"]])
        write()


class Outcome(NamedTuple):
    """What a kill cost: p50, p95, p99 of latency before it (ms), the peak behind it, seconds until an output, and until
    the p95 is back (infinite: not before the end); the shares of late windows before the kill, and from that moment on;
    outputs that are lost and double."""

    engine: str
    victim: str
    rate: float
    p50: float
    p95: float
    p99: float
    peak: float
    first: float
    back: float
    late_before: float
    late_again: float
    lost: int
    double: int


def start(*arguments: Any, log: Path) -> subprocess.Popen[bytes]:
    """Start a part of this program."""
    return _started([sys.executable, "-m", "benchmarks.suites.shuffle_bench", *map(str, arguments)], log)


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own."""
    # a restart of an installed program compiles nothing
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge(
    engine: str, victim: str, rate: float, points: list[tuple[float, float]], killed: float, floor: float
) -> Outcome:
    """Return what a kill cost, from (moment, latency in seconds) of every output."""
    before = sorted(latency for moment, latency in points if moment < killed)
    if not before:
        raise FailedError(f"{engine}, {victim}: no output before the kill (is the load more than it sustains?)")
    p50, p95, p99 = (before[min(len(before) - 1, int(len(before) * share))] for share in (0.5, 0.95, 0.99))
    allowed = max(BACK * p95, p95 + floor)
    windows: dict[int, list[tuple[float, float]]] = {}
    for moment, latency in points:
        windows.setdefault(int((moment - killed) // WINDOW[engine]), []).append((moment - killed, latency))
    late = {n for n, part in windows.items() if _p95([latency for _, latency in part]) > allowed}
    behind = [point for n in windows if n >= 0 for point in windows[n]]
    first = min((moment for moment, _ in behind), default=inf)
    peak = max((latency for _, latency in behind), default=inf)
    last, calm = max(windows), round(CALM / WINDOW[engine])
    # a window without an output is as the next one that has some
    high = [n for n in range(last + 1) if next(later for later in range(n, last + 1) if later in windows) in late]
    # what the kill has made late ends where no late window follows for a while, also not the end of the measurement
    ends = [n for n, following in pairwise([*high, last]) if following - n > calm] if high else [-1]
    back, through = inf, last
    if behind and ends:
        through = ends[0]
        back = max([first, *(moment for moment, latency in windows.get(through, ()) if latency > allowed)])
    parts = [n for n in windows if n < 0], [n for n in windows if n > through]
    was, again = (len(late.intersection(part)) / max(1, len(part)) for part in parts)
    return Outcome(engine, victim, rate, 1e3 * p50, 1e3 * p95, 1e3 * p99, 1e3 * peak, first, back, was, again, 0, 0)


def _p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def kill_plain(folder: Path, rate: float, asked: argparse.Namespace) -> Outcome:
    """Run at a rate, kill the process, start it again at once, and compare every output."""
    seconds, after = 60 * asked.minute, 60 * asked.after
    begun = time.time() + 1
    process = start("plain", folder, rate, begun, 0, log=folder / "log")
    time.sleep(max(0, begun + seconds - time.time()))
    killed = time.time()
    end(process)
    moments = folder / "moments.json"
    moments.unlink(missing_ok=True)  # those of the killed process
    process = start("plain", folder, rate, begun, 0, log=folder / "log")
    time.sleep(after)
    end(process)
    if not moments.exists():
        raise FailedError(f"WRONG: no record for {after:g} s behind the kill: {(folder / 'log').read_text()[-1500:]}")
    imported, opened = (moment - killed for moment in json.loads(moments.read_text()))
    print(f"behind the kill: a process with its imports after {imported:.2f} s, its first record after {opened:.2f} s")
    # what is missing at the end of the load comes from one more run, which ends; a record comes at most 19 too soon
    most = int(rate * (time.time() - begun)) + 20
    process = start("plain", folder, 0, begun, most, log=folder / "log")
    process.wait()
    lines = [json.loads(text) for text in (folder / "outputs.jsonl").read_text().splitlines() if text.endswith("]")]
    outputs = Counter((rule, n) for _, _, part in lines for rule, n, _ in part)
    warm, ends = begun + min(5, seconds / 4), killed + after
    points = [(at, at - begun - i / rate) for _, at, part in lines for _, _, i in part if warm <= at < ends]
    outcome = judge("plain", "process", rate, points, killed, asked.floor / 1e3)
    lost, double = wrong_outputs(outputs, totals_of(most))
    return outcome._replace(lost=lost, double=double)


# --- engines that read files ------------------------------------------------------------------------------------------


def spark(folder: str, engine: str, placement: Any) -> None:
    """Run the query over the files of records until the process is killed."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from benchmarks.suites.spark import settings_of
    from hybridstore import spark as hsp

    place = Path(folder)
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.local.dir", folder)
    settings = settings_of("hybridstore" if engine == "hybridstore" else "native-changelog")
    for name, value in (settings | {"spark.sql.shuffle.partitions": "2"}).items():
        builder = builder.config(name, value)
    session = (hsp.configure(builder) if engine == "hybridstore" else builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    records = session.readStream.schema("rule long, i long, data string").json(str(place / "in"))
    rows = records.selectExpr("rule", "i", f"substring(data, 1, {STATE_BYTES}) head")
    checkpoint = str(place / "checkpoint")
    if engine == "hybridstore":
        counts = hs.stream(key="rule", timestamp="i").aggregate(
            emit="commit", n=hs.Count(), i=hs.Max("i"), head=hs.Last("head")
        )
        answers = counts.apply(rows, "consumers", location=checkpoint, shards=2, placement=placement)
    else:
        answers = rows.groupBy("rule").agg(
            f.count("*").alias("n"), f.max("i").alias("i"), f.max_by("head", "i").alias("head")
        )

    def sink(batch: Any, number: int) -> None:
        if (place / "out" / str(number)).exists():
            return  # a batch that is repeated: its outputs are in the sink
        part = [[row["rule"], row["n"], row["i"]] for row in batch.collect()]
        temporary = place / "out" / f".{number}"
        temporary.write_text(json.dumps([number, time.time(), part]))
        temporary.rename(place / "out" / str(number))

    writer = answers.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).outputMode("update")
    writer.start().awaitTermination()


def victims_of(process: subprocess.Popen[bytes], victim: str) -> list[int]:
    """Return the processes of a query that can be killed as a worker (an executor) or a holder of shards."""
    chosen = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes().decode(errors="replace")
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == process.pid or int(fields[3]) == process.pid:
                part = "CoarseGrainedExecutorBackend" if victim == "worker" else "hybridstore.spark.holder"
                if part in command:
                    chosen.append(int(path.name))
    return sorted(chosen)


class Engine:
    """A query of an engine over files of records, in processes that can be killed and started again."""

    def __init__(self, folder: Path, name: str, victim: str) -> None:
        self.folder, self.name = folder, name
        self.placement = "holder" if victim == "holder" else "worker"
        self.files = self.records = 0
        self._read: dict[str, tuple[float, list[list[int]]]] = {}
        for part in ("in", "out"):
            (folder / part).mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start the query, behind what it has done."""
        log = self.folder / "log"
        if self.name != "flink":
            self.process = start("spark", self.folder, self.name, self.placement, log=log)
            return
        from benchmarks.nexmark.flink_peer import checkpoints_of
        from benchmarks.nexmark.oracles import flink_python

        os.environ.setdefault("JAVA_TOOL_OPTIONS", "-Xmx1g")
        command = [str(flink_python()), "-m", "benchmarks.suites.shuffle_flink", str(self.folder)]
        self.process = _started([*command, *map(str, checkpoints_of(self.folder)[-1:])], log)

    def write(self, count: int) -> Path:
        """Write the next records, and return their file, which the engine sees once it is renamed by `show`."""
        numbers = range(self.records, self.records + count)
        part = [(rule, i) for i in numbers if (rule := rule_of(i)) is not None]
        path = self.folder / f".{self.files:06}.json"
        path.write_text("".join(f'{{"rule":{rule},"i":{i},"data":"{_TEXTS[i % 64]}"}}\n' for rule, i in part))
        self.files, self.records = self.files + 1, self.records + count
        return path

    def show(self, path: Path) -> None:
        """Let the engine see a file."""
        path.rename(self.folder / "in" / path.name[1:])

    def outputs(self) -> list[tuple[float, list[list[int]]]]:
        """Return what is in the sink so far: moments, and the outputs [rule, n, i] that came then, in their order."""
        for path in (self.folder / "out").glob("[!.]*"):
            if path.name in self._read:
                continue
            text = path.read_text()
            if self.name == "flink":
                rows = [list(map(int, line.split(",")[:3])) for line in text.splitlines()]
                # the moment of the last rename, with which the file became visible
                self._read[path.name] = path.stat().st_ctime, rows
            else:
                _, at, rows = json.loads(text)
                self._read[path.name] = at, rows
        return sorted(self._read.values())

    def wrong(self) -> tuple[int, int]:
        """Return how many outputs are lost and double so far."""
        totals, outputs = totals_of(self.records), self.outputs()
        if self.name == "flink":
            return wrong_outputs(Counter((rule, n) for _, rows in outputs for rule, n, _ in rows), totals)
        last = {rule: n for _, rows in outputs for rule, n, _ in rows}
        lost = sum(max(0, total - last.get(rule, 0)) for rule, total in totals.items())
        return lost, sum(max(0, n - totals[rule]) for rule, n in last.items())

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for something. Raises FailedError with the query's last words if it ends before, and TimeoutError with
        them if it takes very long.
        """
        begun = time.monotonic()
        while not until():
            if (ended := self.process.poll() is not None) or time.monotonic() > begun + _PATIENCE:
                last = f"{self.name}: {(self.folder / 'log').read_text()[-1500:]}"
                raise FailedError(last) if ended else TimeoutError(last)
            time.sleep(0.2)

    def sustained(self, most: int) -> float:
        """Return the records a second of a backlog of so many, behind one that warms the engine."""
        for _ in range(2):
            backlog = [self.write(most // _BACKLOG) for _ in range(_BACKLOG)]
            begun = time.time()
            for path in backlog:
                self.show(path)
            self.wait(lambda: self.wrong() == (0, 0))
        return _BACKLOG * (most // _BACKLOG) / (self.outputs()[-1][0] - begun)


def sustained_by(folder: Path, engine: str, most: int) -> float:
    """Return the records a second that an engine takes, as fast as it goes."""
    if engine != "plain":
        query = Engine(folder, engine, "worker")
        try:
            return query.sustained(most)
        finally:
            end(query.process)
    begun = time.perf_counter()
    process = start("plain", folder, 0, 0, most, log=folder / "log")
    if process.wait():
        raise FailedError((folder / "log").read_text()[-1500:])
    return most / (time.perf_counter() - begun)


def kill_files(folder: Path, engine: str, victim: str, rate: float, asked: argparse.Namespace) -> Outcome:
    """Write files of records at a rate, kill a process of the query, and compare the outputs."""
    seconds, after = 60 * asked.minute, 60 * asked.after
    size, stop = max(1, round(rate * _FILE_SECONDS)), threading.Event()
    rate = size / _FILE_SECONDS
    query = Engine(folder, engine, victim)
    try:
        # the load begins when the engine runs: nothing gathers while it starts
        query.show(query.write(max(size, EACH * SELECTED * RULES)))
        query.wait(lambda: query.wrong() == (0, 0))
        before, files, begun = query.records, query.files, time.time()

        def produce() -> None:
            while not stop.wait(max(0, begun + (query.files - files + 1) * _FILE_SECONDS - time.time())):
                query.show(query.write(size))

        producer = threading.Thread(target=produce)
        producer.start()
        # the first batches are those that Java compiles
        warm = begun + max(10, seconds / 4)
        time.sleep(warm + seconds - time.time())
        killed = time.time()
        if victim in ("driver", "process"):
            end(query.process)
            query.start()
        else:
            chosen = victims_of(query.process, victim)
            if not chosen:
                raise FailedError(f"{engine}: no {victim} to kill")
            os.kill(chosen[0], signal.SIGKILL)
        time.sleep(after)
        stop.set()
        producer.join()
        with suppress(TimeoutError):  # outputs that are lost, which are told below
            query.wait(lambda: query.wrong() == (0, 0))
    finally:
        stop.set()
        end(query.process)
    points = [
        (at, at - begun - (i - before) / rate)
        for at, rows in query.outputs()
        for _, _, i in rows
        if warm <= at < killed + after
    ]
    outcome = judge(engine, victim, rate, points, killed, asked.floor / 1e3)
    lost, double = query.wrong()
    return outcome._replace(lost=lost, double=double)


# --- the suite --------------------------------------------------------------------------------------------------------


def lines_of(outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the figures of the repeats of a kill: medians, and how many outputs are lost and double in all of them."""
    engine, victim = outcomes[0][:2]
    ours = engine in ("plain", "hybridstore")

    def figure(what: str, name: str, unit: str, target: Target | None = None, scale: float = 1) -> Line:
        values = [scale * getattr(outcome, name) for outcome in outcomes]
        value = float(sum(values) if unit == "outputs" else statistics.median(values))
        subject = f"{NAMES[engine]}, {victim} killed"
        return Line(f"{subject}: {what}", value, min(values), max(values), unit, target=target)

    none = Target(0, "value") if ours else None
    return [
        figure("load", "rate", "records/s"),
        *(figure(name, name, "ms") for name in ("p50", "p95", "p99")),
        figure("peak behind the kill", "peak", "ms"),
        figure("first output", "first", "s"),
        figure("p95 back", "back", "s", Target(1, "value") if engine == "plain" else None),
        figure("late before", "late_before", "%", scale=100),
        figure("late behind", "late_again", "%", scale=100),
        figure("lost", "lost", "outputs", none),
        figure("double", "double", "outputs", none),
    ]


def measure(
    folder: Path,
    engine: str,
    victim: str,
    *,
    minute: float = 2,
    after: float = 2,
    runs: int = 3,
    load: float = 0.5,
    rate: float = 0,
    floor: float = 20,
    sustained: int = 1_000_000,
) -> Result:
    """Measure a kill: `runs` times `minute` minutes of load before it and `after` behind it. The load is `rate` records
    a second, or, with 0, the share `load` of what the engine sustains (measured with `sustained` records). Windows
    within `floor` ms of the p95 are not late. A repeat that fails has a note instead of figures; no repeat that ends is
    a RuntimeError.
    """
    settings = {"work": f"{engine}, {victim}", "repeats": 0, "minutes before": minute, "minutes behind": after}
    result = Result("shuffle bench", settings)
    asked = argparse.Namespace(minute=minute, after=after, floor=floor)
    outcomes: list[Outcome] = []
    with stopwatch() as clock:
        try:
            if not rate:
                with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
                    most = sustained_by(Path(scratch), engine, sustained)
                rate = load * most
                print(f"  {engine} sustains {most:,.0f} records/s", file=sys.stderr, flush=True)
                settings["sustained"] = f"{most:,.0f} records/s"
            for number in range(runs):
                with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
                    try:
                        if engine == "plain":
                            outcomes.append(kill_plain(Path(scratch), rate, asked))
                        else:
                            outcomes.append(kill_files(Path(scratch), engine, victim, rate, asked))
                        print(f"  {outcomes[-1]}", file=sys.stderr, flush=True)
                    except FailedError as error:
                        result.notes.append(f"ShuffleBench, {engine}, {victim}, repeat {number + 1} failed: {error}")
                        print(f"  {result.notes[-1]}", file=sys.stderr, flush=True)
        except FailedError as error:
            raise RuntimeError(f"ShuffleBench, {engine}: {error}") from None
    if not outcomes:
        raise RuntimeError("; ".join(result.notes))
    settings["repeats"] = len(outcomes)
    result.lines, result.seconds = lines_of(outcomes), clock.seconds
    return result


def main() -> int:
    """Run a part of a measurement in this process: "plain FOLDER RATE BEGUN MOST", "spark FOLDER ENGINE PLACEMENT"."""
    what, folder, *more = sys.argv[1:]
    if what == "plain":
        plain(folder, float(more[0]), float(more[1]), int(more[2]))
    else:
        spark(folder, *more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
