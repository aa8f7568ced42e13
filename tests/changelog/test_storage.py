"""Storage: every kind of it does the same with the same verbs; what the local one does on disk, and where links are
missing.
"""

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.cloud_storage import CloudStorage
from changelog.files import AppendFile, Files
from changelog.storage import STALE_SECONDS, LocalStorage, Storage
from tests.tools.azurite import Azurite, installed
from tests.tools.faults import MODES, Linkless, Recorder, disks
from tests.tools.memory_storage import MemoryStorage
from tests.tools.moto_server import MotoServer
from tests.tools.s3_server import S3Server

KINDS = ("local", "linkless", "memory", "cloud", "s3", "moto", "azure")
# The fixtures of kinds that are reached over the network.
SERVERS = {"s3": "server", "moto": "moto_server", "azure": "azurite"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture(scope="module")
def moto_server() -> Iterator[S3Server]:
    with MotoServer() as running:
        yield running


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    if installed() is None:
        pytest.skip("Azure's local server is not installed (npm install --global azurite)")
    with Azurite() as running:
        yield running


def storage_of(kind: str, path: Path, server: S3Server | Azurite | None = None) -> Storage:
    if kind in SERVERS:
        assert server is not None
        return CloudStorage(server.url(str(path)), server.options)
    if kind == "cloud":
        return CloudStorage("memory://bucket/state")
    if kind == "memory":
        return MemoryStorage()
    return LocalStorage(path / "root", files=Linkless() if kind == "linkless" else Files())


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    server = request.getfixturevalue(SERVERS[request.param]) if request.param in SERVERS else None
    return storage_of(request.param, tmp_path, server)


def test_an_object_is_created_once(storage: Storage) -> None:
    assert storage.create("a/1", b"one")
    assert not storage.create("a/1", b"two")
    assert not storage.create("a/1", b"one")
    assert storage.get("a/1") == b"one"
    assert storage.size("a/1") == 3


def test_an_empty_object_exists(storage: Storage) -> None:
    assert storage.create("a", b"")
    assert (storage.get("a"), storage.size("a"), storage.list()) == (b"", 0, ["a"])
    assert not storage.create("a", b"")


def test_what_is_absent_says_so(storage: Storage) -> None:
    assert storage.list("a/") == []
    storage.delete(["a/1"])
    local = [] if isinstance(storage, CloudStorage) else [storage.path]
    for call in (storage.get, storage.size, lambda name: storage.get_ranges(name, [(0, 1)]), *local):
        with pytest.raises(FileNotFoundError):
            call("a/1")


def test_ranges_are_given_as_asked_and_end_with_the_object(storage: Storage) -> None:
    storage.create("a", b"0123456789")
    assert list(storage.get_ranges("a", [(8, 5), (0, 2), (3, 0), (20, 3)])) == [b"89", b"01", b"", b""]


def test_a_deleted_name_is_free(storage: Storage) -> None:
    storage.create("a", b"one")
    storage.delete(["a", "b"])
    assert storage.list() == []
    assert storage.create("a", b"two")
    assert storage.get("a") == b"two"


def test_names_are_listed_in_order_by_prefix_and_after(storage: Storage) -> None:
    for name in ("log/2", "log/10", "log/1", "logs/1", "runs/1", "log/1-a/x", "lo"):
        storage.create(name, b"x")
    assert storage.list() == sorted(["log/2", "log/10", "log/1", "logs/1", "runs/1", "log/1-a/x", "lo"])
    assert storage.list("log/") == ["log/1", "log/1-a/x", "log/10", "log/2"]
    assert storage.list("log/", after="log/10") == ["log/2"]
    assert storage.list("log") == ["log/1", "log/1-a/x", "log/10", "log/2", "logs/1"]
    assert storage.list("log/1") == ["log/1", "log/1-a/x", "log/10"]
    assert storage.list("nothing/", after="a") == []


def test_below_a_folder_the_same_objects_have_shorter_names(storage: Storage) -> None:
    inner = storage.below("3/log")
    assert inner.create("1", b"x")
    assert storage.list() == ["3/log/1"]
    assert inner.list() == ["1"]
    assert storage.get("3/log/1") == inner.get("1")
    assert inner.url == f"{storage.url}/3/log"


def test_the_folders_of_a_folder_are_named_without_what_is_in_them(storage: Storage) -> None:
    for name in ("a", "b/1", "b/2", "c/d/e", "c/f", "c-d/1"):
        storage.create(name, b"x")
    assert list(storage.folders()) == ["b", "c", "c-d"]
    assert list(storage.folders("c")) == ["d"]
    assert list(storage.folders("c/d")) == []
    assert list(storage.folders("nothing")) == []
    assert list(storage.below("c").folders()) == ["d"]


NAMES = st.sampled_from(["a", "b", "a-b", "d/a", "d/a-b", "d/e/a", "e/d"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, st.binary(max_size=40)),
        st.tuples(st.just("get"), NAMES),
        st.tuples(st.just("size"), NAMES),
        st.tuples(st.just("list"), st.sampled_from(["", "a", "d/", "d", "d/e/", "x/"]), NAMES),
        st.tuples(st.just("delete"), st.lists(NAMES, max_size=3)),
        st.tuples(
            st.just("get_ranges"), NAMES, st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1)
        ),
    ),
    max_size=30,
)


def answer(storage: Storage, step: Any) -> Any:
    try:
        return getattr(storage, step[0])(*step[1:])
    except FileNotFoundError:
        return "absent"


@settings(max_examples=50)
@given(steps=STEPS)
@pytest.mark.parametrize("kind", ["local", "linkless", "cloud"])
def test_any_storage_answers_as_the_one_in_memory_does(
    kind: str, steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, model = tmp_path_factory.mktemp("storage"), MemoryStorage()
    storage = storage_of(kind, path)
    for step in steps:
        assert answer(storage, step) == answer(model, step), step


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_several_writers_of_a_name_wins(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(SERVERS[kind]) if kind in SERVERS else None
    storage = storage_of(kind, tmp_path, server)
    shared = kind in ("memory", "cloud")
    writers = [storage if shared else storage_of(kind, tmp_path, server) for _ in range(4)]
    for number in range(10):
        start = threading.Barrier(len(writers))
        won: list[int] = []

        def write(writer: int, name: str = f"runs/{number}", start: threading.Barrier = start, won: Any = won) -> None:
            start.wait()
            if writers[writer].create(name, b"%d" % writer * 100):
                won.append(writer)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(len(writers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert storage.get(f"runs/{number}") == b"%d" % won[0] * 100


def test_a_create_on_a_local_disk_is_two_syncs_and_one_file(tmp_path: Path) -> None:
    calls: list[str] = []

    class Counting(Files):
        def create(self, path: Path) -> AppendFile:
            calls.append("create")

            class File(AppendFile):
                def sync(self) -> None:
                    calls.append("sync")
                    super().sync()

            return File(path, create=True)

        def link(self, temporary: Path, final: Path) -> None:
            calls.append("link")
            super().link(temporary, final)

        def remove(self, path: Path) -> None:
            calls.append("remove")
            super().remove(path)

        def sync_path(self, path: Path) -> None:
            calls.append("sync folder")
            super().sync_path(path)

    storage = LocalStorage(tmp_path, files=Counting())
    storage.create("log/1", b"x")
    calls.clear()
    storage.create("log/2", b"x")
    assert calls == ["create", "sync", "link", "remove", "sync folder"]
    assert sorted(os.listdir(tmp_path / "log")) == ["1", "2"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_where_links_are_missing_a_file_is_written_in_place_with_an_end_mark(number: int, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, files=Linkless(number))
    storage.create("log/1", b"one")
    storage.create("log/2", b"")
    assert sorted(os.listdir(tmp_path / "log")) == ["1.whole", "2.whole"]
    assert (tmp_path / "log" / "1.whole").read_bytes() == b"one\x89HSEND\r\n\x03\0\0\0\0\0\0\0"
    path = storage.path("log/1")
    assert path is not None
    assert path.read_bytes()[: storage.size("log/1")] == b"one"


def test_a_file_without_its_end_mark_does_not_exist_though_its_name_is_taken(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, files=Linkless())
    storage.create("1", b"a" * 40)
    whole = (tmp_path / "1.whole").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "1.whole").write_bytes(whole[:size])
        assert storage.list() == []
        for call in (storage.get, storage.size, storage.path, lambda name: storage.get_ranges(name, [(0, 1)])):
            with pytest.raises(FileNotFoundError):
                call("1")
        assert not storage.create("1", b"b")
    (tmp_path / "1.whole").write_bytes(whole + b"x")
    assert storage.list() == []
    (tmp_path / "1.whole").write_bytes(whole)
    assert storage.get("1") == b"a" * 40


def test_a_directory_moves_between_file_systems_with_links_and_without(tmp_path: Path) -> None:
    linkless, linking = LocalStorage(tmp_path, files=Linkless()), LocalStorage(tmp_path)
    linkless.create("a", b"one")
    linking.create("b", b"two")
    for storage in (linkless, linking, LocalStorage(tmp_path, files=Linkless())):
        assert storage.list() == ["a", "b"]
        assert [storage.get("a"), storage.get("b")] == [b"one", b"two"]
        assert not storage.create("a", b"")
        assert not storage.create("b", b"")
    linking.delete(["a", "b"])
    assert os.listdir(tmp_path) == []


def test_a_link_that_was_done_though_its_answer_says_the_name_is_taken_is_a_success(tmp_path: Path) -> None:
    class Repeating(Files):
        def link(self, temporary: Path, final: Path) -> None:
            super().link(temporary, final)
            super().link(temporary, final)

    storage = LocalStorage(tmp_path, files=Repeating())
    assert storage.create("a", b"one")
    assert not storage.create("a", b"two")
    assert storage.get("a") == b"one"


def test_a_write_that_fails_leaves_the_name_free(tmp_path: Path) -> None:
    class Full(Linkless):
        full = True

        def create(self, path: Path) -> AppendFile:
            files = self

            class File(AppendFile):
                def write(self, data: bytes) -> None:
                    if files.full:
                        super().write(data[: len(data) // 2])
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    super().write(data)

            return File(path, create=True)

    for inner in (Full(), type("FullDisk", (Full,), {"link": Files.link})()):
        storage = LocalStorage(tmp_path / type(inner).__name__, files=inner)
        for _ in range(2):  # the first writes a temporary file, the second in place
            inner.full = True
            with pytest.raises(OSError, match="No space left"):
                storage.create("a", b"one")
            assert storage.list() == []
            inner.full = False
            assert storage.create("a", b"two")
            assert os.listdir(storage.root) != []
            storage.delete(["a"])
            assert os.listdir(storage.root) == []


def test_temporary_files_are_invisible_and_old_ones_are_removed_with_the_next_delete(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("log/1", b"x")
    new, old = tmp_path / "log" / ".new.tmp", tmp_path / "log" / ".old.tmp"
    for path, age in ((new, STALE_SECONDS / 2), (old, STALE_SECONDS + 60)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age,) * 2)
    assert storage.list() == ["log/1"]
    assert old.exists()
    storage.delete(["log/0"])
    assert (old.exists(), new.exists()) == (False, True)


def test_files_and_folders_have_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "root", files=Files(0o600))
    storage.create("a/b", b"x")
    assert (tmp_path / "root" / "a" / "b").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "root" / "a").stat().st_mode & 0o777 == 0o700


def test_a_forked_child_and_its_parent_use_the_same_storage(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("0", b"parent")
    child = os.fork()
    if not child:
        os._exit(0 if storage.create("1", b"child") and storage.get("0") == b"parent" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert storage.get("1") == b"child"


class LinklessRecorder(Recorder):
    link = Linkless.link
    number = errno.ENOSYS


@pytest.mark.parametrize("linkless", [False, True])
def test_after_a_crash_at_any_moment_an_object_is_there_whole_or_not_at_all(
    linkless: bool, tmp_path: Path, seed: int
) -> None:
    recorder = (LinklessRecorder if linkless else Recorder)(tmp_path / "root")
    storage = LocalStorage(recorder.root, files=recorder)
    contents = {f"log/{number}": b"%d" % number * 1500 for number in range(6)}
    for number, (name, content) in enumerate(contents.items(), 1):
        assert storage.create(name, content)
        recorder.note("acknowledged", detail=number)
    # On a disk that keeps pages out of order, an end mark may survive what comes before it (docs/guarantees.md).
    promised = set(MODES) - ({"zeroed", "mixed"} if linkless else set())
    points = 0
    for points, disk in enumerate(disks(recorder.history, seed), 1):
        if disk.mode in promised:
            root = tmp_path / str(points)
            disk.write(root)
            after = LocalStorage(root)
            names = list(after.list("log/"))
            assert names[: disk.acknowledged] == list(contents)[: disk.acknowledged], disk.moment
            assert names == list(contents)[: len(names)]
            assert [after.get(name) for name in names] == list(contents.values())[: len(names)]
    assert points > 20
