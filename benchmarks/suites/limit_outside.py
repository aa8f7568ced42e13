"""Limit from outside: the anonymous memory of many states under one limit, while they load, work and are iterated, and
of shards of a topology that work and are rescaled.

    python -m benchmarks.suites.limit_outside [--records 400000] [--limit 40000000] [--states 20] [--shards 4]

The memory is read from outside each process (`measure.watched`), beyond what it takes with empty states; a share of the
limit stands beside it. A rescale has no limit: its figure says what it takes. Every answer is checked.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import hybridstore as hs
from benchmarks.measure import watched
from benchmarks.measure.timing import check
from benchmarks.measure.watched import BASE, phase

_COMMIT: Final = 500
# the phase that ends the last measured one
END: Final = "end"
_MODULE: Final = "benchmarks.suites.limit_outside"


def key_of(i: int) -> str:
    """Return the key of record i, a new object."""
    return f"key{i:09d}"


def value_of(number: int) -> bytes:
    """Return the value made from a number: 40 bytes, a new object."""
    return b"%040d" % number


def states(folder: str, states: int, records: int, operations: int, limit: int | None) -> dict[str, Any]:
    """Load `records` into states of one process, read and write them at random, and iterate over each state."""
    dice, each = random.Random(1), records // states
    numbers = [[0] * each for _ in range(states)]
    with ExitStack() as stack:
        opened = [stack.enter_context(hs.open(Path(folder, str(i)), memory_limit=limit)) for i in range(states)]
        stores = [state.key_value("s") for state in opened]
        phase(BASE)
        phase("load")
        for first in range(0, each, _COMMIT):
            for state, store in zip(opened, stores, strict=True):
                for i in range(first, min(first + _COMMIT, each)):
                    store.put(key_of(i), value_of(0))
                state.commit()
        phase("work")
        for begun in range(0, operations, _COMMIT):
            at = dice.randrange(states)
            for _ in range(_COMMIT):
                i = dice.randrange(each)
                check(stores[at].get(key_of(i)) == value_of(numbers[at][i]), f"state {at}: record {i}")
                numbers[at][i] = begun
                stores[at].put(key_of(i), value_of(begun))
            opened[at].commit()
        phase("iterate")
        for at, (state, store) in enumerate(zip(opened, stores, strict=True)):
            rows = 0
            for i, (key, value) in enumerate(store.all()):
                check((key, value) == (key_of(i), value_of(numbers[at][i])), f"state {at}: record {i} of a scan")
                rows += 1
            check(rows == each, f"state {at}: {rows} records, expected {each}")
            state.commit()
        numbers_of = [state.metrics() for state in opened]
        phase(END)
    hits, misses = (sum(getattr(numbers, name) or 0 for numbers in numbers_of) for name in ("hits", "misses"))
    return {"hits": hits, "misses": misses}


def _program() -> hs.Topology:
    counts = hs.stream(key="key", timestamp="time").windowed_by(hs.TumblingWindows("1 hour"))
    return counts.aggregate(n=hs.Count(), total=hs.Sum("value"), emit="commit")


def shards(folder: str, shards: int, records: int, limit: int | None) -> dict[str, Any]:
    """Count rows of `records` keys, twice each, in a topology of several shards of one process."""
    with _program().open(folder, shards=shards, memory_limit=limit) as engine:
        phase(BASE)
        for turn in range(2):
            phase("load" if turn == 0 else "work")
            for first in range(0, records, _COMMIT * shards):
                last = min(first + _COMMIT * shards, records)
                rows = list(_rows(first, last, turn))
                results = [*engine.process_many(rows), *engine.commit()]
                check(len(results) == last - first, f"rows {first} to {last}: {len(results)} results")
                check(all(row["n"] == turn + 1 for row in results), f"rows {first} to {last}: other counts")
        phase(END)
    return {}


def _rows(first: int, last: int, turn: int) -> Iterator[dict[str, Any]]:
    return ({"key": key_of(i), "time": turn, "value": i} for i in range(first, last))


def rescaled(folder: str, shards: int) -> dict[str, Any]:
    """Rescale the topology's state."""
    phase(BASE)
    phase("rescale")
    report = hs.rescale(folder, shards=shards, progress=False)
    phase(END)
    return {"report": str(report)[:80]}


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--operations", type=int, default=40_000)
    parser.add_argument("--limit", type=int, default=40_000_000)
    parser.add_argument("--states", type=int, default=20)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    for name, lines in measure(**vars(given)).items():
        print(f"{name}: {lines}", flush=True)


def measure(
    records: int, operations: int, limit: int, states: int, shards: int, folder: Path | None = None
) -> dict[str, str]:
    """Return a line for each phase: its highest anonymous memory, and the share of the limit."""
    lines: dict[str, str] = {}

    def add(name: str, figures: tuple[dict[str, Any], dict[str, watched.Memory]], *, limited: bool = True) -> None:
        answer, peaks = figures
        for part, peak in peaks.items():
            if part == END:
                continue
            share = f", {peak.anonymous / limit:.2f}x the limit" if limited else ""
            others = f", other processes {peak.children / 1e6:.0f} MB" if peak.children else ""
            lines[f"{name}, {part}"] = f"{peak.anonymous / 1e6:.1f} MB{share}{others}"
        if "hits" in answer:
            lines[f"{name}, lookups"] = f"{answer['hits']} hits, {answer['misses']} misses"

    with TemporaryDirectory(dir=folder) as place:
        sizes = {"records": records, "limit": limit}
        path = str(Path(place, "states"))
        add(
            f"{states} states",
            watched.call(f"{_MODULE}:states", folder=path, states=states, operations=operations, **sizes),
        )
        path = str(Path(place, "shards"))
        add(f"{shards} shards", watched.call(f"{_MODULE}:shards", folder=path, shards=shards, **sizes))
        figures = watched.call(f"{_MODULE}:rescaled", folder=path, shards=2 * shards)
        add(f"{shards} shards to {2 * shards}", figures, limited=False)
    return lines


if __name__ == "__main__":
    main()
