"""Suppression buffer: emission as part of the committed state, batches, bounds that raise, cold blocks.

The tables of KIP-328 are in test_design_examples.py, boundaries are proved by the vectors and the models.
"""

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, drained, force_cold
from tests.tools.vector_runner import SMALL, opened


def test_the_newest_versions_emissions_are_handed_out_after_a_crash(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", max_records=1)
        buffer.put("a", 1, 10)
        buffer.put("b", 2, 20)
        assert buffer.emitted() == []  # nothing of an uncommitted version
        state.commit()
        assert buffer.emitted() == [(1, "a", 1, 10)]
        buffer.put("c", 3, 30)
        assert buffer.emitted() == [(1, "a", 1, 10)]
        crash(state)
    with opened(tmp_path) as state:
        buffer = state.suppression("b", max_records=1)
        assert buffer.emitted() == [(1, "a", 1, 10)]
        assert buffer.put("c", 3, 30) == [("b", 2, 20)]
        state.commit()
        assert buffer.emitted() == [(2, "b", 2, 20)]
        state.session("other", retention=5).put("x", 1, start=0, end=0)
        state.commit()
        assert buffer.emitted() == []  # the newest version emitted nothing


@pytest.mark.parametrize("way", ["checkpoint", "tail", "cold", "rollback"])
def test_emissions_come_from_wherever_the_state_does(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=5)
        buffer.put(("k", 1), (1, "tuple"), 10)
        state.commit()
        state.checkpoint(wait=True)
        assert buffer.put(("l", 2), None, 17) == [(("k", 1), (1, "tuple"), 10)]
        state.commit()
        if way == "checkpoint":
            state.checkpoint(wait=True)
        elif way == "cold":
            force_cold(state)
        elif way == "rollback":
            assert drained(buffer.advance(1000)) == [(("l", 2), None, 17)]
            state.rollback()
        else:
            crash(state)
        if way in ("cold", "rollback"):
            assert buffer.emitted() == [(2, ("k", 1), (1, "tuple"), 10)]
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=5)
        assert buffer.emitted() == [(2, ("k", 1), (1, "tuple"), 10)]
        assert list(buffer.buffered()) == [(("l", 2), None, 17)]


def test_a_consumer_that_remembers_its_version_sees_each_emission_once(tmp_path: Path) -> None:
    """The process dies at a random moment of 60 commits: before, between and after commit and delivery."""
    chance = random.Random(7)
    whole = [(chance.choice("abcdef"), number, number * 3 + chance.randint(0, 9)) for number in range(240)]
    delivered: list[Any] = []
    seen = 0
    while True:
        state = opened(tmp_path)
        buffer = state.suppression("b", max_records=3, time_limit=20)
        for version, *row in buffer.emitted():
            if version > seen:
                delivered.append(tuple(row))
        seen = state.version
        for start in range(4 * seen, len(whole), 4):
            rows = buffer.put_many(whole[start : start + 4])
            if chance.random() < 0.1:
                break
            version = state.commit()
            if chance.random() < 0.1:
                break
            if chance.random() < 0.2:
                state.checkpoint(wait=True)
            delivered += rows
            seen = version
        else:
            state.close()
            break
        crash(state)
    with hs.open(tmp_path / "at once", durability="os") as other:
        expected = other.suppression("b", max_records=3, time_limit=20).put_many(whole)
    assert delivered == expected


def test_batches_are_as_single_puts(tmp_path: Path) -> None:
    chance = random.Random(5)
    rows = [
        (chance.choice("abcdefgh"), chance.choice([None, 1, [2]]), max(0, i + chance.randint(-9, 9)))
        for i in range(300)
    ]
    results = []
    for call in ("put", "put_many", "put_columns"):
        with hs.open(tmp_path / call, durability="os", _tuning=SMALL) as state:
            buffer = state.suppression("b", max_records=5, max_bytes=20, time_limit=30)
            if call == "put":
                emitted = [row_out for row in rows for row_out in buffer.put(*row)]
            elif call == "put_many":
                emitted = buffer.put_many(iter(rows))
            else:
                emitted = buffer.put_columns(*map(list, zip(*rows, strict=True)))
            state.commit()
            results.append((emitted, list(buffer.buffered()), [row[1:] for row in buffer.emitted()]))
            buffer._check()
            crash(state)
        with hs.open(tmp_path / call, durability="os", _tuning=SMALL) as state:
            buffer = state.suppression("b", max_records=5, max_bytes=20, time_limit=30)
            results.append((emitted, list(buffer.buffered()), [row[1:] for row in buffer.emitted()]))
            assert buffer.buffer_size <= 20
            buffer._check()
    assert results[0][0]
    assert all(result == results[0] for result in results)


def test_full_raises_and_keeps_the_record_and_what_left_before(state: hs.State) -> None:
    buffer = state.suppression("b", max_records=2, time_limit=100, on_full="raise")
    buffer.put("a", 1, 0)
    buffer.put("b", 2, 50)
    buffer.put("a", 3, 50)
    with pytest.raises(hs.BufferFullError, match="found 3 records, expected at most 2") as full:
        buffer.put("c", 4, 60)
    assert full.value.emitted == []
    assert [key for key, _, _ in buffer.buffered()] == ["a", "b", "c"]
    assert [key for key, _, _ in drained(buffer.advance(150))] == ["a", "b"]
    assert buffer.put("d", 5, 150) == []
    assert buffer.put("e", 6, 160) == [("c", 4, 60)]
    with pytest.raises(hs.BufferFullError) as full:
        buffer.put_columns(["f", "g", "h", "i"], [7, 8, 9, 9], [250, 260, 261, 262])
    assert full.value.emitted == [("d", 5, 150), ("e", 6, 160)]
    assert [key for key, _, _ in buffer.buffered()] == ["f", "g", "h"]


def test_final_results_wait_for_their_window(state: hs.State) -> None:
    buffer = state.suppression("b", until_window_closes="5 ms")
    assert buffer.put(("k", 0, 10), "early", 3) == []
    assert buffer.put(("k", 10, 20), "other", 14) == []
    assert buffer.put(("k", 0, 10), "late but in grace", 9) == []
    assert buffer.min_timestamp == 10
    assert buffer.put(("l", 10, 20), None, 15) == [(("k", 0, 10), "late but in grace", 9)]
    # the tombstone of l is dropped when it would leave
    assert drained(buffer.advance(25)) == [(("k", 10, 20), "other", 14)]
    assert buffer.num_records == 0
    state.commit()
    assert [row[1:] for row in buffer.emitted()] == [
        (("k", 0, 10), "late but in grace", 9),
        (("k", 10, 20), "other", 14),
    ]


def test_arguments(state: hs.State) -> None:
    with pytest.raises(ValueError, match="on_full"):
        state.suppression("b", until_window_closes=0, on_full="emit", max_records=3)
    with pytest.raises(ValueError, match="time_limit: found 5 with until_window_closes"):
        state.suppression("b", until_window_closes=0, time_limit=5)
    with pytest.raises(ValueError, match="max_records: found -1"):
        state.suppression("b", max_records=-1)
    with pytest.raises(ValueError, match="timer"):
        state.suppression("b", timer="never")
    final = state.suppression("f", until_window_closes="5 ms")
    with pytest.raises(TypeError, match=r"expected \(key, start, end\)"):
        final.put("k", 1, 1)
    with pytest.raises(TypeError, match="end of window"):
        final.put(("k", 1, "x"), 1, 1)
    state.suppression("b", max_records=3)
    with pytest.raises(hs.ProgramMismatchError, match="max_records 3, asked for max_records 4"):
        state.suppression("b", max_records=4)


def test_sizes_are_checked_before_anything_changes(state: hs.State) -> None:
    sizes: list[Any] = [2.5, -1]
    buffer = state.suppression("b", max_bytes=10, size_of=lambda key, value: sizes.pop(0))
    with pytest.raises(TypeError, match="size_of: found float, expected int"):
        buffer.put("k", 1, 1)
    with pytest.raises(ValueError, match="size_of: found -1 for key 'k'"):
        buffer.put_columns(["k"], [1], [1])
    assert (list(buffer.buffered()), buffer.stream_time) == ([], -1)


def test_time_alone_measures_a_buffer_whose_records_have_other_sizes_now(state: hs.State) -> None:
    buffer = state.suppression("b", max_bytes=10, size_of=lambda key, value: 4)
    assert buffer.put("a", 1, 1) + buffer.put("b", 2, 2) == []
    buffer.bind(lambda key, value: 6)
    assert drained(buffer.advance(3)) == [("a", 1, 1)]


def test_the_size_is_of_packed_key_and_value_unless_given(state: hs.State) -> None:
    buffer = state.suppression("b")
    buffer.put("key", "value", 1)
    assert buffer.buffer_size == 4 + 6
    buffer.put("key", None, 2)
    assert buffer.buffer_size == 4 + 1
    buffer = state.suppression("given", size_of=lambda key, value: 7)
    buffer.put("key", "value", 1)
    assert buffer.buffer_size == 7
    with pytest.raises(hs.ProgramMismatchError, match="size_of 'given', asked for size_of None"):
        state.suppression("given")


def test_under_a_limit_a_block_of_which_all_records_are_due_is_loaded_whole(tmp_path: Path) -> None:
    rows = [(f"k{number:03}", number, number % 10) for number in range(300)]
    options: dict[str, Any] = {"checkpoints": hs.CheckpointPolicy(every_commits=None), "memory_limit": 1 << 40}
    with hs.open(tmp_path, **options) as state:
        state.suppression("b", time_limit=10).put_many(rows)
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path, **options) as state:
        buffer = state.suppression("b", time_limit=10)
        assert buffer.cold_records == 300
        assert sorted(drained(buffer.advance(19))) == rows  # the last of them are just due
        assert buffer.cold_records == 0


def test_only_blocks_that_are_needed_are_loaded(state: hs.State) -> None:
    buffer = state.suppression("b", time_limit=1000)
    buffer.put_many([(f"{number:03}", number, number) for number in range(100)])
    force_cold(state)
    blocks = buffer.cold_blocks
    assert blocks > 10
    assert (buffer.num_records, buffer.put("050", "new", 200), buffer.num_records) == (100, [], 100)
    assert buffer.cold_blocks == blocks - 1
    assert drained(buffer.advance(1003)) == [("000", 0, 0), ("001", 1, 1), ("002", 2, 2), ("003", 3, 3)]
    assert buffer.cold_blocks >= blocks - 3
    assert buffer.min_timestamp == 4
    buffer._check()
    rest = [key for key, _, _ in buffer.buffered()]
    assert rest == [f"{number:03}" for number in range(4, 100) if number != 50] + ["050"]
