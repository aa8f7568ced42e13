"""Cloud storage: the traps of object stores and of the client, each as a test, against a local S3 server with
faults.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from changelog import cloud_storage
from changelog.cloud_storage import CloudStorage
from changelog.errors import HybridStoreError, StorageUnreachableError
from changelog.rounds import REQUEST_BYTES, merged
from changelog.storage import is_url, storage_at
from hybridstore.cli import GROUPS, run
from tests.tools.hooks import with_clock
from tests.tools.moto_server import MotoServer

FAULTS = ("500", "503", "reset", "lost")


@pytest.fixture(scope="module")
def running() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture
def server(running: MotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoServer]:
    """The server, without faults and with nothing counted. Waiting between tries is left out."""
    with_clock(monkeypatch, cloud_storage, lambda _: None)
    yield running
    running.faults.clear()
    running.draw = lambda method, path: None
    running.reset()


@pytest.fixture
def storage(server: MotoServer, request: pytest.FixtureRequest) -> CloudStorage:
    return CloudStorage(server.url(f"state/{request.node.name}"), server.options)


# --- the seven traps -------------------------------------------------------------------------------------------------


def in_child(answer: Callable[[], bool]) -> bool:
    """Fork, and return what `answer` says in the child; False where the child hangs or dies."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if answer() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_trap_1_a_child_that_is_forked_after_the_first_request_is_refused(
    server: MotoServer, storage: CloudStorage
) -> None:
    storage.create("used", b"1")
    another = CloudStorage(storage.url, server.options)

    def refused() -> bool:
        sentences = []
        for used in (storage, another):
            try:
                used.get("used")
            except HybridStoreError as error:
                sentences.append("open the state after the fork only" in str(error))
        return sentences == [True, True]

    assert in_child(refused)
    assert storage.get("used") == b"1"


def test_trap_1_a_storage_that_was_only_declared_opens_after_the_fork(server: MotoServer) -> None:
    program = (
        "import os, sys\n"
        "from changelog.cloud_storage import CloudStorage\n"
        f"storage = CloudStorage({server.url('forks')!r}, {server.options!r})\n"
        "children = []\n"
        "for number in range(3):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os._exit(0 if storage.create(f'{number}', b'1') and storage.get(f'{number}') == b'1' else 1)\n"
        "    children.append(child)\n"
        "sys.exit(any(os.waitpid(child, 0)[1] for child in children))\n"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0


def test_trap_2_and_3_no_object_is_ever_overwritten(storage: CloudStorage) -> None:
    assert storage.create("a", b"one")
    assert not storage.create("a", b"two")
    assert storage.get("a") == b"one"


def test_trap_4_exists_already_without_an_object_is_tried_again(server: MotoServer, storage: CloudStorage) -> None:
    server.faults.extend(["409", None])  # the create; then the look at what is there: nothing
    assert storage.create("a", b"one")
    assert storage.get("a") == b"one"


def test_trap_4_a_store_that_always_says_so_ends_with_a_sentence(server: MotoServer, storage: CloudStorage) -> None:
    server.draw = lambda method, path: "409" if method == "PUT" else None
    with pytest.raises(StorageUnreachableError, match="answered 5 times that the object exists"):
        storage.create("a", b"one")


@pytest.mark.parametrize("fault", FAULTS)
def test_trap_5_a_create_whose_answer_is_lost_knows_its_own_object(
    server: MotoServer, storage: CloudStorage, fault: str
) -> None:
    server.faults.append(fault)
    assert storage.create("a", b"one")
    server.faults.append(fault)
    assert not storage.create("a", b"one")  # the same bytes by another call are another writer's
    assert storage.get("a") == b"one"


def test_the_writers_mark_has_a_name_that_every_store_takes() -> None:
    # Azure's are those of a C# identifier: a hyphen is answered with 400, which no local S3 server would show.
    assert re.fullmatch("[a-z]+", cloud_storage.WRITER)


def test_trap_6_the_same_bytes_of_two_writers_are_two_objects(storage: CloudStorage) -> None:
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(storage.create("n", b"same"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]


def test_trap_7_no_name_is_written_twice_and_a_create_is_one_request(server: MotoServer, storage: CloudStorage) -> None:
    storage.create("first", b"")
    server.reset()
    for number in range(5):
        assert storage.create(f"log/{number}", b"x")
    assert dict(server.count) == {"put": 5}


def test_ranges_beyond_the_end_of_an_object_that_was_cut_short_do_not_end_the_process(storage: CloudStorage) -> None:
    storage.create("a", b"0123456789")
    assert list(storage.get_ranges("a", [(8, 5), (0, 2), (3, 0), (20, 3)])) == [b"89", b"01", b"", b""]


# --- requests --------------------------------------------------------------------------------------------------------


def test_neighbours_are_one_request_and_what_is_far_apart_is_asked_for_side_by_side(
    server: MotoServer, storage: CloudStorage
) -> None:
    data = random.Random(5).randbytes(5 * REQUEST_BYTES)
    storage.create("a", data)
    ranges = [(start, 100) for start in (4 * REQUEST_BYTES, 0, 90, REQUEST_BYTES, 0)]
    server.reset()
    assert storage.get_ranges("a", ranges) == [data[start : start + length] for start, length in ranges]
    assert dict(server.count) == {"get": 2}
    assert server.bytes_sent < 2 * REQUEST_BYTES


def test_spans_cover_their_ranges_and_lie_apart() -> None:
    draw = random.Random(7)
    for _ in range(200):
        ranges = [(draw.randrange(10 * REQUEST_BYTES), draw.randrange(3) * 1000) for _ in range(draw.randrange(8))]
        spans = merged(ranges)
        for start, length in ranges:
            assert not length or any(begin <= start and start + length <= end for begin, end in spans)
        assert all(after[0] - before[1] > REQUEST_BYTES for before, after in itertools.pairwise(spans))


def test_a_list_reads_the_names_of_its_folder_after_a_name(
    server: MotoServer, storage: CloudStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3 has a thousand names in an answer
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "100")
    names = [f"log/{number:04d}" for number in range(120)]
    for name in names:
        storage.create(name, b"")
    storage.create("packs/1", b"")
    server.reset()
    assert storage.list("log/") == names
    assert server.count["list"] == 2
    assert storage.list("log/", "log/0110") == names[111:]
    assert storage.list("log/01", "log/0105") == names[106:]
    assert storage.list("log/00", "log/0050") == names[51:100]
    assert storage.below("log").list(after="0118") == ["0119"]


@pytest.mark.stress
def test_verbs_over_a_store_with_faults_are_as_those_of_memory(server: MotoServer, storage: CloudStorage) -> None:
    from tests.conftest import SEED
    from tests.tools.memory_storage import MemoryStorage

    draw = random.Random(SEED)
    model = MemoryStorage()
    server.draw = lambda method, path: draw.choice((*FAULTS, None, None, None, None))
    for step in range(40):
        name = f"f{draw.randrange(2)}/{draw.randrange(4)}"
        verb = draw.choice(("create", "create", "get", "list", "delete", "ranges", "size"))
        if verb == "create":
            data = draw.randbytes(draw.randrange(4))
            assert storage.create(name, data) == model.create(name, data), step
        elif verb == "list":
            assert storage.list("f1/", name) == model.list("f1/", name), step
        elif verb == "delete":
            storage.delete([name, "f1/none"])
            model.delete([name])
        else:
            expected = result(model, verb, name)
            assert result(storage, verb, name) == expected, step


def result(storage: CloudStorage | object, verb: str, name: str) -> object:
    calls = {
        "get": lambda: storage.get(name),  # type: ignore[attr-defined]
        "size": lambda: storage.size(name),  # type: ignore[attr-defined]
        "ranges": lambda: list(storage.get_ranges(name, [(1, 2), (0, 1)])),  # type: ignore[attr-defined]
    }
    try:
        return calls[verb]()
    except FileNotFoundError:
        return None


# --- what a person reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("hdfs://name/state", "mount the cluster's file system"),
        ("dbfs:/state", "Unity Catalog volume as a path"),
        ("wasbs://c@a.blob.core.windows.net/x", "abfss://container@account"),
        ("s3n://bucket/x", "s3://bucket/path"),
        ("https://host/x", "as a setting: hybridstore.Bucket"),
        ("ftp://host/x", "expected one of s3://"),
        ("s3:///x", "found no bucket"),
        ("s3://key:SECRET@bucket/x", "credentials belong into the environment"),
        ("az://c/x?sig=SECRET", "credentials belong into the environment"),
    ],
)
def test_a_location_that_cannot_be_gets_one_sentence(location: str, sentence: str) -> None:
    with pytest.raises(HybridStoreError, match=sentence.replace("(", r"\(").replace("{", r"\{")) as caught:
        CloudStorage(location)
    assert "SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs"])
def test_a_bucket_is_named_as_spark_names_it(scheme: str) -> None:
    assert CloudStorage(f"{scheme}://bucket/a//b/").url == f"{scheme}://bucket/a/b"
    assert CloudStorage(f"{scheme}://bucket").url == f"{scheme}://bucket"
    assert is_url(f"{scheme}://bucket")
    assert not is_url("/mnt/state")
    assert not is_url("file:///mnt/state")
    assert is_url("dbfs:/state")


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    assert storage_at(f"file://{tmp_path}").url == str(tmp_path)


def test_no_secret_is_in_an_error_a_log_line_or_a_repr(
    server: MotoServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_storage, "LINE_SECONDS", 0.05)
    storage = CloudStorage(server.url("x"), server.options)
    server.draw = lambda method, path: "500"
    # a clock that a pause moves beyond the limit: the machine's own may be there before the first answer
    clock = [0.0]
    with_clock(monkeypatch, cloud_storage, lambda _: clock.append(clock.pop() + 1000), monotonic=lambda: clock[0])
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageUnreachableError) as caught:
        storage.get("a")
    shown = f"{caught.value}{storage!r}{caplog.text}"
    assert "SECRET" not in shown
    assert f"{storage.url}/a" in str(caught.value)
    assert "tried for" in str(caught.value)
    assert "no answer for" in caplog.text


def test_a_bucket_that_is_missing_is_named(server: MotoServer) -> None:
    with pytest.raises(StorageUnreachableError, match=r"s3://none/x/a: .*does the bucket or container exist"):
        CloudStorage("s3://none/x", server.options).create("a", b"")


def test_an_object_that_is_absent_keeps_nothing_of_the_caller(storage: CloudStorage) -> None:
    """An error that refers to itself would keep the frames of all callers until Python's collector runs, and with
    them the readers of packs, which an erase then may not remove.
    """

    class Reader:
        """What a caller has."""

    def asking() -> weakref.ref[Reader]:
        reader = Reader()
        with pytest.raises(FileNotFoundError):
            storage.get("absent")
        return weakref.ref(reader)

    gc.collect()
    gc.disable()
    try:
        assert asking()() is None
    finally:
        gc.enable()


def test_an_option_that_is_misspelt_is_named(server: MotoServer) -> None:
    with pytest.raises(StorageUnreachableError, match=r"'regoin'.*is a setting of the Bucket misspelt"):
        CloudStorage("s3://bucket/x", {**server.options, "regoin": "x"}).get("a")


def test_a_storage_travels_to_another_process(storage: CloudStorage) -> None:
    storage.create("a", b"one")
    assert pickle.loads(pickle.dumps(storage.below("b"))).url == f"{storage.url}/b"
    assert pickle.loads(pickle.dumps(storage)).get("a") == b"one"


def test_missing_credentials_are_said_to_be_missing() -> None:
    from obstore.exceptions import GenericError

    def refused(store: object, path: str) -> bytes:
        raise GenericError("Error performing PUT http://169.254.169.254/latest/api/token: status code: 403")

    with pytest.raises(StorageUnreachableError, match="neither the environment nor the Bucket has credentials"):
        CloudStorage("memory:///bucket")._ask("1", refused)


def test_a_number_in_an_address_is_no_range_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_storage, "RETRY_SECONDS", 0.1)
    with MotoServer() as server:
        storage = CloudStorage(server.url("416"), server.options)
        server.draw = lambda method, path: "503"
        with pytest.raises(StorageUnreachableError, match="tried for"):
            storage.create("x", b"1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": "10"}, "found setting 'timeout', which hybridstore sets itself"),
        ({"AWS_HTTP2_ONLY": "true"}, "found setting 'AWS_HTTP2_ONLY', which hybridstore sets itself"),
        ({"endpoint": 9000}, "found setting 'endpoint' with a value of type int"),
        ({"allow_http": "perhaps"}, "'allow_http': expected 'true' or 'false'"),
        ({1: "x"}, "found setting 1 with a value"),
    ],
)
def test_an_option_that_cannot_be_one_is_named(options: dict[Any, Any], words: str) -> None:
    for url in ("s3://bucket/a", "gs://bucket/a", "az://container/a"):
        with pytest.raises(HybridStoreError, match=words):
            CloudStorage(url, options)


@pytest.mark.parametrize("options", [{"allow_http": "true"}, {"AWS_ALLOW_HTTP": "TRUE"}, {"allow_http": True}])
def test_options_of_the_connection_are_taken(options: dict[str, Any]) -> None:
    with MotoServer() as server:
        storage = CloudStorage(server.url("options"), {**server.options, **options, "user_agent": "test"})
        assert storage.create("a", b"1")
        assert storage.get("a") == b"1"


def test_without_obstore_everything_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    words = r"s3://bucket: found no obstore, expected it to be installed \(pip install 'hybridstore\[cloud\]'\)"
    with pytest.raises(HybridStoreError, match=words):
        hs.open("s3://bucket/state")
    with pytest.raises(HybridStoreError, match=words):
        hs.inspect("s3://bucket/state")
    for name in GROUPS["inspect"].commands.keys() - {"upgrade"}:  # which imports a program first
        more = {"get": ["a", "b"], "history": ["a", "b"], "keys": ["a"], "scan": ["a"], "export": ["--to", "x.jsonl"]}
        more |= {
            "diff": ["@1"],
            "pack": ["--to", "x.zip"],
            "report": ["-o", "x.html"],
        }
        code = run(["inspect", name, "s3://bucket/state", *more.get(name, [])])
        assert code == 3, name
        assert re.search(words, capsys.readouterr().err), name


def test_storages_of_a_bucket_share_their_connections_if_nothing_that_they_are_made_of_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import obstore.store

    connected: list[dict[str, Any]] = []

    def from_url(url: str, **given: Any) -> Any:
        connected.append(given)
        return obstore.store.MemoryStore()

    monkeypatch.setattr(obstore.store, "from_url", from_url)
    options = {"endpoint": "http://host", "region": "us-east-1", "secret_access_key": "first"}
    for path in ("x", "y"):
        CloudStorage(f"s3://bucket/{path}", options).list()
    assert [given["config"] for given in connected] == [options]
    CloudStorage("s3://bucket/x", options | {"secret_access_key": "second"}).list()
    CloudStorage("s3://other/x", options).list()
    CloudStorage("s3://bucket/x", options).within(9).list()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the environment")
    CloudStorage("s3://bucket/x", options).list()
    assert len(connected) == 5
