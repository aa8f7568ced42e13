"""The command `stat`: the sizes of stores, the largest keys and values, and growth."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from changelog.codec import pack
from changelog.errors import HybridStoreError
from recovery.compaction import live_bytes
from recovery.layout import list_checkpoints
from recovery.pages import PageCheckpoint

from ...markup import Labelled
from ...progress import Progress
from ...reading.pins import pins_of
from ...reading.places import Place
from ...reading.scan import written
from ...reading.store_view import StoreView
from ...reading.tally import Tally, tallies
from ...reading.view import View
from ...stores.kinds import Row
from .. import options as o
from ..look import Look
from ..rows import PIN_COLUMNS, count_cell, pin_rows
from ..show.output import key_cell, size_cell, span_text, time_cell

_STAT_COLUMNS = ("shard", "store", "records", "bytes", "dead", "oldest", "newest")
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
# The table above has the time at which a checkpoint was committed.
_PACK_COLUMNS = ("shard", "checkpoint", "packs", "bytes", "live", "index_bytes", "write_amplification")
_AGES = (1000, 10_000, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY, 365 * _DAY)


def dead_share(store: StoreView) -> float:
    """Return the share of the checkpoint's records that are now overwritten, removed or expired. O(changes)."""
    records = sum(entry.records for entry in store.entries)
    changes = [change for change in store.changed.values() if not change.fresh]
    over = sum(len(change.removed) + sum(map(len, written(change))) for change in changes)
    return min(1.0, over / records) if records else 0.0


def stat_row(store: StoreView, iso: bool) -> dict[str, Any]:
    """Return the row of `stat` for one store, without reading a block."""
    span = store.span
    return {
        "store": store.name,
        "kind": store.kind,
        "records": count_cell(store.counted),
        "exact": store.counted.exact,
        "blocks": len(store.entries),
        "layers": sum(len(entry.layers) for entry in store.entries),
        "bytes": size_cell(store.packed_bytes),
        "dead": Labelled(f"{dead_share(store):.0%}", round(dead_share(store), 4)),
        "oldest": time_cell(None if span is None else span[0], iso),
        "newest": time_cell(None if span is None else span[1], iso),
    }


class StoreSizes(NamedTuple):
    """The result of reading every record: the keys with the most bytes, the largest values, the number of records, and
    the records per age and size.
    """

    heaviest: list[Tally]
    largest: list[tuple[int, Any, tuple[int, ...]]]
    ages: Counter[int]
    sizes: Counter[int]
    total: int


def measure(store: StoreView, top: int, progress: Progress) -> StoreSizes:
    """Read every record of a store. Memory: the keys of one block of each bucket. O(records log buckets)."""
    ages: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    largest: list[tuple[int, int, Any, tuple[int, ...]]] = []
    count = 0
    floor = 0

    def weigh(record: Row) -> int:
        nonlocal largest, count, floor
        size = len(pack(record.value))
        sizes[max(size - 1, 0).bit_length()] += 1
        if record.times:
            ages[bisect_right(_AGES, store.stream_time - record.times[0])] += 1  # the first step that is longer
        if size > floor or len(largest) < top:
            # The number is unique, so the comparison never reaches a key.
            largest.append((size, -count, record.key, record.times))
            if len(largest) > 4 * top + 16:
                largest = nlargest(top, largest)
                floor = largest[-1][0] if largest else 0
        count += 1
        if not count % 4096:
            progress.advance(4096)
        return size

    heaviest: list[Tally] = []
    if top:
        heaviest = nlargest(top, tallies(store, weigh=weigh), key=attrgetter("weight"))
    else:
        for record in store.unordered():
            weigh(record)
    best = [(size, key, times) for size, _, key, times in nlargest(top, largest)]
    return StoreSizes(heaviest, best, ages, sizes, count)


def age_rows(ages: Counter[int], total: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each step of age."""
    steps = [Labelled(f"under {span_text(limit)}", limit) for limit in _AGES]
    return _shares("age", [*steps, Labelled("older", None)], ages, total)


def size_rows(sizes: Counter[int], total: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each power of two of the value size."""
    steps = [Labelled(f"up to {1 << step}", 1 << step) for step in range(max(sizes, default=-1) + 1)]
    return _shares("value_bytes", steps, sizes, total)


def _shares(name: str, steps: list[Labelled], counts: Counter[int], total: int) -> Iterator[dict[str, Any]]:
    for i in range(max(counts, default=-1) + 1):
        yield {
            name: steps[i],
            "records": counts[i],
            "share": Labelled(f"{counts[i] / total:.1%}", round(counts[i] / total, 4)),
            "histogram": "#" * round(30 * counts[i] / max(counts.values())),
        }


def growth(place: Place, iso: bool) -> Iterator[dict[str, Any]]:
    """Yield records and bytes of each store at each checkpoint, oldest first. Damaged checkpoints are left out."""
    for name in list_checkpoints(place.storage) if place.form == "directory" else []:
        try:
            reader = PageCheckpoint(place.storage, name)
        except (OSError, HybridStoreError):
            continue
        for record in reader.meta.stores:
            yield {
                "checkpoint": reader.meta.version,
                "committed": time_cell(reader.meta.wall_ms, iso),
                "store": record.name,
                "records": record.records,
                "bytes": size_cell(record.size),
            }
        reader.close()


def packs(place: Place, iso: bool) -> Iterator[dict[str, Any]]:
    """Yield the packs of each checkpoint, oldest first. Damaged checkpoints are left out.

    `write_amplification` covers all checkpoints of the line: bytes of packs for each byte of changed blocks.
    """
    for name in list_checkpoints(place.storage) if place.form == "directory" else []:
        try:
            reader = PageCheckpoint(place.storage, name)
            pages = (reader.directory(record.number).pages for record in reader.meta.stores)
            live = live_bytes(chain.from_iterable(pages)).total()
        except (OSError, HybridStoreError):
            continue
        meta = reader.meta
        size = sum(pack.size for pack in meta.packs)
        yield {
            "checkpoint": meta.version,
            "committed": time_cell(meta.wall_ms, iso),
            "packs": len(meta.packs),
            "bytes": size_cell(size),
            "live": Labelled(f"{live / size:.0%}", round(live / size, 4)) if size else None,
            "index_bytes": size_cell(reader.index_bytes),
            "write_amplification": Labelled(f"{meta.written / meta.packed:.2f}x", round(meta.written / meta.packed, 3))
            if meta.packed
            else None,
        }
        reader.close()


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.maybe_store(parser)
    every = "(reads every record)"
    top = f"The N keys with the most bytes and the N largest values {every}."
    parser.add_argument("--top", metavar="N", type=o.at_least(0), default=0, help=top)
    parser.add_argument("--by-age", action="store_true", help=f"Records by age in event time {every}.")
    parser.add_argument("--histogram", action="store_true", help=f"Records by size of their value {every}.")
    o.looking(parser, at=True, iso=True, progress=True)


def run(look: Look, given: Namespace) -> int:
    """Show the size of each store, its share of dead records, the growth between checkpoints, the packs of checkpoints,
    the largest keys and values, and what each pin costs: the bytes of the files that only the pin keeps.
    """
    out, iso, top = look.out, look.iso, given.top
    stores = list(look.stores(given.store))

    def labelled(view: View, row: dict[str, Any]) -> dict[str, Any]:
        return look.label(view.place) | row

    tables: list[tuple[str, tuple[str, ...], list[dict[str, Any]]]] = [
        ("stores", _STAT_COLUMNS, [labelled(view, stat_row(store, iso)) for view, store in stores])
    ]
    places = {view.place: view for view, _ in stores}.values()
    grown = [
        labelled(view, row)
        for view in places
        for row in growth(view.place, iso)
        if given.store is None or row["store"] == given.store
    ]
    tables.append(("growth", ("shard", "checkpoint", "committed", "store", "records", "bytes"), grown))
    laid = [labelled(view, row) for view in places for row in packs(view.place, iso)]
    tables.append(("packs", _PACK_COLUMNS, laid))
    tables.append(("pins", PIN_COLUMNS, pin_rows(pins_of(look.location), iso)))
    if top or given.by_age or given.histogram:
        total = sum(store.counted.records for _, store in stores)
        with look.progress("reading records", total) as progress:
            for view, store in stores:
                sizes = measure(store, top, progress)
                name = {"store": store.name}
                if top:
                    tables += _top_tables(view, store, sizes, iso, labelled)
                if given.by_age and sizes.ages:
                    rows = [labelled(view, name | row) for row in age_rows(sizes.ages, sizes.ages.total())]
                    tables.append(("age", ("shard", "store", "age", "records", "share", "histogram"), rows))
                if given.histogram and sizes.total:
                    rows = [labelled(view, name | row) for row in size_rows(sizes.sizes, sizes.total)]
                    tables.append(("sizes", ("shard", "store", "value_bytes", "records", "share", "histogram"), rows))
    if out.form == "table":
        for _, columns, rows in tables:
            if rows:
                out.rows(rows, columns)
    else:
        everything = ({"what": what, **row} for what, _, rows in tables for row in rows)
        columns = tuple(dict.fromkeys(["what", *(name for _, names, _ in tables for name in names)]))
        out.rows(everything, columns)
    return look.finish()


def _top_tables(
    view: View, store: StoreView, sizes: StoreSizes, iso: bool, labelled: Any
) -> list[tuple[str, tuple[str, ...], list[dict[str, Any]]]]:
    name = {"store": store.name}
    keys = [
        labelled(view, name | {"heaviest_key": key_cell(key), "records": records, "bytes": size_cell(size)})
        for key, records, size in sizes.heaviest
    ]
    values = []
    for size, key, times in sizes.largest:
        at = dict(zip(store.columns, (time_cell(ts, iso) for ts in times), strict=False))
        values.append(labelled(view, {**name, "largest_value_of": key_cell(key), **at, "bytes": size_cell(size)}))
    return [
        ("heaviest", ("shard", "store", "heaviest_key", "records", "bytes"), keys),
        ("largest", ("shard", "store", "largest_value_of", "ts", "start", "end", "bytes"), values),
    ]
