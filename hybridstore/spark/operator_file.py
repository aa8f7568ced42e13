"""Operator file: what the first batch fixed for ever: number of shards, key, program, and the query it belongs to.

    <checkpoint>/hybridstore/<operator>/operator.json

It is written by whichever task of the first batch comes first, by link, so that all others find it; and compared at every start.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from changelog.errors import ForeignFileError, UnsupportedVersionError
from changelog.files import REAL_FILES
from recovery.errors import CheckpointMismatchError
from recovery.layout import SPARK_FOLDER
from recovery.line import EMPTY

from ..shard_head import HEAD_NAME, Head, Since, encode_head, new_epoch
from .errors import SparkSetupError
from .shard_id import StateStoreId

OPERATOR_FILE: Final = "operator.json"
MOVED: Final = "placement-moved"
FORMAT_VERSION: Final = 1


def operator_folder(checkpoint: Path, operator: str) -> Path:
    """Return the folder of an operator's state."""
    return checkpoint / SPARK_FOLDER / operator


def read_operator(checkpoint: Path, operator: str) -> dict[str, Any] | None:
    """Read the operator file; None where there is none. Raises ForeignFileError or UnsupportedVersionError."""
    path = operator_folder(checkpoint, operator) / OPERATOR_FILE
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ForeignFileError(f"{path}: cannot be read: {error}") from error
    if fields.get("format", 0) > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{path}: format {fields['format']}, this release reads {FORMAT_VERSION} (upgrade hybridstore)"
        )
    return fields


def _difference(found: Any, asked: Any, where: str) -> str | None:
    if isinstance(found, dict) and isinstance(asked, dict):
        for name in sorted(found.keys() | asked.keys()):
            text = _difference(found.get(name), asked.get(name), f"{where}.{name}" if where else name)
            if text is not None:
                return text
        return None
    return None if found == asked else f"{where}: the state has {found!r}, asked for {asked!r}"


def check_operator(path: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raise CheckpointMismatchError naming the first thing in which the program asked for differs from the state."""
    if found.get("query_id") and asked.get("query_id") and found["query_id"] != asked["query_id"]:
        raise CheckpointMismatchError(
            f"{path}: the state belongs to query {found['query_id']}, this is query {asked['query_id']} "
            "(the checkpoint's metadata was removed or replaced; use a new checkpoint location)"
        )
    for name in ("shards", "key", "time", "program"):
        text = _difference(found.get(name), asked.get(name), name)
        if text is not None:
            raise CheckpointMismatchError(
                f"{path}: {text} (ask for what the state has, or begin in a new checkpoint location)"
            )


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back, so that what is asked for compares with what was stored."""
    return json.loads(json.dumps(value, default=repr, sort_keys=True))


def _publish_first(path: Path, data: bytes) -> None:
    """Publish a file unless another task has: whoever comes first counts."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    file = REAL_FILES.create(temporary)
    try:
        file.write(data)
        file.sync()
    finally:
        file.close()
    with suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()
    REAL_FILES.sync_directory(path.parent)


def settle_operator(checkpoint: Path, operator: str, asked: dict[str, Any], batch: int) -> dict[str, Any]:
    """Write the operator file in the first batch, compare with it afterwards, and return it.

    Raises CheckpointMismatchError, or SparkSetupError when a later batch finds none: its state is gone, or never was.
    """
    folder = operator_folder(checkpoint, operator)
    found = read_operator(checkpoint, operator)
    if found is None:
        if batch > 0:
            raise SparkSetupError(
                f"{folder}: batch {batch} finds no {OPERATOR_FILE}: the state was removed, or the operator was added to a query that has run before "
                "(begin in a new checkpoint location)"
            )
        # Every shard has a head from the beginning: one without it has lost it.
        for shard in range(asked["shards"]):
            own = StateStoreId(str(checkpoint), operator, shard, query_id=asked.get("query_id", ""))
            own.directory.mkdir(parents=True, exist_ok=True)
            born = Head(own.store_id, EMPTY, None, 0, new_epoch(), Since(), {})
            _publish_first(own.directory / HEAD_NAME, encode_head(born))
        text = json.dumps({"format": FORMAT_VERSION, **asked}, indent=1, sort_keys=True) + "\n"
        _publish_first(folder / OPERATOR_FILE, text.encode())
        REAL_FILES.sync_directory(folder.parent)
        found = read_operator(checkpoint, operator)
        assert found is not None
    check_operator(folder / OPERATOR_FILE, found, asked)
    return found


def note_moved(checkpoint: Path, operator: str) -> None:
    """Remember that tasks of this operator do not run under their shard's number (a union, a coalesce)."""
    (operator_folder(checkpoint, operator) / MOVED).touch()


def has_moved(checkpoint: Path, operator: str) -> bool:
    """True when tasks were seen to run under other numbers than their shard's."""
    return (operator_folder(checkpoint, operator) / MOVED).exists()
