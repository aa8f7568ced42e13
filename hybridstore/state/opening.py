"""Opening: the options of opening a state, checked once before any file is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from changelog.files import FILE_MODE, REAL_FILES, Files
from changelog.identity import Identity
from changelog.writer import SEGMENT_BYTES
from recovery.compaction import SIZES, Sizes

from ..progress import OnProgress
from .arguments import check
from .policy import CheckpointPolicy

_Function = TypeVar("_Function", bound=Callable[..., Any])
Durability = Literal["commit", "os"]
At = int | Literal["newest"] | None


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes that tests make small: of a frame (records), a segment (bytes), a block (records; None: the default of the
    home), a bucket (parts of the retention), and of the other parts of a checkpoint (`Sizes`).
    """

    frame_records: int = 1000
    segment_bytes: int = SEGMENT_BYTES
    block_records: int | None = None
    bucket_divisor: int = 64
    parts: Sizes = SIZES

    def sizes(self, block_records: int) -> Sizes:
        """Return the bounds of a checkpoint's parts, at a home with blocks of `block_records`."""
        return self.parts._replace(block_records=self.block_records or block_records)


TUNING: Final = Tuning()


@dataclass(frozen=True, slots=True)
class Opening:
    """The options of `State.open`, described there. Raises TypeError or ValueError for wrong options."""

    durability: Durability
    lazy: bool
    checkpoints: CheckpointPolicy
    memory_limit: int | None
    debug: bool
    progress: OnProgress | bool | None
    at: At
    files: Files
    tuning: Tuning
    # a rescale also opens the shards that no longer count, to keep other processes out
    rescaled: bool = False
    # what is known of the state that belongs here; None: what the folder above it says of a shard
    identity: Identity | None = None
    # `erase` also opens pins, and states in which an erase has begun
    erasing: bool = False

    def __post_init__(self) -> None:
        check(durability=self.durability, checkpoints=self.checkpoints, at=self.at, memory_limit=self.memory_limit)
        check(progress=self.progress)

    @property
    def read_only(self) -> bool:
        """True when a version is named: the state is then read, also beside a writer."""
        return self.at is not None

    @property
    def version(self) -> int | None:
        """The version to restore; None for the newest."""
        return None if self.at == "newest" else self.at

    @property
    def synced(self) -> bool:
        """True when a commit waits for the disk."""
        return self.durability == "commit"


def reading(at: At) -> Opening:
    """Return the options under which a state is only read, at a version or at the "newest"."""
    return Opening("commit", True, CheckpointPolicy(), None, False, None, at, REAL_FILES, TUNING)


__all__ = ["FILE_MODE", "TUNING", "At", "Durability", "Opening", "Tuning", "reading"]


def as_documented(function: _Function) -> _Function:
    """Leave the parameters that begin with an underscore, which are for the tests, out of `help`."""
    whole = inspect.signature(function)
    shown = [given for name, given in whole.parameters.items() if not name.startswith("_")]
    function.__signature__ = whole.replace(parameters=shown)  # type: ignore[attr-defined]
    return function
