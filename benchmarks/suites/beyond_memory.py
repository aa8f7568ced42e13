"""Beyond memory: state larger than its memory limit, beside RocksDB with a cache of the limit, and LMDB.

    python -m benchmarks beyond-memory --records 5000000 --limit 100000000 --operations 60000 --turns 5 \
        --kinds key-value --works "uniform,zipf,hot 1 %" --peers rocksdb   # within three minutes
    python -m benchmarks beyond-memory --records 1000000 --kinds window,session,sliding,suppression
    python -m benchmarks beyond-memory --records 300000 --operations 3000 --works uniform   # memory of the five kinds
    python -m benchmarks beyond-memory --records 300000 --operations 3000 --works uniform --storage s3
    python -m benchmarks beyond-memory --records 50000000 --limit 500000000 --operations 1000000 --kinds key-value \
        --works uniform   # some 30 minutes, 15 GB of disk and 2 GB of memory

Our key-value store is then opened again as a killed process has left it, and every record that is read is checked.

Each subject works in a process of its own, whose anonymous memory is read from outside. Without a limit, a kind of
store is first measured without one, and gets a fifth of the memory that its load takes. The key-value store and its
peers work in turn, on states that were loaded once, and those that wait are stopped: a ratio is that of two turns side
by side, and of `turns` ratios the median counts. Processor time of an operation is told beside its time: a machine that
does other things, too, changes it less.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.measure import watched
from benchmarks.measure.range_server import RangeServer, serving
from benchmarks.measure.result import Line, Result, Target, line
from benchmarks.measure.state import scratch
from benchmarks.measure.timing import Spread, stopwatch
from benchmarks.suites.beyond_memory_work import LOAD, RECORD_BYTES, RESTART, WORKS, turn_of
from benchmarks.suites.peers import missing

KINDS: Final = ("key-value", "window", "session", "sliding", "suppression")
PEERS: Final = ("rocksdb", "lmdb")
# works of the kinds that are not read by key alone
DISTRIBUTIONS: Final = ("uniform", "zipf", "hot 1 %")
SHARE: Final = 5
_WORK: Final = "benchmarks.suites.beyond_memory_work"
_RATES: Final = {"uniform": 1.5, "zipf": 2.0, "hot 1 %": 1.5}
# Where the records' own bytes are so many times the limit, the rate of RocksDB is the target.
_FAR: Final = 10
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
    peers: Sequence[str] = PEERS,
    turns: int = 1,
    storage: Literal["disk", "s3"] = "disk",
) -> Result:
    """Measure `turns` of `operations` of each of `works` on stores of `records` under a limit (bytes; None: a fifth of
    what a store without a limit takes). `storage`: where the states are; s3: on an object store that a process of our
    own stands for.
    """
    result = Result("beyond memory", {"records": records, "operations": operations, "turns": turns})
    result.settings["limit"] = limit or f"1/{SHARE}"
    # a part of the suite is a measurement of its own
    for name, chosen_names, every in (("kinds", kinds, KINDS), ("works", works, WORKS)):
        if list(chosen_names) != list(every):
            result.settings[name] = ", ".join(chosen_names)
    if storage == "s3":
        result.settings["storage"] = storage
        peers = ()
    with stopwatch() as clock, serving() if storage == "s3" else nullcontext() as server:
        for kind in kinds:
            chosen = [name for name in works if kind == "key-value" or name in DISTRIBUTIONS]
            sizes = {"records": records, "operations": operations, "turns": turns}
            beside = peers if kind == "key-value" else ()
            _measure_kind(folder, result, kind, chosen, sizes, limit, server, peers=beside)
    result.seconds = clock.seconds
    return result


# what a phase of a subject printed, and its highest anonymous memory (bytes)
_Phases = dict[str, tuple[dict[str, float], int]]


def _measure_kind(
    folder: Path,
    result: Result,
    kind: str,
    works: list[str],
    sizes: dict[str, int],
    limit: int | None,
    server: RangeServer | None,
    *,
    peers: Sequence[str],
) -> None:
    def run(subjects: list[str], bound: int | None, chosen: list[str]) -> dict[str, _Phases]:
        with ExitStack() as stack:
            calls = []
            for subject in subjects:
                call: dict[str, Any] = {"limit": bound, "works": chosen, **sizes}
                call["folder"] = str(stack.enter_context(scratch(folder)))
                if server is not None:
                    call["bucket"] = {"location": server.url(f"{subject}-{bound}"), **server.options}
                calls.append(call)
            killed = [subject == "key-value" and bound is not None for subject in subjects]
            worked = watched.call_together(
                f"{_WORK}:work",
                [
                    {"subject": subject, "killed": kill, **call}
                    for subject, kill, call in zip(subjects, killed, calls, strict=True)
                ],
            )
            phases = {
                subject: {name: (figures[name], memory[name].anonymous) for name in figures}
                for subject, (figures, memory) in zip(subjects, worked, strict=True)
            }
            if killed[0]:
                figures, memory = watched.call(f"{_WORK}:restarted", **calls[0])
                phases[kind][RESTART] = figures, memory[RESTART].anonymous
            return phases

    if limit is None:
        (loaded,) = run([kind], None, [])[kind].values()
        limit = max(1, loaded[1] // SHARE)
        result.lines += _lines(f"{kind}, {LOAD}, no limit", [loaded], None)
    beside = []
    for peer in peers:
        if why := missing(peer):
            result.notes.append(why)
        else:
            beside.append(peer)
    phases = run([kind, *beside], limit, works)
    bounds = _bounds(sizes["records"], limit)

    def turns_of(subject: str, name: str) -> list[tuple[dict[str, float], int]]:
        if name in (LOAD, RESTART):
            return [phases[subject][name]]
        return [phases[subject][turn_of(name, turn)] for turn in range(sizes["turns"])]

    for name in (LOAD, *works, *([RESTART] if RESTART in phases[kind] else [])):
        with_rate = "rocksdb" in beside and name != RESTART
        theirs = [figures for figures, _ in turns_of("rocksdb", name)] if with_rate else None
        result.lines += _lines(f"{kind}, {name}", turns_of(kind, name), limit, theirs, bounds.get(name))
        if name == RESTART:
            ready = phases[kind][name][0]["ready"]
            result.lines.append(Line(f"{kind}, {name}: until the first record is read", ready, ready, ready, "ms"))
        else:
            for peer in beside:
                result.lines += _lines(f"{peer}, {name}", turns_of(peer, name), None)


def _bounds(records: int, limit: int) -> dict[str, float]:
    """Return how many times RocksDB's rate that of each work is to be, of so many records under a limit."""
    return dict.fromkeys(_RATES, 1.0) if records * RECORD_BYTES > _FAR * limit else _RATES


def _lines(
    subject: str,
    turns: list[tuple[dict[str, float], int]],
    limit: int | None,
    rocksdb: list[dict[str, float]] | None = None,
    bound: float | None = None,
) -> list[Line]:
    """Return the figures of turns: medians, but the highest memory and the longest operation; `rocksdb` are those of
    the turns beside, `bound` how many times the rate of those ours is to be.
    """

    def spread(name: str) -> Spread:
        return Spread(tuple(figures[name] for figures, _ in turns))

    def beside(name: str) -> Spread | None:
        return None if rocksdb is None else Spread(tuple(figures[name] for figures in rocksdb))

    def median(what: str, of: Spread, unit: str) -> Line:
        return Line(f"{subject}: {what}", of.middle, of.low, of.high, unit)

    def highest(what: str, of: Spread, unit: str, target: Target | None, share: float | None = None) -> Line:
        return Line(f"{subject}: {what}", of.high, of.low, of.high, unit, share, share, share, "limit", target)

    speed = spread("operations/s")
    base, processor, theirs = beside("operations/s"), spread("processor"), beside("processor")
    per = None if theirs is None else processor.over(theirs).middle if theirs.low > 0 else None
    lines = [line(f"{subject}: operations/s", speed, "/s", base=base, against="RocksDB")]
    if base is not None and bound is not None:
        # a line of its own: the table prints lowest and highest of values alone
        lines.append(
            line(f"{subject}: times RocksDB's rate", speed.over(base), "x", target=Target(bound, "value", True))
        )
    memory = Spread(tuple(anonymous / 1e6 for _, anonymous in turns))
    share = None if limit is None else 1e6 * memory.high / limit
    # of ours alone: other engines do not say how long they wait for the kernel
    beside_sync = (
        None
        if limit is None
        else highest("longest operation beside the kernel's sync", spread("beside sync"), "ms", _LONGEST)
    )
    others = spread("others")
    return [
        *lines,
        highest("anonymous memory", memory, "MB", None if limit is None else _MEMORY, share),
        median("p99.9", spread("p99.9"), "ms"),
        highest("longest operation", spread("longest"), "ms", None),
        *([] if beside_sync is None else [beside_sync]),
        replace(median("processor time", processor, "µs"), ratio=per, against="RocksDB"),
        *([median("processor time of its processes", others, "µs")] if others.high else []),
    ]
