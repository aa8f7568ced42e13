"""Follow: a read-only view that stays at the newest committed version of a running job, beside its writer.

    follow = hs.inspect("checkpoint").follow()
    follow.refresh()                 what was committed since is read and applied; nothing new: two small reads
    follow.get("counts", "alice")    from memory, or one block

Each state or shard is a `Version`. All shards of a query are at the same version: that of the newest finished batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from changelog.errors import HybridStoreError
from changelog.outlook import behind
from recovery.errors import CheckpointError, RestoreError
from recovery.layout import GENERATIONS, RUNS, SPARK_FOLDER

from ..markup import stores_table
from ..shards import shard_of
from ..state.generations import above, describing
from ..state.hydration import hydrate
from ..state.memory import memory_bytes
from ..state.memory_budget import give_back, usable
from ..stores.kinds import KINDS, Row
from .places import Place, operator_file, read_json
from .selection import EVERYTHING, Selection
from .version import ATTEMPTS, Version, newest_of

T = TypeVar("T")


def _room(limit: int) -> int:
    """Return how many bytes of a limit records may take by their estimate, so that the process as a whole, seen from
    outside, takes no more than the limit: without a record it takes 20 MB, and what is forgotten leaves gaps.
    """
    return usable(limit) * 2 // 3


class FollowedStore:
    """One store of all shards, at the version of its view: `view["users"]`. Iterating yields all rows.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> users = hs.inspect("state").follow()["users"]
    >>> users.kind, len(users), list(users)
    ('key_value', 1, [Row(key='ann', times=(), value=1)])
    """

    def __init__(self, view: Followed, name: str) -> None:
        self._view = view
        self.name = name

    @property
    def kind(self) -> str:
        """The store's kind, such as `window`."""
        return self._view._versions(self.name)[0].stores[self.name].kind

    def get(self, key: Any) -> list[Row]:
        """Return the rows of one key; see `Followed.get`.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> hs.inspect("state").follow()["users"].get("ann")
        [Row(key='ann', times=(), value=1)]
        """
        return self._view.get(self.name, key)

    @property
    def parameters(self) -> dict[str, Any]:
        """The declared parameters; durations in milliseconds."""
        return dict(self._view._versions(self.name)[0].stores[self.name].parameters)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the times of its records."""
        store = self._view._versions(self.name)[0].stores[self.name]
        kind = KINDS[store.kind]
        return kind.columns if kind.timed(store.parameters) else ()

    def rows(self, chosen: Selection = EVERYTHING) -> Iterator[Row]:
        """Yield the chosen records, shard by shard, in the store's order; see `Version.rows`."""
        for version in self._view._versions(self.name):
            yield from version.rows(self.name, chosen)

    def __iter__(self) -> Iterator[Row]:
        """Yield all records, shard by shard, in the store's order. Reads every block."""
        return self.rows()

    def __len__(self) -> int:
        """Return the number of records; an estimate while a long changelog waits to be applied."""
        return sum(version.stores[self.name].num_records for version in self._view._versions(self.name))

    def __repr__(self) -> str:
        return f"<FollowedStore {self.name!r}, {self.kind}, version {self._view.version}>"


class Followed:
    """A mapping of the stores of a running job by name, at its newest committed version as of the last `refresh`.

    Made by `hybridstore.inspect(path).follow()`. The view takes no lock, writes nothing, and keeps in memory the
    records committed since the newest checkpoint, and the blocks that were read. `version` is the version of all
    stores: on Spark the number of the newest finished batch, plus 1. A context manager, which closes the view. Not for
    several threads at once.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     version = state.commit()
    ...     with hs.inspect("state").follow() as view:
    ...         print(view.version, list(view))
    1 ['users']
    """

    def __init__(self, places: list[Place], again: Callable[[], list[Place]] | None = None) -> None:
        self._places = places
        self._again = again
        self._operator = places[0].operator_storage
        self._describing = None if places[0].shard is not None else describing(behind(places[0].storage))
        self._described = self._descriptions()
        self._states: list[Version] = []
        # bytes of what a new beginning cannot forget: the changelog behind the checkpoint
        self._least = 0
        self._begin()

    def _begin(self) -> None:
        fields = None if self._operator is None else read_json(self._operator, operator_file(self._operator))
        run, target, states = self._newest_run(), self._wanted(), list[Version]()
        try:
            for place in self._places:
                states.append(Version(place, target))
        except BaseException:
            for state in states:
                state.close()
            raise
        self.close()
        self._shards = fields.get("shards", 0) if isinstance(fields, dict) else 0
        self._target, self._states, self._run = target, states, run

    def _begin_elsewhere(self) -> bool:
        """Look for the shards again; True when they are others, after a rescale, and were opened."""
        if self._operator is None or self._again is None:
            return False
        before, places = self._places, self._again()
        if not places or [place.where for place in places] == [place.where for place in before]:
            return False
        self._places = places
        try:
            self._begin()
        except BaseException:
            self._places = before
            raise
        return True

    def _newest_run(self) -> str:
        """Return the name of the newest run of a query, which may have turned back; "" for a plain store. One list."""
        return "" if self._operator is None else max(self._operator.list(f"{RUNS}/"), default="")

    def _wanted(self) -> int | None:
        """Return the version of the newest finished batch, from Spark's commits/, else the newest version that all
        shards have; None for a plain store, which has its own.
        """
        if self._operator is None:
            return None
        query = above(self._operator, 2) if self._operator.url.split("/")[-2:-1] == [SPARK_FOLDER] else self._operator
        names = (name.removeprefix("commits/") for name in query.list("commits/"))
        batches = [int(name) for name in names if name.isdigit()]
        if batches:
            return max(batches) + 1
        return min(newest_of(place) for place in self._places)

    def _descriptions(self) -> list[str]:
        """Return the descriptions of the shards of a plain state: each rescale adds one. One list."""
        return [] if self._describing is None else sorted(self._describing.list(f"{GENERATIONS}/"))

    @property
    def version(self) -> int:
        """The version of all stores: on Spark the number of the newest finished batch, plus 1."""
        return self._states[0].number if self._target is None else self._target

    def refresh(self) -> bool:
        """Apply the commits since the last call; True when the version changed.

        Without new commits this is a look at the end of a segment and a list of generations/, or, for a query, a list
        of Spark's commits/ and of runs/. Raises as opening does; the view is then at the version before, and another
        `refresh` continues. Raises RestoreError for a plain state of which a rescale has made other shards count.

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     users["ann"] = 1
        ...     version = state.commit()
        ...     view = hs.inspect("state").follow()
        ...     users["ann"] = 2
        ...     version = state.commit()
        ...     print(view.get("users", "ann")[0].value, view.refresh(), view.get("users", "ann")[0].value)
        1 True 2
        """
        before, target, run = self.version, self._wanted(), self._newest_run()
        there = target is not None and all(state.number == target for state in self._states)
        if there and target == self._target and run == self._run:
            return False
        try:
            for state in self._states:
                state.refresh(target)
        except (HybridStoreError, OSError):
            # all shards are of one version: those that moved return
            for state in self._states if self._target is not None else ():
                with suppress(HybridStoreError, OSError):  # `_versions` refuses what did not return
                    state.refresh(self._target)
            if not self._begin_elsewhere():
                raise
        else:
            self._target, self._run = target, run
        if self.version != before:
            return True
        if self._descriptions() != self._described:
            raise RestoreError(
                f"{self!r}: other shards count since a rescale (follow those: inspect the location again)"
            )
        return False

    def get(self, store: str, key: Any) -> list[Row]:
        """Return the records of a key in the store's order; [] if none exist.

        With several shards only that of the key is read. Raises KeyError for an unknown store, and TypeError for a key
        of another type. O(a block for each bucket that holds the key); of a suppression buffer O(records).

        >>> with hs.open("state") as state:
        ...     state.window("clicks", retention="1 hour").put("ann", 1, ts=500)
        ...     state.commit()
        1
        >>> hs.inspect("state").follow().get("clicks", "ann")
        [Row(key='ann', times=(500,), value=1)]
        """
        return self.reading(
            lambda: [row for version in self._versions(store, key) for row in version.of_key(store, key)]
        )

    def reading(self, read: Callable[[], T]) -> T:
        """Return what `read` returns. When the owner has removed a block that `read` needs, the newest version is
        opened, and `read` is called again.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> view = hs.inspect("state").follow()
        >>> view.reading(lambda: [row.key for row in view["users"]])
        ['ann']
        """
        for attempt in range(ATTEMPTS):
            try:
                return read()
            except (CheckpointError, FileNotFoundError):
                # The owner has removed the needed block since.
                if attempt == ATTEMPTS - 1:
                    raise
                self._begin()
        raise AssertionError("unreachable")  # pragma: no cover

    def warm(self, budget_ms: float, limit: int | None = None) -> bool:
        """Load cold blocks for about `budget_ms`, at least one; False when nothing was loaded, because all blocks are
        in memory, or those in memory take a third of `limit` (bytes). O(blocks loaded).
        """
        if limit is not None and self._memory() > _room(limit) * 2 // 3:
            return False
        for state in self._states:
            stores = state.stores.values()
            if any(store.cold_blocks + store.decoded_blocks for store in stores):
                self.reading(lambda stores=stores: hydrate(stores, budget_ms))  # type: ignore[misc]
                return True
        return False

    def keep_within(self, limit: int) -> bool:
        """Forget the records in memory where they take more than half of `limit` (bytes), by estimate: all blocks are
        cold then. True when it did. The changelog behind the checkpoint stays. O(blocks), or O(pages + tail).
        """
        if self._memory() <= max(_room(limit), self._least * 5 // 4):
            return False
        self._begin()
        self._least = self._memory()
        give_back()
        return True

    def _memory(self) -> int:
        return sum(memory_bytes(state.group) for state in self._states)

    def _versions(self, name: str, key: Any = None) -> list[Version]:
        states = self._states
        if self._target is None and len(states) == 1 and name in states[0].stores:  # as below, in a third of the time
            return states
        if self._target is not None and any(state.number != self._target for state in states):
            raise RestoreError(f"{self!r}: found shards at other versions after a failed refresh (refresh again)")
        if key is not None and self._shards > 1:
            shard = shard_of(key, self._shards)
            states = [state for state in states if state.place.shard == shard]
        states = [state for state in states if name in state.stores]
        if not states and name not in set(self):
            raise KeyError(f"no store {name!r} (known: {', '.join(self) or 'none'})")
        return states

    def __getitem__(self, name: str) -> FollowedStore:
        self._versions(name)
        return FollowedStore(self, name)

    def __contains__(self, name: object) -> bool:
        states = self._states
        return name in states[0].stores or any(name in state.stores for state in states[1:])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for state in self._states for name in state.stores))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def close(self) -> None:
        """Close the checkpoints; the view cannot be used afterwards.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> view = hs.inspect("state").follow()
        >>> view.close()
        """
        for state in self._states:
            state.close()

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Followed {(self._operator or self._states[0].place.storage).url!r}, version {self.version}>"

    def _repr_html_(self) -> str:
        stores = [store for state in self._states for store in state.stores.values()]
        return stores_table(repr(self), stores)


def follow(places: list[Place], operator: str | None, again: Callable[[], list[Place]] | None = None) -> Followed:
    """Return the view of a state, or of all shards of an operator (None: the only one). `again` returns the places
    anew, for shards that a rescale has replaced. Raises ValueError.
    """
    operators = sorted({place.operator for place in places})
    if operator is None and len(operators) > 1:
        raise ValueError(f"follow: operator: found None, expected one of {', '.join(operators)}")
    chosen = [place for place in places if operator is None or place.operator == operator]
    if not chosen:
        raise ValueError(f"follow: operator: found {operator!r}, expected one of {', '.join(operators)}")
    if any(place.form != "directory" for place in chosen):
        raise ValueError(f"follow: {chosen[0].where}: found a file, which does not change (give the state it is of)")
    of_operator = chosen[0].operator

    def shards() -> list[Place]:
        return [place for place in (again() if again else chosen) if place.operator == of_operator]

    return Followed(chosen, shards)
