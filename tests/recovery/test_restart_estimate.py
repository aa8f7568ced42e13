"""The benchmark of the estimate: it has every kind of store by rows and by columns, and checks what it counts against
the changelog.
"""

from pathlib import Path

import pytest

from benchmarks.suites import restart_estimate as estimate
from hybridstore.stores.kinds import KINDS


def test_every_kind_of_store_is_there_by_rows_and_by_columns() -> None:
    names = estimate.cases()
    assert {f"{kind}: {way}" for kind in KINDS for way in ("rows", "columns")} <= names.keys()


@pytest.mark.parametrize("name", [*estimate.cases(), "topology"])
def test_what_is_predicted_is_counted_record_by_record(name: str, tmp_path: Path) -> None:
    estimate.fill(tmp_path / "state", name, 3000)
    answer = estimate.reopen(str(tmp_path / "state"))
    assert answer["records"] >= 3000
    assert answer["predicted"] > 0
    assert sum(estimate.counted(tmp_path / "state").values()) == answer["records"]


def test_a_figure_of_each_case_comes_with_its_prediction(tmp_path: Path) -> None:
    result = estimate.measure(tmp_path, [2000], runs=1, wanted="sliding: columns")
    (entry,) = result.lines
    assert entry.name == "sliding: columns: 2,000"
    assert entry.against == "predicted"
    assert entry.ratio
    assert "of 1 within 2x" in result.notes[0]
    assert list(tmp_path.iterdir()) == []
