"""The recipes of timers on the page of topologies: as topologies, and as Spark's classes on Spark's tester and ours."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore import testing as ht

pytest.importorskip("pyspark")
theirs = pytest.importorskip("pyspark.sql.streaming.tws_tester")

PAGE = Path(__file__).resolve().parents[2] / "docs/topologies.md"
MINUTE = 60_000


@pytest.fixture(scope="module")
def recipes() -> dict[str, Any]:
    """What the blocks of Python below "Timers" define."""
    part = PAGE.read_text(encoding="utf-8").partition("\n## Timers\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {"hs": hs}
    with redirect_stdout(io.StringIO()):
        for block in re.findall(r"```python\n(.*?)```", part, re.DOTALL):
            exec(block, names)
    return names


def on(kind: Any, recipe: Any, rows: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """The rows of a class by event time; the watermark stays below the next row, and moves by steps."""
    from pyspark.sql import Row

    tester = kind(recipe(), timeMode="EventTime", eventTimeExtractor=lambda row: row.ts)
    results, mark = [], 0
    for row in rows:
        while mark + step < row["ts"]:
            results += tester.setWatermark(mark := mark + step)
        results += tester.test(row["user"], [Row(**row)])
    return [row.asDict() for row in results]


@pytest.mark.parametrize("kind", [ht.TwsTester, theirs.TwsTester], ids=["ours", "spark's"])
class TestRecipes:
    def test_a_session_ends_behind_its_last_row_or_at_a_log_out(self, recipes: dict[str, Any], kind: Any) -> None:
        pages = [("ann", 1, "/"), ("bob", 2, "/"), ("ann", 3, "/buy"), ("bob", 9, "/logout"), ("bob", 12, "/")]
        pages += [("cat", 50, "/"), ("ann", 60, "/"), ("cat", 100, "/logout")]
        rows = [{"user": user, "ts": minute * MINUTE, "page": page} for user, minute, page in pages]
        expected = [dict(row) for row in recipes["visits"].run(rows)]
        assert on(kind, recipes["Visits"], rows, MINUTE // 2) == expected
        assert [(row["user"], row["pages"], row["end"]) for row in expected] == [
            ("bob", 2, "log-out"),
            ("ann", 2, "30 minutes"),
            ("bob", 1, "30 minutes"),
            ("cat", 1, "30 minutes"),
            ("ann", 1, "30 minutes"),
            ("cat", 1, "log-out"),
        ]

    def test_a_reminder_comes_until_it_is_answered(self, recipes: dict[str, Any], kind: Any) -> None:
        asked = [("ann", 5, "question"), ("bob", 130, "question"), ("ann", 131, "answer"), ("cat", 500, "answer")]
        rows = [{"user": user, "ts": second * 1000, "kind": what} for user, second, what in asked]
        expected = [dict(row) for row in recipes["reminders"].run(rows)]
        assert on(kind, recipes["Reminders"], rows, 10_000) == expected
        assert [row["user"] for row in expected] == ["ann"] * 2 + ["bob"] * 6

    def test_a_time_out_by_the_clock(self, recipes: dict[str, Any], kind: Any) -> None:
        from pyspark.sql import Row

        tester = kind(recipes["GivingUp"](), timeMode="ProcessingTime")
        tester.setProcessingTime(1000)
        for user in ("ann", "bob"):
            assert tester.test(user, [Row(user=user, kind="question")]) == []
        tester.setProcessingTime(3_000_000)
        assert tester.test("ann", [Row(user="ann", kind="answer")]) == []
        assert tester.setProcessingTime(3_600_999) == []
        assert tester.setProcessingTime(3_601_000) == [Row(user="bob", what="given up")]
        assert tester.setProcessingTime(9_000_000) == []
