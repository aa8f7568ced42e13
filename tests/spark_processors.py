"""Stateful processors written for Spark's transformWithState (the Row API), for the tests that run them on both engines."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class Everything(StatefulProcessor):
    """Uses a value, a list, a map and timers; its answers do not depend on the order of a key's rows within a batch."""

    output = "k string, what string, n long, total long"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long, total long")
        self.recent = handle.getListState("recent", "v long")
        self.by_digit = handle.getMapState("by_digit", "digit long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.count.get() if self.count.exists() else (0, 0)
        values = []
        latest = 0
        for row in rows:
            values.append(row["v"])
            latest = max(latest, int(row["t"].timestamp() * 1000))
        n, total = n + len(values), total + sum(values)
        self.count.update((n, total))
        self.recent.appendList([(v,) for v in sorted(values)])
        kept = [one[0] for one in self.recent.get()]
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
        yield Row(k=key[0], what="count", n=n, total=total)
        yield Row(
            k=key[0], what="recent", n=len(list(self.recent.get())), total=sum(one[0] for one in self.recent.get())
        )
        digits = sorted((d[0], m[0]) for d, m in self.by_digit.iterator())
        yield Row(k=key[0], what="digits", n=len(digits), total=sum((d + 1) * m for d, m in digits))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = (self.count.get() or (0, 0))[0]
        self.count.clear()
        self.recent.clear()
        self.by_digit.clear()
        yield Row(k=key[0], what="idle", n=n, total=expiredTimerInfo.getExpiryTimeInMs())

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.count.update((initialState["n"], initialState["total"]))

    def close(self) -> None:
        pass
