"""The versions of pyspark that are promised: one job on each gives the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore.spark.arrow_schema import arrow_schema
from tests.conftest import ROOT
from tests.tools.modes import classic_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The newest release of each line before the one that is installed.
OLDER = ("4.1.4", "4.2.1")
# The oldest pandas and pyarrow that pyproject.toml takes, and the numpy that they were made for.
OLDEST = ("pandas==2.2.0", "pyarrow==18.0.0", "numpy==1.26.4")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_an_arrow_schema_has_the_zone_at_every_depth_with_the_signature_of_any_version(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.pandas import types as pandas_types
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType, TimestampNTZType, TimestampType

    inner = StructType().add("t", TimestampType(), False).add("s", StringType())
    schema = StructType().add("t", TimestampType(), False).add("n", TimestampNTZType())
    schema = schema.add("a", ArrayType(TimestampType(), False)).add("m", MapType(StringType(), inner))
    expected = pandas_types.to_arrow_schema(schema, timezone=zone)
    assert arrow_schema(schema, zone) == expected
    newer = pandas_types.to_arrow_schema

    def of_41(schema: Any, timestamp_utc: bool = True) -> Any:
        return newer(schema, timezone="UTC")

    monkeypatch.setattr(pandas_types, "to_arrow_schema", of_41)
    assert arrow_schema(schema, zone) == expected


def install(folder: Path, *packages: str) -> Path:
    """Install packages without what they need into a folder; skip the test where that is not possible."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    installed = subprocess.run([*pip, *packages], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip could not install {', '.join(packages)}: {installed.stderr[-300:]}")
    return folder


def rows_of_job(folder: Path, packages: Path | None) -> Any:
    """Run the job of `spark_version_job` in a process of its own."""
    folder.mkdir()
    places = [str(packages)] if packages is not None else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*places, str(ROOT)])}
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.spark_version_job", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.stress
def test_older_versions_give_the_rows_of_the_installed_one(tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("each version is a download of 400 MB: make stress")
    expected = rows_of_job(tmp_path / "installed", None)["rows"]
    assert {row[0] for row in expected} == {"minutes", "sliding", "alarms"}
    for version in OLDER:
        packages = install(tmp_path / version, f"pyspark=={version}")
        answer = rows_of_job(tmp_path / f"job {version}", packages)
        assert answer["version"] == version
        assert answer["rows"] == expected, version


@pytest.mark.stress
def test_frames_with_the_oldest_pandas_and_pyarrow(tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("a download of 70 MB: make stress")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    floors = {name.partition(">=")[0]: name.partition(">=")[2] for name in project["optional-dependencies"]["spark"]}
    for package in OLDEST[:2]:
        name, _, version = package.partition("==")
        assert version.startswith(floors[name].partition(",")[0])
    packages = install(tmp_path / "oldest", *OLDEST)
    files = [
        f"tests/spark/test_{name}.py"
        for name in ("frame_tables", "frames_beside_spark", "processor_variants", "row_door")
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
    environment.pop("HYBRIDSTORE_STRESS", None)
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.spark
@pytest.mark.slow
@classic_first
def test_ticks_have_a_name_where_spark_asks_each_source_for_one(
    spark: SparkSession, named_sources: None, tmp_path: Path
) -> None:
    import hybridstore as hs
    from tests.tools.modes import patiently
    from tests.tools.spark_version_job import SCHEMA, write

    for number in range(3):
        write(tmp_path / "in", number)
    checkpoint = str(tmp_path / "checkpoint")
    minutes = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("1 minute"))
        .aggregate(n=hs.Count(), emit="close")
    )

    def start() -> None:
        reader: Any = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        events = reader.name("events").json(str(tmp_path / "in")).withWatermark("t", "5 seconds")
        counts = minutes.apply(events, "of-1", location=checkpoint, shards=2, time="watermark")
        writer = counts.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    patiently(start)
    write(tmp_path / "in", 3)
    patiently(start)
    offsets = (tmp_path / "checkpoint" / "offsets" / "1").read_text()
    assert offsets.startswith("v2")
    assert "hybridstore_ticks_of_2d_1" in offsets
    answers = spark.read.parquet(str(tmp_path / "out")).groupBy("k").sum("n").collect()
    # three minutes are closed
    assert {(row[0], row[1]) for row in answers} == {(f"k{i}", 15) for i in range(4)}
