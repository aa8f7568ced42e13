"""A query as a whole: what its shards' numbers say together, in the report's first page and in a live watch."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridstore.cli import run
from hybridstore.inspection.commands import watch
from hybridstore.inspection.query import wholes
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.numbers import row_of
from tests.tools.shard_tools import ATTEMPTS, operator, started

ROWS = (30, 10, 0)


class Query:
    """Three shards, one of them with most rows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        begun = started(root, 0)
        self.batch = 0
        self.providers = [
            StateStoreProvider(StateStoreId(str(root), "op", shard), cache=ShardCache(), claim=begun, attempts=ATTEMPTS)
            for shard in range(len(ROWS))
        ]

    def run(self) -> None:
        for provider, rows in zip(self.providers, ROWS, strict=True):
            store = provider.get_store(self.batch)
            for number in range(rows):
                store.key_value("counts").put(f"k{number}", self.batch)
            # how long a commit takes is the machine's matter
            numbers = {"batch": self.batch, "rows": rows, "late": rows // 10, "process_ms": rows / 2, "commit_ms": 0.0}
            store.commit(numbers)
        self.batch += 1


@pytest.fixture
def query(tmp_path: Path) -> Query:
    given = Query(tmp_path / "query")
    given.run()
    given.run()
    return given


def shard_row(shard: int, **known: Any) -> dict[str, Any]:
    return row_of({"operator": "op", "shard": shard, "version": 3, **known})


def test_shards_together() -> None:
    first = shard_row(
        0, records={"a": 3, "b": 4}, totals={"rows": 30, "late": 1}, process_ms=5.0, restore_estimate_ms=4
    )
    second = shard_row(1, records={"a": 1}, totals={"rows": 10, "late": 2}, process_ms=1.0, commit_ms=7.0, batch=2)
    (whole,) = wholes([first, second])
    assert (whole.rows, whole.late, whole.records, whole.batch, whole.version) == (40, 3, 8, 2, 3)
    assert (whole.skew, whole.hottest) == (1.5, 0)
    assert (whole.slowest, whole.slowest_ms, whole.slowest_commit_ms) == (1, 1.0, 7.0)
    assert (whole.restart_ms, whole.restart_slowest_ms, whole.bytes) == (4, 4, None)


def test_the_load_of_a_shard_is_its_rows_and_without_numbers_of_rows_its_records() -> None:
    records = [{"a": 5}, {"a": 95}]
    (whole,) = wholes([shard_row(i, records=records[i], totals={"rows": rows}) for i, rows in enumerate((30, 0))])
    assert (whole.hottest, whole.skew) == (0, 2.0)
    (whole,) = wholes([shard_row(i, records=records[i]) for i in range(2)])
    assert (whole.hottest, whole.skew) == (1, 1.9)


def test_numbers_that_someone_made_up_count_for_nothing() -> None:
    (whole,) = wholes([shard_row(0, records=["x"], process_ms="<b>", totals=5, bytes=[1])])
    assert (whole.rows, whole.records, whole.skew, whole.slowest_ms) == (0, 0, 0.0, 0)


def test_the_report_begins_with_all_shards(query: Query, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run(["inspect", "report", str(query.root), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    first = text.split("<article>")[1]
    assert "Query, operator op" in first
    assert "<dt>skew</dt><dd>2.25: what the hottest shard has over the mean</dd>" in first
    assert "<dt>hottest shard</dt><dd>0</dd>" in first
    assert "<dt>rows so far</dt><dd>80</dd>" in first
    assert "for all shards one after the other" in first
    assert text.count("<article>") == 1 + len(ROWS)


def test_watch_shows_a_query_as_a_whole(
    query: Query, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the test: a batch comes in each interval of two seconds."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += 2.0
        query.run()

    # the command's clock alone: other threads of the process, such as those of a Spark session, sleep as ever
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0]))
    assert run(["inspect", "watch", str(query.root), "--count", "2", "-o", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["batch"] for line in lines] == ["2", "3"]
    assert [line["rows_per_s"] for line in lines] == ["20", "20"]
    assert [(line["late_per_s"], line["skew"], line["hottest"], line["slowest"]) for line in lines] == [
        ("2.0", "2.25", "0", "0")
    ] * 2
    assert run(["inspect", "watch", str(query.root), "--count", "1", "--shard", "1", "-o", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["version"] == 5


def test_the_operator_is_named_where_there_are_several(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    assert operator(query.root).url.endswith("hybridstore/op")
    assert run(["inspect", "metrics", str(query.root)]) == 0
    assert capsys.readouterr().out.count('operator="op"') > len(ROWS)
