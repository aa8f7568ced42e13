"""Reading: the state of a query's operators from outside, as rows: contents of a version, changes between versions,
numbers.

Reading only lists and reads objects, without a lock, so it may run beside the query. It needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from changelog.changes import DELETED, expand
from changelog.codec import unpack
from changelog.mutation import SYSTEM, mutations
from changelog.storage import Storage
from recovery.layout import OPERATOR, SPARK_FOLDER, LogName, list_operators
from recovery.rule import MissingParent, Runs
from recovery.runs import newest_claim

from ..reading.version import Version
from ..stores.kinds import ROWS, Row
from .errors import MissingVersionError
from .location import Location, located
from .operator_file import has_moved, read_operator
from .query_log import committed
from .shard.log import AttemptLog
from .shard.shard_id import StateStoreId


class ChangeRow(NamedTuple):
    """One change: the version it belongs to, "put", "delete", "evict" or "time", and the record."""

    version: int
    op: str
    row: Row


class ShardState(NamedTuple):
    """A shard according to its objects: the version reached, the object of its last change, the newest note or object
    (None if none exists), and the runs that decide which objects count.
    """

    operator: str
    shard: int
    id: StateStoreId
    version: int
    changed: LogName | None
    newest: LogName | None
    runs: Runs
    location: Location

    @property
    def files(self) -> AttemptLog:
        """The shard's objects."""
        operator = self.location.operator(self.operator)
        return AttemptLog(operator, self.id.folder, self.id.identity, lambda: has_moved(operator))


def operators(location: str | Path | Location) -> list[str]:
    """Return the names of the operators with state at a location, sorted. Raises MissingVersionError if none exists.
    O(operators) lists.
    """
    storage = located(location).states().below(SPARK_FOLDER)
    names = operators_in(storage)
    if not names:
        raise MissingVersionError(f"{storage.url}: no operator's state found (is this the query's checkpointLocation?)")
    return names


def operators_in(storage: Storage) -> list[str]:
    """Return the names of the operators with state in a place of operators, sorted. O(operators) lists."""
    return [name for name in storage.folders() if OPERATOR in storage.folders(name)]


def shards(location: str | Path | Location, operator: str | None = None) -> list[ShardState]:
    """Return the shards of an operator (None: the only one), by number. Raises MissingVersionError when a shard has no
    object, and as `operators`."""
    location = located(location)
    if operator is None or not list_operators(location.operator(operator)):
        names = operators(location)
        if operator is None and len(names) > 1:
            raise MissingVersionError(f"{location.state}: operator: found None, expected one of {', '.join(names)}")
        operator = operator or names[0]
        if operator not in names:
            raise MissingVersionError(f"{location.state}: no operator {operator!r} (known: {', '.join(names)})")
    storage = location.operator(operator)
    fields = read_operator(storage)
    claim = newest_claim(storage)
    if fields is None or claim is None:
        raise MissingVersionError(
            f"{storage.url}: found no run, expected one: the query has not begun a batch, or its objects were removed"
        )
    moved = has_moved(storage)
    states: list[ShardState] = []
    for shard in range(fields["shards"]):
        query_id, generation = fields.get("query_id", ""), fields["generation"]
        identity = StateStoreId(location.state, operator, shard, query_id, generation, fields["shards"])
        files = AttemptLog(storage, identity.folder, identity.identity)
        standing = files.objects.standing(claim.runs)
        newest = standing.newest_name()
        if newest is None and not moved and (claim.first or committed(location.query()) >= 0):
            raise MissingVersionError(
                f"{files.storage.url}: found no object of shard {shard}, expected its log (restore the folder from a "
                "copy)"
            )
        changed = standing.top(standing.newest, files.objects.parent)
        states.append(ShardState(operator, shard, identity, standing.newest, changed, newest, claim.runs, location))
    if moved:
        # A batch without rows may have left no object, so every shard has reached the version of the most advanced one.
        reached = max(state.version for state in states)
        states = [state._replace(version=reached) for state in states]
    return states


def newest_version(states: list[ShardState]) -> int:
    """Return the newest version of a finished batch: from commits/, or, without that folder, the newest version that
    every shard has reached.
    """
    if not states:
        return 0
    done = committed(states[0].location.query()) + 1
    return min(done, max(state.version for state in states)) if done else min(state.version for state in states)


def check_version(states: list[ShardState], version: int) -> None:
    """Raise MissingVersionError when no shard has reached a version yet."""
    newest = max((state.version for state in states), default=0)
    if version > newest:
        raise MissingVersionError(f"version: found {version}, expected at most {newest}, the newest")


def open_version(state: ShardState, version: int) -> Version:
    """Open a version of a shard. Raises MissingVersionError when it is not retained."""
    return state.files.open(version)


def changes(state: ShardState, first: int, last: int) -> Iterator[tuple[str, ChangeRow]]:
    """Yield (store name, change) of the versions after `first` up to `last`, in order.

    Raises MissingVersionError when an object between them is not retained. O(bytes of the objects).
    """
    files = state.files
    with open_version(state, min(last, state.version)) as opened:
        names = {store.number: name for name, store in opened.stores.items()}
    standing = files.objects.standing(state.runs, first)
    try:
        line = [name for name, _ in standing.line(last, files.objects.parent, first)]
        for version in files.objects.versions(reversed(line), None):
            for body in version.bodies:
                for mutation in mutations(unpack(body)):
                    if mutation.store == SYSTEM:
                        continue
                    for change in expand(mutation):
                        value = None if change.value is DELETED else change.value
                        name = names.get(mutation.store, str(mutation.store))
                        row = ROWS[len(change.times)](change.key, change.times, value)
                        yield name, ChangeRow(version.commit.version, change.op, row)
    except (MissingParent, FileNotFoundError) as error:
        raise MissingVersionError(f"{files.storage.url}: {error} (it was pruned, or lost)") from error
