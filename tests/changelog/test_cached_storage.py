"""Cached storage: what it answers is what the storage behind answers; what it keeps, for how long, and what it
survives.
"""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from changelog import cached_storage, rounds
from changelog.cached_storage import Cache, CachedStorage, default_folder
from changelog.storage import Storage
from tests.conftest import SEED
from tests.tools.memory_storage import MemoryStorage


class Counting(MemoryStorage):
    """Memory that counts what is read from it."""

    reads = 0

    def get(self, name: str) -> bytes:
        self.reads += 1
        return super().get(name)


def cached(tmp_path: Path, limit: int = 1 << 20) -> tuple[Counting, CachedStorage]:
    behind = Counting()
    return behind, CachedStorage(behind, Cache(tmp_path / "cache", limit))


def test_an_object_is_read_from_behind_once_by_all_processes_of_a_host(tmp_path: Path) -> None:
    behind, storage = cached(tmp_path)
    behind.create("a", b"one")
    assert [storage.get("a") for _ in range(3)] == [b"one"] * 3
    assert behind.reads == 1
    another = CachedStorage(Counting(), Cache(tmp_path / "cache"))
    assert another.get("a") == b"one"
    path = another.path("a")
    assert path is not None
    assert path.read_bytes() == b"one"


def test_what_a_process_creates_it_has(tmp_path: Path) -> None:
    behind, storage = cached(tmp_path)
    assert storage.create("packs/1", b"one")
    assert not storage.create("packs/1", b"two")
    assert storage.below("packs").get("1") == b"one"
    assert behind.reads == 0


def test_ranges_of_what_is_not_here_are_read_and_not_kept(tmp_path: Path) -> None:
    behind, storage = cached(tmp_path)
    behind.create("a", b"0123456789")
    assert list(storage.get_ranges("a", [(2, 3), (9, 5), (20, 1)])) == [b"234", b"9", b""]
    assert storage.path("a") is None
    assert storage.fetch("a", 10) is not None
    reads = behind.reads
    assert list(storage.get_ranges("a", [(2, 3), (9, 5), (20, 1)])) == [b"234", b"9", b""]
    assert behind.reads == reads


def test_only_names_worth_keeping_are_kept(tmp_path: Path) -> None:
    behind = Counting()
    storage = CachedStorage(behind, Cache(tmp_path / "cache"), lambda name: name.startswith("packs/"))
    for name in ("packs/1", "log/1"):
        behind.create(name, b"x")
        storage.get(name)
    assert storage.path("packs/1") is not None
    assert storage.below("log").path("1") is None
    assert storage.below("packs").path("1") is not None


def test_what_was_not_used_for_longest_is_removed_first(tmp_path: Path) -> None:
    _, storage = cached(tmp_path, limit=100)
    for age, name in enumerate(("new", "middle", "old")):
        storage.create(name, bytes(40))
        path = storage.path(name)
        if path is not None:
            os.utime(path, (1e9 - age, 1e9 - age))
    # "old" came last, when the others filled the folder: the one whose last use is longest ago made room for it.
    assert [name for name in ("new", "middle", "old") if storage.path(name)] == ["new", "old"]
    assert storage.cache.bytes <= 100
    storage.create("huge", bytes(101))
    assert storage.path("huge") is None
    assert storage.get("huge") == bytes(101)


def test_a_link_in_the_folder_has_the_bytes_of_a_link(tmp_path: Path) -> None:
    _, storage = cached(tmp_path, limit=1000)
    storage.create("a", bytes(40))
    (tmp_path / "large").write_bytes(bytes(10_000))
    (tmp_path / "cache" / f"{'0' * 40}.object").symlink_to(tmp_path / "large")
    storage.create("b", bytes(10))
    assert [name for name in "ab" if storage.path(name)] == ["a", "b"]


def test_a_use_counts(tmp_path: Path) -> None:
    _, storage = cached(tmp_path, limit=100)
    for name in ("a", "b"):
        storage.create(name, bytes(40))
        os.utime(tmp_path / "cache" / storage.path(name).name, (1e9, 1e9))  # type: ignore[union-attr]
    assert storage.get("a") == bytes(40)
    storage.create("c", bytes(40))
    assert [name for name in "abc" if storage.path(name)] == ["a", "c"]


def test_a_folder_that_cannot_be_written_costs_a_line_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    behind = Counting()
    storage = CachedStorage(behind, Cache(tmp_path / "file" / "cache", 100))
    assert storage.create("a", b"one")
    assert storage.get("a") == b"one"
    assert list(storage.get_ranges("a", [(0, 2)])) == [b"on"]
    assert storage.size("a") == 3
    assert caplog.text.count("cannot be kept") == 1


def test_a_disk_that_fills_up_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    _, storage = cached(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(cached_storage.os, "replace", full)
        assert storage.create("a", b"one")
    assert os.listdir(tmp_path / "cache") == []
    assert storage.get("a") == b"one"


def test_damage_is_dropped_and_read_again(tmp_path: Path) -> None:
    _, storage = cached(tmp_path)
    storage.create("a", b"one")
    path = storage.path("a")
    assert path is not None
    path.write_bytes(b"bad")
    assert storage.get("a") == b"bad"  # the cache has no checksums: its readers do
    storage.drop("a")
    assert storage.get("a") == b"one"


def test_what_is_deleted_is_gone_from_the_cache(tmp_path: Path) -> None:
    _, storage = cached(tmp_path)
    storage.create("a", b"one")
    storage.delete(["a", "never"])
    assert storage.path("a") is None
    with pytest.raises(FileNotFoundError):
        storage.get("a")


def test_the_folder_is_for_its_user_only_and_what_the_dead_left_goes(tmp_path: Path) -> None:
    _, storage = cached(tmp_path)
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    (folder / f".{7:032x}.tmp").write_bytes(b"half")
    os.utime(folder / f".{7:032x}.tmp", (1e9, 1e9))
    (folder / f".{8:032x}.tmp").write_bytes(b"half")
    storage.create("a", b"one")
    assert not (folder / f".{7:032x}.tmp").exists()
    assert (folder / f".{8:032x}.tmp").exists()
    path = storage.path("a")
    assert path is not None
    assert path.stat().st_mode & 0o077 == 0


def test_where_objects_are_kept_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "hybridstore"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_folder() == Path("/var/cache/me/hybridstore")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/fast/1, /fast/2")
    assert default_folder().parent == Path("/fast/1")


def test_any_order_of_verbs_answers_as_the_storage_behind(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    behind, storage = cached(tmp_path, limit=200)
    model = MemoryStorage()
    for step in range(400):
        name = f"packs/{draw.randrange(6)}"
        verb = draw.choice(("create", "get", "ranges", "size", "list", "delete", "fetch", "other"))
        if verb in ("create", "other"):
            # Under a name there is ever one content, as in a state: a name is drawn, or has the hash of its bytes.
            data = name.encode() * 9
            target: Storage = storage if verb == "create" else behind
            assert target.create(name, data) == model.create(name, data), step
        elif verb == "delete":
            storage.delete([name])
            model.delete([name])
        elif verb == "list":
            assert storage.list("packs/", name) == model.list("packs/", name), step
        elif name in model.objects:
            assert storage.get(name) == model.get(name), step
            assert list(storage.get_ranges(name, [(3, 7)])) == list(model.get_ranges(name, [(3, 7)])), step
            assert storage.size(name) == model.size(name), step
            if verb == "fetch":
                path = storage.fetch(name, model.size(name))
                assert path is not None
                assert path.read_bytes() == model.get(name)
        assert storage.cache.bytes <= 200


def test_processes_fill_one_folder_at_once(tmp_path: Path) -> None:
    program = (
        "import random, sys\n"
        "from pathlib import Path\n"
        "from changelog.cached_storage import Cache, CachedStorage\n"
        "from changelog.storage import LocalStorage\n"
        "storage = CachedStorage(LocalStorage(Path(sys.argv[1])), Cache(Path(sys.argv[2]), 3000))\n"
        "draw = random.Random(int(sys.argv[3]))\n"
        "for _ in range(300):\n"
        "    number = draw.randrange(40)\n"
        "    assert storage.get(f'{number}') == bytes([number]) * 200, number\n"
    )
    behind = CachedStorage(MemoryStorage(), Cache(tmp_path / "unused")).storage
    assert behind.list() == []
    from changelog.storage import LocalStorage

    for number in range(40):
        LocalStorage(tmp_path / "objects").create(f"{number}", bytes([number]) * 200)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", program, str(tmp_path / "objects"), str(tmp_path / "cache")]
    children = [subprocess.Popen([*command, str(number)], cwd=root) for number in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    assert Cache(tmp_path / "cache").bytes <= 3000 + 4 * 200  # each may have made room for itself at the same moment


def files(tmp_path: Path) -> list[str]:
    return sorted(path.suffix for path in (tmp_path / "cache").iterdir())


def test_a_large_object_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PART_BYTES", 100)
    monkeypatch.setattr(rounds, "AT_ONCE", 1)  # so that reads are counted one by one
    behind, storage = cached(tmp_path)
    data = random.Random(SEED).randbytes(2_050)
    behind.create("a", data)
    path = storage.fetch("a", len(data))
    assert path is not None
    assert path.read_bytes() == data
    assert behind.reads == 21
    assert files(tmp_path) == [".object"]


def test_a_fetch_that_is_stopped_or_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PART_BYTES", 100)
    monkeypatch.setattr(rounds, "AT_ONCE", 1)  # so that reads are counted one by one
    behind, storage = cached(tmp_path)
    behind.create("a", bytes(2_050))
    answers = iter([True, False])
    assert storage.fetch("a", 2_050, lambda: next(answers)) is None
    assert behind.reads == 8
    assert storage.fetch("a", 2_051) is None  # shorter than it was written
    with pytest.raises(FileNotFoundError):
        storage.fetch("absent", 2_050)
    assert files(tmp_path) == []


def test_one_process_of_a_host_fetches_and_the_others_wait_or_go_on(tmp_path: Path) -> None:
    behind, storage = cached(tmp_path)
    behind.create("a", b"0123456789")
    other = CachedStorage(behind, Cache(tmp_path / "cache"))
    results: list[Path | None] = []
    with storage.cache.alone(f"{storage.url}/a", wait=True) as alone:
        assert alone
        assert other.fetch("a", 10, lambda: True) is None
        waiting = threading.Thread(target=lambda: results.append(other.fetch("a", 10)))
        waiting.start()
        assert behind.reads == 0
        storage.cache.keep(f"{storage.url}/a", [b"0123456789"], 10)
    waiting.join()
    assert results == [storage.path("a")]
    assert results[0] is not None
    assert behind.reads == 0


def test_a_process_that_fetches_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes arrive twice; the lock of the slow process stays its own."""
    monkeypatch.setattr(cached_storage, "WAIT_SECONDS", 0.0)
    behind, storage = cached(tmp_path)
    behind.create("a", b"0123456789")
    other = CachedStorage(behind, Cache(tmp_path / "cache"))
    with storage.cache.alone(f"{storage.url}/a", wait=True) as alone:
        assert alone
        path = other.fetch("a", 10)
        assert path is not None
        assert path.read_bytes() == b"0123456789"
        assert behind.reads == 1
        with other.cache.alone(f"{storage.url}/a", wait=False) as alone:
            assert not alone
    with other.cache.alone(f"{storage.url}/a", wait=False) as alone:
        assert alone


def poisoned(cache: Cache) -> None:
    """Put a file of somebody else where the cache would keep the object "a"."""
    path = cache._file("memory:/a")
    path.write_bytes(b"bad")


def linked(folder: Path) -> None:
    folder.parent.joinpath("elsewhere").mkdir(0o700)
    folder.symlink_to(folder.parent / "elsewhere", target_is_directory=True)


def writable(mode: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(mode)

    return make


@pytest.mark.parametrize("make", [linked, writable(0o777), writable(0o1777), writable(0o770), writable(0o702)])
def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    behind, storage = cached(tmp_path)
    make(tmp_path / "cache")
    poisoned(storage.cache)
    behind.create("a", b"one")
    assert storage.get("a") == b"one"
    assert list(storage.get_ranges("a", [(0, 2)])) == [b"on"]
    assert storage.size("a") == 3
    assert storage.path("a") is None
    assert storage.fetch("a", 3) is None
    storage.drop("a")
    assert [path.read_bytes() for path in (tmp_path / "cache").iterdir()] == [b"bad"]
    assert caplog.text.count("that nobody else can write to") == 1
    assert Cache(tmp_path / "cache").limit == 0


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, storage = cached(tmp_path)
    storage.create("a", b"one")
    assert storage.path("a") is not None
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert storage.path("a") is None
    assert f"of user {user}, expected a folder" in caplog.text


def test_a_folder_that_becomes_writable_is_used_no_more(tmp_path: Path) -> None:
    _, storage = cached(tmp_path)
    storage.create("a", b"one")
    path = storage.path("a")
    assert path is not None
    path.write_bytes(b"bad")
    (tmp_path / "cache").chmod(0o777)
    assert storage.get("a") == b"one"
    (tmp_path / "cache").chmod(stat.S_IRWXU)
    assert storage.path("a") is not None


def test_only_files_of_the_caches_own_form_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    digest = "0" * 40
    others = [
        "uv.lock",
        "index.lock",
        "thesis.tmp",
        "module.object",
        f"{digest}.objects",
        f"{digest[1:]}.lock",
        ".x.tmp",
    ]
    for name in (*others, f"{digest}.lock", f".{digest[:32]}.tmp", f"{digest}.object"):
        (folder / name).write_bytes(bytes(500))
        os.utime(folder / name, (1e9, 1e9))
    cache = Cache(folder, 1000)
    assert cache.bytes == 500
    kept = cache.keep("address", [bytes(900)], 900)
    assert kept is not None
    assert sorted(os.listdir(folder)) == sorted([*others, kept.name])
