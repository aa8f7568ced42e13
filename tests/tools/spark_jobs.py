"""Spark jobs of the tests: an input of files, one a batch, and a query that keeps what came out of each batch."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridstore import spark as hsp
from tests.tools.modes import patiently
from tests.tools.spark_programs import RunningCount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, v long, t timestamp"


class Source:
    """A folder of JSON files, one per batch."""

    def __init__(self, folder: Path, spark: "SparkSession") -> None:
        self.folder = folder
        self.spark = spark
        self.batches: list[list[dict[str, Any]]] = []
        # the name of the source, where sources have names
        self.name: str | None = None
        folder.mkdir(parents=True)

    def add(self, *rows: dict[str, Any]) -> None:
        """Add one batch; a file without rows is a batch too."""
        number = len(self.batches)
        self.batches.append(list(rows))
        hidden = self.folder / f".{number:05d}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes files in the order of their times
        os.utime(hidden, (1_760_000_000 + number, 1_760_000_000 + number))
        hidden.rename(self.folder / f"{number:05d}.json")

    def stream(self) -> "DataFrame":
        reader: Any = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame: DataFrame = (reader if self.name is None else reader.name(self.name)).json(str(self.folder))
        return frame


def row(k: str | None, v: int = 1, second: int = 0) -> dict[str, Any]:
    """A row of a key, with a time that many seconds after the first."""
    return {"k": k, "v": v, "t": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"}


class Job:
    """Runs a query to the end of what is there, and keeps what came out."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkpoint = tmp_path / "checkpoint"
        self.results = tmp_path / "results"
        self.results.mkdir()
        self.rows: dict[int, list[tuple[Any, ...]]] = {}

    def run(
        self,
        df: "DataFrame",
        action: Callable[["DataFrame"], list[Any]] = lambda df: df.collect(),
        *,
        sink: bool = False,
        mode: str = "append",
        **options: Any,
    ) -> None:
        """Run to the end of the input; `sink`: into files, as Spark Connect does without a process more."""
        results, files = self.results, self.checkpoint.with_name("files")

        # with Spark Connect this runs in another process
        def keep(batch: "DataFrame", number: int) -> None:
            (results / str(number)).write_bytes(pickle.dumps(sorted(tuple(row) for row in action(batch))))

        def start() -> None:
            writer = df.writeStream.foreachBatch(hsp.foreach_batch(keep))
            if sink:
                writer = df.writeStream.format("parquet").option("path", str(files))
            writer = writer.outputMode(mode)
            for name, value in {"checkpointLocation": str(self.checkpoint), **options}.items():
                writer = writer.option(name, value)
            writer.trigger(availableNow=True).start().awaitTermination()

        try:
            patiently(start)
        finally:
            for path in results.iterdir():
                self.rows[int(path.name)] = pickle.loads(path.read_bytes())
                path.unlink()
            for path in files.glob("_spark_metadata/*[0-9]"):
                self.rows[int(path.name)] = sorted(_rows_of_files(path))

    def shards(self, name: str = "op") -> list[dict[str, Any]]:
        return hsp.metrics(self.checkpoint, name)


def files_of(log: Path) -> list[str]:
    """The files that an entry in the log of Spark's file sink names."""
    return [json.loads(line)["path"].removeprefix("file://") for line in log.read_text().splitlines()[1:]]


def _rows_of_files(log: Path) -> list[tuple[Any, ...]]:
    """The rows that a batch has written into files, as the log of Spark's file sink says."""
    from pyarrow import parquet

    paths = files_of(log)
    return [tuple(row.values()) for path in paths for row in parquet.read_table(path).to_pylist()]


def count(df: "DataFrame", job: Job, *, name: str = "op", shards: int = 2, **options: Any) -> "DataFrame":
    """The running count as an operator of the job."""
    return hsp.apply_program(df, RunningCount(), name=name, location=str(job.checkpoint), shards=shards, **options)


def expected(batches: list[list[dict[str, Any]]]) -> dict[int, list[tuple[Any, ...]]]:
    """What the running count gives for each batch."""
    state: dict[str, tuple[int, int]] = {}
    results = {}
    for number, batch in enumerate(batches):
        for row in batch:
            n, total = state.get(row["k"], (0, 0))
            state[row["k"]] = (n + 1, total + row["v"])
        results[number] = sorted((key, *state[key]) for key in {row["k"] for row in batch})
    return results


def failure(run: Callable[[], Any]) -> str:
    """What Spark says as it fails."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        run()
    return str(caught.value)
