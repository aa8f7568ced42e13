"""Far restart: a state on an object store that answers after some time, restarted in several ways.

    python -m benchmarks restore --storage s3 --latency 20 --records 10000 --records 1000000

    reader      open for reading, read one record, then a batch; then all packs come behind
    writer      the same by a writer, who claims the state
    cached      a reader again, on a host whose cache has survived
    download    everything that a restart may need first, side by side, then open the copy
    replay      the changelog alone, side by side, as if there were no checkpoint

Each way is a process of its own; the store is `benchmarks.measure.range_server`, which answers after the latency and
over one link, and does nothing else. Two states: `random` is a key-value store of which 500 keys at random are read;
`near` is a window store, of 10,000 keys over a retention that holds everything, of which the newest 500 rows are read,
as a topology reads what the next rows touch. All rows but the last 2,000 are in the checkpoint.

A round: requests that wait for no other's answer; more than 64 of them are still one. `bytes` are all that were read
until the batch was there, as a share of the packs; `processor` is what this process has
worked until then, on whatever machine, `first batch` by the clock. What the batch reads is compared with what was put.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep
from typing import Any, Final

import hybridstore as hs
from benchmarks.measure import fresh_process
from benchmarks.measure.range_server import RangeServer, serving
from benchmarks.measure.result import Result, line
from benchmarks.measure.state import NEVER
from benchmarks.measure.timing import Spread, check
from changelog import cloud_storage, rounds
from changelog.cloud_storage import CloudStorage
from hybridstore.state.opening import Tuning
from recovery.layout import CHECKPOINTS, PACKS, list_checkpoints
from recovery.object_log import object_name, versions_after

TAIL: Final = 2_000
BATCH: Final = 500
COMMIT: Final = 20_000
KEYS: Final = 10_000
STEP_MS: Final = 10
WORKLOADS: Final = ("random", "near")
WAYS: Final = ("reader", "writer", "cached", "download", "replay")


class Asked:
    """Requests of this process: how many, their bytes, and rounds of them; `behind` what the thread behind has read."""

    def __init__(self) -> None:
        self.number = self.bytes = self.behind = 0
        self._owner = threading.get_ident()
        self._guard = threading.Lock()
        self._local = threading.local()

    @property
    def rounds(self) -> int:
        """Rounds that the thread which asks has waited for."""
        return int(getattr(self._local, "rounds", 0))

    def count(self, size: int) -> None:
        """Count a request of this thread."""
        self._local.rounds = self.rounds + 1
        behind = threading.current_thread().name.startswith("hybridstore")
        with self._guard:
            self.number, self.bytes = self.number + (not behind), self.bytes + (0 if behind else size)
            self.behind += size if behind else 0


@contextmanager
def asked() -> Iterator[Asked]:
    """Count the requests of this process to object stores."""
    counts = Asked()
    ask, carry_out = cloud_storage._Client.ask, rounds._carry_out

    def counting(client: Any, request: Callable[[Any], Any], where: str) -> Any:
        answer: Any = None
        try:
            answer = ask(client, request, where)
        finally:
            counts.count(len(answer) if isinstance(answer, bytes) else 0)
        return answer

    def side_by_side(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        def measured(item: Any) -> tuple[Any, int]:
            before, counts._local.rounds = counts.rounds, 0
            answer = work(item)
            needed, counts._local.rounds = counts.rounds, before
            return answer, needed

        answers = carry_out(measured, items)
        counts._local.rounds = counts.rounds + max((needed for _, needed in answers), default=0)
        return [answer for answer, _ in answers]

    cloud_storage._Client.ask = counting  # type: ignore[method-assign, assignment]
    rounds._carry_out = side_by_side
    try:
        yield counts
    finally:
        cloud_storage._Client.ask = ask  # type: ignore[method-assign]
        rounds._carry_out = carry_out


def key_of(number: int) -> str:
    """Return a key of the `random` state; they are spread over the key space."""
    return f"{number * 2_654_435_761 % (1 << 32):08x}-{number:08d}"


def value_of(number: int) -> tuple[int, float, str]:
    """Return the value of a row: about 40 bytes."""
    return number, number / 7, f"customer {number % 9973} of {number * 48_271 % 65_537}"


def _rows(workload: str, numbers: range) -> tuple[list[str], list[Any], list[int]]:
    keys = list(map(key_of if workload == "random" else _near_key, numbers))
    return keys, list(map(value_of, numbers)), [number * STEP_MS for number in numbers]


def _near_key(number: int) -> str:
    return f"customer-{number * 7_919 % KEYS:05d}"


def _store(state: hs.State, workload: str, records: int) -> Any:
    return state.key_value("rows") if workload == "random" else state.window("rows", retention=records * STEP_MS + 1)


def fill(workload: str, url: str, options: dict[str, Any], records: int, block: int, cache: str) -> int:
    """Make a state whose newest rows are in the changelog only; returns the bytes of its packs. For a fresh process."""
    tuning = Tuning(block_records=block)
    with hs.open(hs.Bucket(url, cache=cache, **options), checkpoints=NEVER, _tuning=tuning) as state:
        store = _store(state, workload, records)
        split = records - min(TAIL, records // 2)
        for start in [*range(0, split, COMMIT), split]:
            keys, values, times = _rows(
                workload, range(start, records if start == split else min(start + COMMIT, split))
            )
            if workload == "random":
                store.put_columns(keys, values)
            else:
                store.put_columns(keys, values, times)
            state.commit()
            if start + COMMIT >= split > start:
                state.checkpoint(wait=True)
    bucket = CloudStorage(url, options)
    return sum(map(bucket.size, bucket.list(f"{PACKS}/")))


def _copy(way: str, url: str, options: dict[str, str], target: Path) -> None:
    """Bring what a restart may need to a directory, in parts, side by side."""
    bucket = CloudStorage(url, options)
    newest = list_checkpoints(bucket)[-1] if way == "download" else None
    names = [object_name(version) for version in versions_after(bucket, newest.version if newest else 0)]
    wanted: list[tuple[str, tuple[int, int] | None]] = [(name, None) for name in names]
    if newest is not None:
        wanted += [(name, None) for name in bucket.list(f"{CHECKPOINTS}/")]
        names = list(bucket.list(f"{PACKS}/"))
        sizes = rounds.side_by_side(bucket.size, names)
        wanted += [(name, part) for name, size in zip(names, sizes, strict=True) for part in rounds.parts(size)]

    def fetch(item: tuple[str, tuple[int, int] | None]) -> None:
        name, part = item
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "x+b") as file:
            file.seek(part[0] if part else 0)
            file.write(bucket.get_ranges(name, [part])[0] if part else bucket.get(name))

    for name in {name for name, part in wanted if part}:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).touch()
    rounds.side_by_side(fetch, wanted)


def restart(way: str, workload: str, url: str, options: dict[str, Any], records: int, cache: str) -> dict[str, Any]:
    """Restart in one of WAYS and return its figures; raises WrongAnswerError. For a fresh process."""
    batch = range(records - TAIL - BATCH, records - TAIL) if workload == "near" else None
    numbers = list(batch) if batch else random.Random(records).sample(range(records), min(BATCH, records))
    CloudStorage(url, options)._client.store()  # what the import of obstore costs is no part of a restart
    with TemporaryDirectory() as folder, asked() as counts:
        place: Any = hs.Bucket(url, cache=cache, **options)
        started, worked = perf_counter(), process_time()
        if way in ("download", "replay"):
            place = Path(folder)
            _copy(way, url, options, place)
        with hs.open(place, at=None if way == "writer" else "newest", checkpoints=NEVER) as state:
            opened, rounds_open = perf_counter(), counts.rounds
            store = _store(state, workload, records)
            keys, values, times = zip(*(_row(workload, number) for number in numbers), strict=True)
            first = store.get(keys[0]) if workload == "random" else store.get(keys[0], times[0])
            check(tuple(first) == values[0], f"{way}: another value than was put")
            read, rounds_read, bytes_read = perf_counter(), counts.rounds, counts.bytes
            if workload == "random":
                answers = store.get_many(keys)
            else:
                store.prefetch(keys, min(times), max(times))
                answers = [store.get(key, ts) for key, ts in zip(keys, times, strict=True)]
            done, processor = perf_counter(), process_time() - worked
            rounds_done, number, size = counts.rounds, counts.number, counts.bytes
            check(tuple(map(tuple, answers)) == values, f"{way}: other values than were put")
            reader = state._checkpoints.reader
            while reader is not None and reader.far:
                if reader.ahead is not None:
                    reader.ahead.has_some()  # as each commit does: begins the thread
                sleep(0.002)
            local = perf_counter()
        return {
            "rounds to open": rounds_open,
            "rounds to read": rounds_read,
            "rounds": rounds_done,
            "requests": number,
            "bytes to read": bytes_read,
            "bytes": size,
            "open": opened - started,
            "first read": read - started,
            "first batch": done - started,
            "all local": local - started,
            "processor": processor,
            "behind": counts.behind,
        }


def _row(workload: str, number: int) -> tuple[str, tuple[int, float, str], int]:
    return (key_of if workload == "random" else _near_key)(number), value_of(number), number * STEP_MS


def _measure_ways(
    result: Result, server: RangeServer, workload: str, records: int, block: int, link: tuple[float, float], runs: int
) -> None:
    name = f"{workload}-{records}"
    with TemporaryDirectory() as folder:
        given: dict[str, Any] = {"workload": workload, "url": server.url(name), "options": server.options}
        given["records"] = records
        server.set()
        call = "benchmarks.suites.far_restart"
        packs = fresh_process.call(f"{call}:fill", **given, block=block, cache=f"{folder}/writer")
        server.set(*link)
        figures: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for run in range(runs):
            for way in WAYS:
                cache = f"{folder}/reader-{run}" if way in ("reader", "cached") else f"{folder}/{way}-{run}"
                figures[way].append(fresh_process.call(f"{call}:restart", way=way, cache=cache, **given))
        bucket = CloudStorage(server.url(name), server.options)
        server.set()
        bucket.delete(bucket.list())
    result.notes.append(f"{records:,} records, {workload}: packs of {packs / 1e6:.1f} MB")
    for way in WAYS:
        subject = f"{records:,} {workload}, {way}"
        last = figures[way][-1]
        counted = f"{last['rounds to open']} to open, {last['rounds to read']} to read; {last['requests']} requests"
        result.lines.append(line(f"{subject}: rounds", Spread((last["rounds"],)), "", note=counted))
        result.lines.append(line(f"{subject}: bytes", Spread((last["bytes"] / 1e6,)), "MB"))
        share = last["bytes"] / packs * 100
        text = f"first read {last['bytes to read'] / packs * 100:.2f} %"
        result.lines.append(line(f"{subject}: of the packs", Spread((share,)), "%", note=text))
        for figure in ("open", "first read", "first batch", "processor", "all local"):
            samples = tuple(each[figure] for each in figures[way])
            result.lines.append(line(f"{subject}: {figure}", Spread(samples), "ms"))


def measure(*, records: list[int], latency_ms: float, bandwidth_mb: float, block: int, repeats: int = 1) -> Result:
    """Measure every way of both workloads at these sizes. Raises WrongAnswerError, RuntimeError. Minutes at 5 M."""
    started = perf_counter()
    settings = {"latency_ms": latency_ms, "bandwidth_mb_s": bandwidth_mb or "no limit", "block_records": block}
    result = Result("far restart", {**settings, "batch": BATCH, "runs": repeats})
    with serving() as server:
        for size in records:
            for workload in WORKLOADS:
                link = latency_ms / 1000, bandwidth_mb * 1e6
                _measure_ways(result, server, workload, size, block, link, repeats)
    result.seconds = perf_counter() - started
    return result
