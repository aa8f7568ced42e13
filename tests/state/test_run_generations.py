"""Run generations: window and session stores beside models, in random orders of what keeps, frees and reads their
records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import check_stores, crash
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
KEYS, SPAN, RETENTION = 12, 400, 300


class Rows:
    """The rows of a window store, which may keep all of a time."""

    def __init__(self, *, pairs: bool) -> None:
        self.pairs = pairs
        self.rows: dict[tuple[str, int], list[Any]] = {}
        self.time = -1

    def open(self, state: hs.State) -> Any:
        return state.window("w", retention=RETENTION, retain_duplicates=self.pairs)

    def row(self, dice: random.Random) -> tuple[Any, ...]:
        # most of them near the newest time, some out of order, and few keys more often than the others
        ts = max(0, self.time + dice.choice([0, 1, 5, -3, -90, -RETENTION + 5]))
        return f"key {min(dice.randrange(KEYS), dice.randrange(KEYS)):02}", dice.random(), ts

    def put(self, key: str, value: Any, ts: int) -> None:
        self.time = max(self.time, ts)
        if ts > self.time - RETENTION:
            kept = self.rows.setdefault((key, ts), [])
            kept[:] = [*kept, value] if self.pairs else [value]

    def delete(self, key: str, _: Any, ts: int) -> None:
        if not self.pairs:
            self.rows.pop((key, ts), None)
        self.time = max(self.time, ts)

    def put_in(self, store: Any, key: str, value: Any, ts: int) -> None:
        store.put(key, value, ts)

    def delete_in(self, store: Any, key: str, ts: int) -> None:
        store.delete(key, ts)

    def get_in(self, store: Any, key: str, ts: int) -> Any:
        return store.get(key, ts)

    def get(self, key: str, ts: int) -> Any:
        kept = self.rows.get((key, ts), []) if ts > self.time - RETENTION else []
        return list(kept) if self.pairs else kept[0] if kept else None

    def all(self, only: str | None = None) -> list[Any]:
        live = sorted((ts, key) for key, ts in self.rows if ts > self.time - RETENTION and only in (None, key))
        return [((key, ts), value) for ts, key in live for value in self.rows[key, ts]]

    def fetch_in(self, store: Any, key: str) -> list[Any]:
        return [((key, ts), value) for ts, value in store.fetch(key)]


class Sessions(Rows):
    """The rows of a session store: each begins some time before it ends."""

    def __init__(self) -> None:
        super().__init__(pairs=False)

    def open(self, state: hs.State) -> Any:
        return state.session("s", retention=RETENTION)

    def put_in(self, store: Any, key: str, value: Any, ts: int) -> None:
        store.put(key, value, max(0, ts - 7), ts)

    def delete(self, key: str, _: Any, ts: int) -> None:
        if ts > self.time - RETENTION:
            self.rows.pop((key, ts), None)

    def delete_in(self, store: Any, key: str, ts: int) -> None:
        store.delete(key, max(0, ts - 7), ts)

    def get_in(self, store: Any, key: str, ts: int) -> Any:
        return store.get(key, max(0, ts - 7), ts)

    def all(self, only: str | None = None) -> list[Any]:
        return [((key, max(0, ts - 7), ts), value) for (key, ts), value in super().all(only)]

    def fetch_in(self, store: Any, key: str) -> list[Any]:
        return list(store.fetch(key))


class Life:
    """A state with one store, beside its model."""

    def __init__(self, path: Path, model: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.model, self.monkeypatch = path, model, monkeypatch
        self.recalled = 0
        self.open()

    def open(self) -> None:
        self.state = hs.open(self.path, memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL, durability="os")
        self.store = self.model.open(self.state)

    def put(self, dice: random.Random) -> None:
        row = self.model.row(dice)
        self.model.put_in(self.store, *row)
        self.model.put(*row)

    def put_many(self, dice: random.Random) -> None:
        rows = [self.model.row(dice) for _ in range(dice.randrange(1, 25))]
        if dice.random() < 0.5:
            rows.sort(key=lambda row: row[-1])
        for row in rows:
            self.model.put(*row)
        if isinstance(self.model, Sessions):
            rows = [(key, value, max(0, ts - 7), ts) for key, value, ts in rows]
        self.store.put_many(rows)

    def get(self, dice: random.Random) -> None:
        before = self.store.lookups.missed, self.older
        key, _, ts = self.model.row(dice)
        assert self.model.get_in(self.store, key, ts) == self.model.get(key, ts)
        self.recalled += self.store.lookups.missed == before[0] and self.older < before[1]

    def fetch(self, dice: random.Random) -> None:
        key = self.model.row(dice)[0]
        assert self.model.fetch_in(self.store, key) == self.model.all(key)

    def delete(self, dice: random.Random) -> None:
        keys = [key for key in self.model.rows if key[1] > self.model.time - RETENTION]
        if keys:
            key, ts = dice.choice(keys)
            self.model.delete_in(self.store, key, ts)
            self.model.delete(key, None, ts)

    def scan(self, _: random.Random) -> None:
        assert list(self.store.all()) == self.model.all()

    def look(self, _: random.Random) -> None:
        """Open an iterator, and change the store before it is read."""
        rows, right = iter(self.store.all()), self.model.all()
        self.put(_)
        self.delete(_)
        assert list(rows) == right

    def commit(self, _: random.Random) -> None:
        self.state.commit()

    def begin(self, dice: random.Random) -> None:
        """Begin a checkpoint, which sometimes fails."""
        state = self.state
        state.commit()
        state._checkpoints.finish(wait=True)
        with self.monkeypatch.context() as patch:
            if dice.random() < 0.3:
                patch.setattr("hybridstore.state.checkpointer.write_checkpoint", _fails)
            state._begin_checkpoint(state._usable())
            if state._checkpoints.attempt is not None:
                state._checkpoints.attempt.join()

    def finish(self, _: random.Random) -> None:
        """Use it, and become cold."""
        self.state.commit()
        if self.state._checkpoints.finish(wait=True) is not None:
            self.state._go_cold()

    def turn(self, _: random.Random) -> None:
        """Become cold over the same checkpoint."""
        if self.state._checkpoints.attempt is None and self.state._checkpoints.reader is not None:
            self.state.commit()
            self.state._go_cold()

    @property
    def older(self) -> int:
        return sum(len(each.runs) for bucket in self.store._buckets.values() for each in bucket.older)

    def free(self, dice: random.Random) -> None:
        older, count = self.older, dice.randrange(40)
        freed = self.store.free(count)
        assert freed >= min(count, older)
        assert self.older == 0 or self.older < older or not count

    def crash(self, _: random.Random) -> None:
        """Lose nothing of what was committed."""
        self.state.commit()
        crash(self.state)
        self.open()


def _fails(*_: Any, **__: Any) -> None:
    raise OSError("no space")


@pytest.mark.parametrize("model", [lambda: Rows(pairs=False), lambda: Rows(pairs=True), Sessions])
@pytest.mark.parametrize("seed", range(8))
def test_a_store_with_generations_equals_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, model: Callable[[], Rows]
) -> None:
    dice = random.Random(seed)
    life = Life(tmp_path / "s", model(), monkeypatch)
    steps = [life.put, life.get, life.get, life.delete] * 3
    steps += [life.put_many, life.fetch, life.commit, life.begin, life.finish, life.finish, life.turn, life.free]
    # few scans: they load whole blocks
    steps += [life.scan, life.look] if seed % 2 else []
    steps += [life.crash] if seed % 4 == 3 else []
    for _ in range(300):
        dice.choice(steps)(dice)
        check_stores(life.state)
    assert list(life.store.all()) == life.model.all()
    life.state.commit()
    life.state.close()
    assert seed % 2 or life.recalled
    life.open()
    with life.state:
        assert list(life.store.all()) == life.model.all()
