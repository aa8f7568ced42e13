"""Spark's doors in jobs that are murdered on schedule: a processor over frames, one over rows, groups with a time-out,
and an outer join, for tests/spark/test_murders.py.

Their rows are text, so that one schema fits all. The order of rows within a batch is not promised: rows are sorted
before they count.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import hybridstore as hs
from hybridstore import spark as hsp
from tests.tools.spark_murders import Schedule, watch_creations

_RESULT = "k string, what string, text string"
_DELAY = "1 minute"
DOORS = ("rows", "frames", "groups", "join")


class Doomed(StatefulProcessor):
    """Keeps a value, a list, a map and a timer for each key, with the schedule watching."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def init(self, handle: Any) -> None:
        watch_creations(Schedule(self.config))
        self.handle = handle
        self.sum = handle.getValueState("sum", "n long, total double")
        self.notes = handle.getListState("notes", "v long, note string")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def close(self) -> None:
        """Nothing to close."""

    def _take(self, values: list[int], timers: Any) -> tuple[str, str]:
        n, total = self.sum.get() or (0, 0.0)
        self.sum.update((n + len(values), math.fsum([total, *(v / 7 for v in sorted(values))])))
        self.notes.appendList([(v, note(v)) for v in sorted(values)])
        for v in values:
            before = self.counts.getValue((v,))[0] if self.counts.containsKey((v,)) else 0
            self.counts.updateValue((v,), (before + 1,))
        if not list(self.handle.listTimers()):
            self.handle.registerTimer(max(timers.getCurrentWatermarkInMs(), 0) + 150_000)
        return "rows", self._shown()

    def _ring(self, timer: Any) -> tuple[str, str]:
        shown = self._shown()
        self.notes.clear()
        return f"timer {timer.getExpiryTimeInMs()}", shown

    def _shown(self) -> str:
        n, total = self.sum.get()
        notes = sorted((int(v), len(text)) for v, text in self.notes.get())
        return repr((int(n), float(total), notes, sorted((int(k[0]), int(v[0])) for k, v in self.counts.iterator())))


class DoomedRows(Doomed):
    """Gets rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        what, text = self._take([row.v for row in rows], timerValues)
        yield Row(k=key[0], what=what, text=text)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        what, text = self._ring(expiredTimerInfo)
        yield Row(k=key[0], what=what, text=text)


class DoomedFrames(Doomed):
    """Gets frames of pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        what, text = self._take([int(v) for frame in rows for v in frame["v"]], timerValues)
        yield pd.DataFrame({"k": [key[0]], "what": [what], "text": [text]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        what, text = self._ring(expiredTimerInfo)
        yield pd.DataFrame({"k": [key[0]], "what": [what], "text": [text]})


def note(v: int) -> str:
    """Return a text of some hundred characters."""
    return str(v) * (100 + v)


def _groups(config: dict[str, Any]) -> Callable[..., Iterable[pd.DataFrame]]:
    def group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        watch_creations(Schedule(config))
        if state.hasTimedOut:
            what, shown = "out", repr([int(v) for v in state.get[1]])
            state.remove()
        else:
            values = sorted(int(v) for frame in frames for v in frame["v"])
            before = [int(v) for v in state.get[1]] if state.exists else []
            state.update((note(len(before) % 100), [*before, *values]))
            state.setTimeoutTimestamp(max(state.getCurrentWatermarkMs(), 0) + 150_000)
            what, shown = "rows", repr((before, values))
        yield pd.DataFrame({"k": [key[0]], "what": [what], "text": [shown]})

    return group


def _join(timed: DataFrame, config: dict[str, Any], place: dict[str, Any]) -> DataFrame:
    def shown(row: dict[str, Any]) -> dict[str, Any]:
        watch_creations(Schedule(config))
        return {"k": row["k"], "what": "joined", "text": repr((row["v"], row["w"]))}

    first = hs.stream(name="left", key="k", timestamp="time", columns=["v"])
    second = hs.stream(name="right", key="k", timestamp="at", columns=["w"])
    joined = first.join(second, within=("1 minute", "1 minute"), how="full").map(shown, _RESULT)
    other = timed.select("k", (f.col("v") * 2).alias("w"), f.col("time").alias("at")).where("v % 3 = 0")
    inputs = {"left": timed.select("k", "v", "time"), "right": other}
    result: DataFrame = joined.apply(inputs, time="watermark", **place)
    return result


def build(door: str, df: DataFrame, config: dict[str, Any], place: dict[str, Any]) -> DataFrame:
    """Return the query of a door over rows (k, v, t), where t is in seconds."""
    timed = df.select("k", "v", f.timestamp_seconds("t").alias("time")).withWatermark("time", _DELAY)
    grouped = timed.groupBy("k")
    if door == "rows":
        return hsp.transform_with_state(grouped, DoomedRows(config), _RESULT, "Update", "EventTime", **place)
    if door == "frames":
        frames = DoomedFrames(config)
        return hsp.transform_with_state_in_pandas(grouped, frames, _RESULT, "Update", "EventTime", **place)
    if door == "groups":
        state, time_out = "note string, seen array<long>", "EventTimeTimeout"
        return hsp.apply_in_pandas_with_state(grouped, _groups(config), _RESULT, state, "Update", time_out, **place)
    return _join(timed, config, place)
