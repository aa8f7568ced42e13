"""Shipped: the objects that the driver sends to workers, and the facts that a task adds on arrival.

driver   Operator ── pickled once ──▶ worker   Shipped, as it came: a worker gives its bytes to a holder as they are
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal

from ..state.policy import CheckpointPolicy
from .contract import Program, whole_program
from .launches import STARTS
from .location import Location
from .operator_file import plain
from .shard.provider import POLICY

if TYPE_CHECKING:
    import pyarrow as pa

Placement = Literal["auto", "worker", "holder"]
Time = Literal["stream", "watermark"]
# What the archive is called that brings hybridstore to workers (`addArchive`, `spark.archives`).
ARCHIVE: Final = "hybridstore_env"
# The beginning of the sentence of `carried`.
MISSING: Final = "Spark's Python workers cannot import what the operator needs"


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
    # whether each task gives a row of its numbers behind its results
    observed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "program", whole_program(self.program))

    def task_of(self, shard: int) -> int:
        """Return the number of the Spark task that works on a shard."""
        return shard % (self.tasks or self.shards)

    def shards_of(self, task: int) -> range:
        """Return the shards that a Spark task works on; none for an unknown task."""
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
