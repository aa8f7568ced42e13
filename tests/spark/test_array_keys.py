"""Arrays as grouping keys: groups through all three doors, where Spark's transformWithState fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

import pyarrow as pa
from pyspark.sql import Row

from hybridstore import spark as hsp
from hybridstore.shards import shard_of
from hybridstore.spark.stateful_processor import in_groups
from hybridstore.topology.null_keys import stored_key
from tests.tools.processor_runs import in_process
from tests.tools.processor_scenarios import Scenario, row
from tests.tools.spark_jobs import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRUCTS = [{"p": 1, "q": 'x"y,'}]
# by type: arrays that are equal only to themselves
ARRAYS: dict[str, list[Any]] = {
    "array<bigint>": [[2, 1], [2], [], None, [None], [2, None], [-5, 2**40]],
    "array<array<string>>": [[["b"], None], [["a", "b"]], [], None, [None], [["a"], ["b"]], [[None]]],
    "array<struct<p:int,q:string>>": [
        STRUCTS,
        [*STRUCTS, None],
        [],
        None,
        [None],
        [{"p": None, "q": None}],
        STRUCTS * 2,
    ],
}


def shown(value: Any) -> Any:
    """An array as plain lists, with a struct as its values: rows have dicts and timers Rows."""
    if isinstance(value, list):
        return list(map(shown, value))
    return tuple(value.values() if isinstance(value, dict) else value) if isinstance(value, dict | tuple) else value


def init(p: Any, handle: Any) -> None:
    p.handle, p.n = handle, handle.getValueState("n", "n long")


def rows(p: Any, key: Any, given: Any, timers: Any) -> Any:
    p.n.update(((p.n.get() or (0,))[0] + len(given),))
    p.handle.registerTimer(25_000)
    yield Row(k=str(shown(key[0])), a=f"{p.n.get()} {[each.v for each in given]}")


def timer(p: Any, key: Any, expiry: int, timers: Any) -> Any:
    yield Row(k=str(shown(key[0])), a=f"{expiry} {p.n.get()}")


@pytest.mark.parametrize("kind", ARRAYS)
def test_groups_of_arrays_are_those_of_their_texts(kind: str, tmp_path: Path) -> None:
    """Rows, state, shards and timers over a restart, as with keys of type string."""
    arrays = ARRAYS[kind]
    batches = [
        [row(v=place, t=second + place, l=arrays[place % len(arrays)]) for place in range(second, second + 9)]
        for second in (0, 10, 30)
    ]
    texts = [[{**each, "l": str(shown(each["l"]))} for each in batch] for batch in batches]

    def run(kind: str, batches: Any) -> Any:
        schema = f"k string, v long, t timestamp, l {kind}"
        start = Scenario("", init, rows, timer=timer)
        scenario = Scenario(
            kind, init, rows, batches, "EventTime", timer, key=("l",), schema=schema, starts=((2, start),), number=1
        )
        return in_process(scenario, tmp_path / kind.partition("<")[0])

    answers = run(kind, batches)
    assert answers == run("string", texts)
    assert {k for batch in answers for k, _ in batch} == {str(shown(array)) for array in arrays}
    assert any(a.startswith("25000 ") for batch in answers for _, a in batch)


def test_groups_come_in_the_order_of_sparks_arrays() -> None:
    """Null first, element by element, the shorter first; not a number behind all numbers, and one group."""
    nan, inf = float("nan"), float("inf")
    expected = [None, [], [None], [None, 1.0], [-inf], [0.0], [1.0], [1.0, None], [1.0, 0.5], [inf], [nan]]
    column = pa.array([[-0.0], *reversed(expected), [float("nan")]], pa.list_(pa.float64()))
    table, keys, places = in_groups(pa.table({"l": column}), ("l",))
    assert list(map(str, (key for (key,) in keys))) == [str(each).replace("[0.0]", "[-0.0]") for each in expected]
    assert places[-1] == table.num_rows == len(expected) + 2
    assert [end - start for start, end in pairwise(places)] == [
        2 if str(each) in ("[0.0]", "[nan]") else 1 for each in expected
    ]


@pytest.mark.parametrize("nested", [pa.list_, lambda kind: pa.struct([("at", kind)])])
def test_nested_moments_are_two_groups_where_clocks_are_put_back(nested: Any) -> None:
    kind = pa.timestamp("us", "America/New_York")
    # half past one, before and behind the change
    moments = [datetime(2024, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6, 6)]
    values = pa.array([[moment] if nested is pa.list_ else {"at": moment} for moment in moments], nested(kind))
    _, keys, places = in_groups(pa.table({"l": values}), ("l",))
    assert places == [0, 1, 3]
    assert len({stored_key(key) for key in keys}) == 2


class Counting:
    """Rows of a key so far, for the Row API (`frames`: for frames)."""

    frames = False

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, given: Any, timers: Any) -> Any:
        import pandas as pd

        n = (self.n.get() or (0,))[0] + (sum(map(len, given)) if self.frames else len(list(given)))
        self.n.update((n,))
        text = str(None if key[0] is None else list(key[0]))
        yield pd.DataFrame({"l": [text], "n": [n]}) if self.frames else Row(l=text, n=n)

    def close(self) -> None:
        """Nothing is open."""


class CountingFrames(Counting):
    frames = True


def count(key: Any, frames: Any, state: Any) -> Any:
    import pandas as pd

    n = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    state.update((n,))
    # a whole number in an array with a null is a float in a frame
    text = None if key[0] is None else [None if each is None or each != each else int(each) for each in key[0]]
    yield pd.DataFrame({"l": [str(text)], "n": [n]})


@pytest.mark.spark
@pytest.mark.slow
class TestInQueries:
    def test_the_shard_of_an_array_is_that_of_its_text(self, spark: SparkSession) -> None:
        from hybridstore.spark.sharding import shard_column

        moment = datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
        kinds: dict[str, list[Any]] = {
            **ARRAYS,
            "array<string>": [['a"b\\', "ä€😀", ""], [None], None],
            "array<double>": [[0.5, -0.0, float("nan")], [1e300]],
            "array<timestamp>": [[moment, None]],
            "array<array<binary>>": [[[b"\xff\x00", None], []]],
        }
        # one query for all kinds, each a column; the longest list says how many rows the query has
        rows = list(zip_longest(*kinds.values()))
        df = spark.createDataFrame(rows, ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds)))
        sharded = df.select(*(shard_column(df.schema, (f"c{n}",), 997, "group") for n in range(len(kinds)))).collect()
        for column, (kind, arrays) in zip(zip(*sharded, strict=True), kinds.items(), strict=True):
            given = column[: len(arrays)]
            assert list(given) == [shard_of(stored_key(array), 997) for array in arrays], kind

    def test_all_three_doors_group_by_arrays(self, spark: SparkSession, tmp_path: Path) -> None:
        arrays = ARRAYS["array<bigint>"]
        for batch in range(2):
            lines = [json.dumps({"l": array}) + "\n" for array in (*arrays, arrays[0])]
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / "in" / f"{batch}.json").write_text("".join(lines))
        grouped = (
            spark.readStream.schema("l array<bigint>")
            .option("maxFilesPerTrigger", 1)
            .json(str(tmp_path / "in"))
            .groupBy("l")
        )
        asked: Any = {"name": "op", "shards": 2}
        rows_door: Any = Counting()
        frames_door: Any = CountingFrames()
        output = "l string, n long"
        doors: dict[str, Any] = {
            "rows": lambda place: hsp.transform_with_state(grouped, rows_door, output, **asked, location=place),
            "frames": lambda place: hsp.transform_with_state_in_pandas(
                grouped,
                frames_door,
                output,
                **asked,
                location=place,
            ),
            "groups": lambda place: hsp.apply_in_pandas_with_state(
                grouped, count, output, "n long", "update", "NoTimeout", **asked, location=place
            ),
        }
        for name, door in doors.items():
            (tmp_path / name).mkdir()
            job = Job(tmp_path / name)
            job.run(door(str(job.checkpoint)), sink=True)
            answers = sorted(each for batch in job.rows.values() for each in batch)
            expected = [(str(array), (1 + (array == arrays[0])) * times) for array in arrays for times in (1, 2)]
            assert answers == sorted(expected), name
