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
from tests.tools.recorded import SparksRows, plain
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
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Batches = dict[int, list[Answer]]


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
    tmp_path: Path, spark: SparkSession, sparks: SparksRows, rounds: int
) -> None:
    """Each round: two runs over rows in disorder, with a restart between them; from one input, or two whose watermarks
    differ.

    They come in the same batches, those that Spark makes for a new watermark alone included. A round has some of the
    kinds of windows, so that ten or so have all of them, in every company.
    """

    def check(number: int) -> None:
        seed = sparks.seed
        r = random.Random(seed + number)
        folder, shards, inputs = tmp_path / f"{number}", r.choice([1, 2, 3]), r.choice([1, 1, 2])
        # a recorded input alone is shorter
        kinds_each, batches = (2, 7) if sparks.number is None else (1, 4)
        finals = r.sample(["tumbling", "hopping", "uneven", "session"], kinds_each)
        suppressed, hop = f"held {finals[0]}", r.choice([SIZE, HOP])
        updates = f"updates {hop}"
        streams = [random_stream(r, batches, 8, shards, 10 * i) for i in range(inputs)]

        half = len(streams[0]) // 2
        kinds = [*finals, suppressed, "unique", "chained", updates]

        def run(name: str, query: Callable[[DataFrame, Path], DataFrame], mode: str = "append") -> Batches:
            """Run a query over the first half of the batches, and again over the second one."""
            results: Batches = {}
            place = folder / name
            for low, high in ((0, half), (half, 2 * half)):
                frames = []
                for i, stream in enumerate(streams):
                    write(place / f"in{i}", stream[low:high], low)
                    frames.append(read(spark, place / f"in{i}", (i + 1) * DELAY))
                df = frames[0] if inputs == 1 else frames[0].union(frames[1])
                answers(query(df, place), place, mode, results)
            return results

        def of_spark(name: str, query: Callable[[DataFrame, Path], DataFrame], mode: str = "append") -> Batches:
            rows = sparks(name, lambda: run(name, query, mode))
            return {int(batch): [tuple(row) for row in of_batch] for batch, of_batch in rows.items()}

        def all_of_ours(df: DataFrame, place: Path) -> DataFrame:
            return ours(df, place, shards, kinds)

        mine = {int(batch): [tuple(row) for row in rows] for batch, rows in plain(run("ours", all_of_ours)).items()}
        final = of_spark("final", lambda df, _: spark_final(df, [*finals, "unique", "chained"]))
        for kind in (*finals, "unique", "chained"):
            assert of_kind(mine, kind) == of_kind(final, kind), (seed, number, kind)
            assert sum(map(len, of_kind(mine, kind).values())) > 0
        assert of_kind(mine, suppressed, finals[0]) == of_kind(mine, finals[0]), (seed, number, suppressed)
        changed = of_spark("updates", lambda df, _: spark_updates(df, hop), "update")
        assert of_kind(mine, updates) == changed, (seed, number, updates)

    for number in range(1 if sparks.number is not None else rounds):
        check(number)


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
