"""Engines: the streaming queries that `spark` measures, of hybridstore and of Spark's own operators.

One function of a key's rows does the work of all Python engines, so that what differs is who keeps the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

WINDOW_MS = 10_000
OUT = {
    "count": "k string, n long, total long",
    "tumbling": "k string, start long, n long",
    "sliding": "k string, ms long, n long, total long",
    "variables": "k string, n long, total long, recent long, high long",
    "totals": "k string, n long, total long",
}
SHARDS: Final = 2
SHARDS_OF_LIMITED: Final = 16
# of how many batches the list of "variables" has an element
RECENT = 5


def hybridstore(
    df: Any,
    work: str,
    checkpoint: str,
    placement: Any,
    keys: int,
    rows: int,
    limit: int | None = None,
    shards: int = SHARDS,
) -> tuple[Any, str]:
    import hybridstore as hs
    from hybridstore import spark as hsp

    stream = hs.stream(key="k", timestamp="ms")
    asked: dict[str, Any] = {
        "location": checkpoint,
        "shards": shards,
        "placement": placement,
        "memory_limit": limit,
    }
    if work == "join":
        evens = hs.stream(name="left", key="k", timestamp="lt", columns=["lv"])
        odds = hs.stream(name="right", key="k", timestamp="rt", columns=["rv"])
        near = evens.join(odds, within=f"{near_ms(keys, rows)} ms", select=SELECTED)
        inputs = dict(zip(("left", "right"), sides(df), strict=True))
        return near.apply(
            inputs, "bench", location=checkpoint, shards=2, time="watermark", memory_limit=limit
        ), "append"
    if work == "count":
        from tests.tools.spark_programs import RunningCount

        return hsp.apply_program(df, RunningCount(), name="bench", **asked), "append"
    if work == "tumbling":
        topology = stream.windowed_by(hs.TumblingWindows("10 seconds")).aggregate(n=hs.Count(), emit="commit")
        answers = topology.apply(df, "bench", **asked)
        return answers.selectExpr("k", "window_start as start", "n"), "append"
    topology = stream.windowed_by(hs.SlidingWindows("10 seconds")).aggregate(n=hs.Count(), total=hs.Sum("v"))
    answers = topology.apply(df, "bench", **asked)
    return answers.selectExpr("k", "window_end as ms", "n", "total"), "append"


def bare(df: Any) -> tuple[Any, str]:
    """The floor: rows by key to Python and back, with nothing done and nothing kept."""

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    rows = df.select("k", "v", "ms")
    return rows.repartition(2, "k").mapInArrow(same, rows.schema), "append"


def sides(df: Any) -> tuple[Any, Any]:
    """Return the two inputs of the join: rows with an even value, and with an odd one."""
    even = df.where("v % 2 = 0").selectExpr("k", "v lv", "t lt").withWatermark("lt", "5 seconds")
    return even, df.where("v % 2 = 1").selectExpr("k", "v rv", "t rt").withWatermark("rt", "5 seconds")


def near_ms(keys: int, rows: int) -> int:
    """Return how near the times of partners are (ms), so that a row has 1.0 partner."""
    return round(WINDOW_MS * keys / rows)


SELECTED = {"k": "left.k", "lv": "left.lv", "rv": "right.rv", "lt": "left.lt", "rt": "right.rt"}


def native(df: Any, work: str, keys: int, rows: int) -> tuple[Any, str]:
    from pyspark.sql import functions as f

    if work == "join":
        evens, odds = (side.alias(name) for name, side in zip(("left", "right"), sides(df), strict=True))
        apart = f"interval {near_ms(keys, rows)} milliseconds"
        near = f"left.k = right.k and rt >= lt - {apart} and rt <= lt + {apart}"
        return evens.join(odds, f.expr(near)).selectExpr("left.k", "lv", "rv", "lt", "rt"), "append"
    if work == "count":
        return df.groupBy("k").agg(f.count("v").alias("n"), f.sum("v").alias("total")), "update"
    if work == "tumbling":
        window = (
            df.withWatermark("t", "10 seconds").groupBy("k", f.window("t", "10 seconds")).agg(f.count("v").alias("n"))
        )
        return window.selectExpr("k", "unix_millis(window.start) as start", "n"), "update"
    hopping = df.withWatermark("t", "10 seconds").groupBy("k", f.window("t", "10 seconds", "2 seconds"))
    counts = hopping.agg(f.count("v").alias("n"), f.sum("v").alias("total"))
    return counts.selectExpr("k", "unix_millis(window.end) as ms", "n", "total"), "update"


def count_up(key: str, rows: list[tuple[int, int]], old: Any, work: str) -> tuple[list[tuple[Any, ...]], Any]:
    """The work of one key in one batch, in plain Python, for all of Spark's Python engines: results and the new
    state.
    """
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
    total, head, emitted = sum(values), 0, []
    for ms, v in sorted(rows):
        times.append(ms)
        values.append(v)
        total += v
        while times[head] < ms - WINDOW_MS:
            total -= values[head]
            head += 1
        emitted.append((key, ms, len(times) - head, total))
    return emitted, (times[head:], values[head:])


STATE = {
    "count": "n long, total long",
    "totals": "n long, total long",
    "tumbling": "start long, n long",
    "sliding": "ms array<long>, v array<long>",
}


def added_up(key: str, frames: Iterator[Any], old: Any) -> tuple[Any, Any]:
    """Rows and sum of a key so far, as a program of pandas adds them up: a frame of results, and the new state."""
    import pandas as pd

    n, total = old or (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["v"].sum())
    return pd.DataFrame({"k": [key], "n": [n], "total": [total]}), (n, total)


def transform_with_state(df: Any, work: str, pandas: bool, ours: str | None = None) -> tuple[Any, str]:
    """The same class on Spark's engine, or (`ours`, a checkpoint) on ours."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Keyed(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", STATE[work])

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            if pandas:
                import pandas as pd

                frame = pd.concat(list(rows))
                pairs = list(zip(frame["ms"].tolist(), frame["v"].tolist(), strict=True))
            else:
                pairs = [(row["ms"], row["v"]) for row in rows]
            emitted, new = count_up(key[0], pairs, self.state.get() if self.state.exists() else None, work)
            self.state.update(new)
            names = [part.split()[0] for part in OUT[work].split(", ")]
            if pandas:
                yield pd.DataFrame(emitted, columns=names)
            else:
                yield from (Row(**dict(zip(names, row, strict=True))) for row in emitted)

        def close(self) -> None:
            pass

    class Totals(Keyed):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            results, new = added_up(key[0], rows, self.state.get() if self.state.exists() else None)
            self.state.update(new)
            yield results

    class Several(StatefulProcessor):
        """A value: rows and sum so far. A list: the last batches, (latest time, sum). A map: rows by whether v is high.

        The order of a key's rows changes nothing."""

        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long, total long")
            self.recent = handle.getListState("recent", "ms long, total long")
            self.by_height = handle.getMapState("by_height", "high boolean", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            pairs = [(row["ms"], row["v"]) for row in rows]
            added = sum(v for _, v in pairs)
            n, total = self.total.get() if self.total.exists() else (0, 0)
            self.total.update((n + len(pairs), total + added))
            recent = [*map(tuple, self.recent.get()), (max(ms for ms, _ in pairs), added)][-RECENT:]
            self.recent.put(recent)
            high = sum(v >= 50 for _, v in pairs)
            for height, count in ((True, high), (False, len(pairs) - high)):
                if count:
                    before = self.by_height.getValue((height,))[0] if self.by_height.containsKey((height,)) else 0
                    self.by_height.updateValue((height,), (before + count,))
            highs = self.by_height.getValue((True,))[0] if self.by_height.containsKey((True,)) else 0
            yield Row(k=key[0], n=n + len(pairs), total=total + added, recent=sum(v for _, v in recent), high=highs)

        def close(self) -> None:
            pass

    grouped = df.groupBy("k")
    processor = {"variables": Several, "totals": Totals}.get(work, Keyed)()
    if ours is not None:
        from hybridstore import spark as hsp

        place: dict[str, Any] = {"name": "bench", "location": ours, "shards": 2}
        door = hsp.transform_with_state_in_pandas if pandas else hsp.transform_with_state
        return door(grouped, processor, OUT[work], "Update", "None", **place), "update"
    call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    return call(processor, OUT[work], "Update", "None"), "update"


def apply_in_pandas(df: Any, work: str, ours: str | None = None) -> tuple[Any, str]:
    """The same function on Spark's engine, or (`ours`, a checkpoint) on ours."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    def step(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        old = json.loads(state.get[0]) if state.exists else None
        if work == "totals":
            results, new = added_up(key[0], frames, old)
            state.update((json.dumps(new),))
            yield results
            return
        frame = pd.concat(list(frames))
        pairs = list(zip(frame["ms"].tolist(), frame["v"].tolist(), strict=True))
        rows, new = count_up(key[0], pairs, old, work)
        state.update((json.dumps(new),))
        yield pd.DataFrame(rows, columns=[part.split()[0] for part in OUT[work].split(", ")])

    if ours is not None:
        from hybridstore import spark as hsp

        place: dict[str, Any] = {"name": "bench", "location": ours, "shards": 2}
        asked = (OUT[work], "state string", "update", GroupStateTimeout.NoTimeout)
        return hsp.apply_in_pandas_with_state(df.groupBy("k"), step, *asked, **place), "update"
    counts = df.groupBy("k").applyInPandasWithState(
        step, OUT[work], "state string", "update", GroupStateTimeout.NoTimeout
    )
    return counts, "update"


def plan(
    df: Any, engine: str, work: str, checkpoint: str, keys: int, rows: int, limit: int | None = None
) -> tuple[Any, str]:
    """Return the engine's streaming DataFrame and its output mode. `limit` (bytes) is for those of ours with one; all
    of ours then have more shards, of which a process keeps some.
    """
    name, limited, _ = engine.partition("-limited")
    if name in ("hybridstore", "hybridstore-worker", "hybridstore-holder"):
        placement = name.partition("-")[2] or "auto"
        shards = SHARDS if limit is None else SHARDS_OF_LIMITED
        return hybridstore(df, work, checkpoint, placement, keys, rows, limit if limited else None, shards)
    if engine == "bare":
        return bare(df)
    if engine.startswith("native"):
        return native(df, work, keys, rows)
    ours = checkpoint if engine.startswith("hybridstore") else None
    if engine.endswith("apws"):
        return apply_in_pandas(df, work, ours)
    return transform_with_state(df, work, pandas=engine.endswith("pandas"), ours=ours)
