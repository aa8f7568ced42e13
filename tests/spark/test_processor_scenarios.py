"""Scenarios of transformWithState: rows equal to those of Spark's own operator, batch by batch.

`processor_scenarios.json` has the rows that Spark 4.3 gave, for each scenario. Without Spark ours is compared with
them in this process; `make stress` runs Spark's operator again, and ours in queries, in workers and holders.
HYBRIDSTORE_WRITE_SCENARIOS=1 with `make stress` writes the file.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from hybridstore import spark as hsp
from tests.tools.processor_runs import in_process, on_spark, ours, over_connect, theirs
from tests.tools.processor_scenarios import SCENARIOS, Scenario, Together, in_order, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = Path(__file__).with_name("processor_scenarios.json")
RECORDED: dict[str, Any] = json.loads(PATH.read_text()) if PATH.exists() else {}
# Recorded where Spark's server of state ends with the error, and the query with it.
FAILS = "fails"
# Scenarios that our operator answers otherwise, and why: the rows of the table in docs/spark.md.
DIFFERENT = {"keys of column e": "0.0 and -0.0"}


# Initial state of a query is a DataFrame of one client; several starts are tested on classic Spark.
OVER_CONNECT = [each for each in together(SCENARIOS) if not each.initial and not each.starts]


def plain(batches: Any) -> Any:
    return json.loads(json.dumps(batches))


def test_the_page_has_what_differs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/spark.md").read_text(encoding="utf-8")
    table = page.partition("### What differs from Spark's `transformWithState`")[2].partition("\n## ")[0]
    for name, words in DIFFERENT.items():
        assert words in table, name


def test_every_scenario_was_recorded() -> None:
    assert len(SCENARIOS) >= 80
    assert sorted(RECORDED) == sorted(scenario.name for scenario in SCENARIOS)
    assert [scenario.number for scenario in SCENARIOS] == [*range(1, len(SCENARIOS) + 1)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: f"{scenario.number} {scenario.name}")
def test_rows_are_those_of_spark(scenario: Scenario, tmp_path: Path) -> None:
    expected = RECORDED[scenario.name]
    answers = plain(in_process(scenario, tmp_path))
    if expected == FAILS:
        assert answers[0][0][1].startswith("error PySparkRuntimeError ["), answers
        return
    assert (answers == expected) == (scenario.name not in DIFFERENT), (answers, expected)


def test_late_rows_and_rows_without_a_time_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="hybridstore.spark")
    late, timeless = (
        next(each for each in SCENARIOS if each.name == name) for name in ("late rows", "rows without a time")
    )
    for scenario, column in ((late, "late"), (timeless, "null_timestamp")):
        caplog.clear()
        in_process(scenario, tmp_path / column)
        logged = [int(number) for number in re.findall(rf"'{column}': (\d+)", caplog.text)]
        assert sum(logged) == (3 if column == "late" else 2), caplog.text


@pytest.mark.spark
@pytest.mark.slow
class TestInQueries:
    @pytest.fixture
    def state_store(self, spark: "SparkSession") -> Iterator[None]:
        pytest.importorskip("google.protobuf", reason="Spark's own transformWithState needs protobuf")
        name = "spark.sql.streaming.stateStore.providerClass"
        spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        yield
        spark.conf.unset(name)

    def check(self, scenario: Scenario, batches: Any, *, whole: bool = False) -> None:
        """Compare rows with the recorded rows: batch by batch, or as a `whole`, all batches in one."""
        results = scenario.apart(batches) if isinstance(scenario, Together) else {scenario.name: batches}
        for name, rows in results.items():
            expected = RECORDED[name]
            if expected == FAILS:
                assert rows[0][0][1].startswith("error PySparkRuntimeError [")
                continue
            if whole:
                expected = plain([in_order(row for batch in expected for row in batch)])
            assert (plain(rows) == expected) == (name not in DIFFERENT), (name, rows, expected)

    @pytest.mark.parametrize(
        "placement", ["worker", pytest.param("holder", marks=pytest.mark.further("test_values_lists_and_maps"))]
    )
    def test_values_lists_and_maps(self, spark: "SparkSession", tmp_path: Path, placement: str) -> None:
        scenario = max(together(SCENARIOS), key=lambda each: len(getattr(each, "members", ())))
        self.check(scenario, on_spark(spark, scenario, tmp_path, ours(placement)))

    @pytest.mark.stress
    @pytest.mark.parametrize("placement", ["worker", "holder"])
    @pytest.mark.parametrize("scenario", together(SCENARIOS), ids=lambda scenario: scenario.name)
    def test_rows_are_those_of_spark(
        self, spark: "SparkSession", rounds: int, tmp_path: Path, scenario: Scenario, placement: str
    ) -> None:
        if rounds == 1:
            pytest.skip("queries take long: make stress")
        self.check(scenario, on_spark(spark, scenario, tmp_path, ours(placement)))

    @pytest.mark.stress
    @pytest.mark.parametrize("scenario", OVER_CONNECT, ids=lambda scenario: scenario.name)
    def test_rows_over_connect_are_those_of_spark(
        self,
        connected: "SparkSession",
        rounds: int,
        tmp_path: Path,
        scenario: Scenario,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if rounds == 1:
            pytest.skip("queries take long: make stress")
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        self.check(scenario, [over_connect(connected, scenario, tmp_path, ours("worker"))], whole=True)

    @pytest.mark.stress
    @pytest.mark.parametrize("scenario", together(SCENARIOS), ids=lambda scenario: scenario.name)
    def test_spark_gives_the_recorded_rows(
        self, spark: "SparkSession", state_store: None, rounds: int, tmp_path: Path, scenario: Scenario
    ) -> None:
        if rounds == 1:
            pytest.skip("a query on Spark's own engine takes long: make stress")
        results: dict[str, Any]
        try:
            batches = on_spark(spark, scenario, tmp_path, theirs)
            results = scenario.apart(batches) if isinstance(scenario, Together) else {scenario.name: batches}
        except Exception as error:
            if "connect back" in str(error):
                raise
            results = {scenario.name: FAILS}
        if os.environ.get("HYBRIDSTORE_WRITE_SCENARIOS"):
            RECORDED.update(plain(results))
            # a line for each scenario
            lines = (f"{json.dumps(name)}: {json.dumps(rows, ensure_ascii=False)}" for name, rows in RECORDED.items())
            PATH.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n")
        assert plain(results) == {name: RECORDED[name] for name in results}

    def test_a_batch_dataframe_gives_the_same_rows(
        self, spark: "SparkSession", state_store: None, tmp_path: Path
    ) -> None:
        rows = [("a", 1), (None, 2), ("b", 3), ("a", 4), (None, 5)]
        df = spark.createDataFrame(rows, "k string, v long").coalesce(1)
        initial = spark.createDataFrame([("a", 100), ("z", 7)], "k string, init long").groupBy("k")
        adding = next(scenario for scenario in SCENARIOS if scenario.name == "initial state")
        place: Any = {"name": "op", "location": str(tmp_path / "never"), "shards": 2}
        for given in (None, initial):
            processor = adding.processor()
            results = hsp.transform_with_state(
                df.groupBy("k"), processor, adding.output, "Update", "None", given, **place
            )
            theirs_too = df.groupBy("k").transformWithState(processor, adding.output, "Update", "None", given)
            assert sorted(map(str, results.collect())) == sorted(map(str, theirs_too.collect()))
        assert not (tmp_path / "never").exists()
