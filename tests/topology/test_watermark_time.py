"""Where a watermark is the time, it alone says what is late, what closes and what expires: every kind of window against
full scans.

Streams run far ahead of the watermark, and behind it; shards miss batches, are closed, crash and go cold. What Spark's
own operators do on such streams is compared in `tests/spark/test_watermark.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.state.opening import Tuning
from hybridstore.topology.batch import Records
from hybridstore.topology.custom import CustomLogic
from hybridstore.topology.results import ResultColumns
from hybridstore.topology.shard_run import ShardRun
from tests.tools.hooks import check_stores, crash, force_cold
from tests.tools.topology_oracle import KafkaSlidingOracle, Record, Row, SlidingOracle, in_event_order

SMALL = Tuning(frame_records=7, segment_bytes=2000, block_records=8, bucket_divisor=8)


@dataclass
class FinalOracle:
    """Windows by a watermark. `windows_of(ts)` gives the bounds of a record's windows and the time by which each has
    closed.
    """

    windows_of: Callable[[int], list[tuple[int, int, int]]]
    dropped: int = 0
    open: dict[tuple[int, int, Any], tuple[int, list[Any]]] = field(default_factory=dict)

    def batch(self, records: list[Record], clock: Watermark) -> tuple[list[Row], list[Row], list[Row]]:
        """Return the results per record, those of the windows that changed, and the final ones."""
        each: list[Row] = []
        for ts, key, value in sorted(records):
            for start, end, closes in self.windows_of(ts):
                if closes <= clock.late_ms:
                    self.dropped += 1
                    continue
                _, values = self.open.setdefault((start, end, key), (closes, []))
                values.append((ts, value))
                each.append((key, start, end, in_event_order(values)))
        changed = {row[:3]: row for row in each}
        final = [window for window, (closes, _) in self.open.items() if closes <= clock.now_ms]
        rows = [
            (key, start, end, in_event_order(self.open.pop((start, end, key))[1])) for start, end, key in sorted(final)
        ]
        return each, sorted(changed.values(), key=lambda row: (row[1], row[0])), rows


@dataclass
class SessionOracle:
    """Sessions by a watermark: a record is late on its own account, and what has closed is not merged."""

    gap: int
    grace: int
    dropped: int = 0
    sessions: list[tuple[Any, int, int, list[Any]]] = field(default_factory=list)

    def batch(self, records: list[Record], clock: Watermark) -> list[Row]:
        """Return the sessions that close."""
        span = self.gap + self.grace
        for ts, key, value in sorted(records):
            if ts + span <= clock.late_ms:
                self.dropped += 1
                continue
            near = [
                row
                for row in self.sessions
                if row[0] == key and row[2] + span > clock.late_ms and row[1] - self.gap <= ts <= row[2] + self.gap
            ]
            self.sessions = [row for row in self.sessions if row not in near]
            values = [pair for row in near for pair in row[3]] + [(ts, value)]
            bounds = [ts, *(row[1] for row in near), *(row[2] for row in near)]
            self.sessions.append((key, min(bounds), max(bounds), values))
        closed = [row for row in self.sessions if row[2] + span <= clock.now_ms]
        self.sessions = [row for row in self.sessions if row not in closed]
        ordered = sorted(closed, key=lambda row: (row[2], row[0], -row[1]))
        return [(key, start, end, in_event_order(pairs)) for key, start, end, pairs in ordered]


class Shard:
    """A shard whose state is closed, crashed or cooled at random between batches."""

    def __init__(self, topology: hs.Topology, state: Path, r: random.Random) -> None:
        self.topology, self.path, self.r = topology, state, r
        self.before = 0
        self.open()

    def open(self) -> None:
        self.state = hs.open(self.path, durability="os", _tuning=SMALL)
        self.run = ShardRun(self.topology, self.state.group, clocked=True)

    def batch(self, records: list[Record], clock: Watermark) -> list[Row]:
        """Return the results of a batch, and end it."""
        rows = self.r.sample(records, len(records))
        columns = [row[1] for row in rows], [row[2] for row in rows], [row[0] for row in rows]
        results = self.run.process_batch(Records(*columns), clock)
        self.state.commit()
        check_stores(self.state)
        chance = self.r.random()
        if chance < 0.1:
            force_cold(self.state)
        elif chance < 0.3:
            if chance < 0.15:
                self.state.checkpoint(wait=True)
            self.before += self.run.dropped
            if chance < 0.2:
                crash(self.state)
            else:
                self.state.close()
            self.open()
        if isinstance(results, ResultColumns):
            return list(zip(*results.keys, results.starts, results.ends, *results.aggregates, strict=True))
        return [(key, start, end, values[0] if values else None) for key, start, end, values, _ in results]

    @property
    def dropped(self) -> int:
        return self.before + self.run.dropped


def streams(r: random.Random, batches: int, delay: int, late: int) -> list[tuple[list[Record], Watermark]]:
    """Batches with their watermarks, as Spark would make them, less those that the shard was not called in."""
    stream = []
    now = seen = passed = 0
    for _ in range(batches):
        records: list[Record] = []
        for _ in range(r.choice([0, 1, 2, 5, 12])):
            now += r.choice([0, 0, 1, 1, 2, 3, 9]) if r.random() < 0.95 else r.randint(10, 150)
            records.append((max(0, now - r.choice([0, 0, r.randint(0, late)])), r.choice("abc"), r.randint(0, 50)))
        before, passed = passed, max(passed, seen - delay)
        if r.random() < 0.8:
            stream.append((records, Watermark(before, passed)))
        seen = max([seen, *(ts for ts, _, _ in records)])
    return [*stream, ([], Watermark(passed, now + 10_000))]


def declared(windows: Any, emit: Any, *, suppressed: bool = False) -> hs.Topology:
    # hopping windows that are kept longer are kept whole
    kept = windows.default_retention_ms + 1 if isinstance(windows, hs.HoppingWindows) else None
    declared = hs.stream(key="user", timestamp="time").windowed_by(windows, retention=kept)
    topology = declared.aggregate(emit=emit, all=hs.Collect("n"))
    return topology.hold("close") if suppressed else topology


def windows_of(windows: Any) -> Callable[[int], list[tuple[int, int, int]]]:
    size, grace = windows.size_ms, windows.grace_ms
    advance = getattr(windows, "advance_ms", size)
    return lambda ts: [
        (start, start + size, start + size + grace) for start in range(0, ts + 1, advance) if start <= ts < start + size
    ]


def summed(windows: Any, emit: Any) -> hs.Topology:
    """As `declared`, but hopping windows are kept as panes."""
    return hs.stream(key="user", timestamp="time").windowed_by(windows).aggregate(emit=emit, all=hs.Sum("n"))


@pytest.mark.stress
@pytest.mark.parametrize("emit", ["record", "commit", "close", "held"])
@pytest.mark.parametrize(
    "windows",
    [
        hs.TumblingWindows(20),
        hs.TumblingWindows(15, grace=9),
        hs.HoppingWindows(20, 5, grace=4),
        hs.HoppingWindows(20, 7),
    ],
    ids=repr,
)
def test_windows_by_a_watermark(windows: Any, emit: str, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        suppressed = emit == "held"
        panes = not suppressed and isinstance(windows, hs.HoppingWindows) and number % 2 == 0
        topology = (
            summed(windows, emit)
            if panes
            else declared(windows, "record" if suppressed else emit, suppressed=suppressed)
        )
        assert topology.paned == panes
        shard, oracle = Shard(topology, tmp_path / f"{number}", r), FinalOracle(windows_of(windows))
        finals = 0
        for records, clock in streams(r, 40, 30, 60):
            results = shard.batch(records, clock)
            each, changed, final = oracle.batch(records, clock)
            expected = {"record": each, "commit": changed}.get(emit, final)
            if panes:
                expected = [(key, start, end, sum(values or ())) for key, start, end, values in expected]
            if suppressed:
                results, expected = sorted(results), sorted(expected)
            assert results == expected, (seed, number)
            assert shard.dropped == oracle.dropped
            finals += len(final)
        assert finals
        shard.state.close()


@pytest.mark.stress
@pytest.mark.parametrize("emit", ["close", "record", "commit"])
@pytest.mark.parametrize("windows", [hs.SessionWindows(10), hs.SessionWindows(6, grace=7)], ids=repr)
def test_sessions_by_a_watermark(windows: hs.SessionWindows, emit: str, tmp_path: Path, seed: int, rounds: int) -> None:
    """Final ones as they are, and what a buffer makes of every change."""
    for number in range(rounds):
        r = random.Random(seed + number)
        shard = Shard(declared(windows, emit, suppressed=emit != "close"), tmp_path / f"{number}", r)
        oracle = SessionOracle(windows.gap_ms, windows.grace_ms)
        finals = 0
        for records, clock in streams(r, 40, 30, 60):
            results, expected = shard.batch(records, clock), oracle.batch(records, clock)
            if emit != "close":
                results, expected = sorted(results), sorted(expected)
            # records join in the order of time; what is joined stands before
            assert [(*row[:3], sorted(row[3] or ())) for row in results] == [
                (*row[:3], sorted(row[3] or ())) for row in expected
            ], (seed, number)
            assert shard.dropped == oracle.dropped
            finals += len(results)
        assert finals
        shard.state.close()


@pytest.mark.stress
@pytest.mark.parametrize("size", [5, 20, 100])
@pytest.mark.parametrize("emit", ["record", "commit"])
def test_sliding_windows_by_a_watermark(emit: str, size: int, tmp_path: Path, seed: int, rounds: int) -> None:
    """A record counts when the watermark has come to it, so that its window holds what is older, however it arrived."""
    late_in_all = 0
    for number in range(rounds):
        r = random.Random(seed + number)
        shard = Shard(declared(hs.SlidingWindows(size), emit), tmp_path / f"{number}", r)
        oracle = SlidingOracle(size)
        ahead: list[Record] = []
        late = 0
        for records, clock in streams(r, 40, 30, 60 + 2 * size):
            results = shard.batch(records, clock)
            on_time = [record for record in records if record[0] >= clock.late_ms - size]
            late += len(records) - len(on_time)
            due = [record for record in on_time + ahead if record[0] <= clock.now_ms]
            ahead = [record for record in on_time + ahead if record[0] > clock.now_ms]
            each = [row for record in sorted(due) for row in oracle.process(*record)]
            oracle.now = max(oracle.now, clock.now_ms)
            last = {row[0]: row for row in each}
            assert results == (each if emit == "record" else [last[key] for key in sorted(last)]), (seed, number)
            assert shard.dropped == late + oracle.dropped
        assert not ahead
        late_in_all += late
        shard.state.close()
    # A stream may have no late record; twenty have some.
    assert late_in_all or rounds < 20


@pytest.mark.stress
@pytest.mark.parametrize("suppressed", [False, True])
def test_sliding_windows_of_kafka_by_a_watermark(suppressed: bool, tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        grace = r.choice([0, 15, 40])
        windows = hs.KafkaSlidingWindows(20, grace=grace)
        shard = Shard(
            declared(windows, "record" if suppressed else "close", suppressed=suppressed), tmp_path / f"{number}", r
        )
        oracle = KafkaSlidingOracle(20)
        closed: set[Any] = set()
        for records, clock in streams(r, 30, 30, 60):
            records = [record for record in records if record[0] >= clock.late_ms - grace]
            results = shard.batch(records, clock)
            for record in sorted(records):
                oracle.process(*record)
            final = [row for row in oracle.closed(clock.now_ms - grace) if row[:3] not in closed]
            closed.update(row[:3] for row in final)
            assert sorted((*row[:3], sorted(row[3] or ())) for row in results) == sorted(
                (*row[:3], sorted(row[3] or ())) for row in final
            ), (seed, number)
        assert shard.dropped == 0
        shard.state.close()


@pytest.mark.parametrize("emit", ["close", "record", "commit"])
def test_a_session_that_was_final_is_never_merged_again(emit: str, tmp_path: Path) -> None:
    """A late record that would have joined it begins a session of its own, if it is not late itself."""
    shard = Shard(
        declared(hs.SessionWindows(10), emit, suppressed=emit != "close"), tmp_path / "state", random.Random(3)
    )
    assert shard.batch([(0, "k", 1), (30, "k", 2)], Watermark(0, 0)) == []
    assert shard.batch([], Watermark(0, 10)) == [("k", 0, 0, [1])]
    assert shard.batch([(0, "k", 3), (5, "k", 4)], Watermark(10, 14)) == []
    assert shard.dropped == 1
    assert shard.batch([], Watermark(14, 40)) == [("k", 5, 5, [4]), ("k", 30, 30, [2])]
    shard.state.close()


@pytest.mark.parametrize("emit", ["record", "commit"])
def test_a_session_that_has_closed_is_not_merged_where_every_change_is_handed_out(emit: str, tmp_path: Path) -> None:
    shard = Shard(declared(hs.SessionWindows(10), emit), tmp_path / "state", random.Random(3))
    assert shard.batch([(0, "k", 1)], Watermark(0, 0)) == [("k", 0, 0, [1])]
    assert shard.batch([(8, "k", 2)], Watermark(0, 10))[-1] == ("k", 0, 8, [1, 2])
    assert shard.batch([(12, "k", 3)], Watermark(18, 20)) == [("k", 12, 12, [3])]
    shard.state.close()


def test_a_time_limit_is_counted_by_the_watermark(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(20), "record").hold(5)
    shard = Shard(topology, tmp_path / "state", random.Random(0))
    assert shard.batch([(30, "a", 1), (90, "b", 2)], Watermark(0, 0)) == []
    assert shard.batch([(31, "a", 3)], Watermark(0, 35)) == []
    assert shard.batch([], Watermark(35, 36)) == [("a", 20, 40, [1, 3])]
    shard.state.close()


def test_the_stores_of_ones_own_logic_are_at_the_watermark(tmp_path: Path) -> None:
    """While rows are processed at the one by which they are late, as a state of Spark's; rows that are ahead move
    nothing.
    """
    times: list[int] = []

    def put(row: dict[str, Any], stores: dict[str, Any]) -> None:
        times.append(stores["last"].stream_time)
        stores["last"].put(row["user"], row["time"], row["time"])
        stores["windows"].put(row["user"], row["time"], row["time"])

    topology = hs.stream(key="user", timestamp="time").process(
        put, stores=[hs.key_value_store("last", ttl=10), hs.window_store("windows", retention=10)]
    )
    with hs.open(tmp_path / "state", durability="os") as state:
        logic = CustomLogic(topology, state.group, clocked=True)
        for time, clock in (
            (5, Watermark(0, 0)),
            (90, Watermark(0, 0)),
            (7, Watermark(0, 15)),
            (70, Watermark(15, 17)),
        ):
            logic.process(Records([f"u{time}"], [{"user": f"u{time}", "time": time}], [time]), clock)
        assert times == [0, 0, 0, 15]
        assert list(logic.stores["last"]) == ["u70", "u90"]
        assert [ts for (_, ts), _ in logic.stores["windows"].all()] == [70, 90]
