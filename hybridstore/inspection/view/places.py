"""Places: what a path on the command line stands for: one state directory, one shard, a file, or all of a Spark
checkpoint.

    state/                         a state directory
    state/checkpoints/N-H.lmdb     one checkpoint
    state/changelog/N.log          one segment
    <checkpointLocation>/          every operator and shard below hybridstore/
    .../hybridstore/op/            every shard of an operator
    .../hybridstore/op/G/N/        one shard
    state.zip                      what `pack` made of one of these
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from changelog.segment import MAGIC, SUFFIX
from recovery.layout import (
    CHANGELOG,
    CHECKPOINT_SUFFIX,
    CHECKPOINTS,
    LOCK,
    LOG,
    OPERATOR,
    SPARK_FOLDER,
    generation_folder,
    operator_name,
    parse_operator_name,
    parse_shard_folder,
)

from ...errors import ForeignFileError
from ...shards import shard_of

_DEPTH = 4


class Place(NamedTuple):
    """One thing to look into. `label` is `operator/shard` inside a Spark checkpoint and empty elsewhere."""

    path: Path
    form: Literal["directory", "checkpoint", "segment"]
    label: str

    @property
    def operator(self) -> str:
        """The operator's name, or an empty text."""
        return self.label.partition("/")[0]

    @property
    def shard(self) -> int | None:
        """The shard's number, or None outside of Spark."""
        number = self.label.partition("/")[2].partition("/")[0]
        return int(number) if number.isdecimal() and len(number) < 10 else None

    @property
    def operator_path(self) -> Path:
        """The folder of a shard's operator."""
        return self.path.parent.parent

    def holds(self, key: Any) -> bool:
        """False when the key belongs to another shard of the operator, by the hash and the number of shards on
        record.
        """
        if self.shard is None:
            return True
        fields = read_json(operator_file(self.operator_path))
        shards = fields.get("shards") if isinstance(fields, dict) else None
        return type(shards) is not int or shards < 1 or shard_of(key, shards) == self.shard


def is_state(path: Path) -> bool:
    """True when the directory has the form of a state directory or of a shard."""
    return (
        any((path / name).exists() for name in (CHANGELOG, LOG, CHECKPOINTS, LOCK))
        and not (path / SPARK_FOLDER).is_dir()
    )


def _natural(path: Path) -> tuple[int, str]:
    return (int(path.name), "") if path.name.isdecimal() and len(path.name) < 10 else (1 << 32, path.name)


def _below(folder: Path, prefix: str, depth: int) -> list[Place]:
    places: list[Place] = []
    children = [entry for entry in folder.iterdir() if entry.is_dir()]
    if (folder / OPERATOR).is_dir():
        # Of the generations of an operator's shards the one on record counts; an older one stays beside it for a while.
        fields = read_json(operator_file(folder))
        if isinstance(fields, dict):
            counted = generation_folder(fields.get("generation", 0))
            children = [child for child in children if child.name == counted]
    for child in sorted(children, key=_natural):
        if is_state(child):
            places.append(Place(child, "directory", shard_label(child) or f"{prefix}{child.name}"))
        elif depth > 1:
            places += _below(child, f"{prefix}{child.name}/", depth - 1)
    return places


def shard_label(path: Path) -> str:
    """Return `operator/shard` for the folder of a shard, and an empty text for any other. O(1)."""
    parsed = parse_shard_folder(f"{path.parent.name}/{path.name}")
    return "" if parsed is None else f"{path.parent.parent.name}/{parsed[1]}"


def operator_file(operator: Path) -> Path:
    """Return the newest description of an operator, the first where there is none. O(descriptions)."""
    folder = operator / OPERATOR
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    numbers = [number for name in names if (number := parse_operator_name(f"{OPERATOR}/{name}")) is not None]
    return operator / operator_name(max(numbers, default=1))


def resolve(path: Path) -> list[Place]:
    """Return what to look into, in order.

    Raises FileNotFoundError, or ForeignFileError when nothing of ours is there.
    """
    if path.is_file():
        return _file(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory")
    if is_state(path):
        return [Place(path, "directory", shard_label(path.absolute()))]
    spark = path / SPARK_FOLDER
    if spark.is_dir():
        places = _below(spark, "", _DEPTH)
    elif path.name == SPARK_FOLDER or path.parent.name == SPARK_FOLDER:
        places = _below(path, "" if path.name == SPARK_FOLDER else f"{path.name}/", _DEPTH)
    else:
        places = []
    if not places:
        raise ForeignFileError(
            f"{path}: not a state directory: found neither {CHANGELOG}/ nor {CHECKPOINTS}/ in it, nor {SPARK_FOLDER}/ "
            "with shards (give a state directory, a shard, a checkpoint or segment file, or a Spark checkpoint "
            "location)"
        )
    return places


def _file(path: Path) -> list[Place]:
    with path.open("rb") as file:
        start = file.read(8)
    if start == MAGIC or path.suffix == SUFFIX:
        return [Place(path, "segment", "")]
    if path.suffix == CHECKPOINT_SUFFIX:
        return [Place(path, "checkpoint", "")]
    if start[:4] == b"PK\x03\x04":
        from .archive import unpacked  # only here: few paths are archives

        folder = unpacked(path)
        if (folder / CHANGELOG).is_dir():
            return resolve(folder)
        files = [*folder.iterdir(), *(folder / CHECKPOINTS).glob("*")]
        alone = [file for file in files if file.suffix in (SUFFIX, CHECKPOINT_SUFFIX)]
        return _file(alone[0]) if len(alone) == 1 else resolve(folder)
    raise ForeignFileError(
        f"{path}: neither a checkpoint ({CHECKPOINT_SUFFIX}), a changelog segment ({SUFFIX}) nor an archive of `pack`: "
        f"starts with {start!r}"
    )


def read_json(path: Path) -> Any:
    """Return the content of a small JSON file, or None when it is absent or unreadable."""
    import json

    try:
        with path.open("rb") as file:
            return json.loads(file.read(1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
