"""Spark's engines as suites of benchmarks/, on tiny sizes."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from benchmarks.measure.result import Target
from benchmarks.measure.watched import anonymous_bytes
from benchmarks.suites import spark as bench_spark
from benchmarks.suites import spark_suite
from benchmarks.suites.spark import batches_of, is_warm, target


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.stress
def test_sparks_engines_are_a_suite(tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("queries of two engines over a warm Java: make stress")
    result = spark_suite.batches(tmp_path, "tumbling", 50, ["hybridstore", "native"], rows=1000, count=3)
    ours, native = result.lines[:2]
    inside = [each for each in result.lines if each.name.startswith("  of ours")]
    assert result.notes == []
    assert (ours.ratio, native.against) == (None, "ours")
    # the parts are whole milliseconds, which a short run may not reach
    assert min(each.value for each in result.lines if each not in inside) > 0
    assert min(each.value for each in inside) >= 0
    assert [each.name.split(",")[1] for each in inside] == [" read", " process", " commit"]
    assert result.notes == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.stress
def test_restarts_of_sparks_engines_are_a_suite(tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("each engine takes two Javas: make stress")
    peers = {"rocksdb-changelog": "Spark's own operator, RocksDB with changelog"}
    result = spark_suite.restarts(tmp_path, 2000, ["hybridstore", *peers], rounds=1)
    load = result.find("hybridstore: loading the version, in the first batch, the slower shard")
    assert load.target == Target(50, "value")
    assert {each.name.partition(":")[0] for each in result.lines} == {"hybridstore", *peers.values()}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_an_engine_that_takes_too_long_is_left_out_by_name(tmp_path: Path) -> None:
    results, left_out = bench_spark.compare(tmp_path, "count", 10, 100, 1, ["tws-pandas"], 1, timeout=0.01)
    assert results == {}
    assert left_out == ["count, 10 keys: tws-pandas: not done after 0.01 s"]


def test_targets_of_sparks_engines_are_those_of_large_batches() -> None:
    assert target("count", 10_000, 100_000, "tws-pandas") == 20
    assert target("count", 100_000, 100_000, "tws-pandas") == 50
    assert target("sliding", 100_000, 100_000, "native") == 4
    assert target("sliding", 100_000, 5000, "native") is None
    assert target("count", 10_000, 1000, "native-changelog") == 1
    assert target("tumbling", 10_000, 100_000, "native") is None
    assert batches_of("tws-pandas", 10, 100_000, 100_000) == 3
    assert batches_of("tws-pandas", 10, 10_000, 1000) == 10
    assert batches_of("hybridstore", 10, 100_000, 100_000) == 10


def test_both_pandas_doors_are_warm_after_the_same_time() -> None:
    for engine in ("hybridstore-pandas", "tws-pandas"):
        assert [is_warm(engine, [2000.0] * count, 30) for count in (0, 3, 14, 15)] == [False, False, False, True]
        assert [is_warm(engine, [12_000.0] * count, 8) for count in (2, 3)] == [False, True]
        # some are timed, however short they are
        assert [is_warm(engine, [10.0] * count, 10) for count in (5, 6)] == [False, True]
        # batches that are few and long are timed but for the first
        assert [is_warm(engine, [100_000.0] * count, 3) for count in (0, 1)] == [False, True]
    assert [is_warm("hybridstore", [10.0] * count, 10) for count in (2, 3)] == [False, True]
    assert is_warm("tws-pandas", [], 1)


def test_our_pandas_doors_are_warm_when_holders_have_the_shards() -> None:
    for engine, expected in (("hybridstore-pandas", [False, False, True]), ("tws-pandas", [True] * 3)):
        assert [is_warm(engine, [12_000.0] * 5, 30, count) for count in range(3)] == expected
    # a query that never gives its shards to holders
    assert is_warm("hybridstore-apws", [12_000.0] * 26, 30, 0)


def test_the_memory_of_other_processes_of_the_session_is_read_from_outside() -> None:
    program = "import sys; data = bytearray(b'x') * (50 << 20); print('filled', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    memory = bench_spark.PythonMemory()
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"filled\n"
        assert process.pid in bench_spark.python_processes()
        assert anonymous_bytes(process.pid) > 50 << 20
        memory.look()
    assert memory.highest > 50 << 20


def test_shards_of_an_engine_with_a_limit_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.suites import spark_queries

    monkeypatch.setattr(spark_queries, "hybridstore", lambda *asked: asked)
    several, few = spark_queries.SHARDS_OF_LIMITED, spark_queries.SHARDS
    for engine, limit, asked in (
        ("hybridstore", None, ("auto", 9, 7, None, few)),
        ("hybridstore-worker", 1000, ("worker", 9, 7, None, several)),
        ("hybridstore-worker-limited", 1000, ("worker", 9, 7, 1000, several)),
        ("hybridstore-holder-limited", 1000, ("holder", 9, 7, 1000, several)),
    ):
        assert spark_queries.plan(None, engine, "count", "place", 9, 7, limit) == (None, "count", "place", *asked)


def test_an_engine_says_how_it_went_on_its_last_line_or_why_not() -> None:
    command = [sys.executable, "-c", "import sys; print('warm'); print({}); sys.exit(*sys.argv[1:])"]
    assert bench_spark.spark_process(command, "bare", 600) == {}
    with pytest.raises(RuntimeError, match="bare: no Java"):
        bench_spark.spark_process([*command, "no Java"], "bare", 600)
