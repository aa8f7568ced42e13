"""Random lives of a shard, step by step against a model: workers with memories of their own, replays, rewinds, late
attempts, crashes, clearing up, and damage to files.

The model is a list: what each version of the line that counts holds. Every load must give the model's version; one that
meets damage may raise one of our errors instead, and never gives anything else. A run follows from its seed alone.
"""

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from hybridstore.spark import SkippedBatchError, StaleAttemptError, StateStore, StateStoreProvider
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.shard_tools import content, provider

STEPS = 120
WORKERS = 3
DAMAGES = ("flip", "cut", "misplace", "remove")
Rows = dict[str, int | None]


class Version(NamedTuple):
    """What a version holds, and the mutations that led to it: equal for two attempts whose segments are equal."""

    rows: dict[str, int]
    way: Any


class Attempt(NamedTuple):
    """A batch that was loaded and changed, and is not committed."""

    store: StateStore
    before: Version
    after: Version
    turns: int
    commits: int


class Shard:
    """A shard on disk, the workers that work on it, and the model."""

    def __init__(self, root: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.root = root
        self.retain = self.dice.randrange(2, 8)
        self.every = self.dice.randrange(1, 7)
        self.line = [Version({}, None)]
        # versions from here on must be loadable
        self.floor = 0
        # how often the line was taken back, and how many attempts were committed
        self.turns = self.commits = 0
        self.workers = [self.worker() for _ in range(WORKERS)]
        self.late: list[Attempt] = []
        self.done: dict[str, int] = {}
        # what files by their endings have held at some time
        self.museum: dict[str, list[bytes]] = {}

    def worker(self) -> StateStoreProvider:
        policy = CheckpointPolicy(every_commits=self.every, keep=1 + self.every % 2)
        return provider(self.root, policy=policy, retain=self.retain)

    @property
    def seen(self) -> int:
        return len(self.line) - 1

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    # --- attempts -------------------------------------------------------------------------------------------------

    def begin(self, worker: StateStoreProvider, number: int, rows: Rows | None = None) -> Attempt:
        """Load version `number` and change it: by `rows`, or at random."""
        store = worker.get_store(number)
        before = self.line[number]
        assert content(store) == before.rows, f"version {number}"
        changes = self.draw(before) if rows is None else rows
        after = Version({**before.rows}, before.way)
        if changes:
            kv = store.key_value("default")
            for key, value in changes.items():
                if value is None:
                    kv.delete(key)
                    del after.rows[key]
                else:
                    kv.put(key, value)
                    after.rows[key] = value
            after = after._replace(way=(number, tuple(changes.items()), before.way))
        return Attempt(store, before, after, self.turns, self.commits)

    def draw(self, before: Version) -> Rows:
        dice = self.dice
        if dice.random() < 0.15:
            return {}
        changes: Rows = {f"k{dice.randrange(12)}": dice.randrange(5) for _ in range(dice.randrange(1, 4))}
        if before.rows and dice.random() < 0.3:
            changes[dice.choice(sorted(before.rows))] = None
        return changes

    def commit(self, attempt: Attempt) -> None:
        """Commit an attempt that must be accepted, and follow in the model."""
        number = attempt.store.version
        assert attempt.store.commit() == number + 1
        self.commits += 1
        if number == self.seen - 1 and self.line[-1].way == attempt.after.way:
            return
        if number < self.seen:
            self.turns += 1
        self.line[number + 1 :] = [attempt.after]

    def clear(self, worker: StateStoreProvider) -> None:
        worker.maintain(wait=True, oldest_replay=self.seen - 1)
        self.floor = max(self.floor, min(self.seen - self.retain, self.seen - 1))
        assert worker.metrics().failed_clearings == 0

    def batch(self, number: int, rows: Rows | None = None) -> None:
        worker = self.dice.choice(self.workers)
        attempt = self.begin(worker, number, rows)
        chance = self.dice.random()
        if chance < 0.15:
            self.late.append(attempt)
            # the worker hangs: its place is taken by another
            self.workers[self.workers.index(worker)] = self.worker()
            self.count("stalled")
        elif chance < 0.25:
            attempt.store.abort()
            self.count("aborted")
        else:
            self.commit(attempt)
            if self.dice.random() < 0.8:
                self.clear(worker)

    # --- steps ----------------------------------------------------------------------------------------------------

    def next_batch(self) -> None:
        self.batch(self.seen)

    def replay(self) -> None:
        """The last batch again, with the same rows or with others."""
        if self.seen - 1 < self.floor:
            return
        same = self.line[-1].way
        rows = dict(same[1]) if same is not None and same[0] == self.seen - 1 else {}
        self.batch(self.seen - 1, rows if self.dice.random() < 0.6 else None)

    def rewind(self) -> None:
        """The query is turned back, and does some of its batches again, at times the very same."""
        if self.seen <= self.floor:
            return
        number = self.dice.randrange(self.floor, self.seen)
        ways = {version.way[0]: dict(version.way[1]) for version in self.line if version.way is not None}
        same = self.dice.random() < 0.5
        for again in range(number, self.dice.randrange(number, self.seen) + 1):
            attempt = self.begin(self.workers[0], again, ways.get(again, {}) if same else None)
            self.commit(attempt)
            if self.dice.random() < 0.5:
                self.clear(self.workers[0])

    def late_attempt(self) -> None:
        """An attempt that was stalled commits now: refused, or its batch is the newest or the next of an unchanged
        line.
        """
        if not self.late:
            return
        attempt = self.late.pop(self.dice.randrange(len(self.late)))
        number = attempt.store.version
        again = number == self.seen - 1 and self.line[-1].way == attempt.after.way
        allowed = again or (attempt.turns == self.turns and number in (self.seen, self.seen - 1))
        try:
            attempt.store.commit()
        except StaleAttemptError:
            assert attempt.commits != self.commits, "refused, though nothing was committed since"
            self.count("refused")
            return
        assert allowed, f"accepted: batch {number} of an older line, at version {self.seen}"
        self.count("accepted")
        self.commits += 1
        if not again:
            self.turns += number < self.seen
            self.line[number + 1 :] = [attempt.after]

    def crash(self) -> None:
        self.workers[self.dice.randrange(WORKERS)] = self.worker()

    def no_rows(self) -> None:
        if self.dice.choice(self.workers).note_empty(self.seen):
            self.commits += 1
            self.line.append(self.line[-1])

    def no_rows_again(self) -> None:
        """The query is turned back, and the batch brings this shard no rows now."""
        number = self.dice.randint(self.floor, self.seen)
        worker = self.dice.choice(self.workers)
        base = worker.shard_files.head()
        if self.dice.random() < 0.3:
            # the task is late: another one commits before it
            self.next_batch()
        changed = worker.shard_files.head() != base
        noted = worker.note_empty(number, base=base)
        if number == self.seen:
            assert noted
            self.line.append(self.line[-1])
        elif number == self.seen - 1 and self.line[-1].way == self.line[number].way:
            assert not noted
        else:
            assert noted != changed
            if noted:
                self.turns += 1
                self.line[number + 1 :] = [self.line[number]]
                self.count("taken back without rows")
        self.commits += noted

    def look(self) -> None:
        number = self.dice.randint(self.floor, self.seen)
        assert content(self.worker().get_read_store(number)) == self.line[number].rows
        with pytest.raises(SkippedBatchError, match="never written"):
            self.worker().get_store(self.seen + 1)

    def damage(self, copy: Path) -> None:
        """One file of a copy is damaged or lies in another's place: each version is right, or one of our errors."""
        shutil.copytree(self.root, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        for file in files:
            if file.suffix:
                # what may lie in its place, also when the line was given up
                self.museum.setdefault(file.suffix, []).append(file.read_bytes())
        placed = [path for path in files if path.suffix in self.museum]
        how = self.dice.choice(DAMAGES if placed else DAMAGES[:2])
        path = self.dice.choice(placed if how == "misplace" else files)
        data = bytearray(path.read_bytes())
        if how == "flip":
            data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
            path.write_bytes(data)
        elif how == "cut":
            path.write_bytes(data[: self.dice.randrange(len(data))])
        elif how == "remove":
            path.unlink()
        else:
            # also of lines that were given up since
            path.write_bytes(self.dice.choice(self.museum[path.suffix]))
        for number in range(self.seen + 1):
            try:
                rows = content(provider(copy).get_read_store(number))
            except hs.HybridStoreError:
                self.count(f"{how} named")
            else:
                # without its head a shard is new: its version 0 is the only one that loads
                assert rows == self.line[number].rows, f"version {number} after: {how} {path.name}"
                self.count(f"{how} harmless")
        shutil.rmtree(copy)


def live(root: Path, seed: int, steps: int = STEPS) -> dict[str, int]:
    """Run one life and return how often what happened."""
    shard = Shard(root / "shard", seed)
    kinds = [shard.next_batch] * 10 + [shard.replay] * 3 + [shard.rewind] + [shard.late_attempt] * 3
    kinds += [shard.crash, shard.no_rows, shard.no_rows_again, shard.look, lambda: shard.damage(root / "copy")]
    shard.commit(shard.begin(shard.workers[0], 0))
    for step in range(steps):
        try:
            shard.dice.choice(kinds)()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {step}, version {shard.seen}")
            raise
    for number in range(shard.floor, shard.seen + 1):
        assert content(shard.worker().get_read_store(number)) == shard.line[number].rows
    return shard.done


@pytest.mark.stress
def test_a_shard_is_what_the_model_says_whatever_happens(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(4 * rounds):
        live(tmp_path / str(number), seed + number)


def test_the_lives_are_full_of_what_they_are_for(tmp_path: Path) -> None:
    done: dict[str, int] = {}
    for seed in range(4):
        for what, count in live(tmp_path / str(seed), seed).items():
            done[what] = done.get(what, 0) + count
    wanted = ["stalled", "aborted", "refused", "accepted", "taken back without rows"]
    wanted += [f"{how} {answer}" for how in DAMAGES for answer in ("named", "harmless")]
    assert {what for what in wanted if not done.get(what)} == set(), done
