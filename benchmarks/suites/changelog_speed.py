"""Changelog benchmark: what it costs to write mutations, to make them durable, and to read them, against the bare
steps.

The floor of writing is a reused Packer and one `os.write`; that of reading is unpacking the same bytes.
"""

from __future__ import annotations

import os
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import msgpack

from benchmarks.measure.result import Line, Result, Target, line
from benchmarks.measure.state import COMMIT_ROWS, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check, interleaved, stopwatch
from benchmarks.measure.workload import Rows, Stream
from changelog.codec import unpack
from changelog.digest import RunningDigest
from changelog.frame import CommitFrame
from changelog.identity import Identity
from changelog.journal import Journal
from changelog.mutation import PUT_AT, mutations
from changelog.reader import SegmentReader
from changelog.segment import list_segments, segment_name
from changelog.writer import ChangelogWriter
from hybridstore.collector import collector_held
from hybridstore.stores.window import WindowStore

_CODE = 16 + PUT_AT
_WINDOW: dict[str, Any] = {"retention_ms": 1 << 40, "grace_ms": 1 << 40, "retain_duplicates": False}


def _packed(rows: Rows) -> float:
    pack = msgpack.Packer(use_bin_type=True).pack
    started = perf_counter()
    size = 0
    for key, value, ts in zip(*rows, strict=True):
        size += len(pack((_CODE, key, value, ts)))
    seconds = perf_counter() - started
    check(size > 0, "nothing was packed")
    return seconds / len(rows.keys)


def _journalled(rows: Rows, bodies: list[bytes]) -> float:
    """Collect, pack and chain the digest of all rows, as the stores' puts do it; the bodies go to a list."""
    bodies.clear()
    journal = Journal(bodies.append)
    started = perf_counter()
    log, items, limit, spill = journal.extend, journal.items, journal.limit, journal.spill
    for key, value, ts in zip(*rows, strict=True):
        log((_CODE, key, value, ts))
        if len(items) >= limit:
            spill()
    journal.seal()
    return (perf_counter() - started) / len(rows.keys)


class _Undigested(Journal):
    """A journal without a digest chain."""

    def restart(self, parent_digest: bytes) -> None:
        """Begin a version."""
        super().restart(parent_digest)
        self._hash = _NoDigest(parent_digest)


class _NoDigest(RunningDigest):
    def add(self, part: memoryview) -> None:
        """Count it only."""
        self.size += len(part)

    def digest(self) -> bytes:
        """Return no digest."""
        return bytes(16)


def _put(
    folder: Path, rows: Rows, batch: int, kind: type[Journal], seconds: dict[str, list[float]], name: str
) -> float:
    """Put all rows into a window store over this kind of journal, with a commit for each `batch`, and return the
    owner's processor time a record; that of the puts alone is added to `found`."""
    with scratch(folder) as place:
        writer = ChangelogWriter(place, Identity(bytes(range(16))), sync=False)
        writer.begin(0, bytes(16))
        journal = kind(writer.mutations)
        store = WindowStore("events", 1, _WINDOW, journal)
        whole = puts = 0.0
        with collector_held():
            for at in range(0, len(rows.keys), batch):
                part, put = rows.part(at, at + batch), store.put
                started = thread_time()
                for row in zip(*part, strict=True):
                    put(*row)
                ended = thread_time()
                journal.version += 1
                digest = journal.seal()
                writer.commit(CommitFrame(journal.version, digest, journal.records, 0, {}, {}))
                journal.restart(digest)
                whole += thread_time() - started
                puts += ended - started
        writer.close(None)
    seconds.setdefault(name, []).append(puts / len(rows.keys))
    return whole / len(rows.keys)


def _digest_lines(folder: Path, records: int, repeats: int) -> list[Line]:
    """Measure what the digest chain adds to puts, for values of several sizes: the owner's processor time with it
    and without.
    """
    lines = []
    for size in (16, 100, 1000):
        rows = Stream(max(1, min(records, 40_000_000 // (size + 100) // 10)), value_size=size).rows()
        puts: dict[str, list[float]] = {}
        spreads = interleaved(
            {
                name: partial(_put, folder, rows, COMMIT_ROWS, kind, puts, name)
                for name, kind in (("without", _Undigested), ("with", Journal))
            },
            repeats,
        )
        for what, spread in (
            ("puts", {name: Spread(tuple(samples)) for name, samples in puts.items()}),
            ("puts and commits", spreads),
        ):
            lines.append(
                line(
                    f"digest chain: {what} of {size:,} bytes",
                    spread["with"],
                    "ns",
                    base=spread["without"],
                    against="no digest",
                    target=Target(1.05),
                )
            )
    return lines


def _written(folder: Path, bodies: list[bytes], records: int) -> float:
    with scratch(folder) as place:
        writer = ChangelogWriter(place, Identity(bytes(range(16))), sync=False)
        writer.begin(0, bytes(16))
        started = perf_counter()
        for body in bodies:
            writer.mutations(body)
        seconds = perf_counter() - started
        writer.close(None)
        return seconds / records


def _raw_written(folder: Path, bodies: list[bytes], records: int) -> float:
    with scratch(folder) as place:
        fd = os.open(place / "raw", os.O_WRONLY | os.O_CREAT)
        started = perf_counter()
        for body in bodies:
            os.write(fd, body)
        seconds = perf_counter() - started
        os.close(fd)
        return seconds / records


def _hashed(bodies: list[bytes], records: int) -> float:
    digest = blake2b(digest_size=16)
    started = perf_counter()
    for body in bodies:
        digest.update(body)
    return (perf_counter() - started) / records


def _committed(folder: Path, rows: Rows, batch: int, commits: int) -> float:
    """Return the seconds of one durable commit of `batch` records, the puts included."""
    with scratch(folder) as place, open_state(place / "state", durability="commit") as state:
        store = window_of(state, Stream(len(rows.keys)))
        parts = [rows.part(i * batch % len(rows.keys), i * batch % len(rows.keys) + batch) for i in range(commits)]
        store.put(rows.keys[0], rows.values[0], rows.times[0])
        state.commit()
        started = perf_counter()
        for part in parts:
            for key, value, ts in zip(*part, strict=True):
                store.put(key, value, ts)
            state.commit()
        return (perf_counter() - started) / commits


def measure(folder: Path, *, records: int = 200_000, repeats: int = 5) -> Result:
    """Measure writing, syncing and reading a changelog of `records` puts of 16 bytes."""
    result = Result("changelog", {"records": records, "runs": repeats})
    with stopwatch() as clock:
        rows = Stream(records).rows()
        bodies: list[bytes] = []
        _journalled(rows, bodies)
        kept = list(bodies)
        read = [mutation.args for body in kept for mutation in mutations(unpack(body))]
        check(read == list(zip(*rows, strict=True)), "what was read from the frames")
        spreads = interleaved(
            {
                "pack": lambda: _packed(rows),
                "journal": lambda: _journalled(rows, bodies),
                "write": lambda: _written(folder, kept, records),
                "raw": lambda: _raw_written(folder, kept, records),
                "digest": lambda: _hashed(kept, records),
                "unpack": lambda: _unpacked(kept, records),
                "segment": lambda: _segment_read(folder, kept, records),
            },
            repeats,
        )
        result.lines += [
            line("bare Packer, a record at a time", spreads["pack"], "ns"),
            line(
                "journal: collect, pack, digest", spreads["journal"], "ns", base=spreads["pack"], against="bare Packer"
            ),
            line(
                "  of which digest chain (blake2b)", spreads["digest"], "ns", base=spreads["journal"], against="journal"
            ),
            line("bare os.write of the same bytes", spreads["raw"], "ns"),
            line("writer: frame, checksum, write", spreads["write"], "ns", base=spreads["raw"], against="bare write"),
            line("bare unpack of the bodies", spreads["unpack"], "ns"),
            line(
                "reader: check and unpack frames",
                spreads["segment"],
                "ns",
                base=spreads["unpack"],
                against="bare unpack",
            ),
            line("size of a record in the changelog", Spread((sum(map(len, kept)) / records,)), "B"),
        ]
        result.lines += _digest_lines(folder, records, repeats)
        for batch in (1, 10, 100, 1000, 10_000):
            commits = max(3, min(100, records // batch // 4))
            spread = interleaved({"commit": partial(_committed, folder, rows, batch, commits)}, repeats)["commit"]
            speed = Spread(tuple(batch / sample / 1e3 for sample in spread.samples))
            result.lines.append(line(f"durable commits of {batch:,} puts", speed, "k records/s"))
    result.seconds = clock.seconds
    return result


def _unpacked(bodies: list[bytes], records: int) -> float:
    started = perf_counter()
    count = sum(len(unpack(body)) for body in bodies)
    seconds = perf_counter() - started
    check(count == 4 * records, "items unpacked")
    return seconds / records


def _segment_read(folder: Path, bodies: list[bytes], records: int) -> float:
    with scratch(folder) as place:
        writer = ChangelogWriter(place, Identity(bytes(range(16))), sync=False)
        writer.begin(0, bytes(16))
        for body in bodies:
            writer.mutations(body)
        writer.close(None)
        items: Any = 0
        started = perf_counter()
        for first in list_segments(place):
            for frame in SegmentReader(place / segment_name(first), last=True).frames():
                items += len(unpack(frame.body))
        seconds = perf_counter() - started
        check(items == 4 * records, "items read from the segment")
        return seconds / records
