"""Moving in: a query of Spark's own operator goes on as a query of ours, with the rows that it would have given."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from zlib import crc32

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")

from hybridstore import cli
from hybridstore import spark as hsp
from tests.tools.recorded import SparksRows, plain
from tests.tools.spark_jobs import Job, Source, failure, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Rows = list[list[tuple[Any, ...]]]


class Case(NamedTuple):
    """A query of Spark's, and the same of ours at a checkpoint."""

    theirs: Callable[[DataFrame], DataFrame]
    ours: Callable[[DataFrame, str], DataFrame | tuple[DataFrame, dict[int, DataFrame]]]
    """Returns what `apply` has; of several operators also what is moved into each."""
    mode: str = "update"
    columns: tuple[str, ...] = ("*",)
    """The columns that are compared."""
    keys: dict[str, str] | None = None
    """How our key columns follow from Spark's."""


class Moved:
    """A query of Spark's that has run, and has been copied, so that it can go on as itself and as ours."""

    def __init__(self, tmp_path: Path, spark: SparkSession, case: Case) -> None:
        self.case = case
        self.source = Source(tmp_path / "in", spark)
        for name in ("theirs", "ours"):
            (tmp_path / name).mkdir()
        self.theirs, self.ours = Job(tmp_path / "theirs"), Job(tmp_path / "ours")
        self.old = tmp_path / "old"

    def events(self) -> DataFrame:
        return self.source.stream().withWatermark("t", "10 seconds")

    def run_theirs(self) -> Rows:
        before = set(self.theirs.rows)
        df = self.case.theirs(self.events())
        self.theirs.run(df.selectExpr(*self.case.columns), mode=self.case.mode)
        return [rows for number, rows in sorted(self.theirs.rows.items()) if number not in before and rows]

    def stop(self) -> None:
        shutil.copytree(self.theirs.checkpoint, self.old)

    def applied(self) -> DataFrame:
        ours = self.case.ours(self.events(), str(self.ours.checkpoint))
        assert not isinstance(ours, tuple)
        return ours

    def move(self) -> list[hs.ImportReport]:
        ours = self.case.ours(self.events(), str(self.ours.checkpoint))
        if not isinstance(ours, tuple):
            self.results = ours
            return [hs.import_spark(self.old, ours, columns=self.case.keys)]
        self.results, results = ours
        with pytest.raises(hs.ImportRefusedError, match=r"expected results for each of them"):
            hs.import_spark(self.old, {0: results[0]}, query=self.results)
        with pytest.raises(hs.ImportRefusedError, match=r"expected an operator of its own for each of Spark's"):
            hs.import_spark(self.old, {number: results[0] for number in results}, query=self.results)
        with pytest.raises(hs.ImportRefusedError, match=r"query: found 1 sources of ticks, expected 2, of '"):
            hs.import_spark(self.old, results, query=results[1])
        return hs.import_spark(self.old, results, query=self.results)

    def run_ours(self) -> Rows:
        self.ours.run(self.results.selectExpr(*self.case.columns))
        return [rows for _, rows in sorted(self.ours.rows.items()) if rows]


def fill(source: Source, r: random.Random, now: int) -> int:
    """Add batches whose times go on from `now`, with disorder within and beyond the watermark's delay. The first row
    moves the watermark, and equal rows of a batch have equal times: it does not matter which of them comes first.
    """
    for step in (9, 24):
        rows = [(r.choice("abcdef"), r.randint(0, 3)) for _ in range(9)]
        late = [row(k, v, now - crc32(f"{k}{v}{now}".encode()) % 30) for k, v in rows]
        source.add(row("first", now, now), *late)
        now += step
    return now


def f() -> Any:
    from pyspark.sql import functions

    return functions


def tumbling(emit: Literal["commit", "close"]) -> Callable[[DataFrame, str], DataFrame]:
    def ours(events: DataFrame, checkpoint: str) -> DataFrame:
        minutes = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("20 seconds"))
        counted = minutes.aggregate(n=hs.Count(), s=hs.Sum("v"), mean=hs.Mean("v"), most=hs.Max("v"), emit=emit)
        results: DataFrame = counted.apply(events, "op", location=checkpoint, shards=3, time="watermark")
        return results

    return ours


def theirs_tumbling(events: DataFrame) -> DataFrame:
    named = [f().count("*").alias("n"), f().sum("v").alias("s"), f().avg("v").alias("mean"), f().max("v").alias("most")]
    windows = events.groupBy(f().window("t", "20 seconds"), "k").agg(*named)
    return windows.select("k", "window.start", "window.end", "n", "s", "mean", "most")


CASES = {
    "windows that close": Case(theirs_tumbling, tumbling("close"), "append"),
    "windows that change": Case(theirs_tumbling, tumbling("commit"), "update"),
    "without windows": Case(
        lambda events: events.groupBy("k").agg(f().count("*"), f().min("v"), f().sum("v")),
        lambda events, checkpoint: (
            hs.stream(key="k", timestamp="t")
            .aggregate(n=hs.Count(), least=hs.Min("v"), s=hs.Sum("v"), emit="commit")
            .apply(events, "op", location=checkpoint, shards=3)
        ),
    ),
    "hopping windows": Case(
        lambda events: (
            events.groupBy(f().window("t", "20 seconds", "10 seconds"), "k")
            .agg(f().count("*").alias("n"), f().sum("v").alias("s"))
            .select("k", "window.start", "window.end", "n", "s")
        ),
        lambda events, checkpoint: (
            hs.stream(key="k", timestamp="t")
            .windowed_by(hs.HoppingWindows("20 seconds", "10 seconds"))
            .aggregate(n=hs.Count(), s=hs.Sum("v"), emit="close")
            .apply(events, "op", location=checkpoint, shards=2, time="watermark")
        ),
        "append",
    ),
    "session windows": Case(
        lambda events: (
            events.groupBy(f().session_window("t", "6 seconds").alias("w"), "k")
            .agg(f().count("*").alias("n"), f().sum("v").alias("s"))
            .select("k", "w.start", (f().col("w.end") - f().expr("interval 6 seconds")), "n", "s")
        ),
        lambda events, checkpoint: (
            hs.stream(key="k", timestamp="t")
            .windowed_by(hs.SessionWindows("6 seconds"))
            .aggregate(n=hs.Count(), s=hs.Sum("v"), emit="close")
            .apply(events, "op", location=checkpoint, shards=2, time="watermark")
        ),
        "append",
    ),
    "duplicates within": Case(
        lambda events: events.dropDuplicatesWithinWatermark(["k", "v"]),
        lambda events, checkpoint: (
            hs.stream(timestamp="t")
            .drop_duplicates(["k", "v"], within="10 seconds")
            .apply(events, "op", location=checkpoint, shards=2, time="watermark")
        ),
        "append",
        ("k", "v"),
    ),
}


CASES["duplicates for ever"] = Case(
    lambda events: events.dropDuplicates(["k", "v"]),
    lambda events, checkpoint: (
        hs.stream(timestamp="t")
        .drop_duplicates(["k", "v"], within="36500 days")
        .apply(events, "op", location=checkpoint, shards=2)
    ),
    "append",
    ("k", "v"),
)
CASES["keys that follow from others"] = Case(
    lambda events: (
        events.groupBy("k", "v").agg(f().count("*").alias("n")).selectExpr("concat(k, '/', v) name", "v * 2 v", "n")
    ),
    lambda events, checkpoint: (
        hs.stream(key=["name", "twice"], timestamp="t")
        .aggregate(n=hs.Count(), emit="commit")
        .apply(events.selectExpr("concat(k, '/', v) name", "v * 2 twice", "t"), "op", location=checkpoint, shards=3)
    ),
    keys={"name": "concat(k, '/', v)", "twice": "v * 2"},
)


def side_by_side(events: DataFrame, checkpoint: str) -> tuple[DataFrame, dict[int, DataFrame]]:
    counted = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("20 seconds"))
        .aggregate(n=hs.Count(), emit="close")
        .apply(events, "counted", location=checkpoint, shards=3, time="watermark")
    )
    unique = hs.stream(timestamp="t").drop_duplicates(["k", "v"], within="10 seconds")
    first = unique.apply(events, "unique", location=checkpoint, shards=2, time="watermark")
    return counted.selectExpr("k", "n").union(first.selectExpr("k", "v")), {0: counted, 1: first}


def behind_each_other(events: DataFrame, checkpoint: str) -> tuple[DataFrame, dict[int, DataFrame]]:
    counted = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("5 seconds"))
        .aggregate(n=hs.Count(), emit="close")
        .apply(events, "counted", location=checkpoint, shards=2, time="watermark", event_time="at")
    )
    summed = (
        hs.stream(key="k", timestamp="at")
        .windowed_by(hs.TumblingWindows("20 seconds"))
        .aggregate(n=hs.Sum("n"), emit="close")
        .apply(counted, "summed", location=checkpoint, shards=3, time="watermark")
    )
    return summed, {0: summed, 1: counted}


CASES["two operators side by side"] = Case(
    lambda events: (
        events.groupBy(f().window("t", "20 seconds"), "k")
        .agg(f().count("*").alias("n"))
        .select("k", "n")
        .union(events.dropDuplicatesWithinWatermark(["k", "v"]).select("k", "v"))
    ),
    side_by_side,
    "append",
)
CASES["two operators behind each other"] = Case(
    lambda events: (
        events.groupBy(f().window("t", "5 seconds").alias("w"), "k")
        .agg(f().count("*").alias("n"))
        .withColumn("at", f().window_time("w"))
        .groupBy(f().window("at", "20 seconds").alias("w"), "k")
        .agg(f().sum("n").alias("n"))
        .select("k", "w.start", "w.end", "n")
    ),
    behind_each_other,
    "append",
)
PROCESSOR_SCHEMA = "k string, what string, n long"


def counting() -> Any:
    """A processor with variables of every kind, and timers of event time."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long, last struct<v long, t timestamp>")
            self.latest = handle.getListState("latest", "v long")
            self.of_value = handle.getMapState("of value", "v long", "n long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            for each in rows:
                n = self.total.get()[0] if self.total.exists() else 0
                self.total.update((n + each.v, Row(v=each.v, t=each.t)))
                self.latest.appendValue((each.v,))
                known = self.of_value.getValue((each.v,))
                self.of_value.updateValue((each.v,), ((0 if known is None else known[0]) + 1,))
                self.handle.registerTimer(int(each.t.timestamp() * 1000) + 15_000)
            yield Row(k=key[0], what="total", n=self.total.get()[0])
            yield Row(k=key[0], what="last", n=self.total.get()[1].v)
            for (v,) in list(self.latest.get())[:-4:-1]:
                yield Row(k=key[0], what="latest", n=v)
            for entry, (n,) in self.of_value.iterator():
                yield Row(k=key[0], what=f"of {entry[0]}", n=n)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield Row(k=key[0], what="timer", n=expiredTimerInfo.getExpiryTimeInMs())
            for each in self.handle.listTimers():
                yield Row(k=key[0], what="still", n=each)

        def close(self) -> None: ...

    return Counting()


def kept_for_a_day() -> Any:
    """A processor whose variables of every kind have a ttl, and that has timers by the clock."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Kept(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long", 86_400_000)
            self.latest = handle.getListState("latest", "v long", 86_400_000)
            self.of_value = handle.getMapState("of value", "v long", "n long", 86_400_000)

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            for each in rows:
                self.total.update(((self.total.get() or (0,))[0] + each.v,))
                self.latest.appendValue((each.v,))
                self.of_value.updateValue((each.v,), (each.v,))
                self.handle.registerTimer(4_000_000_000_000 + each.v)
            yield Row(k=key[0], what="total", n=self.total.get()[0])
            for (v,) in self.latest.get():
                yield Row(k=key[0], what="latest", n=v)
            for (v,) in list(self.of_value.keys()):
                yield Row(k=key[0], what="entry", n=v)
            for each in self.handle.listTimers():
                yield Row(k=key[0], what="timer", n=each)

        def close(self) -> None: ...

    return Kept()


def processors(make: Callable[[], Any], mode: str) -> Case:
    def ours(events: DataFrame, checkpoint: str) -> DataFrame:
        grouped = events.groupBy("k")
        return hsp.transform_with_state(
            grouped, make(), PROCESSOR_SCHEMA, "Update", mode, name="op", location=checkpoint, shards=2
        )

    return Case(
        lambda events: events.groupBy("k").transformWithState(make(), PROCESSOR_SCHEMA, "Update", mode), ours, "update"
    )


def frames_counted() -> Any:
    """A class of frames with variables of every kind, and timers of event time."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counted(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long")
            self.latest = handle.getListState("latest", "v long")
            self.of_value = handle.getMapState("of value", "v long", "n long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            n = self.total.get()[0] if self.total.exists() else 0
            for frame in rows:
                n += int(frame["v"].sum())
                for v in sorted(frame["v"].tolist()):
                    self.latest.appendValue((v,))
                    self.of_value.updateValue((v,), (n,))
                self.handle.registerTimer(int(frame["t"].max().timestamp() * 1000) + 15_000)
            self.total.update((n,))
            entries = sorted(entry[0] * 1000 + value[0] for entry, value in self.of_value.iterator())
            values = [n, *(v for (v,) in self.latest.get()), *entries]
            yield pd.DataFrame({"k": [key[0]] * len(values), "what": ["row"] * len(values), "n": values})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield pd.DataFrame({"k": [key[0]], "what": ["timer"], "n": [expiredTimerInfo.getExpiryTimeInMs()]})

        def close(self) -> None: ...

    return Counted()


def framed() -> Case:
    def ours(events: DataFrame, checkpoint: str) -> DataFrame:
        return hsp.transform_with_state_in_pandas(
            events.groupBy("k"),
            frames_counted(),
            PROCESSOR_SCHEMA,
            "Update",
            "EventTime",
            name="op",
            location=checkpoint,
            shards=2,
        )

    return Case(
        lambda events: events.groupBy("k").transformWithStateInPandas(
            frames_counted(), PROCESSOR_SCHEMA, "Update", "EventTime"
        ),
        ours,
        "update",
    )


CASES["a processor"] = processors(counting, "EventTime")
CASES["a processor of frames"] = framed()
CASES["a processor with ttl"] = processors(kept_for_a_day, "ProcessingTime")


def visits(key: Any, frames: Any, state: Any) -> Any:
    import pandas as pd

    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "n": [-state.get[0]], "last": [state.get[1]]})
        state.remove()
        return
    n, last = state.get if state.exists else (0, 0)
    for frame in frames:
        n, last = n + len(frame), int(frame["v"].max())
    state.update((n, last))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 15_000)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "last": [last]})


def groups(events: DataFrame, checkpoint: str) -> DataFrame:
    schemas = ("k string, n long, last long", "n long, last long")
    return hsp.apply_in_pandas_with_state(
        events.groupBy("k"),
        visits,
        *schemas,
        "update",
        "EventTimeTimeout",
        name="op",
        location=checkpoint,
        shards=2,
    )


CASES["groups"] = Case(
    lambda events: events.groupBy("k").applyInPandasWithState(
        visits, "k string, n long, last long", "n long, last long", "update", "EventTimeTimeout"
    ),
    groups,
)
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKS,
    # with timers by the clock, Spark runs batches without rows for ever
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


@pytest.fixture
def rocks(spark: SparkSession, name: str) -> Iterator[None]:
    """Settings of the session for a processor."""
    if not name.startswith("a processor"):
        yield
        return
    for setting, value in SETTINGS.items():
        if value == ROCKS or name.endswith("ttl"):
            spark.conf.set(setting, value)
    yield
    for setting in SETTINGS:
        spark.conf.unset(setting)


# One of each kind of state; windows that close are one of the two operators side by side.
EACH_RUN = {"session windows", "two operators side by side", "a processor", "groups"}
FURTHER = pytest.mark.further("test_a_moved_query_gives_the_rows_of_the_query_that_goes_on")


@pytest.mark.usefixtures("rocks")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in EACH_RUN else FURTHER) for name in CASES])
def test_a_moved_query_gives_the_rows_of_the_query_that_goes_on(
    spark: SparkSession, tmp_path: Path, sparks: SparksRows, name: str
) -> None:
    r = random.Random(sparks.seed)
    moved = Moved(tmp_path, spark, CASES[name])
    now = fill(moved.source, r, 30)
    moved.run_theirs()
    moved.stop()
    assert all(report.records > 0 for report in moved.move())
    fill(moved.source, r, now)
    expected = sparks(name, moved.run_theirs)
    assert expected, "the query gave nothing behind the move"
    assert plain(moved.run_ours()) == expected


@pytest.mark.stress
def test_a_query_whose_sources_have_names_moves_with_them(
    spark: SparkSession, named_sources: None, tmp_path: Path, seed: int, rounds: int
) -> None:
    if rounds == 1:
        pytest.skip("a stress run has this case")
    r, moved = random.Random(seed), Moved(tmp_path, spark, CASES["windows that close"])
    moved.source.name = "events"
    now = fill(moved.source, r, 30)
    moved.run_theirs()
    moved.stop()
    for moved.source.name, refused in (("others", True), ("events", False)):
        with pytest.raises(hs.ImportRefusedError, match=r"events .*, and others") if refused else nullcontext():
            moved.move()
    fill(moved.source, r, now)
    assert moved.run_ours() == moved.run_theirs() != []
    lines = (moved.ours.checkpoint / "offsets/1").read_text().splitlines()
    assert {"v2", "events", "hybridstore_ticks_op"} <= {line.partition(":")[0] for line in lines}


@pytest.mark.stress
def test_state_moves_to_an_object_store(spark: SparkSession, tmp_path: Path, seed: int, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("a stress run has this case")
    pytest.importorskip("obstore")
    from tests.tools.s3_server import S3Server

    with S3Server() as server:

        def ours(events: DataFrame, checkpoint: str) -> DataFrame:
            results: DataFrame = (
                hs.stream(key="k", timestamp="t")
                .aggregate(n=hs.Count(), least=hs.Min("v"), s=hs.Sum("v"), emit="commit")
                .apply(
                    events,
                    "op",
                    location=checkpoint,
                    state_location=server.bucket("moved"),
                    shards=3,
                )
            )
            return results

        r = random.Random(seed)
        moved = Moved(tmp_path, spark, CASES["without windows"]._replace(ours=ours))
        now = fill(moved.source, r, 30)
        moved.run_theirs()
        moved.stop()
        moved.move()
        fill(moved.source, r, now)
        assert moved.run_ours() == moved.run_theirs() != []
        assert not (moved.ours.checkpoint / "hybridstore").exists()


def test_a_move_that_is_refused_or_broken_off_leaves_nothing_that_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hybridstore.importing import api

    def unwindowed(key: str = "k", checkpoint: str = "", **aggregates: Any) -> DataFrame:
        nulls: Any = "group" if checkpoint else "skip"
        place = checkpoint or str(tmp_path / f"refused-{len(list(tmp_path.iterdir()))}")
        counted = hs.stream(key=key, timestamp="t", null_keys=nulls)
        total = counted.aggregate(emit="commit", **(aggregates or {"n": hs.Count(), "s": hs.Sum("v")}))
        results: DataFrame = total.apply(moved.events(), "op", location=place, shards=2)
        return results

    def refused(sentence: str, results: DataFrame, **how: Any) -> None:
        with pytest.raises(hs.ImportRefusedError, match=sentence):
            hs.import_spark(moved.old, results, **how)

    case = Case(
        lambda events: events.groupBy("k").agg(f().count("*").alias("n"), f().sum("v").alias("s")),
        lambda events, checkpoint: unwindowed(checkpoint=checkpoint),
        columns=("coalesce(k, 'null')", "n", "s"),
    )
    moved = Moved(tmp_path, spark, case)
    moved.source.add(row("a", 1, 1), row(None, 2, 2))
    moved.run_theirs()
    moved.stop()

    refused("found 2 buffers .* expected 1 for n", unwindowed(n=hs.Count()))
    refused("found the key k string, expected 2 columns", unwindowed(["k", "v"]))  # type: ignore[arg-type]
    refused("key column 'v': found string in the state, expected bigint", unwindowed("v"))
    refused("order: found s, expected each of n, s once", unwindowed(), order=["s"])
    refused("found no DataFrame that `apply` has returned", unwindowed().select("k"))
    refused("operator 7: found operator 0: aggregation", unwindowed(), operator=7)
    refused("found no window in Spark.s key", tumbling("close")(moved.events(), str(tmp_path / "windows")))
    refused("key column 'k': found null in the state", unwindowed())

    moved.results = moved.applied()
    with monkeypatch.context() as patch:
        patch.setattr(api, "finish", lambda *_: exec("raise OSError('no space')"))
        with pytest.raises(OSError, match="no space"):
            hs.import_spark(moved.old, moved.results)
    text = failure(lambda: moved.ours.run(moved.results))
    assert "found the beginning of aggregation 0 of" in text
    capsys.readouterr()
    assert cli.run(["import", "--from-spark", str(moved.old)]) == 0
    assert capsys.readouterr().out == "operator 0: aggregation\n"

    def applied(session: SparkSession) -> DataFrame:
        moved.results = moved.applied()
        return moved.results

    monkeypatch.setitem(sys.modules, "moved_job", cast(ModuleType, SimpleNamespace(applied=applied, wrong=lambda _: 7)))
    command = ["import", "--from-spark", str(moved.old), "--job"]
    assert cli.run([*command, "moved_job:wrong"]) == 1
    assert cli.run([*command, "moved_job:applied", "--order", "n,s"]) == 0
    printed = capsys.readouterr()
    assert "refused: results: found no DataFrame that `apply` has returned" in printed.err
    assert ": 2 records in 2 shards of 'op'" in printed.out
    refused("expected a new checkpointLocation", moved.applied())
    moved.source.add(row("a", 5, 3), row(None, 7, 3))
    assert moved.run_ours() == moved.run_theirs() == [[("a", 2, 6), ("null", 2, 9)]]
