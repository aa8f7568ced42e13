"""The commands `dump` and `load`: a state as text that loses nothing, and back.

    {"hybridstore_dump": 1, "version", "digest", "settings", "stores": [{number, name, kind, parameters, state}]}
    {"s": store, "b": bucket, "k": key, "t": [[times of the first column], ..], "v": [values]}        a line per key and bucket
    {"end": number of lines before it, "blake2b": their hash}

The hash tells whether the text was edited: it may be, and `load --edited` then gives the state a digest of its own.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from recovery.block import BucketChange, Columns, StoreCapture

from ..errors import HybridStoreError
from . import options as o
from .exact_text import decode, encode, to_line
from .output import say
from .parameters import Argument, Option
from .progress import Progress
from .reader import View
from .rebuild import write_state
from .session import Inspection
from .store_view import Record, StoreView

FORMAT_VERSION = 1


class DumpError(HybridStoreError):
    """A text is not a dump, was cut short, or was edited."""


def dump_lines(view: View) -> Iterator[str]:
    """Yield the lines of the dump of a view, without line ends. O(records), one bucket in memory."""
    header = {
        "hybridstore_dump": FORMAT_VERSION,
        "version": view.version,
        "digest": view.digest.hex(),
        "settings": encode(view.settings),
        "stores": [
            {
                "number": store.number,
                "name": encode(store.name),
                "kind": store.kind,
                "parameters": encode(store.parameters),
                "state": encode(store.state),
            }
            for store in view.stores.values()
        ],
    }
    hashed, count = blake2b(digest_size=16), 0
    for line in _with_first(to_line(header), view):
        hashed.update(line.encode() + b"\n")
        count += 1
        yield line
    yield to_line({"end": count, "blake2b": hashed.hexdigest()})


def _with_first(first: str, view: View) -> Iterator[str]:
    yield first
    for store in view.stores.values():
        for bucket in sorted({entry.bucket for entry in store.entries} | store.changed.keys()):
            yield from _bucket_lines(store, bucket)


def _bucket_lines(store: StoreView, bucket: int) -> Iterator[str]:
    rows: list[Record] = []
    for record in store.unordered(bucket, set()):
        if rows and rows[-1].key != record.key:
            yield _key_line(store, bucket, rows)
            rows = []
        rows.append(record)
    if rows:
        yield _key_line(store, bucket, rows)


def _key_line(store: StoreView, bucket: int, rows: list[Record]) -> str:
    times = [list(column) for column in zip(*(row.times for row in rows), strict=True)]
    return to_line(
        {
            "s": store.number,
            "b": bucket,
            "k": encode(rows[0].key),
            "t": times,
            "v": [encode(row.value) for row in rows],
        }
    )


class _Gathered:
    """What the lines of a store add up to."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.buckets: dict[int, list[tuple[Any, list[list[int]], list[Any]]]] = {}

    def capture(self) -> StoreCapture:
        changed = {bucket: BucketChange(_columns(entries), set(), True) for bucket, entries in self.buckets.items()}
        fields = self.fields
        return StoreCapture(
            fields["number"],
            decode(fields["name"]),
            fields["kind"],
            decode(fields["parameters"]),
            decode(fields["state"]),
            changed,
        )


def _columns(entries: list[tuple[Any, list[list[int]], list[Any]]]) -> Columns:
    entries.sort(key=lambda entry: entry[0])
    counts = [len(values) for _, _, values in entries]
    width = len(entries[0][1])
    ints = tuple(array("q", [ts for _, times, _ in entries for ts in times[column]]) for column in range(width))
    values = [value for _, _, values in entries for value in values]
    return Columns([key for key, _, _ in entries], counts if sum(counts) != len(counts) else None, ints, values)


def load_lines(lines: Iterator[str], path: Path, *, edited: bool = False) -> int:
    """Write the state that a dump describes into a new directory and return its version.

    Raises DumpError for a text that is not a whole dump or was edited (unless `edited`), OccupiedError. All of it is in
    memory while it is written. O(records).
    """
    hashed, count = blake2b(digest_size=16), 0
    header: dict[str, Any] | None = None
    stores: dict[int, _Gathered] = {}
    ended: dict[str, Any] | None = None
    try:
        for line in lines:
            text = line.rstrip("\n")
            if not text.strip():
                continue
            fields = json.loads(text)
            if ended is not None:
                raise ValueError("text after the last line of a dump")
            if header is None:
                header = fields
                if fields.get("hybridstore_dump") != FORMAT_VERSION:
                    raise ValueError(f"first line: expected a dump of format {FORMAT_VERSION}")
                stores = {one["number"]: _Gathered(one) for one in fields["stores"]}
            elif "end" in fields:
                ended = fields
                continue
            else:
                entry = decode(fields["k"]), fields["t"], [decode(value) for value in fields["v"]]
                stores[fields["s"]].buckets.setdefault(fields["b"], []).append(entry)
            hashed.update(text.encode() + b"\n")
            count += 1
        if header is None:
            raise ValueError("no text")
        if ended is None and not edited:
            raise ValueError("the last line is missing: the dump was cut short")
        digest = bytes.fromhex(header["digest"])
        if ended is None or (ended["end"], ended["blake2b"]) != (count, hashed.hexdigest()):
            if not edited:
                raise ValueError("the text was edited (load it with --edited: the state then has a digest of its own)")
            digest = hashed.digest()
        captures = [store.capture() for store in stores.values()]
        version, settings = header["version"], decode(header["settings"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DumpError(f"not a dump that can be loaded: line {count + 1}: {error}") from error
    write_state(path, version=version, digest=digest, settings=settings, captures=captures, previous=None)
    return int(version)


def dump(
    path: o.Where,
    to: Annotated[Path | None, Option("--to", help="File to write; it must not exist.", show_default=False)] = None,
    at: o.At = None,
    shard: o.Shard = None,
    no_progress: o.NoProgress = False,
    debug: o.Debug = False,
) -> int:
    """Write one version of a state as text that loses nothing; `load` makes a state of it again."""
    inspection = Inspection(path, at=at, shard=shard)
    if inspection.several:
        raise o.UsageError(f"{path}: {len(inspection.places)} shards: a dump is of one (use --shard)")
    (view,) = inspection.views()
    stream = sys.stdout if to is None else to.open("x", encoding="ascii")
    try:
        total = sum(store.estimate for store in view.stores.values())
        with Progress("dumping", total, shown=not no_progress) as progress:
            for line in dump_lines(view):
                stream.write(line + "\n")
                progress.advance()
    finally:
        if to is not None:
            stream.close()
    return inspection.finish(o.FINE)


def load(
    source: Annotated[str, Argument(metavar="DUMP", help="A file that `dump` wrote, or - for standard input.")],
    to: Annotated[Path, Argument(metavar="NEW", help="The state directory to create.", show_default=False)],
    edited: Annotated[bool, Option("--edited", help="The text was changed on purpose.")] = False,
    write: Annotated[bool, Option("--write", help="Write; without it the text is only checked for a place.")] = False,
    debug: o.Debug = False,
) -> int:
    """Make a state directory of a dump. It is new, holds one version, and goes on from there."""
    if not write:
        raise o.UsageError(f"load writes {to}: say --write")
    if source == "-":
        version = load_lines(iter(sys.stdin), to, edited=edited)
    else:
        with Path(source).open(encoding="utf-8") as lines:
            version = load_lines(iter(lines), to, edited=edited)
    say(f"{to}: version {version} written")
    return o.FINE
