"""A query that is murdered on a seeded schedule ends with the sink and the state of one that never was."""

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

from hybridstore.shards import shard_of
from hybridstore.spark.location import locate
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from tests.tools.doomed_doors import DOORS
from tests.tools.s3_server import S3Server, Weather
from tests.tools.script import run_script
from tests.tools.spark_murders import state_of
from tests.tools.standalone import standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHARDS = 3
# as many Spark tasks share the shards in the first start of a query, in the second, ...
TASKS = (2, 3, 1)
# Schedules of a round of `make stress`, for each placement, by where the state is.
MANY = {"files": 30, "bucket": 8}
POINTS = ("before", "begun", "create", "created")
SINK = ("sink", "sunk")


class Case:
    """A seeded input and the murders in it; the state is in files, or on a server."""

    # how many rows a batch but the first has
    sizes: tuple[int, ...] = (0, 1, 5, 300)
    # one of Spark's doors (None: a program that counts), and its limit of memory (bytes)
    door: str | None = None
    limit: int | None = None

    def __init__(
        self, root: Path, seed: int, batches: int, placement: str = "worker", server: S3Server | None = None
    ) -> None:
        self.root = root
        self.placement = placement
        self.server = server
        self.seed = seed
        self.random = random.Random(seed)
        self.rows: list[list[tuple[str, int]]] = []
        self.murders: list[dict[str, Any]] = []
        for name in ("in", "out", "done"):
            (root / name).mkdir(parents=True)
        for number in range(batches):
            sizes = (5, 300) if number == 0 else self.sizes
            rows = [
                (f"k{self.random.randrange(40)}", self.random.randrange(100)) for _ in range(self.random.choice(sizes))
            ]
            self.rows.append(rows)
            path = root / "in" / f"{number:05d}.json"
            # one row of 17 is five minutes late
            times = [1000 + 60 * number + v - (300 if v % 17 == 16 else 0) for _, v in rows]
            lines = [json.dumps({"k": k, "v": v, "t": t}) + "\n" for (k, v), t in zip(rows, times, strict=True)]
            path.write_text("".join(lines))
            os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))

    def murder(self, victim: str, point: str | None = None) -> None:
        """Plan one murder somewhere in a batch and shard that has rows."""
        batch = self.random.choice([number for number, rows in enumerate(self.rows) if rows])
        shard = shard_of(self.random.choice(self.rows[batch])[0], SHARDS)
        point = point or self.random.choice(POINTS)
        self.murders.append({"victim": victim, "point": point, "batch": batch, "shard": 0 if point in SINK else shard})

    def murder_by_lot(self, driver: bool, victims: Sequence[str]) -> None:
        """Plan two or three murders: of the driver first, or of some of `victims`, who leave it alive."""
        if driver:
            self.murder("driver", self.random.choice(POINTS + SINK))
        for _ in range(1 if driver else self.random.choice((2, 3))):
            victim = self.random.choice((*victims, "task", "sink"))
            if victim == "sink":
                self.murder("task", self.random.choice(SINK))
            else:
                self.murder(victim)

    def job(self) -> dict[str, Any]:
        """What tests/tools/spark_murders.py needs to know."""
        names = {"input": "in", "out": "out", "done": "done", "checkpoint": "checkpoint", "ended": "ended"}
        job: dict[str, Any] = {name: str(self.root / place) for name, place in names.items()}
        job |= {"placement": self.placement, "door": self.door, "limit": self.limit}
        if self.server is not None:
            job["state"] = self.server.url(f"murders/{self.seed}")
            job["settings"] = {"cache": str(self.root / "cache"), **self.server.options}
        return job | {"murders": self.murders}

    def check_murders(self) -> str:
        """Check that all murders took place, and that no attempt at a batch gave other rows. Return what took place."""
        about = f"seed {self.seed}: {self.murders}"
        assert not list((self.root / "out").glob("*.differs")), about
        done = {entry.name for entry in (self.root / "done").iterdir()}
        assert done == {str(i) for i in range(len(self.murders))}, about
        return about

    def check(self) -> None:
        """Compare sink and state with a plain-Python run that nobody interrupted."""
        about = self.check_murders()
        state: dict[str, list[int]] = {}
        for number, rows in enumerate(self.rows):
            for k, v in rows:
                n, total = state.get(k, [0, 0])
                state[k] = [n + 1, total + v]
            expected = sorted([k, *state[k]] for k in {k for k, _ in rows})
            assert json.loads((self.root / "out" / str(number)).read_text()) == expected, f"{about}: batch {number}"
        query = json.loads((self.root / "checkpoint/metadata").read_text())["id"]
        counts: dict[str, list[int]] = {}
        job = self.job()
        location = locate(job["checkpoint"], state_of(job))
        for shard in range(SHARDS):
            identity = StateStoreId(location.state, "op", shard, query_id=query)
            reader = StateStoreProvider(identity, lenient=lambda: True, storage=location.operator("op"))
            store = reader.get_read_store(len(self.rows))
            if "counts" in store.group.stores:
                counts |= {key: list(value) for key, value in store.key_value("counts").all()}
        assert counts == state, about


class DoorCase(Case):
    """The same over one of Spark's doors. `beside`: a case of the same rows, without murders and without a limit."""

    sizes = (120,)

    def __init__(self, root: Path, seed: int, door: str, placement: str, beside: "DoorCase | None" = None) -> None:
        super().__init__(root, seed, 5, placement)
        self.door, self.beside, self.limit = door, beside, None if beside is None else 100_000

    def check(self) -> None:
        """Compare the sink with that of the case beside this one."""
        about = self.check_murders()
        if self.beside is None:
            return
        sinks = [
            {path.name: json.loads(path.read_text()) for path in (case.root / "out").glob("*[0-9]")}
            for case in (self, self.beside)
        ]
        assert sinks[0] == sinks[1], about
        assert len(sinks[0]) >= 5, about


def run_and_check(root: Path, cases: list[Case], master: str, *, connect: bool = False) -> None:
    """Run the cases one after the other in one JVM; where it is murdered, another goes on; then compare each."""
    (root / "scratch").mkdir(exist_ok=True)
    jobs = [case.job() for case in cases]
    config = {"master": master, "scratch": str(root / "scratch"), "shards": SHARDS, "jobs": jobs}
    config |= {"tasks": TASKS, "connect": connect}
    (root / "config.json").write_text(json.dumps(config))
    for case in cases:
        print(
            f"seed {case.seed}: "
            + ", ".join(f"{m['victim']} at {m['point']} of batch {m['batch']}" for m in case.murders)
        )
    for _ in range(1 + sum(murder["victim"] == "driver" for case in cases for murder in case.murders)):
        if run_script("tests.tools.spark_murders", str(root / "config.json"), start_new_session=True) == 0:
            break
    else:
        pytest.fail("the queries never came to their end")
    print(f"{len(cases)} schedules, {sum(len(case.murders) for case in cases)} murders")
    for case in cases:
        assert Path(case.job()["ended"]).exists()
        case.check()


# who can be murdered with which placement, but for the driver, a task and the sink
VICTIMS = {"worker": ("worker",), "holder": ("worker", "waiting")}


@contextmanager
def bucket(seed: int) -> Iterator[S3Server]:
    """An object store that answers late, and sometimes not at all or with an error."""
    pytest.importorskip("obstore")
    with S3Server(latency=0.02) as server:
        server.draw = weather = Weather(seed, 0.05)
        yield server
        print(f"requests: {dict(server.count)}, faults: {dict(weather.count)}")


def test_all_but_the_driver_murdered_on_schedule(tmp_path: Path, seed: int) -> None:
    """One JVM for both placements, one of them with its state in files; each of its victims once, and the sink."""
    with bucket(seed) as server:
        places = random.Random(seed).sample((None, server), 2)
        cases = []
        for number, (placement, victims) in enumerate(VICTIMS.items()):
            # checkpoints come every fourth commit
            case = Case(tmp_path / placement, seed + number, 5, placement, places[number])
            for victim in (*victims, "task"):
                case.murder(victim)
            case.murder("task", case.random.choice(SINK))
            cases.append(case)
        run_and_check(tmp_path, cases, "local[2,4]")


@pytest.mark.stress
@pytest.mark.scenario(64, 65, 70)
@pytest.mark.parametrize("place", MANY)
@pytest.mark.parametrize("placement", VICTIMS)
def test_everybody_murdered_on_schedule(tmp_path: Path, seed: int, rounds: int, placement: str, place: str) -> None:
    if rounds == 1:
        pytest.skip("each murder of a driver takes one more Java: make stress")
    with bucket(seed) if place == "bucket" else nullcontext() as server:
        for turn in range(rounds):
            cases = []
            for number in range(MANY[place]):
                # most are short
                batches = 6 if server else 10 if number % 15 == 2 else 3
                folder = tmp_path / str(turn) / str(number)
                case = Case(folder, seed + 100 * turn + number, batches, placement, server)
                case.murder_by_lot(number % 6 == 0, VICTIMS[placement])
                cases.append(case)
            run_and_check(tmp_path / str(turn), cases, "local[2,4]")


@pytest.mark.stress
@pytest.mark.parametrize("placement", VICTIMS)
def test_every_door_murdered_on_schedule(tmp_path: Path, seed: int, rounds: int, placement: str) -> None:
    if rounds == 1:
        pytest.skip("eight queries that are murdered take long: make stress")
    cases = []
    for door in DOORS:
        beside = DoorCase(tmp_path / door / "beside", seed, door, "worker")
        case = DoorCase(tmp_path / door / "murdered", seed, door, placement, beside)
        for victim in (*VICTIMS[placement], "task"):
            case.murder(victim, case.random.choice(POINTS[1:]))
        case.murder("driver", case.random.choice((*POINTS[1:], *SINK)))
        cases += [beside, case]
    run_and_check(tmp_path, cases, "local[2,4]")


@pytest.mark.stress
def test_a_server_of_spark_connect_murdered_with_its_client(tmp_path: Path, seed: int, rounds: int) -> None:
    pytest.importorskip("grpc")
    if rounds == 1:
        pytest.skip("a server of its own takes long to start: make stress")
    cases = []
    for number in range(rounds):
        case = Case(tmp_path / str(number), seed + number, 3)
        for victim in ("driver", "worker", "task"):
            case.murder(victim)
        cases.append(case)
    run_and_check(tmp_path, cases, "local[2,4]", connect=True)


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[str]:
    """A standalone master with two workers of one core each. Yields the master's address."""
    with standalone(tmp_path, 2, 1) as address:
        yield address


@pytest.mark.stress
@pytest.mark.parametrize("placement", ["worker", "holder"])
@pytest.mark.parametrize("cluster", ["local-cluster", "standalone"])
def test_executors_murdered(
    cluster: str, placement: str, tmp_path: Path, seed: int, rounds: int, request: pytest.FixtureRequest
) -> None:
    if rounds == 1:
        pytest.skip("an executor of its own takes long to start: make stress")
    master = "local-cluster[2,1,1024]" if cluster == "local-cluster" else request.getfixturevalue("two_workers")
    for turn in range(rounds):
        case = Case(tmp_path / str(turn) / "0", seed + turn, 8, placement)
        # a worker of Spark's that is stopped is waited for; a holder is given up
        victims = ("worker",) if placement == "worker" else ("worker", "waiting", "stopped")
        for victim in ("executor", "executor", "task", *victims):
            case.murder(victim)
        run_and_check(tmp_path / str(turn), [case], master)
