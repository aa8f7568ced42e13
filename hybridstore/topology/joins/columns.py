"""Columns: the columns of a join's results: those of both inputs, or the ones that `select` chooses."""

from __future__ import annotations

from collections.abc import Sequence

from .spec import LEFT, RESULT_TIME, RIGHT, Join


def all_names(join: Join, known: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Return all columns that a result can have, as (side, name): key, left, right and the time of the result."""
    names = [(LEFT, name) for name in join.left_side.key]
    for side in (LEFT,) if join.one_sided else (LEFT, RIGHT):
        names += [(side, join.inputs[side].timestamp), *((side, name) for name in known[side])]
    return [*names, (LEFT, RESULT_TIME)]


def chosen_columns(join: Join, names: Sequence[tuple[int, str]]) -> tuple[list[int] | None, list[str]]:
    """Return the places in `names` of the columns of results (None: all), and the names of the columns.

    Raises ValueError for a column of `select` that no row has, and for a name that two columns have.
    """
    if join.select is not None:
        places = []
        for _, side, column in join.select:
            source = join.inputs[side]
            place = names.index((LEFT, join.left_side.key[source.key.index(column)])) if column in source.key else None
            if place is None and (side, column) in names:
                place = names.index((side, column))
            if place is None:
                expected = ", ".join(name for at, name in names if at == side)
                raise ValueError(f"join: select: {source.name}.{column}: found no such column, expected {expected}")
            places.append(place)
        return places, [name for name, _, _ in join.select]
    width = len(join.left_side.key)
    result = [
        name if place < width or name == RESULT_TIME else join.prefixes[side] + name
        for place, (side, name) in enumerate(names)
    ]
    for name in result:
        if result.count(name) > 1:
            raise ValueError(named_twice(join, name))
    return None, result


def named_twice(join: Join, name: str) -> str:
    """Return the message for a name that two columns have."""
    first, second = (source.name for source in join.inputs)
    return (
        f"join: column {name!r}: found in both {first!r} and {second!r}, expected different names (say "
        f'prefixes={{"{second}": "{second}_"}}, or choose columns by select=)'
    )
