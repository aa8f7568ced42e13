"""The command `dump`: a state as text that loses nothing; `load` makes a state of it again.

    {"hybridstore_dump": 1, "version", "digest", "settings", "stores": [{number, name, kind, parameters, state}]}
    {"s": store, "b": bucket, "k": key, "t": [[times of the first column], ..], "v": [values]}        a line per key and bucket
    {"end": number of lines before it, "blake2b": their hash}

The hash tells whether the text was edited: it may be, and `load --edited` then gives the state a digest of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

from ...progress import Progress
from .. import options as o
from ..parameters import Option
from ..session import Inspection
from ..show.exact_text import encode, to_line
from ..view.reader import View
from ..view.store_view import Record, StoreView

FORMAT_VERSION = 1


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
