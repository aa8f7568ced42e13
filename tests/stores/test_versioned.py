"""Versioned stores against a plain table of times: puts and deletes in any order of time, over restarts."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs

LAST = 12


class Model:
    """What each key had at which times; None: a deletion."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, Any]] = {}

    def put(self, key: str, value: Any, ts: int) -> int | None:
        """Return the time of the next version or deletion."""
        table = self.tables.setdefault(key, {})
        table[ts] = value
        return self._next(sorted(table), ts)

    def get(self, key: str, as_of: int) -> tuple[Any, int, int | None] | None:
        table = self.tables.get(key, {})
        times = sorted(table)
        place = bisect_right(times, as_of) - 1
        if place < 0 or table[times[place]] is None:
            return None
        return table[times[place]], times[place], self._next(times, times[place])

    def versions(self, key: str) -> list[tuple[Any, int, int | None]]:
        times = sorted(self.tables.get(key, {}))
        return [version for ts in times if (version := self.get(key, ts)) is not None]

    @staticmethod
    def _next(times: list[int], ts: int) -> int | None:
        return times[bisect_left(times, ts + 1)] if times[-1] > ts else None


@pytest.mark.stress
def test_a_versioned_store_is_a_table_of_times(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        dice, model = random.Random(seed + number), Model()
        for _ in range(3):
            with hs.open(tmp_path / str(number), durability="os") as state:
                store: hs.VersionedStore[str, int] = state.versioned("prices", history="1 hour")
                for _ in range(40):
                    key, ts, value = dice.choice("ab"), dice.randint(0, LAST), dice.choice([None, *range(1, 5)])
                    if value is None and dice.random() < 0.5:
                        before = model.get(key, ts)
                        assert store.delete(key, ts) == before
                        model.put(key, None, ts)
                    else:
                        # what is behind a deletion that is the newest has no next version
                        assert store.put(key, value, ts) == (True, model.put(key, value, ts))
                    for at in range(LAST + 1):
                        assert store.get(key, as_of=at) == model.get(key, at)
                    assert store.get(key) == model.get(key, LAST)
                    assert list(store.versions(key)) == model.versions(key)
                state.commit()


def test_before_all_time_no_key_has_a_version(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        store: hs.VersionedStore[str, int] = state.versioned("prices", history="1 hour")
        store.put("tea", 1, 5)
        assert [store.get("tea", as_of=at) for at in (-2, -1, 0, 4)] == [None] * 4
