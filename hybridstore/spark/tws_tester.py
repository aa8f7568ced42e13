"""TwsTester: a stateful processor in a test, without a query or a JVM, with the calls of Spark's own tester.

Spark's `pyspark.sql.streaming.tws_tester.TwsTester` keeps state in dicts; here the state is in the stores that a query
of `transform_with_state` has, so values are converted by their schemas, are copies, and expire by ttl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..state.group import StoreGroup
from ..topology.output_rows import Column
from .grouping_keys import GroupingKeys
from .processor_state import MODE_NAMES, MODES, Handle, Variable

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class _Handle(Handle):
    """A handle of which a test chooses the key, as Spark's tester has it."""

    def setGroupingKey(self, key: Any) -> None:
        """Make this the key that the variables and timers are of."""
        self.select((key,))

    def _timed(self, operation: str) -> None:
        from pyspark.errors import PySparkRuntimeError, PySparkValueError

        class NoTimersError(PySparkRuntimeError, PySparkValueError):
            """Timers without a time mode: the error of a query, and of Spark's tester."""

        try:
            super()._timed(operation)
        except PySparkRuntimeError as error:
            if self._mode != "None":
                raise
            raise NoTimersError(f"{error} [UNSUPPORTED_OPERATION]") from None


def _wrong(message: str) -> ValueError:
    """Return an error of the types that Spark's tester raises for wrong calls, beside which it is a ValueError."""
    from pyspark.errors import PySparkAssertionError, PySparkValueError

    class WrongCallError(PySparkValueError, PySparkAssertionError):
        """A call that the tester does not know, or not now."""

    return WrongCallError(message)


class TwsTester:
    """Spark's `TwsTester` on the stores of hybridstore: the same arguments and methods. A key is one value.

    What differs is as in a query: state expires by ttl (by `setProcessingTime`), values have the types of their
    schemas, which have columns ("n int", not "int"), a timer may be due at once, an empty list is refused, and so are
    `deleteIfExists` and `getValueState` behind `init`, and a map whose last entry is removed does not exist.

    A wrong call is a ValueError, and of the types of Spark's errors: an unknown time mode or variable, a variable of
    another kind, "EventTime" without `eventTimeExtractor`, a time that is not later, timers without a time mode.

    >>> from hybridstore import testing as ht
    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    >>> class Visits(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.total = handle.getValueState("total", "n long")
    ...     def handleInputRows(self, key, rows, timers):
    ...         (before,) = self.total.get() or (0,)
    ...         self.total.update((before + len(list(rows)),))
    ...         yield Row(user=key[0], n=self.total.get()[0])
    ...     def close(self):
    ...         pass
    >>> tester = ht.TwsTester(Visits())
    >>> tester.test("ann", [Row(page="a"), Row(page="b")]) + tester.test("ann", [Row(page="c")])
    [Row(user='ann', n=2), Row(user='ann', n=3)]
    >>> tester.peekValueState("total", "ann")
    (3,)
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        initialStateRow: Sequence[tuple[Any, Row]] | None = None,
        initialStatePandas: Sequence[tuple[Any, Any]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: Callable[[Any], int] | None = None,
    ) -> None:
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

        mode = MODES.get((timeMode or "").lower())
        if mode is None:
            raise _wrong(f"timeMode: found {timeMode!r}, expected one of {MODE_NAMES}")
        if mode == "EventTime" and eventTimeExtractor is None:
            words = "eventTimeExtractor: found None, expected a function with timeMode EventTime"
            raise _wrong(f"[ARGUMENT_REQUIRED] {words}")
        if initialStateRow is not None and initialStatePandas is not None:
            raise _wrong("initialStatePandas: found beside initialStateRow, expected one of them")
        self.processor = processor
        self._mode = mode
        self._extract = eventTimeExtractor
        self._pandas = initialStatePandas is not None
        self._times: Callable[[int, int], Any] = TimerValues
        self._expired: Callable[[int], Any] = ExpiredTimerInfo
        self._now = self._watermark = 0
        self._group = StoreGroup()
        self.handle = _Handle(self._group, keys=GroupingKeys(list[Column]()), mode=mode)
        processor.init(self.handle)  # type: ignore[arg-type]  # has the methods of Spark's handle
        self.handle.ready()
        for key, rows in initialStateRow if initialStateRow is not None else initialStatePandas or ():
            self._select(key)
            processor.handleInitialState((key,), rows, self._timer_values())
        self.handle.flush()

    # --- rows ---------------------------------------------------------------------------------------------------

    def test(self, key: Any, input: list[Row]) -> list[Row]:
        """Process rows of a key and return the rows that the processor gives. With EventTime, rows with a time at or
        before the watermark are late and left out.
        """
        self._pandas = False
        rows = input if self._mode != "EventTime" else [row for row in input if self._extract_ms(row) > self._watermark]
        self._select(key)
        return self._done(self.processor.handleInputRows((key,), iter(rows), self._timer_values()))

    def testInPandas(self, key: Any, input: Any) -> Any:
        """Process a DataFrame of a key's rows and return one, as `test`."""
        self._pandas = True
        if self._mode == "EventTime":
            late = input.apply(lambda row: self._extract_ms(row) <= self._watermark, axis=1)
            input = input[~late.astype(bool)].reset_index(drop=True)
        self._select(key)
        return self._joined(self._done(self.processor.handleInputRows((key,), iter([input]), self._timer_values())))

    def _done(self, results: Iterable[Any]) -> list[Any]:
        rows = list(results)
        self.handle.flush()
        return rows

    def _joined(self, frames: list[Any]) -> Any:
        import pandas

        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def _extract_ms(self, row: Any) -> int:
        assert self._extract is not None
        return self._extract(row)

    def _timer_values(self) -> Any:
        if self._mode == "None":
            return self._times(-1, -1)
        return self._times(self._now, self._watermark if self._mode == "EventTime" else -1)

    # --- time ---------------------------------------------------------------------------------------------------

    def setProcessingTime(self, currentTimeMs: int) -> Any:
        """Set the processing time (ms), and return the rows of the timers that have expired. Raises ValueError for a
        time that is not later, and in another time mode.
        """
        self._check_time("setProcessingTime", "ProcessingTime", currentTimeMs, self._now)
        self._now = currentTimeMs
        self.handle.begin(currentTimeMs)
        return self._fire(currentTimeMs)

    def setWatermark(self, currentWatermarkMs: int) -> Any:
        """Set the watermark (ms), and return the rows of the timers that have expired. Raises ValueError for a time
        that is not later, and in another time mode.
        """
        self._check_time("setWatermark", "EventTime", currentWatermarkMs, self._watermark)
        self._watermark = currentWatermarkMs
        return self._fire(currentWatermarkMs)

    def _check_time(self, call: str, mode: str, to: int, now: int) -> None:
        if self._mode != mode:
            raise _wrong(f"[UNSUPPORTED_OPERATION] {call}: found timeMode {self._mode}, expected {mode}")
        if to <= now:
            raise _wrong(f"{call}: found {to}, expected a time later than {now}")

    def _fire(self, now: int) -> Any:
        results: list[Any] = []
        if self.handle.has_timers:
            values = self._timer_values()
            for expiry, stored in list(self.handle.timers.expired(now)):
                self.handle.select_stored(stored)
                key = self.handle.keys.of_timer(stored)
                results.extend(self.processor.handleExpiredTimer(key, values, self._expired(expiry)))
                self.handle.timers.delete(stored, expiry)
            self.handle.flush()
        return self._joined(results) if self._pandas else results

    # --- state --------------------------------------------------------------------------------------------------

    def _select(self, key: Any) -> None:
        self.handle.select((key,))

    def _variable(self, name: str, key: Any, kind: str = "") -> Any:
        variable: Variable | None = self.handle.variables.get(name)
        if variable is None:
            known = ", ".join(self.handle.variables) or "none"
            raise _wrong(f"[STATE_NOT_EXISTS] state {name!r}: found no such variable: {known}")
        if kind and variable.kind != kind:
            raise _wrong(f"state {name!r}: found a {variable.kind} variable, expected a {kind} variable")
        self._select(key)
        return variable

    def peekValueState(self, stateName: str, key: Any) -> tuple[Any, ...] | None:
        """Return the value of a key, None if it has none."""
        value: tuple[Any, ...] | None = self._variable(stateName, key, "value").get()
        return value

    def updateValueState(self, stateName: str, key: Any, value: tuple[Any, ...]) -> None:
        """Set the value of a key."""
        self._variable(stateName, key, "value").update(value)
        self.handle.flush()

    def peekListState(self, stateName: str, key: Any) -> list[tuple[Any, ...]]:
        """Return the list of a key."""
        return list(self._variable(stateName, key, "list").get())

    def updateListState(self, stateName: str, key: Any, value: list[tuple[Any, ...]]) -> None:
        """Set the list of a key."""
        self._variable(stateName, key, "list").put(value)
        self.handle.flush()

    def peekMapState(self, stateName: str, key: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return the map of a key."""
        return dict(self._variable(stateName, key, "map").iterator())

    def updateMapState(self, stateName: str, key: Any, value: dict[tuple[Any, ...], tuple[Any, ...]]) -> None:
        """Set the map of a key."""
        variable = self._variable(stateName, key, "map")
        variable.clear()
        for name, part in value.items():
            variable.updateValue(name, part)
        self.handle.flush()

    def deleteState(self, stateName: str, key: Any) -> None:
        """Remove the state of a key."""
        self._variable(stateName, key).clear()
        self.handle.flush()
