"""Peers: what else could hold the same records on disk.

Each builds its files once, and opens and loads them in a fresh process.

    replay   our changelog alone, from its first record          rocksdb  rocksdict, record per value, times in the key
    lmdb     record per value, times in the key                   sqlite   one table without rowid
    pickle   one dict of lists, the whole state in one go

    rocksdb-log, sqlite-log    the same after a crash: the tail stands in the engine's own log, one entry a record as in
                               ours

All load into the same thing: per key an array of times and a list of values. Those that have to be installed say so.
"""

from __future__ import annotations

import gc
import pickle
import shutil
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks.measure import fresh_process
from benchmarks.measure.content import fingerprint, per_key
from benchmarks.measure.workload import Stream

PEERS: Final = ("rocksdb", "rocksdb-log", "lmdb", "sqlite", "sqlite-log", "pickle")
# opening these works their log in, so that each run needs files of its own
CRASHED: Final = frozenset({"rocksdb-log", "sqlite-log"})
_BATCH: Final = 10_000
State = dict[str, tuple[Any, list[bytes]]]  # name -> array of times, values


def missing(peer: str) -> str | None:
    """Return why a peer cannot be measured here, or None."""
    if peer.startswith("rocksdb") and find_spec("rocksdict") is None:
        return f"{peer} is left out: rocksdict is not installed (pip install rocksdict)"
    return None


def _key(key: str, ts: int) -> bytes:
    return key.encode() + ts.to_bytes(8, "big")


def _group(rows: Iterable[tuple[bytes, bytes]]) -> State:
    """Collect records in key order into the common form."""
    state: State = {}
    last, times, values = b"", array("q"), list[bytes]()
    for packed, value in rows:
        name = packed[:-8]
        if name != last:
            last, times, values = name, array("q"), []
            state[name.decode()] = (times, values)
        times.append(int.from_bytes(packed[-8:], "big"))
        values.append(value)
    return state


def build(peer: str, folder: Path, stream: Stream, tail: int = 0) -> None:
    """Write a stream into a peer's files under `folder`; the last `tail` records only into the log of one that is
    to have crashed.
    """
    rows = stream.rows()
    split = len(rows.keys) - (tail if peer in CRASHED else 0)
    state = per_key(rows.part(0, split))
    records = [(_key(key, ts), value) for key in sorted(state) for ts, value in zip(*state[key], strict=True)]
    later = [(_key(key, ts), value) for key, value, ts in zip(*rows.part(split, len(rows.keys)), strict=True)]
    folder.mkdir()
    if peer == "pickle":
        with (folder / "state.pickle").open("wb") as file:
            pickle.dump(state, file, protocol=5)
    elif peer.startswith("sqlite"):
        _build_sqlite(folder, records, later)
    elif peer == "lmdb":
        import lmdb

        size = sum(len(key) + len(value) + 32 for key, value in records) * 3 + (16 << 20)
        environment = lmdb.open(str(folder / "state.lmdb"), subdir=False, map_size=size, lib_version=0)
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(records, append=True)
        environment.close()
    else:
        _build_rocksdb(folder, records, later)


def _build_sqlite(folder: Path, records: list[tuple[bytes, bytes]], later: list[tuple[bytes, bytes]]) -> None:
    path = folder / "state.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("create table records (name blob, ts integer, value blob, primary key (name, ts)) without rowid")
    for rows in (records, later):
        if rows is later:
            if not rows:
                break
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma wal_autocheckpoint = 0")
        connection.execute("begin")
        connection.executemany(
            "replace into records values (?, ?, ?)", ((k[:-8], int.from_bytes(k[-8:], "big"), v) for k, v in rows)
        )
        connection.execute("commit")
    _close(connection, folder, crashed=bool(later))


def _build_rocksdb(folder: Path, records: list[tuple[bytes, bytes]], later: list[tuple[bytes, bytes]]) -> None:
    database = _rocksdb(folder)
    batch_type = import_module("rocksdict").WriteBatch
    for at in range(0, len(records), _BATCH):
        batch = batch_type(raw_mode=True)
        for key, value in records[at : at + _BATCH]:
            batch.put(key, value)
        database.write(batch)
    database.flush()
    for key, value in later:
        database[key] = value
    if later:
        database.flush_wal(True)
    _close(database, folder, crashed=bool(later))


def _close(database: Any, folder: Path, *, crashed: bool) -> None:
    """Close a database; `crashed`: leave its files as a crash does, because closing would work the log in."""
    if not crashed:
        database.close()
        return
    shutil.copytree(folder, folder.with_suffix(".crashed"))
    database.close()
    shutil.rmtree(folder)
    folder.with_suffix(".crashed").rename(folder)


def _rocksdb(folder: Path) -> Any:
    rocksdict = import_module("rocksdict")
    return rocksdict.Rdict(str(folder / "state.rocksdb"), rocksdict.Options(raw_mode=True))


def _open(
    peer: str, folder: Path
) -> tuple[Callable[[bytes], Any], Callable[[bytes, bytes], None], Callable[[], State]]:
    """Open a peer's files and return (read one record, write one record, load everything)."""
    if peer == "pickle":
        with (folder / "state.pickle").open("rb") as file:
            state: State = pickle.load(file)

        def write_dict(key: bytes, value: bytes) -> None:
            state.setdefault(key[:-8].decode(), (array("q"), []))[1].append(value)

        def read_dict(key: bytes) -> Any:
            times, values = state[key[:-8].decode()]
            return values[times.index(int.from_bytes(key[-8:], "big"))]

        return read_dict, write_dict, lambda: state
    if peer.startswith("sqlite"):
        connection = sqlite3.connect(folder / "state.sqlite", isolation_level=None)

        def read_row(key: bytes) -> Any:
            place = (key[:-8], int.from_bytes(key[-8:], "big"))
            return connection.execute("select value from records where name = ? and ts = ?", place).fetchone()[0]

        def write_row(key: bytes, value: bytes) -> None:
            connection.execute("begin")
            connection.execute(
                "replace into records values (?, ?, ?)", (key[:-8], int.from_bytes(key[-8:], "big"), value)
            )

        def load_rows() -> State:
            state: State = {}
            for name, ts, value in connection.execute("select name, ts, value from records order by name, ts"):
                columns = state.get(name)
                if columns is None:
                    columns = state[name] = (array("q"), [])
                columns[0].append(ts)
                columns[1].append(value)
            return {name.decode(): columns for name, columns in state.items()}  # type: ignore[attr-defined]

        return read_row, write_row, load_rows
    if peer == "lmdb":
        import lmdb

        path = folder / "state.lmdb"
        environment = lmdb.open(str(path), subdir=False, map_size=path.stat().st_size + (16 << 20), lib_version=0)
        reading = environment.begin()

        def write_record(key: bytes, value: bytes) -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(key, value)

        return reading.get, write_record, lambda: _group(reading.cursor())
    database = _rocksdb(folder)

    def items() -> Iterator[tuple[bytes, bytes]]:
        return iter(database.items())

    return database.get, database.__setitem__, lambda: _group(items())


def restart(peer: str, folder: str, key: str, ts: int, modules: list[str]) -> dict[str, Any]:
    """Open a peer's files, read one record, load all, write one, and return the seconds and what was found.

    For a fresh process.

    `modules` are imported first: imports are nobody's restart. What is written is what was there: the next run finds
    the same.
    """
    for module in modules:
        import_module(module)
    gc.collect()
    before, read_before = fresh_process.peak_bytes(), fresh_process.bytes_read()
    started = perf_counter()
    read, write, load = _open(peer, Path(folder))
    opened = perf_counter()
    value = read(_key(key, ts))
    ready = perf_counter()
    gc.disable()
    state = load()
    loaded = perf_counter()
    gc.enable()
    asked, disk = (b - a for a, b in zip(read_before, fresh_process.bytes_read(), strict=True))
    peak = fresh_process.peak_bytes() - before
    sum_of_all = fingerprint((name, times, values) for name, (times, values) in state.items())
    writing = perf_counter()
    write(_key(key, ts), value)
    wrote = perf_counter()
    return {
        "open": opened - started,
        "first_read": ready - opened,
        "first_write": wrote - writing,
        "ready": ready - started + wrote - writing,
        "load": loaded - ready if peer != "pickle" else opened - started,
        "total": loaded - started,
        "peak": peak,
        "asked": asked,
        "disk": disk,
        "fingerprint": sum_of_all,
        "value": value.hex(),
        "python": sys.version_info[:2],
    }
