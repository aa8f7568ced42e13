"""Run the conformance cases of aggregations (`sliding`, `time_windows`, `session_windows`) against topologies.

Each step is a commit of its own, because final results are expected with the record that closes their window. The five
ways are those of `vector_runner`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import hybridstore as hs
from hybridstore.topology.batch import Records
from hybridstore.topology.plan import Plan
from hybridstore.topology.results import Result
from tests.tools.hooks import check_stores, crash, force_cold
from tests.tools.vector_runner import SMALL, Case, Step
from tests.tools.ways import aggregating

TYPES = ("session_windows", "sliding", "time_windows")


def _concat() -> hs.Aggregator:
    return hs.Aggregator(lambda: "0", lambda text, value: f"{text}+{value}", name="concat")


def _reduce_concat() -> hs.Aggregator:
    return hs.Reduce(lambda text, value: f"{text}+{value}", name="reduce_concat")


def _sorted_concat() -> hs.Aggregator:
    return hs.Aggregator(str, lambda text, value: "".join(sorted(text + value)), name="sorted_concat")


AGGREGATORS: dict[str, Callable[[], hs.Aggregator]] = {
    "concat": _concat,
    "reduce_concat": _reduce_concat,
    "sorted_concat": _sorted_concat,
    "count": hs.Count,
}
ERRORS: dict[str, type[Exception]] = {"null": TypeError, "invalid_argument": ValueError}
EMITS: dict[str, Any] = {"on_update": "record", "on_close": "close"}


def declared(params: dict[str, Any]) -> hs.Topology:
    """The topology of a case."""
    kind, grace = params["type"], params["grace"]
    windows: Any
    if kind == "sliding":
        windows = hs.KafkaSlidingWindows(params["time_difference"], grace=grace)
    elif kind == "session_windows":
        windows = hs.SessionWindows(params["gap"], grace=grace)
    elif params["advance"] == params["size"]:
        windows = hs.TumblingWindows(params["size"], grace=grace)
    else:
        windows = hs.HoppingWindows(params["size"], params["advance"], grace=grace)
    aggregator = AGGREGATORS[params["aggregator"]]().on("value")
    topology = (
        hs.stream(key="key", timestamp="ts")
        .windowed_by(windows, retention=params["retention"])
        .aggregate(aggregate=aggregator, emit=EMITS[params["emit"]])
    )
    return topology.hold("close") if params.get("suppress_until_close") else topology


class TopologyRunner:
    """One run of one case, in one way."""

    def __init__(self, case: Case, state: Path, way: str) -> None:
        self.case = case
        self.state = state
        self.way = way
        self.dropped = 0
        self.started = False

    def start(self) -> None:
        self.topology = declared(self.case["store"])
        with patch.object(Plan, "dates_results", new=True):  # the cases say when each result's newest record was
            self.engine = hs.Engine(self.topology, self.state, durability="os", _tuning=SMALL)
        self.logic = aggregating(self.engine)
        self.started = True

    def run(self) -> None:
        for number, step in enumerate(self.case["steps"]):
            if step["op"] == "construct":
                with pytest.raises(ERRORS[step["error"]]):
                    self.start()
                continue
            if self.started:
                self.between(number)
            else:
                self.start()
            operation = getattr(self, step["op"].replace("dropped", "count_dropped"))
            if "error" in step:
                with pytest.raises(ERRORS[step["error"]]):
                    operation(step)
                continue
            actual = operation(step)
            where = f"step {number} {json.dumps(step)}"
            if "expect" in step:
                assert json.dumps(actual) == json.dumps(step["expect"]), f"{where}: found {actual!r}"
            if "expect_set" in step:
                results, expected = ({json.dumps(row) for row in rows} for rows in (actual, step["expect_set"]))
                assert results == expected, f"{where}: found {actual!r}"
                assert len(actual) == len(results), f"{where}: found the same row twice: {actual!r}"
        if self.started:
            self.engine.close()

    def between(self, number: int) -> None:
        if self.way == "reopened":
            self.again(lambda: self.engine.close())
        elif self.way == "crashed" and number % 3 == 2:
            self.again(lambda: crash(self.engine.states[0]))  # what was committed is read from the changelog
            self.engine.states[0].checkpoint(wait=True)
            self.again(lambda: crash(self.engine.states[0]))  # and now everything comes from the checkpoint
        elif self.way == "cold":
            force_cold(self.engine.states[0])
        elif self.way == "tail":
            if number % 5 == 4:
                self.engine.states[0].checkpoint(wait=True)
            self.again(lambda: crash(self.engine.states[0]))
        check_stores(self.engine.states[0])

    def again(self, end: Callable[[], None]) -> None:
        self.dropped += self.engine.dropped
        end()
        self.start()

    def reopen(self, step: Step) -> None:
        self.again(lambda: self.engine.close())
        self.dropped = 0

    def process(self, step: Step) -> list[list[Any]]:
        results = self.logic.process(Records([step["key"]], [step["value"]], [step["ts"]]))
        results += self.logic.finish()
        self.engine.commit()
        return rows(results)

    def windows(self, step: Step) -> list[list[Any]]:
        return rows(self.logic.windowed.live())

    def find_sessions(self, step: Step) -> list[list[Any]]:
        return [
            row[:4] for row in rows(self.logic.find_sessions(step["key"], step["earliest_end"], step["latest_start"]))
        ]

    def count_dropped(self, step: Step) -> int:
        return self.dropped + self.engine.dropped


def rows(results: list[Result]) -> list[list[Any]]:
    """Results in the form of the suites: [key, start, end, aggregate, ts]."""
    return [
        [key, start, end, None if aggregates is None else aggregates[0], ts]
        for key, start, end, aggregates, ts in results
    ]
