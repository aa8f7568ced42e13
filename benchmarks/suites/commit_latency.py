"""Commit latency: from the median to the longest, with and without checkpoints, paced and unpaced.

    python -m benchmarks commit-latency --records 1000000 --commits 100000
    python -m benchmarks commit-latency --records 200000 --commits 5000 --checkpoints 2   # within two minutes

A commit is 10 puts of a random key each and the call of `commit`. The sustained rate is that of the loop without
checkpoints and pauses. A paced loop begins each commit when it is due, at half of that rate, or as soon as the commit
before has ended. Latency is counted from the begin; the longest time from the moment at which a commit was due is told
apart. Each loop runs in a process of its own.
"""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, Literal

from benchmarks.measure import fresh_process
from benchmarks.measure.result import Line, Result, Target
from benchmarks.measure.state import NEVER, scratch
from benchmarks.measure.timing import check, stopwatch
from hybridstore.state.directory import open_store
from hybridstore.state.policy import CheckpointPolicy

EVENTS: Final = 10
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
_PACE: Final = 0.5
# p99.9 of paced commits with checkpoints, over that without
_TARGET: Final = Target(2)
_FILL_ROWS: Final = 10_000


def run(
    folder: str, records: int, commits: int, every: int | None, rate: float | None, durability: Literal["commit", "os"]
) -> dict[str, float]:
    """Fill a store, then commit in a loop; return percentiles (ms), commits/s and how many checkpoints were made.

    `every`: a checkpoint begins after so many commits (None: none); `rate`: commits/s of a paced loop (None: as fast as
    it goes).
    """
    place = Path(folder) / "state"
    numbers = array("q", range(records))
    dice = random.Random(11)
    with open_store(place, durability="os", checkpoints=NEVER) as state:
        store = state.key_value("records")
        for at in range(0, records, _FILL_ROWS):
            store.put_many({_key(i): _value(i) for i in range(at, min(at + _FILL_ROWS, records))})
            state.commit()
        state.checkpoint(wait=True)
    policy = NEVER if every is None else CheckpointPolicy(every_commits=every, max_restore="1 day")
    seconds = array("d", bytes(8 * commits))
    with open_store(place, durability=durability, checkpoints=policy) as state:
        store = state.key_value("records")
        while state.hydrate(1000):
            pass
        began = perf_counter()
        latest = 0.0
        for turn in range(commits):
            due = perf_counter() if rate is None else began + turn / rate
            if (early := due - perf_counter()) > 0:
                sleep(early)
            started = perf_counter()
            for _ in range(EVENTS):
                i = dice.randrange(records)
                number = numbers[i] = numbers[i] + records
                store.put(_key(i), _value(number))
            state.commit()
            ended = perf_counter()
            seconds[turn] = ended - started
            latest = max(latest, ended - due)
        elapsed = perf_counter() - began
        state._checkpoints.finish(wait=True)
        written = state.metrics().checkpoints_written
    with open_store(place) as state:
        store = state.key_value("records")
        for i in {dice.randrange(records) for _ in range(1000)}:
            check(store.get(_key(i)) == _value(numbers[i]), f"record {i} after a restart")
        check(len(store) == records, f"found {len(store)} records after a restart, expected {records}")
    ordered = sorted(seconds)
    figures = {name: 1000 * ordered[min(commits - 1, int(share * commits))] for name, share in PERCENTILES.items()}
    figures |= {"longest": 1000 * ordered[-1], "longest since due": 1000 * latest}
    return {**figures, "commits/s": commits / elapsed, "checkpoints": written}


def _key(number: int) -> str:
    return f"key{number:09d}"


def _value(number: int) -> bytes:
    return b"%040d" % number


def measure(
    folder: Path,
    *,
    records: int = 200_000,
    commits: int = 20_000,
    checkpoints: int = 4,
    durability: Literal["commit", "os"] = "os",
) -> Result:
    """Measure `commits` commits over `records`, alone and beside so many checkpoints."""
    settings: dict[str, Any] = {"records": records, "commits": commits, "durability": durability}
    result = Result("commit latency", settings)
    every = max(1, commits // (checkpoints + 1))

    def loop(beside: int | None, rate: float | None) -> dict[str, float]:
        with scratch(folder) as place:
            figures: dict[str, float] = fresh_process.call(
                "benchmarks.suites.commit_latency:run",
                folder=str(place),
                records=records,
                commits=commits,
                every=beside,
                rate=rate,
                durability=durability,
            )
        check(beside is None or figures["checkpoints"] > 0, "no checkpoint was made beside the commits")
        return figures

    with stopwatch() as clock:
        fast = loop(None, None)
        rate = _PACE * fast["commits/s"]
        result.lines += _lines("unpaced", fast, loop(every, None), None)
        result.lines += _lines("paced at 50 %", loop(None, rate), loop(every, rate), _TARGET)
    result.seconds = clock.seconds
    return result


def _lines(subject: str, alone: dict[str, float], beside: dict[str, float], target: Target | None) -> list[Line]:
    """Return the lines of a loop, without and with checkpoints; `target` is for p99.9 of the latter."""
    lines = []
    for name, value in alone.items():
        if name != "checkpoints":
            lines.append(Line(f"{subject}, no checkpoint: {name}", value, value, value, _unit(name)))
    for name, value in beside.items():
        if name == "checkpoints":
            lines.append(Line(f"{subject}, checkpoints: made", value, value, value, ""))
            continue
        ratio = value / alone[name]
        bound = target if name == "p99.9" else None
        lines.append(
            Line(
                f"{subject}, checkpoints: {name}",
                value,
                value,
                value,
                _unit(name),
                ratio,
                ratio,
                ratio,
                "without",
                bound,
            )
        )
    return lines


def _unit(name: str) -> str:
    return "/s" if name == "commits/s" else "ms"
