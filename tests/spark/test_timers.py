"""Timers of `process` on Spark: by the watermark and the clock, in shards without rows, with crashes and restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.tools.modes import classic_first
from tests.tools.spark_jobs import Job, Source, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = hs.stream(key="k", timestamp="t")


def set_both(row: dict[str, Any], stores: Any) -> Any:
    stores.timers.set(stores.time + 10_000)
    if row["v"]:
        stores.clock_timers.set(stores.clock_timers.now + row["v"])


def set_event(row: dict[str, Any], stores: Any) -> Any:
    stores.timers.set(stores.time + 10_000)


def fired(timer: hs.Timer, stores: Any) -> Any:
    yield {"k": timer.key, "at": timer.time % 3_600_000, "clock": timer.clock}


OUTPUT = "k string, at bigint, clock string"


@classic_first
def test_timers_by_the_watermark_fire_in_shards_without_rows(source: Source, job: Job) -> None:
    topology = ROWS.process(set_event, OUTPUT, on_timer=fired)
    source.add(*(row(f"k{i}", second=i) for i in range(6)))
    source.add(row("other", second=30))
    for _ in range(2):
        df = source.stream().withWatermark("t", "0 seconds")
        job.run(topology.apply(df, "op", location=str(job.checkpoint), shards=4, time="watermark"), sink=True)
        source.add(row("last", second=50))
    # rows of batch 0 and 1; the timers come with the watermark of second 30, and after a restart with that of second 50
    results = [row for number in sorted(job.rows) for row in job.rows[number]]
    assert results == [*((f"k{i}", (10 + i) * 1000, "event") for i in range(6)), ("other", 40_000, "event")]


def test_timers_by_the_clock_fire_without_rows_and_again_in_a_replay(source: Source, job: Job) -> None:
    topology = ROWS.process(set_both, OUTPUT, on_timer=fired, clock_ticks="100 ms")
    source.add(row("a", 1), row("b", 0), row("c", 1))
    seen: list[tuple[int, list[tuple[Any, ...]]]] = []

    def start(*, crashes: bool) -> None:
        df = source.stream().withWatermark("t", "0 seconds")
        out = topology.apply(df, "op", location=str(job.checkpoint), shards=3, time="watermark")

        def keep(batch: DataFrame, number: int) -> None:
            rows = sorted((row["k"], row["clock"], row["at"]) for row in batch.collect())
            seen.append((number, rows))
            if rows and crashes:
                raise RuntimeError("a crash of the test")

        query = out.writeStream.foreachBatch(keep).option("checkpointLocation", str(job.checkpoint)).start()
        if crashes:
            with pytest.raises(Exception, match="a crash of the test"):
                query.awaitTermination()
        while not crashes and not any(rows for _, rows in seen) and not query.awaitTermination(0.2):
            pass
        query.stop()

    start(crashes=True)
    number, rows = next(entry for entry in seen if entry[1])
    assert [entry[:2] for entry in rows] == [("a", "wall"), ("c", "wall")]
    assert number > 0  # not the batch of the rows, whose clock is that of the batch
    offsets = (job.checkpoint / "offsets" / str(number)).read_text().splitlines()
    ticks = json.loads(offsets[-1])
    assert ticks["clock_ms"] % 100 == 0
    assert ticks["watermark_ms"] == 0 or ticks["clock_ms"] > 0
    seen.clear()
    start(crashes=False)
    # the batch that failed is done again, by the same clock
    assert seen[0] == (number, rows)


def test_the_clock_of_sparks_doors_ticks_without_rows(source: Source, tmp_path: Path) -> None:
    import pandas as pd
    from pyspark.sql import Row
    from pyspark.sql.streaming.state import GroupStateTimeout
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from hybridstore import spark as hsp

    class Reminder(StatefulProcessor):
        def __init__(self, framed: bool) -> None:
            self.framed = framed

        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield pd.DataFrame({"k": [key[0]]}) if self.framed else Row(k=key[0])

        def close(self) -> None:
            pass

    def timeout(key: Any, frames: Any, state: Any) -> Any:
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]]})
        else:
            state.update((1,))
            state.setTimeoutDuration(1)

    grouped = source.stream().groupBy("k")
    asked: dict[str, Any] = {"shards": 2, "clock_ticks": "100 ms"}

    def place(name: str) -> dict[str, Any]:
        return {"name": name, "location": str(tmp_path / name), **asked}

    mode = ("k string", "Update", "ProcessingTime")
    by_clock = ("k string", "n long", "update", GroupStateTimeout.ProcessingTimeTimeout)
    doors = {
        "rows": hsp.transform_with_state(grouped, Reminder(False), *mode, **place("rows")),
        "frames": hsp.transform_with_state_in_pandas(grouped, Reminder(True), *mode, **place("frames")),
        "groups": hsp.apply_in_pandas_with_state(grouped, timeout, *by_clock, **place("groups")),
    }
    source.add(row("a"), row("b"), row("c"))
    for name, df in doors.items():
        seen: list[tuple[int, list[str]]] = []

        def keep(batch: DataFrame, number: int, seen: list[tuple[int, list[str]]] = seen) -> None:
            seen.append((number, sorted(row["k"] for row in batch.collect())))

        query = df.writeStream.foreachBatch(keep).outputMode("update")
        running = query.option("checkpointLocation", str(tmp_path / name)).start()
        while not any(keys for _, keys in seen) and not running.awaitTermination(0.2):
            pass
        running.stop()
        assert running.recentProgress[0]["stateOperators"] == []
        number, keys = next(entry for entry in seen if entry[1])
        assert (number > 0, keys) == (True, ["a", "b", "c"]), name
    with pytest.raises(ValueError, match=r"clock_ticks: found '100 ms' .* expected timeMode=\"ProcessingTime\""):
        hsp.transform_with_state(grouped, Reminder(False), "k string", "Update", "EventTime", **place("refused"))
    with pytest.raises(ValueError, match=r"clock_ticks: .* expected timeoutConf=\"ProcessingTimeTimeout\""):
        hsp.apply_in_pandas_with_state(grouped, timeout, *by_clock[:3], "NoTimeout", **place("refused"))


def test_ticks_come_for_a_new_multiple_of_the_interval_and_no_other(tmp_path: Any, monkeypatch: Any) -> None:
    from hybridstore.spark import ticks
    from hybridstore.spark.location import locate

    clock = [1000]
    monkeypatch.setattr(ticks, "wall_ms", lambda: clock[0])
    reader = ticks.TickReader(locate(tmp_path), 2, watermark=False, every_ms=400)
    at = reader.initialOffset()
    come = []
    for now in (1000, 1199, 1200, 1100, 1599, 2500):
        clock[0] = now
        before, at = at, reader.latestOffset(at)
        come.append(len(reader.partitions(before, at)))
    assert come == [1, 0, 1, 0, 0, 1]
    assert at == {"watermark_ms": 0, "clock_ms": 2400}
    # a query that ends with what is there has the clock of its start
    reader.prepareForTriggerAvailableNow()
    clock[0] = 9000
    assert reader.latestOffset(at) == at
    # the offsets of a checkpoint without a clock
    assert reader.latestOffset({"watermark_ms": 7}) == {"watermark_ms": 7, "clock_ms": 2400}
