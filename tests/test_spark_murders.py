"""A query that is murdered on a seeded schedule ends with the sink and the state of one that never was."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore.shards import shard_of
from hybridstore.spark import StateStoreId, StateStoreProvider

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
SHARDS = 3
POINTS = ("before", "segment", "head", "published")


class Case:
    """A seeded input and schedule, run until the query comes to its end."""

    def __init__(self, root: Path, seed: int, batches: int, master: str) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.rows: list[list[tuple[str, int]]] = []
        self.murders: list[dict[str, Any]] = []
        self.master = master
        for name in ("in", "out", "done", "scratch"):
            (root / name).mkdir()
        for number in range(batches):
            rows = [
                (f"k{self.random.randrange(40)}", self.random.randrange(100))
                for _ in range(self.random.choice((0, 1, 5, 300)))
            ]
            self.rows.append(rows)
            path = root / "in" / f"{number:05d}.json"
            path.write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows))
            os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))

    def murder(self, victim: str, point: str | None = None) -> None:
        """Plan one murder somewhere in a batch and shard that has rows."""
        batch = self.random.choice([number for number, rows in enumerate(self.rows) if rows])
        shard = shard_of(self.random.choice(self.rows[batch])[0], SHARDS)
        point = point or self.random.choice(POINTS)
        self.murders.append(
            {"victim": victim, "point": point, "batch": batch, "shard": 0 if point in ("sink", "sunk") else shard}
        )

    def run(self) -> None:
        config = {
            "input": str(self.root / "in"),
            "out": str(self.root / "out"),
            "done": str(self.root / "done"),
            "scratch": str(self.root / "scratch"),
            "checkpoint": str(self.root / "checkpoint"),
            "shards": SHARDS,
            "murders": self.murders,
            "master": self.master,
        }
        (self.root / "config.json").write_text(json.dumps(config))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        for _ in range(len(self.murders) + 1):
            process = subprocess.run(
                [sys.executable, "-m", "tests.spark_murders", str(self.root / "config.json")],
                cwd=ROOT,
                env=environment,
                start_new_session=True,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if process.returncode == 0:
                return
            assert process.returncode == -9, process.stderr[-3000:]
        pytest.fail("the query never came to its end")

    def check(self) -> None:
        """Compare sink and state with a plain-Python run that nobody interrupted."""
        state: dict[str, list[int]] = {}
        for number, rows in enumerate(self.rows):
            for k, v in rows:
                n, total = state.get(k, [0, 0])
                state[k] = [n + 1, total + v]
            expected = sorted([k, *state[k]] for k in {k for k, _ in rows})
            assert json.loads((self.root / "out" / str(number)).read_text()) == expected, f"batch {number}"
        assert not list((self.root / "out").glob("*.differs"))
        assert {entry.name for entry in (self.root / "done").iterdir()} == {str(i) for i in range(len(self.murders))}
        query = json.loads((self.root / "checkpoint/metadata").read_text())["id"]
        found: dict[str, list[int]] = {}
        for shard in range(SHARDS):
            identity = StateStoreId(str(self.root / "checkpoint"), "op", shard, query_id=query)
            store = StateStoreProvider(identity, reached=lambda seen, version: True).get_read_store(len(self.rows))
            if "counts" in store.group.stores:
                found |= {key: list(value) for key, value in store.key_value("counts").all()}
        assert found == state


@pytest.mark.stress
def test_scenario_70_workers_tasks_and_sinks_murdered(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        (tmp_path / str(number)).mkdir()
        case = Case(tmp_path / str(number), seed + number, 10, "local[2,4]")
        for _ in range(6):
            case.murder("worker")
        for _ in range(4):
            case.murder("task")
        for point in ("sink", "sunk"):
            case.murder("task", point)
        case.run()
        case.check()


@pytest.mark.stress
def test_scenario_64_and_65_drivers_murdered(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        (tmp_path / str(number)).mkdir()
        case = Case(tmp_path / str(number), seed + number, 8, "local[2]")
        case.murder("driver")
        case.murder("driver", case.random.choice(("segment", "head", "published", "sink", "sunk")))
        case.run()
        case.check()


@pytest.mark.stress
def test_executors_murdered(tmp_path: Path, seed: int, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("an executor of its own takes long to start: make stress")
    for number in range(rounds):
        (tmp_path / str(number)).mkdir()
        case = Case(tmp_path / str(number), seed + number, 8, "local-cluster[2,1,1024]")
        for victim in ("executor", "executor", "worker", "task"):
            case.murder(victim)
        case.run()
        case.check()
