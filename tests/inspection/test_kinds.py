"""Suppression buffers and sliding stores, which hold more than their rows say, through inspection."""

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.reading.events import history_of
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.state.opening import Tuning
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(segment_bytes=2000, block_records=6, parts=SMALL_PARTS)


def stores(state: Any) -> tuple[Any, Any]:
    return (
        state.suppression("alerts", max_records=8, time_limit=40),
        state.sliding("load", size=60, aggregator=hs.Sum()),
    )


def build(path: Path, seed: int) -> dict[int, list[tuple[Any, ...]]]:
    """Make a state by a random script; return version -> what was buffered."""
    draw = random.Random(seed)
    buffered: dict[int, list[tuple[Any, ...]]] = {}
    with hs.open(path, checkpoints=hs.CheckpointPolicy(keep=100), _tuning=TUNING) as state:
        alerts, load = stores(state)
        clock = 0
        for _ in range(15):
            for _ in range(draw.randrange(1, 12)):
                clock += draw.randrange(8)
                key, ts = f"k{draw.randrange(14)}", max(0, clock - draw.randrange(20))
                alerts.put(key, draw.choice([None, clock, "text"]), ts)
                load.add(key, draw.randrange(100), ts)
            buffered[state.commit()] = list(alerts.buffered())
            if draw.random() < 0.3:
                state.checkpoint(wait=True)
    return buffered


def follow_up(path: Path) -> list[Any]:
    """What the stores do next: everything that a restart must not change."""
    with hs.open(path, _tuning=TUNING) as state:
        alerts, load = stores(state)
        clock = max(alerts.stream_time, load.stream_time)
        answers: list[Any] = [list(alerts.buffered()), alerts.num_records]
        answers += [load.add(f"k{i}", i, clock + i) for i in range(14)]
        answers += [alerts.put(f"k{i}", i, clock + i) for i in range(14)]
        answers.append(list(alerts.advance(clock + 1000)))
        return answers


def test_what_is_buffered_is_shown_at_every_version(tmp_path: Path, seed: int) -> None:
    buffered = build(tmp_path / "s", seed)
    (place,) = resolve(tmp_path / "s")
    for version, rows in buffered.items():
        view = open_view(place, version)
        assert view.faults == []
        assert [(row.key, row.value, row.times[-1]) for row in view.store("alerts").records()] == rows


@pytest.mark.parametrize("key", ["k1", "k5", "k9"])
def test_history_ends_with_what_is_buffered(tmp_path: Path, seed: int, key: str) -> None:
    build(tmp_path / "s", seed)
    (place,) = resolve(tmp_path / "s")
    values = [row.value for row in open_view(place).store("alerts").of_key(key)]
    faults: list[str] = []
    events = history_of(place, "alerts", key, faults)
    assert faults == []
    assert ([events[-1].new] if events and events[-1].op == "put" else []) == values


def test_a_compacted_copy_keeps_what_these_stores_do_next(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    assert run(["inspect", "compact", str(tmp_path / "s"), "--to", str(tmp_path / "n"), "--write"]) == 0
    assert run(["inspect", "diff", str(tmp_path / "s"), str(tmp_path / "n")]) == 0
    assert follow_up(tmp_path / "n") == follow_up(tmp_path / "s")
