"""Run state: the progress of a run and the results of its last commits, which `run` commits with every shard beside the
windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from operator import sub
from typing import Any, Final, NamedTuple

from changelog.codec import pack, unpack

from ..collector import collector_held
from ..state.directory import State
from ..state.erasing import Order
from ..state.given_keys import GivenKeys
from .kept_columns import column_to_keep, kept_column
from .plan import END, START
from .results import Late, ResultColumns, ResultTable, shared
from .times import TimeForm, listed

RUN: Final = "run"
RESULTS: Final = "results of the last commits"
# The first piece of a commit's kept results has so many rows; each further one up to so many times as many, about so
# many bytes: as objects, of which one piece is in memory, they take seven times as much.
_FIRST_ROWS: Final = 1024
_GROWTH: Final = 4
_PIECE_BYTES: Final = 1 << 17


class RunState(NamedTuple):
    """The progress of a shard's run.

    commit     the number of its last commit
    position   the position in the source behind that commit; None at first
    since      the newest earlier commit with results; the results of both commits are kept
    delivered  the commit up to which the consumer has certainly taken all results, because it reached the end of the
               source
    flushed    whether the commit was a flush, without rows
    last_row   key and time of the last row, as text; None when unknown. Of a join both are dicts by input
    times      the form of times in results
    """

    commit: int = 0
    position: Any = None
    since: int = 0
    delivered: int = 0
    flushed: bool = False
    last_row: Any = None
    times: TimeForm = "ms"

    @classmethod
    def of(cls, store: State) -> RunState:
        """Return the state of a shard's run."""
        return cls(**store.settings.get(RUN, {}))

    def set_in(self, store: State) -> None:
        """Set this in the version in progress."""
        store.set(RUN, self._asdict())


def kept_commits(store: State) -> list[int]:
    """Return the numbers of the commits whose results a shard keeps, in order. O(pieces)."""
    return sorted({commit for commit, _ in store.key_value(RESULTS)})


def kept(store: State, commit: int) -> Iterator[ResultTable]:
    """Iterate over the pieces of the results of a shard's commit, one of the last. O(results)."""
    return (_decoded(value) for _, value in store.key_value(RESULTS).scan(prefix=(commit,)))


def _decoded(value: bytes) -> ResultTable:
    names, times, columns, *late = unpack(value)
    if times is not None:
        start, end = names.index(START), names.index(END)
        ends = list(shared(accumulate(columns[end])))
        columns = columns.copy()
        columns[start], columns[end] = list(shared(map(sub, ends, columns[start]))), ends
    elif names is not None:
        columns = list(map(kept_column, columns))
    return ResultTable(names, times, columns, Late(*late[0]) if late else None)


class Keeping:
    """Keeps the results of the commit in progress with the state of a shard, piece by piece, so that only one piece at
    a time is objects. `table` makes a table of what `take` takes.

    Results of commits before `since`, which the consumer has taken, are dropped.
    """

    def __init__(
        self, store: State, commit: int, since: int, table: Callable[[ResultColumns], ResultTable] | None = None
    ) -> None:
        self._results = store.key_value(RESULTS)
        for key in [key for key, _ in self._results.scan(key_to=(since,))]:
            self._results.delete(key)
        self._commit = commit
        self._table = table
        self.rows = _FIRST_ROWS
        """So many results are the next piece."""
        self.pieces = self.size = 0
        """How many pieces are kept, and how many results are in them, late rows included."""

    def take(self, piece: ResultColumns) -> None:
        """Keep a piece of the results. O(results)."""
        assert self._table is not None
        self._put(self._table(piece))

    def keep(self, table: ResultTable) -> None:
        """Keep results, in as many pieces as they need. O(results)."""
        start = 0
        while start < table.results:
            end = start + self.rows
            self._put(table.between(start, end))
            start = end
        if table and not table.results:
            self._put(table)  # only late rows

    def _put(self, piece: ResultTable) -> None:
        packed = _encoded(piece)
        self._results.put((self._commit, self.pieces), packed)
        self.pieces += 1
        self.size += piece.size
        self.rows = max(1, min(_GROWTH * self.rows, piece.results * _PIECE_BYTES // len(packed)))


def _encoded(table: ResultTable) -> bytes:
    """Return a piece of results as it is kept: packed, since the store may keep it long, and as objects it takes seven
    times as much. Ends of windows are kept as differences, and starts as lengths: small numbers. O(results).
    """
    names, times, columns, late = table
    with collector_held():
        if names is not None and times is not None:
            start, end = names.index(START), names.index(END)
            starts, ends = columns[start], columns[end]
            columns = columns.copy()
            if hasattr(starts, "dtype") and hasattr(ends, "dtype"):
                columns[start] = (ends - starts).tolist()
                columns[end] = [*ends[:1].tolist(), *(ends[1:] - ends[:-1]).tolist()]
            else:
                starts, ends = listed(starts), listed(ends)
                columns[start] = list(shared(map(sub, ends, starts)))
                columns[end] = [*ends[:1], *map(sub, islice(ends, 1, None), ends)]
            columns = list(map(listed, columns))
        elif names is not None:
            columns = list(map(column_to_keep, columns))
        return pack([names, times, columns, *([list(late)] if late is not None and late.rows else [])])


def leave_out(state: State, take: Callable[[Any], bool], program: dict[str, Any] | None) -> None:
    """Write what a run has kept for its consumer without the rows whose key `take` says, and forget its last row. Rows
    that do not say their key are left out, too. O(results).
    """
    if RUN not in state.settings:
        return
    RunState.of(state)._replace(last_row=None).set_in(state)
    if RESULTS not in state.stores:
        return
    names = list((program or {}).get("key") or ())
    results = state.key_value(RESULTS)
    for key, value in list(results.all()):
        table = _decoded(value)
        late = table.late
        if late is not None:
            stay = [at for at, key in enumerate(late.keys) if not take(key)]
            late = late._replace(keys=[late.keys[at] for at in stay], rows=[late.rows[at] for at in stay])
        columns: list[Any]
        if table.names is None:  # rows of custom logic: those that have the key in any column, or do not say their key
            columns = [
                row
                for row in table.columns
                if names and set(names) <= set(row) and not any(map(take, _values(row, names)))
            ]
        elif names and set(names) <= set(table.names):
            parts = [table.columns[table.names.index(name)] for name in names]
            stay = [at for at, key in enumerate(zip(*parts, strict=True)) if not take(tuple(key))]
            columns = [[column[at] for at in stay] for column in table.columns]
        else:  # rows that do not say of which key they are
            columns = [[] for _ in table.columns]
        table = table._replace(columns=columns, late=late)
        if table:
            results.put(key, _encoded(table))
        else:
            results.delete(key)


def _values(row: dict[str, Any], names: list[str]) -> Iterator[Any]:
    yield tuple(row[name] for name in names)
    yield from row.values()


def leave_out_ordered(state: State, others: Iterable[State]) -> bool:
    """Where the commit in progress orders an erase: leave the keys out of what the run keeps, too, and order that the
    files of the `others`, whose last rows may name the keys, are written anew. Returns whether it does: an order that
    waits is there already. O(results).
    """
    orders = state.erase_orders
    wanted = [Order(RESULTS, order.key, values=True) for order in orders if order.store != RESULTS]
    if orders:
        leave_out(state, GivenKeys(order.key for order in orders).take, state.settings.get("topology"))
    new = _not_in(orders, wanted)
    if new:
        state.order_erase(new, keys=0)
        for other in others:
            missing = _not_in(other.erase_orders, new)
            if missing:
                other.order_erase(missing, keys=len(missing))
    return bool(new)


def _not_in(orders: Iterable[Order], wanted: Iterable[Order]) -> list[Order]:
    """Return the wanted orders that are not among others, each once. Equal keys of other types are others."""
    known = {pack(list(order)) for order in orders}
    missing = {pack(list(order)): order for order in wanted}
    return [order for text, order in missing.items() if text not in known]
