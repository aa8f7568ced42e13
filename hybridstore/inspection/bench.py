"""The command `bench restore`: the time of each phase of a restart, for your state or for a generated state.

A state is opened read-only: nothing is written, no lock is taken, and a writer may continue. Each run is a new process
(`python -m hybridstore.inspection.bench DIR`), because only the first opening of a process pays all costs. It restores
the shards of a plain topology one after the other, as its job does, and adds up their figures. The restored
states of all runs are compared with each other and with the generated state. If they differ, no figure is shown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from changelog.bucket import Bucket
from changelog.storage import is_url, local_path

from ..errors import HybridStoreError
from ..markup import Labelled
from ..reading.texts import say
from ..state.directory import open_store
from ..state.restart import plan
from ..stores.kinds import KINDS
from .options import FINE, at_least, last_options
from .shards import shard_locations
from .show.output import FORMS, Out, size_cell

# The phases of a restart, in order, with their descriptions.
PHASES: Final = {
    "attach": "the checkpoint is mapped, its directory read",
    "replay": "the changelog behind it",
    "open": "both, and what is around them",
    "rows put in place": "what the changelog brought; a read does it for its key alone",
    "first block": "a block that nobody touched",
    "all blocks": "everything is in memory",
}
_KEYS: Final = 1000
_TAIL: Final = 20_000


class DifferingRunsError(HybridStoreError):
    """Two restarts of one state gave different states: the writer committed meanwhile, or hybridstore has a defect."""


def arguments(parser: ArgumentParser) -> None:
    path = (
        "Your state, with all its shards: a directory, or a URL. Without DIR a state is generated in the temporary "
        "directory."
    )
    parser.add_argument("path", metavar="DIR", nargs="?", help=path)
    records = "Records in the generated state (default: 1000000); the last 20000 are only in the changelog."
    parser.add_argument("--records", metavar="N", type=at_least(1), default=1_000_000, help=records)
    runs = "Number of restarts; the median is shown (default: 5)."
    parser.add_argument("--runs", metavar="N", type=at_least(1), default=5, help=runs)
    output = f"{', '.join(FORMS)}. Default: table on a terminal, jsonl in a pipe."
    parser.add_argument("-o", "--output", metavar="FORM", choices=FORMS, help=output)
    last_options(parser)


def run(given: Namespace) -> int:
    """Measure a restart of your state or of a generated state: attach, replay, first read, everything in memory.

    The state is opened read-only and never changed; a writer may continue. The files are most likely in the kernel's
    cache, as after a crash of the process. After a crash of the machine the files would not be in the cache. For a
    state on an object store, each run begins with an empty local cache in the temporary directory.
    """
    if given.path is not None:
        _show(given.path, given.path, measure(given.path, given.runs), given.output)
        return FINE
    with TemporaryDirectory(prefix="hybridstore-bench-") as folder:
        state = Path(folder) / "state"
        say(f"making a state of {given.records:,} records")
        make(state, given.records)
        runs = measure(str(state), given.runs)
        if runs[0]["records"] != given.records:
            raise DifferingRunsError(f"{runs[0]['records']:,} records were restored, {given.records:,} were put")
        _show("a state that was made", str(state), runs, given.output)
    return FINE


def make(path: Path, records: int) -> None:
    """Make a state with a window store of `records` records and a checkpoint. The last records are only in the
    changelog.
    """
    start = 1_767_225_600_000
    keys = [f"key {i % _KEYS}" for i in range(records)]
    times = [start + i * 10 for i in range(records)]
    values = [i.to_bytes(16, "little") for i in range(records)]
    split = records - min(_TAIL, records // 2)
    with open_store(path, durability="os") as state:
        store = state.window("events", retention=f"{records // 100 + 60} seconds")
        for begin in range(0, split, 100_000):
            part = slice(begin, min(begin + 100_000, split))
            store.put_columns(keys[part], values[part], times[part])
            state.commit()
        state.checkpoint(wait=True)
        for row in zip(keys[split:], values[split:], times[split:], strict=True):
            store.put(*row)
        state.commit()


def measure(path: str, runs: int) -> list[dict[str, Any]]:
    """Restore a state with all its shards `runs` times, each time in a new process.

    Raises HybridStoreError if the state cannot be restored.
    """
    restarts: list[dict[str, Any]] = []
    shards = shard_locations(path if is_url(path) else local_path(path).absolute())
    for _ in range(runs):
        command = [sys.executable, "-m", __name__, *shards]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode:
            raise HybridStoreError((answer.stderr.strip().splitlines() or ["no message"])[-1])
        restarts.append(json.loads(answer.stdout))
        for name in ("version", "digest", "records"):
            if restarts[-1][name] != restarts[0][name]:
                detail = f"{name} {restarts[0][name]} and {restarts[-1][name]}"
                raise DifferingRunsError(f"{path}: two restarts differ: {detail} (is a writer at work? measure a copy)")
    return restarts


def restart(shards: Sequence[str]) -> dict[str, Any]:
    """Restore the shards of a state and return its facts and the seconds of each phase. To be called in a new process.

    Numbers and seconds are of all shards together; the version is that of the first shard.
    """
    for kind in KINDS.values():
        kind.store_class()  # modules are imported before the clock starts
    with TemporaryDirectory(prefix="hybridstore-bench-") as folder:
        each = [_restart(path, folder if is_url(path) else None) for path in shards]
    digests = " ".join(str(facts["digest"]) for facts in each)
    added = {name: sum(facts[name] for facts in each) for name in each[0].keys() - {"version", "digest"}}
    return {"version": each[0]["version"], "digest": digests, "shards": len(each), **added}


def _restart(path: str, cache: str | None) -> dict[str, Any]:
    place = path if cache is None else Bucket(path, cache=cache)
    started = perf_counter()
    state = open_store(place, at="newest", progress=lambda *_: None)
    opened = perf_counter()
    with state:
        stores = list(state.stores.values())
        for store in stores:
            store.apply_waiting()
        settled = perf_counter()
        first = next((store for store in stores if store.warm()), None)
        read = perf_counter()
        for store in stores:
            while store.warm():
                pass
        loaded = perf_counter()
        report = state.restore_report
        return {
            "version": report.version,
            "digest": report.digest.hex(),
            "records": sum(store.num_records for store in state.stores.values()),
            "checkpoint bytes": report.checkpoint_bytes,
            "tail records": report.tail_records,
            "attach": report.attach_ms / 1000,
            "replay": report.tail_ms / 1000,
            "open": opened - started,
            "rows put in place": settled - opened,
            "first block": read - settled if first is not None else 0.0,
            "all blocks": loaded - opened,
        }


def _show(name: str, path: str, runs: list[dict[str, Any]], form: str | None) -> None:
    out = Out(form)
    if out.form == "table":
        estimate = None if is_url(path) else sum(plan(shard).duration_ms for shard in shard_locations(path))
        about = {
            "state": str(name),
            "version": runs[0]["version"],
            **({"shards": runs[0]["shards"]} if runs[0]["shards"] > 1 else {}),
            "records": runs[0]["records"],
            "checkpoint size": size_cell(runs[0]["checkpoint bytes"]),
            "records since": runs[0]["tail records"],
            "estimate": None if estimate is None else Labelled(f"{estimate:.1f} ms to the first read", estimate / 1000),
        }
        out.facts(about)
    rows = []
    for phase, meaning in PHASES.items():
        times = [run[phase] * 1000 for run in runs]
        row = {"phase": phase, "median_ms": median(times), "lowest_ms": min(times), "highest_ms": max(times)}
        rows.append({name: round(cell, 2) if isinstance(cell, float) else cell for name, cell in row.items()})
        rows[-1]["detail"] = meaning
    out.rows(rows, tuple(rows[0]))


if __name__ == "__main__":
    try:
        print(json.dumps(restart(sys.argv[1:])))
    except HybridStoreError as error:
        sys.exit(f"{error}")
