"""Whether a backfill is whole, without Spark: only objects of its own run count."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from hybridstore.importing.frames import _is_whole
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.location import locate
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from recovery.runs import Claim
from tests.tools.shard_tools import operator


def write(root: Path, shard: int, run: Claim) -> None:
    StateStoreProvider(StateStoreId(str(root), "op", shard), claim=run).get_store(0).commit()


@pytest.mark.parametrize("same_launch", [True, False], ids=["results used again", "applied again"])
def test_objects_of_a_backfill_that_was_broken_off_do_not_count(tmp_path: Path, same_launch: bool) -> None:
    storage, location = operator(tmp_path), locate(str(tmp_path))

    def whole(run_id: str) -> bool:
        return _is_whole(location, "op", 2, run_id)

    assert not whole("first")
    launch = new_launch(storage)
    first = claim(storage, launch, "first", 0, 1)
    assert not whole("first")
    write(tmp_path, 0, first)
    assert not whole("first")
    write(tmp_path, 1, first)
    assert whole("first")
    assert not whole("second")
    second = claim(storage, launch if same_launch else new_launch(storage), "second", 0, 2)
    assert not whole("second")
    write(tmp_path, 0, second)
    assert not whole("second")
    # an action behind another one in `write`: of the same run
    write(tmp_path, 1, claim(storage, second.launch // 1000 * 1000, "second", 0, 3))
    assert whole("second")
    assert not whole("first")
