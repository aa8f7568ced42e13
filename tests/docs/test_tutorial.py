"""docs/tutorial.md shows what its code prints; its job runs in the Spark session of the tests."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.pages import shows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_tutorial_shows_what_its_code_prints(spark: "SparkSession", workplace: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
    shows(page, workplace, inside=["spark_job.py"])
