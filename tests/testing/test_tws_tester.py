"""Our tester of stateful processors against Spark's own: the same calls, the same answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from hybridstore import testing as ht

pytest.importorskip("pyspark")
theirs = pytest.importorskip("pyspark.sql.streaming.tws_tester")

from pyspark.sql import Row  # noqa: E402
from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: E402


class Ledger(StatefulProcessor):
    """Values, lists, maps and timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.names = handle.getListState("names", "name string")
        self.prices = handle.getMapState("prices", "name string", "price long")

    def handleInitialState(self, key: Any, row: Any, timers: Any) -> None:
        self.total.update((row.n,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Row]:
        for row in rows:
            self.total.update(((self.total.get() or (0,))[0] + row.n,))
            self.names.appendValue((row.name,))
            if row.n % 3:
                self.prices.updateValue((row.name,), (row.n,))
            elif self.prices.containsKey((row.name,)):
                self.prices.removeKey((row.name,))
            if row.at > max(timers.getCurrentWatermarkInMs(), timers.getCurrentProcessingTimeInMs(), 0):
                self.handle.registerTimer(row.at)
        yield Row(key=key[0], total=self.total.get()[0] if self.total.exists() else -1)

    def handleExpiredTimer(self, key: Any, timers: Any, info: Any) -> Iterator[Row]:
        self.names.clear()
        yield Row(key=key[0], at=info.getExpiryTimeInMs(), left=len(list(self.handle.listTimers())))

    def close(self) -> None:
        """Close nothing."""


class Frames(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, frames: Iterator[Any], timers: Any) -> Iterator[Any]:
        import pandas

        total = (self.total.get() or (0,))[0] + sum(int(frame["n"].sum()) for frame in frames)
        self.total.update((total,))
        yield pandas.DataFrame({"key": [key[0]], "total": [total]})

    def close(self) -> None:
        """Close nothing."""


@pytest.mark.parametrize("mode", ["EventTime", "ProcessingTime"])
def test_both_testers_answer_alike(mode: str, seed: int) -> None:
    r, now = random.Random(seed), 0
    options: dict[str, Any] = {"timeMode": mode, "initialStateRow": [("a", Row(n=5))]}
    options["eventTimeExtractor"] = (lambda row: row.at) if mode == "EventTime" else None
    both = [kind(Ledger(), **options) for kind in (ht.TwsTester, theirs.TwsTester)]
    for _ in range(60):
        key, call = r.choice("abc"), r.randrange(8)
        if call < 4:
            rows = [Row(name=r.choice("xyz"), n=r.randint(0, 9), at=now + r.randint(-5, 20)) for _ in range(3)]
            answers = [tester.test(key, rows) for tester in both]
        elif call == 4:
            now += r.randint(1, 9)
            set_time = "setWatermark" if mode == "EventTime" else "setProcessingTime"
            answers = [sorted(getattr(tester, set_time)(now)) for tester in both]
        elif call == 5:
            for tester in both:
                tester.updateValueState("total", key, (now,))
                tester.updateListState("names", key, [("x",), ("y",)])
                tester.updateMapState("prices", key, {("x",): (now,)})
            answers = [1, 1]
        elif call == 6:
            for tester in both:
                tester.deleteState(["total", "names", "prices"][now % 3], key)
            answers = [1, 1]
        else:
            answers = [
                [
                    tester.peekValueState("total", key),
                    tester.peekListState("names", key),
                    sorted(tester.peekMapState("prices", key).items()),
                ]
                for tester in both
            ]
        assert answers[0] == answers[1]


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    for kind in (ht.TwsTester, theirs.TwsTester):
        tester = kind(Frames())
        tester.testInPandas("a", pandas.DataFrame({"n": [1, 2]}))
        answer = tester.testInPandas("a", pandas.DataFrame({"n": [4]}))
        assert answer.to_dict("list") == {"key": ["a"], "total": [7]}


def test_state_expires_by_its_ttl_and_values_have_their_types() -> None:
    class Short(Frames):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long", 1000)

    tester = ht.TwsTester(Short(), timeMode="ProcessingTime")
    tester.setProcessingTime(5000)
    tester.updateValueState("total", "a", (7,))
    tester.setProcessingTime(5999)
    assert tester.peekValueState("total", "a") == (7,)
    tester.setProcessingTime(6000)
    assert tester.peekValueState("total", "a") is None
    tester.updateValueState("total", "a", ("seven",))
    assert tester.peekValueState("total", "a") == (None,)  # as in a query


def in_both(call: Any, error: Any, words: str | None) -> None:
    for kind in (ht.TwsTester, theirs.TwsTester):
        with pytest.raises(error, match=words):
            call(kind)


def test_tests_of_wrong_calls_for_sparks_tester_pass() -> None:
    from pyspark.errors import PySparkAssertionError, PySparkValueError

    in_both(lambda kind: kind(Ledger()).setWatermark(1), PySparkValueError, "UNSUPPORTED_OPERATION")
    in_both(lambda kind: kind(Ledger()).setProcessingTime(1), PySparkValueError, "UNSUPPORTED_OPERATION")
    in_both(lambda kind: kind(Ledger(), timeMode="EventTime"), PySparkValueError, "ARGUMENT_REQUIRED")
    in_both(lambda kind: kind(Ledger()).deleteState("sum", "a"), PySparkAssertionError, "STATE_NOT_EXISTS")
    for timers in (
        lambda handle: handle.registerTimer(1),
        lambda handle: handle.deleteTimer(1),
        lambda handle: list(handle.listTimers()),
    ):
        in_both(lambda kind, use=timers: use(kind(Ledger()).handle), PySparkValueError, "UNSUPPORTED_OPERATION")
    for call in (
        lambda kind: kind(Ledger(), [], []),
        lambda kind: kind(Ledger(), timeMode="wall"),
        lambda kind: kind(Ledger()).peekValueState("sum", "a"),
        lambda kind: kind(Ledger()).updateListState("total", "a", [(1,)]),
    ):
        in_both(call, AssertionError, None)


def test_a_test_may_look_at_the_timers_of_a_key() -> None:
    for kind in (ht.TwsTester, theirs.TwsTester):
        tester = kind(Ledger(), timeMode="ProcessingTime")
        tester.test("a", [Row(name="x", n=1, at=70), Row(name="x", n=1, at=50)])
        seen = []
        for key in ("a", "b"):
            tester.handle.setGroupingKey(key)
            seen.append(list(tester.handle.listTimers()))
        assert seen == [[50, 70], []]


def test_timers_without_a_time_mode_are_the_error_that_they_are_in_a_query() -> None:
    from pyspark.errors import PySparkRuntimeError

    with pytest.raises(PySparkRuntimeError, match=r"Error register timer: .*register_timer with invalid timeMode=NoT"):
        ht.TwsTester(Ledger()).test("a", [Row(name="x", n=1, at=70)])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("int", "'int', expected columns"),
        ("n bigint, m map<string,array<lnog>>", "type 'lnog' in .*, expected Spark's"),
    ],
)
def test_a_schema_without_columns_or_with_an_unknown_type_is_told_with_its_variable(schema: str, words: str) -> None:
    class Bare(Frames):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", schema)

    with pytest.raises(Exception, match=f"Error parsing string schema: variable 'total': found {words}"):
        ht.TwsTester(Bare())


@pytest.mark.parametrize(
    "kind",
    [
        "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real",
        "double", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "string", "char(5)", "character(5)",
        "varchar(5)", "binary", "decimal", "dec(5)", "numeric(5,2)", "void", "interval day to second", "variant",
        "array<INT>", "map<string,array<bigint>>", "struct<a:int,b:struct<c:string>>", "time(6)",
    ],
)  # fmt: skip
def test_no_type_of_sparks_is_unknown_in_a_schema_of_state(kind: str) -> None:
    class Bare(Frames):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", f"n {kind}")

    ht.TwsTester(Bare())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ht.TwsTester(Ledger(), timeMode="wall"), "timeMode: found 'wall'"),
        (lambda: ht.TwsTester(Ledger(), timeMode="EventTime"), "eventTimeExtractor: found None"),
        (lambda: ht.TwsTester(Ledger(), [], []), "initialStatePandas: found beside initialStateRow"),
        (lambda: ht.TwsTester(Ledger()).setWatermark(1), "setWatermark: found timeMode None"),
        (lambda: ht.TwsTester(Ledger(), timeMode="ProcessingTime").setProcessingTime(0), "a time later than 0"),
        (lambda: ht.TwsTester(Ledger()).peekValueState("sum", "a"), "state 'sum': found no such variable"),
        (
            lambda: ht.TwsTester(Ledger()).peekListState("total", "a"),
            "state 'total': found a value variable, expected a l",
        ),
        (
            lambda: ht.TwsTester(Ledger()).updateMapState("names", "a", {}),
            "found a list variable, expected a map variable",
        ),
    ],
)
def test_a_wrong_call_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
