"""What the tests of the Spark provider share: a shard on disk, written and read as Spark would."""

from itertools import count
from pathlib import Path
from typing import Any

from changelog.storage import Storage
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import operator_storage
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStore, StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from recovery.layout import CheckpointName, LogName, list_checkpoints
from recovery.runs import Claim, newest_claim
from recovery.shard_log import ShardLog
from tests.tools.sizes import SMALL_PARTS

OFTEN = CheckpointPolicy(every_commits=3)
SHARD = "hybridstore/op/000000/000000"
# Spark numbers the attempts of all tasks.
ATTEMPTS = count(1)


def operator(root: Path) -> Storage:
    """Where the operator's objects are."""
    return operator_storage(root, "op")


def started(root: Path, batch: int) -> Claim:
    """The query is started, or started anew, and begins with a batch."""
    return begin(operator(root), batch)


def provider(
    root: Path, *, cache: ShardCache | None = None, run: Claim | None = None, **options: Any
) -> StateStoreProvider:
    """A provider with a memory of its own, as in a process of its own: of `run`, or the newest one, or a first one."""
    options.setdefault("sizes", SMALL_PARTS._replace(block_records=256))
    return StateStoreProvider(
        StateStoreId(str(root), "op", 0),
        cache=ShardCache() if cache is None else cache,
        claim=run or newest_claim(operator(root)) or started(root, 0),
        attempts=ATTEMPTS,
        **options,
    )


def restarted(root: Path, batch: int, **options: Any) -> StateStoreProvider:
    """A provider of a query that was started anew, maybe turned back before, and begins with a batch."""
    return provider(root, run=started(root, batch), **options)


def put(store: StateStore, **pairs: int) -> None:
    kv = store.key_value("default")
    for key, value in pairs.items():
        kv.put(key, value)


def write(p: StateStoreProvider, version: int, **pairs: int) -> int:
    """Batch `version` in one call: load, put, commit."""
    store = p.get_store(version)
    put(store, **pairs)
    return store.commit()


def content(store: StateStore) -> dict[str, int]:
    """What the store holds, read through the door that readers use."""
    if "default" not in store.group.stores:
        return {}
    return dict(store.key_value("default").all())


def at(root: Path, version: int) -> dict[str, int]:
    return content(provider(root).get_read_store(version))


def files(root: Path) -> set[str]:
    """The objects of the shard."""
    folder = root / SHARD
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def versions(root: Path) -> list[int]:
    """The versions of the shard's log objects."""
    return [name.version for name in names(root)]


def names(root: Path) -> list[LogName]:
    """The names of the shard's log objects, in order."""
    return ShardLog(operator(root).below(SHARD.partition("op/")[2])).names()


def segment(root: Path, version: int) -> Path:
    """The log object of a version: of the newest launch, its greatest attempt."""
    same = [name for name in names(root) if name.version == version]
    return root / SHARD / str(max(same) if same else f"log/{version:020d}")


def build(root: Path, versions: int, **options: Any) -> None:
    p = provider(root, **options)
    for version in range(versions):
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True)


def expected(version: int) -> dict[str, int]:
    return {f"k{i}": i for i in range(version)}


def checkpoints(root: Path) -> list[CheckpointName]:
    """The names of the shard's checkpoints, in order."""
    return list_checkpoints(operator(root).below(SHARD.partition("op/")[2]))


def checkpoint(root: Path, version: int) -> Path:
    """The index of the newest checkpoint of a version."""
    same = [name for name in checkpoints(root) if name.version == version]
    return root / SHARD / str(max(same) if same else f"checkpoints/{version:020d}.lmdb")
