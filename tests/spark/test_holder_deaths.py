"""A holder that dies, hangs or loses an answer anywhere around its commit, with the state in a directory and on an
object store: Spark gets each row exactly once, and the next batch begins from the state that these rows came from.
"""

import os
import random
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from changelog.cloud_storage import CloudStorage
from changelog.storage import LocalStorage
from hybridstore.spark import exchange, placement
from hybridstore.spark.location import Location, locate
from hybridstore.spark.placement import holder_name
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.holder_jobs import Job, no_holder_stays
from tests.tools.s3_server import S3Server
from tests.tools.spark_programs import RunningCount

pytestmark = pytest.mark.skipif(not exchange.POSSIBLE, reason="holders need Linux")

SHARDS = 2
# What happens to a holder whose create of a version has arrived at the object store: the answer is lost; it is killed
# before and behind the create; it is stopped behind the create, and before it (it may then wake up behind its worker).
FATES = ("lost", "killed before", "killed behind", "stopped behind", "wakes late")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("obstore")
    with S3Server() as running:
        yield running


def on_store(root: Path, server: S3Server) -> Location:
    (root / "checkpoint").mkdir()
    return locate(root / "checkpoint", server.bucket(root.name, root / "cache"))


class DiesBehindCommit(RunningCount):
    """Ends its holder between the create of the log object of a version and the answer, once."""

    def __init__(self, once: Path, version: int) -> None:
        self.once, self.version = once, version

    def open(self, group: Any) -> Any:
        if "hybridstore.spark.holder" in sys.modules:
            for storage in (LocalStorage, CloudStorage):
                self.arm(storage)
        return super().open(group)

    def arm(self, kind: Any) -> None:
        plain, once = kind.create, self.once
        if hasattr(kind, "armed"):
            return
        kind.armed = True

        def create(storage: Any, name: str, data: bytes) -> bool:
            created: bool = plain(storage, name, data)
            if re.search(rf"(^|/)log/{self.version:020d}-", name) and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return created

        kind.create = create


@pytest.mark.parametrize("home", ["directory", "object store"])
def test_a_holder_that_dies_between_commit_and_answer(
    tmp_path: Path, home: str, request: pytest.FixtureRequest
) -> None:
    location = on_store(tmp_path, request.getfixturevalue("server")) if home == "object store" else None
    job = Job(tmp_path, DiesBehindCommit(tmp_path / "once", 2), location=location)
    storage = job.function.operator.location.operator("op")
    with no_holder_stays(storage.url):
        assert job.hand(0, "a", "b") == [{"k": k, "n": 1, "total": 1} for k in "ab"]
        task = job.batch(1)
        # the same attempt of Spark: the worker writes another object of the version, which counts
        assert job.batch_rows(task, 0, "a") == [{"k": "a", "n": 2, "total": 2}]
        assert (tmp_path / "once").exists()
        names = sorted(name for name in storage.list("") if f"/{2:020d}-" in name)
        assert [int(name.rpartition("/")[2].split("-")[2]) - 2 * task.attempt for name in names] == [0, 1]
        assert job.metrics()["placement"] == "worker"
        assert job.work(2, "a", "b") == [{"k": "a", "n": 3, "total": 3}, {"k": "b", "n": 2, "total": 2}]
        assert not list(job.place.path.glob("*.sock"))


class Fates:
    """What the object store does with holders, as `plan` says: one fate for the first create of a version and shard."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.plan: dict[tuple[int, int], str] = {}
        self.seen: Counter[str] = Counter()
        self.stopped: list[int] = []

    def __call__(self, method: str, path: str) -> str | None:
        version = re.search(r"/(\d{6})/log/(\d{20})-", path)
        if method != "PUT" or version is None:
            return None
        shard, number = int(version[1]), int(version[2]) - 1
        fate = self.plan.pop((number, shard), None)
        process = self.holder(shard)
        if fate is None or process is None:
            return None
        self.seen[fate] += 1
        if fate == "lost":
            return "lost"
        if fate.startswith("killed"):
            os.kill(process, signal.SIGKILL)
            return "lost" if fate == "killed behind" else "reset"
        os.kill(process, signal.SIGSTOP)
        if fate == "wakes late":
            self.stopped.append(process)
            return "reset"
        return None

    def holder(self, shard: int) -> int | None:
        name = holder_name(self.job.function, self.job.batch(0), shard)
        return next((process.pid for other, process in placement._started if other == name), None)


def life(root: Path, server: S3Server, seed: int, batches: int) -> Counter[str]:
    """Batches whose holders meet a fate each, as drawn, beside a model; what the state is at the end."""
    draw = random.Random(seed)
    job = Job(
        root,
        RunningCount(),
        shards=SHARDS,
        location=on_store(root, server),
        policy=CheckpointPolicy(every_commits=3),
    )
    storage = job.function.operator.location.operator("op")
    counts: Counter[tuple[int, str]] = Counter()
    with no_holder_stays(storage.url), pytest.MonkeyPatch.context() as patch:
        fates = Fates(job)
        kill = placement._kill
        for number in range(batches):
            for shard in range(SHARDS):
                keys = [draw.choice("abcdef") for _ in range(draw.choice((1, 3, 40)))]
                fate = draw.choice((*FATES, ""))
                # a holder that is stopped is waited for; nothing depends on how long
                patch.setattr(placement, "SILENCE_SECONDS", 0.5 if fate in FATES[3:] else 60.0)
                patch.setattr(placement, "_kill", (lambda connection: None) if fate == "wakes late" else kill)
                if fate:
                    fates.plan[number, shard] = fate
                server.draw = fates
                got = job.batch_rows(job.batch(number), shard, *keys)
                server.draw = lambda method, path: None
                counts.update((shard, key) for key in keys)
                expected = [{"k": k, "n": counts[shard, k], "total": counts[shard, k]} for k in sorted(set(keys))]
                assert got == expected, f"seed {seed}: batch {number}, shard {shard}, {fate!r}"
                # the next batch meets a holder again, and the one that was given up goes on beside its worker
                job.last_failures(3600)
                while fates.stopped:
                    os.kill(fates.stopped.pop(), signal.SIGCONT)
    for shard in range(SHARDS):
        identity = StateStoreId(storage.url.removesuffix("/hybridstore/op"), "op", shard, query_id="query")
        store = StateStoreProvider(identity, lenient=lambda: True, storage=storage).get_read_store(batches)
        state = {(shard, key): n for key, (n, _) in store.key_value("counts").all()}
        assert state == {place: n for place, n in counts.items() if place[0] == shard}, f"seed {seed}"
    return fates.seen


def test_every_row_comes_exactly_once_whatever_becomes_of_holders_on_an_object_store(
    tmp_path: Path, server: S3Server, seed: int, rounds: int
) -> None:
    seen: Counter[str] = Counter()
    for turn in range(rounds):
        (tmp_path / str(turn)).mkdir()
        seen += life(tmp_path / str(turn), server, seed + turn, 6)
        shutil.rmtree(tmp_path / str(turn))
    print(dict(seen))
    assert seen
