"""Reading: the state of a query's operators from outside, as rows: contents of a version, changes between versions, numbers.

It reads files only and holds no lock, so that it may be used beside the running query. It needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from changelog.changes import DELETED, expand
from changelog.codec import unpack
from changelog.files import REAL_FILES
from changelog.mutation import SYSTEM, mutations
from changelog.reader import SegmentReader
from recovery.layout import SPARK_FOLDER

from ..shard_head import HEAD_NAME, Head, read_head
from ..stores.kinds import KINDS, Store
from .errors import MissingVersionError
from .loaded import ShardCache
from .operator_file import OPERATOR_FILE, operator_folder, read_operator
from .provider import StateStore, StateStoreProvider
from .query_log import committed
from .shard_files import ShardFiles
from .shard_id import StateStoreId


class StateRow(NamedTuple):
    """One record of a store: `start` and `end` (ms) are its time in a window store (both), or its session's bounds; else None."""

    key: Any
    start: int | None
    end: int | None
    value: Any


class ChangeRow(NamedTuple):
    """One change: the version it belongs to, "put", "delete", "evict" or "time", and the record."""

    version: int
    op: str
    row: StateRow


class ShardState(NamedTuple):
    """A shard as its files say."""

    operator: str
    shard: int
    id: StateStoreId
    head: Head


def operators(checkpoint: str | Path) -> list[str]:
    """Return the names of the operators with state under a checkpoint location, sorted. Raises MissingVersionError where there is none."""
    root = Path(checkpoint, SPARK_FOLDER)
    names = sorted(path.parent.name for path in root.glob(f"*/{OPERATOR_FILE}"))
    if not names:
        raise MissingVersionError(f"{root}: no operator's state found (is this the query's checkpointLocation?)")
    return names


def shards(checkpoint: str | Path, operator: str | None = None) -> list[ShardState]:
    """Return the shards of an operator (None: the only one), by number. Raises MissingVersionError when a shard has no head, and as `operators`."""
    names = operators(checkpoint)
    if operator is None:
        if len(names) > 1:
            raise MissingVersionError(f"{checkpoint}: several operators: {', '.join(names)} (name one)")
        operator = names[0]
    if operator not in names:
        raise MissingVersionError(f"{checkpoint}: no operator {operator!r} (there are: {', '.join(names)})")
    fields = read_operator(Path(checkpoint), operator)
    assert fields is not None
    found: list[ShardState] = []
    for shard in range(fields["shards"]):
        own = StateStoreId(str(checkpoint), operator, shard, query_id=fields.get("query_id", ""))
        head = read_head(own.directory / HEAD_NAME)
        if head is None:
            raise MissingVersionError(
                f"{operator_folder(Path(checkpoint), operator) / str(shard)}: its head file is missing"
            )
        found.append(ShardState(operator, shard, own, head))
    return found


def newest_version(states: list[ShardState]) -> int:
    """Return the newest version of a finished batch: as commits/ says, or, without it, the newest that every shard has reached."""
    if not states:
        return 0
    done = committed(Path(states[0].id.checkpoint_root)) + 1
    return min(done, max(state.head.seen for state in states)) if done else min(state.head.seen for state in states)


def check_version(states: list[ShardState], version: int) -> None:
    """Raise MissingVersionError when no shard has reached a version yet."""
    newest = max((state.head.seen for state in states), default=0)
    if version > newest:
        raise MissingVersionError(f"version {version} was never written: the newest is {newest}")


def open_version(state: ShardState, version: int) -> StateStore:
    """Load a version of a shard for reading. Raises MissingVersionError when it is not retained."""
    provider = StateStoreProvider(state.id, cache=ShardCache(0), reached=lambda seen, asked: True)
    return provider.get_read_store(version)


def store_rows(store: Store) -> Iterator[StateRow]:
    """Yield the records of a store, whatever its kind, in its order."""
    return (StateRow(*row) for row in KINDS[store.kind].rows(store))


def changes(state: ShardState, first: int, last: int) -> Iterator[tuple[str, ChangeRow]]:
    """Yield (store name, change) of the versions after `first` up to `last`, in order.

    Raises MissingVersionError when a segment between them is not retained. O(bytes of the segments).
    """
    files = ShardFiles(state.id.directory, state.id.store_id, REAL_FILES)
    names = {
        store.number: store.name for store in open_version(state, min(last, state.head.seen)).group.stores.values()
    }
    pending: list[int] = []
    step = files.at(state.head, last)
    while step.version > first:
        pending.append(step.version)
        step = files.parent_of(step)
    for version in reversed(pending):
        for found in SegmentReader(files.segment(version), last=False).versions():
            for body in found.bodies:
                for mutation in mutations(unpack(body)):
                    if mutation.store == SYSTEM:
                        continue
                    for change in expand(mutation):
                        low, high = (min(change.times), max(change.times)) if change.times else (None, None)
                        value = None if change.value is DELETED else change.value
                        row = StateRow(change.key, low, high, value)
                        yield names.get(mutation.store, str(mutation.store)), ChangeRow(version, change.op, row)
