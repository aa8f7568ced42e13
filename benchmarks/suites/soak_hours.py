"""A run of hours: jobs that are killed, rescaled and changed on a schedule, with answers compared by quarter.

    make soak HOURS=2
    python -m benchmarks.suites.soak_hours --hours 0.2 --parts plain,objects --kill-every 20

    plain     a topology in a process of its own, its state in a directory
    objects   the same, its state on a local S3 server that answers late, twice, with an error or not at all
    spark     batches on local-cluster[2,1,1024], a state under a limit, processes of Python killed (soak_spark.py)

In `plain` and `objects` the job has a memory limit, checkpoints beside it, and rows at a rate. At moments drawn from
the seed it is killed by signal 9; behind some kills its state is rescaled, or its program changed (a store comes and is
dropped). At the end of each quarter every count and sum of the state is compared with those of numpy, and a line tells
memory, files, latency and what was done; the verdict compares the last quarter with the second. A row follows from its
number, so that any answer can be made again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

import hybridstore as hs
from benchmarks.measure.watched import anonymous_bytes
from changelog.storage import storage_at
from hybridstore.rescaling.api import remove_old_shards
from hybridstore.rescaling.plain import current_generation
from hybridstore.state.policy import CheckpointPolicy
from recovery.layout import generation_folder

ROOT: Final = Path(__file__).resolve().parents[2]
QUARTERS: Final = 4
COMMIT_ROWS: Final = 500
# What the last quarter may be of the second.
FLAT: Final = 1.25
_SHARDS: Final = (2, 4, 3)
# Seconds without a commit that are a fault, without those in which the job was kept from a processor.
SILENT: Final = 600


# --- the job ----------------------------------------------------------------------------------------------------------


def keys_of(numbers: Any, keys: int) -> Any:
    """Return the keys of rows by their numbers, half of them below half of `keys`. Takes a number or an array."""
    mixed = numbers * 2_654_435_761 % 4_294_967_296
    return mixed % keys // (1 + mixed // 65_536 % 2)


def count(row: dict[str, Any], stores: Any) -> Iterator[dict[str, Any]]:
    """Count and sum the rows of a key."""
    number, total = stores["counts"].get(row["k"]) or (0, 0)
    stores["counts"].put(row["k"], (number + 1, total + row["v"]))
    if "last" in stores:
        stores["last"].put(row["k"], row["i"])
    if row["i"] % COMMIT_ROWS == COMMIT_ROWS - 1:
        yield {"k": row["k"], "n": number + 1}


def topology(changed: bool) -> hs.Topology:
    """Return the job; `changed` has a store more."""
    stores = [hs.key_value_store("counts"), *([hs.key_value_store("last")] if changed else [])]
    return hs.stream(key="k", timestamp="i").process(count, stores=stores)


def place_of(location: str, storage: dict[str, Any]) -> Any:
    """Return where a state is: a path, or a bucket with the settings of its server."""
    return hs.Bucket(location, **storage) if storage else location


def work(location: str, changed: bool, shards: int, keys: int, rate: int, limit: int, most: int, options: str) -> None:
    """Run the job behind its position for `most` rows (0: for ever), at `rate` rows a second; print a line for each
    commit.
    """
    behind, storage = -1, json.loads(options)
    exists = Path(location).exists() if "://" not in location else storage.pop("begun", False)
    storage.pop("begun", None)
    place = place_of(location, storage)
    consents: list[str] = []
    if exists:
        behind = hs.inspect(place).position or behind
        consents = [change.consent for change in topology(changed).compare(place) if change.consent]
    begun = time.perf_counter()

    def rows() -> Iterator[dict[str, Any]]:
        number = behind + 1
        while not most or number <= behind + most:
            due = begun + (number - behind) / rate
            if number % 100 == 0 and (ahead := due - time.perf_counter()) > 0:
                time.sleep(ahead)
            yield {"k": int(keys_of(number, keys)), "v": number % 1000, "i": number}
            number += 1

    moments: list[float] = [time.perf_counter()]

    def tell(phase: str, done: int, total: int) -> None:
        now = time.perf_counter()
        print(json.dumps([done, 1000 * (now - moments[0])]), flush=True)
        moments[0] = now

    policy = CheckpointPolicy(every_commits=40)
    results = topology(changed).run(
        rows(),
        place,
        shards=shards,
        position="i",
        commit_rows=COMMIT_ROWS,
        checkpoints=policy,
        memory_limit=limit,
        progress=tell,
        allow=consents,
    )
    for _ in results:
        pass


# --- the schedule -----------------------------------------------------------------------------------------------------


def waits(pid: int) -> dict[str, float]:
    """Return the seconds for which each thread of a process, and of those that it has started, was ready to run and had
    no processor; nothing where the system does not tell.
    """
    seconds, tasks = dict[str, float](), list(Path(f"/proc/{pid}/task").glob("*"))
    while tasks:
        task = tasks.pop()
        with suppress(OSError):  # one that has just ended
            seconds[task.name] = int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
            for child in (task / "children").read_text(encoding="ascii").split():
                tasks += Path(f"/proc/{child}/task").glob("*")
    return seconds


class Job:
    """A job on its state, and what was done to it."""

    def __init__(self, location: str, asked: argparse.Namespace, seed: int, storage: dict[str, str]) -> None:
        self.location, self.asked, self.storage = location, asked, storage
        self.dice = random.Random(seed)
        self.shards, self.changed = _SHARDS[0], False
        self.done: Counter[str] = Counter()
        self.latencies: list[float] = []
        self.restarts: list[float] = []
        self.memory = 0
        self.begun = False

    def command(self, most: int) -> list[str]:
        """Return the command that runs the job for so many rows."""
        options = json.dumps({**self.storage, **({"begun": True} if self.begun else {})})
        sizes = [int(self.changed), self.shards, self.asked.keys, self.asked.rate, self.asked.limit, most]
        arguments = [self.location, *map(str, sizes), options]
        return [sys.executable, "-X", "faulthandler", "-m", "benchmarks.suites.soak_hours", "--work", *arguments]

    def settle(self) -> None:
        """Run the job for a commit to its end: a kill may have left shards a commit apart."""
        self._work(COMMIT_ROWS, math.inf)

    def run(self, seconds: float) -> None:
        """Run the job in a process of its own, and kill it after so long."""
        self._work(0, seconds)
        self.begun = True
        self.done["kills"] += 1

    def _work(self, most: int, seconds: float) -> None:
        """Run the job for `most` rows, or, where that is 0, for so long and a commit at least. Raises SystemExit if it
        fails, or has committed nothing for SILENT seconds in which it was not kept from a processor: with where it is.
        """
        started, first = time.monotonic(), True
        # a file: a job that wrote more than a pipe takes would wait for a reader
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(self.command(most), stdout=subprocess.PIPE, stderr=errors, cwd=ROOT) as process,
        ):
            assert process.stdout is not None
            last, before, pending = started, dict[str, float](), b""
            try:
                while first or most or time.monotonic() < started + seconds:
                    code = process.poll()
                    if code == 0 and most:
                        return
                    kept = sum(total - before.get(task, 0) for task, total in waits(process.pid).items())
                    silent = time.monotonic() - last - kept
                    if code is not None or silent > SILENT:
                        what = "ended" if code is not None else f"has not committed for {SILENT} s"
                        # Python tells where each thread is (-X faulthandler)
                        process.send_signal(signal.SIGABRT)
                        process.wait()
                        errors.seek(0)
                        raise SystemExit(f"WRONG: the job {what}: {errors.read().decode()[-3000:]}")
                    self.memory = max(self.memory, anonymous_bytes(process.pid))
                    if not select.select([process.stdout], [], [], 0.2)[0]:
                        continue
                    text = os.read(process.stdout.fileno(), 65536)
                    if not text:
                        process.wait()
                    *lines, pending = (pending + text).split(b"\n")
                    for line in lines:
                        last, before = time.monotonic(), waits(process.pid)
                        if first and not most:
                            self.restarts.append(last - started)
                        elif not most:
                            self.latencies.append(json.loads(line)[1])
                        first = False
            finally:
                process.kill()

    def inspect(self) -> Any:
        """Return the state as it is."""
        return hs.inspect(place_of(self.location, self.storage))

    def change(self) -> None:
        """Rescale the state, change the program, or neither."""
        what = self.dice.choice(["rescale", "program", "nothing"])
        if what == "rescale":
            self.settle()
            place = place_of(self.location, self.storage)
            # the job has committed since the rescale before, whose old shards are then of no use
            remove_old_shards(place)
            self.shards = _SHARDS[(_SHARDS.index(self.shards) + 1) % len(_SHARDS)]
            routes = dict.fromkeys(("counts", "last") if self.changed else ("counts",), "key")
            hs.rescale(place, shards=self.shards, routes=routes)
        elif what == "program":
            self.changed = not self.changed
        self.done[what] += 1

    def compare(self) -> int:
        """Compare every count and sum of the state with numpy's; return the rows. Raises SystemExit if one differs."""
        self.settle()
        view = self.inspect()
        rows = (view.position if view.position is not None else -1) + 1
        numbers = np.arange(rows, dtype=np.int64)
        chosen = np.asarray(keys_of(numbers, self.asked.keys))
        counts, sums = np.bincount(chosen), np.bincount(chosen, weights=numbers % 1000)
        expected = {int(key): (int(counts[key]), int(sums[key])) for key in np.flatnonzero(counts)}
        actual: dict[int, tuple[int, int]] = {}
        for shard in view.shards.values() if view.shards else [view]:
            actual |= {record.key: tuple(record.value) for record in shard["counts"]}
        if actual != expected:
            wrong = [key for key in expected.keys() | actual.keys() if expected.get(key) != actual.get(key)]
            raise SystemExit(f"WRONG: {len(wrong)} of {len(expected)} keys differ behind {rows} rows: {wrong[:5]}")
        return rows

    def files(self) -> float:
        """Return the number of files for each shard that counts, of a state in a directory. A rescale changes how many
        shards there are, and leaves the shards before it, and a claim of each of older ones.
        """
        if self.storage:
            return 0.0
        generation = current_generation(storage_at(self.location)).generation
        folder = generation_folder(generation) if generation else ""
        count = sum(len(files) for _, _, files in os.walk(Path(self.location, folder)))
        return count / self.shards


def soak(job: Job, name: str, seconds: float) -> list[dict[str, float]]:
    """Run the schedule, and return the figures of each quarter."""
    quarters = []
    for quarter in range(QUARTERS):
        job.memory, job.latencies, job.restarts = 0, [], []
        ends = time.monotonic() + seconds / QUARTERS
        while (rest := ends - time.monotonic()) > 0:
            job.run(min(rest, job.dice.uniform(0.5, 1.5) * job.asked.kill_every))
            if time.monotonic() < ends:
                job.change()
        rows = job.compare()
        ordered = sorted(job.latencies) or [0.0]
        figures = {
            "rows": rows,
            "memory MB": job.memory / 1e6,
            "files a shard": job.files(),
            "commit p50 ms": statistics.median(ordered),
            "commit p99 ms": ordered[len(ordered) * 99 // 100],
            "restart to a commit s": statistics.median(job.restarts),
        }
        quarters.append(figures)
        shown = ", ".join(f"{what} {value:,.1f}" for what, value in figures.items())
        print(f"{name}, quarter {quarter + 1}: {shown}; answers equal; {dict(job.done)}", flush=True)
    return quarters


def verdict(name: str, quarters: Sequence[dict[str, float]]) -> list[str]:
    """Return what has grown from the second quarter to the last: memory, files."""
    grown = []
    for what in ("memory MB", *(name for name in quarters[0] if name.startswith("files"))):
        second, last = quarters[1][what], quarters[-1][what]
        if second and last / second > FLAT:
            grown.append(f"{name}: {what} {second:,.0f} -> {last:,.0f}")
    return grown


def on_spark(asked: argparse.Namespace, seconds: float) -> list[dict[str, float]]:
    """Run soak_spark.py on a cluster, and return the figures of each quarter. Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "benchmarks.suites.soak_spark", "--seconds", str(seconds)]
    command += ["--keys", str(asked.keys), "--memory-limit", str(asked.limit), "--seed", str(asked.seed)]
    last = ""
    with subprocess.Popen(
        [*command, "--kill-every", str(asked.kill_every)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("["):
                last = line
            else:
                print(line, end="", flush=True)
    if process.returncode or not last:
        raise SystemExit(f"WRONG: spark, exit code {process.returncode}, as it says above")
    quarters: list[dict[str, float]] = json.loads(last)
    return quarters


def main() -> int:
    """Run from the command line; exit code 1 when something grows, or an answer is wrong."""
    if sys.argv[1:2] == ["--work"]:
        location, changed, *sizes, options = sys.argv[2:]
        shards, keys, rate, limit, most = map(int, sizes)
        work(location, changed == "1", shards, keys, rate, limit, most, options)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0, help="of all parts together")
    parser.add_argument("--parts", default="plain,objects,spark")
    parser.add_argument("--kill-every", type=float, default=60, help="seconds between kills, on average")
    parser.add_argument("--rate", type=int, default=5_000, help="rows a second")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--limit", type=int, default=1_000_000, help="bytes that a job may hold in memory")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    seconds, grown = asked.hours * 3600 / len(parts), list[str]()
    for part in parts:
        if part == "spark":
            grown += verdict(part, on_spark(asked, seconds))
            continue
        with tempfile.TemporaryDirectory() as folder:
            server: Any = nullcontext()
            if part == "objects":
                sys.path.insert(0, str(ROOT))
                from tests.tools.s3_server import S3Server, Weather

                server = S3Server(latency=0.01)
            with server as store:
                if store is None:
                    job = Job(str(Path(folder, "state")), asked, asked.seed, {})
                else:
                    weather = Weather(asked.seed, 0.02)
                    job = Job(store.url("soak/state"), asked, asked.seed, store.options)
                    store.draw = weather
                grown += verdict(part, soak(job, part, seconds))
                if store is not None:
                    print(f"{part}: requests {dict(store.count)}, faults {dict(weather.count)}")
    lines = [f"GROWS: {line}" for line in grown]
    print("\n".join(lines) or "flat: memory and files of the last quarter as of the second")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
