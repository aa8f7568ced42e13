"""Shard id: a shard of an operator of a query, the place of its files, and the id in each of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from changelog.identity import Identity, of_operator
from recovery.layout import operator_folder, shard_folder


@dataclass(frozen=True, slots=True)
class StateStoreId:
    """The id of a shard of an operator. `checkpoint_root` is the place of the state: the query's checkpoint location,
    or another path or URL.

    `query_id` ties the objects to one query, so that objects of another query are refused; "" accepts any query.
    `generation` counts how often the number of shards was changed: each time, new shards are made beside the old ones.
    `shards` is how many the operator has, 0 if that is not known.

    >>> from hybridstore.spark.shard.provider import StateStoreId
    >>> shard = StateStoreId("checkpoint", "clicks", 3)
    >>> str(shard.directory)
    'checkpoint/hybridstore/clicks/000000/000003'
    """

    checkpoint_root: str
    operator: str
    shard: int
    query_id: str = ""
    generation: int = 0
    shards: int = 0

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
    def identity(self) -> Identity:
        """The identity in every object of the shard. It follows from the names, so that two attempts write the same."""
        return of_operator(self.query_id, self.operator, self.generation, self.shard, self.shards)
