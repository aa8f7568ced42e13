"""What is known of cold blocks counts as part of a limit of memory: about what it takes, of layers, too."""

import gc
import tracemalloc
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.state.memory_budget import TABLES_SHARE
from hybridstore.stores.sizes import BLOCK_BYTES, LAYER_BYTES, TABLE_BYTES, cold_bytes
from recovery.pack import LARGE, SMALL, MappedPack
from tests.tools.hooks import crash

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
BLOCKS = 4


@pytest.mark.parametrize("layers", [0, 1, 6])
def test_the_open_tables_of_blocks_and_layers_are_estimated_by_their_sizes(tmp_path: Path, layers: int) -> None:
    def opened() -> hs.State:
        return hs.open(tmp_path / "s", durability="os", memory_limit=1 << 40, checkpoints=NEVER)

    records = BLOCKS * 4096
    with opened() as state:
        store = state.key_value("k")
        store.put_many((f"key{i:06d}", b"%040d" % i) for i in range(records))
        for layer in range(layers + 1):
            state.commit()
            state.checkpoint(wait=True)
            for i in range(layer, records, records // 60):
                store[f"key{i:06d}"] = b"%040d" % layer
        crash(state)
    with opened() as state:
        store = state.key_value("k")
        bucket = store._bucket
        assert store.get("key000000x") is None
        before = cold_bytes(bucket.cold)
        tracemalloc.start()
        for i in range(0, records, 256):
            assert store.get(f"key{i:06d}x") is None  # opens the tables, and brings no record
        gc.collect()  # from Python 3.14 on, numbers that nobody has any more are kept until then
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert sum(block.tables for block in bucket.cold) == len(bucket.cold) * (1 + layers)
        # an index says which layers may have a key
        assert all((block.layer_bytes > 0) == (layers > 0) for block in bucket.cold)
        estimated = cold_bytes(bucket.cold) - before
        assert 0.7 * taken < estimated < 1.6 * taken, (taken, estimated)


def test_cold_blocks_and_long_keys_are_counted(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("k").put_many((f"{i:05}", i) for i in range(5000))
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path) as state:
        store = state.key_value("k")
        before = store.bytes_in_memory
        assert before >= BLOCK_BYTES * store.cold_blocks > 0
        store.put_many((f"{i:01000}", i) for i in range(50))
        assert store.bytes_in_memory - before > 50 * 1000


def test_a_table_that_two_readers_keep_counts_once(tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(b"pack")
    before = SMALL.tables
    with (tmp_path / "pack").open("rb") as file:
        mapped = MappedPack(file.fileno(), 4)
    for table in ("first", "second"):
        mapped.keep(0, 4, table)
    assert (mapped.table(0, 4), SMALL.tables) == ("first", before + 1)
    del mapped
    assert SMALL.tables == before


def test_open_tables_may_take_a_part_of_the_limit(tmp_path: Path) -> None:
    before = LARGE.most, SMALL.most
    with hs.open(tmp_path / "large", memory_limit=1 << 30):
        assert LARGE.most == (1 << 30) // TABLES_SHARE // TABLE_BYTES > before[0]
        assert SMALL.most == (1 << 30) // TABLES_SHARE // LAYER_BYTES > before[1]
        with hs.open(tmp_path / "small", memory_limit=1 << 20):
            # a small limit has no room for as many as are kept without a limit
            assert LARGE.most == (1 << 20) // TABLES_SHARE // TABLE_BYTES < before[0]
            assert SMALL.most == (1 << 20) // TABLES_SHARE // LAYER_BYTES < before[1]
    assert (LARGE.most, SMALL.most) == before
