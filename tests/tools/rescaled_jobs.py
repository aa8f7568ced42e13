"""A query in this process, without Spark: batches on the shards of one operator, with Spark's own files beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from hybridstore.shards import shard_of
from hybridstore.spark.contract import Batch
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.location import Location, locate
from hybridstore.spark.operator_file import agree_on_description, operator_storage
from hybridstore.spark.program import TopologyProgram
from hybridstore.spark.reading import open_version, shards
from hybridstore.spark.shard.cache import CACHE
from hybridstore.spark.shipped import Operator
from hybridstore.spark.worker import ShardWork
from hybridstore.state.policy import CheckpointPolicy
from hybridstore.topology.null_keys import stored_key
from hybridstore.topology.plan import Plan
from recovery.layout import operator_folder
from tests.tools.memory_storage import MemoryStorage
from tests.tools.watched_storage import Watch, WatchedStorage

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("n", pa.int64())])
OFTEN = CheckpointPolicy(every_commits=3)
_ATTEMPTS = count(1)
QUERY = "a-query"


@dataclass(frozen=True)
class InMemory(Location):
    """A location in this process's memory, whose calls may go through a function (`watched_storage`)."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)
    watch: Watch = lambda verb, name, call: call()

    def states(self) -> Any:
        return WatchedStorage(self.storage, self.watch)

    def query(self) -> Any:
        return self.storage

    def operator(self, operator: str) -> Any:
        return self.states().below(operator_folder(operator))


def in_memory(watch: Watch = lambda verb, name, call: call(), storage: MemoryStorage | None = None) -> InMemory:
    """Return a new location in memory, or another look at the storage of one."""
    name = f"memory-{next(_ATTEMPTS)}"
    return InMemory(name, name, storage=storage or MemoryStorage({}, f"{name}/"), watch=watch)


def copied(location: Any) -> InMemory:
    """Return a copy of a location in memory, at another place."""
    copy = in_memory()
    names = {name.removeprefix(location.storage.base): data for name, data in location.storage.objects.items()}
    copy.storage.objects.update({copy.storage.base + name: data for name, data in names.items()})
    return copy


class Job:
    """Starts of a query, each with a number of shards, and its batches. The next start has what `change` was given."""

    schema = SCHEMA
    key = "k"
    # the operator
    name = "op"

    def __init__(
        self, root: Path | Location, program: Any, *, time: Any = "stream", policy: CheckpointPolicy = OFTEN
    ) -> None:
        self.location = root if isinstance(root, Location) else locate(root)
        self.time = time
        self.policy = policy
        self.query = self.location.query()
        self.number = 0
        self.change(program)

    def change(self, program: Any, *allow: str) -> None:
        """Take another program, with words of consent."""
        self.allow = allow
        self.program = (
            TopologyProgram(program, clocked=self.time == "watermark", allow=allow)
            if isinstance(program, Plan)
            else program
        )

    def start(self, shard_count: int) -> None:
        """Start the query with so many shards, in a process that has nothing in memory. Raises as a start does."""
        self.forget()
        self.operator = Operator(
            self.program,
            self.name,
            self.location,
            shard_count,
            tuple("string" for _ in self.program.key),
            self.time,
            self.program.output_schema(self.schema),
            self.policy,
            allow=self.allow,
        )
        storage = operator_storage(self.location, self.name)
        asked = {"query_id": QUERY, "name": self.name, **self.operator.fingerprint()}
        described = agree_on_description(storage, asked, self.number, self.program, self.allow)
        # every shard is called in the first batch of another program, also without rows
        self.changed = described["from"] - 1 if described["number"] > 1 else -1
        self.generation = described["generation"]
        self.claim = claim(storage, new_launch(storage), f"run {next(_ATTEMPTS)}", self.number, 1)

    def forget(self) -> None:
        """Forget what this process has in memory."""
        CACHE.drop(self.location.operator(self.name).url)

    def begin(self, watermark_ms: int = 0) -> None:
        """Write down, as Spark does, that the next batch begins."""
        lines = ["v1", json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 0}), "{}"]
        self.query.create(f"offsets/{self.number}", "\n".join(lines).encode())

    def of_shard(self, shard: int, watermark_ms: int = 0) -> Batch:
        """The next batch, as the task of a shard meets it."""
        return Batch(
            self.number,
            QUERY,
            self.claim.run_id,
            shard,
            watermark_ms,
            self.number * 1000,
            self.claim,
            next(_ATTEMPTS),
            changed=self.changed == self.number,
            generation=self.generation,
        )

    def batch(self, rows: list[dict[str, Any]], watermark_ms: int = 0) -> list[dict[str, Any]]:
        """Do a batch and commit it; return its rows, sorted."""
        self.begin(watermark_ms)
        operator, results = self.operator, []
        for shard in range(operator.shards):
            work = ShardWork(operator, self.of_shard(shard, watermark_ms))
            grouped = getattr(operator.program, "null_keys", "skip") == "group"
            keys = [stored_key(row[self.key]) if grouped else row[self.key] for row in rows]
            shards = [0 if key is None else shard_of(key, operator.shards) for key in keys]
            mine = [row for of_row, row in zip(shards, rows, strict=True) if of_row == shard]
            called = bool(mine) or self.time == "watermark" or work.batch.changed
            work.begin([shard] if called else [])
            if called:
                results += work.shard(shard, pa.Table.from_pylist(mine, schema=self.schema), 0.0).to_pylist()
            work.maintain()
            for provider in work._providers:
                provider.maintain(wait=True)
        self.query.create(f"commits/{self.number}", b"v1\n{}")
        self.number += 1
        return sorted(results, key=str)

    def rows(self) -> dict[str, list[Any]]:
        """The records of all shards by store, sorted."""
        contents: dict[str, list[Any]] = {}
        for state in shards(self.location, self.name):
            opened = open_version(state, self.number)
            for store in opened.stores:
                contents.setdefault(store, []).extend(opened.rows(store))
        return {name: sorted(rows, key=str) for name, rows in contents.items() if rows}
