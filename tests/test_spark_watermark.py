"""`time="watermark"` against Spark's own operators, on the same streams: row by row and batch by batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from tests.watermark_streams import (
    BEGIN,
    DELAY,
    GAP,
    HOP,
    SIZE,
    Answer,
    Event,
    answers,
    of_kind,
    ours,
    random_stream,
    read,
    spark_final,
    spark_updates,
    when_called,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def without_empty_batches(spark: SparkSession) -> Iterator[None]:
    """Spark's own operators in the batches that ours get: none that was made for a new watermark alone."""
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(setting, "false")
    yield
    spark.conf.unset(setting)


def at(row: Answer) -> tuple[str, int, int, int]:
    """Key, seconds of start and end, and count."""
    return (
        row[1],
        round((row[2] - BEGIN.replace(tzinfo=None)).total_seconds()),
        round((row[3] - BEGIN.replace(tzinfo=None)).total_seconds()),
        row[4],
    )


def one_row_batches(*rows: tuple[str, int]) -> list[list[Event]]:
    return [[Event(k, "0", 1, second)] for k, second in rows]


def seen(made: dict[int, list[Answer]], kind: str) -> list[tuple[str, int, int, int]]:
    return [at(row) for number in sorted(made) for row in of_kind(made, kind)[number]]


def test_final_windows_come_when_the_watermark_has_passed_them(tmp_path: Path, spark: SparkSession) -> None:
    seconds = [0, 100, 200, 3600, 7200, 7300, 7400, 7500]
    write(tmp_path / "in", one_row_batches(*(("a", second) for second in seconds)))
    made: dict[int, list[Answer]] = {}
    df = read(spark, tmp_path / "in", 60)
    answers(ours(df, tmp_path / "ck", 1, ["tumbling", "session"]), tmp_path / "ck", "append", made)
    closed = seconds[:6]
    assert seen(made, "tumbling") == [
        ("a", second // SIZE * SIZE, second // SIZE * SIZE + SIZE, 1) for second in closed
    ]
    assert seen(made, "session") == [("a", second, second + GAP, 1) for second in closed]
    # by the watermark of a batch, which is that of the rows before it
    assert [len(of_kind(made, "tumbling")[number]) for number in sorted(made)] == [0, 0, 1, 1, 1, 1, 1, 1]


def test_what_comes_within_the_delay_is_counted_once_and_final_once(
    tmp_path: Path, spark: SparkSession, without_empty_batches: None
) -> None:
    write(tmp_path / "in", one_row_batches(("a", 0), ("b", 1800), ("a", 10), ("b", 9000), ("b", 9100), ("a", 20_000)))
    df = read(spark, tmp_path / "in", 3600)
    made: dict[int, list[Answer]] = {}
    kinds = ["tumbling", "session", "held tumbling", "held session", f"updates {SIZE}"]
    answers(ours(df, tmp_path / "ck", 1, kinds), tmp_path / "ck", "append", made)
    assert seen(made, "tumbling") == [("a", 0, 20, 2), ("b", 1800, 1820, 1)]
    assert seen(made, "session") == seen(made, "held session") == [("a", 0, 20, 2), ("b", 1800, 1810, 1)]
    assert [row for row in seen(made, f"updates {SIZE}") if row[0] == "a"][:2] == [("a", 0, 20, 1), ("a", 0, 20, 2)]
    assert [row for row in seen(made, "held tumbling") if row[1] == 0] == [("a", 0, 20, 2)]
    theirs: dict[int, list[Answer]] = {}
    answers(spark_final(df, ["tumbling", "session"]), tmp_path / "theirs", "append", theirs)
    for kind in ("tumbling", "session"):
        assert of_kind(made, kind) == of_kind(theirs, kind)


@pytest.mark.stress
def test_random_streams_give_what_sparks_own_operators_give(
    tmp_path: Path, spark: SparkSession, without_empty_batches: None, seed: int, rounds: int
) -> None:
    """Each round: two runs over rows in disorder, with a restart between them; from one input, or two whose watermarks differ.

    A round has some of the kinds of windows, so that ten or so have all of them, in every company.
    """
    for number in range(rounds):
        r = random.Random(seed + number)
        folder, shards, inputs = tmp_path / f"{number}", r.choice([1, 2, 3]), r.choice([1, 1, 2])
        finals = r.sample(["tumbling", "hopping", "uneven", "session"], 2)
        held, hop = f"held {finals[0]}", r.choice([SIZE, HOP])
        updates = f"updates {hop}"
        streams = [random_stream(r, 7, 8, shards) for _ in range(inputs)]
        together = [[event for batch in batches for event in batch] for batches in zip(*streams, strict=True)]

        def rows(folder: Path = folder, inputs: int = inputs) -> DataFrame:
            first = read(spark, folder / "0", DELAY)
            return first if inputs == 1 else first.union(read(spark, folder / "1", 2 * DELAY))

        made: dict[str, dict[int, list[Answer]]] = {"ours": {}, "final": {}, "updates": {}}
        for low, high in ((0, 4), (4, len(together))):
            for i, batches in enumerate(streams):
                write(folder / f"{i}", batches[low:high], low)
            kinds = [*finals, held, "unique", updates]
            answers(ours(rows(), folder / "ours", shards, kinds), folder / "ours", "append", made["ours"])
            answers(spark_final(rows(), [*finals, "unique"]), folder / "final", "append", made["final"])
            answers(spark_updates(rows(), hop), folder / "updates", "update", made["updates"])
        final, mine = made["final"], made["ours"]
        for kind in finals:
            assert of_kind(mine, kind) == when_called(of_kind(final, kind), together, shards), (seed, number, kind)
            assert sum(map(len, of_kind(mine, kind).values())) > 0
        assert of_kind(mine, held, finals[0]) == of_kind(mine, finals[0]), (seed, number, held)
        assert of_kind(mine, "unique") == of_kind(final, "unique"), (seed, number)
        assert of_kind(mine, updates) == made["updates"], (seed, number, updates)


def test_heartbeats_close_what_sparks_batches_without_data_close(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    """Spark runs a batch without rows when the watermark has moved; ours gets the heartbeats of the next second."""
    r = random.Random(seed)
    batches = [batch for batch in random_stream(r, 9, 4, 2) if batch][-4:]
    write(tmp_path / "in", [])
    beating = hsp.with_heartbeats(
        read(spark, tmp_path / "in", DELAY), key="k", timestamp="t", shards=2, every="1 second"
    )
    rows: dict[str, list[Answer]] = {"ours": [], "theirs": []}
    queries = {}
    for name, df in (
        ("ours", ours(beating, tmp_path / "ours", 2, ["session"])),
        ("theirs", spark_final(read(spark, tmp_path / "in", DELAY), ["session"])),
    ):
        writer = df.writeStream.foreachBatch(
            lambda batch, number, name=name: rows[name].extend(map(tuple, batch.collect()))
        )
        queries[name] = writer.option("checkpointLocation", str(tmp_path / name)).start()
    query, written = queries["ours"], 0

    def closed() -> bool:
        """Whether our query has run a batch behind the one with the newest file."""
        came = [
            any(source["description"].startswith("FileStream") and source["numInputRows"] for source in one["sources"])
            for one in query.recentProgress
        ]
        read_in = sum(one["numInputRows"] > 0 for one in query.recentProgress)
        return sum(came) == written and not came[-1] and read_in > written

    try:
        for number, batch in enumerate(batches):
            write(tmp_path / "in", [batch], number)
            written += 1
            queries["theirs"].processAllAvailable()
            for _ in range(600):
                if closed() or query.awaitTermination(0.2):
                    break
            assert sorted(rows["ours"]) == sorted(rows["theirs"]), (seed, number)
        assert rows["ours"]
    finally:
        for one in queries.values():
            one.stop()
