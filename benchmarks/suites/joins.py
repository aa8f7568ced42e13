"""Joins: what a row costs a join of two streams, from dicts and from Arrow, the bytes it logs, and a restart.

    python -m benchmarks joins --rows 200000 --waiting 1000000

    orders, payments ── within one hour ── run(inputs, directory) ── every result taken

Each order has one payment, up to an hour later; orders come 10 ms apart. Every result is compared with a look-up of the
payment in a dict. Processor time of whole runs (state opened, rows, results, commits, state closed), in turns, beside a
bare loop that joins the same dicts and never forgets a row. Then the bytes of the changelog beside the msgpack of the
columns of the rows, a restart of a join whose rows wait, in a fresh process, the anonymous memory of such a join
without a limit and under a fifth of that, read from outside, and the same as-of join by DuckDB and Pathway, where they
are installed: of tables that are whole, and without a state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import msgpack

import hybridstore as hs
from benchmarks.measure import fresh_process, watched
from benchmarks.measure.result import Line, Result, Target, line
from benchmarks.measure.state import NEVER, scratch
from benchmarks.measure.timing import check, interleaved, stopwatch
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.rows import Sides, tagged

_HOUR_MS: Final = 3_600_000
_STEP_MS: Final = 10
_COMMIT_ROWS: Final = 10_000
_HOWS: Final[tuple[Any, ...]] = ("inner", "left", "semi", "full")
_DICTS: Final = Target(150_000, "value", at_least=True)
_ARROW: Final = Target(500_000, "value", at_least=True)
_LOGGED: Final = Target(1.2, "value")
_READY: Final = Target(25, "value")
_SHARE: Final = 5
_WITHIN: Final = Target(1.3)
# Pathway takes seconds for so many alarms.
_FEW: Final = 10_000

Row = dict[str, Any]


def inputs_of(count: int) -> dict[str, list[Row]]:
    """Return so many rows of two inputs, each by time."""
    dice = random.Random(5)
    orders: list[Row] = [{"order": i, "ordered": i * _STEP_MS, "item": f"item {i % 97}"} for i in range(count // 2)]
    payments: list[Row] = [
        {"order": row["order"], "paid": row["ordered"] + dice.randrange(_HOUR_MS), "amount": row["order"] % 1000}
        for row in orders
    ]
    return {"orders": orders, "payments": sorted(payments, key=lambda row: row["paid"])}


def joined(how: Any, within: Any = ("0 s", "1 hour")) -> hs.Topology:
    """Return the join of a case."""
    orders = hs.stream(name="orders", key="order", timestamp="ordered", columns=["item"])
    payments = hs.stream(name="payments", key="order", timestamp="paid", columns=["amount"])
    return orders.join(payments, within=within, how=how)


def answers(rows: dict[str, list[Row]], how: str) -> list[tuple[Any, ...]]:
    """Return the results of a join, sorted: each order has its payment."""
    payments = {row["order"]: row for row in rows["payments"]}
    results: list[tuple[Any, ...]] = []
    for order in rows["orders"]:
        payment = payments[order["order"]]
        if how == "semi":
            results.append((*order.values(), order["ordered"]))
        else:
            results.append((*order.values(), payment["paid"], payment["amount"], payment["paid"]))
    return sorted(results)


def bare(rows: dict[str, list[Row]]) -> list[Row]:
    """Return the inner join as a loop over the rows in order of time finds it: two dicts that keep all rows."""
    merged = sorted(
        [(row["ordered"], 0, row) for row in rows["orders"]] + [(row["paid"], 1, row) for row in rows["payments"]],
        key=lambda row: row[:2],
    )
    kept: tuple[dict[int, list[Row]], dict[int, list[Row]]] = {}, {}
    results: list[Row] = []
    for ts, side, row in merged:
        for other in kept[1 - side].get(row["order"], ()):
            order, payment = (row, other) if side == 0 else (other, row)
            if 0 <= payment["paid"] - order["ordered"] <= _HOUR_MS:
                results.append({**order, **payment, "result_time": ts})
        kept[side].setdefault(row["order"], []).append(row)
    return results


def measure(folder: Path, *, rows: int = 200_000, waiting: int = 1_000_000, repeats: int = 3) -> Result:
    """Measure joins of so many rows, and a restart with so many rows that wait."""
    result = Result("joins", {"rows": rows, "waiting": waiting})
    with stopwatch() as clock:
        _speed(folder, result, rows, repeats)
        result.lines.append(_logged(folder, min(rows, 50_000)))
        result.lines += _restart(folder, waiting, repeats)
        result.lines += _memory(folder, waiting)
        _as_of(result, rows)
    result.seconds = clock.seconds
    return result


def _speed(folder: Path, result: Result, rows: int, repeats: int) -> None:
    import pyarrow as pa

    given = inputs_of(rows)
    tables = {name: pa.Table.from_pylist(of) for name, of in given.items()}
    cases: dict[str, Callable[[], float]] = {"a bare loop over dicts": lambda: _bare_rate(given, rows)}
    for how in _HOWS:
        cases[f"dicts, {how}"] = partial(_rate, folder, how, given, given, rows, tables=False)
    for how in ("inner", "left"):
        cases[f"arrow, {how}"] = partial(_rate, folder, how, tables, given, rows, tables=True)
    spreads = interleaved(cases, repeats)
    base = spreads["a bare loop over dicts"]
    targets = {"dicts, inner": _DICTS, "arrow, inner": _ARROW}
    result.lines.append(line("a bare loop over dicts", base, "rows/s"))
    for name in list(cases)[1:]:
        result.lines.append(
            line(name, spreads[name], "rows/s", base=base, against="the bare loop", target=targets.get(name))
        )


def _bare_rate(given: dict[str, list[Row]], rows: int) -> float:
    began = process_time()
    results = bare(given)
    seconds = process_time() - began
    check(sorted(tuple(row.values()) for row in results) == answers(given, "inner"), "the bare loop")
    return rows / seconds


def _rate(folder: Path, how: str, inputs: Any, given: dict[str, list[Row]], rows: int, *, tables: bool) -> float:
    """Return rows a second of processor time of a run; its results are compared outside of it."""
    results: list[Any] = []
    with scratch(folder) as place:
        began = process_time()
        run = joined(how).run(inputs, place / "state", checkpoints=NEVER, commit_rows=_COMMIT_ROWS)
        for row in run.tables() if tables else run:
            results.append(row)  # noqa: PERF402  # what a consumer does
        seconds = process_time() - began
    if tables:
        results = [row for _, table in results for row in table.to_pylist()]
    check(sorted(tuple(row.values()) for row in results) == answers(given, how), f"{how}, {len(results)} results")
    return rows / seconds


def _logged(folder: Path, rows: int) -> Line:
    """Return the bytes of the changelog of a join beside the msgpack of the values of its rows."""
    given = inputs_of(rows)
    packed = sum(len(msgpack.packb(list(row.values()))) for of in given.values() for row in of)
    ordered = sorted(
        tagged(joined("left").joined, given),  # type: ignore[arg-type]
        key=lambda row: row[1]["paid" if row[0] else "ordered"],
    )
    with scratch(folder) as place, Engine(joined("left"), place, durability="os", checkpoints=NEVER) as engine:
        for at in range(0, len(ordered), _COMMIT_ROWS):
            engine.process_many(ordered[at : at + _COMMIT_ROWS])
            engine.commit()
        logged = engine.states[0].metrics().changelog_bytes_written
    ratio = logged / packed
    return Line("logged bytes beside the msgpack of the rows", ratio, ratio, ratio, "", target=_LOGGED)


def _restart(folder: Path, waiting: int, repeats: int) -> list[Line]:
    """Return how long a join with so many waiting rows takes to open, and until it has joined a row."""
    import numpy as np
    import pyarrow as pa

    with scratch(folder) as place:
        keys = np.arange(waiting)
        orders = pa.table({"order": keys, "ordered": keys * _STEP_MS, "item": pa.array(["tea"] * waiting)})
        days = -(-waiting * _STEP_MS // 86_400_000) + 1
        join = joined("left", ("0 s", f"{days} days"))
        for _ in join.run({"orders": orders, "payments": []}, place / "state", commit_rows=50_000):
            raise AssertionError("a row that waits came out")
        with hs.open(place / "state") as state:
            state.checkpoint(wait=True)
        both = [_reopened(place, waiting, days) for _ in range(repeats)]
    lines = []
    for name, at, target in (("ready", 0, _READY), ("the first row is joined", 1, None)):
        times = sorted(each[at] for each in both)
        lines.append(
            Line(
                f"restart, {waiting:,} rows wait: {name}",
                times[len(times) // 2],
                times[0],
                times[-1],
                "ms",
                target=target,
            )
        )
    return lines


def _reopened(place: Path, waiting: int, days: int) -> list[float]:
    times: list[float] = fresh_process.call(
        "benchmarks.suites.joins:reopened", state=str(place / "state"), waiting=waiting, days=days
    )
    return times


def reopened(state: str, waiting: int, days: int) -> list[float]:
    """Open a join, pay the order in the middle, and return when the join was open and when it had joined (ms)."""
    join = joined("left", ("0 s", f"{days} days"))
    with scratch() as place:  # what is imported on the way is no part of the restart
        list(join.run({"orders": [{"order": 1, "ordered": 1, "item": "tea"}], "payments": []}, place / "state"))
        join.open(place / "state").close()
    began = perf_counter()
    with join.open(state) as engine:
        opened = perf_counter()
        payment = {"order": waiting // 2, "paid": waiting * _STEP_MS, "amount": 7}
        results = engine.process({"payments": payment})
        done = perf_counter()
        check(
            [(row["order"], row["amount"]) for row in results] == [(waiting // 2, 7)], "the first row after a restart"
        )
    return [(opened - began) * 1000, (done - began) * 1000]


def _memory(folder: Path, waiting: int) -> list[Line]:
    """Return the anonymous memory of a join with so many waiting rows, without a limit and under a fifth of that."""
    lines: list[Line] = []
    limit = None
    for name in ("without a limit", f"under a limit of 1/{_SHARE}"):
        with scratch(folder) as place:
            _, memory = watched.call(
                "benchmarks.suites.joins:load_and_join", state=str(place / "state"), waiting=waiting, limit=limit
            )
        taken = max(peak.anonymous for peak in memory.values())
        figure = _single(f"memory, {waiting:,} rows wait: {name}", taken / 1e6, "MB")
        if limit is not None:
            figure = replace(figure, ratio=taken / limit, against="the limit", target=_WITHIN)
        lines.append(figure)
        limit = max(1, taken // _SHARE)
    return lines


def load_and_join(state: str, waiting: int, limit: int | None) -> int:
    """Let so many rows wait in a join, and join the payments of some of them; return how many."""
    import numpy as np
    import pyarrow as pa

    days = -(-waiting * _STEP_MS // 86_400_000) + 1
    join, none = joined("left", ("0 s", f"{days} days")), pa.table({"order": [0], "paid": [0], "amount": [0]}).slice(1)
    with join.open(f"{state} before") as engine:  # imports
        engine.table_of(0, engine.split_batch(Sides(none.rename_columns(["order", "ordered", "item"]), none), 0)[0])
    watched.phase(watched.BASE)
    watched.phase("load")
    with Engine(join, state, durability="os", memory_limit=limit) as engine:

        def commit(orders: Any, payments: Any) -> Any:
            (part,) = engine.split_batch(Sides(orders, payments), 0)
            results = engine.table_of(0, part)
            engine.commit()
            return results

        for at in range(0, waiting, _COMMIT_ROWS):
            keys = np.arange(at, min(at + _COMMIT_ROWS, waiting))
            items = pa.array([f"item {key % 97}" for key in keys.tolist()])
            commit(pa.table({"order": keys, "ordered": keys * _STEP_MS, "item": items}), none)
        watched.phase("join")
        keys = np.sort(np.random.default_rng(7).choice(waiting, min(waiting, _COMMIT_ROWS), replace=False))
        times = np.full(len(keys), waiting * _STEP_MS)
        results = commit(
            none.rename_columns(["order", "ordered", "item"]), pa.table({"order": keys, "paid": times, "amount": keys})
        )
        rows = [(row["order"], row["item"], row["amount"]) for row in results.rows(dict)]
        check(sorted(rows) == [(key, f"item {key % 97}", key) for key in keys.tolist()], "the join under a limit")
    return len(rows)


def readings(rows: int) -> tuple[list[Row], list[Row]]:
    """Return alarms, and readings of sensors, by time."""
    dice = random.Random(9)
    of_sensor = [{"sensor": dice.randrange(1000), "read": i * 10, "value": i % 100} for i in range(rows // 2)]
    alarms = [{"sensor": dice.randrange(1000), "at": i * 10 + 5, "alarm": i} for i in range(rows // 2)]
    return alarms, of_sensor


def _as_of(result: Result, rows: int) -> None:
    """Add the as-of join of alarms with the newest reading before them, ours and that of peers that are installed."""
    import pyarrow as pa

    alarms, of_sensor = readings(rows)
    newest: dict[int, int] = {}
    expected = []
    for alarm, reading in zip(alarms, of_sensor, strict=True):
        newest[reading["sensor"]] = reading["value"]  # the reading came 5 ms before the alarm
        expected.append((alarm["alarm"], newest.get(alarm["sensor"])))
    stream = hs.stream(name="alarms", key="sensor", timestamp="at", columns=["alarm"])
    table = hs.table(name="readings", key="sensor", timestamp="read", history="1 minute", columns=["value"])
    join = stream.join(table, as_of=True, how="left")
    began = process_time()
    results = [(row["alarm"], row["value"]) for row in join.run({"alarms": alarms, "readings": of_sensor})]
    seconds = process_time() - began
    check(sorted(results) == expected, "as-of join")
    result.lines.append(_single("as-of join, dicts", rows / seconds))
    if find_spec("pathway") is None:
        result.notes.append("Pathway is not installed: its as-of join was not measured.")
    else:
        few = min(rows // 2, _FEW)
        seconds = _by_pathway(alarms[:few], of_sensor[:few], expected[:few])
        result.lines.append(_single(f"as-of join, Pathway over whole tables, {2 * few:,} rows", 2 * few / seconds))
    try:
        import duckdb
    except ImportError:
        result.notes.append("DuckDB is not installed: its as-of join was not measured.")
        return
    given, read = pa.Table.from_pylist(alarms), pa.Table.from_pylist(of_sensor)
    connection = duckdb.connect()
    connection.execute("SET threads TO 1")
    connection.register("alarms", given)
    connection.register("readings", read)
    began = process_time()
    answer = connection.execute(
        "SELECT alarm, value FROM alarms ASOF LEFT JOIN readings "
        "ON alarms.sensor = readings.sensor AND alarms.at >= readings.read ORDER BY alarm"
    ).fetchall()
    seconds = process_time() - began
    check(answer == expected, "as-of join of DuckDB")
    result.lines.append(_single("as-of join, DuckDB over whole Arrow tables, one thread", rows / seconds))


def _by_pathway(alarms: list[Row], of_sensor: list[Row], expected: list[tuple[int, int | None]]) -> float:
    """Return the processor time (seconds) of the as-of join by Pathway."""
    import pandas as pd
    import pathway as pw

    given, read = (pw.debug.table_from_pandas(pd.DataFrame(rows)) for rows in (alarms, of_sensor))
    joined = given.asof_join(read, given.at, read.read, given.sensor == read.sensor, how=pw.JoinMode.LEFT)
    answer: dict[int, int | None] = {}

    def take(key: Any, row: Row, time: int, is_addition: bool) -> None:
        if is_addition:
            answer[row["alarm"]] = row["value"]

    pw.io.subscribe(joined.select(alarm=given.alarm, value=read.value), on_change=take)
    began = process_time()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    seconds = process_time() - began
    check(sorted(answer.items()) == expected, "as-of join of Pathway")
    return seconds


def _single(name: str, value: float, unit: str = "rows/s") -> Line:
    return Line(name, value, value, value, unit)
