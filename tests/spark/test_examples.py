"""The examples that stream through Spark: short, and giving what they say."""

import importlib.util
import json
import os
import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def input_of(write: Callable[[Path], object], folder: Path, draw: random.Random, patch: pytest.MonkeyPatch) -> Path:
    """Let an example write its input on a machine on which files get any time when they are written."""
    plainly = Path.write_text

    def write_text(path: Path, text: str) -> int:
        size = plainly(path, text)
        moment = 1_700_000_000 + draw.randrange(3)
        os.utime(path, (moment, moment))
        return size

    folder.mkdir()
    with patch.context() as patched:
        patched.setattr(Path, "write_text", write_text)
        write(folder)
    return folder


def rows_of(spark: "SparkSession", module: ModuleType, folder: Path) -> list[dict[str, object]]:
    answers: list[dict[str, object]] = []
    checkpoint = str(folder.parent / "checkpoint")
    writer = module.job(spark, str(folder), checkpoint).writeStream.foreachBatch(
        lambda df, number: answers.extend({"batch": number, **row.asDict()} for row in df.collect())
    )
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return answers


@pytest.mark.parametrize("name", ["sessions", "alerts"])
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def session_rows(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return sorted((row["user"], row["clicks"], sorted(row["pages"]), row["last"]) for row in rows)


def alert_rows(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return [(row["host"], row["errors"], row["worst"]) for row in rows if row["host"] != "clock"]


SESSIONS = [("ann", 1, ["/"], "/"), ("ann", 2, ["/", "/news"], "/news"), ("bob", 3, ["/", "/cart", "/shop"], "/cart")]
ALERTS = [("db1", 6, 5), ("web7", 1, 1), ("db1", 7, 5)]


@pytest.mark.parametrize(
    ("name", "write", "rows", "expected"),
    [("sessions", "write_clicks", session_rows, SESSIONS), ("alerts", "write_reports", alert_rows, ALERTS)],
)
def test_examples_are_right_whatever_times_their_files_get(
    name: str,
    write: str,
    rows: Callable[[list[dict[str, Any]]], list[tuple[object, ...]]],
    expected: list[tuple[object, ...]],
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, draw = load(name), random.Random(seed)
    for number in range(10):
        folder = input_of(getattr(module, write), tmp_path / f"{number}", draw, monkeypatch)
        # in the order in which Spark takes files: one a batch, by their times, and those of one time in any order
        files = sorted(folder.iterdir(), key=lambda path: (path.stat().st_mtime, draw.random()))
        results: list[dict[str, Any]] = []
        with getattr(module, name).open(tmp_path / f"state {number}", durability="os") as engine:
            for path in files:
                batch = [json.loads(line) for line in path.read_text().splitlines()]
                results += engine.process_many([{**row, "time": datetime.fromisoformat(row["time"])} for row in batch])
                results += engine.commit()
        assert rows(results) == expected


@pytest.mark.spark
@pytest.mark.slow
class TestOnSpark:
    def test_sessions_come_out_once(
        self, spark: "SparkSession", tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = load("sessions")
        folder = input_of(module.write_clicks, tmp_path / "clicks", random.Random(seed), monkeypatch)
        assert session_rows(rows_of(spark, module, folder)) == SESSIONS

    def test_alerts_are_held_back(
        self, spark: "SparkSession", tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = load("alerts")
        folder = input_of(module.write_reports, tmp_path / "reports", random.Random(seed), monkeypatch)
        results = rows_of(spark, module, folder)
        assert alert_rows(results) == ALERTS
        assert [row["batch"] for row in results] == [1, 2, 3]
