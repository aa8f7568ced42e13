"""Rows of a state that the stores of a topology cannot take as they are."""

from __future__ import annotations

from typing import Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")

import pyarrow as pa

from hybridstore.importing.buffers import Part
from hybridstore.importing.loading import END, START, STORE, Aggregates, StoredRows
from hybridstore.spark.contract import Batch
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup
from recovery.runs import Claim

BATCH = Batch(0, "query", "run", 0, 0, 0, Claim("run", 1, ()), 1)


def load(windows: Any, rows: list[tuple[Any, ...]]) -> int:
    """Put rows of key, start, end and count into the stores of a topology."""
    stream = hs.stream(key="k", timestamp="t", null_keys="group")
    counted: Any = stream if windows is None else stream.windowed_by(windows)
    topology = counted.aggregate(n=hs.Count(), emit="commit")
    plan = TopologyProgram(topology.complete()).plan
    keys, starts, ends, counts = zip(*rows, strict=True)
    columns: dict[str, Any] = {"k": pa.array(keys, pa.string()), "v0": pa.array(counts, pa.int64())}
    for name, times in ((START, starts), (END, ends)):
        if windows is not None and any(times):
            columns[name] = pa.array(times, pa.int64())
    loader = Aggregates(plan, False, [Part("count", 0, 1)], ["v0"])
    return loader.load(StoreGroup(lambda body: None), pa.table(columns), BATCH)


MINUTE = hs.TumblingWindows("1 minute")
HOPPING = hs.HoppingWindows("1 minute", "20 seconds")


def test_windows_of_the_topology_are_taken() -> None:
    assert load(None, [("a", None, None, 1), (None, None, None, 2)]) == 2
    assert load(MINUTE, [("a", 60_000, 120_000, 1), ("a", 120_000, 180_000, 2), ("b", 60_000, None, 1)]) == 3
    assert load(HOPPING, [("a", 20_000, 80_000, 1), ("a", 40_000, 100_000, 2)]) == 2
    assert load(hs.TumblingWindows("1 minute", align_to="15 s"), [("a", 75_000, 135_000, 1)]) == 1
    assert load(hs.TumblingWindows("1 day", time_zone="Europe/Berlin"), [("a", 82_800_000, 169_200_000, 1)]) == 1


@pytest.mark.parametrize(
    ("windows", "start", "end", "sentence"),
    [
        (MINUTE, 60_000, 90_000, "window 60000 to 90000 .*expected windows of TumblingWindows"),
        (MINUTE, 75_000, 135_000, "window 75000 to 135000 .*align_to"),
        (MINUTE, 75_000, None, "window 75000 "),
        (HOPPING, 30_000, 90_000, "window 30000 to 90000 .*expected windows of HoppingWindows"),
        (hs.TumblingWindows("1 day", time_zone="Europe/Berlin"), 86_400_000, None, "window 86400000 "),
    ],
)
def test_windows_of_another_size_or_alignment_are_refused(windows: Any, start: int, end: Any, sentence: str) -> None:
    with pytest.raises(hs.ImportRefusedError, match=sentence):
        load(windows, [("a", start, end, 1), ("b", 60_000, 120_000, 1)])


def test_a_window_without_a_start_is_refused() -> None:
    with pytest.raises(hs.ImportRefusedError, match="window None "):
        load(MINUTE, [("a", None, None, 1), ("b", 60_000, None, 1)])


def test_a_second_row_of_a_key_is_refused_and_not_put_over_the_first() -> None:
    with pytest.raises(hs.ImportRefusedError, match='key "a": found 2 rows of one key and window, expected one'):
        load(None, [("a", None, None, 1), ("b", None, None, 1), ("a", None, None, 2)])
    with pytest.raises(hs.ImportRefusedError, match='key "a": found 2 rows'):
        load(MINUTE, [("a", 60_000, None, 1), ("a", 60_000, None, 2)])


@pytest.mark.parametrize(
    ("store", "times", "taken"),
    [
        (hs.key_value_store("s"), [None, None], False),
        (hs.key_value_store("s", ttl="1 day"), [1000, 2000], False),
        (hs.window_store("s", retention="1 day"), [1000, 1000], False),
        (hs.window_store("s", retention="1 day"), [1000, 2000], True),
        (hs.window_store("s", retention="1 day", retain_duplicates=True), [1000, 1000], True),
    ],
)
def test_two_rows_of_one_key_do_not_begin_a_store_of_process(store: Any, times: list[Any], taken: bool) -> None:
    topology = hs.stream(key="k", timestamp="t").process(lambda row, stores: [], "k string", stores=[store])
    columns = {"k": ["a", "a"], STORE: ["s", "s"], "s0": [1, 2]}
    table = pa.table({**columns, START: pa.array(times, pa.int64())})
    loader = StoredRows(TopologyProgram(topology.complete()).plan, False, ["s"])
    group = StoreGroup(lambda body: None)
    if taken:
        assert loader.load(group, table, BATCH) == 2
        return
    with pytest.raises(hs.ImportRefusedError, match="key a: found 2 rows of one key"):
        loader.load(group, table, BATCH)
