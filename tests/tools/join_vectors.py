"""Runs the conformance cases of joins (tests/vectors/joins): rows in, rows out, step by step, or batch by batch.

Four ways: as it is, with the state reopened before every step, with a crash before every third step, and cold.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hybridstore as hs
from hybridstore.clock import NO_TIME, Watermark
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.joining import Joining
from hybridstore.topology.joins.rows import tagged
from tests.tools.hooks import crash, force_cold

Case = dict[str, Any]
Row = dict[str, Any]
WAYS = ("plain", "reopened", "crashed", "cold")
HOWS = {"outer": "full"}
# A history that no case reaches.
LONG = 10**9


def load(folder: Path) -> list[Case]:
    """Return the cases of all files of a folder."""
    return [case for path in sorted(folder.glob("*.json")) for case in json.loads(path.read_text(encoding="utf-8"))]


def skip_reason(case: Case) -> str | None:
    """Return why a case is left out, or None. It knows kinds and parameters, never ids."""
    if case["kind"] in ("table-table", "foreign-key"):
        return f"{case['kind']} joins are left out (docs/joins.md)"
    if case["dialect"] == "kafka":
        return f"shipped Kafka differs from the design ({case.get('differs')})"
    if case["kind"] == "batches":
        if "size" in case:
            return "a window as part of the key is left out (docs/joins.md)"
        if case.get("before") is None or case.get("after") is None or min(case["before"], case["after"]) < 0:
            return "open bounds are left out (docs/joins.md)"
        if any(
            f"{side}_if" in case and case["how"] in (side, "outer") and side != "right" for side in ("left", "right")
        ):
            return "a condition on a side that is kept whole is a filter behind the join (docs/joins.md)"
    return None


class JoinRunner:
    """One case on a state of its own."""

    def __init__(self, case: Case, path: Path, way: str) -> None:
        self.case = case
        self.way = way
        self.path = path
        self.late = 0
        self.start()

    def start(self) -> None:
        self.engine = Engine(topology(self.case), self.path, durability="os", checkpoints=hs.CheckpointPolicy())

    def between(self, number: int) -> None:
        engine = self.engine
        if self.way == "reopened":
            self.late += engine.dropped
            engine.close()
            self.start()
        elif self.way == "crashed" and number % 3 == 2:
            self.late += engine.dropped
            for state in engine.states:
                if number % 2:
                    state.checkpoint(wait=True)
                crash(state)
            self.start()
        elif self.way == "cold":
            for state in engine.states:
                force_cold(state)

    def run(self) -> None:
        (self._batches if self.case["kind"] == "batches" else self._steps)()
        self.engine.close()

    # --- steps ------------------------------------------------------------------------------------------------

    def _steps(self) -> None:
        every: list[Row] = []
        for number, step in enumerate(self.case["steps"]):
            self.between(number)
            rows = self._step(step)
            every += rows
            if "expect" in step:
                self._compare(f"step {number} {json.dumps(step)}", rows, step)
        if "expect_all" in self.case:
            self._compare("all steps", every, {"expect": self.case["expect_all"], "unordered": True})
        if "late" in self.case:
            assert self.late + self.engine.dropped == self.case["late"], self.case["id"]

    def _step(self, step: Row) -> list[Row]:
        engine = self.engine
        if step.get("op") == "advance":
            results = self._advanced(step["ts"])
        else:
            results = engine.process(given(self.case, step))
            if step["value"] is None and self.case["kind"] == "stream-stream":
                results += self._advanced(step["ts"])  # a row that is ignored moves time, too
        engine.commit()
        return [self._expected_form(row) for row in results]

    def _advanced(self, ts: int) -> list[Row]:
        (run,) = self.engine._runs
        assert isinstance(run.logic, Joining)
        return run.logic.rows(run.logic.advance(ts), "ms")

    def _expected_form(self, row: Row) -> Row:
        key = row["key"]
        return {"key": key, "left": row["lv"], "right": row.get("rv"), "ts": row["result_time"]}

    def _compare(self, where: str, rows: list[Row], step: Row) -> None:
        expected = step["expect"]
        if any("ts" not in row for row in expected):
            rows = [{name: value for name, value in row.items() if name != "ts"} for row in rows]
        actual, wanted = ([json.dumps(row, sort_keys=True) for row in part] for part in (rows, expected))
        if step.get("unordered"):
            actual, wanted = sorted(actual), sorted(wanted)
        assert actual == wanted, f"{self.case['id']}: {where}: found {actual}"

    # --- batches ----------------------------------------------------------------------------------------------

    def _batches(self) -> None:
        """Run batches by a watermark, each with the batch without data that follows where it moved the watermark."""
        case = self.case
        newest: dict[str, int | None] = {"left": None, "right": None}
        watermark = before = NO_TIME  # some cases count from their first row, which is not late
        for number, batch in enumerate(case["batches"]):
            self.between(number)
            dropped = self.engine.dropped
            rows = {side: [*batch.get(side, []), *batch.get("both", [])] for side in ("left", "right")}
            for side in ("left", "right"):
                rows[side] = [row for row in rows[side] if passes(case.get(f"{side}_if"), row["value"])]
                times = [row["ts"] for row in rows[side]]
                if times:
                    newest[side] = max(times) if newest[side] is None else max(newest[side] or 0, *times)
            pairs = self._batch(rows, Watermark(before, watermark))
            # the watermark that a batch moves counts from the next batch on, which has no data here
            delays = {side: delay for side, delay in case["watermark"].items() if delay is not None}
            if delays:
                moved = min(NO_TIME if (ts := newest[side]) is None else ts - delay for side, delay in delays.items())
                before, watermark = watermark, max(watermark, moved)
            if not case.get("no_empty_batches") and before != watermark:
                pairs += self._batch({"left": [], "right": []}, Watermark(before, watermark))
                before = watermark
            actual = sorted(map(json.dumps, pairs))
            wanted = sorted(map(json.dumps, batch["expect"]))
            where = f"{case['id']}: batch {batch['batch']}"
            assert actual == wanted, f"{where}: found {actual}, expected {wanted}"
            assert max(0, watermark) == batch["watermark_after"], where
            assert self.engine.dropped - dropped == batch["late"], where

    def _batch(self, rows: dict[str, list[Row]], clock: Watermark) -> list[Row]:
        (run,) = self.engine._runs
        join = run.plan.joined
        assert join is not None
        inputs = {
            side: [{"key": row["key"], f"{side[0]}ts": row["ts"], f"{side[0]}v": row["value"]} for row in part]
            for side, part in rows.items()
        }
        records = self.engine.records(tagged(join, inputs))
        results = list(run.table(run.process_batch(records, clock), "ms").rows(dict))
        self.engine.commit()
        semi = self.case["how"] == "semi"
        return [
            {"left": side_of(row, "l")} if semi else {"left": side_of(row, "l"), "right": side_of(row, "r")}
            for row in results
        ]


def side_of(row: Row, side: str) -> list[Any] | None:
    return None if row[f"{side}ts"] is None else [row["key"], row[f"{side}v"], row[f"{side}ts"]]


def passes(condition: str | None, value: int) -> bool:
    if condition is None:
        return True
    name, *parts, operator, bound = condition.split()
    assert name == "value", condition
    if parts:
        modulo, divisor = parts
        assert modulo == "%", condition
        value %= int(divisor)
    return {">": value.__gt__, "<": value.__lt__, "==": value.__eq__}[operator](int(bound))


def topology(case: Case) -> hs.Topology:
    """Return the join of a case."""
    how = HOWS.get(case["how"], case["how"])
    kind = case["kind"]
    stream = hs.stream(name="left", key="key", timestamp="lts", columns=["lv", "on"] if kind == "global" else ["lv"])
    if kind in ("stream-stream", "batches"):
        right = hs.stream(name="right", key="key", timestamp="rts", columns=["rv"])
        before, after = (case.get(f"{end}_ms", case.get(end)) for end in ("before", "after"))
        return stream.join(right, within=(before, after), how=how, grace=case.get("grace_ms", 0))
    history = case.get("history_ms", LONG if kind == "as-of" else None)
    table = hs.table(name="right", key="key", timestamp="rts", history=history, delete="deleted", columns=["rv"])
    if kind == "global":
        return stream.join(table, how=how, broadcast=True, on="on")
    return stream.join(table, how=how, as_of=history is not None, grace=case.get("grace_ms"))


def given(case: Case, step: Row) -> dict[str, Row]:
    """Return the rows of a step by input. A row of a stream without a value is none."""
    key, value, ts = step["key"], step["value"], step["ts"]
    rows: dict[str, Row] = {}
    if step["side"] in ("left", "both") and value is not None:
        rows["left"] = {"key": key, "lv": value, "lts": ts, "on": step.get("on")}
    if step["side"] in ("right", "both") and (value is not None or case["kind"] != "stream-stream"):
        rows["right"] = {"key": key, "rv": value, "rts": ts, "deleted": value is None}
    return rows


# --- versioned stores ---------------------------------------------------------------------------------------------


def run_versioned(case: Case, path: Path, way: str) -> None:
    """Run a case of the versioned store."""
    state = hs.open(path, durability="os")
    store = state.versioned("case", history=case["history_ms"])
    late = 0
    for number, step in enumerate(case["steps"]):
        if way != "plain":
            late += store.dropped
            state.commit()
            if way == "cold":
                force_cold(state)
            elif way == "reopened":
                state.close()
            else:
                crash(state)
            if way != "cold":
                state = hs.open(path, durability="os")
            store = state.versioned("case", history=case["history_ms"])
            if way == "cold":
                late -= store.dropped
        operation = VERSIONED[step["op"]]
        actual = late + store.dropped if step["op"] == "late" else operation(store, step)
        if step["op"] == "restore":
            late -= actual
        elif "expect" in step:
            assert actual == step["expect"], f"{case['id']}: step {number} {step}: found {actual}"
    state.close()


def _row(version: Any) -> list[Any] | None:
    return None if version is None else list(version)


def _restore(store: hs.VersionedStore, step: Row) -> int:
    before = store.dropped
    for record in step["records"]:
        store.put(*record)
    return store.dropped - before


def _versions(store: hs.VersionedStore, step: Row) -> Iterator[list[Any] | None]:
    ascending = step.get("order") == "ascending"
    return map(_row, store.versions(step["key"], step["from"], step["to"], reverse=not ascending))


VERSIONED: dict[str, Callable[[hs.VersionedStore, Row], Any]] = {
    "put": lambda store, step: store.put(step["key"], step["value"], step["ts"])._asdict(),
    "delete": lambda store, step: _row(store.delete(step["key"], step["ts"])),
    "get": lambda store, step: _row(store.get(step["key"], step.get("as_of"))),
    "versions": lambda store, step: list(_versions(store, step)),
    "restore": _restore,
    "late": lambda store, step: store.dropped,
}
