"""State in a streaming query: hybridstore beside what Spark offers, on the same data, answers compared.

    python benchmarks/bench_spark.py --keys 10000 --work count --engines hybridstore,native,tws-row
    python benchmarks/bench_spark.py --work sliding --rows 100000 --batches 8

Every engine runs in a process and a JVM of its own, with Unix sockets on and state commits durable; the figure is the median of
`triggerExecution` over the batches after the first three. count: rows and sum per key so far, a row out per key and batch. tumbling: the
count per key and 10 s window. sliding: count and sum over the last 10 s, a row out per row in (native: a hopping stand-in, 10 s by 2 s, not the same answers).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("hybridstore", "hybridstore-tws", "native", "native-hdfs", "tws-row", "apws", "tws-pandas")
WORKS = ("count", "tumbling", "sliding")
WINDOW_MS = 10_000
WARM = 3
SCHEMA = "k string, v long, ms long, t timestamp"
OUT = {
    "count": "k string, n long, total long",
    "tumbling": "k string, start long, n long",
    "sliding": "k string, ms long, n long, total long",
}


def write_input(folder: Path, keys: int, rows: int, batches: int) -> None:
    """One Parquet file per batch; batch b holds the ten seconds from b * 10 s on, in no order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    for batch in range(batches):
        names = [f"key{i}" for i in random.integers(0, keys, rows)]
        ms = 1_760_000_000_000 + batch * WINDOW_MS + random.permutation(WINDOW_MS * 10)[:rows] // 10 % WINDOW_MS
        table = pa.table(
            {
                "k": names,
                "v": random.integers(0, 100, rows),
                "ms": ms,
                "t": pa.array(ms).cast(pa.timestamp("ms")).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        path = folder / f"{batch:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))


# --- the engines ----------------------------------------------------------------------------------------------------


def hybridstore(df: Any, work: str, checkpoint: str) -> tuple[Any, str]:
    import hybridstore as hs
    from hybridstore import spark as hsp

    stream = hs.stream(key="k", timestamp="ms")
    if work == "count":
        from tests.spark_programs import RunningCount

        return hsp.apply_program(df, RunningCount(), name="bench", checkpoint=checkpoint, shards=2), "append"
    if work == "tumbling":
        topology = stream.windowed_by(hs.TumblingWindows("10 seconds")).aggregate(n=hs.Count(), emit="commit")
        made = topology.apply(df, "bench", checkpoint=checkpoint, shards=2)
        return made.selectExpr("k", "window_start as start", "n"), "append"
    topology = stream.windowed_by(hs.SlidingWindows("10 seconds")).aggregate(n=hs.Count(), total=hs.Sum("v"))
    made = topology.apply(df, "bench", checkpoint=checkpoint, shards=2)
    return made.selectExpr("k", "window_end as ms", "n", "total"), "append"


def native(df: Any, work: str) -> tuple[Any, str]:
    from pyspark.sql import functions as f

    if work == "count":
        return df.groupBy("k").agg(f.count("v").alias("n"), f.sum("v").alias("total")), "update"
    if work == "tumbling":
        window = (
            df.withWatermark("t", "10 seconds").groupBy("k", f.window("t", "10 seconds")).agg(f.count("v").alias("n"))
        )
        return window.selectExpr("k", "unix_millis(window.start) as start", "n"), "update"
    hopping = df.withWatermark("t", "10 seconds").groupBy("k", f.window("t", "10 seconds", "2 seconds"))
    made = hopping.agg(f.count("v").alias("n"), f.sum("v").alias("total"))
    return made.selectExpr("k", "unix_millis(window.end) as ms", "n", "total"), "update"


def count_up(key: str, rows: list[tuple[int, int]], old: Any, work: str) -> tuple[list[tuple[Any, ...]], Any]:
    """The work of one key in one batch, in plain Python, for all of Spark's Python engines: results and the new state."""
    if work == "count":
        n, total = old or (0, 0)
        new = (n + len(rows), total + sum(v for _, v in rows))
        return [(key, *new)], new
    if work == "tumbling":
        counts: dict[int, int] = {}
        for ms, _ in rows:
            counts[ms // WINDOW_MS * WINDOW_MS] = counts.get(ms // WINDOW_MS * WINDOW_MS, 0) + 1
        if old and old[0] in counts:
            counts[old[0]] += old[1]
        last = max(counts)
        return [(key, start, n) for start, n in counts.items()], (last, counts[last])
    times, values = (list(old[0]), list(old[1])) if old else ([], [])
    total, head, made = sum(values), 0, []
    for ms, v in sorted(rows):
        times.append(ms)
        values.append(v)
        total += v
        while times[head] < ms - WINDOW_MS:
            total -= values[head]
            head += 1
        made.append((key, ms, len(times) - head, total))
    return made, (times[head:], values[head:])


STATE = {"count": "n long, total long", "tumbling": "start long, n long", "sliding": "ms array<long>, v array<long>"}


def transform_with_state(df: Any, work: str, pandas: bool, ours: str | None = None) -> tuple[Any, str]:
    """The same class on Spark's engine, or (`ours`, a checkpoint) on ours."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Keyed(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", STATE[work])

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            if pandas:
                import pandas as pd

                frame = pd.concat(list(rows))
                pairs = list(zip(frame["ms"].tolist(), frame["v"].tolist(), strict=True))
            else:
                pairs = [(row["ms"], row["v"]) for row in rows]
            made, new = count_up(key[0], pairs, self.state.get() if self.state.exists() else None, work)
            self.state.update(new)
            names = [part.split()[0] for part in OUT[work].split(", ")]
            if pandas:
                yield pd.DataFrame(made, columns=names)
            else:
                yield from (Row(**dict(zip(names, row, strict=True))) for row in made)

        def close(self) -> None:
            pass

    grouped = df.groupBy("k")
    if ours is not None:
        from hybridstore import spark as hsp

        place: dict[str, Any] = {"name": "bench", "checkpoint": ours, "shards": 2}
        return hsp.transform_with_state(grouped, Keyed(), OUT[work], "Update", "None", **place), "update"
    call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    return call(Keyed(), OUT[work], "Update", "None"), "update"


def apply_in_pandas(df: Any, work: str) -> tuple[Any, str]:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def step(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        frame = pd.concat(list(frames))
        old = json.loads(state.get[0]) if state.exists else None
        pairs = list(zip(frame["ms"].tolist(), frame["v"].tolist(), strict=True))
        made, new = count_up(key[0], pairs, old, work)
        state.update((json.dumps(new),))
        yield pd.DataFrame(made, columns=[part.split()[0] for part in OUT[work].split(", ")])

    made = df.groupBy("k").applyInPandasWithState(
        step, OUT[work], "state string", "update", GroupStateTimeout.NoTimeout
    )
    return made, "update"


# --- one run, in a process of its own -------------------------------------------------------------------------------


def run(folder: Path, engine: str, work: str, batches: int) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    sys.path.insert(0, str(ROOT))
    store = "HDFSBackedStateStoreProvider" if engine == "native-hdfs" else "RocksDBStateStoreProvider"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": f"org.apache.spark.sql.execution.streaming.state.{store}",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    session = (hsp.configure(builder) if engine.startswith("hybridstore") else builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    df = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    checkpoint = str(folder / f"checkpoint-{engine}")
    if engine == "hybridstore":
        made, mode = hybridstore(df, work, checkpoint)
    elif engine.startswith("native"):
        made, mode = native(df, work)
    elif engine == "hybridstore-tws":
        made, mode = transform_with_state(df, work, pandas=False, ours=checkpoint)
    elif engine == "apws":
        made, mode = apply_in_pandas(df, work)
    else:
        made, mode = transform_with_state(df, work, pandas=engine == "tws-pandas")
    answer: list[Any] = []

    def sink(batch: Any, number: int) -> None:
        if number != batches - 1:  # later ones have no data
            batch.write.format("noop").mode("overwrite").save()
        else:
            answer.append(
                [str(part) for part in batch.selectExpr("count(*)", "sum(cast(xxhash64(*) as decimal(38)))").first()]
            )

    writer = made.writeStream.foreachBatch(sink).outputMode(mode).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    times = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
    session.stop()
    return {"engine": engine, "ms": statistics.median(times[WARM:-1]), "all_ms": times, "answer": answer}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100_000, help="rows per batch (at most 100,000)")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--work", choices=WORKS, default="count")
    parser.add_argument("--engines", default="hybridstore,native,native-hdfs,tws-row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run(Path(asked.folder), asked.one, asked.work, asked.batches)))
        return 0
    engines = asked.engines.split(",")
    for engine in engines:
        if engine not in ENGINES:
            parser.error(f"engine {engine!r}: expected some of {', '.join(ENGINES)}")
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "in").mkdir()
        write_input(folder / "in", asked.keys, asked.rows, asked.batches)
        for engine in engines:
            command = [
                sys.executable,
                __file__,
                "--one",
                engine,
                "--folder",
                scratch,
                "--work",
                asked.work,
                "--batches",
                str(asked.batches),
            ]
            environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
            environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                print(f"{engine}: {done.stderr[-2000:]}", file=sys.stderr)
                return 1
            results.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"  {engine:<12} {results[-1]['ms']:>8,.0f} ms a batch   {results[-1]['all_ms']}", flush=True)
    ours = next((one for one in results if one["engine"] == "hybridstore"), results[0])
    print(
        f"\n{asked.work}, {asked.keys:,} keys, {asked.rows:,} rows a batch, median of {asked.batches - WARM - 1} batches"
    )
    wrong = 0
    for one in results:
        same = one["answer"] == ours["answer"]
        stand_in = asked.work == "sliding" and one["engine"].startswith("native")
        wrong += not same and not stand_in
        note = "stand-in" if stand_in else "agrees" if same else "DIFFERS"
        print(f"  {one['engine']:<12} {one['ms']:>8,.0f} ms  x{one['ms'] / ours['ms']:<6.2f} {note}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
