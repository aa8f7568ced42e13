"""One memory budget for the states of a process: past it, what a commit finds in memory goes cold, and nothing is
lost.
"""

from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.state import memory_budget as memory
from tests.tools.hooks import check_stores
from tests.tools.vector_runner import SMALL


@pytest.fixture(autouse=True)
def looked_at_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.memory.CHECK_COMMITS", 1)


def fill(s: hs.HybridStore, first: int) -> None:
    for i in range(first, first + 50):
        s.key_value("k").put(f"key {i}", i)
        s.window("w", retention="1 hour").put(f"key {i % 5}", i, 1000 * i)
        s.sliding("l", size="1 hour", aggregator=hs.Sum()).add(f"key {i % 5}", i, 1000 * i)
    s.commit()


def test_state_may_exceed_memory(tmp_path: Path) -> None:
    with (
        hs.open(tmp_path / "small", memory_limit=10_000, _tuning=SMALL) as small,
        hs.open(tmp_path / "free", _tuning=SMALL) as free,
    ):
        sizes = []
        for first in range(0, 500, 50):
            fill(small, first)
            sizes.append(small._memory.count())
        assert max(sizes) <= 10_000 + small._memory.count()
        assert small.metrics().cold_blocks > 0
        check_stores(small)
        memory.BUDGET.leave(small._memory)
        for first in range(0, 500, 50):
            fill(free, first)
        assert free._memory.count() > 10_000
        for name in ("k", "w"):
            assert list(small.stores[name].all()) == list(free.stores[name].all())
        assert small.sliding("l", size="1 hour", aggregator=hs.Sum()).add("key 1", 1, 500_000) == free.sliding(
            "l", size="1 hour", aggregator=hs.Sum()
        ).add("key 1", 1, 500_000)


def test_the_smallest_limit_of_any_open_state_governs(tmp_path: Path) -> None:
    with hs.open(tmp_path / "a", memory_limit=1 << 40), hs.open(tmp_path / "b", _tuning=SMALL) as b:
        fill(b, 0)
        assert b.metrics().cold_blocks == 0
        with hs.open(tmp_path / "c", memory_limit=1000):
            fill(b, 50)
            assert b.metrics().cold_blocks > 0
        assert memory.BUDGET.limit == 1 << 40
    assert memory.BUDGET.limit is None


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="memory_limit: found"):
        hs.open(tmp_path / "s", memory_limit=limit)
    assert not (tmp_path / "s").exists()
