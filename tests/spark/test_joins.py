"""Joins on Spark against Spark's own stream-stream joins, by the watermark: rows, batch by batch, on random streams."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import hybridstore as hs
from hybridstore.spark.errors import SparkSetupError
from tests.tools.modes import patiently
from tests.tools.recorded import SparksRows, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOWS = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer", "semi": "left_semi"}
Rows = list[tuple[str | None, str, int]]  # key, name of the row, second
BEFORE, AFTER, DELAY = 5, 8, 6


# So many seeds share a query: each has keys of its own, and disorder of its own around a common time.
SEEDS = 5


def random_batches(rng: random.Random, count: int, seeds: int = 1) -> list[dict[str, Rows]]:
    """Return batches of both sides, in disorder within the delay and beyond it; some are empty; the last moves time."""
    batches: list[dict[str, Rows]] = [{"left": [], "right": []} for _ in range(count)]
    latest = 0
    for stream in range(seeds):
        now = 20
        for number, batch in enumerate(batches):
            now = max(now, 20 + 15 * number)
            for side in batch:
                for place in range(rng.choice((0, 1, 4, 8))):
                    now += rng.choice((0, 0, 1, 3))
                    second = max(0, now - rng.choice((0, 0, rng.randint(0, DELAY), rng.randint(0, 3 * DELAY))))
                    key = f"k{stream}.{rng.randrange(3)}" if rng.random() < 0.9 else None
                    batch[side].append((key, f"{side}{number}.{place}.{stream}", second))
        latest = max(latest, now)
    ends = [{side: [("end", f"{side}{step}", latest + step)] for side in ("left", "right")} for step in (200, 400, 600)]
    return batches + ends


def write(folder: Path, batches: list[dict[str, Rows]], first: int) -> None:
    """Write a file of each side for each batch, which Spark takes one after the other."""
    for side in ("left", "right"):
        place = folder / side
        place.mkdir(parents=True, exist_ok=True)
        for number, batch in enumerate(batches, first):
            rows = [
                {"k": key, "v": name, "t": (BEGIN + timedelta(seconds=second)).isoformat()}
                for key, name, second in batch[side]
            ]
            hidden = place / f".{number:05d}.json"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(hidden, (1_760_000_000 + number, 1_760_000_000 + number))
            hidden.rename(place / f"{number:05d}.json")


def read(spark: SparkSession, folder: Path, side: str, name: str | None = None) -> DataFrame:
    files: Any = spark.readStream.schema("k string, v string, t timestamp").option("maxFilesPerTrigger", 1)
    files = files if name is None else files.name(name)
    short = side[0]
    rows = files.json(str(folder / side)).selectExpr("k", f"v {short}v", f"t {short}t")
    return rows.withWatermark(f"{short}t", f"{DELAY} seconds")


def joined_sides(spark: SparkSession, folder: Path, how: str) -> tuple[DataFrame, DataFrame]:
    """Return both sides, without null keys where they have no part in the join.

    Spark's optimizer filters null keys out of a side that is not kept below the watermark, which they do not move in
    Spark's join, and do in ours. In a full join Spark matches null with null.
    """
    lefts, rights = read(spark, folder, "left"), read(spark, folder, "right")
    return (
        lefts if how == "left" else lefts.where("k is not null"),
        rights if how == "right" else rights.where("k is not null"),
    )


def answers(results: DataFrame, checkpoint: Path, into: dict[int, Counter[Any]]) -> None:
    """Run a query over all files, and count its rows of each batch."""

    def note(batch: DataFrame, number: int) -> None:
        rows = [tuple(row[name] for name in ("k", "lv", "rv") if name in batch.columns) for row in batch.collect()]
        into[number] = Counter(rows)

    query = results.writeStream.option("checkpointLocation", str(checkpoint)).outputMode("append")
    query.trigger(availableNow=True).foreachBatch(note).start().awaitTermination()


def in_lists(results: dict[int, Counter[Any]]) -> dict[int, list[Any]]:
    """Return the rows of each batch that has some, in one order."""
    return {number: sorted(rows.elements(), key=repr) for number, rows in results.items() if rows}


@pytest.mark.usefixtures("one_partition")
def test_random_streams_give_what_sparks_own_joins_give(
    tmp_path: Path, spark: SparkSession, sparks: SparksRows, rounds: int
) -> None:
    """Several seeds a query: every kind of join, in two runs with a restart between them.

    A recorded input has one kind. Left and full joins are in the tests below, and every kind in
    tests/joins/test_vectors.py.
    """
    from pyspark.sql import functions as f

    def check(round_number: int) -> None:
        rng = random.Random(f"{sparks.seed} {round_number}")
        batches = random_batches(rng, 8, SEEDS)
        cut = rng.randint(2, len(batches) - 5)

        def run(name: str, how: str) -> dict[int, list[Any]]:
            folder = tmp_path / f"{round_number}-{name}-{how}"
            results: dict[int, Counter[Any]] = {}
            for first, part in ((0, batches[:cut]), (cut, batches[cut:])):
                write(folder / "in", part, first)
                lefts, rights = joined_sides(spark, folder / "in", how)
                if name == "ours":
                    stream = hs.stream(name="l", key="k", timestamp="lt", columns=["lv"])
                    other = hs.stream(name="r", key="k", timestamp="rt", columns=["rv"])
                    join = stream.join(other, within=(f"{BEFORE} s", f"{AFTER} s"), how=how)  # type: ignore[arg-type]
                    inputs = {"l": lefts, "r": rights}
                    rows = join.apply(inputs, "join", location=str(folder), shards=2, time="watermark")
                else:
                    near = (
                        f.expr("l.k = r.k")
                        & (f.col("rt") >= f.expr(f"lt - interval {BEFORE} seconds"))
                        & (f.col("rt") <= f.expr(f"lt + interval {AFTER} seconds"))
                    )
                    joined = lefts.alias("l").join(rights.alias("r"), near, HOWS[how])
                    key = f.expr("l.k") if how == "semi" else f.expr("coalesce(l.k, r.k) k")
                    rows = joined.select(key, *(["lv"] if how == "semi" else ["lv", "rv"]))
                answers(rows, folder, results)
            return in_lists(results)

        for how in HOWS if sparks.number is None else ("semi",):
            theirs = sparks(f"{how} {round_number}", partial(run, "theirs", how))
            assert plain(run("ours", how)) == theirs, (how, sparks.seed, round_number)
            assert theirs, how

    for round_number in range(-(-rounds // SEEDS) if sparks.number is None else 1):
        check(round_number)


@pytest.mark.usefixtures("one_partition")
def test_a_query_whose_shards_were_merged_and_split_gives_the_rows_of_sparks_own_join(
    tmp_path: Path, spark: SparkSession, sparks: SparksRows
) -> None:
    """Stopped, rescaled while rows of all shards wait, and started again, twice: from 5 to 3 shards, and to 4."""
    from pyspark.sql import functions as f

    batches = random_batches(random.Random(sparks.seed), 6, 4)
    stream = hs.stream(name="l", key="k", timestamp="lt", columns=["lv"])
    other = hs.stream(name="r", key="k", timestamp="rt", columns=["rv"])
    join = stream.join(other, within=(f"{BEFORE} s", f"{AFTER} s"), how="left")

    def run(name: str) -> dict[int, list[Any]]:
        results: dict[int, Counter[Any]] = {}
        folder = tmp_path / name
        # a stop has a batch without data behind it, which moves the watermark: Spark's query stops as often
        for first, last, shards in ((0, 2, 5), (2, 4, 3), (4, len(batches), 4)):
            write(folder / "in", batches[first:last], first)
            lefts, rights = joined_sides(spark, folder / "in", "left")
            if name == "ours":
                if first:
                    assert hs.rescale(str(folder), "join", shards=shards).done
                inputs = {"l": lefts, "r": rights}
                rows = join.apply(inputs, "join", location=str(folder), shards=shards, time="watermark")
            else:
                near = f.expr(
                    f"l.k = r.k and rt >= lt - interval {BEFORE} seconds and rt <= lt + interval {AFTER} seconds"
                )
                joined = lefts.alias("l").join(rights.alias("r"), near, HOWS["left"])
                rows = joined.select(f.expr("coalesce(l.k, r.k) k"), "lv", "rv")
            answers(rows, folder, results)
        return in_lists(results)

    theirs = sparks("left", lambda: run("theirs"))
    assert plain(run("ours")) == theirs
    assert {row[2] is None for rows in theirs.values() for row in rows} == {True, False}


@pytest.mark.usefixtures("one_partition")
def test_operators_of_spark_behind_a_join_count_every_row(tmp_path: Path, spark: SparkSession) -> None:
    """The column of `event_time` is the mark: a count by windows behind a full join misses no row as late."""
    from pyspark.sql import functions as f

    batches = random_batches(random.Random(7), 3)
    write(tmp_path / "in", batches, 0)
    stream = hs.stream(name="l", key="k", timestamp="lt", columns=["lv"])
    other = hs.stream(name="r", key="k", timestamp="rt", columns=["rv"])
    join = stream.join(other, within=(f"{BEFORE} s", f"{AFTER} s"), how="full")
    counted: dict[datetime, int] = {}
    rows: list[Any] = []

    def count(batch: DataFrame, number: int) -> None:
        counted.update((row["window"]["start"], row["count"]) for row in batch.collect())

    for name, note in (("counts", count), ("rows", lambda batch, number: rows.extend(batch.collect()))):
        inputs = {"l": read(spark, tmp_path / "in", "left"), "r": read(spark, tmp_path / "in", "right")}
        results = join.apply(
            inputs, "join", location=str(tmp_path / name), shards=2, time="watermark", event_time="certain_at"
        )
        if name == "counts":
            results = results.groupBy(f.window("certain_at", "20 seconds")).count()
        query = results.writeStream.option("checkpointLocation", str(tmp_path / name)).outputMode("append")
        query.trigger(availableNow=True).foreachBatch(note).start().awaitTermination()
    for row in rows:
        alone = timedelta(seconds=AFTER if row["rt"] is None else BEFORE, milliseconds=1)
        both = row["lt"] is not None and row["rt"] is not None
        assert row["certain_at"] == (max(row["lt"], row["rt"]) if both else (row["lt"] or row["rt"]) + alone)
    closed = max(counted) + timedelta(seconds=20)
    of_windows = Counter(int(row["certain_at"].timestamp()) // 20 for row in rows if row["certain_at"] < closed)
    assert {int(start.timestamp()) // 20: number for start, number in counted.items()} == of_windows
    assert sum(counted.values()) > len(rows) // 2


@pytest.fixture
def named_sources(spark: SparkSession) -> Iterator[None]:
    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(setting, "true")
    yield
    spark.conf.unset(setting)


COLUMNS = "k string, rv string, rt timestamp"


def test_an_input_is_added_to_a_query_whose_sources_have_names(
    tmp_path: Path, spark: SparkSession, named_sources: None
) -> None:
    """With consent, in the same location; the rows are those of the plain engine."""
    from hybridstore.topology.engine import Engine

    batches = random_batches(random.Random(11), 4)
    stream = hs.stream(name="l", key="k", timestamp="lt", columns=["lv"])
    other = hs.stream(name="r", key="k", timestamp="rt", columns=["rv"])
    join = stream.join(other, within=("5 s", "8 s"), how="left", grace="60 s")
    results: list[Any] = []

    def start(inputs: dict[str, Any], **more: Any) -> None:
        rows = join.apply(inputs, "join", location=str(tmp_path / "ck"), shards=2, **more)
        query = rows.writeStream.option("checkpointLocation", str(tmp_path / "ck"))
        query = query.trigger(availableNow=True).foreachBatch(lambda df, _: results.extend(df.collect()))
        query.start().awaitTermination()

    def named(side: str) -> Any:
        return read(spark, tmp_path / "in", side, name=side)

    write(tmp_path / "in", [{"left": batches[0]["left"], "right": []}], 0)
    patiently(lambda: start({"l": named("left"), "r": COLUMNS}))
    write(tmp_path / "in", batches[1:], 1)
    both = {"l": named("left"), "r": named("right")}
    with pytest.raises(hs.ProgramMismatchError, match="'add input r'"):
        start(both)
    patiently(lambda: start(both, allow="add input r"))
    parts = [whole_rows(batches, number) for number in range(len(batches))]
    parts[0]["r"] = []
    expected: list[Any] = []
    with Engine(join, tmp_path / "plain", shards=2, durability="os") as engine:
        for part in parts:
            expected += engine.process_many(part)
            engine.commit()
    assert Counter((row["k"], row["lv"], row["rv"]) for row in results) == Counter(
        (row["k"], row["lv"], row["rv"]) for row in expected
    )
    assert {row["rv"] is None for row in expected} == {True, False}
    spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
    unnamed = {side[0]: read(spark, tmp_path / "in", side) for side in ("left", "right")}
    rows = join.apply({**unnamed, "r": COLUMNS}, "join", location=str(tmp_path / "other"), shards=2)
    query = rows.writeStream.option("checkpointLocation", str(tmp_path / "other")).format("noop")
    patiently(lambda: query.trigger(availableNow=True).start().awaitTermination())
    with pytest.raises(SparkSetupError, match="found sources without names, to which Spark adds none"):
        join.apply(unnamed, "join", location=str(tmp_path / "other"), shards=2, allow="add input r")


def test_a_join_by_stream_time_gives_the_rows_of_the_plain_engine(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random(5)
    batches = random_batches(rng, 5)
    write(tmp_path / "in", batches, 0)
    stream = hs.stream(name="l", key="k", timestamp="lt")
    other = hs.stream(name="r", key="k", timestamp="rt")
    join = stream.join(other, within="8 s", grace="1 hour", prefixes={"r": "r_"})
    inputs = {"l": read(spark, tmp_path / "in", "left"), "r": read(spark, tmp_path / "in", "right")}
    results = join.apply(inputs, "join", location=str(tmp_path / "ck"), shards=2)
    rows: list[Any] = []
    query = results.writeStream.option("checkpointLocation", str(tmp_path / "ck"))
    query = query.trigger(availableNow=True).foreachBatch(lambda df, _: rows.extend(df.collect()))
    query.start().awaitTermination()
    plain = {
        side[0]: [
            {"k": key, f"{side[0]}v": name, f"{side[0]}t": BEGIN + timedelta(seconds=second)}
            for batch in batches
            for key, name, second in batch[side]
        ]
        for side in ("left", "right")
    }
    expected = Counter((row["k"], row["lv"], row["r_rv"]) for row in join.run(plain))
    assert Counter((row["k"], row["lv"], row["r_rv"]) for row in rows) == expected
    assert results.columns == ["k", "lt", "lv", "r_rt", "r_rv", "result_time"]


def whole_rows(batches: list[dict[str, Rows]], number: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a batch as the DataFrames of `read` have them."""
    return {
        side[0]: [
            {"k": key, f"{side[0]}v": name, f"{side[0]}t": BEGIN + timedelta(seconds=second)}
            for key, name, second in batches[number][side]
        ]
        for side in ("left", "right")
    }


def comparable(row: dict[str, Any]) -> str:
    """Return a row as text, without the nulls of a late row's other input."""
    late = row.get("late")
    shown = {name: value for name, value in sorted(row.items()) if name != "late"}
    return repr((shown, late and sorted((name, part) for name, part in late.items() if part is not None)))


def test_steps_late_rows_and_broadcast_tables_give_the_rows_of_the_plain_engine(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    """Two joins, each with a restart between its batches."""
    from hybridstore.topology.engine import Engine

    rng = random.Random(seed)
    batches = random_batches(rng, 6)
    # a row of another time than the first, so that at least one is late
    batches[0]["left"].append(("k0.0", "left-first", 60))
    batches[1]["left"].append(("k0.0", "left-late", 1))
    # a row whose key the other side never has
    batches[0]["left"].append(("alone", "left-alone", 60))
    kept = hs.stream(name="l", key="k", timestamp="lt").filter(lambda row: not row["lv"].endswith(".0"))
    renamed = hs.stream(name="r", key="key", timestamp="rt").map(
        lambda row: {"key": row["k"], "rt": row["rt"], "size": len(row["rv"]), "rv": row["rv"]},
        "key string, rt timestamp, size int, rv string",
    )
    stream = hs.stream(name="l", key="lv", timestamp="lt")
    table = hs.table(name="r", key="k", timestamp="rt", columns=["rv"], delete="closed")
    joins = {
        "steps": kept.join(renamed, within=(f"{BEFORE} s", f"{AFTER} s"), how="left", select=SELECTED).late(),
        "broadcast": stream.join(table, how="left", broadcast=True, on="k")
        .filter(lambda row: row["lv"] != "left1.0")
        .map(lambda row: {"lv": row["lv"].upper(), "rv": row["rv"]}, "lv string, rv string"),
    }
    for first, last in ((0, 3), (3, len(batches))):
        write(tmp_path / "in", batches[first:last], first)
        for name, join in joins.items():
            rights = read(spark, tmp_path / "in", "right")
            if name == "broadcast":
                rights = rights.selectExpr("*", "rv like '%.1' closed")
            inputs = {"l": read(spark, tmp_path / "in", "left"), "r": rights}
            results = join.apply(inputs, name, location=str(tmp_path / name), shards=2)
            query = results.writeStream.option("checkpointLocation", str(tmp_path / name)).format("parquet")
            query.trigger(availableNow=True).start(str(tmp_path / f"out-{name}")).awaitTermination()
    for name, join in joins.items():
        engine = Engine(join, tmp_path / f"plain-{name}", shards=2, durability="os")
        expected: list[dict[str, Any]] = []
        for number in range(len(batches)):
            rows = whole_rows(batches, number)
            if name == "broadcast":
                rows["r"] = [{**row, "closed": row["rv"].endswith(".1")} for row in rows["r"]]
            expected += [dict(row) for row in engine.process_many(rows)]
        engine.close()
        answer = spark.read.parquet(str(tmp_path / f"out-{name}")).collect()
        rows_of_spark = [{key: aware(part) for key, part in row.asDict(True).items()} for row in answer]
        assert Counter(map(comparable, rows_of_spark)) == Counter(map(comparable, expected)), (name, seed)
        if name == "steps":
            assert any(row["late"] for row in expected)
        else:
            assert {row["rv"] is None for row in expected} == {True, False}


SELECTED = {"k": "l.k", "lv": "l.lv", "size": "r.size", "rv": "r.rv", "at": "result_time"}


def aware(value: Any) -> Any:
    """Return times of Spark's rows, which have no zone, as times of UTC."""
    if isinstance(value, dict):
        return {name: aware(part) for name, part in value.items()}
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_what_spark_cannot_run_is_refused_when_it_is_applied(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "right").mkdir()
    lefts, rights = read(spark, tmp_path, "left"), read(spark, tmp_path, "right")
    stream = hs.stream(name="l", key="k", timestamp="lt")
    other = hs.stream(name="r", key="k", timestamp="rt")
    join = stream.join(other, within="8 s")
    with pytest.raises(TypeError, match="expected a dict of the inputs of the join"):
        join.apply(lefts, "join", location=str(tmp_path / "ck"))
    with pytest.raises(ValueError, match="found 'l', expected 'l' and 'r'"):
        join.apply({"l": lefts}, "join", location=str(tmp_path / "ck"))
    with pytest.raises(ValueError, match="column 'rt' is missing"):
        join.apply({"l": lefts, "r": rights.drop("rt")}, "join", location=str(tmp_path / "ck"))
    with pytest.raises(ValueError, match="input 'l': map: output_schema: found None"):
        stream.map(dict).join(other, within="8 s").apply({"l": lefts, "r": rights}, "j", location=str(tmp_path / "ck"))
    inputs = {"l": lefts, "r": rights.selectExpr("k", "rt", "length(rv) lv")}
    with pytest.raises(TypeError, match="input 'r': column 'lv': found int32, expected string"):
        stream.join(other, within="8 s", select={"k": "l.k"}).late().apply(inputs, "j", location=str(tmp_path / "ck"))
    with pytest.raises(ValueError, match="map behind a join: output_schema: found None"):
        join.map(dict).apply({"l": lefts, "r": rights}, "j", location=str(tmp_path / "ck"))
    with pytest.raises(ValueError, match="event_time: found filter behind the join"):
        join.filter(bool).apply(
            {"l": lefts, "r": rights}, "j", location=str(tmp_path / "ck"), time="watermark", event_time="at"
        )
    with pytest.raises(ValueError, match="'rv' is the name of another column"):
        join.late("rv").apply({"l": lefts, "r": rights}, "j", location=str(tmp_path / "ck"))
