"""Joins against a full look at all rows: equal results, whatever the commits, shards, restarts and crashes."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.stores.window import WindowStore
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.rows import Sides, tagged
from hybridstore.topology.joins.spec import HOWS
from tests.conftest import SEED, STRESS
from tests.tools.hooks import crash, force_cold

Row = dict[str, Any]
SEEDS = range(SEED, SEED + max(STRESS, 6))


def rows_within(rng: random.Random, grace: int, count: int, keys: int) -> list[tuple[str, Row]]:
    """Return rows of both sides in an order of arrival in which none is late."""
    rows: list[tuple[str, Row]] = []
    newest = 0
    for number in range(count):
        ts = max(0, newest + rng.randint(-grace, 8))
        newest = max(newest, ts)
        key = rng.randrange(keys)
        if rng.random() < 0.5:
            rows.append(("left", {"k": key, "lt": ts, "a": number}))
        else:
            rows.append(("right", {"k": key, "rt": ts, "b": number}))
    return rows


def interval(how: str, before: int, after: int, grace: int) -> hs.Topology:
    stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
    right = hs.stream(name="right", key="k", timestamp="rt", columns=["b"])
    return stream.join(right, within=(before, after), how=how, grace=grace)  # type: ignore[arg-type]


def brute_force(rows: list[tuple[str, Row]], how: str, before: int, after: int) -> Counter[tuple[Any, ...]]:
    """Return the results as (key, a, b): every row of both sides is looked at."""
    lefts, rights = ([row for at, row in rows if at == side] for side in ("left", "right"))

    def meets(a: Row, b: Row) -> bool:
        return bool(a["k"] == b["k"] and a["lt"] - before <= b["rt"] <= a["lt"] + after)

    pairs = [(a, b) for a in lefts for b in rights if meets(a, b)]
    left_alone = [(a["k"], a["a"], None) for a in lefts if not any(meets(a, b) for b in rights)]
    right_alone = [(b["k"], None, b["b"]) for b in rights if not any(meets(a, b) for a in lefts)]
    if how == "semi":
        return Counter((a["k"], a["a"], None) for a in lefts if any(meets(a, b) for b in rights))
    if how == "anti":
        return Counter(left_alone)
    results = [(a["k"], a["a"], b["b"]) for a, b in pairs]
    if how in ("left", "full"):
        results += left_alone
    if how in ("right", "full"):
        results += right_alone
    return Counter(results)


def cut(rng: random.Random, rows: list[tuple[str, Row]]) -> Iterator[dict[str, list[Row]]]:
    """Yield rows in commits of random sizes."""
    at = 0
    while at < len(rows):
        size = rng.choice((1, 2, 5, 20))
        commit: dict[str, list[Row]] = {"left": [], "right": []}
        for side, row in rows[at : at + size]:
            commit[side].append(row)
        yield commit
        at += size


def shape(row: Row) -> tuple[Any, ...]:
    return row["k"], row["a"], row.get("b")


@pytest.mark.stress
@pytest.mark.parametrize("how", HOWS)
def test_every_cut_gives_the_pairs_of_a_full_look(how: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how}")
        before, after, grace = rng.choice((0, 3, 10)), rng.choice((0, 3, 10)), rng.choice((0, 5, 15))
        rows = rows_within(rng, grace, 80, rng.choice((1, 4)))
        shards = rng.choice((1, 3))
        path = tmp_path / f"{seed}"
        join = interval(how, before, after, grace)
        engine = Engine(join, path, shards=shards, durability="os")
        results: list[Row] = []
        for commit in cut(rng, rows):
            results += engine.process_many(commit)
            results += engine.commit()
            event = rng.random()
            if event < 0.15:
                for state in engine.states:
                    crash(state)
                engine = Engine(join, path, shards=shards, durability="os")
            elif event < 0.3:
                for state in engine.states:
                    force_cold(state)
        results += [row for shard in range(shards) for row in engine.flush_shard(shard).rows(dict)]
        assert engine.dropped == 0
        for state in engine.states:
            for store in state.group.stores.values():
                store._check()
        engine.close()
        assert Counter(map(shape, results)) == brute_force(rows, how, before, after), f"seed {seed}"


@pytest.mark.stress
@pytest.mark.parametrize("how", HOWS)
def test_results_come_in_the_same_commit_as_row_by_row(how: str, tmp_path: Path) -> None:
    """A commit of many rows gives what commits of single rows, in order of time, give together."""
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} single")
        join = interval(how, 4, 6, 5)
        rows = rows_within(rng, 5, 60, 2)
        together = Engine(join, tmp_path / f"{seed}-many", durability="os")
        single = Engine(join, tmp_path / f"{seed}-one", durability="os")
        for commit in cut(rng, rows):
            many = together.process_many(commit)
            together.commit()
            ordered = sorted(
                [(row["lt"], 0, row) for row in commit["left"]] + [(row["rt"], 1, row) for row in commit["right"]],
                key=lambda row: row[:2],
            )
            results: list[Row] = []
            for _, side, row in ordered:
                results += single.process({("left", "right")[side]: row})
                results += single.commit()
            assert Counter(map(shape, many)) == Counter(map(shape, results)), f"seed {seed}"
        together.close()
        single.close()


@pytest.mark.stress
@pytest.mark.parametrize("how", HOWS)
def test_a_run_that_is_broken_off_goes_on_and_gives_each_result_once(how: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} run")
        rows = rows_within(rng, 5, 120, 3)
        inputs = {side: [row for at, row in rows if at == side] for side in ("left", "right")}
        join = interval(how, 4, 6, 30)
        commit_rows, shards = rng.choice((1, 7, 30)), rng.choice((1, 2))
        whole = [
            (row.commit, shape(row)) for row in join.run(inputs, commit_rows=commit_rows, shards=shards, flush=True)
        ]
        path = tmp_path / str(seed)
        seen: dict[int, list[tuple[Any, ...]]] = {}
        for attempt in range(200):
            run = join.run(inputs, path, commit_rows=commit_rows, shards=shards, flush=True)
            # the results of two commits come again each time, so a consumer must take more than these in the end
            budget, fresh = rng.randint(1, 40) + 5 * attempt, set()
            for row in run:
                if row.commit not in fresh:
                    fresh.add(row.commit)
                    seen[row.commit] = []  # a commit that is given again is given whole
                seen[row.commit].append(shape(row))
                budget -= 1
                if not budget:
                    run.close()
                    break
            else:
                break
        results = Counter((commit, row) for commit, rows_of in seen.items() for row in rows_of)
        assert results == Counter(whole), f"seed {seed}"


def test_rows_older_than_those_of_a_checkpoint_are_in_the_next_checkpoint(tmp_path: Path) -> None:
    """Many rows of keys that are new, as a commit brings them: older than what the last checkpoint has."""
    join = interval("inner", 1_000_000, 1_000_000, 1_000_000)
    for first, at in ((0, 5000), (20, 100)):
        with join.open(tmp_path / "s") as engine:
            engine.process_many({"left": [{"k": first + n, "lt": at + n, "a": n} for n in range(20)]})
            engine.commit()
            for state in engine.states:
                state.checkpoint(wait=True)
    with join.open(tmp_path / "s") as engine:
        rows = engine.process_many({"right": [{"k": n, "rt": 6000, "b": n} for n in range(40)]})
    assert [row["k"] for row in rows] == list(range(40))


@pytest.mark.stress
def test_as_of_equals_a_sorted_merge_after_shuffling_within_the_grace(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for seed in SEEDS:
        rng = random.Random(f"{seed} as of")
        grace = rng.choice((0, 4, 20))
        how = rng.choice(("inner", "left"))
        rows = rows_within(rng, grace, 100, 3)
        stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
        table = hs.table(name="right", key="k", timestamp="rt", history=grace + rng.choice((0, 50)), columns=["b"])
        join = stream.join(table, as_of=True, how=how, grace=grace)  # type: ignore[arg-type]
        engine = Engine(join, tmp_path / str(seed), durability="os", shards=rng.choice((1, 2)))
        results: list[Row] = []
        commits = list(cut(rng, rows))
        rescaled = rng.randrange(2 * len(commits))  # at this commit, if there is one
        for number, commit in enumerate(commits):
            results += engine.process_many(commit)
            engine.commit()
            if number == rescaled:
                engine.close()
                hs.rescale(tmp_path / str(seed), shards=2 * engine.shards)
                engine = Engine(join, tmp_path / str(seed), durability="os", shards=2 * engine.shards)
            elif rng.random() < 0.2:
                for state in engine.states:
                    crash(state)
                engine = Engine(join, tmp_path / str(seed), durability="os", shards=engine.shards)
        results += [row for shard in range(engine.shards) for row in engine.flush_shard(shard).rows(dict)]
        engine.close()
        # of several versions of a key and time the last to arrive counts, which in one commit is the greatest
        newest: dict[tuple[int, int], Row] = {}
        for side, row in rows:
            if side == "right":
                newest[row["k"], row["rt"]] = row
        streams = pandas.DataFrame([row for side, row in rows if side == "left"]).sort_values("lt", kind="stable")
        versions = pandas.DataFrame(list(newest.values()), columns=["k", "rt", "b"]).sort_values("rt", kind="stable")
        merged = pandas.merge_asof(streams, versions, left_on="lt", right_on="rt", by="k")
        expected = Counter(
            (int(row.k), int(row.a), None if row.b != row.b else int(row.b))
            for row in merged.itertuples()
            if how == "left" or row.b == row.b
        )
        assert Counter(map(shape, results)) == expected, f"seed {seed}"


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", ["rows", "tables"])
def test_a_hot_key_is_not_read_over_and_over(
    how: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows have one key: what is read of it grows with rows and results, not with rows times stored rows."""
    pa = pytest.importorskip("pyarrow")
    join = interval(how, 3, 4, 0)
    looks, fetch_columns = 0, WindowStore.fetch_columns

    def counted(store: WindowStore, *given: Any, **named: Any) -> Any:
        nonlocal looks
        rows = fetch_columns(store, *given, **named)
        looks += len(rows[0])
        return rows

    monkeypatch.setattr(WindowStore, "fetch_columns", counted)
    commits, size, results = 40, 50, 0
    with Engine(join, tmp_path / "state", durability="os") as engine:
        for number in range(commits):
            times = range(number * size, (number + 1) * size)
            rows = {
                "left": [{"k": 7, "lt": ts, "a": ts} for ts in times],
                "right": [{"k": 7, "rt": ts, "b": 0} for ts in times],
            }
            sides = Sides(*map(pa.Table.from_pylist, rows.values()))
            (part,) = engine.split_batch(sides if form == "tables" else tagged(join.joined, rows), 0)
            results += engine.table_of(0, part).size
            engine.commit()
            # the rows behind those of the commit that these can meet, and those that are due with them
            assert looks <= (number + 1) * (3 * size if how in ("left", "right", "full", "anti") else size)
        stored = sum(len(store) for store in engine.states[0].group.stores.values() if store.kind == "window")
    assert stored < 10 * size
    expected = {"semi": commits * size, "anti": 0}.get(how, 8 * commits * size)
    assert expected - 40 <= results <= expected


def test_a_memory_limit_holds_for_a_join(tmp_path: Path) -> None:
    """Rows that wait leave memory under a limit, and the results are those of a join without a limit."""
    join = interval("left", 0, 100_000, 0)
    rows = [{"k": number % 5000, "lt": number, "a": f"text {number}" * 5} for number in range(30_000)]
    partners = {"right": [{"k": key, "rt": 30_000, "b": key} for key in range(0, 5000, 50)], "left": []}
    answers: list[list[Row]] = []
    in_memory: list[int] = []
    for limit in (None, 1_000_000):
        with Engine(join, tmp_path / f"{limit}", durability="os", memory_limit=limit) as engine:
            for at in range(0, len(rows), 3000):
                engine.process_many({"left": rows[at : at + 3000], "right": []})
                engine.commit()
                engine.states[0].checkpoint(wait=True)
            for _ in range(100):  # records are freed some at a time
                engine.commit()
                size = sum(store.bytes_in_memory for store in engine.states[0].group.stores.values())
                if limit is None or size <= limit:
                    break
            in_memory.append(size)
            answers.append(engine.process_many(partners))
            engine.commit()
    assert answers[0] == answers[1]
    assert len(answers[0]) == 600
    assert in_memory[1] < in_memory[0] / 2, in_memory
