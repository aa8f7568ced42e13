"""The numbers of memory: hits, misses, freed and changed records, bytes read; each held to a model that counts by
itself, from what was put and asked alone.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import hybridstore as hs
from changelog.journal import MAX_KEY_BYTES
from hybridstore.state.memory_budget import BUDGET, CHECK_COMMITS
from hybridstore.state.numbers import COLUMNS, openmetrics, row_of
from hybridstore.state.old_maps import OldMaps
from hybridstore.stores.key_blocks import KeyBlocks
from hybridstore.stores.time_buckets import TimeBuckets
from tests.tools.hooks import crash

LARGE = 1 << 40
NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
# Every other key is stored: those between are absent, though the block that may have them is read.
STORED = [f"key {i:04}" for i in range(0, 2000, 2)]
BETWEEN = [f"key {i:04}" for i in range(1, 1999, 2)]
BEHIND = [f"key {i:04}" for i in range(2001, 2101)]
SIZE = "1 hour"


def stores_of(state: hs.State) -> dict[str, Any]:
    return {
        "k": state.key_value("k"),
        "t": state.key_value("t", ttl=SIZE),
        "w": state.window("w", retention=SIZE),
        "s": state.session("s", retention=SIZE),
        "l": state.sliding("l", size=SIZE, aggregator=hs.Sum()),
        "b": state.suppression("b", time_limit=SIZE),
    }


PUTS: dict[str, Callable[[Any, str], Any]] = {
    "k": lambda store, key: store.put(key, 1),
    "t": lambda store, key: store.put(key, 1, 10),
    "w": lambda store, key: store.put(key, 1, 10),
    "s": lambda store, key: store.put(key, 1, start=10, end=10),
    "l": lambda store, key: store.add(key, 1, 10),
    "b": lambda store, key: store.put(key, 1, 10),
}
GETS: dict[str, Callable[[Any, str], Any]] = {
    "k": lambda store, key: store.get(key),
    "t": lambda store, key: key in store,
    "w": lambda store, key: list(store.fetch(key)),
    "s": lambda store, key: list(store.find_sessions(key)),
    "l": lambda store, key: store.get(key),
    "b": lambda store, key: store.put(key, 2, 10),  # a buffer answers no question, and looks a key up at a put
}


def filled(path: Path, **given: Any) -> hs.State:
    """A state with a checkpoint of one block for each store, and nothing in memory."""
    with hs.open(path, checkpoints=NEVER, memory_limit=LARGE) as state:  # blocks have tables
        for name, store in stores_of(state).items():
            for key in STORED:
                PUTS[name](store, key)
        state.commit()
        state.checkpoint(wait=True)
    return hs.open(path, checkpoints=NEVER, **given)


class Lookups:
    """The model of one store: which keys memory answers for, and what that makes of each lookup."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.hits = self.misses = 0
        self.known: set[str] = set()

    def look(self, key: str) -> None:
        if key in self.known or key > STORED[-1]:
            self.hits += 1
            return
        self.misses += 1
        if key in STORED or self.kind in "lb":  # they note that a block says nothing more about a key
            self.known.add(key)

    def put(self, key: str) -> None:
        if self.kind in "lb":
            self.look(key)
        elif self.kind in "kt":  # a whole record replaces that of the block; of the others it lies over it
            self.known.add(key)


@pytest.mark.stress
def test_hits_and_misses_are_those_of_a_model(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        # fewer than half of a block's keys: it would be loaded whole
        keys = [*r.sample(STORED, 200), *r.sample(BETWEEN, 40), *r.sample(BEHIND, 10)]
        with filled(tmp_path / str(number), memory_limit=LARGE) as state:
            stores = stores_of(state)
            models = {name: Lookups(name) for name in stores}
            for _ in range(1500):
                name, key = r.choice(list(stores)), r.choice(keys)
                if r.random() < 0.6:
                    GETS[name](stores[name], key)
                    models[name].look(key)
                else:
                    PUTS[name](stores[name], key)
                    models[name].put(key)
                if r.random() < 0.01:
                    state.commit()
            numbers = state.metrics()
            assert numbers.misses == sum(model.misses for model in models.values()) > 0
            assert numbers.hits == sum(model.hits for model in models.values()) > 0
            # one table for each block, and nothing else but the records
            assert (numbers.tables_read, numbers.blocks_read) == (len(stores), 0)
            assert numbers.read_amplification is not None
            assert numbers.bytes_read is not None
            reader = state._checkpoints.reader
            assert reader is not None
            asked = (numbers.hits + numbers.misses) * reader.meta.size / reader.meta.records
            assert numbers.read_amplification == pytest.approx(numbers.bytes_read / asked)


def test_lookups_of_many_keys_count_each_key(tmp_path: Path) -> None:
    asked = [*STORED[:5], *BETWEEN[:3], *STORED[:2]]
    with filled(tmp_path, memory_limit=LARGE) as state:
        stores = stores_of(state)
        for name, wants in (("k", (2, 8)), ("t", (2, 8)), ("w", (2, 8)), ("l", (2, 8)), ("b", (2, 8))):
            before = state.metrics()
            if name == "l":
                stores[name].add_columns(asked, [1] * 10, [10] * 10)
            elif name == "b":
                stores[name].put_columns(asked, [1] * 10, [10] * 10)
            else:
                stores[name].get_many(asked, *([10] if name == "w" else []))
            after = state.metrics()
            counts = [(numbers.hits or 0, numbers.misses or 0) for numbers in (before, after)]
            assert (counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]) == wants, name


def test_a_deletion_at_a_time_is_one_lookup(tmp_path: Path) -> None:
    with filled(tmp_path, memory_limit=LARGE) as state:
        store = stores_of(state)["t"]
        for key, late in ((STORED[0], False), (STORED[0], False), (BETWEEN[0], False), (STORED[1], True)):
            store.put(key, None, 10 if not late else 10**9)
        numbers = state.metrics()
        assert (numbers.hits, numbers.misses) == (1, 3)


def test_bytes_read_never_fall_when_a_checkpoint_has_shorter_records(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=NEVER, memory_limit=LARGE) as state:
        state.key_value("k").put_many((key, "x" * 500) for key in STORED)
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path, checkpoints=NEVER, memory_limit=LARGE) as state:
        users = state.key_value("k")
        users.get_many(STORED[:100])
        before = state.metrics()
        users.put_many((key, 1) for key in STORED)
        state.commit()
        state.checkpoint(wait=True)
        after = state.metrics()
        assert (before.misses, after.misses) == (100, 100)
        assert 100 * 500 < (before.bytes_read or 0) <= (after.bytes_read or 0)


@pytest.mark.parametrize("given", [{}, {"memory_limit": LARGE}], ids=["all in memory", "limit"])
def test_a_key_too_long_for_a_store_is_absent(tmp_path: Path, given: dict[str, Any]) -> None:
    long = "x" * (MAX_KEY_BYTES + 1)
    with hs.open(tmp_path, **given) as state:
        users = state.key_value("k")
        users.put_many({"ann": 1, "bob": 2})
        assert users.get(long) is None
        with pytest.raises(ValueError, match="key"):
            users.put(long, 1)
        state.commit()
    for read in ("get", "delete", "__contains__"):
        with hs.open(tmp_path, **given) as state:
            users = state.key_value("k")
            assert users.waiting_rows == 2
            assert not getattr(users, read)(long)
            with pytest.raises(TypeError, match="found int, expected str"):
                getattr(users, read)(1)
            assert users.get("ann") == 1


def test_lookups_are_counted_until_the_last_limit_is_gone(tmp_path: Path) -> None:
    with hs.open(tmp_path / "plain") as plain:
        users = plain.key_value("k")
        for other in range(2):
            with hs.open(tmp_path / f"limited {other}", memory_limit=LARGE):
                users["ann"] = 1
                plain.commit()
                counted = users.lookups.asked
                assert users.get("ann") == 1
                assert users.lookups.asked == counted + 1
            users["bob"] = 2
            plain.commit()
            counted = users.lookups.asked
            assert (users.get("ann"), users.get("eve")) == (1, None)
            assert users.lookups.asked == counted
            with pytest.raises(TypeError, match="found int, expected str"):
                users.put(1, 1)


@pytest.mark.parametrize("name", ["k", "t"])
def test_records_that_were_read_one_by_one_are_not_counted_as_cold(tmp_path: Path, name: str) -> None:
    with filled(tmp_path, memory_limit=LARGE) as state:
        store = stores_of(state)[name]
        for key in (*STORED[:5], *STORED[:5], *BETWEEN[:3]):
            assert (key in store) == (key in STORED)
        assert store.cold_records == len(STORED) - 5


def test_a_block_loaded_whole_counts_with_all_its_bytes(tmp_path: Path) -> None:
    with filled(tmp_path, memory_limit=LARGE) as state:
        assert len(list(state.key_value("k").all())) == len(STORED)
        numbers = state.metrics()
        assert (numbers.blocks_read, numbers.tables_read, numbers.misses) == (1, 0, 0)
        reader = state._checkpoints.reader
        assert reader is not None
        (size,) = [record.size for record in reader.meta.stores if record.name == "k"]
        assert numbers.bytes_read == size


def test_without_a_limit_lookups_are_not_counted(tmp_path: Path) -> None:
    with filled(tmp_path) as state:
        users = state.key_value("k")
        assert users.get(STORED[0]) == 1
        numbers = state.metrics()
        assert (numbers.hits, numbers.misses, numbers.memory_limit_bytes, numbers.read_amplification) == (None,) * 4
        assert numbers.blocks_read == 1
        assert users._keys.fast is str
        # a limit of another state of the process governs here, too
        with hs.open(tmp_path / "other", memory_limit=LARGE):
            state.commit()
            assert users.get(STORED[0]) == 1
            assert users.get(BEHIND[0]) is None
            numbers = state.metrics()
            assert (numbers.hits, numbers.misses, numbers.memory_limit_bytes) == (2, 0, LARGE)


def test_what_is_freed_and_what_has_changed_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path, checkpoints=NEVER, memory_limit=LARGE) as state:
        stores = stores_of(state)
        for name, store in stores.items():
            for key in STORED:
                PUTS[name](store, key)
        state.commit()
        full = state.metrics()
        records = len(STORED) * len(stores)
        assert (full.dirty_keys, full.records_in_memory, full.freed_records) == (records, records, 0)
        assert full.dirty_bytes == full.memory_bytes
        state.checkpoint(wait=True)
        state.commit()
        clean = state.metrics()
        assert (clean.dirty_keys, clean.dirty_bytes, clean.records_in_memory) == (0, 0, records)
        for name, store in stores.items():
            for key in STORED[:10]:
                PUTS[name](store, key)
        state.commit()
        assert state.metrics().dirty_keys == 10 * len(stores)
        state.checkpoint(wait=True)
        memory = state._memory
        with monkeypatch.context() as patch:
            patch.setattr(OldMaps, "free", lambda *_: None)  # what it frees at once
            state._go_cold()
        before = memory._old.remaining() + sum(store.spare[0] for store in stores.values())
        memory._old.free(0, 10**6)
        memory._free_spare(10**6)
        assert (memory._old.maps, [store.ages for store in stores.values()]) == ([], [0] * len(stores))
        freed = state.metrics()
        assert freed.freed_records == pytest.approx(records, rel=0.01)
        assert freed.freed_bytes == pytest.approx(before, rel=0.03)
        assert (freed.memory_bytes or 0) < (full.memory_bytes or 0) / 4


def test_the_numbers_are_in_rows_and_in_the_text_of_metrics(tmp_path: Path) -> None:
    with filled(tmp_path, memory_limit=LARGE) as state:
        users = state.key_value("k")
        for key in (STORED[0], STORED[0], STORED[1]):
            users.get(key)
        numbers = state.metrics()
        row = row_of({"shard": 0, **{name: getattr(numbers, name) for name in numbers.__slots__ if name in COLUMNS}})
        parsed: Any = text_string_to_metric_families
        families = {each.name: each for each in parsed(openmetrics([row]))}
        shown = {name: (family.type, family.samples[0].value) for name, family in families.items()}
        assert shown["hybridstore_hits"] == ("counter", 1)
        assert shown["hybridstore_misses"] == ("counter", 2)
        assert shown["hybridstore_memory_limit_bytes"] == ("gauge", LARGE)
        assert shown["hybridstore_read_bytes"] == ("counter", numbers.bytes_read)
        assert shown["hybridstore_read_amplification"] == ("gauge", pytest.approx(numbers.read_amplification))
        for name in ("freed_records", "freed_bytes", "dirty_keys", "dirty_bytes", "memory_bytes", "memory_records"):
            assert f"hybridstore_{name}" in shown


def test_an_engine_says_what_its_memory_does(tmp_path: Path) -> None:
    program = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    with program.open(tmp_path, memory_limit=LARGE) as engine:
        engine.process({"k": "a", "t": 1})
        engine.commit()
        (row,) = engine.metrics()
        assert row["memory_limit_bytes"] == LARGE
        assert row["memory_bytes"] > 0
        assert row["hits"] + row["misses"] >= 0


def test_commits_of_an_engine_estimate_bytes_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimates = Counter[str]()
    of_stores: Any = TimeBuckets.bytes_in_memory

    def counted(store: TimeBuckets) -> int:
        estimates[store.name] += 1
        size: int = of_stores.fget(store)
        return size

    monkeypatch.setattr(TimeBuckets, "bytes_in_memory", property(counted))
    program = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    commits = 3 * CHECK_COMMITS
    with program.open(tmp_path) as engine:
        sizes = []
        for i in range(commits):
            engine.process({"k": f"key {i % 100}", "t": 5})
            engine.commit()
            (row,) = engine.metrics()
            sizes.append(row["memory_bytes"])
            assert row["records_in_memory"] == min(i + 1, 100)  # a count is of the commit itself
        (name,) = engine.states[0].stores
        # at each doubling up to 64 records of 100, and each CHECK_COMMITS commits
        assert 7 <= estimates[name] <= 7 + commits // CHECK_COMMITS
        assert sizes[-1] > 10 * sizes[0]
        # who asks for the numbers of the state has an estimate of now
        before = estimates[name]
        assert engine.states[0].metrics().memory_bytes == of_stores.fget(engine.states[0].stores[name])
        assert estimates[name] == before + 1


@pytest.mark.parametrize("lazy", [True, False])
def test_a_state_that_never_commits_counts_for_a_limit_that_another_sets_later(tmp_path: Path, lazy: bool) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("seen").put_many({f"key {i}": "x" * 50 for i in range(20_000)})
        state.commit()
        if lazy:
            crash(state)
    with hs.open(tmp_path / "state", lazy=lazy) as state, hs.open(tmp_path / "other", memory_limit=LARGE) as other:
        assert state.key_value("seen").records_in_memory == 20_000
        counted = BUDGET.used(other._memory)[0] - other._memory.counted
        assert counted / 2 < state._memory.count() < 2 * counted


def test_an_opening_without_a_limit_estimates_nothing_and_a_limit_of_another_state_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("seen").put("ann", "x" * 1000)
        state.commit()
    estimates = list[str]()
    of_stores: Any = KeyBlocks.bytes_in_memory

    def counted(store: Any) -> int:
        estimates.append(store.name)
        size: int = of_stores.fget(store)
        return size

    monkeypatch.setattr(KeyBlocks, "bytes_in_memory", property(counted))
    with hs.open(tmp_path / "state") as state:
        state.key_value("seen")
        assert estimates == []
        with hs.open(tmp_path / "other", memory_limit=LARGE):
            state.key_value("seen").put("bob", "y" * 1000)
            state.commit()  # one commit of one record, behind which no count would be due
            assert estimates == ["seen"]
            assert state._memory.counted > 2000
