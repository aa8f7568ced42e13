"""A real query with Spark's file sink goes back by `hybridstore rewind`: its rows are those of one that never did. A
query is forked, and a key of it is erased.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import hybridstore as hs
from changelog.codec import pack
from hybridstore import cli
from hybridstore import spark as hsp
from tests.conftest import STRESS
from tests.tools.spark_jobs import Job, Source, row
from tests.tools.spark_programs import Numbering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 6


def rows_of(number: int) -> list[dict[str, Any]]:
    """The rows of a file: each key has the same value in all of them, so that the order of files changes nothing."""
    return [row(f"k{i}", i) for i in range(12) for _ in range(1 + (i + number) % 3)]


def run(job: Job, source: Source) -> Counter[tuple[Any, ...]]:
    """Run to the end of the files, and return what the sink's log names."""
    numbered = hsp.apply_program(source.stream(), Numbering(), name="op", location=str(job.checkpoint), shards=2)
    job.rows.clear()
    job.run(numbered, sink=True)
    return Counter(row for batch in job.rows.values() for row in batch)


def expected(files: int) -> Counter[tuple[Any, ...]]:
    counts: Counter[str] = Counter()
    for number in range(files):
        counts.update(each["k"] for each in rows_of(number))
    return Counter((k, n, n * int(k[1:])) for k, most in counts.items() for n in range(1, most + 1))


def turn_back_sink(job: Job, batch: int) -> None:
    """Take the later batches out of the file sink's log, as docs/operating.md says."""
    log = job.checkpoint.with_name("files") / "_spark_metadata"
    for path in [path for path in log.iterdir() if path.name.isdecimal() and int(path.name) >= batch]:
        path.unlink()
        (log / f".{path.name}.crc").unlink(missing_ok=True)


def test_a_query_that_went_back_has_the_rows_of_one_that_never_did(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, job = Source(tmp_path / "in", spark), Job(tmp_path)
    for number in range(BATCHES):
        source.add(*rows_of(number))
    assert run(job, source) == expected(BATCHES)
    for turn, version in enumerate((4, 1, 0) if STRESS else (1, 0), 1):
        rewind = ["rewind", str(job.checkpoint), "--to", str(version), "--stopped", "--write"]
        assert cli.run(rewind) == 0, capsys.readouterr().err
        turn_back_sink(job, version)
        # one more file each time: its rows come behind those that are done again
        source.add(*rows_of(BATCHES + turn - 1))
        assert run(job, source) == expected(BATCHES + turn)
    # a start without new files changes nothing
    assert run(job, source) == expected(BATCHES + turn)


def files_with_k3(job: Job) -> list[Path]:
    """Return the files with the key as it is packed: the two letters alone are in one of a hundred files by chance."""
    files = [path for path in (job.checkpoint / "hybridstore").rglob("*") if path.is_file()]
    return [path for path in files if pack("k3") in path.read_bytes()]


def test_a_query_is_forked_and_a_key_of_it_is_erased(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "fork").mkdir()
    source, job, fork = Source(tmp_path / "in", spark), Job(tmp_path), Job(tmp_path / "fork")
    for number in range(BATCHES):
        source.add(*rows_of(number))
    run(job, source)
    hs.fork(job.checkpoint, fork.checkpoint, at=BATCHES - 2)
    assert files_with_k3(job)
    assert hs.erase(job.checkpoint, "k3", forks="leave", stopped=True).records == 1
    assert not files_with_k3(job)
    # the fork does the batches behind its version, into a sink of its own
    assert run(fork, source) == expected(BATCHES) - expected(BATCHES - 2)
    for number in range(BATCHES, BATCHES + 2):
        source.add(*rows_of(number))
    rows, before = run(job, source), expected(BATCHES)
    later = Counter(each["k"] for number in (BATCHES, BATCHES + 1) for each in rows_of(number))["k3"]
    anew = Counter(("k3", n, n * 3) for n in range(1, later + 1))
    others = {each: n for each, n in expected(BATCHES + 2).items() if each[0] != "k3"}
    assert rows == Counter(others) + Counter({each: n for each, n in before.items() if each[0] == "k3"}) + anew
    assert run(fork, source) == expected(BATCHES + 2) - expected(BATCHES - 2)
