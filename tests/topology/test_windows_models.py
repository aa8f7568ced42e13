"""Every kind of window against a full scan, over random streams: results per record, per commit and final, and what is
stored.

The streams have ties, gaps, disorder and late records; the engine is committed at random places and, in between, closed
and reopened. Within a commit records count in canonical order, so that is the order which the oracle is given.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.opening import Tuning
from tests.tools.hooks import check_stores, crash, force_cold
from tests.tools.topology_oracle import KafkaSlidingOracle, Record, Row, SessionOracle, SlidingOracle, TimeOracle

AGGREGATES: dict[str, hs.Aggregator] = {
    "n": hs.Count(),
    "total": hs.Sum("n"),
    "least": hs.Min("n"),
    "most": hs.Max("n"),
    "mean": hs.Mean("n"),
    "last": hs.Last("n"),
    "all": hs.Collect("n"),
}
SMALL = Tuning(frame_records=7, segment_bytes=2000, block_records=8, bucket_divisor=8)


def batches(r: random.Random, count: int, late: int) -> list[list[Record]]:
    """Random records, cut into commits."""
    batches: list[list[Record]] = []
    now = 0
    for _ in range(count):
        now += r.choice([0, 0, 1, 1, 2, 3, 9]) if r.random() < 0.97 else r.randint(10, 120)
        ts = max(0, now - r.randint(0, late)) if r.random() < 0.4 else now
        if not batches or r.random() < 0.15:
            batches.append([])
        batches[-1].append((ts, r.choice("abcde"), r.randint(0, 50)))
    return batches


def as_rows(batch: list[Record]) -> list[dict[str, Any]]:
    return [{"user": key, "time": ts, "n": n} for ts, key, n in batch]


def answer(row: Row) -> dict[str, Any]:
    """A row of an oracle as the topology hands it out."""
    key, start, end, values = row
    columns: dict[str, Any] = {"user": key, "window_start": start, "window_end": end}
    if values is None:
        return columns | dict.fromkeys(AGGREGATES)
    return columns | {name: aggregator.of(values) for name, aggregator in AGGREGATES.items()}


def answers(rows: list[Row]) -> list[dict[str, Any]]:
    return [answer(row) for row in rows]


def last_of_each(rows: list[Row]) -> list[Row]:
    last: dict[Any, Row] = {}
    for row in rows:
        last[row[:3]] = row
    return sorted(last.values(), key=lambda row: (row[1], row[0]))


def declared(windows: Any, emit: Any, **options: Any) -> hs.Topology:
    return hs.stream(key="user", timestamp="time").windowed_by(windows, **options).aggregate(emit=emit, **AGGREGATES)


class Reopening:
    """An engine that is closed, crashed or cooled at random between commits, and counts what was dropped all the
    while.
    """

    def __init__(self, topology: hs.Topology, state: Path, r: random.Random) -> None:
        self.topology, self.state, self.r = topology, state, r
        self.before = 0
        self.engine = self.opened()

    def opened(self) -> hs.Engine:
        return hs.Engine(self.topology, self.state, durability="os", _tuning=SMALL)

    def commit(self, batch: list[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        rows = as_rows(batch)
        self.r.shuffle(rows)  # the order of arrival within a commit does not count
        at_once = self.engine.process_many(rows)
        at_end = self.engine.commit()
        store = self.engine.states[0]
        check_stores(store)
        chance = self.r.random()
        if chance < 0.1:
            force_cold(store)
        elif chance < 0.3:
            if chance < 0.15:
                store.checkpoint(wait=True)
            self.before += self.engine.dropped
            if chance < 0.2:
                crash(store)
            else:
                self.engine.close()
            self.engine = self.opened()
        return at_once, at_end

    @property
    def dropped(self) -> int:
        return self.before + self.engine.dropped


@pytest.mark.parametrize(
    ("windows", "advance"),
    [
        (hs.TumblingWindows(10), 10),
        (hs.TumblingWindows(25, grace=30), 25),
        (hs.HoppingWindows(10, 5, grace=7), 5),
        (hs.HoppingWindows(10, 3), 3),
        (hs.HoppingWindows(60, 10, grace=20), 10),
    ],
    ids=repr,
)
@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.stress
def test_time_windows(windows: Any, advance: int, emit: str, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        oracle = TimeOracle(windows.size_ms, advance, windows.grace_ms)
        run = Reopening(declared(windows, emit), tmp_path / f"{number}", r)
        emitted: list[dict[str, Any]] = []
        for batch in batches(r, 300, 60):
            rows: list[Row] = []
            closed_before = len(oracle.closed(oracle.now))
            for record in sorted(batch):
                rows += oracle.process(*record)
            at_once, at_end = run.commit(batch)
            if emit == "record":
                assert (at_once, at_end) == (answers(rows), [])
            elif emit == "commit":
                assert (at_once, at_end) == ([], answers(last_of_each(rows)))
            else:
                closed = oracle.closed(oracle.now)
                assert at_once == []
                assert at_end == answers(sorted(closed, key=lambda row: (row[1], row[0]))[closed_before:])
                emitted += at_end
            assert run.engine.windows() == answers(oracle.live())
        assert run.dropped == oracle.dropped
        places = [(row["user"], row["window_start"]) for row in emitted]
        assert len(places) == len(set(places)), "a window was emitted as final twice"
        run.engine.close()


@pytest.mark.parametrize("windows", [hs.SessionWindows(5), hs.SessionWindows(3, grace=20)], ids=repr)
@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.stress
def test_session_windows(windows: hs.SessionWindows, emit: str, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        oracle = SessionOracle(windows.gap_ms, windows.grace_ms, final=emit == "close")
        run = Reopening(declared(windows, emit), tmp_path / f"{number}", r)
        emitted: list[dict[str, Any]] = []
        seen: dict[Any, dict[str, Any]] = {}  # what a consumer of the last results holds
        for batch in batches(r, 300, 60):
            rows: list[Row] = []
            for record in sorted(batch):
                rows += oracle.process(*record)
            at_once, at_end = run.commit(batch)
            if emit == "record":
                assert (order_free(at_once), at_end) == (order_free(answers(rows)), [])
            elif emit == "close":
                assert at_once == []
                emitted += at_end
            else:
                assert at_once == []
                for row in at_end:
                    place = (row["user"], row["window_start"], row["window_end"])
                    if row["n"] is None:
                        del seen[place]  # only what was handed out is ever taken back
                    else:
                        seen[place] = row
                # a consumer that applies removals holds every session of the oracle, and no other
                final = {(r["user"], r["window_start"], r["window_end"]): r for r in answers(oracle.all())}
                assert order_free(seen.values()) == order_free(final.values())
            assert order_free(run.engine.windows()) == order_free(answers(oracle.live()))
        assert run.dropped == oracle.dropped
        if emit == "close":
            assert order_free(emitted) == order_free(answers(oracle.closed(oracle.now)))
        run.engine.close()


def order_free(rows: Any) -> list[str]:
    """Rows without their order, and without that of values, which a merge of sessions decides."""
    return sorted(
        repr({name: sorted(v) if isinstance(v, list) else v for name, v in row.items() if name != "last"})
        for row in rows
    )


@pytest.mark.parametrize("size", [0, 1, 10, 45])
@pytest.mark.parametrize("emit", ["record", "commit"])
@pytest.mark.stress
def test_sliding_windows(size: int, emit: str, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        oracle = SlidingOracle(size)
        run = Reopening(declared(hs.SlidingWindows(size), emit), tmp_path / f"{number}", r)
        for batch in batches(r, 300, 60):
            rows: list[Row] = []
            for record in sorted(batch):
                rows += oracle.process(*record)
            at_once, at_end = run.commit(batch)
            if emit == "record":
                assert (at_once, at_end) == (answers(rows), [])
            else:
                last = {row[0]: row for row in rows}
                assert at_once == []
                assert order_free(at_end) == order_free(answers(list(last.values())))
            assert run.engine.windows() == answers(oracle.live())
        assert run.dropped == oracle.dropped
        run.engine.close()


@pytest.mark.parametrize("size", [0, 1, 10, 25])
@pytest.mark.parametrize("emit", ["record", "commit"])
@pytest.mark.stress
def test_sliding_windows_of_kafka(size: int, emit: str, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        oracle = KafkaSlidingOracle(size)
        # a grace beyond the stream: nothing is late, so that windows follow from the records alone
        run = Reopening(declared(hs.KafkaSlidingWindows(size, grace=100_000), emit), tmp_path / f"{number}", r)
        for batch in batches(r, 120, 60):
            rows: list[Row] = []
            for record in sorted(batch):
                rows += oracle.process(*record)
            at_once, at_end = run.commit(batch)
            if emit == "record":
                assert (order_free(at_once), at_end) == (order_free(answers(rows)), [])
            else:
                assert (at_once, order_free(at_end)) == ([], order_free(answers(last_of_each(rows))))
            assert order_free(run.engine.windows()) == order_free(answers(oracle.all()))
        run.engine.close()


@pytest.mark.parametrize("size", [0, 1, 10, 25])
@pytest.mark.stress
def test_final_windows_of_kafka_come_once_and_complete(size: int, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        oracle = KafkaSlidingOracle(size)
        windows = hs.KafkaSlidingWindows(size, grace=0)
        run = Reopening(declared(windows, "close"), tmp_path / f"{number}", r)
        now, emitted = -1, []
        for batch in batches(r, 200, 0):
            for record in sorted(batch):
                oracle.process(*record)
                now = max(now, record[0])
            emitted += run.commit(batch)[1]
        assert run.dropped == 0
        assert order_free(emitted) == order_free(answers(oracle.closed(now)))
        run.engine.close()
