"""What the tests of running queries share."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SEED, STRESS
from tests.tools.recorded import INPUTS, SparksRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.tools.spark_jobs import Job, Source

# in `make stress` all that is recorded, and what is not
_OF_A_RUN = (*range(INPUTS), None) if STRESS else (SEED % INPUTS,)
_INPUTS = [
    pytest.param(
        number, id="drawn" if number is None else f"{number}" if STRESS else "recorded", marks=pytest.mark.stress
    )
    for number in _OF_A_RUN
]


@pytest.fixture(params=_INPUTS)
def sparks(request: pytest.FixtureRequest, seed: int) -> SparksRows:
    """The rows of Spark's own operators for an input of this test."""
    return SparksRows(request.node.originalname, request.param, seed)


@pytest.fixture
def source(tmp_path: Path, spark: "SparkSession") -> "Source":
    """An input without a batch."""
    from tests.tools.spark_jobs import Source

    return Source(tmp_path / "in", spark)


@pytest.fixture
def named_sources(spark: "SparkSession") -> Iterator[None]:
    """The setting by which each source of a query has a name."""
    from hybridstore.spark.query_log import NAMED

    spark.conf.set(NAMED, "true")
    yield
    spark.conf.unset(NAMED)


@pytest.fixture
def one_partition(spark: "SparkSession") -> Iterator[None]:
    """One partition for what Spark shuffles: its own operators beside ours take most of a comparison's time, and half
    of that for the second partition. Ours has the shards that it is asked for.
    """
    name = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "1")
    yield
    spark.conf.set(name, before)


@pytest.fixture
def job(tmp_path: Path) -> "Job":
    """A job that has not run."""
    from tests.tools.spark_jobs import Job

    return Job(tmp_path)
