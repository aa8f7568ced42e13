"""What tests do to an open state that no user can: kill it, let it go cold, look at its log and its invariants."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import hybridstore as hs
from changelog.changes import DELETED, changes_of
from changelog.frame import MUTATIONS
from changelog.reader import SegmentReader
from changelog.segment import list_segments, segment_name
from hybridstore.state.memory_budget import BUDGET
from hybridstore.state.policy import SPEED
from tests.tools.model import ModelState


def crash(state: hs.State | ModelState) -> None:
    """Lose everything in memory as a killed process would: nothing is flushed, closed or committed."""
    if isinstance(state, ModelState):
        state.close()
        return
    state._checkpoints.finish(wait=True)
    state._abandon()


def drained(pieces: Iterable[list[Any]]) -> list[Any]:
    """Take all pieces of what a store emits, and return their records."""
    return list(chain.from_iterable(pieces))


def force_cold(state: hs.State | ModelState) -> None:
    """Commit, checkpoint, and let every block go cold."""
    state.commit()
    if not isinstance(state, ModelState):
        state.checkpoint(wait=True)
        state._go_cold()


def as_reference_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let estimates of a restart be those of the reference machine, whatever this one and earlier restores are like."""
    for name, value in (("_sampled", 1.0), ("_share", 1.0), ("_observed", 0.0), ("_attach", 0.002)):
        monkeypatch.setattr(SPEED, name, value)


def forget_states() -> None:
    """Let no state or reader of an earlier test count for the memory of this process, or keep files open: one that a
    test abandons does both until the collector frees it, at a moment that no later test should depend on.
    """
    if any(holders.living() for holders in (BUDGET._open, BUDGET._limited, BUDGET._readers)):
        gc.collect()
    for holders in (BUDGET._open, BUDGET._limited, BUDGET._readers):
        holders._references.clear()
    BUDGET._decide()


def with_clock(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, sleep: Callable[[float], object], **clocks: Callable[[], float]
) -> None:
    """Let a module alone have a `time` that sleeps so and shows that: the clock of the process belongs to others too,
    whose threads would move it, or never rest.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | {"sleep": sleep} | clocks))


def check_stores(state: hs.State) -> None:
    """Assert the invariants of every store."""
    for store in state.stores.values():
        store._check()


def logged(state: hs.State, name: str) -> list[tuple[Any, ...]]:
    """Return the rows of one store in the changelog, in order, uncommitted ones too: None as value is a deletion.

    Rows are (key, value), (key, ts, value) or (key, start, end, value). Mutations that only move time, and evictions,
    are left out.
    """
    state.group.journal.spill()
    return list(_logged_rows(state.path / "changelog", state.stores[name].number))


def _logged_rows(directory: Path, number: int) -> Iterator[tuple[Any, ...]]:
    segments = list_segments(directory)
    for first in segments:
        reader = SegmentReader(directory / segment_name(first), last=first == segments[-1])
        for frame in reader.frames():
            for change in changes_of([frame.body]) if frame.kind == MUTATIONS else ():
                if change.store == number and change.op in ("put", "delete"):
                    value = None if change.value is DELETED else change.value
                    yield change.key, *reversed(change.times), value
