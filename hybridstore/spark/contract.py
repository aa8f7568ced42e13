"""Contract: what an operator asks of a program, and of its runner on the stores of a shard; what neither says has a
default here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from recovery.runs import Claim

from ..clock import Watermark
from ..state.changes import Difference
from ..state.group import StoreGroup
from ..topology.batch import LeftOut
from ..topology.plan import NullKeys
from .location import Location

if TYPE_CHECKING:
    import pyarrow as pa

FRAME_ROWS: Final = 8192
"""Spark gets results in record batches of so many rows at most; its own have at most 10,000 by default."""


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
    # the call has no row that says whose it is: another call of this batch may have the rows of its shards
    guessed: bool = False


class Runner(ABC):
    """A program that is open on the stores of one shard.

    dropped    late rows since the opening
    left_out   rows without a key, and rows without a time, since the opening
    by_row     why the rows of the last batch were processed one by one; None if by column
    """

    @property
    def dropped(self) -> int:
        """See the class."""
        return 0

    @property
    def left_out(self) -> LeftOut:
        """See the class."""
        return LeftOut()

    @property
    def by_row(self) -> str | None:
        """See the class."""
        return None

    def begin(self, batch: Batch, shard: int, shards: int, location: Location) -> None:
        """Take the batch, and the shard of how many; called before each `process`."""
        return None

    @abstractmethod
    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process the rows of one batch, in an order that does not depend on their arrival, and return the results.

        `watermark` is the time if the operator runs with `time="watermark"`: `late_ms`, by which rows are late, and
        `now_ms`. With a watermark, `process` is called in every batch in which the watermark has moved, also without
        rows.
        """


class Program(ABC):
    """The computation of an operator; it is pickled and sent to the workers.

    key                the key columns of the input
    null_keys          as in `hybridstore.stream`: rows come by the shards of their keys as they are stored
    wide_keys          dates, timestamps, decimals, structs and arrays can be keys
    fresh              the program is opened for every batch
    empty_shards       when shards without rows are processed, too: "watermark", where the watermark has moved
                       (`ticks`), or "batch", in every batch
    begins_everywhere  the first batch of a run processes shards without rows, too
    tick_ms            how often a batch is made, with or without rows, in which every shard is processed
    everywhere         a condition (SQL): a row for which it is true reaches every shard
    event_time         the column of the output that carries the query's watermark to operators of Spark behind
                       (`event_time`)
    """

    key: tuple[str, ...] = ()
    null_keys: NullKeys = "skip"
    wide_keys: bool = False
    fresh: bool = False
    empty_shards: Literal["watermark", "batch"] | None = None
    begins_everywhere: bool = False
    tick_ms: int | None = None
    everywhere: str | None = None
    event_time: str | None = None

    def columns(self) -> tuple[str, ...]:
        """Return the input columns that are needed, () for all."""
        return ()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the description, in plain values, with which the stored one is compared."""

    def changes(self, stored: dict[str, Any], allow: Collection[str] = ()) -> list[Difference] | None:
        """Return the differences from the description of the program that wrote the state; None: any difference is
        refused.
        """
        return None

    @abstractmethod
    def output_schema(self, schema: pa.Schema) -> Any:
        """Return the output for an input of `schema`: an Arrow schema, a StructType or DDL text."""

    @abstractmethod
    def open(self, group: StoreGroup) -> Runner:
        """Open the stores of a shard."""


class _Completed:
    """An object of a class that does not derive from `Program` or `Runner`, with the defaults of these."""

    def __init__(self, given: object, kind: type) -> None:
        self._given = given
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if hasattr(self._given, name):
            return getattr(self._given, name)
        default = getattr(self._kind, name)
        return default.__get__(self) if hasattr(default, "__get__") else default


def whole_program(given: Any) -> Program:
    """Return a program; one that does not derive from `Program` gets what it lacks from there."""
    program: Any = given if isinstance(given, Program | _Completed) else _Completed(given, Program)
    return cast(Program, program)


def whole_runner(given: Any) -> Runner:
    """Return a runner; one that does not derive from `Runner` gets what it lacks from there."""
    runner: Any = given if isinstance(given, Runner | _Completed) else _Completed(given, Runner)
    return cast(Runner, runner)
