"""What a restart is estimated to take against what it takes: every kind of store, by rows and by columns, in several
sizes.

    python -m benchmarks.suites.restart_estimate [--sizes 10000,100000,1000000] [--cases sliding] [--runs 3] [--json]

Each case fills a state without a checkpoint, dies, and is opened in a process of its own: a plan predicts,
`open` is measured, in processor time, since others share the machine. What was counted is compared with what the
changelog holds, record by record. The last column is what a record cost beyond its bytes and commits, in nanoseconds on
the reference machine: the weights of `hybridstore/stores/kinds.py` come from there.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from time import process_time
from typing import Any, Final

import hybridstore as hs
from benchmarks.measure import fresh_process
from benchmarks.measure.result import Result, Target, line, show
from benchmarks.measure.state import NEVER, open_state, scratch
from benchmarks.measure.timing import Spread, check, stopwatch
from changelog.codec import unpack
from changelog.mutation import mutations, records_of
from changelog.reader import SegmentReader
from changelog.segment import list_segments, segment_name

_START: Final = 1_700_000_000_000
_COMMIT: Final = 10_000
# A prediction is good when it is within this factor of what happens.
WITHIN: Final = 2.0
Put = Callable[[int, int], None]


class _Rows:
    """Keys (each some twenty times, but for unique ones), values and times of a case."""

    def __init__(self, count: int) -> None:
        dice = random.Random(count)
        self.count = count
        self.keys = [f"key-{dice.randrange(max(1, count // 20)):07d}" for _ in range(count)]
        self.unique = [f"key-{i:08d}" for i in range(count)]
        self.values = [i * 7919 % 1_000_003 for i in range(count)]
        self.times = list(range(_START, _START + count))


def _put_rows(put: Callable[..., Any], *columns: list[Any]) -> Put:
    def some(start: int, end: int) -> None:
        for row in zip(*(column[start:end] for column in columns), strict=True):
            put(*row)

    return some


def _put_columns(put: Callable[..., Any], *columns: list[Any]) -> Put:
    return lambda start, end: put(*(column[start:end] for column in columns)) and None


def _deleting(state: Any, rows: _Rows) -> Put:
    store = state.key_value("s")

    def some(start: int, end: int) -> None:
        for i in range(start, end):
            store.put(rows.keys[i], rows.values[i])
            if i % 2:
                store.delete(rows.keys[i])

    return some


def _merging(state: Any, rows: _Rows) -> Put:
    """Sessions that grow, as a topology logs them: one is removed, one put."""
    store, spans = state.session("s", retention=rows.count // 2 + 1), dict[str, tuple[int, int]]()

    def some(start: int, end: int) -> None:
        for key, value, ts in zip(*(c[start:end] for c in (rows.keys, rows.values, rows.times)), strict=True):
            if key in spans:
                store.delete(key, *spans[key])
            spans[key] = spans.get(key, (ts, ts))[0], ts
            store.put(key, value, *spans[key])

    return some


def _late(rows: _Rows) -> list[int]:
    dice = random.Random(1)
    return [ts if i % 20 else max(_START, ts - dice.randrange(rows.count // 4 + 1)) for i, ts in enumerate(rows.times)]


def _pair(rows: _Rows, store: Any, keys: list[str], *more: list[int]) -> tuple[Put, Put]:
    return _put_rows(store.put, keys, rows.values, *more), _put_columns(store.put_columns, keys, rows.values, *more)


def cases() -> dict[str, Callable[[Any, _Rows], Put]]:
    """Return how each case puts rows: given a state and the rows, a function that puts those from one number to
    another.
    """
    kinds: dict[str, Callable[[Any, _Rows], tuple[Put, Put]]] = {
        "key_value": lambda state, rows: _pair(rows, state.key_value("s"), rows.keys),
        "key_value, new keys": lambda state, rows: _pair(rows, state.key_value("s"), rows.unique),
        "key_value, ttl": lambda state, rows: _pair(
            rows, state.key_value("s", ttl=rows.count // 10 + 1), rows.keys, rows.times
        ),
        "window": lambda state, rows: _pair(
            rows, state.window("s", retention=rows.count // 2 + 1), rows.keys, rows.times
        ),
        "window, 5 % late": lambda state, rows: _pair(
            rows, state.window("s", retention=rows.count // 2 + 1), rows.keys, _late(rows)
        ),
        "window, duplicates": lambda state, rows: _pair(
            rows, state.window("s", retention=rows.count // 2 + 1, retain_duplicates=True), rows.keys, rows.times
        ),
        "session": lambda state, rows: (
            _put_rows(
                state.session("s", retention=rows.count // 2 + 1).put,
                rows.keys,
                rows.values,
                [ts - 5 for ts in rows.times],
                rows.times,
            ),
            _put_columns(
                state.session("s", retention=rows.count // 2 + 1).put_columns,
                rows.keys,
                rows.values,
                [ts - 5 for ts in rows.times],
                rows.times,
            ),
        ),
        "sliding": lambda state, rows: (
            _put_rows(_sliding(state, rows).add, rows.keys, rows.values, rows.times),
            _put_columns(_sliding(state, rows).add_columns, rows.keys, rows.values, rows.times),
        ),
        "suppression": lambda state, rows: _pair(
            rows, state.suppression("s", time_limit=rows.count // 10), rows.keys, rows.times
        ),
    }
    putters: dict[str, Callable[[Any, _Rows], Put]] = {}
    for name, make in kinds.items():
        for i, way in enumerate(("rows", "columns")):
            putters[f"{name}: {way}"] = partial(_way, make, i)
    return putters | {"key_value, deletes: rows": _deleting, "session, growing: rows": _merging}


def _way(make: Callable[[Any, _Rows], tuple[Put, Put]], which: int, state: Any, rows: _Rows) -> Put:
    return make(state, rows)[which]


def _sliding(state: Any, rows: _Rows) -> Any:
    return state.sliding("s", size=rows.count // 10 + 1, aggregator=hs.Sum())


def fill(folder: Path, name: str, count: int) -> None:
    """Make the state of a case, as a process leaves it that was killed."""
    if name == "topology":
        topology = (
            hs.stream(key="k", timestamp="t")
            .windowed_by(hs.SlidingWindows(count // 10 + 1))
            .aggregate(n=hs.Count(), mean=hs.Mean("v"))
        )
        rows = _Rows(count)
        given = [{"k": k, "v": v, "t": t} for k, v, t in zip(rows.keys, rows.values, rows.times, strict=True)]
        check(sum(1 for _ in topology.run(given, folder, checkpoints=NEVER)) == count, "results of the topology")
        return
    with open_state(folder) as state:
        put = cases()[name](state, _Rows(count))
        for start in range(0, count, _COMMIT):
            put(start, min(count, start + _COMMIT))
            state.commit()
        state._abandon()


def counted(folder: Path) -> dict[int, int]:
    """Count the records of a changelog by mutation code, reading every one."""
    counts: dict[int, int] = {}
    for first in list_segments(folder / "changelog"):
        for version in SegmentReader(folder / "changelog" / segment_name(first), last=True).versions():
            for body in version.bodies:
                for store, op, arguments in mutations(unpack(body)):
                    code = store * 16 + op
                    counts[code] = counts.get(code, 0) + records_of(op, arguments[0])
    return counts


def reopen(folder: str) -> dict[str, float]:
    """Predict, and restart: seconds of processor time. For a fresh process."""
    from hybridstore.state.policy import _SECONDS_PER_BYTE, _SECONDS_PER_COMMIT, SPEED
    from hybridstore.state.restart import plan as plan_of

    # imports are not a restart's
    from hybridstore.stores import key_value, session, sliding, suppression, window  # noqa: F401

    path = Path(folder)
    plan = plan_of(path)
    factor = SPEED.factor
    started = process_time()
    state = hs.open(path, checkpoints=NEVER, progress=lambda *_: None)
    spent = process_time() - started
    report = state.restore_report
    check(plan.tail_counts == report.tail_counts == counted(path), "the number of records")
    state._abandon()
    known = plan.tail_versions * _SECONDS_PER_COMMIT + plan.tail_bytes * _SECONDS_PER_BYTE
    weight = (spent / factor - known) / max(1, plan.tail_records)
    return {"predicted": plan.duration_ms / 1000, "spent": spent, "weight": weight * 1e9, "records": plan.tail_records}


def measure(folder: Path, sizes: list[int], runs: int = 3, wanted: str = "") -> Result:
    """Measure all cases whose names hold `wanted`, in all sizes."""
    result = Result("restart-estimate", {"sizes": ", ".join(f"{size:,}" for size in sizes), "runs": runs})
    with stopwatch() as clock:
        for name in [*cases(), "topology"]:
            for size in sizes if wanted in name else []:
                with scratch(folder) as place:
                    state = place / "state"
                    fill(state, name, size)
                    target = "benchmarks.suites.restart_estimate:reopen"
                    answers = [fresh_process.call(target, folder=str(state)) for _ in range(runs)]
                spent, predicted = (
                    Spread(tuple(answer[what] for answer in answers)) for what in ("spent", "predicted")
                )
                weight = sorted(answer["weight"] for answer in answers)[len(answers) // 2]
                entry = line(
                    f"{name}: {size:,}",
                    spent,
                    "ms",
                    base=predicted,
                    against="predicted",
                    target=Target(WITHIN),
                    note=f"predicted {predicted.middle * 1000:.1f} ms; a record cost {weight:.0f} ns",
                )
                result.lines.append(entry)
        ratios = [entry.ratio for entry in result.lines if entry.ratio]
        result.notes.append(
            f"actual to predicted: {min(ratios):.2f} to {max(ratios):.2f}, "
            f"{sum(1 / WITHIN <= ratio <= WITHIN for ratio in ratios)} of {len(ratios)} within {WITHIN:g}x"
        )
    result.seconds = clock.seconds
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What a restart is estimated to take against what it takes.")
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--cases", default="", help="only cases whose names hold this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    result = measure(Path(gettempdir()), [int(size) for size in asked.sizes.split(",")], asked.runs, asked.cases)
    if asked.json:
        print(json.dumps(result.to_json()))
    else:
        show(result)


if __name__ == "__main__":
    main()
