"""A restart from an object store: rounds of requests, batches that are read side by side, packs that come behind, and
caches that were lost, kept or damaged. Requests are counted; nothing depends on time.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.storage import Storage, storage_at
from hybridstore.aggregation.windows import Windows
from hybridstore.state import bucket_log, home
from hybridstore.state.group import StoreGroup
from hybridstore.state.opening import Tuning
from hybridstore.topology import engine
from recovery import ahead, checkpoint
from recovery.ahead import ReadAhead
from recovery.checkpoint import CheckpointReader
from recovery.layout import FENCES
from recovery.pack import HEADER
from tests.tools.hooks import crash
from tests.tools.memory_storage import MemoryStorage
from tests.tools.requests import CountedStorage, Requests, counted
from tests.tools.sizes import SMALL_PARTS

RECORDS = 8_000
URL = "s3://bucket/far"
NEVER = hs.CheckpointPolicy(every_commits=None)
SMALL: dict[str, Any] = {"checkpoints": NEVER, "_tuning": Tuning(block_records=16, parts=SMALL_PARTS)}


def value_of(number: int) -> str:
    return f"value of {number} " + f"{number * 48_271 % 65_537:05d}" * 8


def key_of(number: int) -> str:
    return f"k{number:06d}"


def route(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    """Let every url stand for this storage."""

    def at(place: Any, *rest: Any, **options: Any) -> Storage:
        return storage_at(place, *rest, **options) if isinstance(place, Path) else storage

    for module in (home, engine):
        monkeypatch.setattr(module, "storage_at", at)


def fill(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, cache: Path, records: int = RECORDS) -> None:
    route(monkeypatch, storage)
    with hs.open(hs.Bucket(URL, cache=cache), **SMALL) as state:
        names, clicks = state.key_value("names"), state.window("clicks", retention=1_000_000)
        for number in range(records):
            names.put(key_of(number), value_of(number))
            if number < 2_000:
                clicks.put(f"k{number % 500:03d}", number, ts=number * 10)
        state.commit()
        state.checkpoint(wait=True)
        for number in range(5):
            names.put(key_of(number), value_of(number))
            state.commit()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> MemoryStorage:
    storage = MemoryStorage()
    with pytest.MonkeyPatch.context() as monkeypatch:
        fill(storage, monkeypatch, tmp_path_factory.mktemp("writer"))
    return storage


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    # Nothing is brought behind the batch unless a test says so.
    monkeypatch.setattr(ahead, "DELAY_SECONDS", 3600.0)
    # The blocks of the test are small: a request must not seem to cost more than they do.
    monkeypatch.setattr("changelog.rounds.REQUEST_BYTES", 100)
    with counted() as requests:
        yield requests


Open = Callable[..., hs.State]


@pytest.fixture
def open_far(requests: Requests, filled: MemoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    storage = CountedStorage(requests, filled)
    route(monkeypatch, storage)

    def opened(cache: str = "cache", cache_bytes: int | None = None, **options: Any) -> hs.State:
        requests.reset()
        return hs.open(hs.Bucket(URL, cache=tmp_path / cache, cache_bytes=cache_bytes), at="newest", **options)

    return opened


def reader_of(state: hs.State) -> CheckpointReader:
    reader = state._checkpoints.reader
    assert reader is not None
    return reader


def run_ahead(state: hs.State) -> None:
    """Do in a thread all that is done behind the owner, and wait for it."""
    reader = reader_of(state)
    assert isinstance(reader.ahead, ReadAhead)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ahead, "DELAY_SECONDS", 0.0)
        reader.ahead.start()
        thread = reader.ahead._thread
        assert thread is not None
        thread.join()


def batch(seed: int = 1, size: int = 40) -> list[int]:
    return random.Random(seed).sample(range(RECORDS), size)


# --- rounds ----------------------------------------------------------------------------------------------------------


def test_the_first_batch_takes_four_rounds_of_requests(open_far: Open, requests: Requests) -> None:
    numbers = batch()
    with open_far() as state:
        assert requests.rounds == 2, requests.names  # names; index and tail
        names = state.key_value("names")
        assert names.get_many(map(key_of, numbers)) == list(map(value_of, numbers))
        assert requests.rounds == 4, requests.names  # pages of the directory; blocks
        before = requests.number
        names.get_many(map(key_of, numbers))
        assert requests.number == before


def test_a_writer_needs_three_rounds_more_to_claim_the_state(
    open_far: Open, requests: Requests, filled: MemoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CountedStorage(requests, MemoryStorage(dict(filled.objects)))
    route(monkeypatch, storage)
    with hs.open(hs.Bucket(URL, cache=tmp_path / "own"), **SMALL) as state:
        assert requests.rounds == 5, requests.names
        state.key_value("names").get_many(map(key_of, batch()))
        assert requests.rounds == 7, requests.names


def test_an_owner_whose_claims_come_too_late_again_and_again_leaves_no_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    route(monkeypatch, storage)
    # the owner before looks for a claim at none of its commits
    monkeypatch.setattr(bucket_log, "LOOK_SECONDS", float("inf"))
    first = hs.open(hs.Bucket(URL, cache=tmp_path / "first"), **SMALL)
    claim, late = bucket_log.BucketLog.claim, iter(range(3))

    def too_late(self: bucket_log.BucketLog, group: StoreGroup) -> bool:
        for number in islice(late, 1):
            first.key_value("names").put(key_of(number), number)
            first.commit()
        return claim(self, group)

    monkeypatch.setattr(bucket_log.BucketLog, "claim", too_late)
    with hs.open(hs.Bucket(URL, cache=tmp_path / "second"), **SMALL) as state:
        assert [value for _, value in state.key_value("names").all()] == [0, 1, 2]
        assert len(storage.list(f"{FENCES}/")) == 2  # of the two owners
    crash(first)


def test_keys_that_are_near_one_another_read_little(open_far: Open, requests: Requests, filled: MemoryStorage) -> None:
    size = sum(len(data) for name, data in filled.objects.items() if name.startswith("packs/"))
    with open_far() as state:
        before = requests.bytes
        numbers = range(3_000, 3_100)
        assert state.key_value("names").get_many(map(key_of, numbers)) == list(map(value_of, numbers))
        assert requests.bytes - before < size / 50


def test_a_batch_that_touches_most_of_a_pack_fetches_it_whole(open_far: Open, requests: Requests) -> None:
    with open_far() as state:
        names, reader = state.key_value("names"), reader_of(state)
        assert names.get_many(map(key_of, range(0, RECORDS, 16))) == list(map(value_of, range(0, RECORDS, 16)))
        assert requests.rounds <= 4, requests.names
        assert not reader.far
        before = requests.number
        assert len(list(names.all())) == RECORDS
        assert requests.number == before


def test_a_pack_that_cannot_be_kept_is_read_by_ranges(open_far: Open, requests: Requests) -> None:
    with open_far(cache_bytes=1) as state:
        names = state.key_value("names")
        assert names.get_many(map(key_of, range(0, RECORDS, 16))) == list(map(value_of, range(0, RECORDS, 16)))
        assert requests.rounds <= 4, requests.names
        assert reader_of(state).far


def test_a_cache_that_refuses_a_pack_costs_one_more_round(
    open_far: Open, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_far() as state:
        monkeypatch.setattr("changelog.cached_storage.Cache.keep", lambda *_: None)
        names = state.key_value("names")
        assert names.get_many(map(key_of, range(0, RECORDS, 16))) == list(map(value_of, range(0, RECORDS, 16)))
        assert requests.rounds <= 6, requests.names
        assert reader_of(state).far


def test_blocks_are_smaller_than_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    route(monkeypatch, MemoryStorage())
    blocks = []
    for place in (hs.Bucket(URL, cache=tmp_path / "cache"), tmp_path / "state"):
        with hs.open(place, checkpoints=NEVER) as state:
            state.key_value("names").put_columns([key_of(number) for number in range(2_000)], [0] * 2_000)
            state.commit()
            state.checkpoint(wait=True)
            state._go_cold()
            blocks.append(state.metrics().cold_blocks)
    assert blocks == [8, 1]


def test_a_closed_state_has_no_claim_on_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    route(monkeypatch, MemoryStorage())
    with hs.open(hs.Bucket(URL, cache=tmp_path)) as state:
        assert state._home.claimed
    assert not state._home.claimed


def test_a_window_store_does_not_become_cold_over_far_pages(open_far: Open, tmp_path: Path) -> None:
    with open_far() as state:
        clicks = state.window("clicks", retention=1_000_000)
        assert clicks.far
        assert not clicks.can_cool


def test_what_nobody_uses_is_forgotten(open_far: Open, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_FETCHED_BYTES", 1_000)
    with open_far() as state:
        clicks, reader = state.window("clicks", retention=1_000_000), reader_of(state)
        clicks.prefetch([f"k{number:03d}" for number in range(0, 500, 25)], 0, 19_999)
        kept = reader._fetched_bytes
        assert kept == sum(map(len, reader._fetched.values())) > 1_000
        state.key_value("names").get_many(map(key_of, batch()))
        assert reader._fetched_bytes == 0
        assert not reader._fetched


def test_a_batch_over_time_is_read_side_by_side(open_far: Open, requests: Requests) -> None:
    with open_far() as state:
        clicks, before = state.window("clicks", retention=1_000_000), requests.rounds
        keys = [f"k{number:03d}" for number in range(0, 500, 25)]
        clicks.prefetch(keys, 0, 19_999)
        assert requests.rounds <= before + 2
        rows = {key: [value for _, value in clicks.fetch(key, 0, 19_999)] for key in keys}
        assert requests.rounds <= before + 2
        assert rows == {key: list(range(int(key[1:]), 2_000, 500)) for key in keys}


def test_keys_of_another_type_are_refused_where_they_are_read(open_far: Open) -> None:
    with open_far() as state:
        state.window("clicks", retention=1_000_000).prefetch([1, 2], 0, 19_999)
        with pytest.raises(TypeError, match="found int, expected str as in"):
            state.key_value("names").get_many([1, 2])


@pytest.mark.parametrize(
    "windows", [hs.TumblingWindows(100), hs.HoppingWindows(100, advance=50), hs.SessionWindows(50)], ids=repr
)
def test_a_topology_reads_what_a_batch_touches_side_by_side(
    windows: Windows, requests: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CountedStorage(requests)
    route(monkeypatch, storage)
    topology = hs.stream(key="k", timestamp="ts").windowed_by(windows).aggregate(n=hs.Count())
    often = {**SMALL, "checkpoints": hs.CheckpointPolicy(every_commits=1)}
    with hs.Engine(topology, hs.Bucket(URL, cache=tmp_path / "writer"), **often) as writer:
        writer.process_many([{"k": f"k{row % 500:03d}", "ts": 1_000 + row % 90} for row in range(3_000)])
        writer.commit()
    with hs.Engine(topology, hs.Bucket(URL, cache=tmp_path / "cache"), **SMALL) as reader:
        requests.reset()
        reader.process_many([{"k": f"k{row:03d}", "ts": 1_095} for row in range(0, 500, 25)])
        reader.commit()
        assert requests.rounds <= 3, requests.names  # pages; blocks; the commit


# --- behind ----------------------------------------------------------------------------------------------------------


def test_packs_come_behind_and_are_read_from_the_disk_from_then_on(
    open_far: Open, requests: Requests, tmp_path: Path
) -> None:
    with open_far() as state:
        assert reader_of(state).far
        run_ahead(state)
        assert not reader_of(state).far
        before = requests.number
        for path in (tmp_path / "cache").glob("*.object"):
            path.unlink()  # as another process does that needs the room: a map stays
        reader_of(state).bring(lambda: True)
        assert len(list(state.key_value("names").all())) == RECORDS
        assert requests.number == before


def test_where_nothing_can_be_kept_blocks_come_ahead_in_groups(open_far: Open, requests: Requests) -> None:
    with open_far(cache_bytes=0) as state:
        blocks, reader = state.metrics().cold_blocks, reader_of(state)
        run_ahead(state)
        assert reader.far
        assert requests.behind < blocks / 5
        before = requests.number
        assert len(list(state.key_value("names").all())) == RECORDS
        assert requests.number == before


def test_no_more_packs_are_brought_than_the_cache_has_room_for(open_far: Open, requests: Requests) -> None:
    with open_far() as state:
        reader = reader_of(state)
        largest = max(record.size for record in reader.meta.packs)
    with open_far("little", cache_bytes=largest + 1) as state:
        reader_of(state).bring(lambda: True)
        assert sum(record.size for record in reader_of(state).meta.packs) < requests.bytes + largest
        assert len(list(state.key_value("names").all())) == RECORDS


def test_a_reader_is_freed_with_its_last_cold_block(open_far: Open) -> None:
    with open_far() as state:
        reader = weakref.ref(reader_of(state))
        reader_of(state).bring(lambda: True)
        state.key_value("names").get_many(map(key_of, batch()))
        for store in state.stores.values():
            while store.warm():
                pass
        state._checkpoints.reader = None
        gc.collect()
        assert reader() is None


# --- the cache -------------------------------------------------------------------------------------------------------


def test_a_cache_that_survived_makes_it_a_local_restart(open_far: Open, requests: Requests) -> None:
    with open_far() as state:
        reader_of(state).bring(lambda: True)
    with open_far() as state:
        tail = requests.bytes
        assert requests.rounds == 2, requests.names  # names; the tail
        assert len(list(state.key_value("names").all())) == RECORDS
        assert requests.bytes == tail < 10_000


@pytest.mark.parametrize("damage", ["flipped", "inside", "cut", "empty"])
def test_a_damaged_cache_is_dropped_and_read_once_more(
    open_far: Open, filled: MemoryStorage, tmp_path: Path, damage: str
) -> None:
    with open_far() as state:
        reader_of(state).bring(lambda: True)
    for path in (tmp_path / "cache").glob("*.object"):
        data = path.read_bytes()
        if damage in ("flipped", "inside"):
            # with its header a copy is opened, and seen to be damaged where it is read
            sound = 0 if damage == "flipped" else HEADER.size
            path.write_bytes(data[:sound] + bytes(byte ^ 0x55 for byte in data[sound:]))
        else:
            path.write_bytes(data[: len(data) // 2 if damage == "cut" else 0])
    with open_far() as state:
        for number in batch(2, 5):
            assert state.key_value("names").get(key_of(number)) == value_of(number)
        assert len(list(state.key_value("names").all())) == RECORDS
        assert not state.restore_report.skipped
    assert not any(name.endswith(".damaged") for name in filled.objects)


def test_damage_on_the_store_itself_is_still_named(
    open_far: Open, requests: Requests, filled: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = MemoryStorage(
        {
            name: bytes(byte ^ 0x55 for byte in data) if name.startswith("packs/") else data
            for name, data in filled.objects.items()
        }
    )
    storage = CountedStorage(requests, damaged)
    route(monkeypatch, storage)
    with open_far("another") as state:
        names = state.key_value("names")
        with pytest.raises(hs.HybridStoreError, match="checksum mismatch"):
            names.get_many(map(key_of, batch()))
        requests.reset()
        with pytest.raises(hs.HybridStoreError, match="checksum mismatch"):
            names.get(key_of(batch()[0]))
        assert requests.number == 1, "there is no copy that could be damaged, so that nothing is asked for again"


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_the_newest_version_emitted_is_handed_out_after_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpointed: bool
) -> None:
    route(monkeypatch, MemoryStorage())
    where = hs.Bucket(URL, cache=tmp_path)
    with hs.open(where, **SMALL) as state:
        buffer = state.suppression("buffer", max_records=1)
        buffer.put_many([("a", 1, 10), ("b", 2, 20)])
        emitted = [(state.commit(), "a", 1, 10)]
        assert buffer.emitted() == emitted
    for _ in range(3):  # each of them claims the state with a version of its own
        with hs.open(where, **SMALL) as state:
            assert state.suppression("buffer", max_records=1).emitted() == emitted
            if checkpointed:
                state.checkpoint(wait=True)
    with hs.open(where, at="newest") as state:
        assert state.suppression("buffer", max_records=1).emitted() == emitted
    with hs.open(where, **SMALL) as state:
        buffer = state.suppression("buffer", max_records=1)
        buffer.advance(30)
        state.commit()
        assert buffer.emitted() == []
