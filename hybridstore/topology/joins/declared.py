"""Declared joins: the arguments of `Topology.join`, checked at once, and the table side of a join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...clock import Duration, duration_ms
from ..plan import Custom, Plan
from .columns import all_names, chosen_columns
from .spec import HOWS, LEFT, RESULT_TIME, RIGHT, How, Input, Join
from .stores import declared_stores, unused

Within = Duration | tuple[Duration, Duration]
_OF_TABLES: Final = ("inner", "left")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that streams are joined with: of each key the newest row counts. Made by `hybridstore.table`.

    >>> print(hs.table(name="users", key="user", timestamp="since"))
    table       users; key user; time since; newest rows
    """

    source: Input

    def __str__(self) -> str:
        source = self.source
        history = "newest rows" if source.history_ms is None else f"versions of {source.history_ms} ms"
        return f"table       {source.name}; key {', '.join(source.key)}; time {source.timestamp}; {history}"


def names_of(argument: str, names: object) -> tuple[str, ...]:
    """Return the names of columns, given as one name or several. Raises TypeError or ValueError."""
    if isinstance(names, str):
        names = (names,)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}: found {names!r}, expected the name of a column, or a list of names")
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(
            f"{argument}: found {', '.join(map(repr, names))}, expected different names that are not empty"
        )
    return tuple(names)


def input_name(argument: str, name: object) -> str:
    """Return the name of an input. Raises TypeError or ValueError."""
    if type(name) is not str:
        raise TypeError(f"{argument}: name: found {type(name).__name__}, expected text")
    if not name or name.endswith((" versions", " without key")):
        raise ValueError(f"{argument}: name: found {name!r}, expected text that is not empty and no store's name")
    return name


def table(
    *,
    name: str,
    key: str | Sequence[str],
    timestamp: str,
    history: Duration | None = None,
    delete: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Declare a table for `Topology.join`: rows that arrive later replace the row of their key.

    name       the name of the input: of its rows in `run` and `apply`, and of its store
    key        the column, or columns, whose values name a row
    timestamp  the column with the time from which a row is valid
    history    how long the versions of a row can be read (`as_of=True`), counted from the newest time of the table;
               None: only the newest row of each key is kept
    delete     a column: a row in which it is true deletes its key
    columns    the columns that are kept besides key and timestamp; None: all columns of the rows. A left join needs
               them where rows are dicts, because a stream's row without a partner has None in them

    Raises TypeError or ValueError for a wrong argument.

    >>> prices = hs.table(name="prices", key="item", timestamp="valid_from", history="1 day")
    >>> print(prices)
    table       prices; key item; time valid_from; versions of 86400000 ms
    """
    keys = names_of("table: key", key)
    if not keys:
        raise ValueError("table: key: found no column, expected at least one")
    (time,) = names_of("table: timestamp", timestamp)
    kept = None if columns is None else names_of("table: columns", columns)
    history_ms = None if history is None else duration_ms(history, "table: history", zero=True)
    if delete is not None:
        names_of("table: delete", delete)
    return Table(Input(input_name("table", name), keys, time, (), kept, True, history_ms, delete))


def joined(
    stream: Plan,
    other: Plan | Table,
    *,
    within: Within | None,
    how: How,
    grace: Duration | None,
    as_of: bool,
    broadcast: bool,
    on: str | None,
    select: Mapping[str, str] | None,
    prefixes: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the fields of the plan of a join; see `Topology.join`. Raises TypeError or ValueError."""
    sources = _stream("join", stream), other.source if isinstance(other, Table) else _stream("join: right", other)
    if sources[LEFT].name == sources[RIGHT].name:
        raise ValueError(f"join: found {sources[LEFT].name!r} as the name of both inputs, expected different names")
    if how not in HOWS:
        raise ValueError(f"join: how: found {how!r}, expected {', '.join(map(repr, HOWS))}")
    if not broadcast and len(sources[LEFT].key) != len(sources[RIGHT].key):
        raise ValueError(
            f"join: key: found {len(sources[LEFT].key)} columns of {sources[LEFT].name!r} and "
            f"{len(sources[RIGHT].key)} of {sources[RIGHT].name!r}, expected as many"
        )
    grace_ms = None if grace is None else duration_ms(grace, "join: grace", zero=True)
    before_ms = after_ms = None
    if sources[RIGHT].table:
        _check_table(sources[RIGHT], within, how, grace_ms, as_of, broadcast, on)
    else:
        before_ms, after_ms = _within(within)
        if as_of or broadcast or on is not None:
            raise ValueError("join: found as_of, broadcast or on= with a stream, expected them with a table")
        grace_ms = grace_ms or 0
    if broadcast and on is None:
        on = stream.key[0] if len(stream.key) == 1 else None
    if broadcast and (on is None or len(sources[RIGHT].key) != 1):
        raise ValueError("join: on: found a broadcast table with a key of several columns, expected one column and on=")
    join = Join(
        *sources,
        how=how,
        before_ms=before_ms,
        after_ms=after_ms,
        grace_ms=grace_ms,
        as_of=as_of,
        on=on,
        select=None if select is None else _selected(sources, select, how),
        prefixes=_prefixes(sources, prefixes),
    )
    if join.select is not None:
        join = _narrowed(join)
    _check_columns(join)
    return {
        "key": stream.key,
        "timestamp": stream.timestamp,
        "null_keys": stream.null_keys,
        "custom": Custom(unused, None, declared_stores(join)),
        "joined": join,
    }


def _stream(argument: str, plan: Any) -> Input:
    if not isinstance(plan, Plan):
        raise TypeError(f"{argument}: found {type(plan).__name__}, expected hs.stream(...) or hs.table(...)")
    if plan.windows is not None or plan.custom is not None:
        raise ValueError(
            f"{argument}: found after windowed_by, process or join, expected a stream with map and filter alone (give "
            "the results of one topology to another)"
        )
    if plan.name is None:
        raise ValueError(f'{argument}: found a stream without a name, expected one: hs.stream(name="orders", ...)')
    return Input(plan.name, plan.key, plan.timestamp, plan.steps, plan.kept)


def _within(within: Within | None) -> tuple[int, int]:
    if within is None:
        raise ValueError('join: within: found None, expected how far apart the times may be, such as ("0 s", "1 hour")')
    before, after = within if isinstance(within, tuple) and len(within) == 2 else (within, within)
    return (
        duration_ms(before, "join: within: before", zero=True),
        duration_ms(after, "join: within: after", zero=True),
    )


def _check_table(
    source: Input, within: Within | None, how: str, grace_ms: int | None, as_of: bool, broadcast: bool, on: str | None
) -> None:
    if within is not None:
        raise ValueError("join: within: found with a table, expected with a stream only (a table joins by as_of=True)")
    if how not in _OF_TABLES:
        raise ValueError(f'join: how: found {how!r} with a table, expected "inner" or "left"')
    if as_of and source.history_ms is None:
        raise ValueError(
            f"join: as_of: found a table without history, expected hs.table(name={source.name!r}, history=)"
        )
    if grace_ms is not None and not as_of:
        raise ValueError("join: grace: found with the newest row of a table, expected with as_of=True or two streams")
    if grace_ms is not None and source.history_ms is not None and grace_ms > source.history_ms:
        raise ValueError(
            f"join: grace: found {grace_ms} ms, expected at most the history of the table, {source.history_ms} ms"
        )
    if as_of if broadcast else on is not None:
        raise ValueError(
            "join: found as_of with broadcast, or on= without it, expected broadcast=True, on= or as_of=True"
        )


def _selected(sources: tuple[Input, Input], select: Mapping[str, str], how: str) -> tuple[tuple[str, int, str], ...]:
    """Return the columns of results as (name, side, column)."""
    names = {source.name: side for side, source in enumerate(sources)}
    chosen: list[tuple[str, int, str]] = []
    for name, column in select.items():
        if column == RESULT_TIME:
            chosen.append((name, LEFT, RESULT_TIME))
            continue
        source, dot, part = str(column).partition(".")
        side = names.get(source)
        if side is None or not dot or not part:
            raise ValueError(
                f'join: select: {name}: found {column!r}, expected "{sources[0].name}.COLUMN", '
                f'"{sources[1].name}.COLUMN" or "{RESULT_TIME}"'
            )
        if side == RIGHT and how in ("semi", "anti"):
            raise ValueError(f"join: select: {name}: found a column of {source!r}, but {how!r} gives left rows only")
        chosen.append((name, side, part))
    if not chosen:
        raise ValueError("join: select: found no column, expected at least one")
    return tuple(chosen)


def _narrowed(join: Join) -> Join:
    """Return a join that keeps only the chosen columns of its inputs."""
    assert join.select is not None
    sources = []
    for side, source in enumerate(join.inputs):
        apart = {*source.key, source.timestamp, RESULT_TIME}
        wanted = [column for _, at, column in join.select if at == side and column not in apart]
        if side == LEFT and join.on is not None and join.on not in apart:
            wanted.append(join.on)
        sources.append(replace(source, columns=tuple(dict.fromkeys(wanted))))
    return replace(join, left_side=sources[0], right_side=sources[1])


def _prefixes(sources: tuple[Input, Input], prefixes: Mapping[str, str] | None) -> tuple[str, str]:
    names = [source.name for source in sources]
    for name in prefixes or {}:
        if name not in names:
            raise ValueError(f"join: prefixes: found {name!r}, expected {names[0]!r} or {names[1]!r}")
    first, second = ((prefixes or {}).get(name, "") for name in names)
    return first, second


def _check_columns(join: Join) -> None:
    """Raise ValueError where the columns of a side without a partner are not known, or two columns have one name."""
    for side, source in enumerate(join.inputs):
        if join.kept_whole(1 - side) and source.columns is None:
            raise ValueError(
                f"join: how: found {join.how!r}, but the columns of {source.name!r} are not known, which are None in a "
                f'row without a partner (say columns=["..."] for {source.name!r}, or choose columns by select=)'
            )
    if all(source.columns is not None for source in join.inputs):
        apart = [{*source.key, source.timestamp} for source in join.inputs]
        known = [
            [name for name in source.columns or () if name not in names]
            for source, names in zip(join.inputs, apart, strict=True)
        ]
        chosen_columns(join, all_names(join, known))
