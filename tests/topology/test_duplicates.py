"""`drop_duplicates` against a model, over restarts, shards and batches, by stream time and by a watermark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from tests.topology.test_every_way import table_of

pa = pytest.importorskip("pyarrow")
WITHIN = 20
TOPOLOGY = hs.stream(timestamp="time").drop_duplicates(["user", "n"], within=WITHIN)


def rows_of(r: random.Random, count: int) -> list[dict[str, Any]]:
    now, rows = 0, []
    for _ in range(count):
        now += r.choice([0, 1, 3, 30])
        rows.append({"user": r.choice("ab"), "time": max(0, now - r.randint(0, 30)), "n": r.randint(0, 2)})
    return rows


class Model:
    """What is let through, row by row, by a watermark."""

    def __init__(self) -> None:
        self.seen: dict[Any, int] = {}
        self.late = 0

    def row(self, row: dict[str, Any], watermark: int) -> list[dict[str, Any]]:
        key, ts = (row["user"], row["n"]), row["time"]
        if ts <= watermark:
            self.late += 1
            return []
        if key in self.seen and self.seen[key] + WITHIN > watermark:
            return []
        self.seen[key] = ts
        return [row]


@pytest.mark.stress
def test_by_stream_time_rows_are_those_of_the_model(seed: int, rounds: int, tmp_path: Path) -> None:
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows, model, now, expected = rows_of(r, 60), Model(), -1, []
        for row in rows:
            now = max(now, row["time"])
            expected += model.row(row, now - WITHIN)
        state = tmp_path / str(number)
        first = r.randint(0, 60)
        results = [*TOPOLOGY.run(rows[:first], state, commit_rows=1), *TOPOLOGY.run(rows, state, commit_rows=1)]
        assert [dict(row) for row in results] == expected
        with TOPOLOGY.open(tmp_path / f"{number} steps") as engine:
            assert [out for row in rows for out in engine.process(row)] == expected
            assert engine.dropped == model.late
        # the order of a commit is that of time, and a table is a commit
        tables = [table_of(rows[at : at + 10]).to_batches()[0] for at in range(0, 60, 10)]
        assert list(TOPOLOGY.run(tables)) == list(TOPOLOGY.run(rows, commit_rows=10))


@pytest.mark.stress
def test_by_a_watermark_rows_are_those_of_the_model(seed: int, rounds: int) -> None:
    from dataclasses import replace

    from hybridstore.spark.program import TopologyProgram
    from hybridstore.state.group import StoreGroup

    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows, model = rows_of(r, 80), Model()
        table = table_of(rows)
        assert TOPOLOGY.custom is not None
        program = TopologyProgram(replace(TOPOLOGY, custom=replace(TOPOLOGY.custom, schema=table.schema)), clocked=True)
        group = StoreGroup(lambda body: None)
        runner = program.open(group)
        late = newest = 0
        for at in range(0, 80, 8):
            batch = rows[at : at + 8]
            clock = Watermark(late, max(late, newest - WITHIN))
            expected = []
            for row in sorted(batch, key=lambda row: (row["time"], row["user"], row["n"])):
                expected += model.row(row, clock.late_ms)
            results = runner.process(table_of(batch), program.output_schema(table.schema), clock).to_pylist()
            assert results == expected
            group.reached(group.version + 1, group.journal.seal())
            late, newest = clock.now_ms, max(newest, *(row["time"] for row in batch))
        assert runner.dropped == model.late


def test_a_key_of_the_stream_is_what_is_looked_at() -> None:
    rows = [
        {"k": "a", "t": 1, "x": 1},
        {"k": "a", "t": 2, "x": 2},
        {"k": None, "t": 3, "x": 3},
        {"k": None, "t": 4, "x": 4},
    ]
    once = hs.stream(key="k", timestamp="t").drop_duplicates(within=10)
    assert [row["x"] for row in once.run(rows)] == [1]
    nulls = hs.stream(key="k", timestamp="t", null_keys="group").drop_duplicates(within=10)
    assert [row["x"] for row in nulls.run(rows)] == [1, 3]


@pytest.mark.parametrize(
    ("declare", "error", "reason"),
    [
        (lambda t: t.drop_duplicates(within=5), ValueError, "drop_duplicates: on: found None without a key"),
        (lambda t: t.drop_duplicates("k", within=0), ValueError, "drop_duplicates: within: found 0"),
        (lambda t: t.drop_duplicates(3, within=1), TypeError, "key: found int"),
        (lambda t: t.aggregate(n=hs.Count()).drop_duplicates("k", within=1), ValueError, "process: found after"),
    ],
)
def test_what_cannot_be_is_refused(declare: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        declare(hs.stream(timestamp="t"))
