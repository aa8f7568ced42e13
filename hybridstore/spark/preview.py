"""Preview: the program from which a start of an operator would continue, and the stores of its shards. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from ..errors import ForeignFileError
from .location import located
from .operator_file import in_force, read_chain
from .query_log import committed
from .reading import newest_version, open_version, operators, shards


def operator_program(
    location: str | PathLike[str], operator: str | None
) -> tuple[dict[str, Any], Iterator[Mapping[str, Any]]]:
    """Return the description of an operator's program as of the last batch, and the stores of each shard by name.

    Raises ForeignFileError if the operator must be named or does not exist; MissingVersionError without a state.
    O(names below the location), and a restore for each requested shard.
    """
    at = located(location)
    names = operators(at)
    if operator not in names and (operator is not None or len(names) > 1):
        raise ForeignFileError(f"{location}: operator: found {operator!r}, expected one of {', '.join(names)}")
    name = operator or names[0]
    chain = read_chain(at.operator(name))
    program: dict[str, Any] = in_force(chain, committed(at.query()) + 1)["program"]

    def stores() -> Iterator[Mapping[str, Any]]:
        states = shards(at, name)
        version = newest_version(states)
        for state in states:
            yield open_version(state, version).stores

    return program, stores()
