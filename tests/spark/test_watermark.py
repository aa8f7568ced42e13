"""`time="watermark"` against Spark's own operators, on the same streams: row by row and batch by batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore.spark.errors import SparkSetupError
from hybridstore.spark.location import locate
from tests.tools.watermark_streams import (
    BEGIN,
    DELAY,
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
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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


def seen(results: dict[int, list[Answer]], kind: str) -> list[tuple[str, int, int, int]]:
    return [at(row) for number in sorted(results) for row in of_kind(results, kind)[number]]


def test_what_comes_within_the_delay_is_counted_once_and_final_once(tmp_path: Path, spark: SparkSession) -> None:
    write(tmp_path / "in", one_row_batches(("a", 0), ("b", 1800), ("a", 10), ("b", 9000), ("b", 9100), ("a", 20_000)))
    df = read(spark, tmp_path / "in", 3600)
    results: dict[int, list[Answer]] = {}
    kinds = ["tumbling", "session", "held tumbling", "held session", f"updates {SIZE}"]
    answers(ours(df, tmp_path / "ck", 1, kinds), tmp_path / "ck", "append", results)
    others = [("b", second, second) for second in (1800, 9000, 9100)]
    assert seen(results, "tumbling") == [("a", 0, 20, 2), *((k, start, end + 20, 1) for k, start, end in others)]
    assert seen(results, "session") == [("a", 0, 20, 2), *((k, start, end + 10, 1) for k, start, end in others)]
    assert seen(results, "held session") == seen(results, "session")
    assert [row for row in seen(results, f"updates {SIZE}") if row[0] == "a"][:2] == [("a", 0, 20, 1), ("a", 0, 20, 2)]
    assert [row for row in seen(results, "held tumbling") if row[1] == 0] == [("a", 0, 20, 2)]
    # by the watermark of a batch, which is that of the rows before it; the last one has no rows
    for kind in ("tumbling", "session"):
        assert [len(of_kind(results, kind)[number]) for number in sorted(results)] == [0, 0, 0, 0, 2, 0, 2], kind


@pytest.mark.stress
@pytest.mark.usefixtures("one_partition")
def test_random_streams_give_what_sparks_own_operators_give(
    tmp_path: Path, spark: SparkSession, seed: int, rounds: int
) -> None:
    """Each round: two runs over rows in disorder, with a restart between them; from one input, or two whose watermarks
    differ.

    They come in the same batches, those that Spark makes for a new watermark alone included. A round has some of the
    kinds of windows, so that ten or so have all of them, in every company; a round alone is shorter.
    """
    kinds_each, batches = (1, 3) if rounds == 1 else (2, 7)
    for number in range(rounds):
        r = random.Random(seed + number)
        folder, shards, inputs = tmp_path / f"{number}", r.choice([1, 2, 3]), r.choice([1, 1, 2])
        finals = r.sample(["tumbling", "hopping", "uneven", "session"], kinds_each)
        suppressed, hop = f"held {finals[0]}", r.choice([SIZE, HOP])
        updates = f"updates {hop}"
        streams = [random_stream(r, batches, 8, shards, 10 * i) for i in range(inputs)]

        def rows(folder: Path = folder, inputs: int = inputs) -> DataFrame:
            first = read(spark, folder / "0", DELAY)
            return first if inputs == 1 else first.union(read(spark, folder / "1", 2 * DELAY))

        results: dict[str, dict[int, list[Answer]]] = {"ours": {}, "final": {}, "updates": {}}
        half = len(streams[0]) // 2
        for low, high in ((0, half), (half, 2 * half)):
            for i, stream in enumerate(streams):
                write(folder / f"{i}", stream[low:high], low)
            kinds = [*finals, suppressed, "unique", "chained", updates]
            answers(ours(rows(), folder / "ours", shards, kinds), folder / "ours", "append", results["ours"])
            answers(spark_final(rows(), [*finals, "unique", "chained"]), folder / "final", "append", results["final"])
            answers(spark_updates(rows(), hop), folder / "updates", "update", results["updates"])
        final, mine = results["final"], results["ours"]
        for kind in (*finals, "unique", "chained"):
            assert of_kind(mine, kind) == of_kind(final, kind), (seed, number, kind)
            assert sum(map(len, of_kind(mine, kind).values())) > 0
        assert of_kind(mine, suppressed, finals[0]) == of_kind(mine, finals[0]), (seed, number, suppressed)
        assert of_kind(mine, updates) == results["updates"], (seed, number, updates)


def test_ticks_come_for_a_watermark_that_is_new_and_no_other(tmp_path: Path) -> None:
    from hybridstore.spark.ticks import TickReader

    reader = TickReader(locate(tmp_path), 3)
    at = reader.initialOffset()
    assert reader.latestOffset(at) == at
    assert reader.partitions(at, at) == []
    (tmp_path / "commits").mkdir()
    for batch, watermark in ((0, 0), (1, 7000), (2, 7000), (10, 9000), (11, 8000)):
        (tmp_path / "commits" / f"{batch}").write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')
        before, at = at, reader.latestOffset(at)
        ticks = [mark for partition in reader.partitions(before, at) for (mark,) in reader.read(partition)]
        # numbers of the shards, less their count
        assert ticks == ([-3, -2, -1] if batch in (1, 10) else []), batch
    (tmp_path / "commits" / "12").write_text("v1\n")
    with pytest.raises(SparkSetupError, match=r"commits/12: cannot be read as a commit log entry"):
        reader.latestOffset(at)
