"""Streaming jobs that are murdered on schedule, for tests/spark/test_murders.py.

Run as a script: python -m tests.tools.spark_murders CONFIG.

CONFIG lists jobs, which run one after the other in one JVM, each over its own input and checkpoint; one that ended is
passed over, so that the process which follows a murdered one goes on where that was.

A murder is done once, in the batch, shard and at the point that the schedule names, by whichever attempt gets there
first:

    point    before (processing), begun (the run), create (before the object is created), created (after it), sink, sunk
    victim   driver (its whole process group), executor, worker (the process that runs the program: with placement
             "holder" that is a holder), waiting (with "holder": all of an executor's workers), stopped (SIGSTOP),
             task (an exception); at the sink: driver, task
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from changelog.bucket import Bucket
from changelog.cloud_storage import CloudStorage
from changelog.storage import LocalStorage
from hybridstore.clock import Watermark
from hybridstore.state.group import StoreGroup
from recovery.layout import parse_log_name
from tests.tools import quick_java
from tests.tools.spark_programs import CountRunner, RunningCount


class Schedule:
    """The murders of a job, and who has been murdered already (by files, which survive everybody)."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.murders: list[dict[str, Any]] = config["murders"]
        self.done = Path(config["done"])
        self.driver_group: int = config["driver_group"]

    def strike(self, point: str, batch: int, shard: int) -> None:
        """Do what the schedule has for this point, if it has not been done."""
        for number, murder in enumerate(self.murders):
            if (murder["point"], murder["batch"], murder["shard"]) != (point, batch, shard):
                continue
            try:
                os.close(os.open(self.done / str(number), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            self._kill(murder["victim"])

    def _kill(self, victim: str) -> None:
        if victim == "task":
            raise RuntimeError("murdered on schedule")
        if victim == "driver":
            os.killpg(self.driver_group, signal.SIGKILL)
        elif victim == "executor":
            os.kill(_parent_of(_daemon()), signal.SIGKILL)
        elif victim == "waiting":
            daemon = _daemon()
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if _parent_of(int(process.name)) == daemon:
                        os.kill(int(process.name), signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGSTOP if victim == "stopped" else signal.SIGKILL)


def state_of(config: dict[str, Any]) -> str | None:
    """Return where the job keeps its state, if not below its checkpoint."""
    return Bucket(config["state"], **config["settings"]) if "state" in config else None


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _daemon() -> int:
    """The process that Spark's workers of an executor come from: the parent of a worker, the owner of a holder. The
    executor is its parent.
    """
    return int(sys.argv[4]) if sys.argv[0] == "-c" else os.getppid()


class DoomedCount(RunningCount):
    """The running count, with the schedule watching."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def open(self, group: StoreGroup) -> "DoomedRunner":
        schedule = Schedule(self.config)
        watch_creations(schedule)
        return DoomedRunner(group.open("counts", "key_value", {"ttl_ms": None}), schedule)


class DoomedRunner(CountRunner):
    def __init__(self, store: Any, schedule: Schedule) -> None:
        super().__init__(store)
        self.schedule = schedule
        self.place = (0, 0)

    def begin(self, batch: Any, shard: int, *_: Any) -> None:
        self.place = (batch.number, shard)

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        self.schedule.strike("before", *self.place)
        return super().process(table, output, watermark)


def watch_creations(schedule: Schedule) -> None:
    """Strike when this job's objects are created; a worker that serves one job after the other is handed each one's
    schedule.
    """
    for storage, really in _CREATE.items():

        def create(self: Any, name: str, data: bytes, really: Callable[..., bool] = really) -> bool:
            parsed = parse_log_name(name)
            if parsed is None:
                return really(self, name, data)
            batch, shard = parsed.version - 1, int(self.url.rpartition("/")[2])
            schedule.strike("begun", batch, shard)
            schedule.strike("create", batch, shard)
            created = really(self, name, data)
            schedule.strike("created", batch, shard)
            return created

        storage.create = create  # type: ignore[attr-defined]


_CREATE: dict[type, Callable[..., bool]] = {kind: kind.create for kind in (LocalStorage, CloudStorage)}


def main(path: str) -> int:
    config = json.loads(Path(path).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # who is murdered here had written Spark's checkpoint as in production
    os.environ["SPARK_SUBMIT_OPTS"] = quick_java.options_of_java()
    if config["connect"]:
        # pyspark then asks its own server for the port, instead of taking 15002
        os.environ["SPARK_TESTING"] = "1"
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    builder: Any = SparkSession.builder
    # of a server of Spark Connect that dies with this process
    builder = builder.remote(config["master"]) if config["connect"] else builder.master(config["master"])
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.local.dir", config["scratch"]).config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.python.daemon.module", "tests.tools.python_daemon")
    session = hsp.configure(builder.config("spark.ui.showConsoleProgress", "false")).getOrCreate()
    if not config["connect"]:
        session.sparkContext.setLogLevel("OFF")
    for job in config["jobs"]:
        ended = Path(job["ended"])
        if not ended.exists():
            run(
                session,
                job
                | {"driver_group": os.getpgid(0), "shards": config["shards"]}
                | {"tasks": config["tasks"], "connect": config["connect"]},
            )
            ended.touch()
    session.stop()
    return 0


def run(session: Any, config: dict[str, Any]) -> None:
    """Run one job to the end of its input, through every failure that leaves the driver alive."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame

    from hybridstore import CheckpointPolicy
    from hybridstore import spark as hsp

    schedule, out = Schedule(config), Path(config["out"])

    def sink(batch: DataFrame, number: int) -> None:
        rows = sorted(list(row) for row in batch.collect())
        schedule.strike("sink", number, 0)
        text = json.dumps(rows)
        if (out / str(number)).exists() and (out / str(number)).read_text() != text:
            (out / f"{number}.differs").write_text(text)
        (out / f"{number}.tmp").write_text(text)
        (out / f"{number}.tmp").rename(out / str(number))
        schedule.strike("sunk", number, 0)

    while True:
        # Every start has another number of tasks.
        started = len(list(out.glob("*.started"))) % len(config["tasks"])
        (out / f"{time.time_ns()}.started").touch()
        df = session.readStream.schema("k string, v long, t long").option("maxFilesPerTrigger", 1)
        place: dict[str, Any] = {"name": "op", "location": config["checkpoint"], "shards": config["shards"]}
        place |= {"placement": config["placement"], "state_location": state_of(config)}
        place |= {"checkpoints": CheckpointPolicy(every_commits=4), "tasks": config["tasks"][started]}
        place |= {"memory_limit": config["limit"]}
        if config["door"] is None:
            rows = df.json(config["input"]).select("k", "v")
            counted = hsp.apply_program(rows, DoomedCount(config), **place)
        else:
            from tests.tools.doomed_doors import build

            counted = build(config["door"], df.json(config["input"]), config, place)
        writer = counted.writeStream.foreachBatch(sink)
        if config["connect"]:
            # Spark Connect gives up a function for foreachBatch that needs more than ten seconds to start
            writer = counted.writeStream.format("json").option("path", str(out / "files"))
        query = writer.option("checkpointLocation", config["checkpoint"]).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            (out / "failures").open("a").write(str(error)[:4000] + "\n=====\n")
            continue
        break
    for log in out.glob("files/_spark_metadata/*[0-9]"):
        paths = [json.loads(line)["path"].removeprefix("file://") for line in log.read_text().splitlines()[1:]]
        lines = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
        (out / log.name).write_text(json.dumps(sorted([line["k"], line["n"], line["total"]] for line in lines)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
