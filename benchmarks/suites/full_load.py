"""Full load: how fast `lazy=False` brings a key-value store back, against the least that Python could do with the same
bytes.

    opened          `hybridstore.open(lazy=False)`: every block read, checked and decoded; nothing is left to be read
    in the dict     the same, and every block's records put where `get` finds them at once (else at the first touch of
                    the block)
    bare unpack     msgpack over the same blocks, one call for each
    + dict          and one dict of their keys and values

All with the collector held. What was loaded is compared with what was put.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import msgpack

from benchmarks.measure.result import Line, Target, line
from benchmarks.measure.state import open_state, scratch
from benchmarks.measure.timing import Spread, check, interleaved
from benchmarks.measure.workload import Rows, Stream
from changelog.storage import LocalStorage
from hybridstore.collector import collector_held
from recovery.checkpoint import CheckpointReader
from recovery.layout import list_checkpoints


def _build(folder: Path, rows: Rows) -> list[bytes]:
    """Make the state, and return its blocks without their checksums."""
    with open_state(folder) as state:
        store = state.key_value("events")
        for at in range(0, len(rows.keys), 10_000):
            store.put_columns(rows.keys[at : at + 10_000], rows.values[at : at + 10_000])
            state.commit()
        state.checkpoint(wait=True)
        number = store.number
    storage = LocalStorage(folder)
    reader = CheckpointReader(storage, list_checkpoints(storage)[-1])
    return [bytes(reader.raw_block(entry))[4:] for entry in reader.directory(number)]


def _opened(folder: Path, expected: dict[str, bytes] | None, *, placed: bool) -> float:
    """Return the seconds of opening, and with `placed` of filling the dict; compare what is there, if that is given."""
    started = perf_counter()
    state = open_state(folder, lazy=False)
    if placed:
        state.hydrate(1e9)
    seconds = perf_counter() - started
    store = state.key_value("events")
    check(store.cold_blocks == 0 and len(store) > 0, "blocks are left after a full load")
    if expected is not None:
        check(dict(store.all()) == expected, "what was loaded is not what was put")
    state._abandon()
    return seconds


def _bare(blocks: list[bytes], *, placed: bool) -> float:
    loaded: list[Any] = []
    data: dict[str, bytes] = {}
    with collector_held():
        started = perf_counter()
        for block in blocks:
            keys, _, _, values = msgpack.unpackb(block)
            if placed:
                data.update(zip(keys, values, strict=True))
            else:
                loaded.append((keys, values))
        seconds = perf_counter() - started
    check(bool(data or loaded), "the bare loop loaded nothing")
    return seconds


def lines(folder: Path, records: int, repeats: int) -> list[Line]:
    """Measure a key-value store of `records` keys with values of 16 bytes."""
    rows = Stream(records, keys=records, shape="dense").rows()
    expected = dict(zip(rows.keys, rows.values, strict=True))
    with scratch(folder) as place:
        state = place / "state"
        blocks = _build(state, rows)
        _opened(state, expected, placed=False)
        cases: dict[str, Callable[[], float]] = {
            "opened": lambda: _opened(state, None, placed=False),
            "placed": lambda: _opened(state, None, placed=True),
            "unpack": lambda: _bare(blocks, placed=False),
            "dict": lambda: _bare(blocks, placed=True),
        }
        seconds = interleaved(cases, repeats)
    speed = {
        name: Spread(tuple(records / sample / 1e6 for sample in spread.samples)) for name, spread in seconds.items()
    }
    unit = "M records/s"
    bound = Target(8, "value", at_least=True) if records >= 100_000 else None
    return [
        line("key_value: bare unpack of its blocks", speed["unpack"], unit),
        line("key_value: lazy=False", speed["opened"], unit, base=speed["unpack"], against="bare unpack", target=bound),
        line("key_value: bare unpack and one dict", speed["dict"], unit),
        line("key_value: lazy=False, all in the dict", speed["placed"], unit, base=speed["dict"], against="bare dict"),
    ]
