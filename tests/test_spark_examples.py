"""The examples that stream through Spark: short, and giving what they say."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(spark: "SparkSession", module: ModuleType, folder: Path) -> list[dict[str, object]]:
    for path in folder.iterdir():
        os.utime(path, (1_760_000_000 + int(path.stem), 1_760_000_000 + int(path.stem)))
    found: list[dict[str, object]] = []
    checkpoint = str(folder.parent / "checkpoint")
    writer = module.job(spark, str(folder), checkpoint).writeStream.foreachBatch(
        lambda df, number: found.extend({"batch": number, **row.asDict()} for row in df.collect())
    )
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return found


@pytest.mark.parametrize("name", ["sessions", "alerts"])
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def test_sessions_come_out_once(spark: "SparkSession", tmp_path: Path) -> None:
    module = load("sessions")
    folder = tmp_path / "clicks"
    folder.mkdir()
    module.write_clicks(folder)
    found = [(row["user"], row["clicks"], sorted(row["pages"]), row["last"]) for row in rows_of(spark, module, folder)]  # type: ignore[call-overload]
    assert sorted(found) == [
        ("ann", 1, ["/"], "/"),
        ("ann", 2, ["/", "/news"], "/news"),
        ("bob", 3, ["/", "/cart", "/shop"], "/cart"),
    ]


def test_alerts_are_held_back(spark: "SparkSession", tmp_path: Path) -> None:
    module = load("alerts")
    folder = tmp_path / "reports"
    folder.mkdir()
    module.write_reports(folder)
    found = [(row["batch"], row["host"], row["errors"], row["worst"]) for row in rows_of(spark, module, folder)]
    assert found == [(1, "db1", 6, 5), (2, "web7", 1, 1), (3, "db1", 7, 5)]
