"""Spark's engines as suites: what `bench_spark` and `bench_spark_restart` measure, as results with ratios to ours. Needs Java and minutes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_spark, bench_spark_restart
from hybridstore.benchmark.result import Result, line
from hybridstore.benchmark.timing import Spread, WrongAnswerError, check, stopwatch

ROOT = Path(__file__).resolve().parent.parent
OURS = "hybridstore"
NAMES = {
    "hybridstore": "hybridstore",
    "hybridstore-tws": "hybridstore, transform_with_state",
    "native": "Spark's own operator, RocksDB",
    "native-hdfs": "Spark's own operator, HDFS-backed",
    "tws-row": "transformWithState in Python, rows",
    "tws-pandas": "transformWithStateInPandas",
    "apws": "applyInPandasWithState",
    "rocksdb": "Spark's own operator, RocksDB",
    "rocksdb-changelog": "Spark's own operator, RocksDB with changelog",
    "hdfs": "Spark's own operator, HDFS-backed",
}


def _once(module: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run one engine in a process and a JVM of its own. Raises WrongAnswerError, with its last words, when it fails."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", f"benchmarks.{module}", "--folder", str(folder), "--one", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise WrongAnswerError(f"{module} {arguments[0]}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def batches(folder: Path, work: str, keys: int, engines: Sequence[str], rows: int = 100_000, count: int = 8) -> Result:
    """Measure a batch of each engine on the same input: the median after the first ones, as ratios to ours.

    Raises WrongAnswerError when an engine's answers differ from ours, but for the one that only stands in.
    """
    result = Result("spark", {"work": work, "keys": keys, "rows": rows, "batches": count})
    with stopwatch() as clock, tempfile.TemporaryDirectory(dir=folder) as scratch:
        place = Path(scratch)
        (place / "in").mkdir()
        bench_spark.write_input(place / "in", keys, rows, count)
        ours: dict[str, Any] = {}
        for engine in engines:
            found = _once("bench_spark", place, engine, "--work", work, "--batches", str(count))
            ours = ours or found
            stand_in = work == "sliding" and engine.startswith("native")
            check(stand_in or found["answer"] == ours["answer"], f"{engine}: answers other than those of {engines[0]}")
            samples = Spread(tuple(one / 1000 for one in found["all_ms"][bench_spark.WARM : -1]))
            base = Spread(tuple(one / 1000 for one in ours["all_ms"][bench_spark.WARM : -1]))
            note = "hopping windows stand in: Spark has no sliding ones" if stand_in else ""
            against = {} if engine == engines[0] else {"base": base, "against": "ours"}
            result.lines.append(line(NAMES[engine], samples, "ms", note=note, **against))  # type: ignore[arg-type]
    result.seconds = clock.seconds
    return result


def restarts(folder: Path, keys: int, engines: Sequence[str] = bench_spark_restart.ENGINES) -> Result:
    """Measure the first batch after a restart over a state of `keys` keys, less a warm one, for each engine."""
    result = Result("spark restart", {"keys": keys, "rows": bench_spark_restart.SMALL})
    with stopwatch() as clock, tempfile.TemporaryDirectory(dir=folder) as scratch:
        place = Path(scratch)
        for name in ("in", "more"):
            (place / name).mkdir()
        bench_spark_restart.write_input(place, keys)
        for engine in engines:
            _once("bench_spark_restart", place, engine)
        for path in sorted((place / "more").iterdir()):
            os.link(path, place / "in" / path.name)
        base: Spread | None = None
        for engine in engines:
            times = _once("bench_spark_restart", place, engine)["ms"]
            warm = statistics.median(times[2:])
            state = Spread((max(times[0] - warm, 1) / 1000,))
            name = NAMES[engine]
            result.lines.append(line(f"{name}: first batch", Spread((times[0] / 1000,)), "ms"))
            result.lines.append(
                line(f"{name}: less a warm batch", state, "ms", base=base, against="" if base is None else "ours")
            )
            base = base or state
    result.seconds = clock.seconds
    return result


def restart_fields(folder: str, keys: int) -> dict[str, Any]:
    """Return what `restarts` measures as plain values: for `hybridstore bench restore --spark`, which runs it in a process of its own."""
    return restarts(Path(folder), keys).to_json()
