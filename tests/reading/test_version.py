"""A `Version` has the content that its owner had at that version, and moves along the owner's versions."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.reading.places import Place, resolve
from hybridstore.reading.version import Version
from hybridstore.reading.view import open_view
from hybridstore.state.opening import Tuning
from hybridstore.stores.kinds import KINDS, Row
from tests.tools.s3_server import S3Server
from tests.tools.shard_tools import provider, put, restarted, write
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(segment_bytes=2000, block_records=7, parts=SMALL_PARTS)


def one_commit(state: hs.State, dice: random.Random, clock: int) -> int:
    """Change records of every kind."""
    for _ in range(dice.randrange(9)):
        key, ts, value = f"k{dice.randrange(12)}", max(0, clock - dice.randrange(30)), dice.randrange(99)
        state.key_value("kv").put(key, value)
        state.key_value("ttl", ttl=40).put(key, value, ts)
        state.window("win", retention=100).put(key, value, ts)
        state.window("dup", retention=60, retain_duplicates=True).put(key, value, ts)
        state.session("ses", retention=80).put(key, value, start=max(0, ts - dice.randrange(9)), end=ts)
        state.sliding("load", size=60, aggregator=hs.Sum()).add(key, value, ts)
        state.suppression("held", max_records=8, time_limit=40).put(key, value, ts)
    return state.commit()


def content(state: hs.State) -> dict[str, list[Row]]:
    return {store.name: list(KINDS[store.kind].rows(store)) for store in state.stores.values()}


def opened(version: Version) -> dict[str, list[Row]]:
    return {name: list(version.rows(name)) for name in version.stores}


def scanned(place: Place, at: int) -> dict[str, list[Row]]:
    view = open_view(place, at)
    assert view.faults == []
    return {name: list(store.records()) for name, store in view.stores.items()}


@pytest.mark.stress
def test_every_version_is_what_its_owner_had(tmp_path: Path, seed: int, rounds: int) -> None:
    """Live, by a Version opened at it, by a Version that moved to it, and by a scan of the blocks: the same rows."""
    for number in range(rounds):
        dice, path = random.Random(f"{seed} {number}"), tmp_path / str(number)
        contents: dict[int, dict[str, list[Row]]] = {}
        with hs.open(path, checkpoints=hs.CheckpointPolicy(keep=100), _tuning=TUNING) as state:
            clock = 0
            for _ in range(12):
                clock += dice.randrange(25)
                if version := one_commit(state, dice, clock):  # 0: nothing was changed yet
                    contents[version] = content(state)
                if dice.random() < 0.3:
                    state.checkpoint(wait=True)
        (place,) = resolve(path)
        moving = Version(place, 1)
        for at, expected in contents.items():
            assert moving.refresh(at) == (at > 1)
            with Version(place, at) as direct:
                assert [direct.number, opened(direct)] == [at, expected]
            assert [moving.number, opened(moving)] == [at, expected]
            assert {name: sorted(rows) for name, rows in scanned(place, at).items()} == {
                name: sorted(rows) for name, rows in expected.items()
            }
            for name, rows in expected.items():
                for key in {row.key for row in rows}:
                    assert sorted(moving.of_key(name, key)) == sorted(row for row in rows if row.key == key)
        back = dice.choice(list(contents))
        assert moving.refresh(back) == (back != at)
        assert [moving.number, opened(moving)] == [back, contents[back]]
        moving.close()


def test_rows_have_the_times_of_their_kind(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("kv").put("a", 1)
        state.key_value("ttl", ttl=40).put("a", 1, 5)
        state.window("win", retention=100).put("a", 1, 6)
        state.session("ses", retention=100).put("a", 1, start=6, end=9)
        state.suppression("held", time_limit=40).put("a", 1, 7)
        state.commit()
    with Version(*resolve(tmp_path)) as version:
        shown = {name: [(row, row.start, row.end) for row in version.rows(name)] for name in version.stores}
    assert shown == {
        "kv": [(("a", (), 1), None, None)],
        "ttl": [(("a", (5,), 1), None, None)],
        "win": [(("a", (6,), 1), 6, 6)],
        "ses": [(("a", (9, 6), 1), 6, 9)],
        "held": [(("a", (7, 7), 1), 7, 7)],
    }


def test_a_state_on_an_object_store_is_followed() -> None:
    with S3Server() as server:
        follow_on(server)


def follow_on(server: S3Server) -> None:
    bucket = server.bucket("state")
    with hs.open(bucket) as state:
        state.key_value("kv").put("a", 1)
        first = state.commit()
        (place,) = resolve(bucket)
        with Version(place) as version:
            assert [version.number, list(version.rows("kv"))] == [first, [("a", (), 1)]]
            assert not version.refresh()
            state.key_value("kv").put("a", 2)
            second = state.commit()
            state.checkpoint(wait=True)
            assert version.refresh()
            assert [version.number, list(version.rows("kv"))] == [second, [("a", (), 2)]]
            assert version.refresh(first)
            assert [version.number, list(version.rows("kv"))] == [first, [("a", (), 1)]]


def test_a_shard_moves_to_any_version(tmp_path: Path) -> None:
    shard = provider(tmp_path)
    for batch in range(4):
        write(shard, batch, **{f"k{batch}": batch})
    shard.note_empty(4)
    with Version(*resolve(tmp_path), 2) as version:
        for at, size in ((4, 4), (5, 4), (1, 1), (3, 3)):
            assert version.refresh(at)
            assert [version.number, len(list(version.rows("default")))] == [at, size]
        assert not version.refresh(3)
        assert version.refresh()
        assert version.number == 5
        again = restarted(tmp_path, 2)  # the batches from the third on are void
        store = again.get_store(2)
        put(store, other=1)
        store.commit()
        assert version.refresh()
        assert [version.number, {row.key for row in version.rows("default")}] == [3, {"k0", "k1", "other"}]


def test_a_version_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("kv").put("a", 1)
        state.commit()
    (place,) = resolve(tmp_path)
    with pytest.raises(hs.errors.RestoreError, match="version 7 is not retained"):
        Version(place, 7)
    with Version(place) as version:
        with pytest.raises(hs.errors.RestoreError, match="version 7 is not retained"):
            version.refresh(7)
        shutil.rmtree(tmp_path / "changelog")
        with pytest.raises(hs.HybridStoreError):
            version.refresh()


def test_nothing_is_written_while_a_version_is_read(tmp_path: Path) -> None:
    def files() -> dict[Path, Any]:
        return {
            path: (path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(tmp_path.rglob("*"))
            if path.is_file()
        }

    with hs.open(tmp_path) as state:
        one_commit(state, random.Random(1), 5)
        state.checkpoint(wait=True)
    before = files()
    with Version(*resolve(tmp_path)) as version:
        opened(version)
        version.refresh()
    assert files() == before


def check_pruned(where: Path, oldest: int) -> None:
    for at in (1, 2):
        with pytest.raises(hs.errors.RestoreError, match=rf": version {at} is not retained: the oldest is {oldest}$"):
            hs.inspect(where, at=at)


def test_a_version_that_pruning_removed_is_not_called_lost(tmp_path: Path) -> None:
    keep = hs.CheckpointPolicy(every_commits=None, keep=1)
    with hs.open(tmp_path, checkpoints=keep, _tuning=Tuning(segment_bytes=300)) as state:
        for number in range(12):
            state.key_value("kv").put("k", number)
            state.commit()
        state.checkpoint(wait=True)
    check_pruned(tmp_path, 12)
    with pytest.raises(hs.errors.RestoreError, match=r"version 2 is not retained: the oldest is 12$"):
        hs.open(tmp_path, at=2)


def test_a_version_of_a_shard_that_pruning_removed_is_not_called_lost(tmp_path: Path) -> None:
    shard = provider(tmp_path, policy=hs.CheckpointPolicy(every_commits=3))
    for batch in range(24):
        write(shard, batch, k=batch)
        shard.maintain(wait=True, oldest_replay=batch)
    check_pruned(tmp_path, 12)
