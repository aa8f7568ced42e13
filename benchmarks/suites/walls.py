"""Walls: where the time of a put goes that Python itself takes, and what blocks and frames in other forms would give.

    python -m benchmarks.suites.walls [--records 200000]

The floor is the least Python that a put of a window store can be: one call that logs a tuple and puts a row into a
bucket's run, without a check of anything. A packed block is the form that was tried and not taken: times and offsets as
fixed-width columns beside one arena of bytes, read in place. Frames by column were tried for single puts. Every form is
read back and compared first.
"""

from __future__ import annotations

import argparse
import gc
import random
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from tempfile import gettempdir
from time import process_time
from typing import Any

from benchmarks.measure.result import Result, Target, line, show
from benchmarks.measure.state import COMMIT_ROWS, fill, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check, interleaved, stopwatch
from benchmarks.measure.workload import Rows, Stream
from changelog.codec import packer, unpack
from recovery.block import Columns, pack_block, unpack_block

_POINTS = 3000
_FRAME = 1000
_PUT_CODE = 17


# --- a put -----------------------------------------------------------------------------------------------------------


class Floor:
    """The least that a put can be in Python: a log of mutations, buckets by time, a run per key.

    It checks nothing and expires nothing.
    """

    def __init__(self, width: int, pack: Callable[[Any], bytes]) -> None:
        self.width = width
        self.log: list[Any] = []
        self.buckets: dict[int, dict[Any, Any]] = {}
        self.pack = pack
        self.packed = 0

    def put(self, key: Any, value: Any, ts: int) -> None:
        """Log and insert a row that is in order of time."""
        self.log.extend((_PUT_CODE, key, value, ts))
        bucket = self.buckets.get(ts // self.width)
        if bucket is None:
            bucket = self.buckets[ts // self.width] = {}
        run = bucket.get(key)
        bucket[key] = (ts, value) if run is None else run + (ts, value)  # noqa: RUF005  # faster than unpacking

    def commit(self) -> None:
        """Pack what was logged, as frames are."""
        for at in range(0, len(self.log), 4 * _FRAME):
            self.packed += len(self.pack(self.log[at : at + 4 * _FRAME]))
        self.log = []


class Native(Floor):
    """What a core in C could come to at best: a put is a call of C that logs, and one that inserts into a dict; no
    Python in between.
    """

    def __init__(self, width: int, pack: Callable[[Any], bytes]) -> None:
        super().__init__(width, pack)
        self.data: dict[Any, Any] = {}

    def fill(self, part: list[tuple[Any, Any, int]]) -> None:
        """Put rows, in a loop as a caller would write it."""
        log, insert = self.log.extend, self.data.__setitem__
        for key, value, ts in part:
            log((_PUT_CODE, key, value, ts))
            insert((key, ts), value)


class Nothing:
    """A put that only is called."""

    def put(self, key: Any, value: Any, ts: int) -> None:
        """Do nothing."""


def per_put(rows: Rows, store: Any, commit: Callable[[], Any]) -> float:
    """Return the processor seconds of a put with its share of a commit."""
    seconds = 0.0
    for at in range(0, len(rows.keys), COMMIT_ROWS):
        part = list(zip(*rows.part(at, at + COMMIT_ROWS), strict=True))
        put = store.put
        started = process_time()
        for key, value, ts in part:
            put(key, value, ts)
        commit()
        seconds += process_time() - started
    return seconds / len(rows.keys)


def put_costs(folder: Path, stream: Stream, rows: Rows, repeats: int) -> dict[str, Spread]:
    """Measure an empty call, the floor, and the store, by single puts and by column."""

    def floor() -> float:
        store = Floor(max(1, stream.span_ms // 64), packer())
        seconds = per_put(rows, store, store.commit)
        count = sum(len(run) // 2 for bucket in store.buckets.values() for run in bucket.values())
        check(count == len(rows.keys) and store.packed > 0, "rows of the floor")
        return seconds

    def native() -> float:
        store = Native(1, packer())
        seconds = 0.0
        for at in range(0, len(rows.keys), COMMIT_ROWS):
            part = list(zip(*rows.part(at, at + COMMIT_ROWS), strict=True))
            started = process_time()
            store.fill(part)
            store.commit()
            seconds += process_time() - started
        check(len(store.data) == len(rows.keys) and store.packed > 0, "rows of the native core")
        return seconds / len(rows.keys)

    def ours(columns: bool) -> float:
        with scratch(folder) as place, open_state(place / "state") as state:
            store = window_of(state, stream)
            if not columns:
                seconds = per_put(rows, store, state.commit)
            else:
                started = process_time()
                fill(store, rows, state)
                seconds = (process_time() - started) / len(rows.keys)
            check(len(store) == len(rows.keys), "rows of the store")
            return seconds

    cases: dict[str, Callable[[], float]] = {
        "call": lambda: per_put(rows, Nothing(), lambda: None),
        "native": native,
        "floor": floor,
        "put": lambda: ours(columns=False),
        "columns": lambda: ours(columns=True),
    }
    return interleaved(cases, repeats)


# --- packed blocks ---------------------------------------------------------------------------------------------------


class PackedBlock:
    """A block that is read where it lies: keys as a list, everything else in view. Values are bytes."""

    __slots__ = ("arena", "keys", "offsets", "starts", "times")

    def __init__(self, data: bytes) -> None:
        view = memoryview(data)
        if zlib.crc32(view[4:]) != int.from_bytes(view[:4], "little"):
            raise ValueError("checksum")
        sizes = view[4:28].cast("q")
        keys_end = 28 + sizes[0]
        starts_end = keys_end + sizes[1]
        times_end = starts_end + sizes[2]
        offsets_end = times_end + sizes[2] + 8
        self.keys: list[Any] = unpack(view[28:keys_end])
        self.starts = view[keys_end:starts_end].cast("q")
        self.times = view[starts_end:times_end].cast("q")
        self.offsets = view[times_end:offsets_end].cast("q")
        self.arena = view[offsets_end:]

    def get(self, key: Any, ts: int) -> bytes | None:
        """Return one value without making objects of the others. O(log n)."""
        at = bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            return None
        start, end = self.starts[at], self.starts[at + 1]
        i = bisect_left(self.times, ts, start, end)
        if i == end or self.times[i] != ts:
            return None
        return bytes(self.arena[self.offsets[i] : self.offsets[i + 1]])

    def rows(self) -> list[tuple[int, bytes]]:
        """Return all rows as Python objects."""
        arena = bytes(self.arena)
        return list(zip(self.times.tolist(), [arena[a:b] for a, b in pairwise(self.offsets)], strict=True))


def packed(columns: Columns) -> bytes:
    """Return a block in the packed form."""
    keys = packer()(columns.keys)
    starts, offsets = array("q", [0]), array("q", [0])
    for count in columns.counts or [1] * len(columns.keys):
        starts.append(starts[-1] + count)
    for value in columns.values:
        offsets.append(offsets[-1] + len(value))
    sizes = array("q", [len(keys), 8 * len(starts), 8 * len(columns.values)]).tobytes()
    body = b"".join([sizes, keys, starts.tobytes(), columns.ints[0].tobytes(), offsets.tobytes(), *columns.values])
    return zlib.crc32(body).to_bytes(4, "little") + body


def blocks_of(folder: Path, stream: Stream, rows: Rows) -> list[Columns]:
    """Return the blocks that a checkpoint makes of the stream."""
    with scratch(folder) as place, open_state(place / "state") as state:
        fill(window_of(state, stream), rows, state)
        state.checkpoint(wait=True)
        state._go_cold()
        store = state.stores["events"]
        reader = state._checkpoints.reader
        assert reader is not None
        directory = reader.directory(store.number)
        loaded = [directory.load(entry) for entry in directory]
    check(sum(map(len, loaded)) == len(rows.keys), "records in the blocks")
    return loaded


def block_costs(blocks: list[Columns], rows: Rows, repeats: int) -> tuple[dict[str, Spread], dict[str, float]]:
    """Measure loading and reading of blocks as they are and packed; times a record or a read, and bytes a record of
    both forms.
    """
    stored = [pack_block(columns)[0] for columns in blocks]
    in_place = [packed(columns) for columns in blocks]
    records = len(rows.keys)
    values: dict[tuple[Any, int], tuple[int, bytes]] = {}
    for number, columns in enumerate(blocks):
        at = 0
        for key, count in zip(columns.keys, columns.counts or [1] * len(columns.keys), strict=True):
            for i in range(at, at + count):
                values[key, columns.ints[0][i]] = (number, columns.values[i])
            at += count
    dice = random.Random(5)
    points = [(key, ts, *values[key, ts]) for key, ts in dice.choices(list(values), k=_POINTS)]
    views = [PackedBlock(data) for data in in_place]
    check(all(views[number].get(key, ts) == value for key, ts, number, value in points), "reads of packed blocks")
    expected = [list(zip(columns.ints[0], columns.values, strict=True)) for columns in blocks]
    check([view.rows() for view in views] == expected, "rows of packed blocks")

    def timed(call: Callable[[Any], Any], data: Sequence[Any], share: int) -> float:
        gc.disable()
        started = process_time()
        kept = [call(item) for item in data]
        seconds = (process_time() - started) / share
        gc.enable()
        check(len(kept) == len(data), "blocks")
        return seconds

    def first_read(data: Any) -> Any:
        view = PackedBlock(data)
        return view.get(view.keys[0], view.times[0])

    cases: dict[str, Callable[[], float]] = {
        "load": lambda: timed(lambda data: unpack_block(data, "block"), stored, records),
        "packed attach": lambda: timed(PackedBlock, in_place, records),
        "packed to objects": lambda: timed(lambda view: view.rows(), views, records),
        "load, first read": lambda: timed(lambda data: unpack_block(data, "block").values[0], stored, len(stored)),
        "packed, first read": lambda: timed(first_read, in_place, len(in_place)),
        "packed get": lambda: timed(lambda point: views[point[2]].get(point[0], point[1]), points, len(points)),
        "dict get": lambda: timed(lambda point: values[point[0], point[1]], points, len(points)),
    }
    sizes = {"stored": sum(map(len, stored)) / records, "packed": sum(map(len, in_place)) / records}
    return interleaved(cases, repeats), sizes


# --- frames ----------------------------------------------------------------------------------------------------------


def frame_costs(rows: Rows, repeats: int) -> tuple[dict[str, Spread], dict[str, float]]:
    """Measure frames of 1,000 single puts: flat, as they are, and turned into columns; seconds a record, and bytes
    a record.
    """
    flat = [
        list(chain.from_iterable((_PUT_CODE, *row) for row in zip(*rows.part(at, at + _FRAME), strict=True)))
        for at in range(0, len(rows.keys), _FRAME)
    ]
    pack = packer()

    def by_column(frame: list[Any]) -> bytes:
        return pack([_PUT_CODE, frame[1::4], frame[2::4], array("q", frame[3::4]).tobytes()])

    def back(data: bytes) -> Any:
        _, keys, values, times = unpack(data)
        column = array("q")
        column.frombytes(times)
        return keys, values, column

    flat_bytes, column_bytes = [pack(frame) for frame in flat], [by_column(frame) for frame in flat]
    keys, values, times = back(column_bytes[0])
    check((keys, values, times.tolist()) == tuple(flat[0][i::4] for i in (1, 2, 3)), "a frame by column")

    def timed(call: Callable[[Any], Any], data: Sequence[Any]) -> float:
        started = process_time()
        for item in data:
            call(item)
        return (process_time() - started) / len(rows.keys)

    cases: dict[str, Callable[[], float]] = {
        "flat pack": lambda: timed(pack, flat),
        "column pack": lambda: timed(by_column, flat),
        "flat unpack": lambda: timed(unpack, flat_bytes),
        "column unpack": lambda: timed(back, column_bytes),
    }
    sizes = {
        name: sum(map(len, data)) / len(rows.keys) for name, data in (("flat", flat_bytes), ("column", column_bytes))
    }
    return interleaved(cases, repeats), sizes


def measure(folder: Path, records: int = 200_000, repeats: int = 5) -> Result:
    """Measure all three on one stream, sparse in time, in processor time.

    Raises WrongAnswerError when a form does not give back what went in.
    """
    result = Result("walls", {"records": records, "runs": repeats})
    add = result.lines.append
    with stopwatch() as clock:
        stream = Stream(records)
        rows = stream.rows()
        puts = put_costs(folder, stream, rows, repeats)
        add(line("a call with three arguments that does nothing, and the loop", puts["call"], "ns"))
        add(line("two C calls: log and dict, and the packing", puts["native"], "ns"))
        add(line("the floor: log and insert, nothing checked", puts["floor"], "ns"))
        add(line("put + changelog", puts["put"], "ns", base=puts["floor"], against="the floor"))
        add(line("put against two C calls", puts["put"].over(puts["native"]), "x"))
        add(line("put_columns + changelog", puts["columns"], "ns", base=puts["floor"], against="the floor"))
        blocks, sizes = block_costs(blocks_of(folder, stream, rows), rows, repeats)

        def speed(name: str) -> Spread:
            return Spread(tuple(1e-6 / seconds for seconds in blocks[name].samples))

        def of(name: str, value: float) -> None:
            add(line(name, Spread((value,)), "B/record"))

        add(line("blocks as they are, to objects", speed("load"), "M records/s"))
        kept = Target(30, "value", at_least=True)
        add(line("packed blocks, checked and kept in place", speed("packed attach"), "M records/s", target=kept))
        add(line("packed blocks, then to objects", speed("packed to objects"), "M records/s"))
        add(line("first read of a block as it is", blocks["load, first read"], "µs"))
        first = blocks["packed, first read"]
        add(line("first read of a packed block", first, "µs", base=blocks["load, first read"], against="as it is"))
        add(line("point read of a dict", blocks["dict get"], "ns"))
        add(line("point read of a packed block", blocks["packed get"], "ns", base=blocks["dict get"], against="dict"))
        of("block as it is", sizes["stored"])
        of("packed block", sizes["packed"])
        frames, sizes = frame_costs(rows, repeats)
        for what in ("pack", "unpack"):
            add(line(f"frame of puts as it is: {what}", frames[f"flat {what}"], "ns"))
            column = frames[f"column {what}"]
            add(line(f"frame by column: {what}", column, "ns", base=frames[f"flat {what}"], against="as it is"))
        of("frame of puts as it is", sizes["flat"])
        of("frame by column", sizes["column"])
    result.seconds = clock.seconds
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What Python takes of a put, and what other forms would give.")
    parser.add_argument("--records", type=int, default=200_000)
    show(measure(Path(gettempdir()), parser.parse_args().records))


if __name__ == "__main__":
    main()
