"""A job whose tasks are handed to holders, without a Spark session."""

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import accumulators, cloudpickle

from hybridstore.spark import exchange, placement, shipped
from hybridstore.spark.contract import Batch
from hybridstore.spark.exchange import SocketFolder
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.location import Location, locate
from hybridstore.spark.placement import hand_over, holder_name
from hybridstore.spark.shard.cache import CACHE
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.spark.shipped import POLICY, Operator
from hybridstore.spark.worker import ShardFunction, ShardWork
from hybridstore.state.policy import CheckpointPolicy
from recovery.runs import Claim, newest_claim
from recovery.shard_log import METRICS, ShardLog
from tests.tools.shard_tools import ATTEMPTS

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])


class Job:
    """An operator, the folder of its holders, and batches that are handed to them; its state lies below `root`, or at
    another location.
    """

    def __init__(
        self,
        root: Path,
        program: Any,
        how: shipped.Placement = "holder",
        run: str = "run-1",
        shards: int = 1,
        location: Location | None = None,
        policy: CheckpointPolicy = POLICY,
    ) -> None:
        (root / "state").mkdir(exist_ok=True)
        self.place = SocketFolder(root / "meet")
        self.run = run
        self.claims: dict[str, Claim] = {}
        operator = Operator(
            program,
            "op",
            location or locate(root / "state"),
            shards,
            ("string",),
            "stream",
            OUTPUT,
            placement=how,
            slots=shards,
            policy=policy,
        )
        self.function: ShardFunction = pickle.loads(cloudpickle.dumps(ShardFunction(operator)))

    def batch(self, number: int) -> Batch:
        """A task of a batch; the first one of a run begins it."""
        storage = self.function.operator.location.operator("op")
        if self.run not in self.claims:
            self.claims[self.run] = claim(storage, new_launch(storage), self.run, number, 1)
        return Batch(number, "query", self.run, 0, 0, 0, self.claims[self.run], next(ATTEMPTS))

    def hand(self, number: int, *keys: str, shard: int = 0) -> list[dict[str, Any]] | None:
        table = pa.table({"k": list(keys), "v": [1] * len(keys)})
        answer = hand_over(self.function, self.batch(number), shard, table, 0.0, self.place)
        rows: list[dict[str, Any]] | None = None if answer is None else answer.to_pylist()
        return rows

    def work(self, number: int, *keys: str) -> list[dict[str, Any]]:
        """As the worker does without a holder."""
        table = pa.table({"k": list(keys), "v": [1] * len(keys)})
        rows: list[dict[str, Any]] = (
            ShardWork(self.function.operator, self.batch(number)).shard(0, table, 0.0).to_pylist()
        )
        return rows

    @property
    def name(self) -> str:
        return holder_name(self.function, self.batch(0), 0)

    def last_failure(self, seconds_ago: float) -> None:
        """Let the last failure of the holder be so long ago, or to come: how long ago it was depends on the machine."""
        moment = time.time() - seconds_ago
        os.utime(self.place.path / f"{self.name}.failed", (moment, moment))

    def last_failures(self, seconds_ago: float) -> None:
        """As `last_failure`, of all holders."""
        moment = time.time() - seconds_ago
        for path in self.place.path.glob("*.failed"):
            os.utime(path, (moment, moment))

    def pid(self) -> int:
        with self.place.connect(self.name, 60) as connection:
            return exchange.peer(connection)[0]

    def batch_rows(self, batch: Batch, shard: int, *keys: str) -> list[dict[str, Any]]:
        """The rows of a task as Spark gets them: from the holder, or else from its worker."""
        table = pa.table({"k": list(keys), "v": [1] * len(keys)})
        answer = hand_over(self.function, batch, shard, table, 0.0, self.place)
        if answer is None:
            answer = ShardWork(self.function.operator, batch).shard(shard, table, 0.0)
        result: list[dict[str, Any]] = answer.to_pylist()
        return result

    def metrics(self, shard: int = 0) -> dict[str, Any]:
        storage = self.function.operator.location.operator("op")
        begun = newest_claim(storage)
        assert begun is not None
        log = ShardLog(storage.below(StateStoreId(storage.url, "op", shard).folder))
        newest = log.standing(begun.runs).newest_name()
        assert newest is not None
        return {"seen": newest.version, **log.commit_of(newest).extra[METRICS]}


@contextmanager
def no_holder_stays(location: str) -> Iterator[None]:
    """Holders that a test has started end with it, and what this process knows of them and of the state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_refused", {})
        patch.setattr(placement, "_started", [])
        # a session that other tests of this process have begun leaves accumulators, which no worker of Spark has
        patch.setattr(accumulators, "_accumulatorRegistry", {})
        # a holder would live as long as the process above this one
        patch.setattr(os, "getppid", os.getpid)
        yield
        for _, process in placement._started:
            process.kill()
            process.wait()
        CACHE.drop(location)
