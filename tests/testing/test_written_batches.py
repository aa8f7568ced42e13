"""The files that a query of a test reads: a column that the first row lacks is in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")

from hybridstore.spark.batches import write_batches  # noqa: E402


def test_rows_of_several_kinds_keep_their_columns(tmp_path: Path) -> None:
    parts: list[list[dict[str, int]]] = [[{"k": 1, "expires": 5}], [{"k": 2, "price": 7}, {"k": 3}], []]
    write_batches(tmp_path / "in", parts)
    written = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "in").iterdir())]
    empty = {"expires": None, "price": None}
    assert written == [[{**empty, **row} for row in part] for part in parts]
