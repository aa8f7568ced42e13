"""The meta record of a checkpoint, in its index: the version, the stores, the packs; and the check of the index."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple

from changelog.cached_storage import CachedStorage
from changelog.codec import pack
from changelog.identity import Identity
from changelog.outlook import behind
from changelog.segment import Position
from changelog.storage import Storage

from . import index
from .block import seal, unseal_fields
from .errors import CorruptCheckpointError
from .layout import CheckpointName, parse_checkpoint_name, parse_pack_name
from .pack import PackRecord

FORMAT_VERSION: Final = 1
_HASH_BYTES: Final = 16


class StoreRecord(NamedTuple):
    """One store in a checkpoint's meta record: its number, name, kind and parameters, its own state, next free block
    id, totals.
    """

    number: int
    name: str
    kind: str
    parameters: dict[str, Any]
    state: dict[str, Any]
    next_block: int
    records: int
    size: int


class CheckpointMeta(NamedTuple):
    """The meta record of a checkpoint."""

    identity: Identity
    version: int
    digest: bytes
    position: Position
    wall_ms: int
    settings: dict[str, Any]
    stores: list[StoreRecord]
    packs: list[PackRecord]
    # Bytes of changed blocks, and of packs, written by this checkpoint and the checkpoints that it continues.
    packed: int = 0
    written: int = 0

    @property
    def records(self) -> int:
        """The records of all stores. O(stores)."""
        return sum(record.records for record in self.stores)

    @property
    def size(self) -> int:
        """Bytes of the blocks of all stores. O(stores)."""
        return sum(record.size for record in self.stores)


def index_hash(data: bytes) -> str:
    """Return the hash in the name of an index with these bytes. O(bytes)."""
    return blake2b(data, digest_size=_HASH_BYTES).hexdigest()


def encode_meta(meta: CheckpointMeta) -> bytes:
    """Return the meta record's bytes."""
    return seal(
        pack(
            {
                "format": FORMAT_VERSION,
                "min_reader": FORMAT_VERSION,
                "identity": list(meta.identity),
                "version": meta.version,
                "digest": meta.digest,
                "position": list(meta.position),
                "wall_ms": meta.wall_ms,
                "settings": meta.settings,
                "stores": [list(record) for record in meta.stores],
                "packs": [list(record) for record in meta.packs],
                "packed": meta.packed,
                "written": meta.written,
            }
        )
    )


def decode_meta(data: bytes, where: str) -> CheckpointMeta:
    """Return the meta record. Raises CorruptCheckpointError, naming `where`, or UnsupportedVersionError."""
    where = f"{where}: meta record"
    try:
        fields = unseal_fields(data, where, FORMAT_VERSION)
        packs = [PackRecord(*record) for record in fields["packs"]]
        if any(parse_pack_name(record.name) is None for record in packs):
            raise ValueError("a pack of a name that no pack has")
        return CheckpointMeta(
            Identity(*fields["identity"]),
            fields["version"],
            fields["digest"],
            Position(*fields["position"]),
            fields["wall_ms"],
            fields["settings"],
            [StoreRecord(*record) for record in fields["stores"]],
            packs,
            fields["packed"],
            fields["written"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"{where}: {error}") from error


def checked_index(storage: Storage, name: str) -> bytes:
    """Return the bytes of an index. Raises CorruptCheckpointError unless its name has their hash, FileNotFoundError."""
    data = storage.get(name)
    expected = parse_checkpoint_name(name)
    cached = behind(storage)
    if expected is not None and index_hash(data) != expected.hash and isinstance(cached, CachedStorage):
        cached.drop(name)  # a damaged copy: the index itself may be sound
        data = cached.get(name)
    if expected is None or index_hash(data) != expected.hash:
        raise CorruptCheckpointError(
            f"{storage.url}/{name}: its {len(data)} bytes are not those that its name has the hash of (the file was "
            "changed, cut short or renamed)"
        )
    return data


def read_meta(storage: Storage, name: CheckpointName) -> CheckpointMeta:
    """Return the meta record of a checkpoint; its packs are not read. Raises as `CheckpointReader`. O(index)."""
    where = f"{storage.url}/{name}"
    records = index.decode(checked_index(storage, str(name)), where)
    return decode_meta(records.get(index.META_KEY, b""), where)
