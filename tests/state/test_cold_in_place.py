"""States that become cold in place, with what changed since the checkpoint, answer as before, and as states without a
limit.
"""

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.hydration import COMMIT_BUDGET_MS
from hybridstore.state.memory import Memory
from hybridstore.stores.buckets import StoreBucket
from hybridstore.stores.window import WindowStore
from tests.tools.hooks import check_stores, crash, drained
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")


@pytest.fixture(autouse=True)
def looked_at_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.memory.CHECK_COMMITS", 1)


def test_key_value_stores_become_cold_without_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL) as state:
        plain, timed = state.key_value("k"), state.key_value("t", ttl=1000)
        for i in range(200):
            plain.put(i, i)
            timed.put(i, i, i)
        state.commit()
        state._checkpoint(state._usable(), wait=False)
        # while the checkpoint is in progress
        plain.put(7, "seven")
        plain.delete(8)
        plain.put(9, "nine")
        plain.delete(9)
        plain.put(500, "new")
        timed.put(150, "later", 1100)  # what is not later than 100 has expired
        timed.delete(151)
        state.commit()
        monkeypatch.setattr(state, "_restore_in_place", lambda: pytest.fail("a replay"))
        state._go_cold()
        assert (len(plain._runs), plain.cold_blocks > 0) == (4, True)
        check_stores(state)
        assert plain.get_many([6, 7, 8, 9, 10, 500]) == [6, "seven", None, None, 10, "new"]
        assert timed.get_many([100, 101, 150, 151, 152]) == [None, 101, "later", None, 152]
        plain.put(8, "again")
        timed.advance(1120)
        assert timed.get_many([119, 120, 121]) == [None, None, 121]
        state.commit()
        check_stores(state)
        state._go_cold()  # over the same checkpoint
        check_stores(state)
        state.checkpoint(wait=True)
        state._go_cold()
        check_stores(state)
        assert (len(plain), len(timed)) == (200, 200 - 121 - 1)
        rows = [dict(plain.all()), dict(timed.all())]
        right = {i: i for i in range(200) if i != 9} | {7: "seven", 8: "again", 500: "new"}
        assert rows == [right, {i: i for i in range(121, 200) if i != 151} | {150: "later"}]
    with hs.open(tmp_path / "s") as state:
        assert [dict(state.key_value("k").all()), dict(state.key_value("t", ttl=1000).all())] == rows


@pytest.mark.parametrize("reading", [False, True])
def test_window_and_session_stores_become_cold_without_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: bool
) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL) as state:
        rows, sessions = state.window("w", retention=1000), state.session("s", retention=1000)
        pairs = state.window("d", retention=1000, retain_duplicates=True)
        for i in range(400):
            rows.put(f"key {i % 40:02}", i, i)
            pairs.put(f"key {i % 40:02}", i, i)
            sessions.put(f"key {i % 40:02}", i, start=i, end=i + 5)
        state.commit()
        state._checkpoint(state._usable(), wait=False)

        def change(mark: str) -> None:
            for i in (3, 43, 83):
                rows.put("key 03", mark, i)
                pairs.put("key 03", mark, i)
                sessions.put("key 03", mark, start=i, end=i + 5)
            rows.delete("key 04", 4)
            sessions.delete("key 04", 4, 9)
            for i in range(245, 375):  # a bucket of which all is deleted
                rows.delete(f"key {i % 40:02}", i)
                sessions.delete(f"key {i % 40:02}", i, i + 5)
            for i in range(380, 390):  # a run that is changed in place
                rows.put("long", mark, i)
                sessions.put("long", mark, start=i, end=i)
            rows.put("new", mark, 5)
            rows.put("gone", mark, 5)
            rows.delete("gone", 5)
            sessions.put("new", mark, start=0, end=5)
            pairs.put("new", mark, 5)

        def contents() -> list[list[Any]]:
            return [list(store.all()) for store in (rows, pairs, sessions)]

        # while the checkpoint is in progress
        change("before")
        state.commit()
        right = contents()
        open_before = [iter(store.all()) for store in (rows, pairs, sessions)] if reading else []
        read = [[next(each)] for each in open_before]
        monkeypatch.setattr(state, "_restore_in_place", lambda: pytest.fail("a replay"))
        state._go_cold()
        assert rows.cold_blocks > 30
        assert rows.records_in_memory == sum(
            len(WindowStore._parts(run)[0]) for bucket in rows._buckets.values() for run in bucket.runs.values()
        )
        assert rows.records_in_memory < 60
        assert sum(len(bucket.runs) for bucket in sessions._buckets.values()) < 60
        check_stores(state)
        assert list(rows.fetch("key 04")) == [(i, i) for i in (44, 84, 124, 164, 204, 244)]
        assert (rows.get("key 03", 43), rows.get("new", 5), rows.get("gone", 5)) == ("before", "before", None)
        assert [value for _, value in pairs.fetch("key 03")][:6] == [3, "before", 43, "before", 83, "before"]
        # over what is cold, and over the same checkpoint
        change("after")
        state.commit()
        check_stores(state)
        state._go_cold()
        check_stores(state)
        change("last")
        state.commit()
        state._go_cold()
        assert [value for _, value in pairs.fetch("key 03")][:5] == [3, "before", "after", "last", 43]
        state.checkpoint(wait=True)
        state._go_cold()
        check_stores(state)
        if not reading:
            right = contents()
            # counts are exact once all is loaded
            check_stores(state)
            state._go_cold()
        assert [rest + list(each) for rest, each in zip(read, open_before, strict=True)] == (right if reading else [])
        assert [len(store) for store in (rows, pairs, sessions)] == [len(all_rows) for all_rows in contents()]
        right = contents()
        assert dict(right[0])["key 03", 43] == "last"
    with hs.open(tmp_path / "s") as state:
        rows, sessions = state.window("w", retention=1000), state.session("s", retention=1000)
        pairs = state.window("d", retention=1000, retain_duplicates=True)
        assert contents() == right


def test_stores_become_cold_over_a_checkpoint_that_lacks_what_was_deleted(tmp_path: Path) -> None:
    def put(state: hs.State, keys: str, ts: int) -> None:
        for key in keys:
            state.window("w", retention=1000).put(key, key, ts)
            state.session("s", retention=1000).put(key, key, start=ts, end=ts)

    def delete(state: hs.State, keys: str, ts: int) -> None:
        for key in keys:
            state.window("w", retention=1000).delete(key, ts)
            state.session("s", retention=1000).delete(key, ts, ts)

    def buckets(state: hs.State) -> list[StoreBucket]:
        return [bucket for name in "ws" for _, bucket in sorted(state.stores[name]._buckets.items())]

    given: dict[str, Any] = {"memory_limit": 1 << 40, "checkpoints": NEVER, "_tuning": SMALL}
    state = hs.open(tmp_path / "s", **given)
    put(state, "abcz", 1)
    put(state, "abcz", 300)
    state.commit()
    state.checkpoint(wait=True)
    delete(state, "z", 1)  # the last key of a block
    delete(state, "abcz", 300)  # a bucket
    state.commit()
    crash(state)
    with hs.open(tmp_path / "s", **given) as state:
        state.checkpoint(wait=True)
        # over the blocks of before, which have the keys
        assert [bucket.tombstoned for bucket in buckets(state)] == [{"z"}, {"a", "b", "c", "z"}] * 2
        for ts in (1, 300):
            put(state, "y", ts)
            delete(state, "y", ts)
        state.commit()
        for _ in range(2):
            assert state._memory.cool()
            assert [dict(bucket.runs) for bucket in buckets(state)] == [{}, {}]
            check_stores(state)
        put(state, "z", 300)
        state.commit()
        state.checkpoint(wait=True)
        assert state._memory.cool()
        check_stores(state)
        right = [("a", 1), ("b", 1), ("c", 1), ("z", 300)]
        for name in "ws":
            assert [(key, ts) for (key, ts, *_), _ in state.stores[name].all()] == right
        check_stores(state)


def test_pairs_that_the_writer_process_laid_over_a_block_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL) as state:
        pairs = state.window("d", retention=1000, retain_duplicates=True)
        pairs.put("a", 1, 1)
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        pairs.put("a", 2, 1)
        state.commit()
        # as it hands a checkpoint to the process: the stores of the owner copy nothing, and load nothing for it
        monkeypatch.setattr(WindowStore, "capture", lambda *_, **__: pytest.fail("made by a thread"))
        state._checkpoint(state._usable(), wait=False)
        attempt = state._checkpoints.attempt
        assert attempt is not None
        attempt.join()
        assert pairs.cold_blocks == 1
        pairs.put("a", 3, 1)
        state.commit()
        assert state.metrics().checkpoints_by_writer_process == 1
        assert state._memory.cool()
        assert [value for _, value in pairs.fetch("a")] == [1, 2, 3]
        check_stores(state)


def test_sliding_stores_and_buffers_become_cold_without_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL) as state:
        sums = state.sliding("l", size=1000, aggregator=hs.Sum())
        buffer = state.suppression("b", max_records=200, timer="first")
        for i in range(200):
            sums.add(f"key {i % 40:02}", i, i)
            buffer.put(f"key {i:03}", i, i)
        state.commit()
        state._checkpoint(state._usable(), wait=False)
        # while the checkpoint is in progress
        assert sums.add("key 07", 1000, 200)[3] == sum(range(7, 200, 40)) + 1000
        sums.add("key 08", 1000, 5)  # before values that the checkpoint has
        sums.add("new", 1, 200)
        assert buffer.put("key 150", "later", 300) == []
        assert buffer.put("key 200", 200, 200) == [("key 000", 0, 0)]
        state.commit()
        monkeypatch.setattr(state, "_restore_in_place", lambda: pytest.fail("a replay"))
        for _ in range(2):  # over the same checkpoint, too
            state._go_cold()
            assert sums.records_in_memory >= 8
            sums.free(1000)
            # of a key with a value before those that the checkpoint has, all values; of others those behind them
            assert (sorted(sums._runs), sorted(sums._older.cut)) == (["key 08"], ["key 07", "new"])
            assert sums.cold_blocks > 0
            assert (sorted(buffer._runs), buffer.cold_blocks > 0) == (["key 150", "key 200"], True)
            assert sums.records_in_memory == 1 + 6 + 1
            assert (buffer.records_in_memory, len(buffer), buffer.min_timestamp) == (2, 200, 1)
            check_stores(state)
        assert [sums.get(key)[3] for key in ("key 07", "key 08", "key 09", "new")] == [1435, 1440, 445, 1]
        assert list(sums.fetch("key 08")) == [(5, 1000), *((i, i) for i in range(8, 200, 40))]
        assert buffer.put("key 201", 201, 201) == [("key 001", 1, 1)]  # not the one that was emitted before
        assert [row[1] for row in buffer.put_many([("key 000", "again", 0), ("key 150", "last", 301)])] == ["again"]
        sums.advance(1050)
        state.commit()
        check_stores(state)
        state.checkpoint(wait=True)
        state._go_cold()
        check_stores(state)
        sums.free(1000)
        assert (sums.records_in_memory, buffer._runs, len(buffer)) == (0, {}, 200)
        sums.advance(1199)
        right = {"key 07": 1000, "key 39": 199, "new": 1}
        assert dict(sums.aggregates()) == right
        emitted = drained(buffer.flush())
        assert [key for key, _, _ in emitted] == [f"key {i:03}" for i in range(2, 202)]
        assert [value for _, value, _ in emitted] == [*range(2, 150), "last", *range(151, 202)]
        state.commit()
        check_stores(state)
    with hs.open(tmp_path / "s") as state:
        assert dict(state.sliding("l", size=1000, aggregator=hs.Sum()).aggregates()) == right
        assert len(state.suppression("b", max_records=200, timer="first")) == 0


def test_values_of_a_tail_before_and_behind_those_of_the_checkpoint_stay(tmp_path: Path) -> None:
    given: dict[str, Any] = {"memory_limit": 1 << 40, "checkpoints": NEVER, "_tuning": SMALL}
    state = hs.open(tmp_path / "s", **given)
    sums = state.sliding("l", size=1000, aggregator=hs.Sum())
    sums.add_columns(["a", "b", "c"], [1, 1, 1], [100, 100, 100])
    state.commit()
    state.checkpoint(wait=True)
    sums.add_columns(["a", "b"], [10, 100], [50, 200])
    state.commit()
    crash(state)
    with hs.open(tmp_path / "s", **given) as state:
        sums = state.sliding("l", size=1000, aggregator=hs.Sum())
        sums.apply_waiting()
        assert sorted(sums._runs) == ["a", "b"]  # beside the block
        for _ in range(2):
            assert state._memory.cool()
            check_stores(state)
        state.checkpoint(wait=True)
        assert state._memory.cool()
        check_stores(state)
        assert {key: sums.get(key)[3] for key in "abc"} == {"a": 11, "b": 101, "c": 1}


class Side:
    """One of two states with the same stores, of these `kinds`, that get the same calls."""

    def __init__(self, path: Path, limit: int | None, kinds: str) -> None:
        self.path, self.limit, self.kinds = path, limit, kinds
        self.open()

    def open(self) -> None:
        policy = NEVER if self.limit is None else hs.CheckpointPolicy()
        self.state = hs.open(self.path, memory_limit=self.limit, checkpoints=policy, _tuning=SMALL, durability="os")
        state = self.state
        if self.limit is None:
            # the limit of another state governs this one, too
            state._memory.relief = lambda *_, **__: None  # type: ignore[method-assign]
        self.stores: list[Any] = [state.key_value("kv"), state.key_value("ttl", ttl=300)]
        # iterators that were opened and not read to their end
        self.iterators: list[Any] = []
        if self.kinds == "key-value":
            return
        self.stores += [
            state.window("w", retention=400),
            state.window("dup", retention=400, retain_duplicates=True),
            state.session("s", retention=400),
        ]
        self.versions = state.versioned("v", history=200)
        if self.kinds == "by time":
            return
        self.stores += [
            state.sliding("l", size=300, aggregator=hs.Collect()),
            state.suppression("b", max_records=40, time_limit=200, timer="first"),
            state.suppression("bytes", max_bytes=300, timer="latest"),
            state.suppression("closed", until_window_closes=30),
        ]

    def call(self, kind: str, key: Any, number: int, ts: int) -> Any:
        """Make one call, and return its answer."""
        kv, ttl, window, duplicates, session, sliding, buffer, sized, final = [*self.stores, *[None] * 7][:9]
        calls: dict[str, Any] = {
            "kv put": lambda: kv.put(key, number),
            "kv get": lambda: kv.get(key),
            "kv get many": lambda: kv.get_many([key, f"k{number % 60:02}", "absent"]),
            "kv delete": lambda: kv.delete(key),
            "iterators open": lambda: self.iterators.extend(
                iter(store.all()) for store in (window, duplicates, session)
            ),
            "iterators next": lambda: [next(rows, None) for rows in self.iterators],
            "iterators end": lambda: [list(rows) for rows in [self.iterators.pop(0) for _ in self.iterators[:2]]],
            "kv range": lambda: list(kv.scan(key, reverse=bool(number % 2)))[:9],
            "ttl put": lambda: ttl.put(key, number, ts),
            "ttl get": lambda: ttl.get(key),
            "window put": lambda: window.put(key, number, ts),
            "window get": lambda: window.get(key, ts - number % 50),
            "window fetch": lambda: list(window.fetch(key)),
            "window delete": lambda: window.delete(key, ts - number % 50),
            "window scan": lambda: list(window.scan(key, None)),
            "duplicates put": lambda: duplicates.put(key, number, ts),
            "duplicates fetch": lambda: list(duplicates.fetch(key)),
            "session put": lambda: session.put(key, number, start=ts, end=ts + number % 9),
            "session find": lambda: list(session.find_sessions(key)),
            "session remove": lambda: [session.delete(*place) for place, _ in list(session.find_sessions(key))[:1]],
            "versioned put": lambda: self.versions.put(key, number, ts),
            "versioned delete": lambda: self.versions.delete(key, ts),
            "versioned get": lambda: self.versions.get(key, as_of=ts - number % 50),
            "sliding add": lambda: sliding.add(key, number, ts),
            "sliding get": lambda: sliding.get(key),
            "buffer put": lambda: buffer.put(key, number, ts),
            "buffer advance": lambda: list(buffer.advance(ts)),
            "buffer size": lambda: (len(buffer), buffer.min_timestamp),
            "sized put": lambda: sized.put(key, "x" * (number % 30), ts),
            "sized size": lambda: (len(sized), sized.buffer_size),
            "final put": lambda: final.put((key, ts // 100 * 100, ts // 100 * 100 + 100), number, ts),
            "final advance": lambda: list(final.advance(ts)),
            "final flush": lambda: list(final.flush()) if number % 9 == 0 else len(final),
        }
        return calls[kind]()

    def contents(self) -> list[Any]:
        all_rows = [list(store.all()) for store in self.stores[:6]]
        buffered = [list(store.buffered()) for store in self.stores[6:]]
        return [*all_rows, *buffered, *(len(store) for store in self.stores if store.kind != "sliding")]


CALLS = (
    "kv put", "kv get", "kv get many", "kv delete", "kv range", "ttl put", "ttl get", "window put", "window get",
    "window fetch", "window delete", "window scan", "duplicates put", "duplicates fetch", "session put",
    "session find", "session remove", "iterators open", "iterators next", "iterators end",
    "versioned put", "versioned delete", "versioned get", "sliding add", "sliding get",
    "buffer put", "buffer advance", "buffer size",
    "sized put", "sized size", "final put", "final put", "final advance", "final flush",
)  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize("limit", [1, 60_000])
@pytest.mark.parametrize("kinds", ["key-value", "by time", "all"])
def test_a_state_under_a_limit_answers_as_one_without(
    tmp_path: Path, seed: int, rounds: int, limit: int, kinds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cooled: list[bool] = []
    cool = Memory.cool
    monkeypatch.setattr(Memory, "cool", lambda *given: [cooled.append(cool(*given)), cooled[-1]][1])
    without = {
        "key-value": ("window", "dup", "session", "iterators", "versioned", "sliding", "buffer", "sized", "final"),
        "by time": ("sliding", "buffer", "sized", "final"),
    }
    calls = [call for call in CALLS if not call.startswith(without.get(kinds, ("?",)))]
    for turn in range(rounds):
        dice = random.Random(seed + turn)
        sliced = dice.random() < 0.5  # one bucket behind each commit becomes cold
        monkeypatch.setattr("hybridstore.state.memory.COMMIT_BUDGET_MS", 1e-6 if sliced else COMMIT_BUDGET_MS)
        monkeypatch.setattr("hybridstore.state.memory._COOLED_MS", 0 if sliced else 2e-3)
        limited = Side(tmp_path / f"{turn}limited", limit, kinds)
        free = Side(tmp_path / f"{turn}free", None, kinds)
        now, cold, between = 1000, 0, False
        cooled.clear()
        for step in range(1200):
            now += dice.choice([0, 0, 1, 3])
            key, number, ts = f"k{dice.randrange(60):02}", step, now - dice.choice([0, 0, 0, 20, 90])
            kind = dice.choice(calls)
            assert limited.call(kind, key, number, ts) == free.call(kind, key, number, ts), (seed + turn, step, kind)
            if dice.random() < 0.05:
                assert limited.state.commit() == free.state.commit()
                attempt = limited.state._checkpoints.attempt
                if attempt is not None and dice.random() < 0.6:
                    attempt.join()
                cold = max(cold, limited.state.metrics().cold_blocks)
                between |= limited.state._memory.cooling
                check_stores(limited.state)
            if dice.random() < 0.01:
                for side in (limited, free):
                    side.state.rollback()
                    side.iterators.clear()
            if dice.random() < 0.005:
                crash(limited.state)
                limited.open()
                free.state.rollback()
                free.iterators.clear()
        assert free.state.metrics().cold_blocks == 0
        assert limited.contents() == free.contents(), (seed + turn, "contents")
        assert cold > 0
        assert any(cooled)
        assert between or not sliced
        assert limited.state.metrics().failed_checkpoints == 0
        limited.state.commit()
        limited.state.close()
        limited.open()
        assert limited.contents() == free.contents(), (seed + turn, "contents after a restart")
        for side in (limited, free):
            side.state.close()
