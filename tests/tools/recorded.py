"""Rows of Spark's own operators, recorded: a comparison with them costs ours alone.

A query of Spark's own stateful operators takes 4 to 25 seconds of a processor. A test that compares ours with one has
INPUTS inputs whose rows are in `tests/spark/recorded/`; a run takes one of them. `make stress` asks Spark again for
each of them, which must give the recorded rows, and for inputs that it draws. What is not recorded, or was by another
version of Spark, is asked of Spark in every run.

HYBRIDSTORE_WRITE_ROWS=1 records: CONTRIBUTING.md has the command.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.conftest import STRESS

FOLDER = Path(__file__).resolve().parents[1] / "spark/recorded"
INPUTS = 1  # of each test; the number of one is the seed from which it is drawn


def plain(rows: Any) -> Any:
    """Return rows as JSON has them: tuples are lists, the numbers of batches are texts, and times, which Spark collects
    in the zone of the process, are those of UTC.
    """

    def text(cell: Any) -> str:
        return str(cell.astimezone(UTC) if isinstance(cell, datetime) else cell)

    return json.loads(json.dumps(rows, default=text))


class SparksRows:
    """What Spark's own operators give in one test; `number` is that of the recorded input, None of one that is not."""

    def __init__(self, test: str, number: int | None, seed: int) -> None:
        self.number = number
        self.path = FOLDER / f"{test.removeprefix('test_')}.json"
        self.seed = seed if number is None else number
        """What the test draws its input from."""

    def __call__(self, name: str, run: Callable[[], Any]) -> Any:
        """Return the rows of Spark's operators that the test calls `name`, as `plain` has them; `run` asks Spark."""
        from pyspark import __version__ as version

        if self.number is None:
            return plain(run())
        recorded: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        key = f"{name} {self.number}"
        if not STRESS and recorded.get("spark") == version and key in recorded:
            return recorded[key]
        rows = plain(run())
        if os.environ.get("HYBRIDSTORE_WRITE_ROWS"):
            recorded |= {"spark": version, key: rows}
            # a line for each input
            lines = (f"{json.dumps(key)}: {json.dumps(each, ensure_ascii=False)}" for key, each in recorded.items())
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n", encoding="utf-8")
        if recorded.get("spark") == version:
            # a further case, which no other run has, need not be recorded
            assert rows == recorded.get(key, rows), f"{self.path}: Spark gives other rows for {key!r}"
        return rows
