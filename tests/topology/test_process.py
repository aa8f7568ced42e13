"""`Topology.process`: the time that its stores see, the row's own time, and the stores by name; the same in plain
Python and by batches.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.spark.program import TopologyProgram

HOUR = 3_600_000


def dedup(row: dict[str, Any], stores: Any) -> Iterator[dict[str, Any]]:
    if row["id"] not in stores["seen"]:
        stores["seen"].put(row["id"], 1, ts=row["t"])
        yield {"id": row["id"], "t": row["t"]}


def declared(function: Any, *stores: Any, schema: str | None = None) -> hs.Topology:
    return hs.stream(key="k", timestamp="t").process(function, schema, list(stores))


def test_rows_expire_from_a_store_that_nothing_is_put_into() -> None:
    topology = declared(dedup, hs.key_value_store("seen", ttl="1 hour"))
    rows = [{"k": "a", "id": "e1", "t": ts} for ts in (0, HOUR - 1, 2 * HOUR, 10 * HOUR)]
    assert [row["t"] for row in topology.run(rows)] == [0, 2 * HOUR, 10 * HOUR]


def test_time_that_no_row_was_put_at_outlives_a_restart(tmp_path: Path) -> None:
    topology = declared(
        lambda row, stores: dedup(row, stores) if row["put"] else (), hs.key_value_store("seen", ttl=10)
    )
    for rest in ("changelog", "checkpoint"):
        with topology.open(tmp_path / rest) as engine:
            assert engine.process({"k": "a", "id": "e", "t": 5, "put": True})
            engine.process({"k": "a", "id": "e", "t": 14, "put": False})
            engine.commit()
            engine.process({"k": "a", "id": "e", "t": 15, "put": False})
            engine.commit()
            if rest == "checkpoint":
                engine.states[0].checkpoint(wait=True)
        with topology.open(tmp_path / rest) as engine:
            # a row from before: late, but not the one that moves time
            assert engine.process({"k": "b", "id": "e", "t": 7, "put": True}) == [{"id": "e", "t": 7}]
            assert engine.states[0].key_value("seen", ttl=10).stream_time == 15


SEEN: dict[str, Any] = {
    "key_value": hs.key_value_store("s", ttl=100),
    "window": hs.window_store("s", retention=100),
    "session": hs.session_store("s", retention=100),
    "sliding": hs.sliding_store("s", size=100, aggregator=hs.Count()),
    "suppression": hs.suppression_store("s", time_limit=100),
}


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("way", ["rows", "batches", "program"])
def test_every_store_with_a_time_is_at_the_time_of_all_rows_so_far(kind: str, way: str, tmp_path: Path) -> None:
    def look(row: dict[str, Any], stores: Any) -> Iterator[dict[str, Any]]:
        yield {"n": row["t"], "now": stores["s"].stream_time, "time": stores.time}

    topology = declared(look, SEEN[kind], schema="n long, now long, time long")
    batches = [[{"k": "a", "t": ts} for ts in times] for times in ([7, 20], [11], [30, 22, 21])]
    results: list[dict[str, Any]] = []
    if way == "program":
        pa = pytest.importorskip("pyarrow")
        output = pa.schema([("n", pa.int64()), ("now", pa.int64()), ("time", pa.int64())])
        with hs.open(tmp_path / "s") as state:
            runner = TopologyProgram(topology).open(state.group)
            for batch in batches:
                results += runner.process(pa.Table.from_pylist(batch), output).to_pylist()
                state.commit()
    else:
        with topology.open(tmp_path / "s") as engine:
            for batch in batches:
                if way == "batches":
                    results += engine.process_many(batch)
                else:
                    results += [result for row in batch for result in engine.process(row)]
                engine.commit()
    ordered = [7, 20, 11, 30, 22, 21] if way == "rows" else [7, 20, 11, 21, 22, 30]
    assert results == [{"n": n, "now": max(ordered[: i + 1]), "time": n} for i, n in enumerate(ordered)]


def test_with_a_clock_the_stores_are_at_the_clock_and_no_row_moves_them(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    topology = declared(
        lambda row, stores: [{"now": stores["s"].stream_time, "time": stores.time}],
        SEEN["key_value"],
        schema="now long, time long",
    )
    output = pa.schema([("now", pa.int64()), ("time", pa.int64())])
    rows = pa.Table.from_pylist([{"k": "a", "t": ts} for ts in (50, 300)])
    with hs.open(tmp_path / "s") as state:
        runner = TopologyProgram(topology, clocked=True).open(state.group)
        # rows see the watermark of the batch before
        for late, clock, now in ((-1, -1, -1), (-1, 120, -1), (120, 130, 120), (110, 110, 130)):
            answer = runner.process(rows, output, Watermark(late, clock)).to_pylist()
            assert answer == [{"now": now, "time": 50}, {"now": now, "time": 300}]


def test_what_time_alone_makes_due_leaves_a_buffer_with_the_next_call() -> None:
    def hold(row: dict[str, Any], stores: Any) -> Iterator[dict[str, Any]]:
        if row["put"]:
            for key, value, _ in stores["s"].put(row["k"], row["t"], stores.time):
                yield {"left": key, "value": value}

    topology = declared(hold, SEEN["suppression"])
    rows = [{"k": "a", "t": 5, "put": True}, {"k": "b", "t": 200, "put": False}, {"k": "b", "t": 150, "put": True}]
    assert list(topology.run(rows, commit_rows=1)) == [{"left": "a", "value": 5}]


def test_a_store_that_is_not_declared_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="store 'nope' is not declared: found s"):
        list(declared(lambda row, stores: stores["nope"], SEEN["window"]).run([{"k": "a", "t": 1}]))
    with pytest.raises(KeyError, match="store 'nope' is not declared: found no stores"):
        list(declared(lambda row, stores: stores["nope"]).run([{"k": "a", "t": 1}]))


def test_a_datetime_in_place_of_a_time_is_told_where_the_time_is() -> None:
    topology = declared(lambda row, stores: stores["s"].put("k", 1, ts=row["t"]), SEEN["key_value"])
    with pytest.raises(TypeError, match=r"found datetime, expected int .*in process: stores.time"):
        list(topology.run([{"k": "a", "t": datetime(2026, 1, 1)}]))


@pytest.mark.parametrize("step", ["map", "filter", "process"])
def test_an_error_of_the_users_code_names_the_row(step: str) -> None:
    def fail(row: dict[str, Any], stores: Any = None) -> Any:
        return 1 // row["n"]

    begun = hs.stream(key="k", timestamp="t")
    counted = {"n": hs.Count()}
    topology = {
        "map": begun.map(fail).windowed_by(hs.TumblingWindows(5)).aggregate(**counted),
        "filter": begun.filter(fail).windowed_by(hs.TumblingWindows(5)).aggregate(**counted),
        "process": begun.process(fail),
    }[step]
    rows = [{"k": "a", "t": 7, "n": 0}]
    with pytest.raises(ZeroDivisionError) as raised:
        list(topology.run(rows))
    assert raised.value.__notes__[0].startswith(step)
    assert str(rows[0]) in raised.value.__notes__[0]
