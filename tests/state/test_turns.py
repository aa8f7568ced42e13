"""One thread owns a state, and makes one call at a time: a second call, of another thread or of a signal handler in the
middle of a call, is refused before it changes anything, and the first call goes on unharmed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog import digest
from changelog.errors import HybridStoreError, StateInUseError, StatePoisonedError
from changelog.journal import Journal
from hybridstore.stores.key_value import KeyValueStore
from tests.conftest import STRESS
from tests.tools.hooks import check_stores, crash
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(max_restore="1 hour")
SEEDS = 200 if STRESS else 4
VALUES = [1, "s", "x" * 300, b"y" * 9_000, "x" * 70_000, "x" * 200_000]


def in_thread(call: Callable[[], Any], name: str = "other") -> Any:
    """Return what a call returns, or the error that it raises, in another thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    return outcome[0]


class Five:
    """The five kinds of stores in a state, and every call of them and of the state."""

    def __init__(self, state: hs.State) -> None:
        self.state = state
        self.kv = state.key_value("kv")
        self.ttl = state.key_value("ttl", ttl=1000)
        self.window = state.window("window", retention=1000, grace=1000)
        self.session = state.session("session", retention=1000)
        self.sliding = state.sliding("sliding", size=1000, aggregator=hs.Sum())
        self.buffer = state.suppression("buffer", time_limit=1000)

    def fill(self, count: int = 20) -> None:
        for i in range(count):
            key = f"k{i % 7}"
            self.kv.put(key, i)
            self.ttl.put(key, i, i)
            self.window.put(key, i, i)
            self.session.put(key, i, start=i, end=i)
            self.sliding.add(key, i, i)
            self.buffer.put(key, i, i)

    def contents(self) -> list[Any]:
        stores = (self.kv, self.ttl, self.window, self.session, self.sliding)
        rows = [list(store.all()) for store in stores]  # type: ignore[attr-defined]
        return [*rows, list(self.buffer.buffered()), self.state.settings]

    def writes(self) -> dict[str, Callable[[], Any]]:
        big = "x" * 70_000
        return {
            "kv.put": lambda: self.kv.put("k1", 1), "kv.put big": lambda: self.kv.put("k1", big),
            "kv.erase": lambda: self.kv.erase("k1"),
            "kv.delete": lambda: self.kv.delete("k1"), "kv.put None": lambda: self.kv.put("k1", None),
            "kv.put_many": lambda: self.kv.put_many([("k1", 1), ("k2", None)]),
            "kv.put_many of a mapping": lambda: self.kv.put_many({"k1": 1}), "kv.clear": lambda: self.kv.clear(),
            "kv.put_columns": lambda: self.kv.put_columns(["k1"], [1]), "kv.pop": lambda: self.kv.pop("k1"),
            "ttl.put": lambda: self.ttl.put("k1", 1, 50), "ttl.advance": lambda: self.ttl.advance(90),
            "window.put": lambda: self.window.put("k1", 1, 50), "window.delete": lambda: self.window.delete("k1", 1),
            "window.put_many": lambda: self.window.put_many([("k1", 1, 5)]),
            "window.put_plain": lambda: self.window.put_plain(["k1"], [1], [50]),
            "window.advance": lambda: self.window.advance(90),
            "session.put": lambda: self.session.put("k1", 1, start=5, end=50),
            "session.delete": lambda: self.session.delete("k1", 1, 1),
            "session.put_many": lambda: self.session.put_many([("k1", 1, 5, 5)]),
            "sliding.add": lambda: self.sliding.add("k1", 1, 50),
            "sliding.add_many": lambda: self.sliding.add_many([("k1", 1, 50)]),
            "sliding.add_columns": lambda: self.sliding.add_columns(["k1"], [1], [50]),
            "sliding.advance": lambda: self.sliding.advance(90),
            "buffer.put": lambda: self.buffer.put("k1", 1, 50),
            "buffer.put_many": lambda: self.buffer.put_many([("k1", 1, 50)]),
            "buffer.advance": lambda: list(self.buffer.advance(5000)),
            "buffer.flush": lambda: list(self.buffer.flush()),
            "commit": self.state.commit, "rollback": self.state.rollback, "checkpoint": self.state.checkpoint,
            "set": lambda: self.state.set("a", 1), "hydrate": self.state.hydrate, "close": self.state.close,
            "store": lambda: self.state.key_value("another"), "hand_over": self.state.hand_over,
        }  # fmt: skip

    def large_writes(self, big: str) -> list[Callable[[], Any]]:
        return [
            lambda: self.kv.put(big, big), lambda: self.kv.put_many({"k1": big}), lambda: self.kv.pop(big, big),
            lambda: self.kv.put_columns(["k1"], [big]), lambda: self.ttl.put("k1", big, 50),
            lambda: self.window.put("k1", big, 50), lambda: self.window.put_many([("k1", big, 5)]),
            lambda: self.session.put("k1", big, start=5, end=50), lambda: self.sliding.add("k1", big, 50),
            lambda: self.sliding.add_columns(["k1"], [big], [50]), lambda: self.buffer.put("k1", big, 50),
            lambda: self.state.set("a", big),
        ]  # fmt: skip

    def reads(self) -> dict[str, Callable[[], Any]]:
        return {
            "kv.get absent": lambda: self.kv.get("absent"), "kv.get_many": lambda: self.kv.get_many(["k1"]),
            "kv.all": lambda: list(self.kv.all()), "kv.items": lambda: list(self.kv.items()),
            "kv.scan": lambda: list(self.kv.scan(prefix="k")), "len(kv)": lambda: len(self.kv),
            "ttl.by_time": self.ttl.by_time,
            "window.get": lambda: self.window.get("k1", 1), "window.fetch": lambda: list(self.window.fetch("k1")),
            "window.get_many": lambda: self.window.get_many(["k1"], 1),
            "window.all": lambda: list(self.window.all()), "len(window)": lambda: len(self.window),
            "session.get": lambda: self.session.get("k1", 1, 1), "session.fetch": lambda: list(self.session.fetch("k")),
            "session.all": lambda: list(self.session.all()), "len(session)": lambda: len(self.session),
            "session.find_sessions_by_end": lambda: list(self.session.find_sessions_by_end(1, 5)),
            "sliding.get": lambda: self.sliding.get("k1"), "sliding.fetch": lambda: list(self.sliding.fetch("k1")),
            "sliding.aggregates": lambda: list(self.sliding.aggregates()),
            "sliding.all": lambda: list(self.sliding.all()),
            "buffer.buffered": lambda: list(self.buffer.buffered()), "buffer.emitted": self.buffer.emitted,
            "len(buffer)": lambda: len(self.buffer), "min_timestamp": lambda: self.buffer.min_timestamp,
            "buffer_size": lambda: self.buffer.buffer_size, "metrics": self.state.metrics,
        }  # fmt: skip


def opened(path: Path, **options: Any) -> hs.State:
    return hs.open(path, durability="os", checkpoints=NEVER, **options)


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Five]:
    with opened(tmp_path / "state") as state:
        stores = Five(state)
        stores.fill()
        state.commit()
        stores.fill(3)
        yield stores


def test_another_threads_call_is_refused_and_changes_nothing(five: Five) -> None:
    five.contents()
    before, journal = five.contents(), list(five.state.group.journal.items)
    for name, call in {**five.writes(), **five.reads()}.items():
        error = in_thread(call)
        assert isinstance(error, StateInUseError), (name, error)
        assert "found a call by thread 'other', expected thread 'MainThread': one thread owns a state" in str(error)
        assert "hand_over()" in str(error)
    assert five.contents() == before
    assert five.state.group.journal.items == journal
    assert five.state.commit() == 2
    check_stores(five.state)


@pytest.mark.parametrize("size", [1, 10_000, 70_000, 1_100_000, 20_000_000])
def test_another_threads_write_is_refused_whatever_the_size_of_the_value(five: Five, size: int) -> None:
    before, journal = five.contents(), list(five.state.group.journal.items)
    for number, call in enumerate(five.large_writes("x" * size)):
        assert isinstance(in_thread(call), StateInUseError), number
    assert five.contents() == before
    assert five.state.group.journal.items == journal
    assert five.state.commit() == 2


def test_no_public_method_of_a_store_is_forgotten(five: Five) -> None:
    # what the owner of stores calls, in a call of its own
    inner = {
        "age", "alter", "appliers", "attach", "batch_appliers", "bind", "bytes_in_memory", "capture", "clear_state",
        "cold_blocks", "cold_records", "cool", "count_lookups", "cuts", "decoded_blocks", "end_version", "far", "free",
        "maps", "num_records", "part", "prefetch", "read_in", "recall", "seal", "unseal", "use_finder",
        "records_in_memory", "rows_of", "apply_waiting", "pin_key_type", "apply_some_waiting", "refuse_calls", "touch",
        "take_ended", "waiting_rows", "warm",
        "add_for_columns", "hold_columns", "move_time", "times_of",
    }  # fmt: skip
    # each by way of another one, and a look at a value in memory
    by_others = {
        "get", "keys", "items", "values", "popitem", "setdefault", "update", "put_if_absent", "scan", "rows",
        "fetch_many", "fetch_columns", "find_sessions", "find_sessions_range", "put_columns", "advance",
    }  # fmt: skip
    tried = {name.split(".")[-1].split(" ")[0] for name in {**five.writes(), **five.reads()}}
    for store in five.state.stores.values():
        for name in dir(type(store)):
            if not name.startswith(("_", "apply_")) and callable(getattr(type(store), name, None)):
                assert name in tried | inner | by_others, (type(store).__name__, name)


def test_a_value_in_memory_is_seen_by_every_thread(five: Five) -> None:
    assert in_thread(lambda: five.kv.get("k1")) == five.kv.get("k1")
    assert in_thread(lambda: five.kv["k1"]) == five.kv.get("k1")


@pytest.mark.parametrize("waits", ["tail", "cold"])
def test_a_read_of_another_thread_loads_nothing(tmp_path: Path, waits: str) -> None:
    with opened(tmp_path / "state") as state:
        stores = Five(state)
        stores.fill(200)
        state.commit()
        if waits == "cold":
            state.checkpoint(wait=True)
        expected = stores.contents()
        crash(state)
    state = opened(tmp_path / "state", memory_limit=1 << 40)
    stores = Five(state)
    state._turn.check()  # this thread's state from now on
    before = {name: (store.cold_blocks, store.waiting_rows) for name, store in state.stores.items()}
    assert all(any(counts) for counts in before.values())
    for name, call in {**stores.reads(), "kv.get": lambda: stores.kv.get("k1")}.items():
        assert isinstance(in_thread(call), StateInUseError), name
    assert before == {name: (store.cold_blocks, store.waiting_rows) for name, store in state.stores.items()}
    assert stores.contents() == expected
    state.close()


def test_an_iterator_is_read_by_its_own_thread(tmp_path: Path) -> None:
    with opened(tmp_path / "state", _tuning=SMALL) as state:
        window = state.window("window", retention=1000)
        for i in range(500):
            window.put(f"k{i % 50}", i, i)
        rows = window.all()
        next(rows)
        error = in_thread(lambda: list(rows))
        assert isinstance(error, StateInUseError)


ITERATORS: dict[str, Callable[[Five], Iterator[Any]]] = {
    "kv.items": lambda five: iter(five.kv.items()),
    "kv.keys": lambda five: iter(five.kv),
    "kv.scan reversed": lambda five: five.kv.scan(reverse=True),
    "ttl": lambda five: five.ttl.all(),
    "window.fetch": lambda five: five.window.fetch("k1"),
    "window.all": lambda five: five.window.all(),
    "window.all reversed": lambda five: five.window.all(reverse=True),
    "session.fetch": lambda five: five.session.fetch("k1"),
    "session.all": lambda five: five.session.all(),
    "sliding.fetch": lambda five: five.sliding.fetch("k1"),
    "sliding.all": lambda five: five.sliding.all(),
    "sliding.aggregates": lambda five: five.sliding.aggregates(),
    "buffer": lambda five: five.buffer.buffered(),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_of_a_closed_or_forked_store_does_not_end_short(five: Five, name: str) -> None:
    expected = list(ITERATORS[name](five))
    in_child, closed = ITERATORS[name](five), ITERATORS[name](five)
    assert len(expected) > 1
    assert next(in_child) == next(closed) == expected[0]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(len(list(in_child))).encode())
        except BaseException as error:
            os.write(writing, type(error).__name__.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"StateClosedError"
    os.close(reading)
    os.close(writing)
    assert [expected[0], *in_child] == expected  # the parent's go on
    five.state.close()
    with pytest.raises(hs.StateClosedError):
        next(closed)


def test_the_first_use_decides_and_hand_over_passes_on(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    kv = state.key_value("kv")  # declares, and binds nobody
    assert in_thread(lambda: kv.put("a", 1)) is None
    kv["b"] = 2  # the thread has ended, and with it its ownership
    assert isinstance(in_thread(state.commit), StateInUseError)
    state.hand_over()
    assert in_thread(lambda: (state.commit(), state.hand_over())) == (1, None)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(kv.put, "c", 3).result()
        with pytest.raises(StateInUseError, match="expected thread 'ThreadPoolExecutor"):
            kv["d"] = 4
        with pytest.raises(StateInUseError, match="one thread owns"):
            state.hand_over()
        with pytest.raises(StateInUseError, match="one thread owns"):
            state.close()
        pool.submit(state.commit).result()
        pool.submit(state.hand_over).result()
        assert dict(kv.all()) == {"a": 1, "b": 2, "c": 3}
    state.close()
    assert isinstance(in_thread(lambda: kv.put("e", 1)), hs.StateClosedError)
    assert isinstance(in_thread(state.close), type(None))


def test_a_thread_that_has_ended_need_not_hand_over(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    kv = state.key_value("kv")
    assert in_thread(lambda: kv.put("a", 1)) is None
    state.hand_over()
    assert in_thread(lambda: (kv.put("b", 2), state.commit(), state.hand_over())) == (None, 1, None)
    state.close()


def test_a_state_at_a_version_has_an_owner_too(five: Five) -> None:
    with hs.open(five.state.path, at=1) as past:
        stores = Five(past)
        assert len(stores.kv) == 7
        for name, call in stores.reads().items():
            assert isinstance(in_thread(call), StateInUseError), name


# --- in the middle of a call ------------------------------------------------------------------------------------------


def inject(monkeypatch: pytest.MonkeyPatch, place: str, call: Callable[[], Any]) -> list[Any]:
    """Make a call, once, in the middle of what happens at a place; return what it returned or raised."""
    outcome: list[Any] = []
    places: dict[str, tuple[Any, str]] = {
        "write": (os, "write"),
        "digest": (digest.RunningDigest, "digest"),
        "apply": (KeyValueStore, "apply_put"),
    }
    module, name = places[place]
    real = getattr(module, name)

    def around(*arguments: Any) -> Any:
        result = real(*arguments)
        if not outcome:
            outcome.append(None)
            try:
                outcome[0] = call()
            except BaseException as error:
                outcome[0] = error
        return result

    monkeypatch.setattr(module, name, around)
    return outcome


@pytest.mark.parametrize("who", ["handler", "thread"])
@pytest.mark.parametrize("place", ["write", "digest", "apply"])
def test_a_second_call_in_the_middle_is_refused_and_the_first_unharmed(
    tmp_path: Path, place: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(Five(opened(tmp_path / "names")).writes())
    for number, name in enumerate(names):
        path = tmp_path / str(number)
        state = opened(path)
        stores = Five(state)
        stores.fill()
        state.commit()
        expected = {**dict(stores.kv.all()), "big": "x" * 70_000}
        call = stores.writes()[name]
        with monkeypatch.context() as patch:
            outcome = inject(patch, place, call if who == "handler" else lambda call=call: in_thread(call))
            stores.kv["big"] = "x" * 70_000
            version = state.commit()
        assert isinstance(outcome[0], StateInUseError), (name, outcome)
        assert version == 2
        for i in range(3):
            stores.kv[f"c{i}"] = expected[f"c{i}"] = i
            version = state.commit()
        check_stores(state)
        crash(state)
        with opened(path) as state:
            assert state.version == version
            assert dict(state.key_value("kv").all()) == expected, name


def test_a_handlers_read_of_another_store_is_answered(five: Five, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = inject(monkeypatch, "apply", lambda: list(five.window.all()))
    five.kv.put("k1", 1)
    assert outcome == [list(five.window.all())]
    outcome = inject(monkeypatch, "apply", lambda: list(five.kv.all()))
    five.kv.put("k1", 1)
    assert isinstance(outcome[0], StateInUseError)


def test_an_iterator_of_rows_and_an_aggregator_may_read_other_stores(tmp_path: Path) -> None:
    with opened(tmp_path / "state", _tuning=SMALL) as state:
        rates, totals = state.key_value("rates"), state.key_value("totals")
        for i in range(50):
            rates[i] = i
        state.commit()
        state._go_cold()
        weighted = hs.Aggregator(init=lambda: 0, add=lambda total, value: total + rates.get(value))
        sums = state.sliding("sums", size=1000, aggregator=weighted)
        totals.put_many((key, rates.get(key) * 2) for key in range(0, 50, 5))
        assert sums.add("a", 7, 0) == ("a", 0, 0, 7)
        assert sums.add("a", 33, 1) == ("a", 0, 1, 40)
        assert totals.get(45) == 90


def test_a_call_that_an_exception_ended_between_two_lines_is_over(five: Five) -> None:
    five.state._turn.busy = five.kv
    five.kv.put("k1", "again")
    assert five.state.commit() == 2
    assert five.state._turn.busy is None


def test_no_commit_mark_is_written_with_a_digest_that_is_not_of_its_frames() -> None:
    def refuse(body: bytes) -> None:
        raise HybridStoreError("no")

    journal = Journal(refuse, frame_records=0)
    with pytest.raises(HybridStoreError, match="no"):
        journal.record(17, "key", "value")
    with pytest.raises(StatePoisonedError, match=r"found 0 bytes of mutations in its frames, expected .* its digest"):
        journal.seal()


def test_waiting_for_the_hashing_thread_can_be_interrupted_and_begun_again() -> None:
    piece = digest._WORKER.submit(blake2b(), [memoryview(b"x" * 1000)])
    piece.wait()
    assert piece.ended.acquire(timeout=60)  # as by a wait that a signal handler interrupts before the release
    piece.wait()
    assert piece.done


CHILD = """
import os, signal, sys
import hybridstore as hs
state = hs.open(sys.argv[1], durability="os"); kv = state.key_value("kv")
answers = {"refused": 0, "done": 0}
asked = []
def handler(*_):
    try:
        kv["handler"] = len(asked)
        version = state.commit()
        answers["done"] += 1
    except hs.errors.StateInUseError:
        asked.append(1)
        answers["refused"] += 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
i = 0
while answers["refused"] < 10 or answers["done"] < 10 or i < 300:
    i += 1
    kv[f"k{i % 50}"] = "x" * [1, 300, 70_000][i % 3]
    if i % 20 == 0:
        kv["last"] = i
        state.commit()
signal.setitimer(signal.ITIMER_REAL, 0)
kv["end"] = i
version = state.commit()
os.write(1, f"{version} {answers}".encode())
os._exit(0)
"""


def test_real_signals_in_the_middle_of_calls_harm_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "state")], capture_output=True, text=True, timeout=120, check=True
    )
    version = int(ended.stdout.split()[0])
    with opened(tmp_path / "state") as state:
        assert state.version == version, ended.stdout
        kv = state.key_value("kv")
        assert {"end", "last", "handler"} <= set(kv)
        check_stores(state)


def test_a_handler_that_sets_a_flag_ends_gracefully(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    kv, asked = state.key_value("kv"), list[int]()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    try:
        i = 0
        while not asked:
            i += 1
            kv[i] = "x" * 70_000
            if i == 5:
                os.kill(os.getpid(), signal.SIGUSR1)
        state.commit()
        state.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with opened(tmp_path / "state") as again:
        assert len(again.key_value("kv")) == i


# --- at random --------------------------------------------------------------------------------------------------------


@pytest.fixture
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def use_at_random(state: Any, acknowledged: list[int], together: threading.Barrier, draw: random.Random) -> int:
    """Make calls of every kind, and return how many were refused."""
    kv, window, refused = state.stores["kv"], state.stores["window"], 0
    together.wait()
    for step in range(60):
        key, value = f"k{draw.randrange(20)}", draw.choice(VALUES)
        calls: list[Callable[[], Any]] = [
            partial(kv.put, key, value), partial(window.put, key, value, step),
            partial(kv.put_many, [(key, value), ("other", 1)]), partial(kv.get, key), partial(kv.scan, prefix="k"),
            partial(window.fetch, key), lambda: acknowledged.append(state.commit()),
            partial(state.checkpoint, wait=step % 2 > 0), state.rollback, state.metrics, state.hydrate,
            state.hand_over, state.close,
        ]  # fmt: skip
        try:
            draw.choices(calls, [30, 10, 10, 10, 3, 3, 15, 3, 1, 2, 2, 2, 3 if step > 50 else 0])[0]()
        except StateInUseError:
            refused += 1
        except hs.StateClosedError:
            break
        except HybridStoreError as error:
            if "uncommitted changes" not in str(error):
                raise
    return refused


def test_whatever_threads_do_at_once_every_acknowledged_commit_opens(
    tmp_path: Path, seed: int, switching: None
) -> None:
    refused = 0
    for number in range(SEEDS):
        path = tmp_path / str(number)
        state = opened(path, **({"_tuning": SMALL} if number % 2 else {}))
        state.key_value("kv"), state.window("window", retention=10**6)
        acknowledged = [0]
        with ThreadPoolExecutor(4) as pool:
            draws = [random.Random(seed + 10 * number + thread) for thread in range(4)]
            refused += sum(pool.map(partial(use_at_random, state, acknowledged, threading.Barrier(4)), draws))
        if not state._closed:
            check_stores(state)
            crash(state)
        with opened(path) as again:
            assert again.version >= max(acknowledged), number
            list(again.key_value("kv").all())
            check_stores(again)
    assert refused
