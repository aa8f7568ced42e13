"""What shards keep beside their stores, where they are merged: by rule, equal, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import LocalStorage
from hybridstore.rescaling.report import RescaleError
from hybridstore.rescaling.routes import Routes
from hybridstore.rescaling.sharing import OldShard, ShardGroup
from recovery.checkpoint import CheckpointReader
from recovery.write import FreshCheckpoint

PARAMETERS = {"ttl_ms": None}
STATE = {"stream_time": -1, "key": None}


def merged(folder: Path, *settings: dict[str, Any], parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """What is kept of shards with these settings, which have a store."""
    parents = []
    for shard, kept in enumerate(settings):
        storage = LocalStorage(folder / str(shard))
        content = FreshCheckpoint(storage, 1)
        content.define(1, "windows", "key_value", PARAMETERS if parameters is None else parameters[shard], STATE)
        name = content.finish(Identity(b"s" * 16), b"d" * 16, kept, Position(1, 0, 0)).name
        parents.append(OldShard(shard, CheckpointReader(storage, name)))
    return ShardGroup(parents, [0], len(parents), 1, Routes({}, {})).settings


def test_settings_with_a_rule_need_not_be_equal(tmp_path: Path) -> None:
    first = {"closed": 5, "since": {"a": 1, "b": 9}, "programs": [1], "stream time of windows": 7, "topology": "t"}
    second = {"closed": 8, "since": {"a": 3}, "programs": [2], "stream time of windows": 6, "topology": "t"}
    third = {"topology": "t", "state:count": ["value", "n long"]}
    assert merged(tmp_path, first, second, third) == {
        "closed": 8,
        "since": {"a": 3, "b": 9},
        "programs": [1],
        "stream time of windows": 7,
        "topology": "t",
        "state:count": ["value", "n long"],
    }


@pytest.mark.parametrize("second", [{"topology": "u"}, {}])
def test_settings_that_differ_are_refused_by_name(tmp_path: Path, second: dict[str, Any]) -> None:
    with pytest.raises(RescaleError, match="setting 'topology': shards 0, 1 do not agree on it"):
        merged(tmp_path, {"topology": "t"}, second)


def test_stores_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RescaleError, match=r"store 'windows': shard 1 has .*, so that they cannot be merged"):
        merged(tmp_path, {}, {}, parameters=[{"ttl_ms": None}, {"ttl_ms": 5}])
