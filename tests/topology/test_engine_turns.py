"""One thread owns an engine, and makes one call at a time; a run continues in whichever thread takes its next row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs

MINUTES = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
COUNTS = MINUTES.aggregate(n=hs.Count())
ROWS = [{"user": f"u{i % 5}", "ts": i * 100} for i in range(200)]


def outcome_of(call: Any) -> Any:
    with ThreadPoolExecutor(1, "other") as pool:
        return pool.submit(call).exception()


@pytest.mark.parametrize("shards", [1, 3])
def test_an_engine_in_a_loop_refuses_commits_of_other_threads_and_loses_nothing(tmp_path: Path, shards: int) -> None:
    refused = 0

    async def serve() -> int:
        nonlocal refused
        engine = COUNTS.open(tmp_path / "state", shards=shards)
        for i, row in enumerate(ROWS):
            engine.process(row)
            if i % 20 == 19:
                try:
                    await asyncio.to_thread(engine.commit)
                except hs.errors.StateInUseError as error:
                    assert "one thread owns" in str(error)  # noqa: PT017
                    refused += 1
                    engine.commit()
        engine.close()
        return refused

    assert asyncio.run(serve()) == 10
    with COUNTS.open(tmp_path / "state", shards=shards) as engine:
        assert sum(row["n"] for row in engine.windows()) == len(ROWS)


def test_every_call_of_another_thread_is_refused(tmp_path: Path) -> None:
    with COUNTS.open(tmp_path / "state") as engine:
        engine.process(ROWS[0])
        calls = {
            "process": lambda: engine.process(ROWS[1]),
            "process_many": lambda: engine.process_many(ROWS),
            "commit": engine.commit,
            "finish": engine.finish,
            "windows": engine.windows,
            "position": engine.position,
            "hand_over": engine.hand_over,
            "close": engine.close,
        }
        for name, call in calls.items():
            assert isinstance(outcome_of(call), hs.errors.StateInUseError), name
        engine.metrics()
        assert outcome_of(engine.metrics) is None  # a scrape
        engine.commit()
        engine.hand_over()
        assert outcome_of(lambda: (engine.process(ROWS[1]), engine.commit(), engine.hand_over())) is None
        assert sum(row["n"] for row in engine.windows()) == 2


def test_an_engine_that_was_opened_in_one_thread_is_used_in_another(tmp_path: Path) -> None:
    engine = COUNTS.open(tmp_path / "state", shards=2)
    with ThreadPoolExecutor(1) as pool:
        for row in ROWS:
            pool.submit(engine.process, row).result()
        pool.submit(engine.commit).result()
        pool.submit(engine.close).result()
    with COUNTS.open(tmp_path / "state", shards=2) as again:
        assert sum(row["n"] for row in again.windows()) == len(ROWS)


def test_a_call_in_the_middle_of_processing_is_refused(tmp_path: Path) -> None:
    engines: list[Any] = []
    refused: list[Any] = []

    def in_the_middle(row: dict[str, Any]) -> bool:
        for call in (engines[0].commit, engines[0].close, lambda: engines[0].process(ROWS[0])):
            with pytest.raises(hs.errors.StateInUseError, match="in the middle of another call"):
                call()
            refused.append(row)
        return True

    topology = hs.stream(key="user", timestamp="ts").filter(in_the_middle)
    with topology.windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count()).open(tmp_path / "s") as engine:
        engines.append(engine)
        for row in ROWS[:20]:
            engine.process(row)
        engine.commit()
        assert sum(row["n"] for row in engine.windows()) == 20
    assert len(refused) == 60


def test_a_run_continues_in_whichever_thread_takes_its_next_row(tmp_path: Path) -> None:
    expected = [dict(row) for row in COUNTS.run(ROWS, tmp_path / "alone", commit_rows=20)]
    rows: Iterator[Any] = iter(COUNTS.run(ROWS, tmp_path / "state", commit_rows=20))
    taken: list[Any] = []

    def take() -> None:
        for row in rows:
            taken.append(dict(row))
            if len(taken) % 30 == 0:
                return

    while len(taken) < len(expected):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    list(rows)
    assert taken == expected
