"""Records are counted as they are applied: one each, a batch of columns as many as it has rows, an eviction as many as
leave.

Estimates of a restart, and with them the policy of checkpoints, go by these counts; what applies them is the witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import unpack
from changelog.mutation import DEFINE, EVICT, PUT_COLUMNS, PUT_SPANS, SET, mutations
from changelog.reader import SegmentReader
from changelog.segment import list_segments, segment_name
from hybridstore.inspection.commands.info import facts_of
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from tests.recovery.test_plan import NEVER

ROWS = 2500  # more than a batch of columns holds
KEYS = [f"k{i % 97}" for i in range(ROWS)]
TIMES = [1000 + i for i in range(ROWS)]
VALUES = list(range(ROWS))


def by_row(name: str, **options: Any) -> Callable[[Any], None]:
    def change(state: Any) -> None:
        store = getattr(state, name)("s", **options)
        for key, value, ts in zip(KEYS, VALUES, TIMES, strict=True):
            if name == "key_value" and not options:
                store.put(key, value)
            elif name == "session":
                store.put(key, value, start=ts - 5, end=ts)
            elif name == "sliding":
                store.add(key, value, ts)
            else:
                store.put(key, value, ts)

    return change


def by_column(name: str, **options: Any) -> Callable[[Any], None]:
    def change(state: Any) -> None:
        store = getattr(state, name)("s", **options)
        if name == "key_value" and not options:
            store.put_columns(KEYS, VALUES)
        elif name == "session":
            store.put_columns(KEYS, VALUES, [ts - 5 for ts in TIMES], TIMES)
        else:
            (store.add_columns if name == "sliding" else store.put_columns)(KEYS, VALUES, TIMES)

    return change


STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "key_value": ("key_value", {}),
    "ttl": ("key_value", {"ttl": 5000}),
    "window": ("window", {"retention": 5000}),
    "duplicates": ("window", {"retention": 5000, "retain_duplicates": True}),
    "session": ("session", {"retention": 5000}),
    "sliding": ("sliding", {"size": 5000, "aggregator": hs.Sum()}),
    "suppression": ("suppression", {"time_limit": 9000}),
}


def applied(path: Path) -> Counter[tuple[int, int]]:
    """Count by store and op what a restore applies, from the bytes of the changelog."""
    counts: Counter[tuple[int, int]] = Counter()
    for first in list_segments(path / "changelog"):
        for version in SegmentReader(path / "changelog" / segment_name(first), last=True).versions():
            for body in version.bodies:
                for store, op, args in mutations(unpack(body)):
                    rows = len(args[0]) if op in (PUT_COLUMNS, PUT_SPANS) else 1
                    counts[store, op] += rows
    return counts


def check_counts(state: Any, path: Path) -> int:
    """Assert that everybody counts the same, and return the number of records."""
    counts = applied(path)
    total = sum(counts.values())
    assert state.metrics().records_since_checkpoint == total
    plan = hs.inspect(path).restart()
    assert plan.tail_records == total
    assert plan.tail_counts == {store * 16 + op: count for (store, op), count in counts.items()}
    view = open_view(resolve(path)[0])
    assert view.tail.records == total
    assert facts_of(view, iso=False, newest=True)["tail_records"] == total
    with hs.open(path, at="newest") as copy:
        report = copy.restore_report
        assert (report.tail_records, report.tail_counts) == (total, plan.tail_counts)
    return total


@pytest.mark.parametrize("way", [by_row, by_column])
@pytest.mark.parametrize("kind", STORES)
def test_every_row_counts_once_however_it_was_put(kind: str, way: Any, tmp_path: Path) -> None:
    name, options = STORES[kind]
    with hs.open(tmp_path, checkpoints=NEVER) as state:
        way(name, **options)(state)
        state.commit()
        assert check_counts(state, tmp_path) == ROWS + 1  # the store is defined


def test_deletes_evictions_times_and_settings_count(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=NEVER) as state:
        by_row("suppression", time_limit=100)(state)
        window = state.window("w", retention=5000)
        window.put_columns(KEYS, VALUES, TIMES)
        for key, ts in zip(KEYS[:10], TIMES, strict=False):
            window.delete(key, ts)
        session = state.session("sessions", retention=5000)
        session.put("a", "x" * 1000, start=1, end=5)
        session.delete("a", 1, 5)
        state.set("position", 1)
        state.commit()
        list(state.stores["s"].advance(10**6))
        state.commit()
        buffered = ROWS
        evicted = applied(tmp_path)[1, EVICT]
        assert evicted == 1  # what a put made due left by the put; `advance` alone logs that something leaves
        assert check_counts(state, tmp_path) == buffered + evicted + ROWS + 10 + 2 + applied(tmp_path)[1, 0] + 3 + 1
        assert applied(tmp_path)[0, DEFINE] == 3
        assert applied(tmp_path)[0, SET] == 1


def test_counts_go_on_after_a_restart_and_end_with_a_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):
        with hs.open(tmp_path, checkpoints=NEVER) as state:
            by_column("sliding", size=10**6, aggregator=hs.Sum())(state)
            state.commit()
            check_counts(state, tmp_path)
    with hs.open(tmp_path, checkpoints=NEVER) as state:
        assert state.metrics().records_since_checkpoint == 2 * ROWS + 1
        state.checkpoint(wait=True)
        assert state.metrics().records_since_checkpoint == 0
        assert hs.inspect(tmp_path).restart().tail_records == 0


def test_a_rollback_counts_nothing(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=NEVER) as state:
        store = state.key_value("s")
        store.put("a", 1)
        state.commit()
        store.put_columns(KEYS, VALUES)
        state.rollback()
        store = state.key_value("s")
        store.put("b", 1)
        state.commit()
        assert check_counts(state, tmp_path) == 3
