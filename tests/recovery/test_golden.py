"""Golden directories: what earlier releases wrote is read, restored in every way, and gone on with, by this one.

They are never written again; a change that cannot read one is a change of format, and needs a version of its own.
"""

import shutil
from pathlib import Path

import pytest

import hybridstore as hs
from tests.golden.write import VERSIONS, change, changed_topology, contents, shard_rows
from tests.tools.checkpoints import index_of, verify
from tests.tools.hooks import check_stores
from tests.tools.shard_tools import SHARD, at, content, provider

HERE = Path(__file__).parents[1] / "golden"
GOLDEN = sorted(path.name for path in HERE.iterdir() if (path / "contents.txt").is_file())


def expected(name: str) -> list[tuple[str, str]]:
    """The digest and the contents at each version."""
    lines = (HERE / name / "contents.txt").read_text(encoding="utf-8").split("\n")[:-1]
    return [(digest, text) for _, digest, text in (line.split(" ", 2) for line in lines)]


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """A copy, since opening writes LOCK."""
    return Path(shutil.copytree(HERE / name / "state", tmp_path / "state"))


def test_there_is_one_of_every_format_version() -> None:
    assert GOLDEN == ["v1", "v1-tables"]


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize(
    "without", [(), (9,), (5, 9)], ids=["newest checkpoint", "older checkpoint", "changelog alone"]
)
def test_a_golden_directory_restores_on_every_rung(name: str, path: Path, without: tuple[int, ...]) -> None:
    for version in without:
        index_of(path, version).unlink()
    digest, text = expected(name)[-1]
    with hs.open(path) as state:
        report = state.restore_report
        assert (report.version, report.clean, report.skipped) == (VERSIONS, True, [])
        assert report.checkpoint_version == max({5, 9} - set(without), default=None)
        assert state.digest.hex() == digest
        assert repr(contents(state)) == text
        assert state.settings == {"position": [VERSIONS, VERSIONS * 20]}
        check_stores(state)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_version_of_a_golden_directory_opens(name: str, path: Path) -> None:
    for version, (digest, text) in enumerate(expected(name), 1):
        with hs.open(path, at=version) as state:
            assert state.digest.hex() == digest
            assert repr(contents(state)) == text


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_directory_is_sound_and_can_be_gone_on_with(name: str, path: Path) -> None:
    assert list(verify(path)) == []
    with hs.open(path) as state:
        change(state, VERSIONS + 1)
        state.commit()
        state.checkpoint(wait=True)
        text = repr(contents(state))
    assert list(verify(path)) == []
    with hs.open(path) as state:
        assert repr(contents(state)) == text


@pytest.mark.parametrize("name", GOLDEN)
def test_the_same_calls_still_lead_to_the_same_contents(name: str, tmp_path: Path) -> None:
    with hs.open(tmp_path / "state", checkpoints=hs.CheckpointPolicy(keep=9)) as state:
        for version, (_, text) in enumerate(expected(name), 1):
            change(state, version)
            state.commit()
            assert repr(contents(state)) == text


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / "v1-shard", tmp_path / "shard"))


def test_every_version_of_a_golden_shard_loads(shard: Path) -> None:
    for version in range(1, 10):
        assert at(shard, version) == shard_rows(version)


def test_a_golden_shard_goes_on(shard: Path) -> None:
    store = provider(shard).get_store(9)
    assert store.metrics().load == "checkpoint"
    store.key_value("default").put("key 9", 9)
    assert store.commit() == 10
    assert content(provider(shard).get_read_store(10)) == shard_rows(10)


def test_a_golden_shard_is_read_by_the_inspector(shard: Path) -> None:
    for version in (5, 9):
        view = hs.inspect(shard / SHARD, at=version)
        assert {record.key: record.value for record in view["default"].scan()} == shard_rows(version)


def test_a_golden_state_of_a_changed_program_is_read_at_every_version_and_gone_on_with(tmp_path: Path) -> None:
    """A store was dropped and made anew by an upgrade, and a suppression buffer was given other bounds."""
    root = Path(shutil.copytree(HERE / "v1-changed", tmp_path / "changed"))
    assert [list(verify(root / name)) for name in ("state", "topology")] == [[], []]
    with hs.open(root / "state", at=2) as state:
        assert dict(state.key_value("users").all()) == {"ann": 3, "bob": 2}
    with hs.open(root / "state") as state:
        users = state.key_value("users", version=1)
        assert dict(users.all()) == {"ann": {"visits": 3}, "bob": {"visits": 2}, "eve": {"visits": 0}}
        assert list(state.window("pages", retention="1 hour").all()) == [(("ann", 1000), "/")]
        assert state.digest.hex() == "a97056793ab8035ae86e2eea0447d2e8"
    rows = [{"user": user, "time": time} for user, time in (("ann", 1000), ("bob", 2000), ("eve", 7_203_000))]
    results = [
        (row["user"], row["window_start"], row["clicks"])
        for row in changed_topology("2 hours").run(rows, root / "topology")
    ]
    assert results == [("ann", 1000, 1), ("bob", 2000, 1)]
