"""What the tests of the Spark provider share: a shard on disk, written and read as Spark would."""

from pathlib import Path
from typing import Any

from hybridstore.spark import StateStore, StateStoreId, StateStoreProvider
from hybridstore.spark.loaded import ShardCache
from hybridstore.state.policy import CheckpointPolicy

OFTEN = CheckpointPolicy(every_commits=3)


def provider(root: Path, *, cache: ShardCache | None = None, **options: Any) -> StateStoreProvider:
    """A provider with a memory of its own, as in a process of its own."""
    return StateStoreProvider(
        StateStoreId(str(root), "op", 0), cache=ShardCache() if cache is None else cache, **options
    )


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
    return {str(path.relative_to(root / "hybridstore/op/0")) for path in root.rglob("*") if path.is_file()}


def segment(root: Path, version: int) -> Path:
    return root / f"hybridstore/op/0/changelog/{version:020d}.log"


def build(root: Path, versions: int, **options: Any) -> None:
    p = provider(root, **options)
    for version in range(versions):
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True)


def expected(version: int) -> dict[str, int]:
    return {f"k{i}": i for i in range(version)}


def checkpoint(root: Path, version: int) -> Path:
    """Return the index of the checkpoint of a version, of whatever line; a path where nothing is when there is none."""
    folder = root / "hybridstore/op/0/checkpoints"
    return next(folder.glob(f"{version:020d}-*.lmdb"), folder / "absent")


def checkpoints(root: Path) -> list[int]:
    """Return the versions that have a checkpoint."""
    return sorted(int(path.name[:20]) for path in root.rglob("*.lmdb"))
