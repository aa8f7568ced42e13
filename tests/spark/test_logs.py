"""The query's own logs and the state's folders, changed by hand: between two runs of a query, and between two batches
of one.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException

import hybridstore as hs
from hybridstore.spark.reading import open_version, shards
from tests.conftest import STRESS
from tests.tools.spark_jobs import Job, Source, count, expected, failure, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BATCHES = 4


def batch_rows(number: int) -> list[dict[str, Any]]:
    return [row(f"k{i}", number * 10 + i) for i in range(6)]


@pytest.fixture
def source(tmp_path: Path, spark: "SparkSession") -> Source:
    batches = Source(tmp_path / "in", spark)
    for number in range(BATCHES):
        batches.add(*batch_rows(number))
    return batches


def forget(checkpoint: Path, log: str, first: int) -> None:
    """Remove the entries of a log from batch `first` on."""
    for number in range(first, BATCHES):
        (checkpoint / log / str(number)).unlink(missing_ok=True)
        (checkpoint / log / f".{number}.crc").unlink(missing_ok=True)


def turned_back(checkpoint: Path) -> None:
    forget(checkpoint, "commits", 2)
    forget(checkpoint, "offsets", 2)


def turned_back_to_the_start(checkpoint: Path) -> None:
    forget(checkpoint, "commits", 0)
    forget(checkpoint, "offsets", 0)


def commits_deleted(checkpoint: Path) -> None:
    forget(checkpoint, "commits", 0)


def last_commit_deleted(checkpoint: Path) -> None:
    forget(checkpoint, "commits", BATCHES - 1)


@pytest.mark.parametrize("change", [turned_back, turned_back_to_the_start, commits_deleted, last_commit_deleted])
def test_logs_that_were_turned_back_or_deleted_count_every_row_once(
    tmp_path: Path, source: Source, change: Callable[[Path], None]
) -> None:
    job = Job(tmp_path)
    job.run(count(source.stream(), job, shards=2))
    change(job.checkpoint)
    source.add(*batch_rows(BATCHES))
    job.rows.clear()
    job.run(count(source.stream(), job, shards=2))
    # files that were planned before are one batch now
    assert job.rows[max(job.rows)] == expected(source.batches)[BATCHES]


def test_offsets_of_other_content_give_the_state_of_the_rows_that_came(tmp_path: Path, source: Source) -> None:
    """The last batch is planned anew, over another file: the state takes its rows and no others."""
    job = Job(tmp_path)
    job.run(count(source.stream(), job, shards=2))
    last = BATCHES - 1
    for log in ("commits", "offsets"):
        forget(job.checkpoint, log, last)
    for path in (job.checkpoint / "sources" / "0").glob(f"*{last}*"):
        path.unlink()
    other = [row(f"k{i}", 1000) for i in range(3)]
    source.batches.pop()
    source.add(*other)
    source.add(*batch_rows(last))
    job.run(count(source.stream(), job, shards=2))
    assert job.rows == expected(source.batches)


def test_offsets_that_are_ahead_of_the_state_are_refused(tmp_path: Path, source: Source) -> None:
    job = Job(tmp_path)
    job.run(count(source.stream(), job, shards=2))
    kept = tmp_path / "kept"
    shutil.copytree(job.checkpoint / "hybridstore", kept)
    source.add(*batch_rows(BATCHES))
    job.run(count(source.stream(), job, shards=2))
    shutil.rmtree(job.checkpoint / "hybridstore")
    shutil.copytree(kept, job.checkpoint / "hybridstore")
    source.add(*batch_rows(BATCHES + 1))
    assert f"version {BATCHES + 1} was never written" in failure(lambda: job.run(count(source.stream(), job, shards=2)))


def without_a_shard(operator: Path) -> None:
    shutil.rmtree(operator / "000000/000001")


def without_the_newest_object(operator: Path) -> None:
    max((operator / "000000/000001/log").iterdir()).unlink()


def without_the_oldest_object(operator: Path) -> None:
    min((operator / "000000/000001/log").iterdir()).unlink()


def without_runs(operator: Path) -> None:
    shutil.rmtree(operator / "runs")


def without_the_operator(operator: Path) -> None:
    shutil.rmtree(operator)


# what is lost, and what the error names
LOSSES: list[tuple[Callable[[Path], None], str]] = [
    (without_a_shard, r"found no object of shard|was never written|is missing, though"),
    (without_the_newest_object, r"was never written, or its object is lost|is missing, though"),
    (without_the_oldest_object, r"is missing, though"),
    (without_runs, r"found no run, expected one|was never written|found no object of shard"),
    # a worker that has its shard in memory may have written a version more before another one looks, or may itself be
    # the one that looks, for what came after its version
    (
        without_the_operator,
        r"no operator's state found|found no run, expected one|found no object of shard|is missing, though"
        r"|was never written, or its object is lost",
    ),
]


# and whether the shard still gets rows; where it gets none one loss stands for all but in `make stress`
CASES = [
    (loss, named, has_rows)
    for has_rows in (True, False)
    for loss, named in LOSSES
    if has_rows or STRESS or loss is without_the_newest_object
]
NAMES = [f"{loss.__name__}-{'rows' if has_rows else 'no rows'}" for loss, _, has_rows in CASES]


@pytest.mark.stress
@pytest.mark.parametrize(("loss", "named", "has_rows"), CASES, ids=NAMES)
def test_a_part_of_the_state_that_is_removed_between_two_batches_is_named_by_whoever_reads_it(
    tmp_path: Path, source: Source, loss: Callable[[Path], None], named: str, has_rows: bool
) -> None:
    """A worker that has the shard in memory reads nothing, and goes on; one that has not ends the query and says
    why.
    """
    if not has_rows:
        # the shard gets no row any more
        for number, batch in enumerate(source.batches[2:], 2):
            batch.clear()
            (source.folder / f"{number:05d}.json").write_text("")
    job = Job(tmp_path)

    def lose(df: Any) -> list[Any]:
        answer = df.collect()
        if len(list(job.results.iterdir())) == 1:
            loss(job.checkpoint / "hybridstore" / "op")
        return list(answer)

    right = expected(source.batches)
    ended = ""
    try:
        job.run(count(source.stream(), job, shards=2), action=lose)
    except PySparkException as error:
        ended = str(error)
    assert not ended or re.search(named, ended), ended
    assert job.rows == {number: right[number] for number in job.rows}
    assert len(job.rows) >= 2
    if loss is without_the_newest_object:
        versions = [state.version for state in shards(job.checkpoint, "op")]
        if min(versions) == 1:
            # no object stands behind the lost object: the line of the shard is whole, but shorter than the other
            # shard's
            assert ended
            assert max(versions) > 1
            return
    with pytest.raises(hs.HybridStoreError, match=named):
        [open_version(state, state.version) for state in shards(job.checkpoint, "op")]
