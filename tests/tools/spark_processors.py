"""Stateful processors written for Spark's transformWithState (the Row API), for the tests that run them on both
engines.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


def answer(
    key: Any, what: str, n: int, total: int, at: datetime | None = None, wall: datetime | None = None, text: str = ""
) -> Row:
    return Row(k=key[0], what=what, n=n, total=total, at=at, wall=wall, said=text)


class Everything(StatefulProcessor):
    """Uses a value, a list, a map, timestamps and timers; its answers do not depend on the order of a key's rows within
    a batch.
    """

    output = "k string, what string, n long, total long, at timestamp, wall timestamp_ntz, said string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long, total long")
        self.recent = handle.getListState("recent", "v long")
        self.by_digit = handle.getMapState("by_digit", "digit long", "n long")
        self.last = handle.getValueState("last", "at timestamp, wall timestamp_ntz, by_name map<string,timestamp>")
        self.moments = handle.getListState("moments", "at timestamp")
        self.by_moment = handle.getMapState("by_moment", "at timestamp", "wall timestamp_ntz")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.count.get() if self.count.exists() else (0, 0)
        values = []
        latest = 0
        moments = []
        for row in rows:
            values.append(row["v"])
            latest = max(latest, int(row["t"].timestamp() * 1000))
            moments.append((row["t"], row["w"]))
        n, total = n + len(values), total + sum(values)
        self.count.update((n, total))
        self.recent.appendList([(v,) for v in sorted(values)])
        kept = [entry[0] for entry in self.recent.get()]
        if len(kept) > 20:
            self.recent.put([(v,) for v in kept[-20:]])
        for v in values:
            digit = (v % 3,)
            old = self.by_digit.getValue(digit)[0] if self.by_digit.containsKey(digit) else 0
            self.by_digit.updateValue(digit, (old + 1,))
        if n % 7 == 0:
            self.by_digit.removeKey((0,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(latest + 5000)
        yield answer(key, "count", n, total)
        yield answer(key, "recent", len(list(self.recent.get())), sum(entry[0] for entry in self.recent.get()))
        digits = sorted((d[0], m[0]) for d, m in self.by_digit.iterator())
        yield answer(key, "digits", len(digits), sum((d + 1) * m for d, m in digits))
        yield from self.tell_times(key, max(moments))

    def tell_times(self, key: Any, newest: tuple[datetime, datetime]) -> Iterator[Row]:
        """What a row's times are and what state gives back of them, as text: the zone, or none, is part of it."""
        at, wall = newest
        if self.last.exists():
            before, clock, by_name = self.last.get()
            yield answer(key, "last", 0, 0, before, clock, f"{before} {clock} {sorted(by_name.items())}")
        # aware as it came, without a zone, and a moment of local time that some zones have twice and some not at all
        odd = datetime(2026, 3, 8 + at.second % 2, 2, 30)
        self.last.update((at, wall, {"odd": odd, "came": at}))
        self.moments.appendList([(at,), (wall,)])
        self.by_moment.updateValue((at,), (wall,))
        times = sorted(moment[0] for moment in self.moments.get())
        entries = sorted((entry[0], value[0]) for entry, value in self.by_moment.iterator())
        naive = self.by_moment.getValue((at,))
        yield answer(key, "times", len(times), len(entries), at, wall, f"{at!s} {wall} {times} {entries} {naive[0]}")
        yield answer(key, "naive", 0, 0, wall, at.replace(tzinfo=None), f"{at.utcoffset()} {at.tzname()}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = (self.count.get() or (0, 0))[0]
        self.count.clear()
        self.recent.clear()
        self.by_digit.clear()
        last = self.last.get()[0] if self.last.exists() else None
        yield answer(key, "idle", n, expiredTimerInfo.getExpiryTimeInMs(), last)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.count.update((initialState["n"], initialState["total"]))
        self.last.update((initialState["since"], datetime(2026, 1, 1), {"since": initialState["since"]}))

    def close(self) -> None:
        pass


class Expiring(StatefulProcessor):
    """Uses state with a time to live by processing time, an hour and a millisecond, and timers of processing time."""

    output = "k string, what string, n long, total long, at timestamp, wall timestamp_ntz, said string"
    HOUR = 3_600_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.kept = handle.getValueState("kept", "n long, at timestamp", self.HOUR)
        self.brief = handle.getValueState("brief", "n long", 1)
        self.moments = handle.getListState("moments", "at timestamp", 1)
        self.by_value = handle.getMapState("by_value", "v long", "at timestamp", self.HOUR)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.kept.get() if self.kept.exists() else None
        yield answer(key, "before", 0 if before is None else before[0], int(self.brief.exists()), before and before[1])
        came = sorted((row["t"], row["v"]) for row in rows)
        for at, value in came:
            self.by_value.updateValue((value % 5,), (at,))
            self.moments.appendValue((at,))
        self.kept.update((len(came), came[-1][0]))
        self.brief.update((len(came),))
        entries = sorted((entry[0], str(value[0])) for entry, value in self.by_value.iterator())
        brief = self.brief.get()[0]
        yield answer(key, "after", len(list(self.moments.get())), brief, came[-1][0], None, f"{entries}")
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        # due in the next batch
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        removed = not self.brief.exists() and not self.moments.exists()
        yield answer(key, "timer", int(removed), len(list(self.by_value.keys())), self.kept.get()[1])

    def close(self) -> None:
        pass


class Alarm(StatefulProcessor):
    """Yields a key once, by a timer: of event time a second behind the key's rows, of processing time at once."""

    output = "k string"

    def __init__(self, mode: str = "EventTime") -> None:
        self.mode = mode

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        newest = max(int(row["t"].timestamp() * 1000) for row in rows)
        now = timerValues.getCurrentProcessingTimeInMs()
        # in both modes a class is given the watermark of its query, as on Spark's operator
        self.handle.registerTimer(newest + 1000 if self.mode == "EventTime" else now + 1)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0])

    def close(self) -> None:
        pass


class Ticking(StatefulProcessor):
    """Counts, counts by digit in a map, and says so two seconds later, by a timer of processing time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.digits = handle.getMapState("digits", "digit long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = [row["n"] for row in rows]
        n = (self.count.get()[0] if self.count.exists() else 0) + len(values)
        self.count.update((n,))
        for value in values:
            digit = (value % 3,)
            old = self.digits.getValue(digit)[0] if self.digits.containsKey(digit) else 0
            self.digits.updateValue(digit, (old + 1,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 2000)
        yield Row(k=key[0], what="count", n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        total = sum(entry[1][0] for entry in self.digits.iterator())
        yield Row(k=key[0], what="expired", n=total)

    def close(self) -> None:
        """Nothing is open."""


class Tens(StatefulProcessor):
    """Counts the rows of every ten seconds, and yields a count with its time when the watermark has passed its end; a
    row of the value -1 yields a time that is late.
    """

    output = "k string, n long, at timestamp"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.counts = handle.getMapState("counts", "end long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            end = (int(row["t"].timestamp()) // 10 + 1) * 10_000
            before = self.counts.getValue((end,))[0] if self.counts.containsKey((end,)) else 0
            self.counts.updateValue((end,), (before + 1,))
            self.handle.registerTimer(end)
            if row["v"] == -1:
                yield Row(k=key[0], n=0, at=datetime.fromtimestamp(1_767_225_600))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        end = expiredTimerInfo.getExpiryTimeInMs()
        (n,) = self.counts.getValue((end,))
        self.counts.removeKey((end,))
        # the last of the ten seconds would be late: the timer comes behind it
        yield Row(k=key[0], n=n, at=datetime.fromtimestamp(end / 1000 + 0.001))

    def close(self) -> None:
        pass
