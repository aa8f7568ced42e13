"""Arrow columns to numpy and Python and back: the same as pyarrow's own ways, without pandas."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridstore.topology.columns.buffers import array_of, numbers_of, taken_at, text_array, zero_of
from hybridstore.topology.times import arrow_list, arrow_times

ROOT = Path(__file__).resolve().parents[2]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
KINDS = [*(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64))]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


@st.composite
def columns(draw: st.DrawFn, kind: pa.DataType, values: st.SearchStrategy[Any]) -> Any:
    """Draw a column: an array, or several chunks, each a slice of an array."""
    chunks = []
    for part in draw(st.lists(st.lists(values, max_size=6), max_size=3)):
        array = pa.array(part, kind)
        start = draw(st.integers(0, len(part)))
        chunks.append(array.slice(start, draw(st.integers(0, len(part)))))
    return chunks[0] if len(chunks) == 1 and draw(st.booleans()) else pa.chunked_array(chunks, kind)


@pytest.mark.parametrize("kind", [*KINDS, *FLOATS], ids=str)
@given(st.data())
def test_numbers_are_those_of_pyarrow(kind: pa.DataType, data: st.DataObject) -> None:
    values = st.integers(0, 100) if kind in KINDS else st.sampled_from([-0.0, 0.5, float("inf"), float("nan")])
    column = data.draw(columns(kind, values))
    numbers = numbers_of(column)
    if len(column):
        assert numbers.dtype == column.to_numpy().dtype
    assert numbers.tolist() == pytest.approx(column.to_pylist(), rel=0, abs=0, nan_ok=True)
    back = array_of(numbers[::2]).to_pylist()
    assert back == pytest.approx(column.to_pylist()[::2], rel=0, abs=0, nan_ok=True)


@given(st.lists(TEXT))
def test_texts_become_a_sound_array(texts: list[str]) -> None:
    array = text_array(texts)
    array.validate(full=True)
    assert array.to_pylist() == texts == arrow_list(array)


@given(columns(pa.int64(), st.none() | st.integers(-5, 5)))
def test_a_column_with_nulls_is_listed_with_them(column: Any) -> None:
    assert arrow_list(column) == column.to_pylist()


def test_zero_is_of_its_type() -> None:
    for kind in (*KINDS, pa.float32(), pa.float64()):
        assert zero_of(kind) == pa.scalar(0, kind)


def test_rows_are_taken_in_any_order() -> None:
    table = pa.table({"a": pa.chunked_array([["x", "y"], ["z"]])})
    assert taken_at(table, [2, 0]).to_pylist() == [{"a": "z"}, {"a": "x"}]
    assert taken_at(table, []).num_rows == 0


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_is_rounded_down_and_none_before_the_epoch_is_taken(unit: str) -> None:
    kind, ticks = pa.timestamp(unit), {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    column = pa.array([0, 1, 3 * ticks + ticks // 2], pa.int64()).cast(kind)
    assert arrow_times(column, "t") == [0, 1000 // ticks, 3500 if ticks > 1 else 3000]
    with pytest.raises(ValueError, match="column 't': found -1000, " if ticks == 1 else "column 't': found -1, "):
        arrow_times(pa.array([5, -1], pa.int64()).cast(kind), "t")


WITHOUT_PANDAS = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import hybridstore as hs
from hybridstore.topology.columns.buffers import array_of, text_array

def batches(size, kind, scale):
    places = np.arange(size)
    numbers = array_of(places % 9)
    columns = {
        "k": text_array([f"key {i % 5} \xe9" for i in range(size)]),
        "v": numbers,
        "f": array_of(places % 4 / 4),
        "w": pc.if_else(array_of(places % 3).cast(pa.bool_()), numbers, pa.nulls(size, pa.int64())),
        "t": array_of(places * scale).cast(kind),
        "at": array_of(places),
    }
    return pa.table(columns).to_batches(max_chunksize=60)

sums = {"n": hs.Count(), "total": hs.Sum("v")}
more = sums | {"least": hs.Min("f"), "mean": hs.Mean("w")}
ways = [
    (hs.TumblingWindows(40), "commit", more),
    (hs.TumblingWindows(40), "close", more),
    (hs.TumblingWindows(40), "record", sums),
    (hs.HoppingWindows(40, 10), "commit", sums),
    (hs.SlidingWindows(60), "record", sums),
    (hs.SessionWindows(20), "commit", more),
]
count = 0
for place, (windows, emit, aggregates) in enumerate(ways):
    for key, null_keys in (("k", "skip"), (["k", "v"], "skip"), (["k", "w"], "group"), ("f", "skip")):
        stream = hs.stream(key=key, timestamp="t", null_keys=null_keys)
        topology = stream.windowed_by(windows).aggregate(emit=emit, **aggregates).late()
        for kind, scale in ((pa.int64(), 7), (pa.timestamp("us", "UTC"), 7000)):
            state = f"{sys.argv[1]}/{count}"
            rows = batches(200, kind, scale)
            assert list(topology.run(rows, state, shards=1 + count % 2, position="at")), (windows, key)
            count += 1
print(count, "pandas" in sys.modules)
"""


def test_a_process_that_takes_arrow_batches_does_not_load_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (answer.stdout.split(), answer.stderr) == (["48", "False"], "")
