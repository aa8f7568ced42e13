"""A streaming job under a scheduler that does not leave tasks where they were, or begins them twice, for
tests/spark/test_homes.py. Run as a script: python -m tests.tools.spark_homes FOLDER PLACEMENT CASE.

Every batch leaves a JSON file in FOLDER/out: its rows, the metrics of its shards, and how many executors there were.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import pyarrow as pa

from hybridstore.clock import Watermark
from hybridstore.state.group import StoreGroup
from tests.tools.spark_programs import CountRunner, RunningCount
from tests.tools.standalone import standalone

KEYS = 300


class Home(NamedTuple):
    """What the job runs on."""

    master: str
    shards: int
    batches: int
    settings: dict[str, str]
    # as many Spark tasks share the shards; None: one each
    tasks: int | None = None
    # whether some batches wait for more than one executor, and those before them for all but one to leave
    grows: bool = False
    # whether the first attempt of some batches is so slow that Spark begins another one
    slow: bool = False
    # whether a holder ends behind the commit of a version, once, with tasks that do not run under their own number
    dies: bool = False


CASES = {
    "many": Home("local[8]", 32, 3, {}),
    # executors leave when they have nothing to do, and others come
    "allocation": Home(
        "local-cluster[3,1,1024]",
        6,
        8,
        {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
            "spark.dynamicAllocation.minExecutors": "1",
            "spark.dynamicAllocation.maxExecutors": "3",
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        },
        grows=True,
    ),
    # executors with a worker each, and a union behind the operator
    "dies": Home("local-cluster[2,1,1024]", 4, 6, {}, dies=True),
    # three workers of a standalone master, each on a host of its own as far as Spark knows
    "speculation": Home(
        "standalone",
        6,
        8,
        {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.01",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.minTaskRuntime": "100ms",
        },
        tasks=3,
        slow=True,
    ),
}
SLOW_BATCHES = (2, 5)
# so long a slow attempt waits for a second one, which in a holder waits for its end
SLOW_SECONDS = 6.0
# Executors come while a task of these batches waits for them, and leave behind the batch before the next of these; on a
# busy machine both take as long as they take.
GROWING_BATCHES = (0, 3, 6)
PATIENCE_SECONDS = 300.0


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Return when a condition holds, or after some seconds."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)


class DyingCount(RunningCount):
    """The running count; a holder ends between the create of a log object of version 3 and its answer, once."""

    def __init__(self, tried: str) -> None:
        self.tried = tried

    def open(self, group: StoreGroup) -> Any:
        from changelog.storage import LocalStorage

        if "hybridstore.spark.holder" in sys.modules and not hasattr(LocalStorage, "armed"):
            LocalStorage.armed = True  # type: ignore[attr-defined]
            plain, once = LocalStorage.create, Path(self.tried) / "died"

            def create(storage: Any, name: str, data: bytes) -> bool:
                created = plain(storage, name, data)
                if f"log/{3:020d}-" in name:
                    try:
                        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        return created
                    os.kill(os.getpid(), signal.SIGKILL)
                return created

            LocalStorage.create = create  # type: ignore[method-assign]
        return super().open(group)


class SlowCount(RunningCount):
    """The running count; the first attempt of shard 0 in some batches waits for a second one."""

    def __init__(self, tried: str) -> None:
        self.tried = tried

    def open(self, group: StoreGroup) -> "SlowRunner":
        return SlowRunner(group.open("counts", "key_value", {"ttl_ms": None}), Path(self.tried))


class PlacedRunner(CountRunner):
    """A running count that knows its batch and shard."""

    def __init__(self, store: Any, tried: Path) -> None:
        super().__init__(store)
        self.tried = tried
        self.place = (0, 0)

    def begin(self, batch: Any, shard: int, *_: Any) -> None:
        self.place = (batch.number, shard)


class SlowRunner(PlacedRunner):
    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        batch, shard = self.place
        if shard == 0 and batch in SLOW_BATCHES:
            first, second = self.tried / f"{batch}-first", self.tried / f"{batch}-second"
            try:
                os.close(os.open(first, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                second.touch()
            else:
                wait_for(second.exists, SLOW_SECONDS)
        return super().process(table, output, watermark)


class GrowingCount(SlowCount):
    """The running count; shard 0 of some batches waits until there is more than one executor."""

    def open(self, group: StoreGroup) -> "GrowingRunner":
        return GrowingRunner(group.open("counts", "key_value", {"ttl_ms": None}), Path(self.tried))


class GrowingRunner(PlacedRunner):
    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        batch, shard = self.place
        if shard == 0 and batch in GROWING_BATCHES:
            wait_for((self.tried / "several").exists, PATIENCE_SECONDS)
        return super().process(table, output, watermark)


class Watch:
    """Looks at the number of executors all the time; the file `several` is there when there was more than one."""

    def __init__(self, executors: Callable[[], int], several: Path) -> None:
        self.executors, self.several = executors, several
        self.seen: set[int] = set()
        self._looking = Lock()
        self._ended = Event()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Look until the block ends."""
        watching = Thread(target=self._watch)
        watching.start()
        try:
            yield
        finally:
            self._ended.set()
            watching.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            with self._looking:
                self.seen.add(number := self.executors())
                if number > 1:
                    self.several.touch()

    def until_one(self) -> None:
        """Wait until all executors but one have left, and forget that there were more."""

        def is_one() -> bool:
            with self._looking:
                if (number := self.executors()) == 1:
                    self.several.unlink(missing_ok=True)
                return number == 1

        wait_for(is_one, PATIENCE_SECONDS)


def rows_of(batch: int) -> list[tuple[str, int]]:
    """The rows of a batch: other keys in each."""
    return [(f"k{i}", i % 7 + batch) for i in range(KEYS) if (i + batch) % 3]


def main(folder: Path, placement: Any, case: str) -> int:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import DataFrame, SparkSession

    from hybridstore import spark as hsp

    home, standing = CASES[case], ExitStack()
    for name in ("in", "out", "scratch", "tried"):
        (folder / name).mkdir()
    for number in range(home.batches):
        path = folder / "in" / f"{number:05d}.json"
        path.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows_of(number)))
        os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.daemon.module": "tests.tools.python_daemon",
        **home.settings,
    }
    master = standing.enter_context(standalone(folder, 3, 1, hosts=3)) if home.master == "standalone" else home.master
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = hsp.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    checkpoint = str(folder / "checkpoint")

    def executors() -> int:
        return int(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1

    watch = Watch(executors, folder / "tried/several")

    def sink(batch: DataFrame, number: int) -> None:
        rows = sorted(list(row) for row in batch.collect())
        if home.grows and number + 1 in GROWING_BATCHES:
            watch.until_one()
        report = {"rows": rows, "metrics": hsp.metrics(checkpoint), "executors": [*watch.seen, executors()]}
        watch.seen.clear()
        (folder / "out" / str(number)).write_text(json.dumps(report))

    df = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    tried = str(folder / "tried")
    program: Any = SlowCount(tried) if home.slow else GrowingCount(tried) if home.grows else RunningCount()
    if home.dies:
        program = DyingCount(tried)
    counted = hsp.apply_program(
        df, program, name="op", location=checkpoint, shards=home.shards, placement=placement, tasks=home.tasks
    )
    if home.dies:
        # the operator's tasks do not run under their own number
        counted = df.where("v < 0").selectExpr("k", "v n", "v total").union(counted)
    writer = counted.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    with watch.open():
        writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()
    standing.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
