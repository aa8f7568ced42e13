"""An owner of a state, whose process works between any two of its steps: random calls, of which each must answer as the
model does, whatever the process has written by then (`writer_beside`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from changelog.storage import LocalStorage, Storage
from hybridstore.reading.pins import has_pin
from hybridstore.state.home import BucketHome, DirectoryHome
from hybridstore.state.opening import Opening, Tuning
from recovery.compaction import Sizes
from recovery.errors import CheckpointError, CorruptCheckpointError
from recovery.finder import UNKNOWN
from recovery.layout import CheckpointName, list_checkpoints
from tests.tools.hooks import check_stores
from tests.tools.memory_storage import MemoryStorage
from tests.tools.model import WHOLE, ModelState
from tests.tools.watched_storage import Watch, WatchedStorage
from tests.tools.writer_beside import Beside

# keys of one crc32, as they are packed
ALIKE = ("ezlydttmodth", "ffrejfwtpwrj")
STORES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "kv": ("key_value", {}, {}),
    "other": ("key_value", {}, {}),
    "ttl": ("key_value", {"ttl": 40}, {"ttl": 40}),
    "w": ("window", {"retention": 30, "grace": 20}, {"retention": 30, "grace": 20}),
    "d": ("window", {"retention": 30, "retain_duplicates": True}, {"retention": 30, "retain_duplicates": True}),
    "s": ("session", {"retention": 30}, {"retention": 30}),
    "b": ("suppression", {"max_records": 8, "time_limit": 15}, {"max_records": 8, "time_limit": 15}),
    "l": ("sliding", {"size": 20, "aggregator": hs.Sum()}, {"size": 20, "aggregator": "sum"}),
}
NEVER = hs.CheckpointPolicy(max_restore="1 day")
# No version is pruned that is so new.
NEWEST = 1 << 40
# So many calls are told of a run that has failed.
TOLD = 40


def shown(answer: Any) -> Any:
    return list(answer) if isinstance(answer, Iterator) else answer


class Objects(WatchedStorage):
    """An object store as one owner has it: of packs that others read it knows nothing."""

    def __init__(self, inner: Storage, watch: Watch, owner: str) -> None:
        super().__init__(inner, watch)
        self._owner = owner

    @property
    def url(self) -> str:
        return f"memory:/{self._owner}"


class Owner:
    """A state of all kinds of stores, and its model."""

    def __init__(self, path: Path, dice: random.Random, beside: Beside) -> None:
        self.dice, self.beside, self.history = dice, beside, list[str]()
        self.checked = self.asked = self.known = 0
        self._path = path
        sizes = dice.choice([300, 4000]), dice.choice([4, 16, 64])
        parts = Sizes(page_lines=4, most_packs=dice.choice([3, 8, 30]), large_bytes=6000)
        self._tuning = Tuning(8, *sizes, 4, parts)
        names = [f"key {number:03d}" for number in range(dice.choice([20, 60, 150]))]
        self._keys: list[Any] = [*names, *ALIKE] if dice.random() < 0.7 else list(range(len(names)))
        self._often = dice.sample(self._keys, 6)
        self._names = dice.choice([["kv"], ["kv", "other", "ttl"], list(STORES)])
        self._changing = self._names
        self._whole = dice.choice([0.0, 0.0, 0.3])
        self._size = dice.choice([0, 40])
        self._alone = dice.choice([0.0, 0.1, 0.5])
        self._disk: dict[str, Any] = {}
        self._past: dict[int, dict[str, Any]] = {0: {}}
        self._iterators: list[tuple[Iterator[Any], list[Any]]] = []
        self._reader: hs.State | None = None
        self._commands = self._pins_and_forks()
        self._version = 0
        self._objects: dict[str, bytes] | None = {} if dice.random() < 0.25 else None
        self._openings = 0
        self._former: tuple[Any, ModelState] | None = None
        self._kept: list[CheckpointName] = []
        self._open()
        for name in self._names:
            if STORES[name][0] == "key_value":
                for key in self._keys:
                    self._both(name, "put", key, self._value(), *self._time(name))
        self._commit()

    def run(self, calls: int) -> None:
        """Make so many calls. Raises AssertionError where an answer is wrong."""
        try:
            for _ in range(calls):
                self.beside.meanwhile()
                self._call()
            for rows, expected in self._iterators:
                assert list(rows) == expected, "rows of an iterator"
            self._end()
        except BaseException as error:
            error.add_note("\n".join(self.history[-TOLD:]))
            raise

    def _open(self) -> None:
        self.state: Any = self._opened()
        self.beside.opened()
        if self._objects is not None:  # a version says who is the owner
            self._version += 1
            self._past[self._version] = dict(self._disk)
        assert self.state.version == self._version
        self.beside.user = self.state._checkpoints
        self._model = ModelState(self._disk)
        self._iterators = []
        for name in self._names:
            self._pair(name)

    def _opened(self, at: int | None = None) -> hs.State:
        asked = Opening("os", True, NEVER, None if at else 1 << 40, False, None, at, Files(), self._tuning)
        if self._objects is None:
            return hs.State.at_home(DirectoryHome(self._path, asked), asked)
        self._openings += 1
        storage = Objects(MemoryStorage(self._objects), self.beside.request, f"owner-{self._openings}")
        return hs.State.at_home(BucketHome(storage, asked), asked)

    def _pair(self, name: str) -> tuple[Any, Any]:
        kind, real, model = STORES[name]
        return getattr(self.state, kind)(name, **real), getattr(self._model, kind)(name, **model)

    def _both(self, name: str, call: str, *given: Any, **named: Any) -> Any:
        self.history.append(f"{name}.{call}{given} {named or ''}")
        real, model = self._pair(name)
        expected = shown(getattr(model, call)(*given, **named))
        answer = shown(getattr(real, call)(*given, **named))
        assert answer == expected, f"{name}.{call}{given}: found {answer}, expected {expected}"
        self.checked += 1
        return answer

    # --- calls of stores ----------------------------------------------------------------------------------------

    def _key(self) -> Any:
        return self.dice.choice(self._often if self.dice.random() < 0.6 else self._keys)

    def _value(self) -> Any:
        return self.dice.randrange(10**6), self.dice.randbytes(self._size)

    def _at(self, name: str) -> int:
        """Return a time about that of a store, seldom far behind it."""
        offset = self.dice.randint(-25, 6) if self.dice.random() < 0.98 else self.dice.choice([30, 1000])
        now: int = self._pair(name)[1].stream_time
        return max(0, now + offset)

    def _time(self, name: str) -> tuple[int, ...]:
        return (self._at(name),) if name == "ttl" else ()

    def _call(self) -> None:
        choice = self.dice.random()
        if choice < 0.25:
            self.dice.choices(
                [
                    self._commit,
                    self._checkpoint,
                    self._become_cold,
                    self._free,
                    self._rollback,
                    self._restart,
                    self._look_back,
                    self._kill,
                    self._check,
                    self._ask_finders,
                    self._command,
                    self._ask_former,
                ],
                [20, 30, 15, 15, 1, 1, 2, 1, 1, 40, 4, 4],
            )[0]()
            return
        if self.dice.random() < 0.03:  # now and then only some stores change
            self._changing = self.dice.sample(self._names, self.dice.randint(1, len(self._names)))
        name = self.dice.choice(self._changing)
        if choice < 0.26:
            for call in WHOLE[STORES[name][0]]:
                self._both(name, call)
        elif choice < 0.27:
            self._hold(name)
        else:
            getattr(self, f"_{STORES[name][0]}")(name)

    def _key_value(self, name: str) -> None:
        key, choice = self._key(), self.dice.random()
        if choice < 0.55:
            self._both(name, "get", key)
        elif choice < 0.75:
            self._both(name, "put", key, self._value(), *self._time(name))
        elif choice < 0.85:
            self._both(name, "delete", key)
        elif choice < 0.9:
            self._both(name, "put_if_absent", key, self._value(), *self._time(name))
        elif choice < 0.93:
            rows = [(key, self.dice.choice([None, self._value()]), *self._time(name)) for key in self._range()]
            self._both(name, "put_many", rows)
        elif choice < 0.935:
            self._both(name, "put_many", [(key, self._value(), *self._time(name)) for key in self._range()])
            self._checkpoint()
        elif choice < 0.945:
            for key in self._range():
                self._both(name, "delete", key)
            self._checkpoint()
        elif choice < 0.98:
            self._both(name, "scan", *sorted([key, self._like(key)]), reverse=self.dice.random() < 0.5)
        elif name == "ttl":
            self._both(name, "advance", self._at(name))
        else:
            self._both(name, "__contains__", key)

    def _range(self) -> list[Any]:
        """Return some neighbours, or in some histories all keys: few layers stay where whole blocks change."""
        begin = self.dice.randrange(len(self._keys))
        return self._keys if self.dice.random() < self._whole else self._keys[begin:][:3]

    def _like(self, key: Any) -> Any:
        return self.dice.choice([each for each in self._keys if type(each) is type(key)])

    def _window(self, name: str) -> None:
        key, ts, choice = self._key(), self._at(name), self.dice.random()
        if choice < 0.4:
            self._both(name, "put", key, self.dice.choice([None, self._value(), self._value()]), ts)
        elif choice < 0.6:
            self._both(name, "fetch", key, ts, ts + self.dice.randint(0, 20))
        elif choice < 0.8:
            self._both(name, "get", key, ts)
        elif choice < 0.95:
            bounds = {"time_from": ts, "time_to": ts + self.dice.randint(0, 9)}
            self._both(name, "scan", *sorted([key, self._like(key)]), **bounds, reverse=self.dice.random() < 0.5)
        else:
            self._both(name, "advance", ts)

    def _session(self, name: str) -> None:
        key, end, choice = self._key(), self._at(name), self.dice.random()
        start = max(0, end - self.dice.randint(0, 8))
        if choice < 0.4:
            self._both(name, "put", key, self.dice.choice([None, self._value(), self._value()]), start, end)
        elif choice < 0.5:
            there = [session for session, _ in self._pair(name)[1].fetch(key)]
            self._both(name, "delete", *self.dice.choice([*there, (key, start, end)]))
        elif choice < 0.65:
            self._both(name, "find_sessions", key, start, end)
        elif choice < 0.8:
            self._both(name, "fetch", key)
        elif choice < 0.95:
            self._both(name, "find_sessions_by_end", start, end)
        else:
            self._both(name, "advance", end)

    def _suppression(self, name: str) -> None:
        if self.dice.random() < 0.9:
            self._both(name, "put", self._key(), self._value(), self._at(name))
        else:
            self._both(name, "advance", self._at(name))

    def _sliding(self, name: str) -> None:
        if self.dice.random() < 0.9:
            self._both(name, "add", self._key(), self.dice.randint(-9, 9), self._at(name))
        else:
            self._both(name, "advance", self._at(name))

    def _hold(self, name: str) -> None:
        """Open an iterator, or read one that is open: its rows are of the time when it was opened."""
        if len(self._iterators) < 2:
            call = WHOLE[STORES[name][0]][0]
            self.history.append(f"hold {name}.{call}")
            real, model = (getattr(store, call)() for store in self._pair(name))
            self._iterators.append((real, list(model)))
        else:
            rows, expected = self._iterators.pop(0)
            assert list(rows) == expected, "rows of an iterator"

    # --- calls of the state -------------------------------------------------------------------------------------

    def _commit(self) -> None:
        version = self.state.commit()
        self.history.append(f"commit -> {version}, checkpoint {self.state._checkpoints.version}")
        assert version in (self._version, self._version + 1)
        self._model.commit()
        self._version = version
        self._past[version] = dict(self._disk)
        self._oldest()

    def _checkpoint(self) -> None:
        """Begin a checkpoint, if none is in progress: often one behind which what is in memory can be freed."""
        self._commit()
        if self.state._checkpoints.attempt is not None and self.dice.random() < 0.9:
            return
        if self.dice.random() < 0.05:
            self.history.append("checkpoint by a thread")
            with suppress(CheckpointError):
                self.state.checkpoint(wait=True)
            return
        self.state._memory._filled = self.dice.random() < 0.7
        self.state._checkpoints.finish(wait=True)
        self.state._checkpoints._alone = self.dice.random() < self._alone
        self.history.append("begin a checkpoint")
        self.state._begin_checkpoint(self.state._log)

    def _become_cold(self) -> None:
        """Be cold over the checkpoint in use, all at once or in slices, of which each commit takes one."""
        if self.state._checkpoints.attempt is None or self.dice.random() < 0.1:
            self._commit()
            budget = self.dice.choice([0.0, 1e9])
            self.history.append(f"cold {budget}")
            self.state._go_cold(budget)
            if self.dice.random() < 0.7:
                self._free(10**6)

    def _free(self, records: int | None = None) -> None:
        for store in self.state.stores.values():
            store.free(self.dice.choice([1, 10, 10**6]) if records is None else records)

    def _rollback(self) -> None:
        self.history.append("rollback")
        self.state.rollback()
        self._model.rollback()
        self._iterators = []
        assert self.state.version == self._version

    def _restart(self) -> None:
        """Close or crash, and open again, while the process may be at work for a while."""
        how = self.dice.choice(["close", "crash", "crash"])
        self.history.append(how)
        if how == "close":
            self._commit()
            self.state.close()
        else:
            self.state._abandon()
        self._open()

    def _take(self) -> None:
        """Let another owner take the state from this one, which goes on."""
        self._stop()
        self.history.append("take")
        self.state.rollback()
        self._former = self.state, ModelState(dict(self._disk))
        self.beside.taken()
        self._open()

    def _ask_former(self) -> None:
        """Read what an owner has from which the state was taken, or let it commit."""
        if self._former is None:
            return
        state, model = self._former
        name = self.dice.choice(list(state.stores))
        kind, real, options = STORES[name]
        self.history.append(f"the owner before: {name}")
        with self._where_pruned():
            stores = getattr(state, kind)(name, **real), getattr(model, kind)(name, **options)
            answer, right = (shown(getattr(store, WHOLE[kind][0])()) for store in stores)
            assert answer == right, f"{name} of the owner before: found {answer}, expected {right}"
        if self.dice.random() < 0.3:
            self._stop()

    def _stop(self) -> None:
        """Let the owner commit from which the state was taken."""
        if self._former is not None:
            state, self._former = self._former[0], None
            # by the put, where a pack was removed, or by the commit
            with pytest.raises((hs.StateLockedError, hs.StatePoisonedError), match="is that of process"):
                self._commit_a_row(state)
            state._abandon()

    def _kill(self) -> None:
        self.history.append("kill the process")
        self.beside.kill()

    def _ask_finders(self) -> None:
        """Ask the finders of all checkpoints that some store may be cold over: each says what its checkpoint has."""
        for reader in sorted(self.state._checkpoints._readers, key=lambda each: each.meta.version):
            past, version = self._past.get(reader.meta.version, {}), reader.meta.version
            for number, finder in reader.finders.items():
                name = next(name for name, store in self.state.stores.items() if store.number == number)
                there = past[name]["entries"]
                for key in dict.fromkeys(self._key() for _ in range(8)):
                    answer = finder.value_of(key)
                    self.asked += 1
                    if answer is UNKNOWN:
                        continue
                    self.known += 1
                    row = answer if name == "ttl" else (answer, 0)
                    if name == "ttl" and row[1] <= past[name]["stream_time"] - past[name]["ttl"]:
                        continue  # nobody reads it any more
                    right = there.get(key)
                    assert row == right, f"{name}: finder of {version}: {key}: found {row}, expected {right}"

    def _look_back(self) -> None:
        """Open a version that is kept, beside the owner and the process, or read what was opened, however old it is."""
        if self._reader is not None:
            with self._reader as past, self._where_pruned():
                self._compare(past)
            self._reader = None
            return
        version = self._earlier()
        self.history.append(f"open version {version}")
        try:
            self._reader = self._opened(version)
        except hs.errors.RestoreError:
            if version >= self._oldest():
                raise  # else it was pruned

    def _commit_a_row(self, state: hs.State) -> None:
        state.key_value("kv").put(self._key(), self._value())
        state.commit()

    @contextmanager
    def _where_pruned(self) -> Iterator[None]:
        """Whoever is not the owner of a state on an object store may find that a pack was removed; who was the owner
        before is told so.
        """
        try:
            yield
        except (CorruptCheckpointError, hs.StatePoisonedError, hs.StateLockedError) as error:
            texts = ("is that of process", "the pack is missing")[isinstance(error, CorruptCheckpointError) :]
            if self._objects is None or not any(each in str(error) for each in texts):
                raise

    def _oldest(self) -> int:
        """Return the version of the oldest checkpoint, none without one. The newest of all that were made are there."""
        objects: Any = LocalStorage(self._path) if self._objects is None else MemoryStorage(self._objects)
        there = list_checkpoints(objects)
        self._kept = sorted({*self._kept, *there})[-NEVER.keep :]
        checkpoints = self.state._checkpoints
        used = [checkpoints.reader.name] if checkpoints.reader is not None and checkpoints.attempt is None else []
        expected = [*map(str, self._kept), *used]
        assert set(expected) <= set(map(str, there)), f"found {there}, expected {expected}"
        return there[0].version if there else 1

    def _earlier(self) -> int:
        """Return a version, often one of the oldest that can be read."""
        version = self.dice.choice([*(self._version - behind for behind in (0, 1, 5, 20)), self._oldest() + 1])
        return min(max(1, version), self._version)

    def _compare(self, past: Any) -> None:
        """Compare all that a state has with what the version had."""
        there = self._past[past.version]
        expected = ModelState(dict(there))
        for name in there:
            kind, real, model = STORES[name]
            stores = getattr(past, kind)(name, **real), getattr(expected, kind)(name, **model)
            for call in WHOLE[kind]:
                answer, right = (shown(getattr(store, call)()) for store in stores)
                assert answer == right, f"{name}.{call} at {past.version}: found {answer}, expected {right}"

    def _command(self) -> None:
        """Let another program begin a command, while the owner goes on, or wait until it has ended; on an object store,
        let another program be the owner.
        """
        if self._objects is None:
            next(self._commands)
        else:
            self._take()

    def _pins_and_forks(self) -> Iterator[None]:
        """Pin and fork versions, and be the owner of each fork."""
        for number in count():
            version, name, fork = self._earlier(), f"pin{number}", self._path.with_name(f"{self._path.name}.{number}")
            at: int | str | None = version
            if self.dice.random() < 0.3:
                # nothing that is removed meanwhile is a reason to refuse the newest one
                at, version = None, NEWEST
            elif self.dice.random() < 0.5:
                yield from self._ended(partial(hs.pin, self._path, name, at=version), version)
                if not has_pin(self._path, name):
                    continue
                at = name
            yield from self._ended(partial(hs.fork, self._path, fork, at=at), version)
            if at == name:
                yield from self._ended(partial(hs.unpin, self._path, name), version)
            if fork.exists():
                with hs.open(fork, checkpoints=NEVER, _tuning=self._tuning) as state:
                    right = state.version if at is None else version
                    assert state.version == right, f"{fork}: found {state.version}, expected {right}"
                    self._compare(state)
                    state.key_value("kv").put(self._key(), self._value())
                    state.commit()
                    state.checkpoint(wait=True)

    def _ended(self, call: Callable[[], object], version: int) -> Iterator[None]:
        """Let a command that needs a version begin, and, when the owner has gone on, end or be killed."""
        self.history.append(f"begin {call}")
        refused: list[Exception] = []

        def called() -> None:
            try:
                call()
            except hs.errors.RestoreError as error:
                refused.append(error)

        task = self.beside.command(called)
        yield
        if self.dice.random() < 0.2:
            task.kill()
        task.join()
        self.history.append(f"end {call}: {refused}")
        if refused and version >= self._oldest():
            raise refused[0]  # else it was pruned

    def _check(self) -> None:
        check_stores(self.state)

    def _end(self) -> None:
        """All that is there is right, also behind a restart from the last checkpoint."""
        if self._reader is not None:
            self._look_back()
        self._stop()
        self._commit()
        for again in (False, True):
            if again:
                self.state.close()
                self._open()
            for name in self._names:
                for call in WHOLE[STORES[name][0]]:
                    self._both(name, call)
            self._check()
        self.state.close()


def played(path: Path, seed: int, calls: int, install: Callable[[Beside], None]) -> Beside:
    """Play the history of a seed; return the processes, which have ended."""
    dice = random.Random(seed)
    beside = Beside(dice)
    install(beside)
    try:
        Owner(path, dice, beside).run(calls)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        beside.end()
    return beside
