"""The writer process says where records are, and the owner reads them there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state import writer_process
from hybridstore.state.writer_process import PROGRAM
from recovery.errors import CorruptCheckpointError
from recovery.finder import UNKNOWN, Finder
from tests.conftest import STRESS
from tests.state.test_writer_process import checkpoint, end_all, opened, small_checkpoints
from tests.tools.hooks import check_stores

__all__ = ["small_checkpoints"]  # of each test here, too

# The process, which says of small stores, too, where records are.
PLACED = PROGRAM.replace("main()", "from recovery import finder_writer; finder_writer.FEWEST_RECORDS = 1; main()")


class Reads:
    """Counts the reads by finders, and those that say a record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = self.known = 0
        value_of = Finder.value_of

        def counted(finder: Finder, key: Any) -> Any:
            value = value_of(finder, key)
            self.asked += 1
            self.known += value is not UNKNOWN
            return value

        monkeypatch.setattr(Finder, "value_of", counted)


def go_cold(state: hs.State) -> None:
    """Make a checkpoint beside, and free all records."""
    assert checkpoint(state) is None
    state._go_cold()
    for store in state._group.stores.values():
        store.free(10**9)


@pytest.mark.parametrize("seed", range(4 if STRESS else 2))
def test_records_are_read_where_the_process_says_that_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Beside a dict; the process ends now and then, and some checkpoints are made by a thread."""
    monkeypatch.setattr(writer_process, "PROGRAM", PLACED)
    dice, reads, rows = random.Random(seed), Reads(monkeypatch), dict[str, int]()
    keys = [f"key {i}" for i in range(300)]
    with opened(tmp_path / "s", 1 << 40) as state:
        store = state.key_value("k")
        for _ in range(12):
            for key in dice.sample(keys, dice.choice([5, 100, 250])):
                if dice.random() < 0.8:
                    store[key] = rows[key] = dice.randrange(10**6)
                else:
                    assert store.delete(key) == rows.pop(key, None)
            state.commit()
            if (event := dice.random()) < 0.15:
                end_all()
            elif event < 0.3:
                state.checkpoint(wait=True)
            go_cold(state)
            for key in dice.sample(keys, 200):
                assert store.get(key) == rows.get(key), key
            check_stores(state)
        assert dict(store.all()) == rows
    assert reads.known > reads.asked // 3 > 100
    with hs.open(tmp_path / "s") as state:
        assert dict(state.key_value("k").all()) == rows


def test_records_with_a_time_are_read_where_a_finder_that_has_grown_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = PLACED.replace("main()", "finder_writer._LEAST_BITS = 4; finder_writer._PIECE = 8; main()")
    monkeypatch.setattr(writer_process, "PROGRAM", pieces)
    reads = Reads(monkeypatch)
    with opened(tmp_path / "s", 1 << 40) as state:
        store = state.key_value("k", ttl="1 hour")
        for begin in range(0, 600, 100):
            store.put_many((f"key {i}", i, i) for i in range(begin, begin + 100))
            state.commit()
            go_cold(state)
        assert [store.get(f"key {i}") for i in range(600)] == [*range(600)]
    assert reads.known == reads.asked == 600


def test_no_file_of_a_finder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_process, "PROGRAM", PLACED)
    with opened(tmp_path / "s", 1 << 40) as state:
        store = state.key_value("k")
        store.put_many((f"key {i}", i) for i in range(300))
        state.commit()
        go_cold(state)
        assert store._older.finder is not None
        assert not list(tmp_path.rglob(".*"))


def test_a_record_that_is_damaged_where_a_finder_points_is_reported_as_from_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_process, "PROGRAM", PLACED)
    with opened(tmp_path / "s", 1 << 40) as state:
        store = state.key_value("k")
        store.put_many((f"key {i}", f"value {i:03d}") for i in range(300))
        state.commit()
        go_cold(state)
        for pack in tmp_path.rglob("*.pack"):
            data = pack.read_bytes()
            with pack.open("r+b") as file:
                file.seek(data.index(b"value 042"))
                file.write(b"VALUE")
        assert store["key 41"] == "value 041"
        with pytest.raises(CorruptCheckpointError, match="checksum mismatch"):
            store.get("key 42")


def test_a_state_whose_finder_the_process_has_forgotten_is_read_by_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = PLACED.replace(
        "main()", "from hybridstore.state import checkpoint_job; checkpoint_job._MOST_PLACES = 1; main()"
    )
    monkeypatch.setattr(writer_process, "PROGRAM", few)
    reads = Reads(monkeypatch)
    with opened(tmp_path / "a", 1 << 40) as first, opened(tmp_path / "b", 1 << 40) as second:
        for turn in range(6):
            state = (first, second)[turn % 2]
            store = state.key_value("k")
            store.put_many((f"key {i}", (turn, i)) for i in range(turn % 3, 300, 3))
            state.commit()
            go_cold(state)
            for i in range(turn % 3, 300, 3):
                assert store[f"key {i}"] == (turn, i)
    assert reads.known > 0


def test_a_state_that_is_opened_again_beside_another_one_has_a_finder_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_process, "PROGRAM", PLACED)
    reads = Reads(monkeypatch)
    with opened(tmp_path / "other", 1 << 40) as other:  # the process lives on for this one
        other.key_value("k").put_many((f"key {i}", i) for i in range(300))
        other.commit()
        go_cold(other)
        for turn in range(2):
            with opened(tmp_path / "s", 1 << 40) as state:
                store = state.key_value("k")
                store.put_many((f"key {i}", (turn, i)) for i in range(300))
                state.commit()
                go_cold(state)
                assert [store[f"key {i}"] for i in range(300)] == [(turn, i) for i in range(300)]
                assert reads.known == 300 * (turn + 1)
