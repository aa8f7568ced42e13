"""A join that begins with one of its inputs, and is given the other one later."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.topology.engine import Engine
from tests.conftest import SEED, STRESS
from tests.joins.test_model import interval, rows_within, shape

Row = dict[str, Any]
SEEDS = range(SEED, SEED + max(STRESS, 6))


@pytest.mark.stress
@pytest.mark.parametrize("how", ["inner", "left", "full", "anti", "semi"])
@pytest.mark.parametrize("first", ["left", "right"])
def test_the_rows_are_those_of_a_job_that_had_the_input_from_the_change_on(
    how: str, first: str, tmp_path: Path
) -> None:
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} {first}")
        rows = rows_within(rng, 5, 120, 3)
        join, shards = interval(how, 4, 6, 20), rng.choice((1, 3))
        cut = rng.randint(20, 100)
        before = [row for side, row in rows[:cut] if side == first]
        after = {name: [row for side, row in rows[cut:] if side == name] for name in ("left", "right")}
        path, options = tmp_path / f"{seed}", {"shards": shards, "commit_rows": rng.choice((7, 100))}
        results = list(join.run({first: before}, path, **options))
        both = {**after, first: before + after[first]}
        with pytest.raises(hs.ProgramMismatchError, match="not given before, given now"):
            list(join.run(both, path, **options))
        other = "right" if first == "left" else "left"
        seen: dict[int, list[Row]] = {}
        for budget in (rng.randint(1, 20), 10_000):  # a consumer that breaks off takes the last commits again
            run, fresh = join.run(both, path, allow=f"add input {other}", flush=True, **options), set[int]()
            for _, row in zip(range(budget), run, strict=False):
                if row.commit not in fresh:
                    fresh.add(row.commit)
                    seen[row.commit] = []
                seen[row.commit].append(row)
            run.close()
        # an engine that never had a row of the other input in the commits before
        engine = Engine(join, tmp_path / f"{seed}-whole", shards=shards, durability="os")
        expected = engine.process_many({first: before})
        engine.commit()
        expected += engine.process_many(after)
        engine.commit()
        expected += [row for shard in range(shards) for row in engine.flush_shard(shard).rows(dict)]
        engine.close()
        assert engine.dropped == 0
        later = [row for of_commit in seen.values() for row in of_commit]
        assert Counter(map(shape, results + later)) == Counter(map(shape, expected)), f"seed {seed}"


def test_an_input_is_added_and_dropped_with_consent(tmp_path: Path) -> None:
    join = interval("left", 0, 10, 0)
    orders = [{"k": 1, "lt": 0, "a": 1}, {"k": 1, "lt": 20, "a": 2}]
    assert [shape(row) for row in join.run({"left": orders}, tmp_path / "state")] == [(1, 1, None)]
    both = {"left": orders, "right": [{"k": 1, "rt": 5, "b": 8}, {"k": 1, "rt": 21, "b": 9}]}
    with pytest.raises(hs.ProgramMismatchError, match="'add input right'"):
        join.open(tmp_path / "state")
    results = list(join.run(both, tmp_path / "state", allow="add input right"))
    assert [shape(row) for row in results if row["b"]] == [(1, 2, 9)]  # the row of 0 had come out, the payment is late
    with pytest.raises(hs.ProgramMismatchError, match="'drop input right'"):
        list(join.run({"left": orders}, tmp_path / "state"))
    later = [*orders, {"k": 1, "lt": 30, "a": 3}]
    rows = join.run({"left": later}, tmp_path / "state", allow=["add input right", "drop input right"], flush=True)
    assert (1, 3, None) in [shape(row) for row in rows]
    with pytest.raises(ValueError, match="found no input, expected 'left', 'right' or both"):
        list(join.run({}, tmp_path / "state"))
