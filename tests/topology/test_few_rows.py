"""Small batches of Arrow go row by row, where by column the preparation of the columns costs more than the rows."""

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.topology import aggregating
from hybridstore.topology.columns.why import Why
from tests.tools.ways import shard_run

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("windows", [hs.TumblingWindows(10), hs.HoppingWindows(10, 5), hs.SlidingWindows(10)])
@pytest.mark.parametrize("emit", ["record", "commit"])
def test_few_rows_go_row_by_row_with_the_results_of_columns(
    windows: Any, emit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = hs.stream(key="user", timestamp="time").windowed_by(windows)
    topology = counts.aggregate(emit=emit, n=hs.Count(), total=hs.Sum("n"))
    batches = [
        pa.table({"user": ["a", "b"] * 3, "time": [first + i for i in range(6)], "n": [1] * 6}) for first in (0, 7)
    ]
    answers = []
    for bound, why in ((7, Why.FEW_ROWS), (6, None)):
        monkeypatch.setattr(aggregating, "_FEW_ROWS", bound)
        with topology.open(tmp_path / f"{bound}") as engine:
            answer = []
            for batch in batches:
                answer.append(engine.process_batch(0, engine.split_batch(batch, 0)[0]))
                assert shard_run(engine).why is why
                engine.commit()
            answers.append((answer, engine.states[0].digest))
            assert engine.by_row == ({} if why is None else {str(why): 2})
    assert answers[0] == answers[1]
    assert answers[0][0][1]
