"""State of Spark operators on an object store: locations, requests, what is read from outside. No Spark is needed."""

import json
import logging
import pickle
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from changelog.errors import StorageUnreachableError
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.spark import SparkSetupError, metrics
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.location import Location, check_reachable, locate
from hybridstore.spark.operator_file import agree_on_description
from hybridstore.spark.query_log import committed, next_watermark, time_in_run
from hybridstore.spark.reading import open_version as version_of
from hybridstore.spark.reading import operators, shards
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from recovery.runs import Claim
from tests.tools.hooks import with_clock
from tests.tools.s3_server import S3Server
from tests.tools.shard_tools import ATTEMPTS, content, write

SELDOM = CheckpointPolicy(every_commits=1000)
SECRET = "SECRET-OF-THE-TEST"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class Query:
    """A query with one operator of one shard, whose tasks are providers of their own."""

    def __init__(self, server: S3Server, folder: Path, name: str) -> None:
        self.location = locate(server.bucket(name, folder / "cache"))
        self.storage = self.location.operator("op")
        check_reachable(self.location, "op")
        self.launch = new_launch(self.storage)
        agree_on_description(self.storage, {"query_id": "", "shards": 1}, 0)
        self.claim: Claim = claim(self.storage, self.launch, "run", 0, 1)

    def task(self, cache: ShardCache, policy: CheckpointPolicy = SELDOM) -> StateStoreProvider:
        # as a worker that gets its operator pickled
        location: Location = pickle.loads(pickle.dumps(self.location))
        return StateStoreProvider(
            StateStoreId(location.state, "op", 0),
            cache=cache,
            policy=policy,
            claim=self.claim,
            attempts=repeat(next(ATTEMPTS)),
            storage=location.operator("op"),
        )


def test_a_batch_is_one_put_and_nothing_else(server: S3Server, tmp_path: Path) -> None:
    query, cache = Query(server, tmp_path, "warm"), ShardCache()
    write(query.task(cache), 0, a=0)
    for batch in range(1, 12):
        server.reset()
        task = query.task(cache)
        if batch % 3:
            write(task, batch, a=batch)
        else:
            task.get_store(batch).commit()
        task.maintain(oldest_replay=batch)
        assert dict(server.count) == {"put": 1}
    server.reset()
    task = query.task(ShardCache())
    task.note_empty(12)
    task.maintain(oldest_replay=12)
    assert dict(server.count) == {"put": 1}


def test_a_new_process_reads_the_checkpoint_and_what_lies_behind(server: S3Server, tmp_path: Path) -> None:
    query, cache = Query(server, tmp_path, "cold"), ShardCache()
    often = CheckpointPolicy(every_commits=3)
    for batch in range(8):
        task = query.task(cache, often)
        write(task, batch, **{f"k{batch}": batch})
        task.maintain(wait=True)
    assert [name for name in query.storage.list() if "/checkpoints/" in name]
    store = query.task(ShardCache(), often).get_store(8)
    assert store.loaded.kind == "checkpoint"
    assert content(store) == {f"k{batch}": batch for batch in range(8)}
    assert list((tmp_path / "cache").iterdir()), "nothing is kept on the host for the next restart"


def test_a_commit_whose_answer_is_lost_counts_once(server: S3Server, tmp_path: Path) -> None:
    query, cache = Query(server, tmp_path, "lost"), ShardCache()
    for batch, fault in enumerate(("lost", "500", "503", "reset")):
        task = query.task(cache)
        store = task.get_store(batch)
        store.key_value("default").put("a", batch)
        server.faults.append(fault)
        store.commit()
    assert not server.faults
    assert content(query.task(ShardCache()).get_store(4)) == {"a": 3}
    assert len([name for name in query.storage.list() if "/log/" in name]) == 4


def test_the_state_is_read_from_outside(server: S3Server, tmp_path: Path) -> None:
    query, cache = Query(server, tmp_path, "read"), ShardCache()
    for batch in range(3):
        write(query.task(cache), batch, **{f"k{batch}": batch})
    location = locate(server.bucket("read"))
    assert operators(location) == ["op"]
    (shard,) = shards(location)
    assert shard.version == 3
    rows = [row.key for row in version_of(shard, 2).rows("default")]
    assert sorted(rows) == ["k0", "k1"]
    (numbers,) = metrics(location)
    assert numbers["version"] == 3
    assert SECRET not in json.dumps(numbers, default=str)
    (place,) = resolve(server.bucket("read"))
    view = open_view(place)
    assert (place.label, view.seen, view.faults) == ("op/0", 3, [])
    assert [record.key for record in view.store("default").records()] == ["k0", "k1", "k2"]


def test_offsets_and_commits_are_read_from_the_checkpoint(server: S3Server) -> None:
    location = locate(server.bucket("log"))
    query = location.query()
    assert committed(query) == -1
    assert next_watermark(query) == 0
    times = '{"batchWatermarkMs":%d,"batchTimestampMs":%d,"conf":{}}'
    for batch in (9, 10):
        query.create(f"offsets/{batch}", f"v1\n{times % (batch * 100, batch)}\n{{}}".encode())
        query.create(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":%d}' % (batch * 1000))
    assert committed(query) == 10
    assert next_watermark(query) == 10_000
    server.reset()
    assert time_in_run(location, "run", 10) == (1000, 10)
    assert time_in_run(location, "run", 10) == (1000, 10)
    assert dict(server.count) == {"get": 1}, "once for each process and batch"
    with pytest.raises(SparkSetupError, match=r"s3://bucket/log/offsets/11: missing while batch 11 runs"):
        time_in_run(location, "run", 11)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"location": "hdfs://name/x"}, "location: hdfs://name/x: state cannot be kept at hdfs://"),
        (
            {"location": "/c", "state_location": "s3n://b/x"},
            "state_location: s3n://b/x: state cannot be kept at s3n://",
        ),
        ({"location": "relative"}, "location: found 'relative', expected an absolute path"),
        (
            {"location": "/c", "state_location": "relative"},
            "state_location: found 'relative', expected an absolute path",
        ),
        ({"location": "memory://x/y"}, "lives in one process"),
        ({"location": "s3://user:word@b/x"}, "credentials belong into the environment"),
    ],
)
def test_a_location_that_cannot_be_one_gets_a_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SparkSetupError, match=message) as error:
        locate(**given)
    assert SECRET not in str(error.value)
    assert "word@" not in str(error.value)


def test_a_location_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkSetupError, match=r"file/hybridstore/op: cannot be written: Not a directory .expected a"):
        new_launch(locate(str(tmp_path / "file")).operator("op"))


def test_a_location_that_cannot_be_reached_gets_a_sentence(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    misspelt = hs.Bucket(server.url("misspelt"), no_such_option=SECRET, **server.options)
    with pytest.raises(SparkSetupError, match="is a setting of the Bucket misspelt") as error:
        check_reachable(locate("/c", misspelt), "op")
    assert SECRET not in str(error.value)
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    missing = hs.Bucket(server.url("missing"), **(server.options | {"region": "eu-west-1"}))
    with pytest.raises(SparkSetupError, match=r"found no obstore, .*\(pip install 'hybridstore\[cloud\]'\)"):
        check_reachable(locate("/c", missing), "op")


def test_no_credential_is_shown_or_written(server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    query = Query(server, tmp_path, "shown")
    write(query.task(ShardCache()), 0, a=0)
    storage = query.location.states()
    written = b"".join(storage.get(name) for name in storage.list())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "cache").glob("*"))
    assert SECRET.encode() not in written + kept
    assert SECRET not in f"{query.location!r} {query.location} {storage!r} {query.task(ShardCache())!r} {caplog.text}"


def test_apply_waits_for_a_store_that_does_not_answer_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hybridstore.spark import location

    monkeypatch.setattr(location, "CHECK_SECONDS", 0.5)
    nobody = hs.Bucket(
        "s3://bucket", endpoint="http://127.0.0.1:1", access_key_id="x", secret_access_key=SECRET, region="r"
    )
    for checkpoint in ("/c", nobody / "checkpoint"):
        caplog.clear()
        with pytest.raises(SparkSetupError, match=r"\(tried for \d+ s\): no answer \(is the endpoint right") as error:
            check_reachable(locate(checkpoint, nobody / "deep/er/state"), "op")
        assert SECRET not in str(error.value) + caplog.text
        assert len(str(error.value).splitlines()) == 1


def test_requests_that_wait_together_share_their_time_and_say_so(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that a request moves: nothing is waited for."""
    from changelog import cloud_storage

    now = [0.0]
    with_clock(monkeypatch, cloud_storage, lambda _: None, monotonic=lambda: now[0])
    storage = cloud_storage.CloudStorage(server.url("waits"), server.options).within(30)
    asked = 0

    def request(store: object) -> None:
        nonlocal asked
        from obstore.exceptions import GenericError

        asked += 1
        now[0] += 10
        raise GenericError("Server returned non-2xx status code: 503")

    for tries in (3, 1, 1):
        asked = 0
        with pytest.raises(StorageUnreachableError):
            storage._client.ask(request, "s3://bucket/waits")
        assert asked == tries
    assert "no answer for 10 s" in caplog.text
    assert "trying for 30 s" in caplog.text


def test_a_state_inside_another_one_is_noticed(server: S3Server, tmp_path: Path) -> None:
    query = Query(server, tmp_path, "outer/query")
    check_reachable(query.location, "op")  # a second start
    check_reachable(locate("/c", server.bucket("outer/query-2")), "op")  # shares letters only
    with pytest.raises(SparkSetupError, match="lies inside s3://bucket/outer/query, which is the state of a query"):
        check_reachable(locate("/c", server.bucket("outer/query/hybridstore/x")), "op")
    query.location.query().create("metadata", b"{}")
    with pytest.raises(
        SparkSetupError, match="lies inside s3://bucket/outer/query, which is the checkpoint of a query"
    ):
        check_reachable(locate("/c", server.bucket("outer/query/y")), "op")
    # its own checkpoint's
    check_reachable(locate(server.bucket("outer/query"), server.bucket("outer/query/y")), "op")
    with pytest.raises(SparkSetupError, match=r"contains s3://bucket/outer/query, which is the state of a query"):
        check_reachable(locate("/c", server.bucket("outer")), "op")
    check_reachable(locate(server.bucket("outer/query"), server.bucket("outer")), "op")
    locate(server.bucket("plain")).query().create("checkpoints/x", b"")
    for state in ("plain", "plain/deep/er"):
        with pytest.raises(SparkSetupError, match="lies inside s3://bucket/plain, which is the state of a plain store"):
            check_reachable(locate("/c", server.bucket(state)), "op")
