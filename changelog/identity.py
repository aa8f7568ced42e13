"""Identity: the state that a file belongs to. Every segment, log object and index of a checkpoint says it.

    a plain state      its random id: shard 0 of 1
    a sharded state    the random id of the whole state, and the shard
    a Spark operator   a hash of the query and the operator's name, and the shard

So files that were copied to the place of another shard, state or query are refused before anything of them is used.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final, NamedTuple

ID_BYTES: Final = 16
_LAYOUT: Final = struct.Struct("<16sIII")
IDENTITY_BYTES: Final = _LAYOUT.size


class Identity(NamedTuple):
    """The state `store` (16 bytes), and of it the shard `shard` of `shards` of a generation of shards.

    As an expectation, an empty `store` and a `shards` of 0 stand for what is not known.
    """

    store: bytes
    generation: int = 0
    shard: int = 0
    shards: int = 1

    def encode(self) -> bytes:
        """Return the 28 bytes of it in a header."""
        return _LAYOUT.pack(*self)

    @classmethod
    def decode(cls, raw: bytes) -> Identity:
        """Return the identity that `encode` wrote."""
        return cls(*_LAYOUT.unpack(raw))

    def fits(self, other: Identity) -> bool:
        """True if a file that says `other` may be one of this state and shard: all that is known of both is equal."""
        return (
            self[1:3] == other[1:3]
            and (not self.store or not other.store or self.store == other.store)
            and (not self.shards or not other.shards or self.shards == other.shards)
        )

    def __str__(self) -> str:
        store = f"store {self.store.hex()}" if self.store else "this store"
        if self[1:] == (0, 0, 1):
            return store
        of = f" of {self.shards}" if self.shards else ""
        generation = f" of generation {self.generation}" if self.generation else ""
        return f"shard {self.shard}{of}{generation} of {store}"


def of_operator(query_id: str, operator: str, generation: int, shard: int, shards: int) -> Identity:
    """Return the identity of a shard of an operator of a Spark query. Every attempt of a task computes the same one."""
    text = f"{query_id}\0{operator}"
    return Identity(blake2b(text.encode(), digest_size=ID_BYTES).digest(), generation, shard, shards)
