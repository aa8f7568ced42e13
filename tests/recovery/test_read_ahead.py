"""Blocks are decoded ahead in a thread: what is only read, or lies idle, is hydrated too, in slices, and nobody
notices.
"""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from recovery import ahead, block
from recovery.ahead import ReadAhead
from recovery.block import SLICE_VALUES, Columns, pack_block, unpack_block, unpack_block_in_slices
from recovery.checkpoint import CheckpointReader
from recovery.errors import CorruptCheckpointError
from tests.state.test_hydration import open_state, path, rows
from tests.tools.checkpoints import flip, index_of, marker_of, own_packs, reader_of
from tests.tools.hooks import check_stores, crash

__all__ = ["path"]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "DELAY_SECONDS", 0)
    monkeypatch.setattr(ahead, "REST_SECONDS", 0)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The blocks that their owner had to decode."""
    decoded: list[bytes] = []

    def counted(data: Any, where: str) -> Columns:
        decoded.append(bytes(data))
        return unpack_block(data, where)

    monkeypatch.setattr("recovery.checkpoint.unpack_block", counted)
    return decoded


def ahead_of(state: hs.State) -> ReadAhead:
    assert state._checkpoints.reader is not None
    ahead = state._checkpoints.reader.ahead
    assert isinstance(ahead, ReadAhead)
    return ahead


def settled(state: hs.State) -> ReadAhead:
    """The blocks of a state that were decoded ahead, when all are."""
    reading = ahead_of(state)
    reading.has_some()  # as a commit asks
    assert reading._thread is not None
    reading._thread.join()
    return reading


def test_nothing_is_decoded_ahead_before_a_second_block_or_a_commit(path: Path, at_once: None) -> None:
    with open_state(path) as state:
        reading, store = ahead_of(state), state.key_value("kv")
        assert store["00000"]
        assert reading._thread is None
        assert store["00001"]
        assert reading._thread is None
        assert store["01999"]
        assert reading._thread is not None
    with open_state(path) as state:
        reading = ahead_of(state)
        state.commit()
        assert reading._thread is not None


def test_where_there_can_be_no_thread_the_owner_decodes(
    path: Path, at_once: None, decoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_state(path) as state:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            assert ahead_of(state).has_some()
        blocks = state.metrics().cold_blocks
        assert len(rows(state)[0]) == 2000
        assert len(decoded) == blocks


def test_what_was_ended_does_not_begin_again(path: Path) -> None:
    with open_state(path) as state:
        reading = ahead_of(state)
        reading.stop()
        reading.stop()
        assert len(rows(state)[0]) == 2000
        assert reading.has_some()
        assert reading._thread is None


def test_a_state_that_lies_idle_after_a_commit_is_decoded_and_then_only_handed_over(
    path: Path, at_once: None, decoded: list[bytes]
) -> None:
    with open_state(path, lazy=False) as state:
        expected = rows(state)
    decoded.clear()
    with open_state(path) as state:
        blocks = state.metrics().cold_blocks
        assert len(settled(state).ready) == blocks
        assert state.metrics().cold_blocks == blocks
        assert rows(state) == expected
        assert settled(state).ready == {}
        assert decoded == []


def test_a_state_that_is_only_looked_at_is_decoded_too(path: Path, at_once: None, decoded: list[bytes]) -> None:
    with open_state(path, at="newest") as state:
        settled(state)
        assert len(rows(state)[0]) == 2000
    assert decoded == []


def test_hydration_takes_what_is_ready(path: Path, at_once: None, decoded: list[bytes]) -> None:
    with open_state(path) as state:
        settled(state)
        assert state.hydrate(budget_ms=60_000) == 0
        assert decoded == []
        check_stores(state)


def test_a_slice_is_a_few_values_and_a_step_one_block(path: Path) -> None:
    reader = reader_of(path, 1)
    numbers = [record.number for record in reader.meta.stores]
    reading = ReadAhead(reader, numbers, lambda store, entry: False)
    total = sum(len(reader.directory(number)) for number in numbers)
    for done in range(total):
        assert len(reading.ready) == done
        assert reading.step(lambda: None)
    assert not reading.step(lambda: None)
    newest_first = [(number, entry.block) for number in numbers for entry in reversed(reader.directory(number))]
    assert list(reading.ready) == newest_first


class Clock:
    """A clock by which every look at it takes a while."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def perf_counter(self) -> float:
        self.now += self.seconds
        return self.now


def test_the_thread_rests_after_every_millisecond(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(path, 1)
    monkeypatch.setattr(block, "SLICE_VALUES", 5)
    clock = Clock(ahead.SLICE_SECONDS / 3)
    monkeypatch.setattr(ahead, "time", clock)
    rests: list[float] = []
    reading = ReadAhead(reader, [1], lambda store, entry: False)
    assert reading.step(lambda: rests.append(clock.now))
    # fifty values of a block in slices of five, with a rest at least after every third
    assert 3 <= len(rests) <= 10
    worked = [b - a for a, b in zip([0.0, *rests], rests, strict=False)]
    assert max(worked) <= 2 * ahead.SLICE_SECONDS


values = st.recursive(
    st.none()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.just(datetime(2026, 1, 2, tzinfo=UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@given(st.lists(values, max_size=3 * SLICE_VALUES))
def test_a_block_read_in_slices_is_the_same_block(block_values: list[Any]) -> None:
    data, _ = pack_block(Columns(list(range(len(block_values))), None, (), block_values))
    pauses = []
    whole = unpack_block(data, "")
    other = unpack_block_in_slices(data, "", lambda: pauses.append(1))
    assert (whole.keys, whole.counts, whole.ints, whole.values) == (other.keys, other.counts, other.ints, other.values)
    assert len(pauses) == -(-len(block_values) // SLICE_VALUES)


@given(st.binary(max_size=40))
def test_a_block_that_no_release_writes_is_refused_in_slices_too(payload: bytes) -> None:
    data = block.zlib.crc32(payload).to_bytes(4, "little") + payload
    with pytest.raises(CorruptCheckpointError):
        unpack_block_in_slices(data, "here", lambda: None)


def test_what_has_expired_is_never_decoded(path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_state(path)
    state.window("win", retention=10_000).put("late", 1, 1_000_000)
    state.commit()
    crash(state)
    seen = []
    fetched_block = CheckpointReader.fetched_block

    def counted(self: CheckpointReader, store: int, entry: Any) -> Any:
        seen.append(store)
        return fetched_block(self, store, entry)

    monkeypatch.setattr(CheckpointReader, "fetched_block", counted)
    with open_state(path) as state:
        settled(state)
        assert set(seen) == {1}


def test_a_damaged_block_is_left_to_its_owner(path: Path, at_once: None) -> None:
    (file,) = own_packs(path, 1)
    flip(file, file.read_bytes().rindex(b"value 1000"))
    state = open_state(path)
    settled(state)
    with pytest.raises(hs.errors.CorruptCheckpointError, match="block checksum mismatch"):
        rows(state)
    assert marker_of(index_of(path, 1)).exists()
    crash(state)


def test_a_new_checkpoint_goes_on_with_what_is_ready(path: Path, at_once: None, decoded: list[bytes]) -> None:
    with open_state(path) as state:
        reading = settled(state)
        state.key_value("kv")["01000"] = "changed"
        state.commit()
        state.checkpoint(wait=True)
        assert settled(state) is reading
        kv, _ = rows(state)
        assert len(kv) == 2000
        assert dict(kv)["01000"] == "changed"
        check_stores(state)
    # the block that was changed was decoded for the checkpoint
    assert len(decoded) <= 1


def test_with_a_memory_limit_nothing_is_decoded_ahead(path: Path, at_once: None) -> None:
    with open_state(path, memory_limit=1 << 30) as state:
        assert state._checkpoints.reader is not None
        assert state._checkpoints.reader.ahead is None


def test_a_rollback_begins_anew(path: Path, at_once: None) -> None:
    with open_state(path) as state:
        first = settled(state)
        state.key_value("kv")["new"] = 1
        state.rollback()
        assert settled(state) is not first
        assert first.ready == {}
        assert len(rows(state)[0]) == 2000


def test_the_thread_ends_with_its_state(path: Path) -> None:
    state = open_state(path)
    reading = ahead_of(state)
    reading.has_some()
    thread = reading._thread
    assert thread is not None
    state.close()
    assert not thread.is_alive()
    assert reading.ready == {}
