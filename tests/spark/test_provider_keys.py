"""A `map` step on Spark: rows are in their shard already, so it may not move a key to another."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

import hybridstore as hs
from hybridstore.shards import shard_of
from hybridstore.spark.program import TopologyProgram, TopologyRunner
from tests.tools.shard_tools import provider

SHARDS = 4


def runner(root: Path, topology: hs.Topology, shards: int) -> TopologyRunner:
    runner = TopologyProgram(topology).open(provider(root).get_store(0).group)
    runner.begin(None, shard_of("a", SHARDS) % shards, shards, str(root))
    return runner


def rows() -> pa.Table:
    return pa.table({"k": ["a", "a"], "time": [1, 2]})


OUTPUT = pa.schema([("k", pa.string()), ("window_start", pa.int64()), ("window_end", pa.int64()), ("n", pa.int64())])


def counting(change: str) -> hs.Topology:
    mapped = hs.stream(key="k", timestamp="time").map(lambda row: row | {"k": change})
    return mapped.windowed_by(hs.TumblingWindows("1 second")).aggregate(n=hs.Count())


def test_a_map_that_changes_the_key_is_refused(tmp_path: Path) -> None:
    other = next(name for name in "bcdefgh" if shard_of(name, SHARDS) != shard_of("a", SHARDS))
    with pytest.raises(ValueError, match=rf"map: found key '{other}' of shard \d in shard \d, expected the key"):
        runner(tmp_path, counting(other), SHARDS).process(rows(), OUTPUT)


def test_a_map_that_keeps_the_key_is_not(tmp_path: Path) -> None:
    assert runner(tmp_path, counting("a"), SHARDS).process(rows(), OUTPUT).to_pydict()["n"] == [1, 2]


def test_with_one_shard_a_key_cannot_be_in_the_wrong_one(tmp_path: Path) -> None:
    assert runner(tmp_path, counting("z"), 1).process(rows(), OUTPUT).to_pydict()["k"] == ["z", "z"]
