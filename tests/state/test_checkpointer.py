"""One checkpointer for a state directory and for a shard: a checkpoint that fails is the same story on both."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from changelog.files import Files
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.checkpoint_job import Outcome, can_start
from hybridstore.state.checkpointer import Checkpointer
from hybridstore.state.opening import Tuning
from tests.tools.checkpoints import index_of
from tests.tools.faults import QuickFiles
from tests.tools.shard_tools import started

EVERY = hs.CheckpointPolicy(every_commits=1)


class Full(QuickFiles):
    """Files of a disk that is full for checkpoints while `full` is set."""

    full = False

    def link(self, temporary: Path, final: Path) -> None:
        if self.full and "checkpoints" in final.parts:
            raise OSError(28, "No space left on device")
        super().link(temporary, final)


class Owner(NamedTuple):
    """A plain store or a shard: `put` commits one row and lets a checkpoint that is due begin and end."""

    checkpointer: Checkpointer
    put: Callable[[str, int], int]
    checkpoint: Callable[[], Any]
    failed: Callable[[], int]
    rows: Callable[[], dict[str, int]]


def plain(path: Path, files: Files) -> Owner:
    state = hs.open(path, checkpoints=EVERY, _files=files)
    kv = state.key_value("kv")

    def put(key: str, value: int) -> int:
        kv[key] = value
        version = state.commit()
        state._checkpoints.finish(wait=True)
        return version

    def rows() -> dict[str, int]:
        state.close()
        with hs.open(path) as again:
            return dict(again.key_value("kv").all())

    return Owner(
        state._checkpoints,
        put,
        lambda: state.checkpoint(wait=True),
        lambda: state.metrics().failed_checkpoints,
        rows,
    )


def shard(path: Path, files: Files) -> Owner:
    provider = StateStoreProvider(StateStoreId(str(path), "op", 0), policy=EVERY, files=files, claim=started(path, 0))
    version = 0

    def put(key: str, value: int) -> int:
        nonlocal version
        store = provider.get_store(version)
        store.key_value("kv")[key] = value
        version = store.commit()
        provider.maintain(wait=True)
        return version

    first = provider.get_store(0)
    loaded = first.shard
    first.abort()
    provider._cache.give(provider.path, provider.id.identity, loaded)

    def rows() -> dict[str, int]:
        provider.close()
        other = StateStoreProvider(StateStoreId(str(path), "op", 0))
        return dict(other.get_read_store(version).key_value("kv").all())

    def failed() -> int:
        count = provider.get_store(version).metrics().failed_checkpoints
        provider.abort()
        provider._cache.give(provider.path, provider.id.identity, loaded)
        return count

    return Owner(loaded.checkpoints, put, provider.checkpoint, failed, rows)


@pytest.mark.parametrize("kind", [plain, shard])
def test_a_failed_checkpoint_is_the_same_story_on_a_plain_store_and_on_a_shard(
    kind: Callable[[Path, Files], Owner], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    files = Full()
    owner = kind(tmp_path, files)
    assert owner.put("a", 1) == 1
    assert (owner.checkpointer.written, owner.failed()) == (1, 0)
    files.full = True
    # no commit fails, and the failure is logged once
    assert owner.put("b", 2) == 2
    assert [message.count("No space left on device") for message in caplog.messages] == [1]
    assert owner.failed() == 1
    assert owner.checkpointer.since.commits == 1  # what was captured counts as logged, and as changed, again
    # the policy waits before it tries again
    files.full = False
    assert owner.put("c", 3) == 3
    assert owner.checkpointer.written == 1
    # a caller who waits for a checkpoint gets its failure
    files.full = True
    with pytest.raises(
        hs.errors.CheckpointError, match=r"the checkpoint of version 3 failed: .*No space left on device"
    ):
        owner.checkpoint()
    assert owner.failed() == 2
    assert len(caplog.messages) == 1
    # and then it is made up for
    files.full = False
    monkeypatch.setattr("hybridstore.state.checkpointer.time.monotonic", lambda: float("inf"))
    assert owner.put("d", 4) == 4
    assert (owner.checkpointer.written, owner.checkpointer.version, owner.failed()) == (2, 4, 2)
    assert owner.rows() == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", [plain, shard])
def test_what_interrupts_the_copying_leaves_a_group_that_is_not_used_again(
    kind: Callable[[Path, Files], Owner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = kind(tmp_path, QuickFiles())
    assert owner.put("a", 1) == 1

    def interrupted(self: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hybridstore.state.group.StoreGroup.capture", interrupted)
        with pytest.raises(KeyboardInterrupt):
            owner.put("b", 2)
    assert owner.rows() == {"a": 1, "b": 2}


@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_a_failed_checkpoint_says_that_memory_may_grow_beyond_a_limit(tmp_path: Path, limit: int | None) -> None:
    files = Full()
    with hs.open(tmp_path, memory_limit=limit, _files=files) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        files.full = True
        with pytest.raises(hs.errors.CheckpointError) as raised:
            state.checkpoint(wait=True)
        files.full = False
    assert ("until one is made, memory may grow beyond memory_limit" in str(raised.value)) == (limit is not None)


def test_a_checkpoint_that_fails_without_words_is_told_by_the_type_of_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    with hs.open(tmp_path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        monkeypatch.setattr("hybridstore.state.checkpointer.write_checkpoint", fails)
        with pytest.raises(hs.errors.CheckpointError, match="of version 1 failed: MemoryError "):
            state.checkpoint(wait=True)
    beside = Outcome.of(Outcome(None, MemoryError()).packed())
    assert str(beside.error) == "MemoryError"


def test_a_clock_that_is_set_back_puts_off_no_checkpoint_by_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [2e9]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    with hs.open(tmp_path, checkpoints=hs.CheckpointPolicy(max_restore="1 hour", max_age="1 minute")) as state:
        for clock[0] in (2e9, 1e9, 1e9 + 61):
            assert not list(tmp_path.glob("checkpoints/*"))
            state.key_value("kv")["a"] = 1
            state.commit()
    assert len(list(tmp_path.glob("checkpoints/*.lmdb"))) == 1


class Order(QuickFiles):
    """Notes what becomes durable, and which names appear, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def sync_path(self, path: Path) -> None:
        self.names.append(path.name)

    def link(self, temporary: Path, final: Path) -> None:
        super().link(temporary, final)
        self.names.append(final.name)


def test_the_log_is_durable_before_a_checkpoint_that_refers_to_it_though_commits_are_not(tmp_path: Path) -> None:
    files = Order()
    with hs.open(tmp_path, durability="os", _files=files, _tuning=Tuning(segment_bytes=1000)) as state:
        for version in range(10):
            state.key_value("kv")[version] = "x" * 200
            state.commit()
        segments = [file.name for file in sorted((tmp_path / "changelog").iterdir())]
        assert len(segments) > 2
        assert not {*segments} & {*files.names}
        state.checkpoint(wait=True)
    before = files.names[: files.names.index(index_of(tmp_path, 10).name)]
    assert {*segments} <= {*before}


@pytest.mark.parametrize(
    ("executable", "frozen", "can"),
    [("/usr/bin/python3.13", False, True), ("/opt/program", False, False), ("", False, False), ("python", True, False)],
)
def test_a_program_that_has_swallowed_its_interpreter_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, executable: str, frozen: bool, can: bool
) -> None:
    monkeypatch.setattr("sys.executable", executable)
    monkeypatch.setattr("sys.frozen", frozen, raising=False)
    assert can_start() is can
