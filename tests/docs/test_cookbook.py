"""docs/cookbook.md: the programs of the page, run in plain Python and on Spark, against pandas and against a model that
keeps everything.
"""

import json
import os
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridstore.topology.batch import canonical_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, LATE = 3_600_000, 600_000
MS = timedelta(milliseconds=1)


def recipe(title: str, name: str, time_type: str = "timestamp") -> Any:
    """What the code below a heading calls `name`."""
    code = re.search(rf"## {title}.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code.group(1).replace("time timestamp", f"time {time_type}"), names)
    return names[name]


def clicks(draw: random.Random, count: int, disorder: int) -> list[dict[str, Any]]:
    """Clicks of a few ids within ten hours, on whole minutes, so that many are exactly an hour apart; out of order by
    `disorder` ms.
    """
    times = sorted(draw.randrange(600) * 60_000 for _ in range(count))
    rows = [{"id": f"e{draw.randrange(20)}", "time": EPOCH + timedelta(milliseconds=ts)} for ts in times]
    return sorted(rows, key=lambda row: row["time"] + timedelta(milliseconds=draw.randrange(disorder + 1)))


def kept_by_a_model(batches: list[list[dict[str, Any]]]) -> list[tuple[str, datetime]]:
    """Every row that passed is remembered for ever; of each batch rows go by time and id, as in a commit."""
    passed: list[tuple[str, datetime]] = []
    newest = EPOCH
    for batch in batches:
        order = canonical_order(
            [row["id"] for row in batch], [0] * len(batch), [int(row["time"].timestamp() * 1000) for row in batch]
        )
        for row in [batch[i] for i in order]:
            newest = max(newest, row["time"])
            late = row["time"] <= newest - timedelta(milliseconds=LATE)
            twins = [twin for twin in passed if twin[0] == row["id"]]
            if not late and all(abs(row["time"] - then) >= timedelta(milliseconds=HOUR) for _, then in twins):
                passed.append((row["id"], row["time"]))
    return passed


def kept_by_pandas(rows: list[dict[str, Any]]) -> set[tuple[str, datetime]]:
    pd = pytest.importorskip("pandas")
    passed = set()
    for name, times in pd.DataFrame(rows).sort_values("time").groupby("id")["time"]:
        last = None
        for moment in times:
            if last is None or moment - last >= pd.Timedelta(hours=1):
                last = moment
                passed.add((name, moment.to_pydatetime()))
    return passed


@pytest.mark.parametrize("disorder", [0, LATE - 1, 3 * LATE])
@pytest.mark.parametrize("rows_in", ["datetimes", "naive datetimes", "milliseconds"])
def test_what_was_seen_within_the_hour_is_left_out(disorder: int, rows_in: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    topology = recipe("Leave out", "first", "bigint" if rows_in == "milliseconds" else "timestamp")
    rows = clicks(draw, 800, disorder)
    forms: dict[str, Callable[[datetime], Any]] = {
        "datetimes": lambda moment: moment,
        "naive datetimes": lambda moment: moment.replace(tzinfo=None),
        "milliseconds": lambda moment: int(moment.timestamp() * 1000),
    }
    given = [{"id": row["id"], "time": forms[rows_in](row["time"])} for row in rows]
    commit_rows = draw.choice([1, 7, 100])
    emitted: list[tuple[int, str, Any]] = []
    half = 400 // commit_rows * commit_rows
    for until in (half, 800):  # stopped in between
        results = topology.run(given[:until], tmp_path / "state", commit_rows=commit_rows)
        emitted += [(row.commit, row["id"], row["time"]) for row in results]
    times = {(row["id"], form["time"]): row["time"] for row, form in zip(rows, given, strict=True)}
    passed = [(name, times[name, moment]) for _, name, moment in dict.fromkeys(emitted)]
    batches = [rows[at : at + commit_rows] for at in range(0, 800, commit_rows)]
    assert sorted(passed) == sorted(kept_by_a_model(batches))
    if disorder == 0:
        assert set(passed) == kept_by_pandas(rows)


@pytest.mark.spark
@pytest.mark.slow
def test_what_was_seen_within_the_hour_is_left_out_on_spark(spark: "SparkSession", tmp_path: Path, seed: int) -> None:
    draw, topology = random.Random(seed), recipe("Leave out", "first")
    rows = clicks(draw, 400, 0)
    folder, answers = tmp_path / "in", []
    folder.mkdir()
    for number in range(4):
        path = folder / f"{number}.json"
        part = rows[number * 100 : (number + 1) * 100]
        path.write_text("".join(json.dumps({**row, "time": row["time"].isoformat()}) + "\n" for row in part))
        os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
    events = spark.readStream.schema("id string, time timestamp").option("maxFilesPerTrigger", 1).json(str(folder))
    output = topology.apply(events, "first", location=str(tmp_path / "checkpoint"), shards=2)

    def keep(batch: Any, _number: int) -> None:
        answers.extend((row["id"], row["ms"]) for row in batch.selectExpr("id", "unix_millis(time) ms").collect())

    writer = output.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    expected = {(name, int(moment.timestamp() * 1000)) for name, moment in kept_by_pandas(rows)}
    assert sorted(answers) == sorted(expected)


def test_more_than_ten_errors_within_five_minutes(seed: int) -> None:
    """Of the windows that end at an error the page's program hands out those with more than ten, once; and one row for
    each burst.
    """
    draw = random.Random(seed)
    times = sorted({draw.randrange(40) * 60_000 + draw.randrange(90_000) for _ in range(300)})
    rows = [
        {"host": draw.choice(["db1", "web7"]), "status": draw.choice([200, 500, 503]), "time": EPOCH + ts * MS}
        for ts in times
    ]
    last = rows[-1]["time"] + timedelta(hours=1)
    rows += [{"host": "end", "status": 500, "time": last + timedelta(hours=hours)} for hours in (0, 1)]
    shuffled = sorted(rows, key=lambda row: row["time"] + draw.randrange(60_000) * MS)
    windows, bursts = recipe("Alert when", "windows"), recipe("Alert when", "bursts")
    alerts = [row for row in windows.run(shuffled, commit_rows=7) if row["errors"] > 10]
    counts = {(row["host"], row["window_end"]): row["errors"] for row in alerts}
    assert len(counts) == len(alerts)
    for row in rows:
        if row["status"] >= 500:
            near = [other for other in rows if other["host"] == row["host"] and other["status"] >= 500]
            within = [other for other in near if row["time"] - timedelta(minutes=5) <= other["time"] <= row["time"]]
            assert counts.get((row["host"], row["time"]), 0) == (len(within) if len(within) > 10 else 0)
    one_each = list(bursts.run([*alerts, {"host": "end", "window_end": last + timedelta(hours=9), "errors": 0}]))
    assert {row["host"] for row in one_each} == {row["host"] for row in alerts}
    for host in {row["host"] for row in alerts}:
        starts = sorted(row["window_start"] for row in one_each if row["host"] == host)
        assert len(starts) <= sum(row["host"] == host for row in alerts)
        assert all(later - sooner > timedelta(minutes=5) for sooner, later in pairwise(starts))
