"""Results come to Spark in bounded frames, and those of windows that close are never all objects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.spark import program, task_numbers
from hybridstore.spark.program import TopologyProgram
from hybridstore.spark.task_numbers import NUMBERS, noted, with_numbers
from hybridstore.stores.cold_blocks import SPARING, ColdBlock
from hybridstore.topology.results import Results
from recovery.block import Columns
from tests.tools.hooks import force_cold
from tests.tools.vector_runner import SMALL
from tests.tools.ways import aggregating

pa = pytest.importorskip("pyarrow")

WINDOWS: dict[str, Any] = {
    "tumbling": hs.TumblingWindows(10, grace=1),
    "hopping": hs.HoppingWindows(10, 5, grace=1),
    "sessions": hs.SessionWindows(4, grace=1),
}


def topology_of(windows: str, extra: str) -> hs.Topology:
    counts = hs.stream(key="k", timestamp="t").windowed_by(WINDOWS[windows]).aggregate(emit="close", n=hs.Count())
    return counts if extra == "plain" else counts.late("late") if extra == "late" else counts.errors("error")


@pytest.mark.parametrize("clocked", [False, True])
@pytest.mark.parametrize("extra", ["plain", "late", "errors"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_pieces_of_a_batch_are_the_results_at_once(
    windows: str, extra: str, clocked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [
        [{"k": "abcdefg"[i % 7], "t": i} for i in range(60)],
        [{"k": "a", "t": 0}, *({"k": "hijk"[i % 4], "t": i} for i in range(60, 90))],
        [{"k": "z", "t": 200}],
    ]
    topology = TopologyProgram(topology_of(windows, extra), clocked=clocked, event_time=None)
    schema = pa.schema([("k", pa.string()), ("t", pa.int64())])
    output = topology.output_schema(schema)
    answers = []
    for rows in (10_000, 3):
        monkeypatch.setattr(program, "FRAME_ROWS", rows)
        with hs.open(tmp_path / str(rows)) as state:
            runner = topology.open(state.group)
            answer = []
            for number, batch in enumerate(batches):
                clock = Watermark(60 * number - 1, 60 * number + 50) if clocked else None
                answer.append(runner.process(pa.Table.from_pylist(batch, schema=schema), output, clock))
                assert answer[-1].schema == output
                state.commit()
            answers.append(answer)
    assert [table.to_pylist() for table in answers[0]] == [table.to_pylist() for table in answers[1]]
    closed = answers[1][1].column("n")
    assert closed.num_chunks > 1
    assert max(map(len, closed.chunks)) <= 3


def test_the_first_results_are_a_table_before_all_windows_that_closed_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ColdBlock] = []
    counts: list[tuple[int, int]] = []
    columns, take = ColdBlock.columns, program._ArrowPieces.take

    def take_and_note(pieces: Any, piece: Results) -> None:
        take(pieces, piece)
        counts.append((len(read), pieces.tables[-1].num_rows))

    def columns_and_note(block: ColdBlock) -> Columns:
        read.append(block)
        return columns(block)

    topology = TopologyProgram(topology_of("tumbling", "plain"))
    schema = pa.schema([("k", pa.string()), ("t", pa.int64())])
    monkeypatch.setattr(program, "FRAME_ROWS", 512)
    with hs.open(tmp_path, durability="os", _tuning=SMALL) as state:
        runner = topology.open(state.group)
        output = topology.output_schema(schema)
        runner.process(pa.table({"k": [f"{i:04}" for i in range(2000)], "t": [0] * 2000}), output)
        force_cold(state)
        for name, value in (("on", True), ("piece", 1), ("room", 0)):
            monkeypatch.setattr(SPARING, name, value)
        monkeypatch.setattr(ColdBlock, "columns", columns_and_note)
        monkeypatch.setattr(program._ArrowPieces, "take", take_and_note)
        results = runner.process(pa.table({"k": ["last"], "t": [29]}), output)
        assert [rows for _, rows in counts] == [512, 512, 512, 464]
        assert counts[0][0] < counts[-1][0] / 2
        assert results.column("k").to_pylist() == [f"{i:04}" for i in range(2000)]
        assert aggregating(runner).windowed.taker is None


def test_a_frame_has_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_numbers, "FRAME_ROWS", 2)
    table = noted(pa.table({"n": range(5)}), dict.fromkeys(NUMBERS[1:], 0))
    frames: Iterator[Any] = with_numbers([table])
    assert [frame.num_rows for frame in frames] == [2, 2, 1, 1]
