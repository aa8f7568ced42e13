"""State by limit: operations of a key-value store as its state outgrows its memory limit, beside RocksDB with a cache
of the limit.

    python -m benchmarks state-by-limit --records 1000000 --operations 100000
    python -m benchmarks state-by-limit --records 200000 --operations 20000   # within two minutes

The state is what its records take in memory without a limit. The limit is the state over each of the shares, and every
pair of limit and subject is a process of its own, whose anonymous memory is read from outside. Every answer is checked.
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

# the state over its limit
SHARES: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
WORKS: Final = ("uniform", "zipf")
_PEER: Final = "rocksdb"


def measure(
    folder: Path,
    *,
    records: int = 500_000,
    operations: int = 50_000,
    shares: Sequence[float] = SHARES,
    works: Sequence[str] = WORKS,
    peers: bool = True,
) -> Result:
    """Measure `operations` read-modify-writes of each of `works` on `records`, with each limit."""
    result = Result("state by limit", {"records": records, "operations": operations})

    def run(subject: str, limit: int | None) -> tuple[dict[str, Any], dict[str, watched.Memory]]:
        with scratch(folder) as place:
            return watched.call(
                "benchmarks.suites.beyond_memory_work:work",
                folder=str(place),
                subject=subject,
                killed=False,
                limit=limit,
                records=records,
                operations=operations,
                works=[] if limit is None else list(works),
            )

    with stopwatch() as clock:
        whole = run("key-value", None)[1][LOAD].anonymous
        result.settings["state in memory (MB)"] = round(whole / 1e6)
        why = missing(_PEER) if peers else None
        result.notes += [] if why is None else [why]
        for share in shares:
            limit = max(1, int(whole / share))
            figures, memory = run("key-value", limit)
            beside = run(_PEER, limit)[0] if peers and why is None else {}
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
                size = memory[phase].anonymous
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
