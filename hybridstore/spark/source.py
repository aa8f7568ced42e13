"""Data source: `spark.read.format("hybridstore").load(checkpointLocation)`, the state of a query as a DataFrame.

    operator   which operator; needed when the query has several
    store      which store; all of them when left out
    version    which version; the newest that every shard has reached when left out
    shard      one shard only
    changes    "from,to": the changes of the versions after `from` up to `to`, instead of contents
    metadata   "true": one row per shard with its numbers, instead of contents
    storage.*  settings of the object store that the location is on (`storage.endpoint`, `storage.region`, ...), where
               the environment of the workers does not have them
    pushdown   "true": take filters on `shard` and `store` over from Spark (needs
               spark.sql.python.filterPushdown.enabled)

Keys and values are text (JSON unless they are text themselves); with a schema of your own, `.schema("key string, value
bigint")`, columns named `key` and `value` come typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from changelog.bucket import Bucket

from ..reading.texts import plain, to_json
from ..stores.kinds import Row
from .errors import SparkSetupError
from .location import Location, locate
from .reading import changes, check_version, newest_version, open_version, shards
from .shard_rows import metrics

_CONTENTS = "shard int, store string, key string, start bigint, end bigint, value string"
_CHANGES = f"version bigint, batch bigint, op string, {_CONTENTS}"
_METADATA = "operator string, shard int, version bigint, store string, kind string, records bigint, metrics string"
_OPTIONS = frozenset({"path", "operator", "store", "version", "shard", "changes", "metadata", "pushdown"})
# Options whose names begin so are those of the object store.
_STORAGE = "storage."
_BATCH_ROWS = 20_000


def _flag(text: str | None, name: str) -> bool:
    if text is None or text.lower() in ("true", "false"):
        return (text or "").lower() == "true"
    raise SparkSetupError(f"option {name}: found {text!r}, expected true or false")


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not text.isdigit():
        raise SparkSetupError(f"option {name}: found {text!r}, expected a whole number")
    return int(text)


@dataclass(frozen=True)
class Query:
    """The parsed options."""

    location: Location
    operator: str | None
    store: str | None
    version: int | None
    shard: int | None
    changes: tuple[int, int] | None
    metadata: bool


def _query(options: Any) -> Query:
    for name in options:
        if name.lower() not in _OPTIONS and not name.lower().startswith(_STORAGE):
            raise SparkSetupError(f"option {name}: unknown, expected one of {', '.join(sorted(_OPTIONS))}, {_STORAGE}*")
    path = options.get("path")
    if not path:
        raise SparkSetupError("path: missing, expected the query's checkpointLocation: load(location)")
    storage = {
        name.lower().removeprefix(_STORAGE): options[name] for name in options if name.lower().startswith(_STORAGE)
    }
    asked = options.get("changes")
    span: tuple[int, int] | None = None
    if asked is not None:
        parts = [part.strip() for part in asked.split(",")]
        if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[0]) > int(parts[1]):
            raise SparkSetupError(f'option changes: found {asked!r}, expected two versions "from,to"')
        span = int(parts[0]), int(parts[1])
    version = _number(options.get("version"), "version")
    metadata = _flag(options.get("metadata"), "metadata")
    if sum((span is not None, metadata)) > 1 or (span is not None and version is not None):
        raise SparkSetupError(
            "options changes, metadata, version: expected only one of changes and metadata, and no version with changes"
        )
    return Query(
        locate(Bucket(path, **storage) if storage else path),
        options.get("operator"),
        options.get("store"),
        version,
        _number(options.get("shard"), "shard"),
        span,
        metadata,
    )


@dataclass
class ShardPartition(InputPartition):
    """One shard of one version: a task."""

    shard: int
    version: int

    def __init__(self, shard: int, version: int) -> None:
        super().__init__((shard, version))
        self.shard = shard
        self.version = version


class StateReader(DataSourceReader):
    """Reads shard by shard, in Arrow batches."""

    def __init__(self, query: Query, schema: StructType) -> None:
        self._query = query
        self._schema = schema
        self._shard = query.shard
        self._store = query.store

    def partitions(self) -> Sequence[InputPartition]:
        query = self._query
        if query.metadata:
            return [ShardPartition(-1, 0)]
        states = shards(query.location, query.operator)
        newest = newest_version(states)
        version = query.changes[1] if query.changes is not None else query.version
        check_version(states, version or 0)
        if query.store is not None:
            _check_store(query, states, newest if version is None else version)
        partitions = [ShardPartition(state.shard, newest if version is None else version) for state in states]
        return [partition for partition in partitions if self._shard is None or partition.shard == self._shard]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, ShardPartition):
            return
        import pyarrow as pa

        from .arrow_schema import arrow_schema

        schema = arrow_schema(self._schema, "UTC")
        rows: list[dict[str, Any]] = []
        for row in self._rows(partition):
            rows.append(row)
            if len(rows) >= _BATCH_ROWS:
                yield _batch(pa, schema, rows)
                rows = []
        if rows:
            yield _batch(pa, schema, rows)

    def _rows(self, partition: ShardPartition) -> Iterator[dict[str, Any]]:
        query = self._query
        if query.metadata:
            yield from self._metadata()
            return
        state = shards(query.location, query.operator)[partition.shard]
        typed = {field.name for field in self._schema if field.dataType.simpleString() != "string"}

        def fields(store: str, row: Row) -> dict[str, Any]:
            return {
                "shard": partition.shard,
                "store": store,
                "key": row.key if "key" in typed else _text(row.key),
                "start": row.start,
                "end": row.end,
                "value": row.value if "value" in typed or row.value is None else _text(row.value),
            }

        if query.changes is not None:
            for store, change in changes(state, *query.changes):
                if self._store in (None, store):
                    yield {
                        "version": change.version,
                        "batch": change.version - 1,
                        "op": change.op,
                        **fields(store, change.row),
                    }
            return
        with open_version(state, partition.version) as opened:
            for name in opened.stores:
                if self._store in (None, name):
                    for row in opened.rows(name):
                        yield fields(name, row)

    def _metadata(self) -> Iterator[dict[str, Any]]:
        query = self._query
        for row in metrics(query.location, query.operator):
            if self._shard is not None and row["shard"] != self._shard:
                continue
            state = shards(query.location, row["operator"])[row["shard"]]
            for name, store in open_version(state, state.version).stores.items():
                yield {
                    "operator": row["operator"],
                    "shard": row["shard"],
                    "version": row["version"],
                    "store": name,
                    "kind": store.kind,
                    "records": store.num_records,
                    "metrics": to_json(plain(row)),
                }


class FilteringReader(StateReader):
    """Applies equality filters on `shard` and `store`; Spark applies the other filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute == ("shard",) and self._shard in (None, each.value):
                self._shard = each.value
            elif isinstance(each, EqualTo) and each.attribute == ("store",) and self._store in (None, each.value):
                self._store = each.value
            else:
                yield each


def _check_store(query: Query, states: Sequence[Any], version: int) -> None:
    """Raise SparkSetupError unless a shard has the requested store. O(shards without it)."""
    known: set[str] = set()
    for state in states:
        names = open_version(state, version).stores
        if query.store in names:
            return
        known.update(names)
    raise SparkSetupError(
        f"option store: {query.location.state}: no store {query.store!r} (known: {', '.join(sorted(known)) or 'none'})"
    )


def _text(value: Any) -> str:
    return value if type(value) is str else to_json(plain(value))


def _batch(pa: Any, schema: Any, rows: list[dict[str, Any]]) -> Any:
    columns = [pa.array([row.get(field.name) for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class StateSource(DataSource):
    """The data source "hybridstore"."""

    @classmethod
    def name(cls) -> str:
        return "hybridstore"

    def schema(self) -> str:
        query = _query(self.options)
        return _METADATA if query.metadata else _CONTENTS if query.changes is None else _CHANGES

    def reader(self, schema: StructType) -> DataSourceReader:
        query = _query(self.options)
        reader = FilteringReader if _flag(self.options.get("pushdown"), "pushdown") else StateReader
        return reader(query, schema)
