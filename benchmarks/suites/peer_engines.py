"""Peer engines: our plain engine beside Bytewax, Pathway and DuckDB, on the same file, at the same durability.

    events.jsonl ── count and sum per key and window (peer_programs.py, a process for each run) ── results.jsonl

    measure    every engine from the first event to the last result: processor, clock, bytes written, memory
    killed     kill -9 when 60 % of the file are read, a new start, and the time to the first new result and to all
               (Pathway takes a file at once: it is killed at 60 % of the processor time of a whole run)

Events come in order of time. All results are compared with sums that a dict makes here; after a kill a result may be
there more than once, which is counted, but none may be missing or differ. An engine that is not installed is left out,
and the result says so.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks.measure.result import Line, Result, Target, line
from benchmarks.measure.timing import Spread, check, interleaved, stopwatch
from benchmarks.measure.workload import START_MS
from benchmarks.suites.peer_programs import CHUNK, HOP_MS, SIZE_MS, Job

ROOT: Final = Path(__file__).resolve().parent.parent.parent
KILLED_AT: Final = 0.6
_FEW: Final = 1000
OFTEN: Final = f", a commit each {_FEW:,} events"
_PACKAGES: Final = ("bytewax", "pathway", "duckdb")
# How far these have read a file cannot be seen.
_AT_ONCE: Final = ("pathway",)
# What each is compared with: ours that reads the file in the same way, in Python or in native code.
_OURS: Final = {"bytewax": "hybridstore", "pathway": "hybridstore-arrow", "duckdb": "hybridstore-arrow"}
NAMES: Final = {
    "reading": "reading alone, json.loads",
    "reading-arrow": "reading alone, pyarrow",
    "hybridstore": "hybridstore, dicts",
    "hybridstore-arrow": "hybridstore, Arrow",
    "bytewax": "Bytewax",
    "pathway": "Pathway",
    "duckdb": "DuckDB",
}
ENGINES: Final = tuple(name for name in NAMES if not name.startswith("reading"))
QUIX: Final = "Quix Streams beside our plain engine: it reads from and recovers by a Kafka broker, which is not here"

Window = tuple[str, int]  # key, start (ms)
Sums = tuple[int, int]  # count, sum


class Case(NamedTuple):
    """An engine and how often it commits: as near to each second as it can, or each 1,000 events."""

    engine: str
    often: bool = False

    @property
    def name(self) -> str:
        """What the case is called."""
        return NAMES[self.engine] + (OFTEN if self.often else "")

    def job(self, work: str, events: Path, folder: Path) -> Job:
        """Return what its program is to do."""
        return Job(self.engine, work, str(events), str(folder), _FEW if self.often else CHUNK, self.often)


# Pathway has its interval of snapshots only, and no commit by count.
CASES: Final = (*map(Case, NAMES), *(Case(engine, True) for engine in ENGINES if engine != "pathway"))


def missing(engine: str) -> str | None:
    """Return why an engine cannot be measured here, or None."""
    if engine not in _PACKAGES or find_spec(engine) is not None:
        return None
    return f"{NAMES[engine]} beside our plain engine: {engine} is not installed (benchmarks/README.md, peer_engines.py)"


def write_events(path: Path, count: int, keys: int, per_second: int, seed: int = 1) -> None:
    """Write events in order of time, `per_second` of them to a second of event time. O(count)."""
    dice = random.Random(seed)
    with path.open("w", encoding="ascii") as file:
        for number in range(count):
            event = {"k": f"key-{dice.randrange(keys):05}", "t": START_MS + number * 1000 // per_second}
            file.write(json.dumps(event | {"v": dice.randrange(100)}) + "\n")


def sums_of(path: Path, work: str) -> dict[Window, Sums]:
    """Return the count and the sum of each key and window, by a dict. O(events x windows of each)."""
    hop = HOP_MS[work]
    sums: dict[Window, Sums] = {}
    with path.open("rb") as file:
        for event in map(json.loads, file):
            newest = event["t"] // hop * hop
            for start in range(newest, newest - SIZE_MS, -hop):
                n, total = sums.get((event["k"], start), (0, 0))
                sums[event["k"], start] = n + 1, total + event["v"]
    return sums


def changes_of(lines: Iterable[bytes]) -> Iterator[tuple[tuple[Window, Sums], int]]:
    """Yield (result, 1) for each line of results, or (result, -1) where Pathway takes one back: ours and most others
    are lists, Pathway's are objects.
    """
    for entry in map(json.loads, lines):
        if isinstance(entry, dict):
            yield ((entry["k"], entry["start"]), (entry["n"], entry["total"])), entry["diff"]
        else:
            yield ((entry[0], entry[1]), (entry[2], entry[3])), 1


def results_of(path: Path) -> Counter[tuple[Window, Sums]]:
    """Return how often each result is in a file of results. A last line that is not whole is left out."""
    results: Counter[tuple[Window, Sums]] = Counter()
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")[0]
        for result, change in changes_of(whole.splitlines()):
            results[result] += change
    return results


def extra(results: Counter[tuple[Window, Sums]], expected: dict[Window, Sums], who: str) -> int:
    """Return how many results are there more than once. Raises WrongAnswerError when one is missing or differs."""
    given = {result for result, count in results.items() if count > 0}
    wrong, absent = len(given - expected.items()), len(expected.items() - given)
    check(not wrong and not absent, f"{who}: {wrong} of {len(given)} results are not so, {absent} are missing")
    return sum(count - 1 for count in results.values() if count > 1)


# --- a run ------------------------------------------------------------------------------------------------------------


@contextmanager
def started(job: Job) -> Iterator[subprocess.Popen[str]]:
    """Start the program of a job; what it prints goes to files of the job's folder. It is gone afterwards."""
    Path(job.folder).mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "benchmarks.suites.peer_programs", json.dumps(asdict(job))]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    # what is installed is compiled already; the checkout has to be allowed to keep what is compiled, at the first start
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with Path(job.folder, "out").open("w") as out, Path(job.folder, "errors").open("w") as errors:
        process = subprocess.Popen(command, env=environment, cwd=job.folder, stdout=out, stderr=errors, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def answer_of(job: Job, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a program to end and return what it printed. Raises RuntimeError when it failed."""
    if process.wait():
        errors = Path(job.folder, "errors").read_text(encoding="utf-8").strip().splitlines() or ["no message"]
        raise RuntimeError(f"{NAMES[job.engine]}, {job.work}: exit code {process.returncode}: {errors[-1]}")
    answer: dict[str, Any] = json.loads(Path(job.folder, "out").read_text(encoding="utf-8").splitlines()[-1])
    return answer


def measure(
    folder: Path,
    work: str,
    *,
    events: int,
    keys: int,
    per_second: int = 1000,
    runs: int = 3,
    cases: Sequence[Case] = CASES,
) -> Result:
    """Run every case over the same events, in turns. Raises WrongAnswerError when results of one are wrong."""
    settings = {"work": work, "keys": keys, "events": events, "events a second": per_second, "runs": runs}
    result = _result(cases, settings)
    taken = _in_turns(result, folder, cases, _whole)
    for case in cases:
        if case.name in taken:
            result.lines += _lines(case, taken, events)
    return result


def _in_turns(
    result: Result, folder: Path, cases: Sequence[Case], once: Callable[[Job, dict[Window, Sums]], dict[str, float]]
) -> dict[str, list[dict[str, float]]]:
    """Run `once` for every case in turns, over the events that the settings of the result say, and return its answers
    by case; a peer that is missing or fails is left out, and the result says why.
    """
    settings, work = result.settings, result.settings["work"].partition(",")[0]
    taken: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases if missing(case.engine) is None}
    with TemporaryDirectory(dir=folder, prefix="peer-engines-") as place, stopwatch() as clock:
        path = Path(place, "events.jsonl")
        write_events(path, settings["events"], settings["keys"], settings["events a second"])
        expected = sums_of(path, work)

        def run(case: Case) -> Callable[[], float]:
            def measured() -> float:
                if case.name in taken:
                    job = case.job(work, path, Path(place, "run"))
                    try:
                        taken[case.name].append(once(job, expected))
                    except RuntimeError as error:
                        if case.engine not in _PACKAGES:
                            raise
                        result.notes.append(f"{case.name} beside our plain engine: {error}")
                        del taken[case.name]
                    finally:
                        rmtree(job.folder, ignore_errors=True)
                return 0.0

            return measured

        interleaved({case.name: run(case) for case in cases}, settings["runs"])
    result.seconds = clock.seconds
    return taken


def _whole(job: Job, expected: dict[Window, Sums]) -> dict[str, float]:
    """Run a job from the first event to the last result and return what it took."""
    with started(job) as process:
        answer = answer_of(job, process)
    if job.engine in ENGINES:
        who = f"{NAMES[job.engine]}, {job.work}"
        twice = extra(results_of(job.results), expected, who)
        check(not twice, f"{who}: {twice} results are there more than once")
    return answer


def _lines(case: Case, taken: dict[str, list[dict[str, float]]], events: int) -> list[Line]:
    """Return the figures of a case: a peer's as ratios to ours."""
    ours = case._replace(engine=_OURS[case.engine]) if case.engine in _OURS else None

    def figure(what: str, name: str, unit: str, scale: float, judged: bool = False) -> Line:
        spread = Spread(tuple(answer[name] * scale for answer in taken[case.name]))
        base = None
        if ours is not None and taken.get(ours.name):
            base = Spread(tuple(answer[name] * scale for answer in taken[ours.name]))
        target = Target(1, at_least=True) if judged and base is not None else None
        return line(f"{case.name}: {what}", spread, unit, base=base, against="ours", target=target)

    lines = [
        figure("processor per event", "processor", "µs", 1 / events, judged=True),
        figure("clock per event", "wall", "µs", 1 / events),
    ]
    if case.engine in ENGINES:
        lines += [
            figure("written per event", "written", "bytes", 1 / events, judged=True),
            figure("most memory", "memory", "MB", 1e-6),
        ]
    if any(answer["longest_commit"] for answer in taken[case.name]):
        lines.append(figure("longest between commits", "longest_commit", "s", 1))
    return lines


def _result(cases: Sequence[Case], settings: dict[str, Any]) -> Result:
    """Return a result without figures: what it is of, with versions, what is left out, and why."""
    why = dict.fromkeys(sentence for case in cases if (sentence := missing(case.engine)))
    packages = dict.fromkeys(case.engine for case in cases if case.engine in _PACKAGES and not missing(case.engine))
    return Result("peer engines", settings | {name: version(name) for name in packages}, notes=[QUIX, *why])


# --- killed and started again -----------------------------------------------------------------------------------------


def kill_at(job: Job, process: subprocess.Popen[str], progress: Callable[[int], float], goal: float) -> None:
    """Kill a program with signal 9 as soon as the `progress` of its process id has come to the goal.

    Raises RuntimeError when it ended before.
    """
    while process.poll() is None:
        if progress(process.pid) >= goal:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(0.0005)
    answer_of(job, process)
    raise RuntimeError(f"{NAMES[job.engine]}, {job.work}: ended before it was killed")


def _progress(job: Job) -> tuple[Callable[[int], float], float]:
    """Return what tells how far a program has come, and where it is killed: by the bytes of the file that it has read,
    or by its processor time, which a whole run tells first.
    """
    if job.engine not in _AT_ONCE:
        return lambda pid: _read_up_to(pid, os.path.realpath(job.events)), Path(job.events).stat().st_size * KILLED_AT
    with started(job) as process:
        answer = answer_of(job, process)
    rmtree(job.folder)
    return _processor_of, answer["processor_before"] + answer["processor"] * KILLED_AT


def _processor_of(pid: int) -> float:
    """Return the seconds of processor time of a process; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_up_to(pid: int, place: str) -> int:
    """Return the furthest place (bytes) at which a process has a file open; 0 when it has not."""
    furthest = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}") == place:
                first = Path(f"/proc/{pid}/fdinfo/{name}").read_text(encoding="ascii").splitlines()[0]
                furthest = max(furthest, int(first.removeprefix("pos:")))
    except OSError:  # the process has ended, or has closed the file meanwhile
        pass
    return furthest


def first_new(job: Job, process: subprocess.Popen[str], known: Counter[tuple[Window, Sums]]) -> float | None:
    """Return when a result that is not `known` was in the file of results (monotonic seconds); None: never."""
    at = job.results.stat().st_size if job.results.exists() else 0
    while True:
        running = process.poll() is None
        now, text = time.monotonic(), job.results.read_bytes() if job.results.exists() else b""
        # the engine may have cut off what came after its last commit, and written on
        at = text.rfind(b"\n", 0, at) + 1
        whole = text[at : text.rfind(b"\n") + 1]
        if any(result not in known for result, _ in changes_of(whole.splitlines())):
            return now
        if not whole and not running:
            return None
        at += len(whole)
        time.sleep(0.005)


def killed(
    folder: Path,
    *,
    events: int,
    keys: int,
    per_second: int = 1000,
    runs: int = 3,
    engines: Sequence[str] = ENGINES,
) -> Result:
    """Kill every engine when 60 % of the events are read, start it again, and measure the restart.

    Raises WrongAnswerError when a result is missing or wrong after it.
    """
    settings = {"work": "tumbling, killed", "keys": keys, "events": events, "events a second": per_second, "runs": runs}
    cases = [Case(engine) for engine in engines]
    result = _result(cases, settings)
    taken = _in_turns(result, folder, cases, _restart)
    for case in cases:
        if case.name in taken:
            result.lines += _restart_lines(case.engine, taken)
    return result


def _restart(job: Job, expected: dict[Window, Sums]) -> dict[str, float]:
    """Run a job, kill it, run it again, and return seconds from the second start on, and how many results there are."""
    progress, goal = _progress(job)
    with started(job) as process:
        kill_at(job, process, progress, goal)
    known = results_of(job.results)
    began = time.monotonic()
    with started(job) as process:
        first = first_new(job, process, known)
        answer = answer_of(job, process)
    ended = time.monotonic()
    who = f"{NAMES[job.engine]}, killed and started again"
    # each start of Pathway begins a new file of results
    twice = extra(results_of(job.results) + (known if job.engine in _AT_ONCE else Counter()), expected, who)
    if first is None:
        raise RuntimeError(f"{who}: all results were there before the kill")
    times = {"imports": answer["imported"] - began, "first": first - began, "all": ended - began}
    return times | {"before": known.total(), "twice": twice}


def _restart_lines(engine: str, taken: dict[str, list[dict[str, float]]]) -> list[Line]:
    ours = NAMES.get(_OURS.get(engine, ""))

    def figure(what: str, name: str, unit: str, judged: bool = False) -> Line:
        spread = Spread(tuple(times[name] for times in taken[NAMES[engine]]))
        if not judged or ours is None or not taken.get(ours):
            return line(f"{NAMES[engine]}: {what}", spread, unit)
        base = Spread(tuple(times[name] for times in taken[ours]))
        target = Target(1, at_least=True)
        return line(f"{NAMES[engine]}: {what}", spread, unit, base=base, against="ours", target=target)

    return [
        figure("start and imports", "imports", "ms"),
        figure("to the first new result", "first", "ms", judged=True),
        figure("to all results", "all", "ms", judged=True),
        figure("results before the kill", "before", ""),
        figure("results twice", "twice", ""),
    ]
