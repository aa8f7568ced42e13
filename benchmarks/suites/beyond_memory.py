"""Beyond memory: state larger than its memory limit, beside RocksDB with a cache of the limit, and LMDB.

    python -m benchmarks beyond-memory --records 5000000 --limit 100000000 --operations 300000
    python -m benchmarks beyond-memory --records 1000000 --kinds window,session,sliding,suppression
    python -m benchmarks beyond-memory --records 300000 --operations 3000 --works uniform   # memory of the five kinds
    python -m benchmarks beyond-memory --records 300000 --operations 3000 --works uniform --storage s3
    python -m benchmarks beyond-memory --records 50000000 --limit 500000000 --operations 1000000 --kinds key-value \
        --works uniform   # some 30 minutes, 15 GB of disk and 2 GB of memory

Our key-value store is then opened again as a killed process has left it, and every record that is read is checked.

Each subject works in a process of its own, whose anonymous memory is read from outside. Without a limit, a kind of
store is first measured without one, and gets a fifth of the memory that its load takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.measure import watched
from benchmarks.measure.range_server import RangeServer, serving
from benchmarks.measure.result import Line, Result, Target
from benchmarks.measure.state import scratch
from benchmarks.measure.timing import stopwatch
from benchmarks.suites.beyond_memory_work import LOAD, RESTART, WORKS
from benchmarks.suites.peers import missing

KINDS: Final = ("key-value", "window", "session", "sliding", "suppression")
PEERS: Final = ("rocksdb", "lmdb")
# works of the kinds that are not read by key alone
DISTRIBUTIONS: Final = ("uniform", "zipf", "hot 1 %")
SHARE: Final = 5
_RATES: Final = {"uniform": 1.5, "zipf": 2.0, "hot 1 %": 1.5}
_MEMORY: Final = Target(1.3)
_LONGEST: Final = Target(30, "value")


def measure(
    folder: Path,
    *,
    records: int = 200_000,
    operations: int = 20_000,
    limit: int | None = None,
    kinds: Sequence[str] = KINDS,
    works: Sequence[str] = tuple(WORKS),
    peers: bool = True,
    storage: Literal["disk", "s3"] = "disk",
) -> Result:
    """Measure `operations` of each of `works` on stores of `records` under a limit (bytes; None: a fifth of what a
    store without a limit takes). `storage`: where the states are; s3: on an object store that a process of our own
    stands for.
    """
    result = Result("beyond memory", {"records": records, "operations": operations})
    result.settings["limit"] = limit or f"1/{SHARE}"
    if storage == "s3":
        result.settings["storage"] = storage
        peers = False
    with stopwatch() as clock, serving() if storage == "s3" else nullcontext() as server:
        for kind in kinds:
            chosen = [name for name in works if kind == "key-value" or name in DISTRIBUTIONS]
            _measure_kind(folder, result, kind, chosen, (records, operations, limit), server, peers=peers)
    result.seconds = clock.seconds
    return result


def _measure_kind(
    folder: Path,
    result: Result,
    kind: str,
    works: list[str],
    sizes: tuple[int, int, int | None],
    server: RangeServer | None,
    *,
    peers: bool,
) -> None:
    records, operations, limit = sizes

    def run(subject: str, bound: int | None, chosen: list[str]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        sizes: dict[str, Any] = {"limit": bound, "records": records, "operations": operations, "works": chosen}
        if server is not None:
            sizes["bucket"] = {"location": server.url(f"{subject}-{bound}"), **server.options}
        killed = subject == "key-value" and bound is not None
        with scratch(folder) as place:
            module = "benchmarks.suites.beyond_memory_work"
            figures, memory = watched.call(f"{module}:work", folder=str(place), subject=subject, killed=killed, **sizes)
            if killed:
                figures[RESTART], again = watched.call(f"{module}:restarted", folder=str(place), **sizes)
                memory |= again
        return figures, {name: peak.anonymous for name, peak in memory.items()}

    if limit is None:
        loaded, memory = run(kind, None, [])
        limit = max(1, memory[LOAD] // SHARE)
        result.lines += _lines(f"{kind}, {LOAD}, no limit", loaded[LOAD], memory[LOAD], None)
    ours, memory = run(kind, limit, works)
    phases = {name: (figures, memory[name]) for name, figures in ours.items()}
    beside: dict[str, dict[str, tuple[dict[str, float], int]]] = {}
    if kind == "key-value" and peers:
        for peer in PEERS:
            if why := missing(peer):
                result.notes.append(why)
                continue
            figures_of, memory_of = run(peer, limit, works)
            beside[peer] = {name: (figures, memory_of[name]) for name, figures in figures_of.items()}
    for name, (figures, anonymous) in phases.items():
        rate = beside["rocksdb"][name][0]["operations/s"] if name in beside.get("rocksdb", {}) else None
        result.lines += _lines(f"{kind}, {name}", figures, anonymous, limit, rate, _RATES.get(name))
        if name == RESTART:
            ready = figures["ready"]
            result.lines.append(Line(f"{kind}, {name}: until the first record is read", ready, ready, ready, "ms"))
        for peer, their in beside.items():
            if name in their:
                result.lines += _lines(f"{peer}, {name}", *their[name], None)


def _lines(
    subject: str,
    figures: dict[str, float],
    anonymous: int,
    limit: int | None,
    rate: float | None = None,
    bound: float | None = None,
) -> list[Line]:
    """Return the figures of a phase; `rate` is RocksDB's, `bound` how many times that ours is to be."""
    speed, longest, tail = figures["operations/s"], figures["longest"], figures["p99.9"]
    ratio = None if rate is None else speed / rate
    target = None if bound is None or rate is None else Target(bound, at_least=True)
    share = None if limit is None else anonymous / limit
    return [
        Line(f"{subject}: operations/s", speed, speed, speed, "/s", ratio, ratio, ratio, "RocksDB", target),
        Line(
            f"{subject}: anonymous memory",
            anonymous / 1e6,
            anonymous / 1e6,
            anonymous / 1e6,
            "MB",
            share,
            share,
            share,
            "limit",
            None if limit is None else _MEMORY,
        ),
        Line(f"{subject}: p99.9", tail, tail, tail, "ms"),
        Line(
            f"{subject}: longest operation",
            longest,
            longest,
            longest,
            "ms",
            target=None if limit is None else _LONGEST,
        ),
    ]
