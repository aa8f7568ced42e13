"""Sharing: distributes the content of some shards at one version to another number of shards.

    parents (checkpoints) ── block by block, by the hash of the operator's key ──▶ children (checkpoints)

`crc32 mod N` and `crc32 mod M` agree modulo gcd(N, M), so the shards form gcd(N, M) families, and each family is
distributed separately. A child with one parent has the times of this parent, so its later results are the results that
the parent would have had. A child of several parents has the latest time of each store; where rows of a join wait, it
has the earliest until its first commit, and a setting with the time of each parent (`topology.joins.former`).

Records are moved unchanged, and values are not inspected. Memory: some blocks for each child, and with merged parents
also the blocks whose keys overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from math import gcd
from operator import itemgetter, lt
from shlex import quote
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from changelog.codec import pack, unpack
from recovery.block import BLOCK_RECORDS, Columns
from recovery.checkpoint import CheckpointReader
from recovery.columns import joined
from recovery.erase import ERASURES
from recovery.meta import StoreRecord

from ..shards import hash_of
from ..stores.keys import shown
from ..stores.kinds import KINDS
from ..topology.joins.former import FORMER, former_times, merged_times
from ..topology.joins.shapes import SHAPES
from .report import RescaleError, RescaleReport, StoreCount
from .routes import Route, Routes, is_certain

# The number of records that are gathered for a child before they are written as blocks.
_GATHERED: Final = 2 * BLOCK_RECORDS
# The number of distinct keys of a program's own store that suffices to decide whether they are the operator's keys.
_ENOUGH_KEYS: Final = 64
# The prefix of the names of settings that hold times of windows.
_TIME: Final = "stream time of "
# The prefix of settings that only shards have whose program has asked for them; all such shards have equal values.
_ASKED_FOR: Final = "state:"


def _latest(values: list[Any]) -> Any:
    """Return the largest value. Of maps, return the largest value of each key."""
    if not isinstance(values[0], dict):
        return max(values)
    return {name: max(each[name] for each in values if name in each) for name in dict.fromkeys(chain(*values))}


def _first(values: list[Any]) -> Any:
    return values[0]


def _all_of_each(values: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return all entries of lists by their time, equal ones once."""
    entries = {pack(entry): entry for each in values for entry in each}
    return sorted(entries.values(), key=itemgetter("wall_ms"))


def _same_of_each(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the maps have of each key. Raises ValueError if two of them have something else of one."""
    of_key: dict[str, Any] = {}
    for key, value in chain.from_iterable(map(dict.items, values)):
        if of_key.setdefault(key, value) != value:
            raise ValueError(f"{key}: found {value}, expected {of_key[key]}")
    return of_key


# How to merge the settings that may differ between shards: `closed` (the time through which windows have closed),
# `since` (the time from which an aggregate is complete) and `programs` (the programs that wrote the state).
_RULES: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "closed": _latest,
    "since": _latest,
    "programs": _first,
    ERASURES: _all_of_each,
    FORMER: merged_times,
    SHAPES: _same_of_each,
}


class OldShard(NamedTuple):
    """An old shard: its number, and a checkpoint of exactly the version that is distributed. `emitted`: whether the
    last rows that its suppression buffers emitted belong to this version.
    """

    shard: int
    content: CheckpointReader
    emitted: bool = True


class Sink(Protocol):
    """The receiver of one child's records, in order. A store is defined before its first records."""

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any], state: dict[str, Any]) -> None:
        """Add a store with its state, which is everything that a checkpoint keeps of the store besides records."""

    def add(self, number: int, bucket: int, columns: Columns) -> None:
        """Add records of a store."""


class Discard:
    """A sink that keeps nothing."""

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any], state: dict[str, Any]) -> None:
        """See `Sink`."""

    def add(self, number: int, bucket: int, columns: Columns) -> None:
        """See `Sink`."""


def shard_groups(shards: int, into: int) -> list[tuple[list[int], list[int]]]:
    """Return (old shards, new shards) of each family. O(shards + into)."""
    common = gcd(shards, into)
    return [(list(range(rest, shards, common)), list(range(rest, into, common))) for rest in range(common)]


class _Store(NamedTuple):
    """A store of a family: the store of a child, and the store of each parent (`parts`)."""

    number: int
    name: str
    kind: str
    parameters: dict[str, Any]
    state: dict[str, Any]
    parts: list[tuple[OldShard, StoreRecord]]
    latest: int
    """The time (ms) from the first commit on."""


class ShardGroup:
    """Some old shards, and the new shards that get their records.

    `same` are settings that all children get, whatever the parents have; stores in `apart` are left out. Raises
    RescaleError, which names the store, for shards that cannot be merged.
    """

    def __init__(
        self,
        parents: Sequence[OldShard],
        children: Sequence[int],
        shards: int,
        into: int,
        routes: Routes,
        *,
        same: Mapping[str, Any] = MappingProxyType({}),
        apart: Collection[str] = (),
    ) -> None:
        self.children = children
        self.parents = parents
        self._shards = shards
        self._into = into
        self._routes = routes
        self._same = same
        self._apart = apart
        routes.check_join()
        self._stores = self._merged_stores()
        self.settings = self._merged_settings()
        """The settings of each child."""

    # --- merging -----------------------------------------------------------------------------------------

    def _merged_stores(self) -> list[_Store]:
        parts: dict[str, list[tuple[OldShard, StoreRecord]]] = {}
        for parent in self.parents:
            for record in parent.content.meta.stores:
                if record.name in self._apart:
                    continue
                parts.setdefault(record.name, []).append((parent, record))
        single = len(self.parents) == 1
        stores = []
        for place, (name, of_parents) in enumerate(parts.items(), 1):
            first = of_parents[0][1]
            for parent, record in of_parents:
                if (record.kind, record.parameters) != (first.kind, first.parameters):
                    raise RescaleError(
                        f"store {name!r}: shard {parent.shard} has {record.kind} {record.parameters}, shard "
                        f"{of_parents[0][0].shard} has {first.kind} {first.parameters}, so that they cannot be merged "
                        "(take a multiple of the number of shards)"
                    )
            time = min if self._routes.waits else max
            state = _merged_state(name, [record.state for _, record in of_parents], time)
            latest = max(_time_of(parent, record) for parent, record in of_parents)
            number = first.number if single else place
            stores.append(_Store(number, name, first.kind, first.parameters, state, of_parents, latest))
        return stores

    def _merged_settings(self) -> dict[str, Any]:
        values: dict[str, list[Any]] = {}
        for parent in self.parents:
            for name, value in parent.content.meta.settings.items():
                values.setdefault(name, []).append(value)
        # a shard that never received a row has no stores and no settings
        asked = sum(bool(parent.content.meta.stores) for parent in self.parents)
        settings: dict[str, Any] = {}
        for name, known in values.items():
            rule = _latest if name.startswith(_TIME) else _RULES.get(name)
            if name in self._same:
                settings[name] = self._same[name]
            elif rule is not None:
                try:
                    settings[name] = rule(known)
                except ValueError as error:
                    raise self._differing(name) from error
            elif any(value != known[0] for value in known) or (len(known) < asked and not name.startswith(_ASKED_FOR)):
                raise self._differing(name)
            else:
                settings[name] = known[0]
        if self._routes.waits and len(self.parents) > 1:
            former = [
                [self._shards, parent.shard, max(record.state["stream_time"] for record in parent.content.meta.stores)]
                for parent in self.parents
                if parent.content.meta.stores
            ]
            if settings.get(FORMER) or len({ts for _, _, ts in former}) > 1:
                settings[FORMER] = merged_times([settings.get(FORMER, []), former])
        return settings

    def _differing(self, name: str) -> RescaleError:
        numbers = ", ".join(str(parent.shard) for parent in self.parents)
        return RescaleError(
            f"setting {name!r}: shards {numbers} do not agree on it, so that they cannot be merged (take a multiple of "
            "the number of shards)"
        )

    @property
    def store_names(self) -> set[str]:
        """The names of all stores."""
        return {store.name for store in self._stores}

    @property
    def records(self) -> int:
        """The number of records of the old shards that are shared out."""
        return sum(record.records for store in self._stores for _, record in store.parts)

    @property
    def free_number(self) -> int:
        """The number of a store that no child has."""
        return max((store.number for store in self._stores), default=0) + 1

    def count_times(self, report: RescaleReport) -> None:
        """Add to `report` the differences between the times of merged shards. O(stores)."""
        if len(self.parents) == 1:
            return
        for parent in self.parents:
            report.behind_ms.setdefault(parent.shard, 0)
        for store in self._stores:
            for parent, record in store.parts:
                if KINDS[store.kind].timed(store.parameters) and _time_of(parent, record) >= 0:
                    behind = store.latest - _time_of(parent, record)
                    report.behind_ms[parent.shard] = max(report.behind_ms[parent.shard], behind)

    def count_records(self, report: RescaleReport) -> None:
        """Add to `report` the number of records of each store. O(stores)."""
        for store in self._stores:
            count = report.stores.setdefault(store.name, StoreCount())
            count.records += sum(record.records for _, record in store.parts)

    # --- sharing out ----------------------------------------------------------------------------------------------

    def share(self, sinks: Mapping[int, Sink], report: RescaleReport, on_block: Callable[[int], None]) -> None:
        """Give every child its stores and records, in order, and count all and expiring records in `report`.

        `on_block` is called with the number of records of each block that was read. Raises RescaleError for a key that
        is not in the shard to which the key belongs, CorruptCheckpointError, and the errors of the sinks. O(records).
        """
        for store in self._stores:
            for child, sink in sinks.items():
                sink.define(store.number, store.name, store.kind, store.parameters, self._state_of(store, child))
            count = report.stores.setdefault(store.name, StoreCount())
            for bucket, lines in groupby(_lines(store), itemgetter(0)):
                self._share_bucket(store, bucket, list(lines), sinks, count, on_block)

    def _share_bucket(
        self,
        store: _Store,
        bucket: int,
        lines: list[tuple[int, Any, int, Any]],
        sinks: Mapping[int, Sink],
        count: StoreCount,
        on_block: Callable[[int], None],
    ) -> None:
        route = self._routes.of(store.name)
        gathered: dict[int, list[Columns]] = {child: [] for child in self.children}
        sizes = dict.fromkeys(self.children, 0)
        for place, (_, _, part, line) in enumerate(lines):
            parent, record = store.parts[part]
            columns = parent.content.block(record.number, line)
            count.records += len(columns)
            count.expiring += self._expiring(store, parent, record, columns)
            for child, columns_of_child in self._by_child(store, parent, route, columns):
                gathered[child].append(columns_of_child)
                sizes[child] += len(columns_of_child)
            on_block(len(columns))
            frontier = lines[place + 1][1] if place + 1 < len(lines) else None
            for child, size in sizes.items():
                if size and (frontier is None or size >= _GATHERED):
                    ready, rest = self._ready(store, gathered[child], frontier)
                    if len(ready):
                        sinks[child].add(store.number, bucket, ready)
                    gathered[child] = [rest] if len(rest) else []
                    sizes[child] = len(rest)

    def _ready(self, store: _Store, gathered: list[Columns], frontier: Any) -> tuple[Columns, Columns]:
        """Return the records of a child before the next block's first key, sorted by key, and the other records."""
        columns = joined(gathered)
        keys = columns.keys
        if not all(map(lt, keys, islice(keys, 1, None))):
            columns = columns.in_order()
            keys = columns.keys
            same = next((key for key, other in zip(keys, islice(keys, 1, None), strict=False) if not key < other), None)
            if same is not None:
                raise RescaleError(
                    f"store {store.name!r}: key {shown(same)} is in several shards that would be merged (take a "
                    "multiple of the number of shards)"
                )
        at = len(keys) if frontier is None else bisect_left(keys, frontier)
        return columns.cut(0, at), columns.cut(at, len(keys))

    def _by_child(
        self, store: _Store, parent: OldShard, route: Route | None, columns: Columns
    ) -> Iterator[tuple[int, Columns]]:
        """Yield the records of a block, separately for each child. O(records)."""
        keys, shards, into = columns.keys, self._shards, self._into
        try:
            hashes = list(map(hash_of, keys if route is None else map(route, keys)))
        except (TypeError, ValueError, IndexError, LookupError) as error:
            raise self._no_route(store, f"a key of it gives no key of the operator: {error}") from error
        for key, number in zip(keys, hashes, strict=True):
            if number % shards != parent.shard:
                raise self._no_route(
                    store, f"key {shown(key)} lies in shard {parent.shard}, and would in {number % shards}"
                )
        if len(self.children) == 1:
            yield self.children[0], columns
            return
        places: dict[int, list[int]] = {}
        for place, number in enumerate(hashes):
            places.setdefault(number % into, []).append(place)
        for child in sorted(places):
            yield child, columns.take(places[child])

    def _no_route(self, store: _Store, why: str) -> RescaleError:
        before, behind = (quote(f"{store.name}={how}") for how in ("key,last", "first,key"))
        return RescaleError(
            f"store {store.name!r}: its keys are not the operator's: {why} (pass --route {before} if all parts but the "
            f"last are the operator's key, --route {behind} if all but the first are, or in Python "
            f"routes={{{store.name!r}: function}}; or keep the number of shards)"
        )

    def check_own_stores(self) -> dict[str, set[Any]]:
        """Return some distinct keys of each store without a route. O(keys read).

        Raises RescaleError for a store whose keys are not the operator's keys.
        """
        unknown: dict[str, set[Any]] = {}
        for store in self._stores:
            if self._routes.of(store.name) is not None:
                continue
            keys = unknown.setdefault(store.name, set())
            for _, _, part, line in _lines(store):
                parent, record = store.parts[part]
                columns = parent.content.block(record.number, line)
                for _ in self._by_child(store, parent, None, columns):
                    pass
                keys.update(columns.keys[:_ENOUGH_KEYS])
                if len(keys) >= _ENOUGH_KEYS:
                    break
        return unknown

    def _expiring(self, store: _Store, parent: OldShard, record: StoreRecord, columns: Columns) -> int:
        """Return the number of records of a block that expire by the merge. O(records) if the stream times differ, else
        O(1).
        """
        before, after = _time_of(parent, record), store.latest
        if before == after or not columns.ints:
            return 0
        expired = KINDS[store.kind].expired_through
        low, high = (expired(store.parameters, now) for now in (before, after))
        return sum(low < ts <= high for ts in columns.ints[0]) if low < high else 0

    def closing(self, after_ms: tuple[int, int], name: str) -> int:
        """Return the number of records of a store whose windows close by the merge. `after_ms` has the times from a
        record to the closing of its first and of its last window. O(records) if the stream times differ.
        """
        number = 0
        for store in self._stores:
            setting = f"{_TIME}{store.name}"
            if store.name != name:
                continue
            for parent, record in store.parts:
                before = parent.content.meta.settings.get(setting, record.state["stream_time"])
                now = self.settings.get(setting, store.state["stream_time"])
                if before == now:
                    continue
                for columns in blocks_of(parent.content, record.number):
                    times = columns.ints[0]
                    number += sum(ts + after_ms[0] <= now and ts + after_ms[1] > before for ts in times)
        return number

    def _state_of(self, store: _Store, child: int) -> dict[str, Any]:
        """Return the state of a store for a child's checkpoint: the family's state, with the child's share of emitted
        rows.
        """
        if "emitted" not in store.state:
            return store.state
        route = self._routes.of(store.name)
        rows: list[Any] = []
        version = 0
        for parent, record in store.parts:
            if record.state["emitted"] is None or not parent.emitted:
                continue
            version, packed = max(version, record.state["emitted"][0]), record.state["emitted"][1]
            rows += [
                list(row)
                for row in unpack(packed)
                if hash_of(row[0] if route is None else route(row[0])) % self._into == child
            ]
        return {**store.state, "emitted": [version, pack(rows)] if rows else None}


def check_certain(unknown: Iterable[Mapping[str, set[Any]]], shards: int) -> None:
    """Raise RescaleError for a program's own store with too few keys to decide whether they are the operator's keys."""
    keys: dict[str, set[Any]] = {}
    for some in unknown:
        for name, of_family in some.items():
            keys.setdefault(name, set()).update(of_family)
    for name, distinct in keys.items():
        if distinct and not is_certain(len(distinct), shards):
            few = "from one shard" if shards == 1 else f"from its {len(distinct)} keys"
            raise RescaleError(
                f"cannot infer how store {name!r} is sharded {few} (pass --route "
                f"{quote(f'{name}=key')}, or routes={{{name!r}: function}}, where the function returns the operator's "
                "key for one of the store's)"
            )


def _time_of(parent: OldShard, record: StoreRecord) -> int:
    """Return the time of a store of an old shard (ms)."""
    time: int = record.state["stream_time"]
    return max(time, former_times(parent.content.meta.settings).latest)


def _merged_state(name: str, states: list[dict[str, Any]], time: Callable[[Iterable[int]], int]) -> dict[str, Any]:
    first = states[0]
    if len(states) == 1:
        return first
    merged = dict(first)
    merged["stream_time"] = time(state["stream_time"] for state in states)
    kinds = [state["key"] for state in states if state["key"]]
    longest: list[str] = max(kinds, key=len, default=[])
    merged["key"] = longest or None
    if "longest" in first:  # of each bucket of sessions
        merged["longest"] = sorted(map(list, _latest([dict(state["longest"]) for state in states]).items()))
    for kind in kinds:
        # a tuple may have fewer parts than the longest tuple; the parts must have the same types
        if kind != longest[: len(kind)] if kind[0] == "tuple" else kind != longest:
            raise RescaleError(
                f"store {name!r}: keys are {kind} in one shard and {longest} in another, so that they cannot be merged "
                "(take a multiple of the number of shards)"
            )
    if len({state.get("width_ms") for state in states}) > 1:
        raise RescaleError(
            f"store {name!r}: buckets of time are of another width in another shard, so that they cannot be merged "
            "(take a multiple of the number of shards)"
        )
    return merged


def _lines(store: _Store) -> list[tuple[int, Any, int, Any]]:
    """Return (bucket, first key, place of the part, line) of all blocks of a store, in this order. O(blocks)."""
    lines = []
    for part, (parent, record) in enumerate(store.parts):
        for page in parent.content.directory(record.number).pages:
            lines += [(line.bucket, line.first, part, line) for line in parent.content.page(record.number, page)]
    lines.sort(key=itemgetter(0, 1, 2))
    return lines


def blocks_of(content: CheckpointReader, number: int) -> Iterator[Columns]:
    """Yield the records of a store of a checkpoint, block by block. Raises CorruptCheckpointError. O(records)."""
    return (columns for _, columns in _bucketed(content, number))


def _bucketed(content: CheckpointReader, number: int) -> Iterator[tuple[int, Columns]]:
    for page in content.directory(number).pages:
        for line in content.page(number, page):
            yield line.bucket, content.block(number, line)


class Compared:
    """A sink that compares the records that it receives with the records of a child's checkpoint, block by block.

    `different` describes the first difference; "" means no difference so far. `records` are those of the checkpoint,
    but for stores in `apart`.
    """

    def __init__(self, child: CheckpointReader, apart: Collection[str] = ()) -> None:
        self._content = child
        self.records = sum(record.records for record in child.meta.stores if record.name not in apart)
        self._waiting: dict[int, Iterator[tuple[int, Columns]]] = {}
        self._here: dict[int, tuple[int, Columns]] = {}
        self.different = ""

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any], state: dict[str, Any]) -> None:
        """Compare the definition of a store, without records."""
        stored = [record[:5] for record in self._content.meta.stores if record.number == number]
        if stored != [(number, name, kind, parameters, state)]:
            self._differs(f"store {name!r}: found {stored}, expected {(number, name, kind, parameters, state)}")
            return
        self._waiting[number] = _bucketed(self._content, number)

    def add(self, number: int, bucket: int, columns: Columns) -> None:
        """Compare records with the next records of the checkpoint. O(records)."""
        at = 0
        while at < len(columns.keys) and not self.different:
            piece = self._here.pop(number, None) or next(self._waiting[number], None)
            if piece is None:
                self._differs(f"store {number}: found nothing, expected key {shown(columns.keys[at])}")
                return
            keys = min(len(piece[1].keys), len(columns.keys) - at)
            old, new = columns.cut(at, at + keys), piece[1].cut(0, keys)
            if piece[0] != bucket or not old.same_as(new):
                self._differs(f"store {number}: keys {shown(old.keys[0])} to {shown(old.keys[-1])}")
            if keys < len(piece[1].keys):
                self._here[number] = piece[0], piece[1].cut(keys, len(piece[1].keys))
            at += keys

    def finish(self) -> None:
        """Report a difference if the checkpoint has more records than were compared."""
        for number, waiting in self._waiting.items():
            more = self._here.get(number) or next(waiting, None)
            if more is not None:
                self._differs(f"store {number}: found key {shown(more[1].keys[0])}, expected no more")

    def _differs(self, what: str) -> None:
        self.different = self.different or f"{self._content.where}: {what}"
