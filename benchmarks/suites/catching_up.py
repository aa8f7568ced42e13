"""Catching up: what a row of the changelog costs a worker that has an older version in memory, and a restart, by kind
of store.

    untouched   load the version, and a batch on keys of which no segment says anything
    touched     load it, and a batch on every key of the segments, less what the batch costs where nothing waits
    restart     a changelog without a checkpoint: opened, and opened with every row in its place

Processor time for one row. Each answer is compared with that of a state in which every row was in its place before, and
with what was put. `python -m benchmarks.suites.catching_up [--rows 128000] [--segments 16] [--repeats 3]`; it runs on
older versions, too: `PYTHONPATH=<their checkout> python <this file>`.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from time import process_time
from typing import Any, NamedTuple

import hybridstore as hs
from benchmarks.measure.result import Result, Target, line, show
from benchmarks.measure.state import NEVER, open_state, scratch
from benchmarks.measure.timing import Spread, check, stopwatch
from benchmarks.measure.workload import START_MS, Rows, Stream
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import operator_storage
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy

KEYS = 20_000
FEW = 100
_PER_ROW = Target(0.3, "value")

Columns = tuple[list[Any], ...]
Batch = Callable[[Any, Columns], Any]


class Kind(NamedTuple):
    """A kind of store: how it is opened in a state, its columns of a stream, and its ops on a batch by name.

    The first op puts rows by column.
    """

    open: Callable[[Any, int], Any]
    columns: Callable[[Rows], Columns]
    batches: dict[str, Batch]
    content: Callable[[Any], list[Any]] = lambda store: list(store.all())

    def put(self, store: Any, columns: Columns) -> Any:
        """Put rows by column."""
        return next(iter(self.batches.values()))(store, columns)


def _fetch(store: Any, columns: Columns) -> list[Any]:
    return [list(store.fetch(key)) for key in columns[0]]


KINDS: dict[str, Kind] = {
    "key_value": Kind(
        lambda state, span: state.key_value("s"),
        lambda rows: (rows.keys, rows.values),
        {
            "put_columns": lambda store, columns: store.put_columns(*columns),
            "get_many": lambda store, columns: store.get_many(columns[0]),
        },
    ),
    "key_value, ttl": Kind(
        lambda state, span: state.key_value("s", ttl=span),
        lambda rows: (rows.keys, rows.values, rows.times),
        {
            "put_columns": lambda store, columns: store.put_columns(*columns),
            "get_many": lambda store, columns: store.get_many(columns[0]),
        },
    ),
    "window": Kind(
        lambda state, span: state.window("s", retention=span),
        lambda rows: (rows.keys, rows.values, rows.times),
        {
            "put_columns": lambda store, columns: store.put_columns(*columns),
            "get_many": lambda store, columns: store.get_many(columns[0], columns[2][-1]),
            "fetch, key by key": _fetch,
        },
    ),
    "session": Kind(
        lambda state, span: state.session("s", retention=span),
        lambda rows: (rows.keys, rows.values, rows.times, [ts + 10 for ts in rows.times]),
        {
            "put_columns": lambda store, columns: store.put_columns(*columns),
            "fetch, key by key": _fetch,
        },
    ),
    "sliding": Kind(
        lambda state, span: state.sliding("s", size=span, aggregator=hs.Sum()),
        lambda rows: (rows.keys, [ts % 1000 for ts in rows.times], rows.times),
        {
            "add_columns": lambda store, columns: store.add_columns(*columns),
            "hold_columns": lambda store, columns: [
                None if window is None else window.value() for window in store.hold_columns(*columns)
            ],
        },
    ),
    "suppression": Kind(
        lambda state, span: state.suppression("s", time_limit=span // 8),
        lambda rows: (rows.keys, rows.values, rows.times),
        {"put_columns": lambda store, columns: store.put_columns(*columns)},
        lambda store: list(store.buffered()),
    ),
}


class _Shard:
    """The files of one shard: a version that holds every key, and `segments` behind it that hold the rows."""

    def __init__(self, folder: Path, kind: Kind, rows: int, segments: int, keys: int) -> None:
        self.kind = kind
        self.rows, self.segments = rows, segments
        self.span = rows + keys + 1000
        self.id = StateStoreId(str(folder), "catching-up", 0)
        self.run, self.attempts = begin(operator_storage(folder, "catching-up"), 0), count(1)
        stream = Stream(keys + rows, keys=keys, late=0.05, disorder_ms=min(10_000, rows)).rows()
        self.keys = sorted(set(stream.keys))
        writer = self.provider(ShardCache())
        store = writer.get_store(0)
        base = stream.part(0, keys)
        kind.put(kind.open(store, self.span), kind.columns(base))
        store.commit()
        size = rows // segments
        for number in range(segments):
            store = writer.get_store(1 + number)
            start = keys + number * size
            kind.put(kind.open(store, self.span), kind.columns(stream.part(start, start + size)))
            store.commit()
        self.newest = START_MS + keys + rows
        self.expected = kind.content(kind.open(writer.get_store(1 + segments), self.span))

    def provider(self, cache: ShardCache) -> StateStoreProvider:
        """Return a provider of the shard that never makes a checkpoint."""
        seldom = CheckpointPolicy(max_restore=timedelta(days=1))
        return StateStoreProvider(self.id, policy=seldom, cache=cache, claim=self.run, attempts=self.attempts)

    def batch(self, keys: list[str]) -> Columns:
        """Return rows of these keys, newer than all that was put."""
        values = [b"a value of the batch" for _ in keys]
        return self.kind.columns(Rows(keys, values, [self.newest + i * 100 // len(keys) for i in range(len(keys))]))

    def catch_up(self, batch: Batch, columns: Columns, *, settled: bool) -> tuple[float, float, list[Any], list[Any]]:
        """Take the first version into memory, then load the newest and do the batch. Return the seconds of both, the
        batch's answer, and what the store holds before it (settled) or behind it.
        """
        cache = ShardCache()
        reader = self.provider(cache)
        first = reader.get_store(1)
        apply_waiting(first.group)
        cache.give(reader.path, self.id.identity, first.shard)
        gc.collect()
        gc.freeze()
        started = process_time()
        state = reader.get_store(1 + self.segments)
        store = self.kind.open(state, self.span)
        loaded = process_time() - started
        check(state.loaded.kind == "catch-up", f"the shard was loaded by {state.loaded.kind}")
        before: list[Any] = []
        if settled:
            apply_waiting(state.group)
            before = self.kind.content(store)
        started = process_time()
        answer = batch(store, columns)
        done = process_time() - started
        gc.unfreeze()
        return loaded, done, answer, before or self.kind.content(store)


def apply_waiting(group: Any) -> None:
    """Put every row in its place."""
    getattr(group, "apply_waiting", lambda: None)()


def _restart(folder: Path, kind: Kind, span: int, content: list[Any]) -> tuple[float, float, float]:
    """Open a state; return the seconds of the changelog, as the report says, and of processor: to open it, and to have
    every row in place.
    """
    gc.collect()
    gc.freeze()
    started = process_time()
    state = hs.open(folder, durability="os", checkpoints=NEVER, progress=lambda *_: None)
    opened = process_time() - started
    apply_waiting(state.group)
    whole = process_time() - started
    gc.unfreeze()
    store = kind.open(state, span)
    check(kind.content(store) == content, "what was restored is not what was put")
    state._abandon()
    return state.restore_report.tail_ms / 1000, opened, whole


def _restarts(result: Result, folder: Path, name: str, rows: int, keys: int, *, single: bool, repeats: int) -> None:
    """Measure restarts with a changelog of `rows`, put one by one or by column."""
    kind = KINDS[name]
    stream = Stream(rows, keys=keys, late=0.05, disorder_ms=1000).rows()
    span = rows + 1
    with scratch(folder) as place:
        state = open_state(place / "state")
        store = kind.open(state, span)
        columns = kind.columns(stream)
        for at in range(0, rows, 10_000):
            part = [column[at : at + 10_000] for column in columns]
            if single:
                put = store.add if name == "sliding" else store.put
                for row in zip(*part, strict=True):
                    put(*row)
            else:
                kind.put(store, tuple(part))
            state.commit()
        content = kind.content(store)
        state._abandon()
        runs = [_restart(place / "state", kind, span, content) for _ in range(repeats)]
    what = f"{name}: restart, {rows:,} rows {'one by one' if single else 'by column'}"
    # 20,000 in 3 ms, a million in 300
    bound = Target(rows * (0.15e-3 if single else 0.3e-3), "value")
    for text, samples in zip(
        ("by the clock", "processor, opened", "processor, all in place"), zip(*runs, strict=True), strict=True
    ):
        target = bound if text != "processor, all in place" else None
        result.lines.append(line(f"{what}, {text}", Spread(tuple(samples)), "ms", target=target))


def measure(
    folder: Path,
    *,
    rows: int = 128_000,
    segments: int = 16,
    repeats: int = 3,
    tail: int = 20_000,
    columns: int = 1_000_000,
    keys: int = KEYS,
    kinds: list[str] | None = None,
) -> Result:
    """Measure every kind of store and op. Raises WrongAnswerError when a store answers otherwise than one in which
    nothing waits.
    """
    result = Result("catching up", {"rows": rows, "segments": segments, "keys": keys, "runs": repeats})
    with stopwatch() as clock:
        for name in kinds or list(KINDS):
            kind = KINDS[name]
            with scratch(folder) as place:
                shard = _Shard(place, kind, rows, segments, keys)
                for op, batch in kind.batches.items():
                    for what, of_batch in (
                        ("untouched", [f"new-{i}" for i in range(FEW)]),
                        ("touched", shard.keys if "by" not in op else shard.keys[:: len(shard.keys) // FEW]),
                    ):
                        asked = shard.batch(of_batch)
                        samples = []
                        for _ in range(repeats):
                            _, bare, answer, before = shard.catch_up(batch, asked, settled=True)
                            check(before == shard.expected, f"{name}: what was caught up with is not what was put")
                            loaded, done, reached, _ = shard.catch_up(batch, asked, settled=False)
                            check(reached == answer, f"{name}: {op} on {what} keys")
                            samples.append((loaded + done - bare) / rows)
                        target = _PER_ROW if what == "untouched" else None
                        result.lines.append(line(f"{name}: {op}, {what}", Spread(tuple(samples)), "µs", target=target))
            _restarts(result, folder, name, tail, keys, single=True, repeats=repeats)
            _restarts(result, folder, name, columns, keys, single=False, repeats=repeats)
    result.seconds = clock.seconds
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What a row costs that a worker, or a restart, catches up with.")
    parser.add_argument("--rows", type=int, default=128_000)
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tail", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--kinds", default="", help="kinds of stores, separated by a semicolon")
    asked = parser.parse_args()
    kinds = asked.kinds.split(";") if asked.kinds else None
    show(
        measure(
            Path(gettempdir()),
            rows=asked.rows,
            segments=asked.segments,
            repeats=asked.repeats,
            tail=asked.tail,
            columns=asked.columns,
            kinds=kinds,
        )
    )


if __name__ == "__main__":
    main()
