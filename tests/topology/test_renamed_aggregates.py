"""Aggregates with another name keep their state, and the limit of memory of a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.topology.test_changes import (
    HOPPING,
    KAFKA,
    ROWS,
    SESSION,
    SLIDING,
    TUMBLING,
    changed,
    go_on,
    refused,
    stream,
)


@pytest.mark.parametrize("windows", [TUMBLING, HOPPING, SLIDING, KAFKA, SESSION], ids=repr)
@pytest.mark.parametrize("emit", ["record", "commit"])
def test_a_renamed_aggregate_keeps_its_state(windows: Any, emit: Any, tmp_path: Path) -> None:
    old = stream(windows).aggregate(emit=emit, requests=hs.Count(), x=hs.Sum("x"), most=hs.MaxBy("y", ["x"]))
    new = stream(windows).aggregate(emit=emit, hits=hs.Count(), total=hs.Sum("x"), most=hs.MaxBy("y", ["x"]))
    words = ["rename requests to hits", "rename x to total"]
    results, always = changed(tmp_path, old, new, words)
    assert results == always
    assert any(row["total"] is not None for row in results)
    # the words stay in a restarted job, and the next change knows the new names
    assert go_on(new, tmp_path / "changed", ROWS[:0], words) == []
    assert new.compare(tmp_path / "changed") == []


def test_a_renamed_aggregate_waits_in_a_buffer_and_stays_unknown_where_it_was(tmp_path: Path) -> None:
    first = stream().aggregate(n=hs.Count()).hold("close")
    second = stream().aggregate(n=hs.Count(), total=hs.Sum("x")).hold("close")
    third = stream().aggregate(hits=hs.Count(), sum=hs.Sum("x")).hold("close")
    go_on(first, tmp_path / "a", ROWS[:10])
    go_on(second, tmp_path / "a", ROWS[10:20], "add aggregate total from now")
    go_on(first, tmp_path / "b", ROWS[:10])
    expected = go_on(second, tmp_path / "b", ROWS[10:], "add aggregate total from now")
    results = go_on(third, tmp_path / "a", ROWS[20:], ["rename n to hits", "rename total to sum"])
    tail = [(row["n"], row["total"]) for row in expected][-len(results) :]
    assert [(row["hits"], row["sum"]) for row in results] == tail
    assert None in [row["total"] for row in expected]


def test_an_error_names_the_words_that_would_rename_and_those_that_no_change_needs(tmp_path: Path) -> None:
    old, new = stream().aggregate(requests=hs.Count()), stream().aggregate(hits=hs.Count())
    refused(tmp_path, old, new, "if it is the same under another name: allow='rename requests to hits'")
    refused(tmp_path, old, new, "allow: found 'rename a to b', but no change needs that", "rename a to b")
    other = stream().aggregate(hits=hs.Sum("x"))
    refused(tmp_path, old, other, "aggregate hits: the state has", "rename requests to hits")
    with pytest.raises(hs.ProgramMismatchError, match="but the program does not change that"):
        go_on(old, next(tmp_path.iterdir()), [], "rename requests to hits")


def test_a_topology_takes_a_memory_limit(tmp_path: Path) -> None:
    topology = stream().aggregate(n=hs.Count())
    assert [dict(row) for row in topology.run(ROWS, tmp_path / "run", memory_limit=10**6)]
    assert list(topology.run(ROWS, memory_limit=10**6)) == list(topology.run(ROWS))
    with topology.open(tmp_path / "run", memory_limit=10**6) as engine:
        assert engine.states[0].metrics().version
    for refuse in (
        lambda: topology.open(tmp_path / "x", memory_limit=0),
        lambda: list(topology.run(ROWS, memory_limit=0)),
    ):
        with pytest.raises(ValueError, match="memory_limit: found 0, expected 1 or more bytes"):
            refuse()
