"""Joins whose shards are merged and split: the results are those of a run without a rescale, whatever waits."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.spark.joined import KEYS, SIDE, TIME, JoinProgram
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.rows import tagged
from hybridstore.topology.joins.spec import HOWS
from hybridstore.topology.joins.stores import declared_stores, unused
from hybridstore.topology.plan import Custom
from recovery.layout import shard_folder
from tests.conftest import SEED, STRESS
from tests.inspection.test_waiting import waiting
from tests.joins.test_model import brute_force, cut, interval, rows_within, shape
from tests.tools.hooks import crash, force_cold
from tests.tools.rescaled_jobs import Job, in_memory

Row = dict[str, Any]
SEEDS = range(SEED, SEED + max(STRESS, 2))
NUMBERS = (1, 2, 3, 4, 6)


def opened(join: hs.Topology, path: Path, shards: int) -> Engine:
    return Engine(join, path, shards=shards, durability="os")


def rescaled(rng: random.Random, engine: Engine, join: hs.Topology, path: Path) -> Engine:
    """Return the engine with other numbers of shards, one after the other, on the state of one that was closed or
    broken off.
    """
    shards = engine.shards
    if rng.random() < 0.5:
        engine.close()
    else:
        for state in engine.states:
            crash(state)
    for _ in range(rng.choice((1, 1, 2, 3))):
        shards = rng.choice([number for number in NUMBERS if number != shards])
        assert hs.rescale(path, shards=shards, accept_late=True).done
    return opened(join, path, shards)


@pytest.mark.stress
@pytest.mark.parametrize("how", HOWS)
def test_merges_and_splits_give_the_pairs_of_a_full_look(how: str, tmp_path: Path) -> None:
    """Shards whose times differ: rows of one shard have come out, of another they wait for the same time."""
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} rescale")
        before, after, grace = rng.choice((0, 3, 10)), rng.choice((0, 3, 10)), rng.choice((5, 15))
        rows = rows_within(rng, grace, 100, rng.choice((4, 12)))
        join, path = interval(how, before, after, grace), tmp_path / f"{seed}"
        engine = opened(join, path, rng.choice(NUMBERS))
        results: list[Row] = []
        for commit in cut(rng, rows):
            results += engine.process_many(commit)
            results += engine.commit()
            event = rng.random()
            if event < 0.25:
                engine = rescaled(rng, engine, join, path)
            elif event < 0.35:
                for state in engine.states:
                    crash(state)
                engine = opened(join, path, engine.shards)
            elif event < 0.45:
                for state in engine.states:
                    force_cold(state)
        results += [row for shard in range(engine.shards) for row in engine.flush_shard(shard).rows(dict)]
        assert engine.dropped == 0
        for state in engine.states:
            for store in state.group.stores.values():
                store._check()
        engine.close()
        assert Counter(map(shape, results)) == brute_force(rows, how, before, after), f"seed {seed}"


@pytest.mark.stress
def test_every_row_comes_out_once_where_rows_are_late(tmp_path: Path) -> None:
    """What is late depends on the shards; but a row is dropped, or alone, or with partners, and never two of these."""
    for seed in SEEDS:
        rng = random.Random(f"{seed} late")
        rows = rows_within(rng, 40, 120, 9)
        join, path = interval("full", 3, 5, rng.choice((0, 4))), tmp_path / f"{seed}"
        engine, dropped = opened(join, path, 4), 0
        results: list[Row] = []
        for commit in cut(rng, rows):
            results += engine.process_many(commit)
            results += engine.commit()
            if rng.random() < 0.3:
                dropped += engine.dropped
                engine = rescaled(rng, engine, join, path)
        results += [row for shard in range(engine.shards) for row in engine.flush_shard(shard).rows(dict)]
        dropped += engine.dropped
        engine.close()
        alone = Counter((row["a"], row["b"]) for row in results if None in (row["a"], row["b"]))
        paired = {("a", row["a"]) for row in results if row["b"] is not None} | {
            ("b", row["b"]) for row in results if row["a"] is not None
        }
        assert not alone or max(alone.values()) == 1, f"seed {seed}"
        assert not paired & {("b", b) if a is None else ("a", a) for a, b in alone}, f"seed {seed}"
        came_out = {("a", row["a"]) for row in results} | {("b", row["b"]) for row in results}
        assert len(came_out - {("a", None), ("b", None)}) == len(rows) - dropped, f"seed {seed}"
        assert dropped, f"seed {seed}"


@pytest.mark.stress
def test_as_of_rows_that_wait_are_merged(tmp_path: Path) -> None:
    for seed in SEEDS:
        rng = random.Random(f"{seed} as of merge")
        grace = rng.choice((4, 20))
        rows = rows_within(rng, grace, 100, 8)
        stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
        table = hs.table(name="right", key="k", timestamp="rt", history=grace + rng.choice((0, 50)), columns=["b"])
        join, path = stream.join(table, as_of=True, how="left", grace=grace), tmp_path / str(seed)
        engine, results = opened(join, path, 4), list[Row]()
        for commit in cut(rng, rows):
            results += engine.process_many(commit)
            results += engine.commit()
            if rng.random() < 0.25:
                engine = rescaled(rng, engine, join, path)
        results += [row for shard in range(engine.shards) for row in engine.flush_shard(shard).rows(dict)]
        assert engine.dropped == 0
        engine.close()
        # of several versions of a key and time the last to arrive counts, which in one commit is the greatest
        versions = {(row["k"], row["rt"]): row["b"] for side, row in rows if side == "right"}
        expected = Counter[Any]()
        for side, row in rows:
            if side == "left":
                times = [ts for key, ts in versions if key == row["k"] and ts <= row["lt"]]
                expected[row["k"], row["a"], versions[row["k"], max(times)] if times else None] += 1
        assert Counter(map(shape, results)) == expected, f"seed {seed}"


@pytest.mark.stress
@pytest.mark.parametrize("how", ["left", "right", "full", "anti"])
def test_rows_without_a_key_are_merged_by_a_watermark(how: str, tmp_path: Path) -> None:
    """By a watermark all shards have one time; a shard that no commit reached may be behind."""
    keyless = 0
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} watermark")
        rows = rows_within(rng, 6, 100, 8)
        for _, row in rows:
            if rng.random() < 0.2:
                row["k"] = None
        join = interval(how, 3, 5, 0)
        answers: list[list[Counter[Any]]] = []
        for name in ("whole", "rescaled"):
            path = tmp_path / f"{seed}-{name}"
            turn = random.Random(seed)
            engine, answer, watermark = opened(join, path, 3), list[Counter[Any]](), -1
            for commit in [*cut(random.Random(seed), rows), {"left": [], "right": []}]:
                times = [row["lt"] for row in commit["left"]] + [row["rt"] for row in commit["right"]]
                clock = Watermark(watermark, watermark) if times else Watermark(10_000, 10_000)
                parts = engine.split_batch(tagged(join.joined, commit), 0)
                of_commit = [
                    row for shard, part in enumerate(parts) for row in engine.table_of(shard, part, clock).rows(dict)
                ]
                engine.commit()
                answer.append(Counter(map(shape, of_commit)))
                watermark = max([watermark, *(ts - 6 for ts in times)])
                if name == "rescaled" and turn.random() < 0.3:
                    engine = rescaled(turn, engine, join, path)
            engine.close()
            answers.append(answer)
        assert answers[0] == answers[1], f"seed {seed}"
        keyless += sum(row[0] is None for row in sum(answers[0], Counter()))
    assert keyless


def test_older_versions_of_merged_shards_answer(tmp_path: Path) -> None:
    """The versions of one shard are valid for longer than those of the other."""
    stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
    table = hs.table(name="right", key="k", timestamp="rt", history=1000, columns=["b"])
    join, path = stream.join(table, as_of=True), tmp_path / "state"
    engine = opened(join, path, 2)
    short, long = (next(k for k in range(99) if engine._shard(k) == shard) for shard in (0, 1))
    versions = [(short, 0, 1), (short, 1, 2), (long, 0, 3), (long, 90, 4)]
    engine.process_many({"left": [], "right": [{"k": k, "rt": ts, "b": b} for k, ts, b in versions]})
    engine.commit()
    engine.close()
    hs.rescale(path, shards=1)
    engine = opened(join, path, 1)
    results = engine.process_many({"left": [{"k": k, "lt": ts, "a": 0} for k, ts in ((short, 0), (long, 40))]})
    assert [(row["k"], row["b"]) for row in results] == [(short, 1), (long, 3)]
    engine.close()


ROWS = [pa.struct([("k", pa.int64()), (ts, pa.int64()), (name, pa.int64())]) for ts, name in (("lt", "a"), ("rt", "b"))]


class JoinJob(Job):
    """A query with a join, as `hybridstore.spark.joined.union` sends its rows to the workers."""

    schema = pa.schema(
        [
            (f"{KEYS[0]}0", pa.int64()),
            (TIME, pa.int64()),
            (SIDE, pa.int32()),
            (f"{KEYS[1]}0", ROWS[0]),
            (f"{KEYS[1]}1", ROWS[1]),
        ]
    )
    key = f"{KEYS[0]}0"

    def __init__(self, join: hs.Topology, time: str) -> None:
        assert join.joined is not None
        custom = Custom(unused, None, declared_stores(join.joined))
        plan = replace(join, key=(self.key,), timestamp=TIME, custom=custom, stepped=True)
        super().__init__(in_memory(), JoinProgram(plan, clocked=time == "watermark"), time=time)

    def of_inputs(self, rows: dict[str, list[Row]], watermark_ms: int = 0) -> Counter[Any]:
        """Do a batch of rows of both inputs."""
        sent = [
            {
                self.key: row["k"],
                TIME: row[("lt", "rt")[side]],
                SIDE: side,
                f"{KEYS[1]}{side}": row,
            }
            for side, name in enumerate(("left", "right"))
            for row in rows[name]
        ]
        return Counter(map(shape, self.batch(sent, watermark_ms)))


@pytest.mark.stress
@pytest.mark.parametrize("how", ["left", "full", "anti"])
@pytest.mark.parametrize("time", ["stream", "watermark"])
def test_an_operator_of_spark_is_merged(how: str, time: str) -> None:
    """The same rows as an operator whose shards stay: by a watermark in every batch, by stream time in the end."""
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} {time} operator")
        rows = rows_within(rng, 6, 80, 8)
        for _, row in rows:
            if rng.random() < 0.15:
                row["k"] = None
        # a row of each shard moves its time behind all others
        ends = {"left": [{"k": k, "lt": 10_000, "a": -k} for k in range(100, 160)], "right": []}
        batches = [*cut(rng, rows), ends, {"left": [], "right": []}]
        answers: list[list[Counter[Any]]] = []
        for name in ("whole", "rescaled"):
            job = JoinJob(interval(how, 3, 5, 6 if time == "stream" else 0), time)
            job.start(shards := 4)
            answer, watermark = list[Counter[Any]](), 0
            for number, batch in enumerate(batches):
                if name == "rescaled" and number and rng.random() < 0.3:
                    job.forget()
                    for _ in range(rng.choice((1, 1, 2))):
                        shards = rng.choice([into for into in NUMBERS if into != shards])
                        hs.rescale(job.location, "op", shards=shards, accept_late=time == "stream")
                    job.start(shards)
                times = [row["lt"] for row in batch["left"]] + [row["rt"] for row in batch["right"]]
                answer.append(job.of_inputs(batch, watermark))
                watermark = max([watermark, *(ts - 6 for ts in times)])
            job.forget()
            answers.append(answer)
        if time == "watermark":
            assert answers[0] == answers[1], f"seed {seed}"
        assert sum(answers[0], Counter()) == sum(answers[1], Counter()), f"seed {seed}"
        assert sum(answers[0], Counter()), f"seed {seed}"


def test_columns_that_only_some_shards_know_are_merged(tmp_path: Path) -> None:
    """The names of columns that are not declared come from the first row of a shard."""
    first, second = hs.stream(name="l", key="k", timestamp="t"), hs.stream(name="r", key="k", timestamp="t2")
    join = first.join(second, within=5)
    path = tmp_path / "state"
    engine = opened(join, path, 2)
    rows = {"l": [{"k": "a", "t": 1, "x": 1}], "r": [{"k": "d", "t2": 1, "y": 2}]}
    assert engine._shard("a") != engine._shard("d")
    engine.process_many(rows)
    engine.commit()
    engine.close()
    hs.rescale(path, shards=1)
    engine = opened(join, path, 1)
    results = engine.process_many({"l": [{"k": "d", "t": 3, "x": 4}], "r": []})
    results += engine.process_many({"l": [], "r": [{"k": "a", "t2": 3, "y": 5}]})
    assert [(row["k"], row["x"], row["y"]) for row in results] == [("d", 4, 2), ("a", 1, 5)]
    engine.commit()
    engine.close()
    engine = opened(join, tmp_path / "other", 2)
    engine.process_many({"l": [{"k": "a", "t": 1, "x": 1, "z": 1}, {"k": "d", "t": 1, "z": 1, "x": 2}], "r": []})
    engine.commit()
    engine.close()
    with pytest.raises(hs.RescaleError, match="setting 'columns of the inputs': shards 0, 1 do not agree on it"):
        hs.rescale(tmp_path / "other", shards=1)


def test_a_merge_by_which_rows_expire_is_told_and_needs_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of the shard behind come out with the first commit, and `waiting` does not show what had come out."""
    join, path = interval("left", 0, 10, 0), tmp_path / "state"
    engine = opened(join, path, 2)
    behind, ahead = (next(k for k in range(99) if engine._shard(k) == shard) for shard in (0, 1))
    engine.process_many({"left": [{"k": behind, "lt": 5, "a": 1}, {"k": ahead, "lt": 4, "a": 2}], "right": []})
    results = engine.process_many({"left": [{"k": ahead, "lt": 95, "a": 3}], "right": []})
    assert [row["a"] for row in results] == [2]
    engine.commit()
    engine.close()
    assert "shard 0 is 90 ms behind" in " ".join(hs.rescale(path, shards=1, dry_run=True).sentences())
    with pytest.raises(hs.RescaleError, match=r"by this merge 1 records expire, so nothing was done"):
        hs.rescale(path, shards=1)
    hs.rescale(path, shards=1, accept_late=True)
    assert [row["since"] for row in waiting(path / shard_folder(1, 0), capsys, "--alone")] == [5, 95]
    engine = opened(join, path, 1)
    assert [row["a"] for row in engine.process_many({"left": [], "right": []})] == [1]
    engine.commit()
    assert not engine.process_many({"left": [], "right": []})
    assert [row["a"] for row in engine.flush_shard(0).rows(dict)] == [3]
    engine.close()
