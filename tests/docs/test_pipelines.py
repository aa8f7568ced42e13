"""docs/pipelines.md: the pipeline of the page, run twice by Spark's own command, goes on from its state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyarrow import parquet

from tests.conftest import ROOT
from tests.tools.pages import blocks


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.stress
def test_the_pipeline_of_the_page_goes_on_from_its_state(tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("two runs of a pipeline start Spark twice: make stress")
    pyspark = pytest.importorskip("pyspark", minversion="4.2")
    home = Path(pyspark.__file__).parent
    spec, program = (
        block.text.replace("/data", str(tmp_path))
        for block in blocks((ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8"))
        if block.kind in ("yaml", "python")
    )
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "counted.py").write_text(program)
    (tmp_path / "clicks").mkdir()
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Spark's script starts the `python3` of PATH
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": places, "PATH": path}
    command = [str(home / "bin" / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    for number, users in enumerate((["ann", "bob", "ann"], ["ann"])):
        clicks = [f'{{"user": "{user}", "time": "2026-01-01T00:00:0{number}Z"}}\n' for user in users]
        (tmp_path / "clicks" / f"{number}.json").write_text("".join(clicks))
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert "Run is COMPLETED" in done.stdout + done.stderr
    files = (tmp_path / "spark-warehouse" / "counted").glob("*.parquet")
    rows = [tuple(row.values()) for path in files for row in parquet.read_table(path).to_pylist()]
    assert sorted(rows) == [("ann", 2), ("ann", 3), ("bob", 1)]
