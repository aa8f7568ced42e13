"""Store writes: put, put_many and put_columns of each store, as ratios to a bare dict put with a reused msgpack Packer.

The bare loop packs the same values and puts them into a dict, no more: no log, no times, no order. Ours includes the
changelog and a commit for each 10,000 records.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import msgpack

from benchmarks.measure.result import Line, Target, line
from benchmarks.measure.state import COMMIT_ROWS, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check, interleaved
from benchmarks.measure.workload import Rows, Stream
from hybridstore.state.directory import State

Put = Callable[[Any, Rows, State], None]
_SINGLE, _MANY, _COLUMNS = "put", "put_many", "put_columns"


def bare_put(rows: Rows, kind: str) -> float:
    """Return the seconds a record that a dict put and a reused Packer take together, for all that identifies a
    record of this kind.
    """
    pack = msgpack.Packer(use_bin_type=True).pack
    data: dict[Any, Any] = {}
    size = 0
    started = perf_counter()
    if kind == "session":
        for key, value, start, end in zip(*rows, rows.times, strict=True):
            data[key, start, end] = value
            size += len(pack((key, value, start, end)))
    elif kind == "window":
        for key, value, ts in zip(*rows, strict=True):
            data[key, ts] = value
            size += len(pack((key, value, ts)))
    else:
        for key, value in zip(rows.keys, rows.values, strict=True):
            data[key] = value
            size += len(pack((key, value)))
    seconds = perf_counter() - started
    check(size > 0 and len(data) <= len(rows.keys), "the bare loop packed nothing")
    return seconds / len(rows.keys)


def _chunks(rows: Rows) -> list[Rows]:
    return [rows.part(at, at + COMMIT_ROWS) for at in range(0, len(rows.keys), COMMIT_ROWS)]


def _measure(folder: Path, rows: Rows, stream: Stream, kind: str, way: str, verify: bool) -> float:
    """Put all rows into a new store and return the seconds a record; `verify` compares what it then holds."""
    with scratch(folder) as place, open_state(place / "state") as state:
        store: Any
        if kind == "key_value":
            store = state.key_value("events")
            chunks = [(part.keys, part.values) for part in _chunks(rows)]
        elif kind == "session":
            store = state.session("events", retention=stream.span_ms + 1)
            chunks = [(part.keys, part.values, part.times, part.times) for part in _chunks(rows)]  # type: ignore[misc]
        else:
            store = window_of(state, stream)
            chunks = [tuple(part) for part in _chunks(rows)]  # type: ignore[misc]
        seconds = 0.0
        # made before the clock starts, and all at once: rows made in between would take the collector's turn that the
        # next way pays for
        lists = [list(zip(*chunk, strict=True)) for chunk in chunks] if way == _MANY else []
        for number, chunk in enumerate(chunks):
            if way == _SINGLE:
                put = store.put
                started = perf_counter()
                for row in zip(*chunk, strict=True):
                    put(*row)
            elif way == _MANY:
                started = perf_counter()
                store.put_many(lists[number])
            else:
                started = perf_counter()
                store.put_columns(*chunk)
            state.commit()
            seconds += perf_counter() - started
        if verify:
            check(_content(store, kind) == _expected(rows, kind), f"{kind} store after {way}")
        return seconds / len(rows.keys)


def _content(store: Any, kind: str) -> Any:
    if kind == "key_value":
        return dict(store.all())
    if kind == "session":
        return {(key, start): value for (key, start, _), value in store.all()}
    return dict(store.all())


def _expected(rows: Rows, kind: str) -> Any:
    if kind == "key_value":
        return dict(zip(rows.keys, rows.values, strict=True))
    return dict(zip(zip(rows.keys, rows.times, strict=True), rows.values, strict=True))


def lines(folder: Path, records: int, repeats: int) -> list[Line]:
    """Measure all stores and ways with `records` records of 16 bytes."""
    lines: list[Line] = []
    for kind, shape in (("key_value", "sparse"), ("window", "sparse"), ("window", "dense"), ("session", "sparse")):
        stream = Stream(records, keys=max(1, records // 10) if kind == "key_value" else 1000, shape=shape)
        rows = stream.rows()
        for way in (_SINGLE, _MANY, _COLUMNS):
            _measure(folder, rows, stream, kind, way, verify=True)
        cases: dict[str, Callable[[], float]] = {
            "bare": lambda rows=rows, kind=kind: bare_put(rows, kind)  # type: ignore[misc]
        }
        for way in (_SINGLE, _MANY, _COLUMNS):
            cases[way] = lambda rows=rows, stream=stream, kind=kind, way=way: _measure(  # type: ignore[misc]
                folder, rows, stream, kind, way, verify=False
            )
        spreads = interleaved(cases, repeats)
        label = kind if kind != "window" else f"window, {shape}"
        lines.append(line(f"{label}: bare dict put + Packer", spreads["bare"], "ns"))
        lines += [_line(label, way, spreads) for way in (_SINGLE, _MANY, _COLUMNS)]
        for way, bound in ((_MANY, 1.5), (_COLUMNS, 2.0)):
            gain = spreads[_SINGLE].over(spreads[way])
            lines.append(line(f"{label}: {way} against put", gain, "x", target=Target(bound, "value", at_least=True)))
    return lines


def _line(label: str, way: str, spreads: dict[str, Spread]) -> Line:
    bound = {_SINGLE: Target(3.0), _COLUMNS: Target(1.5)}.get(way)
    return line(f"{label}: {way} + changelog", spreads[way], "ns", base=spreads["bare"], against="bare", target=bound)
