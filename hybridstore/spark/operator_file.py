"""Operator file: the description of an operator: number of shards, key, program, and its query.

    <location>/hybridstore/<operator>/operator/<n>.json

A chain of descriptions, each created once and never changed. Each description names its first version (`from`) and the
differences from the description before (`changes`). The first description is created by the first task of the first
batch, a later one by the first batch of another program; every start is compared with the description in force.

The surprise: the newest description need not be the one in force. A query that is turned back to a batch before a
change continues from a version that an earlier program wrote.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from changelog.storage import Storage, exists
from recovery.layout import MOVED, list_operators, operator_name

from ..state.changes import Difference, judge, refused
from ..state.generations import OPERATOR_FORMAT, read_description
from .contract import Program
from .errors import SparkSetupError
from .location import Location, locate

# The field of a description whose batch 0 is not a query's: what makes it, in words.
FIRST_BATCH: Final = "first_batch"
# Spark's types of whole numbers; each holds all values of those before it.
_WIDTHS: Final = ("tinyint", "smallint", "int", "bigint")


def operator_storage(location: str | Path | Location, operator: str) -> Storage:
    """Return the storage of an operator's objects. Raises SparkSetupError for a wrong location."""
    return (location if isinstance(location, Location) else locate(location)).operator(operator)


def read_chain(storage: Storage) -> list[dict[str, Any]]:
    """Return the descriptions of an operator, the oldest first; [] if none exists. One list, and a get each.

    Raises ForeignFileError or UnsupportedVersionError.
    """
    return [_read(storage, number) for number in list_operators(storage)]


def read_operator(storage: Storage) -> dict[str, Any] | None:
    """Read the newest description of an operator; None if none exists. Raises as `read_chain`."""
    numbers = list_operators(storage)
    return _read(storage, numbers[-1]) if numbers else None


def _read(storage: Storage, number: int) -> dict[str, Any]:
    rest = {"number": number, "from": 1, "generation": 0, "changes": [], "consents": []}
    return read_description(storage, operator_name(number), OPERATOR_FORMAT, lambda fields: {**rest, **fields})


def in_force(chain: Sequence[dict[str, Any]], version: int) -> dict[str, Any]:
    """Return the description under which a version was written: the newest one whose first version is at or below it.

    `chain` is not empty; for version 0, which is empty, the result is that of version 1. O(descriptions).
    """
    return next((entry for entry in reversed(chain) if entry["from"] <= max(1, version)), chain[0])


def append_operator(
    storage: Storage,
    chain: Sequence[dict[str, Any]],
    version: int,
    fields: dict[str, Any],
    changes: Sequence[Difference],
) -> bool:
    """Create the next description of an operator, which holds from `version` on; False if another task created one
    first.

    `fields` is the whole description, not only the differences. One create, and one more for each name taken by a
    writer that died half-way (on a file system without links; such a name stays taken, without an object).
    """
    generation = fields.get("generation", chain[-1]["generation"] if chain else 0)
    entry = {
        **fields,
        "generation": generation,
        "format": OPERATOR_FORMAT,
        "from": version,
        "changes": [change.what for change in changes],
        "consents": [change.consent for change in changes if change.consent],
    }
    number = chain[-1]["number"] + 1 if chain else 1
    while True:
        text = json.dumps({**entry, "number": number}, indent=1, sort_keys=True) + "\n"
        if storage.create(operator_name(number), text.encode()):
            return True
        if exists(storage, operator_name(number)):
            return False
        number += 1


def operator_changes(
    known: dict[str, Any], asked: dict[str, Any], program: Program | None = None, allow: Collection[str] = ()
) -> list[Difference]:
    """Return the differences of an operator from its description.

    `program` judges its own differences (`Program.changes`); without a program any difference is refused.
    O(description).
    """
    if known.get("query_id") and asked.get("query_id") and known["query_id"] != asked["query_id"]:
        text = f"the state belongs to query {known['query_id']}, this is query {asked['query_id']}"
        return [
            Difference(
                text, "refused", "the checkpoint's metadata was removed or replaced; use a new checkpoint location"
            )
        ]
    changes: list[Difference] = []
    if known.get("shards") != asked.get("shards"):
        rescale = (
            f"ask for {known.get('shards')}, or stop the query and run: hybridstore rescale LOCATION "
            f"{asked.get('name') or known.get('name') or 'OPERATOR'} --shards {asked.get('shards')}"
        )
        changes.append(refused("shards", known.get("shards"), asked.get("shards"), rescale))
    if known.get("time") != asked.get("time"):
        changes.append(refused("time", known.get("time"), asked.get("time")))
    if known.get("program") == asked.get("program"):
        changes += _key_changes(known.get("key"), asked.get("key"), names=True)
        return changes
    judged = None if program is None else program.changes(known.get("program") or {}, allow)
    if judged is None:
        changes += _key_changes(known.get("key"), asked.get("key"), names=True)
        changes += _differences(known.get("program"), asked.get("program"), "program")
    else:
        # The names of the key are part of the program's own description.
        changes += _key_changes(known.get("key"), asked.get("key"), names=False)
        changes += judged
    return changes


def _key_changes(known: Any, asked: Any, *, names: bool) -> list[Difference]:
    if known == asked:
        return []
    if not isinstance(known, list) or not isinstance(asked, list) or len(known) != len(asked):
        return [refused("key", known, asked)]
    changes: list[Difference] = []
    for (name, kind), (other, wanted) in zip(known, asked, strict=True):
        if names and name != other:
            return [refused("key", known, asked)]
        if kind == wanted:
            continue
        if kind not in _WIDTHS or wanted not in _WIDTHS or _WIDTHS.index(kind) > _WIDTHS.index(wanted):
            return [refused("key", known, asked)]
        note = "a whole number is the same key whatever its width"
        changes.append(Difference(f"key {other}: {kind} in the state, {wanted} in the program", "taken", note))
    return changes


def _differences(known: Any, asked: Any, where: str) -> list[Difference]:
    if isinstance(known, dict) and isinstance(asked, dict):
        names = sorted(known.keys() | asked.keys())
        return [each for name in names for each in _differences(known.get(name), asked.get(name), f"{where}.{name}")]
    return [] if known == asked else [refused(where, known, asked)]


def plain(value: Any) -> Any:
    """Return a value as JSON returns it, so that it can be compared with the stored value."""
    return json.loads(json.dumps(value, default=repr, sort_keys=True))


def check_operator(
    storage: Storage, asked: dict[str, Any], batch: int, program: Program | None = None, allow: Collection[str] = ()
) -> list[Difference]:
    """Return the changes if a query continues with `batch` and this operator; [] without changes, and without a
    description. Nothing is written.

    Raises ProgramMismatchError for a change that may not be.
    """
    chain = read_chain(storage)
    if not chain:
        return []
    known = _standing(chain, asked, batch) or in_force(chain, batch)
    changes = operator_changes(known, asked, program, allow)
    judge(f"{storage.url}/{operator_name(known['number'])}", changes, allow, _consents(chain))
    return changes


def _consents(chain: Sequence[dict[str, Any]]) -> list[str]:
    """Return the words of consent of all changes so far, because a shard without rows may need older ones, too."""
    return [word for entry in chain for word in entry["consents"]]


def _standing(chain: Sequence[dict[str, Any]], asked: dict[str, Any], batch: int) -> dict[str, Any] | None:
    """Return the newest description if it equals the fields and holds after `batch`."""
    newest = chain[-1]
    return newest if newest["from"] <= batch + 1 and not operator_changes(newest, asked) else None


def agree_on_description(
    storage: Storage, asked: dict[str, Any], batch: int, program: Program | None = None, allow: Collection[str] = ()
) -> dict[str, Any]:
    """Write the description of an operator in the first batch of a query or of another program, else compare with the
    one in force, and return the description of the version that `batch` writes.

    Raises ProgramMismatchError for a change that may not be, or SparkSetupError when a later batch finds no
    description: its state is gone, or never was.
    """
    chain = read_chain(storage)
    if not chain:
        if batch > 0:
            raise SparkSetupError(
                f"{storage.url}: batch {batch} finds no {operator_name(1)}: the state was removed, or the operator "
                "was added to a query that has run before (begin in a new checkpoint location)"
            )
        append_operator(storage, [], 1, asked, [])
        chain = read_chain(storage)
    if batch == 0 and FIRST_BATCH in chain[0] and FIRST_BATCH not in asked:
        raise SparkSetupError(
            f"{storage.url}: found the beginning of {chain[0][FIRST_BATCH]} that did not end, expected a whole state "
            "or none (run it again, and start the query then; or begin in a new checkpoint location)"
        )
    while True:
        standing = _standing(chain, asked, batch)
        if standing is not None:
            return standing
        known = in_force(chain, batch)
        changes = operator_changes(known, asked, program, allow)
        judge(f"{storage.url}/{operator_name(known['number'])}", changes, allow, _consents(chain))
        # A query that was turned back to before the newest description: the description in force holds from here on,
        # too.
        append_operator(storage, chain, batch + 1, {**asked, "generation": known["generation"]}, changes)
        chain = read_chain(storage)


def note_moved(storage: Storage) -> None:
    """Note that tasks of this operator do not run under their shard's number (a union, a coalesce)."""
    storage.create(MOVED, b"")


def has_moved(storage: Storage) -> bool:
    """True when a task has run under another number than its shard's."""
    return exists(storage, MOVED)
