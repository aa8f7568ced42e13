"""Parts: what an erase writes one after the other: a state directory, or all shards of an operator of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from changelog.storage import Storage

from ..state.given_keys import GivenKeys


class ErasedCounts(NamedTuple):
    """What was erased: records, bytes of the files that were removed, and of those that were written in their place."""

    records: int = 0
    removed: int = 0
    written: int = 0

    def plus(self, other: ErasedCounts) -> ErasedCounts:
        """Return the sums."""
        return ErasedCounts(*(mine + more for mine, more in zip(self, other, strict=True)))


class ErasePart(Protocol):
    """A part of a state. `storage` is where the note of an erase is, `places` are its state directories and shards."""

    @property
    def storage(self) -> Storage: ...

    @property
    def places(self) -> Sequence[Path | str]: ...

    def check(self) -> None:
        """Raise HybridStoreError if the part cannot be erased. Nothing is written."""

    def erase(self, keys: GivenKeys, now: int) -> ErasedCounts:
        """Erase keys at a time (ms). Raises HybridStoreError, OSError."""

    def traces(self, keys: GivenKeys) -> Iterator[str]:
        """Yield where keys are keys. Raises HybridStoreError, OSError. O(bytes)."""
