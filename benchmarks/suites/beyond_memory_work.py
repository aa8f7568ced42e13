"""Work of the suite beyond-memory: one store or engine, with every answer checked, in a process that is watched.

The expected state is an array of integers: `expected[i]` is the number that the value of record i was made from. Keys
and values are made anew for every call: shared objects would hide most of a record's memory.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from importlib import import_module
from itertools import accumulate, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

from benchmarks.measure.choosing import Chooser, chooser
from benchmarks.measure.timing import WrongAnswerError, check
from benchmarks.measure.watched import BASE, children_of, phase, processor_seconds
from hybridstore import Bucket
from hybridstore.aggregation import Sum
from hybridstore.state.directory import open_store

COMMIT_OPERATIONS: Final = 1000
# of a key and its value (`key_of`, `value_of`)
RECORD_BYTES: Final = 52
LOAD: Final = "load"
RESTART: Final = "restart after a kill"
# Shares of operations, and how records are chosen. YCSB's core workloads: A updates, B reads mostly, C reads only, D
# reads the latest, E short ranges, F read-modify-writes.
WORKS: Final[dict[str, tuple[dict[str, float], str]]] = {
    "uniform": ({"modify": 1}, "uniform"),
    "zipf": ({"modify": 1}, "zipf"),
    "hot 1 %": ({"modify": 1}, "hot"),
    "ycsb a": ({"read": 0.5, "write": 0.5}, "zipf"),
    "ycsb b": ({"read": 0.95, "write": 0.05}, "zipf"),
    "ycsb c": ({"read": 1}, "zipf"),
    "ycsb d": ({"read": 0.95, "insert": 0.05}, "latest"),
    "ycsb e": ({"scan": 0.95, "insert": 0.05}, "zipf"),
    "ycsb f": ({"read": 0.5, "modify": 0.5}, "zipf"),
}
_LONGEST_SCAN: Final = 100
_WRITES: Final = ("write", "modify", "insert")


def turn_of(work: str, turn: int) -> str:
    """Return the name of the phase that is a turn of a work."""
    return f"{work}, turn {turn + 1}"


def key_of(i: int) -> str:
    """Return the key of record i, a new object."""
    return f"key{i:09d}"


def value_of(number: int) -> bytes:
    """Return the value made from a number: 40 bytes, a new object."""
    return b"%040d" % number


class Subject(ABC):
    """What is measured: records 0 to n - 1, each with a value that is made from a number.

    An operation is a method of two arguments. `arguments` makes them before the method is called, and `check` looks at
    its answer behind it, so that the method alone is measured. The stores of records with times check their answers in
    the method: it takes a small share of their time.
    """

    def __init__(self, expected: array[int]) -> None:
        self.expected = expected

    @abstractmethod
    def arguments(self, operation: str, i: int, number: int) -> tuple[Any, Any]:
        """Return the arguments of an operation on record i."""

    @abstractmethod
    def check(self, operation: str, i: int, number: int, answer: Any) -> None:
        """Raise WrongAnswerError for a wrong answer of an operation; keep in `expected` what it has written. Answers
        are checked in the order of the operations.
        """

    def do(self, operation: str, i: int, number: int) -> None:
        """Do one operation, and check its answer."""
        self.check(operation, i, number, getattr(self, operation)(*self.arguments(operation, i, number)))

    @abstractmethod
    def insert(self, first: Any, second: Any) -> Any:
        """Add a record."""

    @abstractmethod
    def modify(self, first: Any, second: Any) -> Any:
        """Read a record, and write it anew."""

    @abstractmethod
    def commit(self) -> None:
        """Make everything durable."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


class Keyed(Subject):
    """A subject that reads and writes by key."""

    def arguments(self, operation: str, i: int, number: int) -> tuple[Any, Any]:
        """Return a key and a value, or the first and the last of `number` keys."""
        return key_of(i), key_of(i + number - 1) if operation == "scan" else value_of(number)

    def check(self, operation: str, i: int, number: int, answer: Any) -> None:
        """Check what was read."""
        if operation == "scan":
            right: Any = [(key_of(j), value_of(self.expected[j])) for j in range(i, i + number)]
            if answer != right:
                raise WrongAnswerError(f"records {i} to {i + number}: found {len(answer)}, or others than were written")
        elif operation in ("read", "modify") and answer != value_of(self.expected[i]):
            raise WrongAnswerError(f"record {i}: found {answer!r}")
        if operation in _WRITES:
            self.expected[i] = number

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the value of a key."""

    @abstractmethod
    def put(self, key: str, value: bytes) -> None:
        """Write the value of a key."""

    @abstractmethod
    def scan(self, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the records of a range of keys, both ends inclusive."""

    def insert(self, key: str, value: bytes) -> None:
        """Add a record."""
        self.put(key, value)

    write = insert

    def read(self, key: str, _value: bytes) -> bytes | None:
        """Read a record."""
        return self.get(key)

    def modify(self, key: str, value: bytes) -> bytes | None:
        """Read a record, and write it anew, by one key, as a program does."""
        before = self.get(key)
        self.put(key, value)
        return before


class KeyValue(Keyed):
    """Our key-value store."""

    def __init__(self, place: Path | Bucket, limit: int | None, expected: array[int]) -> None:
        super().__init__(expected)
        self.state = open_store(place, memory_limit=limit)
        self.store = self.state.key_value("records")

    def get(self, key: str) -> bytes | None:
        """Return the value of a key."""
        value: bytes | None = self.store.get(key)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Write the value of a key."""
        self.store.put(key, value)

    def scan(self, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the records of a range of keys."""
        return list(self.store.scan(first, last))

    def commit(self) -> None:
        """Commit."""
        self.state.commit()

    def close(self) -> None:
        """Close the state."""
        self.state.close()


class RocksDB(Keyed):
    """RocksDB by rocksdict, with a block cache of the limit."""

    def __init__(self, folder: Path, limit: int | None, expected: array[int]) -> None:
        super().__init__(expected)
        rocksdict = import_module("rocksdict")
        options, table = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
        if limit is not None:
            table.set_block_cache(rocksdict.Cache(limit))
        options.set_block_based_table_factory(table)
        options.create_if_missing(True)
        self.database = rocksdict.Rdict(str(folder), options)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key."""
        value: bytes | None = self.database.get(key.encode())
        return value

    def put(self, key: str, value: bytes) -> None:
        """Write the value of a key."""
        self.database[key.encode()] = value

    def scan(self, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the records of a range of keys."""
        rows, end = [], last.encode()
        for key, value in self.database.items(from_key=first.encode()):
            if key > end:
                break
            rows.append((key.decode(), value))
        return rows

    def commit(self) -> None:
        """Make the log durable."""
        self.database.flush_wal(True)

    def close(self) -> None:
        """Close the database."""
        self.database.close()


class Lmdb(Keyed):
    """LMDB: a transaction between two commits. Its pages are mapped, so a limit has no meaning."""

    def __init__(self, folder: Path, limit: int | None, expected: array[int]) -> None:
        super().__init__(expected)
        import lmdb

        folder.mkdir(parents=True)
        size = 400 * len(expected) + (64 << 20)
        self.environment = lmdb.open(str(folder), map_size=size, readahead=False, lib_version=0)
        self.transaction = self.environment.begin(write=True)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key."""
        value: bytes | None = self.transaction.get(key.encode())
        return value

    def put(self, key: str, value: bytes) -> None:
        """Write the value of a key."""
        self.transaction.put(key.encode(), value)

    def scan(self, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the records of a range of keys."""
        rows, end = [], last.encode()
        with self.transaction.cursor() as cursor:
            if cursor.set_range(first.encode()):
                for key, value in cursor:
                    if key > end:
                        break
                    rows.append((key.decode(), value))
        return rows

    def commit(self) -> None:
        """Commit, and begin again."""
        self.transaction.commit()
        self.transaction = self.environment.begin(write=True)

    def close(self) -> None:
        """Close the environment."""
        self.transaction.abort()
        self.environment.close()


class Timed(Subject):
    """One of our stores that keep records by time: record i has time i, and one of a tenth as many keys as records."""

    def __init__(self, place: Path | Bucket, limit: int | None, expected: array[int]) -> None:
        super().__init__(expected)
        self.state = open_store(place, memory_limit=limit)
        self.keys = max(1, len(expected) // 10)
        self.retention = len(expected) + 1

    def arguments(self, operation: str, i: int, number: int) -> tuple[int, int]:
        """Return a record and a number."""
        return i, number

    def check(self, operation: str, i: int, number: int, answer: None) -> None:
        """Do nothing: the operation has checked what it read."""

    def key(self, i: int) -> str:
        """Return the key of record i: scattered over all keys."""
        return key_of(i * 2_654_435_761 % 2**32 % self.keys)

    def commit(self) -> None:
        """Commit."""
        self.state.commit()

    def close(self) -> None:
        """Close the state."""
        self.state.close()


class Window(Timed):
    """Our window store."""

    def __init__(self, place: Path | Bucket, limit: int | None, expected: array[int]) -> None:
        super().__init__(place, limit, expected)
        self.store = self.state.window("records", retention=self.retention)

    def insert(self, i: int, number: int) -> None:
        """Add record i."""
        self.store.put(self.key(i), value_of(number), i)
        self.expected[i] = number

    def modify(self, i: int, number: int) -> None:
        """Read record i, check it, and write it anew."""
        value = self.store.get(self.key(i), i)
        if value != value_of(self.expected[i]):
            raise WrongAnswerError(f"record {i}: found {value!r}")
        self.insert(i, number)


class Session(Timed):
    """Our session store."""

    def __init__(self, place: Path | Bucket, limit: int | None, expected: array[int]) -> None:
        super().__init__(place, limit, expected)
        self.store = self.state.session("records", retention=self.retention)

    def insert(self, i: int, number: int) -> None:
        """Add record i."""
        self.store.put(self.key(i), value_of(number), start=i, end=i)
        self.expected[i] = number

    def modify(self, i: int, number: int) -> None:
        """Read record i, check it, and write it anew."""
        value = self.store.get(self.key(i), i, i)
        if value != value_of(self.expected[i]):
            raise WrongAnswerError(f"record {i}: found {value!r}")
        self.insert(i, number)


class Sliding(Timed):
    """Our sliding store: `expected` has the sum of each key, and every operation adds a value."""

    def __init__(self, place: Path | Bucket, limit: int | None, expected: array[int]) -> None:
        super().__init__(place, limit, expected)
        self.store = self.state.sliding("records", size=2 * len(expected), aggregator=Sum())
        self.now = 0

    def insert(self, i: int, number: int) -> None:
        """Add a value to the key of record i, and check the key's sum."""
        at = i * 2_654_435_761 % 2**32 % self.keys
        self.now += 1
        window = self.store.add(key_of(at), number + 1_000_000, self.now)
        self.expected[at] += number + 1_000_000
        if window is None or window[3] != self.expected[at]:
            raise WrongAnswerError(f"sum of {key_of(at)}: found {window}")

    def modify(self, i: int, number: int) -> None:
        """Add a value to the key of record i."""
        self.insert(i, number)


class Suppression(Timed):
    """Our suppression buffer, full: a new key emits the oldest record. `first` is the oldest record, which makes room
    for record `last`."""

    def __init__(self, place: Path | Bucket, limit: int | None, expected: array[int], records: int) -> None:
        super().__init__(place, limit, expected)
        self.store = self.state.suppression("records", max_records=records, timer="first")
        self.room, self.first, self.last = records, 0, 0

    def insert(self, i: int, number: int) -> None:
        """Add a record; the oldest one must come out as it was written."""
        i, self.last = self.last, self.last + 1
        emitted = self.store.put(key_of(i), value_of(number), i)
        self.expected[i] = number
        if self.last - self.first > self.room:
            right = [(key_of(self.first), value_of(self.expected[self.first]), self.first)]
            if emitted != right:
                raise WrongAnswerError(f"record {self.first}: emitted {emitted}")
            self.first += 1
        elif emitted:
            raise WrongAnswerError(f"record {i}: emitted {emitted}")

    def modify(self, i: int, number: int) -> None:
        """Update a record; every tenth time, add one instead."""
        if number % 10 == 0:
            self.insert(self.last, number)
            return
        i = self.first + i % (self.last - self.first)
        if self.store.put(key_of(i), value_of(number), i):
            raise WrongAnswerError(f"record {i}: an update emitted something")
        self.expected[i] = number


SUBJECTS: Final[dict[str, Any]] = {
    "key-value": KeyValue,
    "window": Window,
    "session": Session,
    "sliding": Sliding,
    "suppression": Suppression,
    "rocksdb": RocksDB,
    "lmdb": Lmdb,
}


# Subjects that are not closed, so that the end of their process leaves what a kill leaves.
_KILLED: Final[list[Subject]] = []


def work(
    folder: str,
    subject: str,
    limit: int | None,
    records: int,
    operations: int,
    works: list[str],
    turns: int = 1,
    *,
    killed: bool,
    bucket: dict[str, Any] | None = None,
) -> dict[str, dict[str, float]]:
    """Load `records` and run each of `works` in so many turns of `operations`; return the figures of `_timed` by phase
    (`turn_of`). `killed`: the process ends without closing anything, for `restarted`. `bucket`: the settings of an
    object store for the state, whose cache is in the folder; None: the state is in the folder.

    The commit that follows each 1,000 operations belongs to the last of them.
    """
    # what measures is in memory before the subject is
    expected = array("q", [0]) * (records + operations * turns * max(1, len(works)))
    arguments: list[Any] = [_place(folder, bucket), limit, expected]
    if subject == "suppression":
        arguments.append(records)
    choosers, seconds = _choosers(works, records), array("d", [0.0]) * max(records, operations)
    _watch_syncs()
    phase(BASE)
    tested: Subject = SUBJECTS[subject](*arguments)
    phase(LOAD)
    figures = {LOAD: _timed(tested, (("insert", i, i) for i in range(records)), records, seconds)}
    dice = random.Random(7)
    for name in works:
        for turn in range(turns):
            phase(turn_of(name, turn))
            steps = _Steps(name, choosers[name], records, operations, dice)
            # what a scan returns is checked at once: of a thousand scans it would be taken for the subject's memory
            together = 1 if "scan" in WORKS[name][0] else COMMIT_OPERATIONS
            figures[turn_of(name, turn)] = _timed(tested, steps, operations, seconds, together)
            records = steps.records
    phase("close")
    if killed:
        _KILLED.append(tested)
        atexit.register(os._exit, 0)
    else:
        tested.close()
    return figures


def _place(folder: str, bucket: dict[str, Any] | None) -> Path | Bucket:
    if bucket is None:
        return Path(folder) / "state"
    settings = dict(bucket)
    return Bucket(settings.pop("location"), cache=Path(folder) / "cache", **settings)


def restarted(
    folder: str,
    limit: int,
    records: int,
    operations: int,
    works: list[str],
    turns: int = 1,
    bucket: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Open the key-value store that a killed `work` has left, check the number of its records, and read, check and
    write records at random; return the figures, and as `ready` the time until the first record was read (ms).
    """
    expected = array("q", [0]) * (records + operations * turns * max(1, len(works)))
    expected[:records] = array("q", range(records))
    choosers, dice, loaded = _choosers(works, records), random.Random(7), records
    for name in works:
        for _ in range(turns):
            steps = _Steps(name, choosers[name], records, operations, dice)
            for operation, i, number in steps:
                if operation in _WRITES:
                    expected[i] = number
            records = steps.records
    choose, seconds = chooser("uniform", seed=2), array("d", [0.0]) * operations
    _watch_syncs()
    phase(BASE)
    phase(RESTART)
    started = perf_counter()
    tested = KeyValue(_place(folder, bucket), limit, expected)
    tested.do("read", loaded - 1, 0)
    ready = 1000 * (perf_counter() - started)
    check(len(tested.store) == records, f"{len(tested.store)} records after a kill, {records} were committed")
    updates = (("modify", choose(records), number) for number in range(operations))
    figures = _timed(tested, updates, operations, seconds)
    phase("close")
    tested.close()
    return {**figures, "ready": ready}


def _choosers(works: list[str], records: int) -> dict[str, Chooser]:
    choosers = {name: chooser(WORKS[name][1]) for name in works}
    for choose in choosers.values():
        choose(records)  # a Zipf law sums over all records once
    return choosers


# an operation, a record, and a number
Step = tuple[str, int, int]


class _Steps:
    """The operations of a work; `records`: how many records there are behind the last of them."""

    def __init__(self, work: str, choose: Chooser, records: int, operations: int, dice: random.Random) -> None:
        self.records = records
        self._shares, self._choose, self._operations, self._dice = WORKS[work][0], choose, operations, dice

    def __iter__(self) -> Iterator[Step]:
        names, bounds, dice = list(self._shares), list(accumulate(self._shares.values())), self._dice
        for number in range(self._operations):
            name = names[0] if len(names) == 1 else names[bisect_right(bounds, dice.random() * bounds[-1])]
            if name == "insert":
                self.records += 1
                yield name, self.records - 1, number
            elif name == "scan":
                start = self._choose(self.records)
                yield name, start, min(dice.randint(1, _LONGEST_SCAN), self.records - start)
            else:
                yield name, self._choose(self.records), number


def _timed(
    tested: Subject, steps: Iterable[Step], count: int, seconds: array[float], together: int = COMMIT_OPERATIONS
) -> dict[str, float]:
    """Do `count` operations, with a commit each 1,000, and return their figures: operations/s, the longest and the
    99.9th percentile operation (ms), the longest beside the kernel's syncs of this thread, and for an operation the
    processor time of this process, all its threads, and of those that it has started (µs). Neither the choice of
    records is measured, nor what makes their keys and values and checks the answers, of so many operations `together`.
    `seconds` has room for the time of each operation: it was in memory before the subject was.
    """
    steps, done, processor, others = iter(steps), 0, 0.0, _others_seconds()
    syncs = array("d")
    while chosen := list(islice(steps, together)):
        calls = [(getattr(tested, step[0]), *tested.arguments(*step)) for step in chosen]
        answers = []
        processor -= process_time()
        for method, first, second in calls:
            started = perf_counter()
            answer = method(first, second)
            done += 1
            if done % COMMIT_OPERATIONS == 0 or done == count:
                synced = _SYNCED[0]
                tested.commit()
                syncs.append(_SYNCED[0] - synced)
            seconds[done - 1] = perf_counter() - started
            answers.append(answer)
        processor += process_time()
        for step, answer in zip(chosen, answers, strict=True):
            tested.check(*step, answer)
    # without an object for each operation: their memory would be taken for the subject's
    slowest = nlargest(count // 1000 + 1, islice(seconds, count))
    total = sum(islice(seconds, count))
    for number, synced in enumerate(syncs, 1):
        seconds[min(number * COMMIT_OPERATIONS, count) - 1] -= synced
    return {
        "operations/s": count / total,
        "p99.9": 1000 * slowest[-1],
        "longest": 1000 * slowest[0],
        "beside sync": 1000 * max(islice(seconds, count)),
        "processor": 1e6 * processor / count,
        "others": 1e6 * max(0.0, _others_seconds() - others) / count,
    }


# The seconds that the thread which works has waited for the kernel to make files durable.
_SYNCED: Final = [0.0]


def _watch_syncs() -> None:
    """Count the time of fdatasync and fsync, of the calls of this thread."""
    working = threading.get_ident()

    def timed(sync: Callable[[Any], None]) -> Any:
        def call(file: Any) -> None:
            started = perf_counter()
            try:
                sync(file)
            finally:
                if threading.get_ident() == working:
                    _SYNCED[0] += perf_counter() - started

        return call

    os.fsync, os.fdatasync = timed(os.fsync), timed(os.fdatasync)


def _others_seconds() -> float:
    """Return the processor time of the processes that this one has started (s)."""
    return sum(map(processor_seconds, children_of(os.getpid())))
