"""State machines: random calls on a real store and on its model, which must agree after every one of them.

Each kind of store has a machine, and one machine holds all kinds in one directory. Commit, rollback, checkpoint, crash,
reopening and going cold are rules like any other, the thresholds are so small that everything rolls, splits and packs
within ten calls, and `_check()` asserts every invariant of a store after every rule. `make stress N=` runs them long.
"""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hybridstore as hs
from changelog.segment import list_segments
from hybridstore.clock import BY_ADVANCE
from hybridstore.stores import suppression
from tests.tools.checkpoints import versions
from tests.tools.hooks import crash, force_cold
from tests.tools.model import WHOLE, ModelBufferFullError, ModelState, ModelStore
from tests.tools.vector_runner import AGGREGATORS, SMALL, SMALL_RUNS, SMALL_TAIL

KEYS: dict[str, list[Any]] = {
    "str": ["", "a", "aa", "b", "é", "\U0001f600"],
    "bytes": [b"", b"\x00", b"a", b"a\x00", b"\xff", b"\xff\xff"],
    "int": [-(2**63), -1, 0, 1, 256, 2**63 - 1],
    "float": [float("-inf"), -1.5, 0.0, 5e-324, 1.0, float("inf")],
    "tuple": [("a",), ("a", -1), ("a", 1), ("aa", 0), ("b", 0), ("b", 1)],
}
# No two of these are equal for Python, so that a comparison of rows is one of types as well.
VALUES: list[Any] = ["v", 0, -7, 2**70, 2.5, b"\x00", (1, 2), [1, 2], [(1,), [1]], {"a": (None, True)}, {3}, ""]

numbers = st.integers(0, 5)  # of a key in KEYS
values = st.sampled_from(VALUES)
values_or_none = st.one_of(st.none(), values)
# Times are drawn from about the stream time, so that most are near a boundary of retention, grace or a bucket.
offsets = st.integers(-25, 12)
spans = st.integers(0, 8)
jumps = st.sampled_from([20, 100, 10**6, 10**12])
directions = st.booleans()


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, bound in (SMALL_RUNS | SMALL_TAIL).items():
        monkeypatch.setattr(place, bound)
    monkeypatch.setattr(suppression, "_PIECE", 2)


def size_of(key: Any, value: Any) -> int:
    return len(repr(key)) + len(repr(value))


class StateMachine(RuleBasedStateMachine):
    """A state directory and its model; the rules that are about the directory, not about a kind of store."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hybridstore-"))
        self.declared: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {}
        self.disk: dict[str, Any] = {}
        self.keys = KEYS["str"]
        self.version = 0
        self.past: dict[int, dict[str, Any]] = {}  # what was committed, by version
        self.memory_limit: int | None = None
        self.alone = 0
        self.iterators: list[tuple[Iterator[Any], list[Any]]] = []
        self.open()

    # False: the time of every store is moved by `advance` alone, as where a watermark is the time
    by_records = True

    def timed(self, state: Any) -> Any:
        """Return a state whose stores are timed as this machine's are."""
        if not self.by_records:
            plain = state._open_store
            state._open_store = lambda name, kind, parameters, *more: plain(
                name, kind, {**parameters, **BY_ADVANCE}, *more
            )
        return state

    def open(self) -> None:
        self.state: Any = self.timed(
            hs.open(self.folder / "state", durability="os", memory_limit=self.memory_limit, _tuning=SMALL)
        )
        self.model = ModelState(self.disk, self.by_records)
        self.iterators = []
        for name in self.declared:
            self.store(name)

    def declare(self, name: str, kind: str, real: dict[str, Any], model: dict[str, Any] | None = None) -> None:
        self.declared[name] = (kind, real, real if model is None else model)
        self.store(name)

    def store(self, name: str) -> tuple[Any, Any]:
        kind, real, model = self.declared[name]
        return getattr(self.state, kind)(name, **real), getattr(self.model, kind)(name, **model)

    def both(self, name: str, call: str, *args: Any, **options: Any) -> None:
        """The same call on the store and on its model; it must give the same, rows or a value."""
        actual, expected = (shown(getattr(store, call)(*args, **options)) for store in self.store(name))
        assert actual == expected, f"{name}.{call}{args} {options}: found {actual}, expected {expected}"

    def bound(self, name: str, offset: int) -> int:
        """A time to ask about, which may lie before the epoch."""
        model: ModelStore = self.store(name)[1]
        return model.stream_time + offset

    def time(self, name: str, offset: int) -> int:
        return max(0, self.bound(name, offset))

    def hold(self, name: str, call: str, *args: Any, **options: Any) -> None:
        """Open an iterator and keep it: what it gives later is what was there now."""
        real, model = self.store(name)
        if len(self.iterators) < 3:
            self.iterators.append((getattr(real, call)(*args, **options), list(getattr(model, call)(*args, **options))))

    @initialize(kind=st.sampled_from(sorted(KEYS)))
    def choose_keys(self, kind: str) -> None:
        self.keys = KEYS[kind]

    def committed(self) -> None:
        """Called when a commit has made a new version."""

    def lost(self) -> None:
        """Called when what was not committed is gone."""

    @rule()
    def commit(self) -> None:
        if self.memory_limit is not None:
            # as if many records had been put: the budget is looked at now, and everything goes cold
            self.state._memory._unchecked = self.state._memory._unchecked._replace(records=10**6)
        version = self.state.commit()
        assert version == self.state.version
        assert version in (self.version, self.version + 1)
        self.model.commit()
        if version > self.version:
            self.version = version
            self.past[version] = dict(self.disk)
            self.committed()

    @rule()
    def rollback(self) -> None:
        self.state.rollback()
        self.model.rollback()
        self.lost()
        assert self.state.version == self.version

    @rule(wait=st.booleans())
    def checkpoint(self, wait: bool) -> None:
        self.commit()
        self.state.checkpoint(wait=wait)

    @rule()
    def crash(self) -> None:
        crash(self.state)
        self.open()
        self.lost()
        assert self.state.version == self.version

    @rule()
    def reopen(self) -> None:
        self.commit()
        self.state.close()
        self.open()
        assert self.state.version == self.version

    @rule(limit=st.sampled_from([None, 1]))
    def limit_memory(self, limit: int | None) -> None:
        self.memory_limit = limit
        self.reopen()

    @rule(ago=st.integers(0, 4))
    def look_back(self, ago: int) -> None:
        """A version that was kept is what was committed as that version, whatever came after it."""
        version = self.version - ago
        if version < 1:
            return
        self.state._checkpoints.finish(wait=True)
        path = self.folder / "state"
        kept, segments = versions(path), list_segments(path / "changelog")
        if segments[0] > 1 and version < kept[0]:
            with pytest.raises(hs.errors.RestoreError, match=r"is not retained|is missing"):
                hs.open(path, at=version, _tuning=SMALL)
            return
        with self.timed(hs.open(path, at=version, _tuning=SMALL)) as past:
            assert past.version == version
            expected = ModelState(dict(self.past[version]), self.by_records)
            for name in self.past[version]:
                kind, real, model = self.declared[name]
                stores = getattr(past, kind)(name, **real), getattr(expected, kind)(name, **model)
                for call in WHOLE[kind]:
                    then, now = (shown(getattr(store, call)()) for store in stores)
                    assert then == now, f"{name}.{call} at {version}: found {then}, expected {now}"
                stores[0]._check()

    @rule(records=st.sampled_from([0, 5, 1000]))
    def force_cold(self, records: int) -> None:
        """Become cold, and free so many records of each store that the checkpoint has, too."""
        self.commit()
        force_cold(self.state)
        for store in self.state.stores.values():
            store.free(records)

    @precondition(lambda self: self.iterators)
    @rule(some=st.integers(0, 3))
    def read_iterator(self, some: int) -> None:
        """Read a few rows of the iterator that is open longest; at its end, or for 0, read it out and let it go."""
        rows, expected = self.iterators[0]
        listed = list(itertools.islice(rows, some)) if some else list(rows)
        assert listed == expected[: len(listed)]
        del expected[: len(listed)]
        if not some or len(listed) < some:
            assert expected == []
            del self.iterators[0]

    @invariant()
    def sound(self) -> None:
        for name in self.declared:
            self.store(name)[0]._check()

    @rule(looks=st.integers(2, 12))
    def leave_alone(self, looks: int) -> None:
        """For so many rules nobody asks for everything, so that what a restart left to wait goes on waiting."""
        self.alone = looks

    @invariant()
    def same(self) -> None:
        if self.alone:
            self.alone -= 1
            return
        for name, (kind, _, _) in self.declared.items():
            real, model = self.store(name)
            for call in WHOLE[kind]:
                self.both(name, call)
            assert {reason: count for reason, count in real.dropped.items() if count} == model.dropped

    def teardown(self) -> None:
        try:
            for rows, expected in self.iterators:
                assert list(rows) == expected
            self.state.close()
        finally:
            shutil.rmtree(self.folder)


def shown(result: Any) -> Any:
    return list(result) if isinstance(result, Iterator) else result


class KeyValueRules(StateMachine):
    @initialize()
    def declare_key_value(self) -> None:
        self.declare("kv", "key_value", {})

    @rule(key=numbers, value=values_or_none)
    def kv_put(self, key: int, value: Any) -> None:
        self.both("kv", "put", self.keys[key], value)

    @rule(key=numbers)
    def kv_delete(self, key: int) -> None:
        self.both("kv", "delete", self.keys[key])

    @rule(key=numbers, value=values)
    def kv_put_if_absent(self, key: int, value: Any) -> None:
        self.both("kv", "put_if_absent", self.keys[key], value)

    @rule(entries=st.lists(st.tuples(numbers, values_or_none), max_size=5), mapping=st.booleans())
    def kv_put_several(self, entries: list[tuple[int, Any]], mapping: bool) -> None:
        rows = [(self.keys[key], value) for key, value in entries]
        self.both("kv", "put_many", dict(rows) if mapping else rows)

    @rule(key=numbers, value=values)
    def kv_refused(self, key: int, value: Any) -> None:
        """Every entry is checked before the first is put."""
        with pytest.raises(TypeError):
            self.store("kv")[0].put_many([(self.keys[key], value), (self.keys[key], object())])

    @rule(low=st.none() | numbers, high=st.none() | numbers, reverse=directions)
    def kv_scan(self, low: int | None, high: int | None, reverse: bool) -> None:
        bounds = (None if number is None else self.keys[number] for number in (low, high))
        self.both("kv", "scan", *bounds, reverse=reverse)

    @precondition(lambda self: isinstance(self.keys[0], str | bytes | tuple))
    @rule(key=numbers, length=st.integers(0, 2), reverse=directions)
    def kv_scan_of_a_prefix(self, key: int, length: int, reverse: bool) -> None:
        self.both("kv", "scan", prefix=self.keys[key][:length], reverse=reverse)

    @rule(key=numbers)
    def kv_mapping(self, key: int) -> None:
        real, model = self.store("kv")
        self.both("kv", "get", self.keys[key])
        self.both("kv", "__contains__", self.keys[key])
        assert list(real) == list(model)
        assert dict(real) == dict(model.all())

    @rule(reverse=directions)
    def kv_hold(self, reverse: bool) -> None:
        self.hold("kv", "all", reverse=reverse)


class ExpiringKeyValueRules(StateMachine):
    @initialize(ttl=st.sampled_from([1, 5, 20]))
    def declare_expiring_key_value(self, ttl: int) -> None:
        self.declare("ttl", "key_value", {"ttl": ttl})

    @rule(key=numbers, value=values_or_none, offset=offsets)
    def ttl_put(self, key: int, value: Any, offset: int) -> None:
        self.both("ttl", "put", self.keys[key], value, self.time("ttl", offset))

    @rule(key=numbers, value=values, jump=jumps)
    def ttl_jump(self, key: int, value: Any, jump: int) -> None:
        self.both("ttl", "put", self.keys[key], value, self.time("ttl", jump))

    @rule(offset=offsets | jumps)
    def ttl_advance(self, offset: int) -> None:
        self.both("ttl", "advance", self.time("ttl", offset))

    @rule(key=numbers)
    def ttl_delete(self, key: int) -> None:
        self.both("ttl", "delete", self.keys[key])

    @rule(low=numbers, high=numbers, reverse=directions)
    def ttl_read(self, low: int, high: int, reverse: bool) -> None:
        self.both("ttl", "get", self.keys[low])
        self.both("ttl", "scan", self.keys[low], self.keys[high], reverse=reverse)

    @rule(reverse=directions)
    def ttl_hold(self, reverse: bool) -> None:
        self.hold("ttl", "all", reverse=reverse)


class WindowRules(StateMachine):
    @initialize(retention=st.sampled_from([1, 5, 20]), grace=st.sampled_from([None, 0, 1, 4]), duplicates=st.booleans())
    def declare_window(self, retention: int, grace: int | None, duplicates: bool) -> None:
        self.declare("w", "window", {"retention": retention, "grace": grace, "retain_duplicates": duplicates})

    @rule(key=numbers, value=values_or_none, offset=offsets)
    def window_put(self, key: int, value: Any, offset: int) -> None:
        self.both("w", "put", self.keys[key], value, self.time("w", offset))

    @rule(key=numbers, value=values_or_none, jump=jumps)
    def window_jump(self, key: int, value: Any, jump: int) -> None:
        self.both("w", "put", self.keys[key], value, self.time("w", jump))

    @rule(offset=offsets | jumps)
    def window_advance(self, offset: int) -> None:
        self.both("w", "advance", self.time("w", offset))

    @rule(rows=st.lists(st.tuples(numbers, values_or_none, offsets), max_size=6), columns=st.booleans())
    def window_put_several(self, rows: list[tuple[int, Any, int]], columns: bool) -> None:
        real, model = self.store("w")
        records = [(self.keys[key], value, self.time("w", offset)) for key, value, offset in rows]
        if columns:
            real.put_columns(*([record[column] for record in records] for column in range(3)))
        else:
            real.put_many(records)
        model.put_many(records)

    @rule(key=numbers, offset=offsets)
    def window_get(self, key: int, offset: int) -> None:
        self.both("w", "get", self.keys[key], self.time("w", offset))

    @rule(keys=st.tuples(numbers, numbers), offset=offsets, span=spans, reverse=directions, open_keys=st.booleans())
    def window_fetch(self, keys: tuple[int, int], offset: int, span: int, reverse: bool, open_keys: bool) -> None:
        start = self.bound("w", offset)
        times = (start, start + span)
        low, high = (None if open_keys else self.keys[key] for key in keys)
        self.both("w", "fetch", self.keys[keys[0]], *times, reverse=reverse)
        bounds = {"time_from": times[0], "time_to": times[1]}
        self.both("w", "scan", low, high, **bounds, reverse=reverse)
        self.both("w", "scan", **bounds, reverse=reverse)
        if isinstance(self.keys[0], str | bytes | tuple):
            self.both("w", "scan", prefix=self.keys[keys[1]][:1], **bounds, reverse=reverse)
        self.both("w", "all", reverse=reverse)

    @rule(key=numbers, start=st.none() | offsets, end=st.none() | offsets)
    def window_fetch_open(self, key: int, start: int | None, end: int | None) -> None:
        times = [None if offset is None else self.bound("w", offset) for offset in (start, end)]
        self.both("w", "fetch", self.keys[key], *times)
        self.both("w", "scan", time_from=times[0], time_to=times[1])

    @rule(key=numbers, reverse=directions, whole=st.booleans())
    def window_hold(self, key: int, reverse: bool, whole: bool) -> None:
        if whole:
            self.hold("w", "all", reverse=reverse)
        else:
            self.hold("w", "fetch", self.keys[key], 0, 2**62, reverse=reverse)


class SessionRules(StateMachine):
    @initialize(retention=st.sampled_from([1, 5, 20]))
    def declare_session(self, retention: int) -> None:
        self.declare("s", "session", {"retention": retention})

    def session(self, offset: int, span: int) -> tuple[int, int]:
        end = self.time("s", offset)
        return max(0, end - span), end

    @rule(key=numbers, value=values_or_none, offset=offsets, span=spans)
    def session_put(self, key: int, value: Any, offset: int, span: int) -> None:
        self.both("s", "put", self.keys[key], value, *self.session(offset, span))

    @rule(key=numbers, value=values_or_none, jump=jumps, span=spans | jumps)
    def session_jump(self, key: int, value: Any, jump: int, span: int) -> None:
        self.both("s", "put", self.keys[key], value, *self.session(jump, span))

    @rule(offset=offsets | jumps)
    def session_advance(self, offset: int) -> None:
        self.both("s", "advance", self.time("s", offset))

    @rule(rows=st.lists(st.tuples(numbers, offsets, spans, values_or_none), max_size=6), columns=st.booleans())
    def session_put_several(self, rows: list[tuple[int, int, int, Any]], columns: bool) -> None:
        real, model = self.store("s")
        records = [(self.keys[key], value, *self.session(offset, span)) for key, offset, span, value in rows]
        if columns:
            real.put_columns(*([record[column] for record in records] for column in range(4)))
        else:
            real.put_many(records)
        model.put_many(records)

    @rule(data=st.data(), offset=offsets, span=spans, key=numbers)
    def session_delete(self, data: st.DataObject, offset: int, span: int, key: int) -> None:
        there = [session for session, _ in self.store("s")[1].all()]
        absent = (self.keys[key], *self.session(offset, span))
        self.both("s", "delete", *data.draw(st.sampled_from([*there, absent])))

    @rule(keys=st.tuples(numbers, numbers), offset=offsets, span=spans, reverse=directions, open_keys=st.booleans())
    def session_find(self, keys: tuple[int, int], offset: int, span: int, reverse: bool, open_keys: bool) -> None:
        start, end = self.session(offset, span)
        key = self.keys[keys[0]]
        low, high = (None if open_keys else self.keys[number] for number in keys)
        self.both("s", "get", key, start, end)
        self.both("s", "fetch", key, reverse=reverse)
        self.both("s", "scan", low, high, time_from=start, time_to=end, reverse=reverse)
        if isinstance(key, str | bytes | tuple):
            self.both("s", "scan", prefix=key[:1], reverse=reverse)
        for earliest, latest in ((start, end), (end, start), (self.bound("s", offset), end + span)):
            self.both("s", "find_sessions", key, earliest, latest, reverse=reverse)
            self.both("s", "find_sessions_range", low, high, earliest, latest, reverse=reverse)
            self.both("s", "find_sessions_by_end", earliest, latest, reverse=reverse)

    @rule(key=numbers, reverse=directions, whole=st.booleans())
    def session_hold(self, key: int, reverse: bool, whole: bool) -> None:
        if whole:
            self.hold("s", "all", reverse=reverse)
        else:
            self.hold("s", "find_sessions", self.keys[key], 0, 2**62, reverse=reverse)


class SuppressionRules(StateMachine):
    @initialize(
        records=st.sampled_from([None, 0, 2, 4]),
        total=st.sampled_from([None, 40]),
        limit=st.sampled_from([None, 0, 5, 20]),
        timer=st.sampled_from(["first", "latest"]),
        on_full=st.sampled_from(["emit", "emit", "raise"]),
    )
    def declare_suppression(self, records: Any, total: Any, limit: Any, timer: str, on_full: str) -> None:
        bounds = {"max_records": records, "max_bytes": total, "time_limit": limit}
        self.newest, self.pending = [], []
        self.declare("b", "suppression", {**bounds, "timer": timer, "on_full": on_full, "size_of": size_of})

    # What the newest version emitted, and what has been emitted since
    newest: list[tuple[Any, ...]]
    pending: list[tuple[Any, ...]]

    def emitting(self, call: str, *args: Any, pieces: int | None = None) -> None:
        outcomes = []
        for store in self.store("b"):
            records: list[tuple[Any, ...]] = []
            try:
                answer = getattr(store, call)(*args)
                for piece in [answer] if call == "put" else islice(answer, pieces):
                    records += piece
                outcomes.append(("emitted", records))
            except (hs.BufferFullError, ModelBufferFullError) as error:
                outcomes.append(("full", records + error.emitted))
        assert outcomes[0] == outcomes[1]
        self.pending += outcomes[0][1]

    def committed(self) -> None:
        super().committed()
        self.newest = [(self.version, *row) for row in self.pending]
        self.pending = []

    def lost(self) -> None:
        super().lost()
        self.pending = []

    @rule(key=numbers, value=values_or_none, offset=offsets)
    def suppression_put(self, key: int, value: Any, offset: int) -> None:
        self.emitting("put", self.keys[key], value, self.time("b", offset))

    @rule(key=numbers, value=values_or_none, jump=jumps)
    def suppression_jump(self, key: int, value: Any, jump: int) -> None:
        self.emitting("put", self.keys[key], value, self.time("b", jump))

    @rule(offset=offsets | jumps, pieces=st.none() | st.integers(0, 2))
    def suppression_advance(self, offset: int, pieces: int | None) -> None:
        self.emitting("advance", self.time("b", offset), pieces=pieces)

    @rule()
    def suppression_hold(self) -> None:
        self.hold("b", "buffered")

    @invariant()
    def same_measures(self) -> None:
        if "b" in self.declared:
            real, model = self.store("b")
            for measure in ("num_records", "buffer_size", "min_timestamp"):
                assert getattr(real, measure) == getattr(model, measure), measure
            # Whoever remembers the version that it took last sees every emission exactly once, over all restarts.
            assert real.emitted() == self.newest


class FinalResultRules(StateMachine):
    """Suppression until windows close: keys are (key, start, end)."""

    @initialize(grace=st.sampled_from([0, 3]))
    def declare_final_results(self, grace: int) -> None:
        self.declare("f", "suppression", {"until_window_closes": grace}, {"until_window_closes": grace})

    @rule(key=numbers, value=values_or_none, offset=offsets, span=spans)
    def final_put(self, key: int, value: Any, offset: int, span: int) -> None:
        ts = self.time("f", offset)
        window = ("abcdef"[key], ts // 10 * 10, ts // 10 * 10 + 10)
        self.both("f", "put", window, value, max(0, ts - span))

    @rule(offset=offsets | jumps)
    def final_advance(self, offset: int) -> None:
        self.both("f", "advance", self.time("f", offset))


class SlidingRules(StateMachine):
    @initialize(size=st.sampled_from([1, 5, 20]), aggregator=st.sampled_from(sorted(AGGREGATORS)))
    def declare_sliding(self, size: int, aggregator: str) -> None:
        real = {"size": size, "aggregator": getattr(hs, AGGREGATORS[aggregator])()}
        self.declare("l", "sliding", real, {"size": size, "aggregator": aggregator})

    @rule(key=numbers, value=st.integers(-9, 9), offset=offsets)
    def sliding_add(self, key: int, value: int, offset: int) -> None:
        self.both("l", "add", self.keys[key], value, self.time("l", offset))

    @rule(reverse=directions, aggregates=st.booleans())
    def sliding_hold(self, reverse: bool, aggregates: bool) -> None:
        if aggregates:
            self.hold("l", "aggregates")
        else:
            self.hold("l", "all", reverse=reverse)

    @rule(key=numbers, value=st.integers(-9, 9), jump=jumps)
    def sliding_jump(self, key: int, value: int, jump: int) -> None:
        self.both("l", "add", self.keys[key], value, self.time("l", jump))


class AllKinds(
    KeyValueRules, ExpiringKeyValueRules, WindowRules, SessionRules, SuppressionRules, FinalResultRules, SlidingRules
):
    """Every kind in one directory: they commit, roll back, crash and go cold together."""


class TimedByAdvance(ExpiringKeyValueRules, WindowRules, SessionRules, SuppressionRules, FinalResultRules):
    """Stores that only `advance` moves: a record may be newer than stream time, and older than one that is there."""

    by_records = False


TestKeyValue = KeyValueRules.TestCase
TestExpiringKeyValue = ExpiringKeyValueRules.TestCase
TestWindow = WindowRules.TestCase
TestSession = SessionRules.TestCase
TestSuppression = SuppressionRules.TestCase
TestFinalResults = FinalResultRules.TestCase
TestSliding = SlidingRules.TestCase
TestAllKinds = AllKinds.TestCase
TestTimedByAdvance = TimedByAdvance.TestCase
