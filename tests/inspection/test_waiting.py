"""`hybridstore inspect waiting`: which rows of a join wait, since when, for what, and until when."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.topology.engine import Engine
from tests.conftest import SEED
from tests.joins.test_model import cut, interval, rows_within


def waiting(state: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    assert run(["inspect", "waiting", str(state), "-o", "jsonl", *words]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("how", ["left", "full", "anti"])
def test_the_rows_that_wait_alone_are_those_that_come_out_at_the_end(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(SEED, SEED + 8):
        rng = random.Random(f"{seed} {how} waiting")
        join = interval(how, rng.choice((0, 4)), rng.choice((0, 6)), rng.choice((0, 5)))
        path = tmp_path / str(seed)
        shards = rng.choice((1, 2))
        with Engine(join, path, shards=shards, durability="os") as engine:
            for commit in cut(rng, rows_within(rng, 0, 60, 5)):
                engine.process_many(commit)
                engine.commit()
            expected = [row for shard in range(shards) for row in engine.flush_shard(shard).rows(dict)]
        ends = [
            ("left", row["k"], row["lt"]) if row["lt"] is not None else ("right", row["k"], row["rt"])
            for row in expected
        ]
        places = [path] if shards == 1 else [path / str(shard) for shard in range(shards)]
        rows = [row for place in places for row in waiting(place, capsys, "--alone")]
        if how != "full":  # a row of the other side comes out in a full join only
            rows = [row for row in rows if row["input"] == "left"]
        assert sorted((row["input"], row["key"], row["since"]) for row in rows) == sorted(ends), f"seed {seed}"


def test_a_row_says_for_what_it_waits_and_until_when(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"left": [{"k": 1, "lt": 100, "a": 0}, {"k": 2, "lt": 101, "a": 0}], "right": [{"k": 2, "rt": 105, "b": 0}]}
    list(interval("left", 4, 6, 10).run(rows, tmp_path / "state"))
    first = {
        "input": "left",
        "key": 1,
        "since": 100,
        "waits_for": "right",
        "from": 96,
        "to": 106,
        "until": 116,
        "partners": 0,
    }
    second = {**first, "key": 2, "since": 101, "from": 97, "to": 107, "until": 117, "partners": 1}
    third = {
        "input": "right",
        "key": 2,
        "since": 105,
        "waits_for": "left",
        "from": 99,
        "to": 109,
        "until": 119,
        "partners": 1,
    }
    assert waiting(tmp_path / "state", capsys) == [first, second, third]
    assert waiting(tmp_path / "state", capsys, "--input", "left", "--alone") == [first]
    assert waiting(tmp_path / "state", capsys, "--from", "int:2", "--limit", "1") == [second]
    assert waiting(tmp_path / "state", capsys, "--count-only") == [{"rows": 3}]
    assert waiting(tmp_path / "state", capsys, "--iso", "--limit", "1")[0]["since"] == "1970-01-01T00:00:00.100Z"


def test_rows_wait_for_a_table_only_with_a_grace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = hs.table(name="prices", key="item", timestamp="since", history="1 hour")
    sales = hs.stream(name="sales", key="item", timestamp="sold")
    rows = {"sales": [{"item": "tea", "sold": 500}], "prices": [{"item": "tea", "since": 0, "price": 3}]}
    for grace in (None, 1000):
        join = sales.join(prices, as_of=True, grace=grace)
        list(join.run(rows, tmp_path / f"{grace}"))
    wait = {"input": "sales", "key": "tea", "since": 500, "waits_for": "prices", "from": None, "to": 500, "until": 1500}
    assert waiting(tmp_path / "1000", capsys) == [{**wait, "partners": None}]
    assert waiting(tmp_path / "None", capsys) == []
    counts = hs.stream(key="item", timestamp="sold").windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Count())
    list(counts.run(rows["sales"], tmp_path / "counts"))
    waiting(tmp_path / "counts", capsys, code=1)


@pytest.mark.parametrize("later", [[], [{"k": 1, "rt": 55, "b": 2}]])
def test_a_row_whose_partner_has_expired_has_no_number_of_partners(
    later: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(interval("inner", 10, 100, 0), tmp_path / "state", durability="os") as engine:
        commits: list[dict[str, list[dict[str, Any]]]] = [
            {"left": [{"k": 1, "lt": 10, "a": 1}], "right": [{"k": 1, "rt": 0, "b": 1}]},
            {"left": [{"k": 2, "lt": 60, "a": 1}], "right": later},
            {"left": [{"k": 3, "lt": 61, "a": 1}]},
        ]
        pairs = 0
        for commit in commits:
            pairs += len(engine.process_many(commit))
            engine.commit()
    assert pairs == 1 + len(later)
    lefts = [row for row in waiting(tmp_path / "state", capsys) if row["input"] == "left"]
    assert [(row["key"], row["partners"]) for row in lefts] == [(1, None), (2, 0), (3, 0)]
    assert [row["key"] for row in waiting(tmp_path / "state", capsys, "--alone")] == [2, 3]
