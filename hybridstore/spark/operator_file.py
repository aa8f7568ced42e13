"""Operator file: what the first batch fixed for ever: number of shards, key, program, and the query it belongs to.

    <location>/hybridstore/<operator>/operator/<n>.json

A chain of descriptions, each created once and never changed; the newest counts. The first is created by whichever task
of the first batch comes first, so that all others find it, and is compared with at every start.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from changelog.errors import ForeignFileError, UnsupportedVersionError
from changelog.storage import Storage
from recovery.errors import CheckpointMismatchError
from recovery.layout import MOVED, OPERATOR, operator_name, parse_operator_name

from .errors import SparkSetupError
from .location import Location, locate

FORMAT_VERSION: Final = 2


def operator_storage(location: str | Path | Location, operator: str) -> Storage:
    """Return where an operator's objects are. Raises SparkSetupError for a location that cannot be one."""
    return (location if isinstance(location, Location) else locate(location)).operator(operator)


def newest_operator(storage: Storage) -> int:
    """Return the number of the newest description of an operator, 0 where there is none. O(descriptions)."""
    numbers = [number for name in storage.list(f"{OPERATOR}/") if (number := parse_operator_name(name)) is not None]
    return max(numbers, default=0)


def read_operator(storage: Storage) -> dict[str, Any] | None:
    """Read the newest description of an operator; None where there is none. Raises ForeignFileError or
    UnsupportedVersionError.
    """
    number = newest_operator(storage)
    if not number:
        return None
    where = f"{storage.url}/{operator_name(number)}"
    try:
        fields: dict[str, Any] = json.loads(storage.get(operator_name(number)))
    except ValueError as error:
        raise ForeignFileError(f"{where}: cannot be read: {error}") from error
    if fields.get("format", 0) > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{where}: format {fields['format']}, this release reads {FORMAT_VERSION} (upgrade hybridstore)"
        )
    return fields


def _difference(known: Any, asked: Any, where: str) -> str | None:
    if isinstance(known, dict) and isinstance(asked, dict):
        for name in sorted(known.keys() | asked.keys()):
            text = _difference(known.get(name), asked.get(name), f"{where}.{name}" if where else name)
            if text is not None:
                return text
        return None
    return None if known == asked else f"{where}: the state has {known!r}, asked for {asked!r}"


def check_operator(where: str, known: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raise CheckpointMismatchError naming the first thing in which the program asked for differs from the state."""
    if known.get("query_id") and asked.get("query_id") and known["query_id"] != asked["query_id"]:
        raise CheckpointMismatchError(
            f"{where}: the state belongs to query {known['query_id']}, this is query {asked['query_id']} "
            "(the checkpoint's metadata was removed or replaced; use a new checkpoint location)"
        )
    for name in ("shards", "key", "time", "program"):
        text = _difference(known.get(name), asked.get(name), name)
        if text is not None:
            raise CheckpointMismatchError(
                f"{where}: {text} (ask for what the state has, or begin in a new checkpoint location)"
            )


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back, so that what is asked for compares with what was stored."""
    return json.loads(json.dumps(value, default=repr, sort_keys=True))


def settle_operator(storage: Storage, asked: dict[str, Any], batch: int) -> dict[str, Any]:
    """Write the description of an operator in the first batch, compare with it afterwards, and return it.

    Raises CheckpointMismatchError, or SparkSetupError when a later batch finds none: its state is gone, or never was.
    """
    known = read_operator(storage)
    if known is None:
        if batch > 0:
            raise SparkSetupError(
                f"{storage.url}: batch {batch} finds no {operator_name(1)}: the state was removed, or the operator "
                "was added to a query that has run before (begin in a new checkpoint location)"
            )
        text = json.dumps({"format": FORMAT_VERSION, **asked}, indent=1, sort_keys=True) + "\n"
        storage.create(operator_name(1), text.encode())
        known = read_operator(storage)
        assert known is not None
    check_operator(f"{storage.url}/{OPERATOR}", known, asked)
    return known


def note_moved(storage: Storage) -> None:
    """Remember that tasks of this operator do not run under their shard's number (a union, a coalesce)."""
    storage.create(MOVED, b"")


def has_moved(storage: Storage) -> bool:
    """True when tasks were seen to run under other numbers than their shard's."""
    try:
        storage.size(MOVED)
    except FileNotFoundError:
        return False
    return True
