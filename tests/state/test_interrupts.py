"""An exception from outside (Ctrl-C, a timeout, want of memory) at any line: what was going on happened or did not, or
the store refuses.

`sys.settrace` raises at a random line of our own files while an operation runs. After it the store either goes on, and
then what it holds is what is there after reopening, or it is poisoned, and then the last commit is there, or the one
that was in progress.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import changelog
import hybridstore as hs
import recovery
from hybridstore.state.opening import Tuning
from tests.conftest import TRACED
from tests.tools.faults import QuickFiles
from tests.tools.hooks import force_cold
from tests.tools.sizes import SMALL_PARTS

# An exception between two instructions of a line leaves a list of files open for the collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed scandir:ResourceWarning")
OURS = tuple(os.path.dirname(package.__file__ or "") + os.sep for package in (changelog, hs, recovery))
TUNING = Tuning(block_records=6, segment_bytes=3000, frame_records=4, bucket_divisor=4, parts=SMALL_PARTS)
KEYS = [f"k{i}" for i in range(25)]
# Finalizers, and what the collector calls when it likes to: Python prints an exception of these, and nobody gets it.
NOT_INTERRUPTED = ("__del__", "_collected", "_freeze")


class Interrupt:
    """Raises `error` at the n-th line (or opcode) of our files inside a `with` block; `seen` is how many there were."""

    def __init__(self, nth: int, error: type[BaseException], *, opcodes: bool = False) -> None:
        self._nth, self._error, self._opcodes = nth, error, opcodes
        self.seen = 0

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_name in NOT_INTERRUPTED:
            return None
        frame.f_trace_opcodes = self._opcodes
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == ("opcode" if self._opcodes else "line"):
            self.seen += 1
            if self.seen == self._nth:
                sys.settrace(None)
                raise self._error("from outside")
        return self._line

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def opened(path: Path) -> hs.State:
    policy = hs.CheckpointPolicy(max_restore="1 hour", every_commits=7)
    return hs.open(path, durability="os", checkpoints=policy, _tuning=TUNING, _files=QuickFiles())


class Stores:
    """The stores of a state, and random changes to them."""

    def __init__(self, state: hs.State) -> None:
        self.state = state
        self.kv = state.key_value("kv")
        self.ttl = state.key_value("ttl", ttl=60)
        self.window = state.window("window", retention=80)
        self.twice = state.window("twice", retention=80, retain_duplicates=True)
        self.session = state.session("session", retention=80)
        self.buffer = state.suppression("buffer", time_limit=30, max_records=10)
        self.sliding = state.sliding("sliding", size=40, aggregator=hs.Count())

    def contents(self) -> list[Any]:
        return [
            list(self.kv.all()), list(self.ttl.all()), list(self.window.all()), list(self.twice.all()),
            list(self.session.all()),
            list(self.buffer.buffered()), list(self.sliding.all()), self.state.settings,
            self.ttl.stream_time, self.window.stream_time, self.session.stream_time, self.sliding.stream_time,
        ]  # fmt: skip

    def change(self, dice: random.Random) -> None:
        """Do one change of a random kind."""
        now = max(0, self.window.stream_time) + dice.randint(-20, 8)
        ts, key, value = (
            max(0, now),
            dice.choice(KEYS),
            dice.choice([dice.randint(0, 9), "x" * dice.randint(1, 400), [1, (2, "b")]]),
        )
        rows = [
            (dice.choice(KEYS), dice.randint(0, 9), max(0, ts + dice.randint(-5, 5)))
            for _ in range(dice.randint(1, 12))
        ]
        spans = [(row[0], row[1], max(0, row[2] - dice.randint(0, 9)), row[2]) for row in rows]
        changes: list[Callable[[], Any]] = [
            lambda: self.kv.put(key, value), lambda: self.kv.delete(key),
            lambda: self.kv.put_many([row[:2] for row in rows]),
            lambda: self.ttl.put(key, value, ts), lambda: self.ttl.put_many(rows), lambda: self.ttl.put(key, None, ts),
            lambda: self.window.put(key, value, ts), lambda: self.window.delete(key, ts),
            lambda: self.window.put_many(rows),
            lambda: self.twice.put(key, value, ts), lambda: self.twice.put_many(rows), lambda: self.window.advance(ts),
            lambda: self.session.put(key, value, start=max(0, ts - 5), end=ts), lambda: self.session.put_many(spans),
            lambda: [self.session.delete(*entry[0]) for entry in list(self.session.fetch(key))[:1]],
            lambda: self.buffer.put(key, value, ts), lambda: self.buffer.put_many(rows),
            lambda: list(self.buffer.advance(ts)),
            lambda: self.sliding.add(key, value, ts), lambda: self.sliding.add_many(rows),
            lambda: self.sliding.advance(ts),
            lambda: self.state.set("setting", value), lambda: self.state.key_value(f"more{dice.randint(0, 3)}"),
        ]  # fmt: skip
        dice.choice(changes)()

    def look(self, dice: random.Random) -> None:
        """Read in a random way, which loads what is cold and makes orders."""
        key = dice.choice(KEYS)
        looks: list[Callable[[], Any]] = [
            self.contents, lambda: self.kv.get(key), lambda: list(self.kv.scan("k1", "k3")),
            lambda: self.sliding.get(key),
            lambda: list(self.window.fetch(key)), lambda: list(self.session.find_sessions_by_end(3, 40)),
            lambda: len(self.window),
            lambda: list(self.session.find_sessions_range("k1", "k2")), lambda: self.buffer.min_timestamp,
        ]  # fmt: skip
        dice.choice(looks)()


ERRORS: list[type[BaseException]] = [KeyboardInterrupt, MemoryError, TimeoutError, RuntimeError]
# how often each operation is the one that is interrupted
OPERATIONS = {
    "change": 6,
    "look": 2,
    "commit": 4,
    "rollback": 3,
    "checkpoint": 3,
    "cold": 2,
    "hydrate": 1,
    "close": 3,
    "open": 2,
}


class Trial:
    """One state directory that is worked on, interrupted, and compared."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path, self.dice = path, dice
        self.lines = dict.fromkeys(OPERATIONS, 200)
        self.outcomes: Counter[str] = Counter()
        self.stores = Stores(opened(path))
        self.stores.state.commit()

    def settled(self) -> None:
        """Commit, so that what is in memory is what must be there after reopening."""
        self.stores.state.commit()
        self.committed, self.version = self.stores.contents(), self.stores.state.version

    def reopen(self) -> None:
        self.stores.state.close()
        gc.collect()  # a state that was interrupted before anybody had it still holds its lock
        state = opened(self.path)
        self.reached = state.version
        self.stores = Stores(state)

    def round(self) -> None:
        dice, state = self.dice, self.stores.state
        for _ in range(dice.randint(0, 5)):
            self.stores.change(dice)
        self.settled()
        if dice.random() < 0.2:
            state.checkpoint(wait=True)
        elif dice.random() < 0.2:
            force_cold(state)
        for _ in range(dice.randint(0, 3)):
            self.stores.change(dice)
        what = dice.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        if what in ("checkpoint", "cold"):
            self.settled()
        uncommitted = self.stores.contents()
        interrupted = self.interrupted(what)
        self.outcomes[f"{what} {'interrupted' if interrupted else 'done'}"] += 1
        state = self.stores.state
        if what in ("close", "open"):
            self.reopen()
            assert (self.reached, self.stores.contents()) == (self.version, self.committed)
            return
        try:
            state._usable()
            contents = self.stores.contents()
            if what not in ("change", "rollback"):
                assert contents == uncommitted
            elif what == "rollback":
                assert contents in (uncommitted, self.committed)
            assert state.version in (self.version, self.version + (what == "commit"))
            for store in state.stores.values():
                store._check()
            dice.choice([lambda: None, lambda: self.stores.change(dice), lambda: self.stores.look(dice)])()
            self.settled()
            if dice.random() < 0.5:
                state.checkpoint(wait=True)
        except hs.StatePoisonedError:
            self.outcomes["poisoned"] += 1
            self.reopen()
            if self.reached == self.version:
                assert self.stores.contents() == self.committed
            else:
                assert (what, self.reached, self.stores.contents()) == ("commit", self.version + 1, uncommitted)
            return
        except hs.errors.CheckpointError:  # reported by the next call
            self.outcomes["reported"] += 1
            return
        if dice.random() < 0.7:
            self.reopen()
            assert (self.reached, self.stores.contents()) == (self.version, self.committed)

    def interrupted(self, what: str) -> bool:
        """Do what is asked, with an exception at a random line of it; True when it came out."""
        dice, stores, state = self.dice, self.stores, self.stores.state
        opcodes = dice.random() < 0.3
        nth = int(dice.triangular(1, self.lines[what] * (6 if opcodes else 1) * 1.2, 1))
        if what == "open":
            state.close()
        acts: dict[str, Callable[[], Any]] = {
            "change": lambda: stores.change(dice), "look": lambda: stores.look(dice), "commit": state.commit,
            "rollback": state.rollback,
            "checkpoint": lambda: state.checkpoint(wait=dice.random() < 0.7), "cold": state._go_cold,
            "hydrate": lambda: state.hydrate(1),
            "close": state.close, "open": lambda: opened(self.path).close(),
        }  # fmt: skip
        interrupt = Interrupt(nth, dice.choice(ERRORS), opcodes=opcodes)
        try:
            with interrupt:
                acts[what]()
        except BaseException as error:
            if "from outside" not in f"{error} {error.__cause__}":
                raise
            return True
        finally:
            if not opcodes and interrupt.seen < nth:
                self.lines[what] = max(20, (self.lines[what] + interrupt.seen) // 2)
            elif not opcodes:
                self.lines[what] += 5
        return False


@pytest.mark.slow
@pytest.mark.stress
@TRACED
def test_an_exception_from_outside_at_any_line_leaves_what_is_on_disk_or_a_store_that_refuses(
    tmp_path: Path, seed: int, rounds: int
) -> None:
    outcomes: Counter[str] = Counter()
    dice = random.Random(seed)
    needed = {f"{what} interrupted" for what in ("change", "commit", "rollback", "checkpoint", "close")} | {"poisoned"}
    for number in range(max(12, rounds // 25)):
        if number >= max(2, rounds // 25) and needed <= outcomes.keys():
            break
        trial = Trial(tmp_path / str(number), dice)
        for step in range(25):
            try:
                trial.round()
            except BaseException as error:
                error.add_note(f"directory {number}, round {step}: {dict(trial.outcomes)}")
                raise
        trial.stores.state.close()
        outcomes += trial.outcomes
    print(dict(outcomes))
    assert needed <= outcomes.keys()
