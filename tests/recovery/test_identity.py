"""Files of another shard, generation or state in the place of a state's own are refused by every reader.

A topology of two shards, one of the same program beside it, and one that was rescaled. A row is a mix-up; the readers
are those of the whole state, and those of the shard whose files were replaced.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.identity import Identity
from hybridstore.errors import HybridStoreError
from recovery.pack import HEADER
from tests.tools.checkpoints import index_of, packs_of
from tests.tools.readers import READERS, RefusedError, verified

ROWS = [{"user": f"user {i % 9}", "time": i * 10} for i in range(90)]
COUNTS = hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())


def run(state: Path, shards: int, rows: list[dict[str, Any]] = ROWS[:60]) -> list[Any]:
    return list(COUNTS.run(rows, state, shards=shards, commit_rows=20))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two states of two shards with the same rows and checkpoints, and one that was rescaled to four shards."""
    root = tmp_path_factory.mktemp("prepared")
    for name in ("state", "other", "rescaled"):
        run(root / name, 2)
        for shard in range(2):
            with hs.open(root / name / f"{shard}") as state:
                state.checkpoint(wait=True)
    assert hs.rescale(root / "rescaled", shards=4, accept_late=True).done
    return root


def replaced(path: Path, by: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(by, path)


def other_log(path: Path) -> None:
    """The log of another shard behind the shard's own checkpoint."""
    shutil.rmtree(path / "0" / "changelog")
    shutil.copytree(path / "1" / "changelog", path / "0" / "changelog")


def other_checkpoint(path: Path) -> None:
    """A whole, sound checkpoint of another state of the same program, with its packs."""
    mine, other = path / "0", path.parent / "other" / "0"
    version = int(max((mine / "checkpoints").glob("*.lmdb")).name.partition("-")[0])
    index_of(mine, version).unlink()
    for file in (index_of(other, version), *packs_of(other, version)):
        shutil.copy(file, mine / file.relative_to(other))


MIXED: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "another shard": ("state", "0", lambda path: replaced(path / "0", path / "1")),
    "another shard, without checkpoints": (
        "state",
        "0",
        lambda path: (replaced(path / "0", path / "1"), shutil.rmtree(path / "0" / "checkpoints")),
    ),
    "another shard's log": ("state", "0", other_log),
    "another state's shard": ("state", "1", lambda path: replaced(path / "1", path.parent / "other" / "1")),
    "another state's checkpoint": ("state", "0", other_checkpoint),
    "an older generation": (
        "rescaled",
        "000001/000001",
        lambda path: replaced(path / "000001/000001", path / "1"),
    ),
    "another shard of a generation": (
        "rescaled",
        "000001/000001",
        lambda path: replaced(path / "000001/000001", path / "000001/000003"),
    ),
    "an alone state": ("state", "0", lambda path: replaced(path / "0", path.parent / "alone")),
}


@pytest.mark.parametrize("name", MIXED)
def test_files_of_another_place_are_refused_by_every_reader(prepared: Path, tmp_path: Path, name: str) -> None:
    source, shard, damage = MIXED[name]
    shutil.copytree(prepared / "other", tmp_path / "other")
    run(tmp_path / "alone", 1)
    path = tmp_path / "state"
    shutil.copytree(prepared / source, path)
    for reader in READERS.values():
        reader(path / shard)
    damage(path)
    files = contents(path / shard)
    shards = 4 if source == "rescaled" else 2
    whole: dict[str, Callable[[], object]] = {
        "run": lambda: run(path, shards, ROWS),
        "open": lambda: COUNTS.open(path, shards=shards),
        "compare": lambda: COUNTS.compare(path),
        "position": lambda: hs.inspect(path).position,
        "rescale": lambda: hs.rescale(path, shards=8 if shards == 4 else 3, accept_late=True),
    }
    accepted = [reader for reader, call in whole.items() if not refuses(call)]
    accepted += [reader for reader, read in READERS.items() if not refuses(lambda read=read: read(path / shard))]
    if not refuses(lambda: verified(path / shard)):
        accepted.append("verify")
    # The log alone is sound, so what reads the log alone opens it, and a repair leaves the checkpoint out.
    assert accepted == (["log", "watch", "repair"] if name == "another state's checkpoint" else [])
    with pytest.raises(hs.errors.ForeignFileError, match="belongs to"):
        hs.open(path / shard)
    assert files == contents(path / shard)


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "LOCK"}


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except (HybridStoreError, OSError):
        return True
    return False


def test_shards_without_their_description_are_refused(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    shutil.copytree(prepared / "state", path)
    shutil.rmtree(path / "generations")
    for call in (lambda: run(path, 2), lambda: COUNTS.compare(path)):
        with pytest.raises(hs.errors.ForeignFileError, match=r"without generations/0000000001\.json"):
            call()


def test_a_missing_shard_is_not_begun_again(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    shutil.copytree(prepared / "state", path)
    shutil.rmtree(path / "1")
    with pytest.raises(hs.errors.RestoreError, match="found no shard 1 of 2, though others have commits"):
        run(path, 2)
    assert not (path / "1").exists()


def test_a_shard_may_be_copied_away_and_back(prepared: Path, tmp_path: Path) -> None:
    path, copy = tmp_path / "state", tmp_path / "copy"
    shutil.copytree(prepared / "state", path)
    shutil.copytree(path / "0", copy)
    with hs.open(copy, at="newest") as state:
        version = state.version
    replaced(path / "0", copy)
    assert run(path, 2) is not None
    assert READERS["open"](path / "0") == version


def test_two_processes_that_begin_a_state_agree_on_its_id(tmp_path: Path) -> None:
    from changelog.storage import LocalStorage
    from hybridstore.state.generations import begin_shards, current_shards

    place = LocalStorage(tmp_path / "state")
    first = begin_shards(place, 2, bytes([1] * 16))
    assert begin_shards(place, 2, bytes([2] * 16)) == first == current_shards(place)


def values_of(state: hs.State) -> dict[str, int]:
    return dict(state.key_value("kv").all())


def two_states(root: Path) -> tuple[Path, Path]:
    """Two states with the same keys and other values, each with one checkpoint of one pack."""
    for name, base in (("first", 1000), ("second", 30000)):
        with hs.open(root / name) as state:
            kv = state.key_value("kv")
            kv.put_many({f"account{i:04}": base + i for i in range(1000)})
            state.commit()
            state.checkpoint(wait=True)
    return root / "first", root / "second"


def test_a_whole_sound_pack_of_another_state_is_not_read(tmp_path: Path) -> None:
    first, second = two_states(tmp_path)
    (pack,), (other,) = (first / "packs").iterdir(), (second / "packs").iterdir()
    pack.write_bytes(other.read_bytes())
    with hs.open(first) as state:
        assert state.restore_report.checkpoint_version is None
        assert "expected that of a pack with the number of its name" in state.restore_report.skipped[0]
        assert values_of(state) == {f"account{i:04}": 1000 + i for i in range(1000)}
    with pytest.raises(RefusedError, match="expected that of a pack with the number of its name"):
        verified(first)


def test_other_blocks_behind_the_header_of_a_pack_are_not_read(tmp_path: Path) -> None:
    first, second = two_states(tmp_path)
    (pack,), (other,) = (first / "packs").iterdir(), (second / "packs").iterdir()
    pack.write_bytes(pack.read_bytes()[: HEADER.size] + other.read_bytes()[HEADER.size :])
    with (
        hs.open(first) as state,
        pytest.raises(hs.errors.CorruptCheckpointError, match="not what the top record's hash says"),
    ):
        values_of(state)
    with hs.open(first) as state:
        assert values_of(state) == {f"account{i:04}": 1000 + i for i in range(1000)}


def test_another_shard_on_an_object_store_is_refused() -> None:
    pytest.importorskip("obstore")
    from changelog.storage import storage_at
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        bucket = server.bucket("mixed")
        list(COUNTS.run(ROWS[:60], bucket, shards=2, commit_rows=20))
        place = storage_at(bucket)
        assert place.list("generations/") == ["generations/0000000001.json"]
        place.delete(place.list("0/"))
        for name in place.list("1/"):
            assert place.create(f"0/{name.removeprefix('1/')}", place.get(name))
        before = place.list()
        calls: list[Callable[[], object]] = [
            lambda: list(COUNTS.run(ROWS, bucket, shards=2, commit_rows=20)),
            lambda: hs.open(bucket / "0"),
            lambda: hs.open(bucket / "0", at="newest"),
            lambda: COUNTS.compare(bucket),
            lambda: hs.inspect(bucket / "0"),
            lambda: hs.rescale(bucket, shards=3, accept_late=True),
        ]
        for call in calls:
            with pytest.raises(HybridStoreError, match=r"belongs to shard 1 of 2 .*, its place to shard 0 of 2"):
                call()
        assert place.list() == before


def test_a_pack_of_another_state_on_an_object_store_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from changelog.storage import storage_at
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        for name, base in (("first", 1000), ("second", 30000)):
            with hs.open(server.bucket(name, tmp_path / "cache")) as state:
                state.key_value("kv").put_many({f"account{i:04}": base + i for i in range(1000)})
                state.commit()
                state.checkpoint(wait=True)
        first, second = (storage_at(server.bucket(name)) for name in ("first", "second"))
        (pack,), (other,) = first.list("packs/"), second.list("packs/")
        first.delete([pack])
        assert first.create(pack, second.get(other))
        place = server.bucket("first", tmp_path / "another")
        with (
            hs.open(place) as state,
            pytest.raises(hs.errors.CorruptCheckpointError, match="not what the top record's hash says"),
        ):
            values_of(state)
        with hs.open(place) as state:
            assert values_of(state) == {f"account{i:04}": 1000 + i for i in range(1000)}


@pytest.mark.parametrize(
    ("known", "other", "fits"),
    [
        (Identity(b"a" * 16, 1, 2, 3), Identity(b"a" * 16, 1, 2, 3), True),
        (Identity(b"a" * 16, 1, 2, 3), Identity(b"b" * 16, 1, 2, 3), False),
        (Identity(b"", 1, 2, 3), Identity(b"b" * 16, 1, 2, 3), True),
        (Identity(b"", 1, 2, 3), Identity(b"", 2, 2, 3), False),
        (Identity(b"", 1, 2, 3), Identity(b"", 1, 1, 3), False),
        (Identity(b"", 1, 2, 3), Identity(b"", 1, 2, 4), False),
        (Identity(b"", 1, 2, 0), Identity(b"", 1, 2, 4), True),
    ],
)
def test_what_is_not_known_fits_everything(known: Identity, other: Identity, fits: bool) -> None:
    assert (known.fits(other), other.fits(known)) == (fits, fits)
