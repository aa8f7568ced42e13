"""State by limit: operations of a key-value store as its state outgrows its memory limit, beside RocksDB with a cache
of the limit.

    python -m benchmarks state-by-limit   # 0.5 to 50 times 20 MB: some 7 minutes, 1.5 GB of disk
    python -m benchmarks state-by-limit --shares 0.5,1,2,5 --operations 20000   # within two minutes

The limit is the least one that users are told to set, and the state grows: to so many records as would take each of the
shares of the limit in memory without one, by what some records take. Every pair of state and subject is a process of
its own, whose anonymous memory is read from outside, from the load on. Every answer is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import watched
from benchmarks.measure.result import Line, Result
from benchmarks.measure.state import scratch
from benchmarks.measure.timing import stopwatch
from benchmarks.suites.beyond_memory_work import LOAD, turn_of
from benchmarks.suites.peers import missing

# the least one that docs/operating.md has (bytes)
LIMIT: Final = 20_000_000
# the state over its limit
SHARES: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
WORKS: Final = ("uniform", "zipf")
_PEER: Final = "rocksdb"


def measure(
    folder: Path,
    *,
    limit: int = LIMIT,
    operations: int = 50_000,
    shares: Sequence[float] = SHARES,
    works: Sequence[str] = WORKS,
    peers: bool = True,
    sample: int = 100_000,
) -> Result:
    """Measure `operations` read-modify-writes of each of `works` on states of each of `shares` of the limit (bytes);
    `sample`: of so many records it is measured what a record takes.
    """
    result = Result("state by limit", {"limit": limit, "operations": operations})

    def run(subject: str, bound: int | None, records: int) -> tuple[dict[str, Any], dict[str, watched.Memory]]:
        with scratch(folder) as place:
            return watched.call(
                "benchmarks.suites.beyond_memory_work:work",
                folder=str(place),
                subject=subject,
                killed=False,
                limit=bound,
                records=records,
                operations=operations,
                works=[] if bound is None else list(works),
            )

    with stopwatch() as clock:
        each = run("key-value", None, sample)[1][LOAD].anonymous / sample
        result.settings["bytes of a record in memory"] = round(each)
        why = missing(_PEER) if peers else None
        result.notes += [] if why is None else [why]
        for share in shares:
            records = max(1, round(share * limit / each))
            figures, memory = run("key-value", limit, records)
            beside = run(_PEER, limit, records)[0] if peers and why is None else {}
            for name in works:
                phase = turn_of(name, 0)
                rate, theirs = figures[phase]["operations/s"], beside.get(phase, {}).get("operations/s")
                ratio = None if theirs is None else rate / theirs
                what = f"state {share:g}x the limit"
                result.lines.append(
                    Line(f"hybridstore, {name}: {what}", rate, rate, rate, "/s", ratio, ratio, ratio, "RocksDB")
                )
                if theirs is not None:
                    result.lines.append(Line(f"RocksDB, {name}: {what}", theirs, theirs, theirs, "/s"))
                size = max(memory[LOAD].anonymous, memory[phase].anonymous)
                part = size / limit
                result.lines.append(
                    Line(
                        f"hybridstore, {name}, anonymous memory: {what}",
                        size / 1e6,
                        size / 1e6,
                        size / 1e6,
                        "MB",
                        part,
                        part,
                        part,
                        "limit",
                    )
                )
    result.seconds = clock.seconds
    return result
