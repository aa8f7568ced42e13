"""Expiries beside a list of all entries: what expires, what is kept, and how much is kept."""

import random

import pytest

from hybridstore.stores import expiries
from hybridstore.stores.expiries import Expiries
from tests.conftest import STRESS


@pytest.mark.parametrize("seed", range(6 if STRESS else 2))
def test_entries_come_out_when_their_time_has_come_and_no_live_one_is_lost(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(expiries, "_MOST", 8)
    dice = random.Random(seed)
    heaps, now, most = Expiries(), 0, 0
    rows: dict[int, tuple[str, int]] = {}
    for _ in range(3000):
        kind = dice.random()
        if kind < 0.8:
            key, ts = dice.randrange(60), now + dice.randrange(1, 40)
            rows[key] = "value", ts
            heaps.add(ts, key)
            heaps.tidy(rows, 1)
        elif kind < 0.85:
            new = {dice.randrange(60): now + dice.randrange(1, 40) for _ in range(dice.randrange(30))}
            rows.update((key, ("value", ts)) for key, ts in new.items())
            heaps.extend([(ts, key) for key, ts in new.items()], len(new))
            heaps.tidy(rows, len(new))
        elif kind < 0.9:
            rows.pop(dice.randrange(60), None)
        else:
            now += dice.randrange(12)
            assert heaps.due(now) or all(ts > now for _, ts in rows.values())
            out = list(heaps.pop(now))
            assert all(ts <= now for ts, _ in out)
            assert {(ts, key) for key, (_, ts) in rows.items() if ts <= now} <= set(out)
            rows = {key: row for key, row in rows.items() if row[1] > now}
        assert len(heaps) == sum(map(len, heaps.lists))
        assert all((ts, key) in heaps for key, (_, ts) in rows.items())
        most = max(most, len(heaps))
    assert most < 2 * 60 + 64 + 60
    list(heaps.pop(10**9))
    assert (len(heaps), heaps.lists) == (0, [[]])


def test_equal_entries_are_kept_once_when_a_heap_is_made_anew() -> None:
    heaps, rows = Expiries(), {"key": ("value", 5)}
    for _ in range(100_000):
        heaps.add(5, "key")
        heaps.tidy(rows, 1)
    assert len(heaps) < 100
