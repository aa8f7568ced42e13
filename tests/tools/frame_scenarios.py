"""Scenarios of transformWithStateInPandas: what a class may do with frames, for Spark's operator and for ours.

One query runs all scenarios of a time mode at once, as in `group_scenarios`: the first grouping column is the name of
the scenario, whose method of `Frames` answers with texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.tools.group_scenarios import frames_of_every_index

OUTPUT = "s string, k string, n long, a string"
SCENARIOS = {
    "None": (
        *("counted", "typed", "ordered", "changed", "listed", "mapped", "struct", "named", "empty", "no_timers"),
        *("kinds", "indexed", "again", "of_input", "unread", "first", "sequence", "smaller", "of_numpy", "kept"),
        *("replaced", "entry_by_entry", "mixed", "word_of_frame"),
    ),
    "EventTime": ("counted", "idle", "alarms", "deleted", "late", "initial", "chained", "past", "emptied"),
    "ProcessingTime": ("counted", "soon", "expiring"),
}


class Frames(StatefulProcessor):
    """A class of many scenarios, chosen by the key."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n long, word string")
        self.items = handle.getListState("items", "v long")
        self.entries = handle.getMapState("entries", "word string", "n long")
        self.kind = handle.getValueState("kind", "m decimal(10,2), d date, t timestamp, w binary, f float, b boolean")
        self.nested = handle.getValueState("nested", "at array<struct<a:int,b:string>>, m map<string,double>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from self.frames(key, getattr(self, key[0])(key, rows, timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        answers: list[Any] = [("expired", self.value.get())]
        if key[0] == "chained" and expiry < 1_767_225_640_000:
            self.handle.registerTimer(expiry + 7000)
        if key[0] not in ("soon", "expiring"):
            answers.append((expiry, timerValues.getCurrentWatermarkInMs(), sorted(self.handle.listTimers())))
        self.value.clear()
        yield from self.frames(key, answers)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.value.update((int(initialState["n"].sum()), f"{len(initialState)} {list(initialState.columns)}"))
        self.handle.registerTimer(int(initialState["n"].max()))

    def close(self) -> None:
        pass

    def frames(self, key: Any, answers: Any) -> Iterator[Any]:
        import pandas as pd

        for n, answer in enumerate(answers):
            if isinstance(answer, pd.DataFrame):
                yield answer
            else:
                yield pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": [n], "a": [str(answer)]})

    def counted(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        before = self.value.get()[0] if self.value.exists() else 0
        self.value.update((before + sum(len(frame) for frame in rows), key[1]))
        yield self.value.get()
        yield times.getCurrentWatermarkInMs()

    def typed(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            yield {name: str(kind) for name, kind in frame.dtypes.items()}
            yield [[(type(part).__name__, str(part)) for part in row] for row in frame.itertuples(index=False)]
        yield [type(part).__name__ for part in key]

    def ordered(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            yield (frame["v"].tolist(), frame.index.tolist(), list(frame.columns))

    def changed(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            frame["new"] = frame["v"] + 1
            yield frame["new"].sum()

    def listed(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            self.items.appendList([(int(v),) for v in frame["v"]])
        yield list(self.items.get())

    def mapped(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            for word, group in frame.groupby("x"):
                before = self.entries.getValue((str(word),)) or (0,)
                self.entries.updateValue((str(word),), (before[0] + len(group),))
        yield sorted(self.entries.iterator())

    def struct(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield self.nested.get()
        self.nested.update(([(1, "x"), (len(list(rows)), None)], {"q": 0.5}))

    def named(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        import pandas as pd

        yield pd.DataFrame({"a": ["x", None], "n": [1, 2], "k": [key[1]] * 2, "s": [key[0]] * 2})

    def empty(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        import pandas as pd

        # without the type Spark 4.3 fails: these columns would be float64, whose texts Arrow gives in chunks
        yield pd.DataFrame({"s": [], "k": [], "n": [], "a": []}, dtype=object)
        yield pd.DataFrame()
        yield "behind"

    def no_timers(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        # a timer is refused: that ends Spark's query even if the class catches the error
        yield (times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs())

    def kinds(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield self.kind.get()
        for frame in rows:
            for row in frame.itertuples():
                self.kind.update((row.m, row.d, row.t.to_pydatetime(), b"\0" + key[0].encode(), row.x, row.b))
        yield self.kind.get()

    def indexed(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield from frames_of_every_index(key)

    def again(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        import pandas as pd

        frame = pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": [0], "a": ["x"]})
        for n in range(3):
            frame.loc[0, "n"] = n
            frame["a"] = frame["a"] + "y"
            yield frame

    def of_input(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            frame["a"], frame["n"] = frame["v"].map(str), frame.index
            yield frame
            yield frame[["k", "a", "n", "s"]].iloc[::-1]

    def unread(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.items.appendValue((1,))
        yield list(self.items.get())

    def first(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield (len(next(rows)) > 0, next(rows, None), iter(rows) is rows)

    def sequence(self, key: Any, rows: Any, times: Any) -> Any:
        return ("first", ["second"])

    def smaller(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        import numpy as np
        import pandas as pd

        for kind in (np.int8, np.uint16, np.int32, np.float32):
            yield pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": np.array([1], kind), "a": ["x"]})

    def of_numpy(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            self.value.update((frame["v"].max(), frame["s"].iloc[0]))
            self.items.put([(number,) for number in frame["i"]])
        yield (self.value.get(), list(self.items.get()))

    def kept(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        """What was read is changed, and not given back."""
        if self.nested.exists():
            self.nested.get()[0].append(None)
            yield self.nested.get()
        else:
            self.nested.update(([(1, "x")], {"q": None}))

    def replaced(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        before = list(self.items.get())
        self.items.put([(len(before),), (None,)])
        self.items.appendList([(2,), (3,)])
        yield (before, self.items.exists(), list(self.items.get()))
        if len(before) > 3:
            self.items.clear()
            yield (self.items.exists(), list(self.items.get()))

    def entry_by_entry(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield (self.entries.exists(), sorted(self.entries.keys()), sorted(self.entries.values()))
        for frame in rows:
            for v in frame["v"]:
                self.entries.updateValue((str(v % 3),), (int(v),))
        self.entries.removeKey(("0",))
        yield (self.entries.containsKey(("0",)), self.entries.containsKey(("1",)), self.entries.getValue(("2",)))
        if len(list(self.entries.keys())) == 2:
            self.entries.clear()

    def mixed(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        import pandas as pd

        a = pd.Series(["p", "q"], dtype="category")
        yield pd.DataFrame({"s": key[0], "k": key[1], "n": pd.array([1, None], "Int64"), "a": a})
        yield pd.DataFrame({"s": key[0], "k": key[1], "n": [1.0, None], "a": ["é🙂", "\0"]})
        yield pd.DataFrame({"s": key[0], "k": key[1], "n": [2**63 - 1, -(2**63)], "a": [None, None]})

    def word_of_frame(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for frame in rows:
            yield sorted(frame.groupby("b")["v"].sum().tolist())
            yield frame.sort_values("v", ascending=False)["v"].tolist()
            yield (frame.shape, frame.memory_usage().shape, frame.index.is_unique, frame.columns.is_unique)

    def chained(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        """A timer that registers the next one when it comes."""
        self.handle.registerTimer(times.getCurrentWatermarkInMs() + 1000)
        yield len(list(self.handle.listTimers()))

    def past(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.handle.registerTimer(1)
        self.handle.deleteTimer(2)
        yield list(self.handle.listTimers())

    def emptied(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        """What a timer clears is not there with the next rows."""
        yield (self.value.exists(), self.value.get())
        self.value.update((sum(len(frame) for frame in rows), "full"))
        self.handle.registerTimer(times.getCurrentWatermarkInMs() + 1)

    def expiring(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        now = times.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now + 1)
        self.handle.registerTimer(now + 3_600_000)
        self.handle.deleteTimer(now + 1)
        yield len(list(self.handle.listTimers())) > 0

    def idle(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        newest = max(int(at.tz_localize("UTC").timestamp() * 1000) for frame in rows for at in frame["t"])
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(newest + 3000)
        self.value.update((newest, None))
        yield sorted(self.handle.listTimers())

    def alarms(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        mark = times.getCurrentWatermarkInMs()
        for after in (0, 5000, 5000, 20_000):
            self.handle.registerTimer(mark + after)
        yield sorted(self.handle.listTimers())

    def deleted(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        mark = times.getCurrentWatermarkInMs()
        self.handle.registerTimer(mark + 1)
        self.handle.registerTimer(mark + 2)
        self.handle.deleteTimer(mark + 1)
        yield sorted(self.handle.listTimers())

    def late(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield [str(at) for frame in rows for at in frame["t"]]

    def initial(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield (self.value.get(), sorted(self.handle.listTimers()), sum(len(frame) for frame in rows))

    def soon(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.value.update((sum(len(frame) for frame in rows), None))
        now = times.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now + 1)
        yield (now > 1_600_000_000_000, times.getCurrentWatermarkInMs())
