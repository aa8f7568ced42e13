"""A topology that changes between two starts of a query: the chain, the shards without rows, what is refused."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore.spark.operator_file import operator_storage, read_chain
from hybridstore.spark.reading import open_version, shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WINDOWS = hs.TumblingWindows("10 seconds", grace="5 seconds")
OLD = hs.stream(key="k", timestamp="t").windowed_by(WINDOWS).aggregate(emit="commit", n=hs.Count(), total=hs.Sum("v"))
NEW = hs.stream(key="k", timestamp="t").windowed_by(WINDOWS).aggregate(emit="commit", most=hs.Max("v"), n=hs.Count())
WORDS = ["drop aggregate total", "add aggregate most from now"]


def batch(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    """Add a file, which is one batch."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (1_760_000_000 + number, 1_760_000_000 + number))
    hidden.rename(folder / f"{number:03d}.json")


def run(spark: "SparkSession", tmp_path: Path, topology: hs.Topology, allow: Any = None) -> dict[int, list[Any]]:
    """Run the query over the batches that it has not seen, and return their results."""
    rows: dict[int, list[Any]] = {}
    stream = spark.readStream.schema("k string, t long, v long").option("maxFilesPerTrigger", 1)
    checkpoint = str(tmp_path / "checkpoint")
    applied = topology.apply(stream.json(str(tmp_path / "in")), "op", location=checkpoint, shards=3, allow=allow)

    def keep(df: Any, number: int) -> None:
        rows[number] = sorted(tuple(row) for row in df.collect())

    writer = applied.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return rows


def test_a_changed_topology_goes_on_with_every_shard(tmp_path: Path, spark: "SparkSession") -> None:
    first = [{"k": f"k{i % 9}", "t": 500 * i, "v": i} for i in range(50)]
    batch(tmp_path / "in", 0, first)
    run(spark, tmp_path, OLD)
    assert [change.verdict for change in NEW.compare(tmp_path / "checkpoint")] == ["consent", "consent"]
    with pytest.raises(hs.ProgramMismatchError, match="aggregate total: not in the program"):
        run(spark, tmp_path, NEW)
    # Of three shards one gets rows; all take the new topology over.
    second = [{"k": "k1", "t": 24_000 + 900 * i, "v": -i} for i in range(20)]
    batch(tmp_path / "in", 1, second)
    results = run(spark, tmp_path, NEW, WORDS)
    assert results == {
        1: [
            ("k1", 20_000, 30_000, None, 8),
            ("k1", 30_000, 40_000, -7, 11),
            ("k1", 40_000, 50_000, -18, 2),
        ]
    }
    for state in shards(tmp_path / "checkpoint", "op"):
        settings = open_version(state, 2).group.settings
        assert [entry["from"] for entry in settings["programs"]] == [1, 2]
        assert set(settings["since"]) == {"most"}
    chain = read_chain(operator_storage(tmp_path / "checkpoint", "op"))
    assert [(entry["number"], entry["from"], entry["consents"]) for entry in chain] == [(1, 1, []), (2, 2, WORDS)]
    # A restart that still says the words goes on; words that nothing needs are refused on the driver.
    batch(tmp_path / "in", 2, [{"k": "k2", "t": 60_000, "v": 5}])
    assert run(spark, tmp_path, NEW, WORDS) == {2: [("k2", 60_000, 70_000, 5, 1)]}
    with pytest.raises(hs.ProgramMismatchError, match="found 'drop aggregate n', but the program does not change"):
        run(spark, tmp_path, NEW, "drop aggregate n")
    assert len(read_chain(operator_storage(tmp_path / "checkpoint", "op"))) == 2
