"""Shipped: the objects that the driver sends to workers, and the facts that a task adds on arrival.

driver   Operator ── pickled once ──▶ worker   Shipped, as it came: a worker gives its bytes to a holder as they are
                                               Batch: which batch the task belongs to
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from recovery.runs import Claim

from ..clock import Watermark
from ..state.group import StoreGroup
from ..state.policy import CheckpointPolicy
from .launches import STARTS
from .location import Location
from .operator_file import plain
from .shard.provider import POLICY

if TYPE_CHECKING:
    import pyarrow as pa

Placement = Literal["auto", "worker", "holder"]
PLACEMENTS: Final = ("auto", "worker", "holder")
Time = Literal["stream", "watermark"]
# What the archive is called that brings hybridstore to workers (`addArchive`, `spark.archives`).
ARCHIVE: Final = "hybridstore_env"
# The beginning of the sentence of `carried`.
MISSING: Final = "Spark's Python workers cannot import what the operator needs"


class Runner(Protocol):
    """A program that is open on the stores of one shard.

    Optional attributes for metrics: `dropped`, the late rows since the opening; `left_out`, (rows without a key, rows
    without a time) since then; `by_row`, why the rows of the last batch were processed one by one. The optional method
    `begin(batch, shard, shards, location)` is called before each batch.
    """

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process the rows of one batch, in an order that does not depend on their arrival, and return the results.

        `watermark` is the time if the operator runs with `time="watermark"`: `late_ms`, by which rows are late, and
        `now_ms`. With a watermark, `process` is called in every batch in which the watermark has moved, also without
        rows.
        """


class Program(Protocol):
    """The computation of an operator; it is pickled and sent to the workers. If `fresh` is true, it is opened for every
    batch.

    The optional method `changes(stored, allow) -> list[Change]` returns the differences from the `describe()` of the
    program that wrote the state (`hybridstore.state.changes`); without it any difference is refused. `null_keys`, if
    there is one, is what `hybridstore.stream` takes: rows come by the shards of their keys as they are stored.
    `empty_shards`, if there is one, says when shards without rows are processed, too: "watermark", where the watermark
    has moved (`ticks`), or "batch", in every batch. `begins_everywhere`, if true, says that the first batch of a
    run processes shards without rows, too. `wide_keys`, if true, says that dates, timestamps and structs can be keys.
    `tick_ms`, if there is one, says how often a batch is made, with or without rows, in which every shard is processed.
    `everywhere`, if there is one, is a condition (SQL): a row for which it is true reaches every shard.
    `event_time`, if there is one, is the column of the output that
    carries the query's watermark to operators of Spark behind (`hybridstore.spark.event_time`).
    """

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of the input."""

    def columns(self) -> tuple[str, ...]:
        """The input columns that are needed, () for all."""

    def describe(self) -> dict[str, Any]:
        """The description, in plain values, with which the stored one is compared."""

    def output_schema(self, schema: pa.Schema) -> Any:
        """The output for an input of `schema`: an Arrow schema, a StructType or DDL text."""

    def open(self, group: StoreGroup) -> Runner:
        """Open the stores of a shard."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a query, in the form that is sent to the workers."""

    program: Program
    name: str
    location: Location
    shards: int
    key_type: tuple[str, ...]
    time: Time
    output: pa.Schema
    policy: CheckpointPolicy = POLICY
    placement: Placement = "auto"
    # how many tasks the whole cluster can run at once: no host needs more holders
    slots: int = 1
    # the number that the driver has taken for the launch
    launch: int = STARTS
    # how many Spark tasks share the shards; None: one each
    tasks: int | None = None
    # estimated bytes that the shards of one process may hold; None: no limit
    memory_limit: int | None = None
    # the user's consent to changes of the program
    allow: tuple[str, ...] = ()
    # the schema of the rows, for a shard that is called without rows
    input: pa.Schema | None = None

    def task_of(self, shard: int) -> int:
        """Return the number of the Spark task that works on a shard."""
        return shard % (self.tasks or self.shards)

    def shards_of(self, task: int) -> range:
        """Return the shards that a Spark task works on; none if there is no task of that number."""
        tasks = self.tasks or self.shards
        return range(task, self.shards if task < tasks else 0, tasks)

    def fingerprint(self) -> dict[str, Any]:
        """Return the fields that the first batch fixes."""
        return {
            "shards": self.shards,
            "key": plain(list(zip(self.program.key, self.key_type, strict=True))),
            "time": self.time,
            "program": plain(self.program.describe()),
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch of a task."""

    number: int
    query_id: str
    run_id: str
    partition: int
    watermark_ms: int
    timestamp_ms: int
    # the run, as its first task has begun it, and the number of this task's attempt, above 0
    claim: Claim
    attempt: int
    # the first batch of another program: every shard changes to that program, also a shard without rows
    changed: bool = False
    # of the operator's shards, as the description in force says
    generation: int = 0


class Shipped:
    """One operator in transfer: every worker has this package's code and cache, so only the operator is sent."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        # the received bytes; empty before a transfer
        self.packed = b""
        self.key = ""

    def __getstate__(self) -> bytes:
        from pyspark import cloudpickle

        packed: bytes = cloudpickle.dumps(self.operator)  # type: ignore[no-untyped-call]
        return packed

    def __setstate__(self, packed: bytes) -> None:
        self.packed = packed
        self.key = blake2b(packed, digest_size=16).hexdigest()
        self.operator = pickle.loads(packed)


def carried(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for `mapInArrow` that every worker can unpickle, and that raises one sentence if `function`
    cannot be unpickled.

    The returned function refers to no module, so it is sent by value. It imports from the archive `ARCHIVE`, if Spark
    has brought it, what the worker's interpreter lacks, and raises RuntimeError where hybridstore, or a module of the
    program, is missing all the same.
    """
    from pyspark import cloudpickle

    packed = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    sentence, archive = MISSING, ARCHIVE

    def hybridstore_shard(batches: Any) -> Any:
        import os
        import platform
        import sys
        from pickle import loads

        # Spark unpacks archives beside the files that it puts into the path
        brought = [os.path.join(folder, archive) for folder in sys.path]
        sys.path += [folder for folder in brought if os.path.isdir(folder) and folder not in sys.path]
        try:
            arrived = loads(packed)
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f"{sentence}: {sys.executable} on {platform.node()}: no module named {error.name!r} (install it there, "
                f"or ship it as an archive that is called {archive}: docs/spark.md, Deployment)"
            ) from None
        return arrived(batches)

    return hybridstore_shard
