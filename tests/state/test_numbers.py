"""Numbers of a running job: rows of one shape on every engine, totals that count every batch once, and the text that
Prometheus reads."""

from __future__ import annotations

import io
import json
import random
import re
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.spark import metrics
from hybridstore.state import metrics_server
from hybridstore.state.metrics_server import MetricsServer
from hybridstore.state.numbers import COLUMNS, CONTENT_TYPE, NUMBERS, TOTALS, ShardMetrics, openmetrics, row_of
from tests.tools.shard_tools import OFTEN, operator, provider, put, restarted

ROOT = Path(__file__).resolve().parents[2]


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus' own parser reads, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_text_says_what_the_rows_say() -> None:
    row = {
        "operator": 'o"p\\\n',
        "shard": 3,
        "version": 7,
        "wall_ms": 1500,
        "records": {"a": 1, "b": 2},
        "totals": {"rows": 9},
    }
    read = samples(openmetrics([row_of(row), row_of({**row, "shard": 4, "version": 8})]))
    labels = (("operator", 'o"p\\\n'), ("shard", "3"))
    assert read["hybridstore_version", labels] == 7
    assert read["hybridstore_version", (labels[0], ("shard", "4"))] == 8
    assert read["hybridstore_commit_time_seconds", labels] == 1.5
    assert read["hybridstore_records", (*labels, ("store", "b"))] == 2
    assert read["hybridstore_rows_total", labels] == 9
    assert samples(openmetrics([])) == {}


def test_every_number_is_a_column_and_every_name_is_there_once() -> None:
    assert {number.column for number in NUMBERS} <= set(COLUMNS)
    assert len({number.name for number in NUMBERS}) == len(NUMBERS)
    assert all(number.name.endswith(f"_{number.unit}") for number in NUMBERS if number.unit)
    # what a state and a shard both count is one number
    plain, shard = get_type_hints(hs.Metrics), get_type_hints(ShardMetrics)
    both = plain.keys() & shard.keys()
    assert len(both) == 21
    assert {name: plain[name] for name in both} == {name: shard[name] for name in both}
    assert metrics.__doc__ is not None
    assert [name for name in COLUMNS if not re.search(rf"\b{name}\b", metrics.__doc__)] == []


@pytest.mark.stress
def test_totals_of_a_shard_count_every_batch_once(tmp_path: Path, seed: int, rounds: int) -> None:
    """Whatever is loaded from, done again, or checkpointed between two batches."""
    for number in range(rounds):
        r, root = random.Random(f"{seed} {number}"), tmp_path / str(number)
        shard, expected = provider(root, policy=OFTEN), 0
        for version in range(25):
            if r.random() < 0.3:  # a worker that has nothing in memory
                shard = provider(root, policy=OFTEN)
            if r.random() < 0.2:
                shard = restarted(root, version, policy=OFTEN)
            if r.random() < 0.2:
                shard.note_empty(version, {"rows": 0, "rows_out": 0})
            else:
                attempts = r.choice([1, 1, 2])
                for _ in range(attempts):
                    store = shard.get_store(version)
                    put(store, **{f"k{r.randint(0, 9)}": version})
                    store.commit({"rows": 10, "rows_out": 1, "late": version % 2})
                    if attempts == 2:
                        shard = provider(root, policy=OFTEN)
                expected += 10
            shard.maintain(wait=True, oldest_replay=version)
            (row,) = rows_of(root)
            assert row["total_rows"] == expected if expected else not row["total_rows"]
            assert list(row) == list(COLUMNS)


def rows_of(root: Path) -> list[dict[str, Any]]:
    """The rows of the only shard, which has no description of an operator."""
    from hybridstore.state.numbers import shard_row
    from recovery.runs import newest_claim
    from recovery.shard_log import ShardLog

    claim = newest_claim(operator(root))
    assert claim is not None
    log = ShardLog(operator(root).below("000000/000000"))
    standing = log.standing(claim.runs)
    return [shard_row(log, standing.newest_name(), standing.top(standing.newest, log.parent), {"shard": 0})]


def test_inspect_metrics_of_a_query_and_of_a_plain_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = provider(tmp_path / "query")
    for version in range(3):
        store = shard.get_store(version)
        put(store, a=version)
        store.commit({"rows": 5, "rows_out": 2, "late": 1, "batch": version})
    shard.note_empty(3, {"batch": 3, "rows": 0})
    assert run(["inspect", "metrics", str(tmp_path / "query")]) == 0
    read = samples(capsys.readouterr().out)
    labels = (("operator", "op"), ("shard", "0"))
    assert [read[name, labels] for name in ("hybridstore_rows_total", "hybridstore_late_total")] == [15, 3]
    assert [read[name, labels] for name in ("hybridstore_batch_rows", "hybridstore_version")] == [0, 4]
    assert read["hybridstore_records", (*labels, ("store", "default"))] == 1
    with hs.open(tmp_path / "plain") as state:
        state.key_value("counts").put("a", 1)
        state.commit()
    assert run(["inspect", "metrics", str(tmp_path / "plain"), "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (list(row), row["version"], row["records"]) == (list(COLUMNS), 1, {"counts": 1})


def topology() -> hs.Topology:
    return hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count(), emit="commit")


def test_the_bytes_to_be_replayed_are_the_same_behind_a_restart(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        for key in "aab":
            state.key_value("k")[key] = 1
            state.commit()
        state.key_value("k")["a"] = 2
        state.rollback()
        state.key_value("k")["c"] = 3
        state.commit()
        behind = state.metrics()
    with hs.open(tmp_path) as state:
        assert state.metrics().bytes_since_checkpoint == behind.bytes_since_checkpoint > 0
        assert state.metrics().records_since_checkpoint == behind.records_since_checkpoint


def test_an_engine_has_the_numbers_of_its_last_commit_and_totals(tmp_path: Path) -> None:
    rows = [{"k": "ab"[i % 2], "t": 10 * i} for i in range(20)]
    with topology().open(tmp_path, shards=2) as engine:
        assert engine.metrics() == []
        for commit in range(2):
            given = [engine.process(row) for row in [*rows, {"k": "a", "t": 0}, {"k": None, "t": 0}]]
            last = engine.commit()
            assert given == [[]] * 22
            numbers = engine.metrics()
            assert [list(row) for row in numbers] == [list(COLUMNS)] * 2
            assert sum(row["rows"] for row in numbers) == 21
            assert sum(row["rows_out"] for row in numbers) == len(last)
            assert sum(row["total_rows"] for row in numbers) == 21 * (commit + 1)
            assert sum(row["total_late"] for row in numbers) == engine.dropped
            assert max(row["event_time_ms"] or 0 for row in numbers) == 190
            assert sum(row["total_null_key"] or 0 for row in numbers) == commit + 1
            assert {row["batch"] for row in numbers} == {commit + 1}


def test_an_engine_serves_its_numbers_on_request_to_this_machine(tmp_path: Path) -> None:
    with topology().open(tmp_path) as engine:
        host, port = engine.serve_metrics()
        assert host == "127.0.0.1"
        engine.process({"k": "a", "t": 5})
        engine.commit()
        with urlopen(f"http://{host}:{port}/metrics") as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert samples(answer.read().decode())["hybridstore_rows_total", (("shard", "0"),)] == 1
        with pytest.raises(HTTPError, match="404") as other:
            urlopen(f"http://{host}:{port}/other")
        other.value.close()
        with pytest.raises(OSError, match=r".*"):
            engine.serve_metrics(port)
    with pytest.raises(OSError, match=r".*"):
        urlopen(f"http://{host}:{port}/metrics")


def test_a_row_of_spark_and_one_of_an_engine_have_the_same_columns() -> None:
    assert metrics.__doc__ is not None
    documented = set(re.findall(r"\w+", metrics.__doc__))
    assert {f"total_{name}" for name in TOTALS} <= documented


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_rows_rate_event_time_and_late_rows(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, clock = Stream(terminal), iter(range(0, 1000, 20))
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("hybridstore.topology.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    rows = [{"k": "a", "t": 1_767_225_600_000 + i * 1000} for i in range(4)] + [{"k": "a", "t": 0}]
    assert list(topology().run(rows, tmp_path, commit_rows=2, progress=True))
    lines = re.split(r"[\r\n]+", stream.getvalue().strip())
    assert lines[0] == "commit 1, 2 rows, 0/s, event time 2026-01-01 00:00:01, 0 late"
    assert lines[-1] == "commit 3, 5 rows, 0/s, event time 2026-01-01 00:00:03, 1 late"


def test_a_run_serves_its_metrics_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="hybridstore")
    given = topology().run([{"k": "a", "t": i} for i in range(4)], tmp_path, commit_rows=2, metrics_port=0)
    next(given)
    (address,) = re.findall(r"http://\S+", caplog.text)
    with urlopen(address) as answer:
        assert samples(answer.read().decode())["hybridstore_rows_total", (("shard", "0"),)] == 2
    assert len(list(given)) == 1


def test_a_dashboard_asks_for_metrics_that_exist() -> None:
    """And is what Grafana takes: panels with an id, a place, a type and targets (its own schema is not public)."""
    board = json.loads((ROOT / "examples" / "grafana_dashboard.json").read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time", "refresh"} <= set(board)
    names = {f"{number.name}_total" if number.kind == "counter" else number.name for number in NUMBERS}
    asked: set[str] = set()
    for panel in board["panels"]:
        assert {"id", "title", "type", "gridPos", "datasource", "targets", "fieldConfig"} <= set(panel)
        assert set(panel["gridPos"]) == {"h", "w", "x", "y"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["type"] in ("timeseries", "stat", "table", "bargauge")
        for target in panel["targets"]:
            assert {"refId", "expr", "legendFormat"} <= set(target)
            asked |= set(re.findall(r"hybridstore_\w+", target["expr"]))
    for variable in board["templating"]["list"]:
        asked |= set(re.findall(r"hybridstore_\w+", str(variable.get("query", ""))))
    assert asked <= names, asked - names
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    # what the page promises: rows, late rows, restart, checkpoints, skew
    assert {"hybridstore_rows_total", "hybridstore_late_total", "hybridstore_restore_estimate_seconds"} <= asked


def test_idle_connections_are_bounded_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(metrics_server, "IDLE_SECONDS", 0.2)
    server = MetricsServer(lambda: [], 0, "127.0.0.1")
    try:
        before = set(threading.enumerate())
        with ExitStack() as stack:
            idle = [stack.enter_context(socket.create_connection(server.address, timeout=60)) for _ in range(20)]
            # Every connection is closed: 17 at once, and the others when they have been idle.
            assert [connection.recv(1) for connection in idle] == [b""] * 20
            assert len(set(threading.enumerate()) - before) <= 3
        for thread in set(threading.enumerate()) - before:
            thread.join()
        assert server._server._connections == set()
        with urlopen("http://{}:{}/metrics".format(*server.address), timeout=60) as answer:
            assert answer.status == 200
    finally:
        server.close()
