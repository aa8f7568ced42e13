"""Shard id: a shard of an operator of a query, the place of its files, and the id in each of them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from recovery.layout import operator_folder, shard_folder


@dataclass(frozen=True, slots=True)
class StateStoreId:
    """The id of a shard of an operator. `checkpoint_root` is the place of the state: the query's checkpoint location,
    or another path or URL.

    `query_id` ties the objects to one query, so that objects of another query are refused; "" accepts any query.
    `generation` counts how often the number of shards was changed: each time, new shards are made beside the old ones.

    >>> shard = hsp.StateStoreId("checkpoint", "clicks", 3)
    >>> str(shard.directory)
    'checkpoint/hybridstore/clicks/000000/000003'
    """

    checkpoint_root: str
    operator: str
    shard: int
    query_id: str = ""
    generation: int = 0

    def __post_init__(self) -> None:
        if type(self.operator) is not str or not self.operator or self.operator.startswith(".") or "/" in self.operator:
            raise ValueError(f"operator: found {self.operator!r}, expected a name without a slash that is not empty")
        if type(self.shard) is not int or self.shard < 0:
            raise ValueError(f"shard: found {self.shard!r}, expected 0 or more")

    @property
    def operator_path(self) -> Path:
        """Where the operator's objects are."""
        return Path(self.checkpoint_root, operator_folder(self.operator))

    @property
    def folder(self) -> str:
        """The shard's folder, below the operator's."""
        return shard_folder(self.generation, self.shard)

    @property
    def directory(self) -> Path:
        """Where the shard's objects are."""
        return self.operator_path / self.folder

    @property
    def store_id(self) -> bytes:
        """The id in every object of this store: 16 bytes that follow from the names, so that two attempts write the
        same id.
        """
        parts = [self.query_id, self.operator, str(self.shard)]
        if self.generation:
            parts.append(str(self.generation))
        text = "\0".join(parts)
        return blake2b(text.encode(), digest_size=16).digest()
