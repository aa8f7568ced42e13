"""The Python interface of inspection: `hybridstore.inspect(path)`. Everything is read-only, and shown as tables in a
notebook.

state = hs.inspect("state/")
state["clicks"].scan(prefix="al")       state.at(42)["clicks"]
state.history("clicks", "alice")        state.at(40).diff(state)
state.follow()                          stays at the newest version of a running job
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from changelog.errors import ForeignFileError
from recovery.plan import RestorePlan

from ..markup import Html, join, table, tag
from ..reading.differences import RecordDifference, compare
from ..reading.events import Event, history_of
from ..reading.follow import Followed, follow
from ..reading.places import Place
from ..reading.selection import Selection
from ..reading.store_view import StoreView, of_key_type
from ..reading.tables import ROWS_PER_BATCH, stream_by_column
from ..reading.versions import Commit, reach
from ..reading.view import View, open_view
from ..state.restart import plan
from ..stores.kinds import Row
from .options import choose
from .rows import facts_of, row_of, store_rows
from .shards import position_of, shard_places

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_ROWS = 20
_STORE_COLUMNS = ("store", "kind", "keys", "records", "bytes", "stream_time", "parameters")
_RECORD_COLUMNS = ("key", "buffered", "ts", "start", "end", "value")


class InspectedStore:
    """One store at one version: `state["clicks"]`. Iterating yields its records in the store's order, read from disk
    one block after the other; `len` counts the records.

    >>> with hs.open("state") as state:
    ...     state.window("clicks", retention="1 hour").put("ann", 1, ts=500)
    ...     state.commit()
    1
    >>> clicks = hs.inspect("state")["clicks"]
    >>> clicks.kind, clicks.parameters["retention_ms"], clicks.columns, clicks.stream_time, len(clicks)
    ('window', 3600000, ('ts',), 500, 1)
    >>> list(clicks)
    [Row(key='ann', times=(500,), value=1)]
    """

    def __init__(self, view: View, store: StoreView) -> None:
        self._view = view
        self._store = store

    @property
    def name(self) -> str:
        """The store's name."""
        return self._store.name

    @property
    def kind(self) -> str:
        """Its kind, such as `window`."""
        return self._store.kind

    @property
    def parameters(self) -> dict[str, Any]:
        """The declared parameters; durations in milliseconds."""
        return dict(self._store.parameters)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the times of its records."""
        return self._store.columns

    @property
    def stream_time(self) -> int:
        """The stream time (ms), -1 at first."""
        return self._store.stream_time

    def __len__(self) -> int:
        return self._store.count()

    def __iter__(self) -> Iterator[Row]:
        return self._store.records()

    def scan(
        self,
        *,
        key_from: Any = None,
        key_to: Any = None,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Iterate over the records within the bounds, which are inclusive; None is open. `time_from` bounds the first
        of a record's times (ms) and `time_to` the last: of sessions those that have a part between both.

        Raises TypeError for a bound of another type than the keys. O(blocks touched).

        >>> with hs.open("state") as state:
        ...     state.key_value("users").put_many({"alf": 1, "ann": 2, "bob": 3})
        ...     state.commit()
        1
        >>> users = hs.inspect("state")["users"]
        >>> [record.key for record in users.scan(prefix="a", reverse=True)]
        ['ann', 'alf']
        """
        chosen = Selection(key_from, key_to, prefix, time_from, time_to, reverse)
        return of_key_type(self._store, chosen[:3], self._store.records(chosen))

    def get(self, key: Any) -> list[Row]:
        """Return the records of one key, [] if it has none.

        Raises TypeError when the store's keys are of another type. O(one block per bucket).

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> hs.inspect("state")["users"].get("ann")
        [Row(key='ann', times=(), value=1)]
        """
        return list(of_key_type(self._store, [key], iter(self._store.of_key(key))))

    def arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        key_from: Any = None,
        key_to: Any = None,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        text: bool = False,
        rows_per_batch: int = ROWS_PER_BATCH,
    ) -> pa.RecordBatchReader:
        """Return the records within the bounds of `scan` as Arrow batches, which are read from disk one after the
        other: `reader.read_all()`, `reader.read_pandas()`, `polars.from_arrow(reader.read_all())`, or
        `duckdb.sql("select ... from reader")`.

        columns         names among `key`, the store's `columns` and `value`, in this order; None: all
        text            every key and value as text: keys as the command line types them, values as JSON
        rows_per_batch  rows of a batch

        Times are int64 (ms). Keys and values have the type that Arrow finds for the rows of the first batch (a dict is
        a struct), or are text if these differ in type. Raises ValueError for an unknown column and, while it is read,
        for a row of another type than those before; TypeError as `scan`; HybridStoreError without pyarrow. O(blocks
        touched); memory O(a batch).

        >>> with hs.open("state") as state:
        ...     state.window("clicks", retention="1 hour").put_many([("ann", 3, 500), ("bob", 1, 900)])
        ...     state.commit()
        1
        >>> reader = hs.inspect("state")["clicks"].arrow(["key", "value"], time_from=600)
        >>> reader.read_all().to_pylist()
        [{'key': 'bob', 'value': 1}]
        """
        chosen = Selection(key_from, key_to, prefix, time_from, time_to)
        pieces = of_key_type(self._store, chosen[:3], self._store.by_column(chosen))
        return stream_by_column(self.columns, pieces, columns, text=text, rows_per_batch=rows_per_batch)

    def __repr__(self) -> str:
        return f"<InspectedStore {self.name!r}, {self.kind}, version {self._view.version}>"

    def _repr_html_(self) -> str:
        rows = [
            row_of(self._view, self._store, record, iso=True, label=False)
            for record, _ in zip(self, range(_SHOWN_ROWS), strict=False)
        ]
        about = f"{self.name}: {self.kind}, about {self._store.counted.records:,} records"
        return join([tag("p", about), table(rows, _RECORD_COLUMNS)])


class InspectedState(Mapping[str, InspectedStore]):
    """One state directory, shard or file at one version: a mapping of its stores by name, and facts about it.

    A missing store is a KeyError that names the others.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> look = hs.inspect("state")
    >>> look.version, list(look), look.settings, look.faults
    (1, ['users'], {}, [])
    """

    def __init__(self, place: Place, version: int | None = None) -> None:
        self._place = place
        self._view = open_view(place, version)

    @property
    def version(self) -> int:
        """The version shown."""
        return self._view.version

    @property
    def digest(self) -> bytes:
        """The digest of that version."""
        return self._view.digest

    @property
    def label(self) -> str:
        """`operator/shard` inside a Spark checkpoint, empty elsewhere."""
        return self._place.label

    @property
    def settings(self) -> dict[str, Any]:
        """The named values committed with the stores."""
        return dict(self._view.settings)

    @property
    def faults(self) -> list[str]:
        """The faults so far; empty when everything could be read. The list grows as damaged blocks are read."""
        return list(self._view.faults)

    @property
    def position(self) -> Any:
        """The position in its source that `run` has committed with this version; None without a run. Raises
        RestoreError for a damaged state, whose newest position is not known.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count())
        >>> rows = [{"user": "ann", "ts": 0, "offset": 17}, {"user": "bob", "ts": 500, "offset": 18}]
        >>> results = list(counts.run(rows, "state", position="offset"))
        >>> hs.inspect("state").position
        18
        """
        return position_of([self._view])

    def restart(self) -> RestorePlan:
        """Return the plan of opening the newest version for writing, with an estimate of its time; nothing is changed.

        For a restore that would be refused, `problem` says why. Raises ForeignFileError for what is not the directory
        of a state: a file, a shard of a Spark query, an object store. O(tail).

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> restart = hs.inspect("state").restart()
        >>> restart.version, restart.checkpoint_version, restart.tail_versions, restart.problem
        (1, None, 1, None)
        """
        if self._place.form != "directory" or self._place.operator_storage is not None or self._place.path is None:
            raise ForeignFileError(f"{self._place.where}: restart: expected the directory of a state")
        return plan(self._place.path)

    @property
    def versions(self) -> list[Commit]:
        """The versions in the retained changelog, oldest first. O(bytes of the changelog).

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     for visits in (1, 2):
        ...         users["ann"] = visits
        ...         version = state.commit()
        >>> [commit.version for commit in hs.inspect("state").versions]
        [1, 2]
        """
        return reach(self._place).commits

    def at(self, version: int | str) -> InspectedState:
        """Return another retained version, or the newest one committed by a time (ISO, UTC).

        Raises RestoreError or UsageError for a version, or a time, that is not retained. O(blocks + tail).

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     for visits in (1, 2):
        ...         users["ann"] = visits
        ...         version = state.commit()
        >>> hs.inspect("state").at(1)["users"].get("ann")
        [Row(key='ann', times=(), value=1)]
        """
        return InspectedState(self._place, choose(self._place, str(version)))

    @property
    def shards(self) -> Mapping[str, InspectedState]:
        """The shards of the location by `operator/shard`, those of a plain topology by their number: of one state only
        itself, by its label.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> [look.version for look in hs.inspect("state").shards.values()]
        [1]
        """
        return {self.label: self}

    def follow(self, operator: str | None = None) -> Followed:
        """Return a view of the same state that stays at its newest version; see `Followed`. `operator`: of a location
        with several.

        Raises ValueError for a file.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> with hs.inspect("state").follow() as view:
        ...     view.version
        1
        """
        return follow([self._place], operator)

    def __getitem__(self, name: str) -> InspectedStore:
        return InspectedStore(self._view, self._view.store(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.stores)

    def __len__(self) -> int:
        return len(self._view.stores)

    def history(self, store: str, key: Any) -> list[Event]:
        """Return every retained change of a key, oldest first. Raises KeyError for an unknown store. O(changelog).

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     for visits in (1, 2):
        ...         users["ann"] = visits
        ...         version = state.commit()
        >>> for event in hs.inspect("state").history("users", "ann"):
        ...     print(event.version, event.op, event.old, event.new)
        1 put DELETED 1
        2 put 1 2
        """
        return history_of(self._place, store, key, self._view.faults)

    def diff(self, other: InspectedState) -> dict[str, list[RecordDifference]]:
        """Return the differences from this state to `other`, by store; stores without differences are left out, and so
        are stores that only one of the two has.

        O(blocks that differ).

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     for visits in (1, 2):
        ...         users["ann"] = visits
        ...         version = state.commit()
        >>> hs.inspect("state", at=1).diff(hs.inspect("state", at=2))
        {'users': [RecordDifference(change='changed', key='ann', times=(), old=1, new=2)]}
        """
        differing = {}
        for name in self._view.stores.keys() & other._view.stores.keys():
            differences = list(compare(self._view.stores[name], other._view.stores[name]))
            if differences:
                differing[name] = differences
        return differing

    def __repr__(self) -> str:
        return f"<InspectedState {self._place.where!r}, version {self.version}, stores: {', '.join(self) or 'none'}>"

    def _repr_html_(self) -> str:
        facts = facts_of(self._view, True, newest=False)
        names = ("shard", "path", "version", "committed", "checkpoint", "tail_versions", "estimated_restore_ms")
        lines = join(
            tag("tr", tag("th", name.replace("_", " ")), tag("td", facts.get(name)))
            for name in names
            if facts.get(name)
        )
        faults = tag("ul", *(tag("li", fault) for fault in self._view.faults)) if self._view.faults else Html()
        return join([tag("table", lines), table(list(store_rows(self._view, True)), _STORE_COLUMNS), faults])


class InspectedShards(InspectedState):
    """A location with several shards: `shards` has them, `position` and `follow` are of all of them, and whatever is of
    one state raises a ValueError that names the shards.

    >>> from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
    >>> from hybridstore.spark.launches import begin
    >>> ids = [StateStoreId("checkpoint", "visits", number) for number in range(2)]
    >>> run = begin(StateStoreProvider(ids[0]).operator, batch=0)
    >>> for shard in ids:
    ...     store = StateStoreProvider(shard, claim=run).get_store(0)
    ...     store.key_value("users").put(f"user-{shard.shard}", 1)
    ...     version = store.commit()
    >>> for label, state in hs.inspect("checkpoint").shards.items():
    ...     print(label, state.version, [record.key for record in state["users"]])
    visits/0 1 ['user-0']
    visits/1 1 ['user-1']
    """

    def __init__(self, places: list[Place], at: str | None, where: str) -> None:
        self._by_label = {place.label: place for place in places}
        self._at = at
        self._where = where

    def _several(self) -> NoReturn:
        names = list(self._by_label)
        raise ValueError(
            f"{self._where}: found {len(names)} shards ({', '.join(names[:4])}"
            f"{', ...' if len(names) > 4 else ''}), expected one (choose one: inspect(location).shards[{names[0]!r}])"
        )

    @property
    def _place(self) -> Place:  # type: ignore[override]
        self._several()

    @property
    def _view(self) -> View:  # type: ignore[override]
        self._several()

    @property
    def position(self) -> Any:
        """The position in its source that `run` has committed in all shards of a topology; None without a run. Raises
        as `InspectedState.position`.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count())
        >>> rows = [{"user": "ann", "ts": 0, "offset": 17}, {"user": "bob", "ts": 500, "offset": 18}]
        >>> results = list(counts.run(rows, "state", shards=2, position="offset"))
        >>> hs.inspect("state").position
        18
        """
        return position_of([state._view for state in self.shards.values()])

    def follow(self, operator: str | None = None) -> Followed:
        """Return a view of all shards of an operator (None: the only one) that stays at the newest version that all of
        them have committed; see `Followed`. Raises ValueError for an unknown operator, or if it must be named, and for
        a plain topology, whose shards have versions of their own.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> query = minutes.aggregate(n=hs.Count()).apply(events, "minutes", location=location, shards=2)
        >>> writer = query.writeStream.format("noop").option("checkpointLocation", location)
        >>> writer.trigger(availableNow=True).start().awaitTermination()
        >>> hs.inspect(location).follow("minutes").version
        1
        """
        places = list(self._by_label.values())
        if all(label.isdecimal() for label in self._by_label):  # elsewhere operator/shard
            raise ValueError(
                f"{self._where}: follow: found {len(places)} shards of a plain topology, whose versions are their own, "
                "expected one state (follow each of them: inspect(location).shards['0'].follow())"
            )
        return follow(places, operator)

    @property
    def shards(self) -> Mapping[str, InspectedState]:
        """The shards by `operator/shard`, those of a plain topology by their number; each is opened when it is asked
        for.
        """
        return StatesByLabel(self._by_label, self._at)

    def __repr__(self) -> str:
        return f"<InspectedShards {', '.join(self._by_label)}>"

    def _repr_html_(self) -> str:
        rows = [
            {"shard": label, "version": state.version, "stores": ", ".join(state)}
            for label, state in self.shards.items()
        ]
        return table(rows, ("shard", "version", "stores"))


class StatesByLabel(Mapping[str, InspectedState]):
    """The shards of a location by their labels."""

    def __init__(self, places: dict[str, Place], at: str | None) -> None:
        self._places = places
        self._at = at

    def __getitem__(self, label: str) -> InspectedState:
        place = self._places[label]
        return InspectedState(place, choose(place, self._at))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def inspect(location: str | os.PathLike[str], at: int | str | None = None) -> InspectedState:
    """Look into a state directory, checkpoint file, segment or shard, or into all shards of a Spark checkpoint
    location, or into those of a plain topology; also by URL or `hybridstore.Bucket`: only the needed parts are read.

    Needs neither the lock nor the job's code and changes nothing. `at` is a version or an ISO time. Raises
    FileNotFoundError, ForeignFileError, RestoreError. O(blocks + tail) per state.
    """
    places = shard_places(location)
    text = None if at is None else str(at)
    if len(places) == 1:
        return InspectedState(places[0], choose(places[0], text))
    return InspectedShards(places, text, os.fspath(location))
