"""Objects of another shard, generation, operator or query in the place of a shard's own are refused by every reader.

A row is a mix-up of two shards of one operator, of two queries, or of two generations; with and without the operator's
description, from which readers know the query.
"""

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.errors import HybridStoreError
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import append_operator, operator_storage, read_chain
from hybridstore.spark.reading import changes, open_version, shards
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from recovery.runs import newest_claim
from tests.tools.readers import command, inspected, verified
from tests.tools.shard_tools import OFTEN

NEWEST = 8
OPERATOR = "hybridstore/op"


def folder(shard: int, generation: int = 0) -> str:
    return f"{OPERATOR}/{generation:06d}/{shard:06d}"


def provider(root: Path, shard: int, query: str, generation: int = 0) -> StateStoreProvider:
    operator = operator_storage(root, "op")
    return StateStoreProvider(
        StateStoreId(str(root), "op", shard, query, generation, 2),
        cache=ShardCache(),
        policy=OFTEN,
        claim=newest_claim(operator) or begin(operator, 0),
        attempts=count(1),
    )


def build(root: Path, query: str, generations: int = 1) -> None:
    operator = operator_storage(root, "op")
    for generation in range(generations):
        append_operator(
            operator, read_chain(operator), 1, {"shards": 2, "query_id": query, "generation": generation}, []
        )
        for shard in range(2):
            writer = provider(root, shard, query, generation)
            for version in range(NEWEST):
                store = writer.get_store(version)
                store.key_value("default").put(f"{query} {shard} {version}", version)
                store.commit()
                writer.maintain(wait=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    build(root / "query", "query")
    build(root / "other", "other")
    return root


def replaced(path: Path, by: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(by, path)


def other_log(path: Path) -> None:
    """The log of shard 1 beside the checkpoints of shard 0."""
    replaced(path / folder(0) / "log", path / folder(1) / "log")


def newest_object(path: Path) -> None:
    """The newest object of shard 1 under the name of shard 0's."""
    mine, other = (next((path / folder(shard) / "log").glob(f"{NEWEST:020d}-*")) for shard in range(2))
    mine.write_bytes(other.read_bytes())


def without_description(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    def call(path: Path) -> None:
        shutil.rmtree(path / OPERATOR / "operator")
        damage(path)

    return call


def another_shard(path: Path) -> None:
    replaced(path / folder(0), path / folder(1))


MIXED: dict[str, Callable[[Path], object]] = {
    "another shard": another_shard,
    "another shard, no description": without_description(another_shard),
    "another query's shard": lambda path: replaced(path / folder(0), path.parent / "other" / folder(0)),
    "another shard's log": other_log,
    "another shard's log, no description": without_description(other_log),
    "another shard's newest object": newest_object,
}


def readers(path: Path, generation: int = 0) -> dict[str, Callable[[], object]]:
    shard = path / folder(0, generation)

    def source() -> None:
        state = shards(str(path), "op")[0]
        opened = open_version(state, NEWEST)
        for store in opened.stores:
            list(opened.rows(store))

    return {
        "get_store": lambda: provider(path, 0, "query", generation).get_store(NEWEST),
        "get_read_store": lambda: provider(path, 0, "query", generation).get_read_store(NEWEST),
        "source": source,
        "changes": lambda: list(changes(shards(str(path), "op")[0], 0, NEWEST)),
        "verify": lambda: verified(shard),
        "inspect": lambda: inspected(shard),
        "follow": lambda: hs.inspect(path).follow().close(),
        "info": lambda: command("inspect", "info", "{}")(shard),
        "repair": lambda: command("inspect", "repair", "{}", "--to", "{new}", "--write")(shard),
        "compact": lambda: command("inspect", "compact", "{}", "--to", "{new}", "--write")(shard),
        "pack": lambda: command("inspect", "pack", "{}", "--to", "{new}")(shard),
    }


def accepting(path: Path, generation: int = 0) -> Iterator[str]:
    for name, read in readers(path, generation).items():
        try:
            read()
        except (HybridStoreError, OSError):
            continue
        yield name


@pytest.mark.parametrize("name", MIXED)
def test_objects_of_another_place_are_refused_by_every_reader(prepared: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(prepared / "other", tmp_path / "other")
    path = tmp_path / "query"
    shutil.copytree(prepared / "query", path)
    assert set(accepting(path)) == set(readers(path))
    shutil.rmtree(path)
    shutil.copytree(prepared / "query", path)
    MIXED[name](path)
    assert list(accepting(path)) == []


def test_a_checkpoint_of_another_shard_is_passed_over_by_every_reader(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "query"
    shutil.copytree(prepared / "query", path)
    for kind in ("checkpoints", "packs"):
        replaced(path / folder(0) / kind, path / folder(1) / kind)
    assert set(accepting(path)) == set(readers(path)) - {"verify"}
    expected = {f"query 0 {version}": version for version in range(NEWEST)}
    assert dict(provider(path, 0, "query").get_read_store(NEWEST).key_value("default").all()) == expected
    assert {row.key: row.value for row in hs.inspect(path).follow()["default"]} == expected | {
        f"query 1 {version}": version for version in range(NEWEST)
    }


def test_a_shard_of_an_older_generation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "query"
    build(path, "query", generations=2)
    assert set(accepting(path, 1)) == set(readers(path, 1))
    replaced(path / folder(0, 1), path / folder(0, 0))
    with pytest.raises(HybridStoreError, match=r"belongs to shard 0 of 2 of store .*, .* shard 0 of 2 of generation 1"):
        provider(path, 0, "query", 1).get_read_store(NEWEST)
    assert list(accepting(path, 1)) == []
