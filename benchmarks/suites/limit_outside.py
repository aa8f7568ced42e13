"""Limit from outside: the anonymous memory of many states under one limit, with a store of each kind, while they load,
work and are iterated, and suppression buffers are flushed; of a run whose windows close together; and of shards of a
topology that work and are rescaled.

    python -m benchmarks.suites.limit_outside [--records 400000] [--limit 40000000] [--states 20] [--shards 4] \
        [--kinds key-value,window]

The memory is read from outside each process (`measure.watched`), beyond what it takes with empty states; a share of the
limit stands beside it. A rescale has no limit: its figure says what it takes. Every answer is checked.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import hybridstore as hs
from benchmarks.measure import watched
from benchmarks.measure.timing import check
from benchmarks.measure.watched import BASE, phase
from benchmarks.suites.beyond_memory_work import SUBJECTS, key_of, value_of

_COMMIT: Final = 500
KINDS: Final = ("key-value", "window", "session", "sliding", "suppression")
# windows that all close at one commit
CLOSING: Final[dict[str, Any]] = {
    "close": hs.TumblingWindows("1 hour"),
    "close-sessions": hs.SessionWindows("1 hour"),
    "close-hopping": hs.HoppingWindows("1 hour", "30 minutes"),
}
# the phase that ends the last measured one
END: Final = "end"
_MODULE: Final = "benchmarks.suites.limit_outside"


def states(folder: str, kind: str, states: int, records: int, operations: int, limit: int | None) -> dict[str, Any]:
    """Load `records` into stores of a kind, each in a state of one process, read and write them at random, and iterate
    over each store.
    """
    dice, each = random.Random(1), records // states
    subjects: list[Any] = []
    for at in range(states):
        expected = array("q", bytes(8 * 2 * each))
        arguments = [each] if kind == "suppression" else []
        subjects.append(SUBJECTS[kind](Path(folder, str(at)), limit, expected, *arguments))
    phase(BASE)
    phase("load")
    for first in range(0, each, _COMMIT):
        for subject in subjects:
            for i in range(first, min(first + _COMMIT, each)):
                subject.do("insert", i, 0)
            subject.commit()
    phase("work")
    for begun in range(1, operations, _COMMIT):
        subject = subjects[dice.randrange(states)]
        for _ in range(_COMMIT):
            subject.do("modify", dice.randrange(each), begun)
        subject.commit()
    for name, iterate in (("iterate", _iterate), ("iterate, backwards", _iterate_backwards)):
        phase(name)
        for at, subject in enumerate(subjects):
            iterate(kind, subject, at, each)
            subject.commit()
    if kind == "suppression":
        phase("flush")
        for at, subject in enumerate(subjects):
            _flush(subject, at, each)
            subject.commit()
    numbers_of = [subject.state.metrics() for subject in subjects]
    phase(END)
    for subject in subjects:
        subject.close()
    hits, misses = (sum(getattr(numbers, name) or 0 for numbers in numbers_of) for name in ("hits", "misses"))
    return {"hits": hits, "misses": misses}


def _iterate(kind: str, subject: Any, at: int, each: int) -> None:
    """Iterate over a store, and check its rows."""
    store, expected, rows = subject.store, subject.expected, 0
    if kind == "sliding":
        for key, total in store.aggregates():
            check(total == expected[int(key[3:])], f"state {at}: sum of {key}")
        for _ in store.all():
            rows += 1
        each = subject.now
    elif kind == "suppression":
        for rows, (key, value, _) in enumerate(store.buffered(), 1):
            i = subject.first + rows - 1
            check((key, value) == (key_of(i), value_of(expected[i])), f"state {at}: record {i} of a scan")
    else:
        for row in store.all():
            check(row == _row(kind, subject, rows), f"state {at}: record {rows} of a scan")
            rows += 1
    check(rows == each, f"state {at}: {rows} records, expected {each}")


def _iterate_backwards(kind: str, subject: Any, at: int, each: int) -> None:
    """As `_iterate`, the last row first, and count the records."""
    if kind in ("sliding", "suppression"):
        return
    for i, row in zip(reversed(range(each)), subject.store.all(reverse=True), strict=True):
        check(row == _row(kind, subject, i), f"state {at}: record {i} of a scan backwards")
    check(len(subject.store) == each, f"state {at}: {len(subject.store)} records, expected {each}")


def _flush(subject: Any, at: int, each: int) -> None:
    """Flush a suppression buffer with a commit behind each piece, and check what it emits."""
    i = subject.first
    for piece in subject.store.flush():
        subject.commit()
        for key, value, _ in piece:
            check((key, value) == (key_of(i), value_of(subject.expected[i])), f"state {at}: record {i} of a flush")
            i += 1
    emitted = i - subject.first
    check(emitted == each, f"state {at}: {emitted} records of a flush, expected {each}")
    check(len(subject.store) == 0, f"state {at}: {len(subject.store)} records behind a flush, expected none")


def _row(kind: str, subject: Any, i: int) -> tuple[Any, bytes]:
    """Return row i of a scan: its key, with its times, and its value."""
    value = value_of(subject.expected[i])
    if kind == "key-value":
        return key_of(i), value
    return (subject.key(i), *([i] if kind == "window" else [i, i])), value


def _program() -> hs.Topology:
    counts = hs.stream(key="key", timestamp="time").windowed_by(hs.TumblingWindows("1 hour"))
    return counts.aggregate(n=hs.Count(), total=hs.Sum("value"), emit="commit")


def closing(folder: str, kind: str, records: int, limit: int | None) -> dict[str, Any]:
    """Run a topology over a row of each of `records` keys and rows that close their windows, those that begin together
    at one commit, and count the results as they come.
    """

    def rows() -> Iterator[dict[str, Any]]:
        phase(BASE)
        phase("load")
        for i in range(records):
            yield {"key": key_of(i), "time": 3_500_000, "value": i}
        phase("close")
        for time in (3_600_000, 5_400_000) if kind == "close-hopping" else (20_000_000,):
            for _ in range(_COMMIT):
                yield {"key": "last", "time": time, "value": 0}

    windows = hs.stream(key="key", timestamp="time").windowed_by(CLOSING[kind])
    counts = windows.aggregate(n=hs.Count(), total=hs.Sum("value"), emit="close")
    each, results = 2 if kind == "close-hopping" else 1, 0
    for row in counts.run(rows(), folder, commit_rows=_COMMIT, memory_limit=limit):
        if row["key"] == "last":
            continue
        i, results = results % records, results + 1
        answer = row["key"], row["n"], row["total"]
        check(answer == (key_of(i), 1, i), f"result {results} of windows that closed")
    check(results == each * records, f"{results} results, expected {each * records}")
    phase(END)
    return {}


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
    parser.add_argument("--kinds", default="key-value", help=", ".join((*KINDS, *CLOSING)))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    for name, lines in measure(**vars(given)).items():
        print(f"{name}: {lines}", flush=True)


def measure(
    records: int,
    operations: int,
    limit: int,
    states: int,
    shards: int,
    kinds: str = "key-value",
    folder: Path | None = None,
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
        for kind in kinds.split(","):
            path = str(Path(place, kind))
            if kind in CLOSING:
                add(kind, watched.call(f"{_MODULE}:closing", folder=path, kind=kind, **sizes))
                continue
            given = {"folder": path, "kind": kind, "states": states, "operations": operations}
            add(f"{states} states, {kind}", watched.call(f"{_MODULE}:states", **given, **sizes))
        path = str(Path(place, "shards"))
        add(f"{shards} shards", watched.call(f"{_MODULE}:shards", folder=path, shards=shards, **sizes))
        figures = watched.call(f"{_MODULE}:rescaled", folder=path, shards=2 * shards)
        add(f"{shards} shards to {2 * shards}", figures, limited=False)
    return lines


if __name__ == "__main__":
    main()
