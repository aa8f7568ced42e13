"""Random lives of a shard, step by step against a model: workers with memories of their own, replays, rewinds, late
attempts, crashes, clearing up, and damage to objects.

The model is a tree: what each attempt has made of which other one's state, and the simple words of the rule about which
of them count. Every load must give the model's version; one that meets damage may raise one of our errors instead, and
never gives anything else. A run follows from its seed alone.
"""

import itertools
import random
import shutil
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.spark import SkippedBatchError
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStore, StateStoreProvider
from hybridstore.state.policy import CheckpointPolicy
from recovery.line import EMPTY, Step
from tests.tools.shard_tools import content, provider, started

STEPS = 120
WORKERS = 3
DAMAGES = ("flip", "cut", "misplace", "remove")
Rows = dict[str, int | None]


class Node:
    """A version as an attempt has made it; equal ones of several attempts are one.

    `attempts`: the greatest by launch.
    """

    def __init__(self, version: int, rows: dict[str, int], parent: "Node | None") -> None:
        self.version = version
        self.rows = rows
        self.parent = parent
        self.attempts: dict[int, int] = {}


class Attempt:
    """A batch that was loaded and changed, and is not committed."""

    def __init__(self, store: StateStore, launch: int, parent: Node, rows: dict[str, int]) -> None:
        self.store = store
        self.launch = launch
        self.parent = parent
        self.rows = rows


class Shard:
    """A shard on disk, the memories of its workers, and the model."""

    def __init__(self, root: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.root = root
        self.retain = self.dice.randrange(2, 8)
        self.every = self.dice.randrange(1, 7)
        self.root_node = Node(0, {}, None)
        self.nodes: dict[Step, Node] = {EMPTY: self.root_node}
        self.runs: list[tuple[int, int]] = []
        # how many batches the current line has, and how far versions must be loadable
        self.seen = self.floor = 0
        self.memories = [ShardCache() for _ in range(WORKERS)]
        self.late: list[Attempt] = []
        # the versions, with the launches, of which a note says that no row came
        self.noted: set[tuple[int, int]] = set()
        self.done: dict[str, int] = {}
        # what objects by their folders have held at some time
        self.museum: dict[str, list[bytes]] = {}
        self.restart(0)

    def restart(self, batch: int) -> None:
        """The query is started anew, and begins with a batch."""
        self.run = started(self.root, batch)
        self.runs.append((self.run.launch, batch))
        self.seen = batch

    def worker(self, memory: ShardCache | None = None) -> StateStoreProvider:
        policy = CheckpointPolicy(every_commits=self.every, keep=1 + self.every % 2)
        return provider(self.root, cache=memory, run=self.run, policy=policy, retain=self.retain)

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    # --- the model ------------------------------------------------------------------------------------------------

    def launch_at(self, version: int) -> int:
        """The newest launch whose first batch is below the version."""
        return max((launch for launch, first in self.runs if first < version), default=0)

    def candidates(self, version: int) -> list[Node]:
        launch = self.launch_at(version)
        nodes = [node for step, node in self.nodes.items() if step.version == version and launch in node.attempts]
        return sorted(nodes, key=lambda node: -node.attempts[launch])

    def chosen(self, version: int) -> Node:
        """What a version is, for whoever has nothing in memory."""
        newest = next((number for number in range(self.seen + 1, 0, -1) if self.candidates(number)), 0)
        node = self.candidates(newest)[0] if newest else self.root_node
        while node.version > version:
            assert node.parent is not None
            node = node.parent
        return node

    # --- attempts -------------------------------------------------------------------------------------------------

    def begin(self, memory: ShardCache, number: int, rows: Rows | None = None) -> Attempt:
        """Load version `number` and change it: by `rows`, or at random."""
        store = self.worker(memory).get_store(number)
        node = self.nodes[store.shard.reached.step]
        if node is not self.chosen(number):
            # of several attempts, a worker goes on with its own
            assert store.metrics().load == "hit"
            assert node in self.candidates(node.version)
            self.count("of one's own attempt")
        assert content(store) == node.rows, f"version {number}"
        changes = self.draw(node) if rows is None else rows
        after = {**node.rows}
        kv = store.key_value("default") if changes else None
        for key, value in changes.items():
            assert kv is not None
            if value is None:
                kv.delete(key)
                after.pop(key, None)
            else:
                kv.put(key, value)
                after[key] = value
        return Attempt(store, self.run.launch, node, after)

    def draw(self, before: Node) -> Rows:
        dice = self.dice
        if dice.random() < 0.15:
            return {}
        changes: Rows = {f"k{dice.randrange(12)}": dice.randrange(5) for _ in range(dice.randrange(1, 4))}
        if before.rows and dice.random() < 0.3:
            changes[dice.choice(sorted(before.rows))] = None
        return changes

    def commit(self, attempt: Attempt) -> None:
        """Commit an attempt, and follow in the model."""
        store = attempt.store
        assert store.commit() == store.version + 1
        step = store.shard.reached.step
        assert step.version == store.version + 1
        node = self.nodes.setdefault(step, Node(step.version, attempt.rows, attempt.parent))
        # a digest says nothing of versions that changed nothing
        assert (node.rows, node.parent and node.parent.rows) == (attempt.rows, attempt.parent.rows)
        node.attempts[attempt.launch] = max(node.attempts.get(attempt.launch, 0), store.attempt)

    def clear(self, memory: ShardCache) -> None:
        worker = self.worker(memory)
        worker.maintain(wait=True, oldest_replay=self.seen - 1)
        self.floor = max(self.floor, min(self.seen - self.retain, self.seen - 1))
        assert worker.metrics().failed_clearings == 0

    def batch(self, number: int, rows: Rows | None = None) -> None:
        at = self.dice.randrange(WORKERS)
        attempt = self.begin(self.memories[at], number, rows)
        chance = self.dice.random()
        if chance < 0.15:
            self.late.append(attempt)
            # the worker hangs: its place is taken by another
            self.memories[at] = ShardCache()
            self.count("stalled")
        elif chance < 0.25:
            attempt.store.abort()
            self.count("aborted")
        else:
            self.commit(attempt)
            self.seen = max(self.seen, number + 1)
            if self.dice.random() < 0.8:
                self.clear(self.memories[at])

    # --- steps ----------------------------------------------------------------------------------------------------

    def next_batch(self) -> None:
        self.batch(self.seen)

    def replay(self) -> None:
        """The last batch again, in the same run, with the same rows or with others."""
        number = self.seen - 1
        if number < max(self.floor, self.run.first):
            return
        rows: Rows | None = None
        if self.dice.random() < 0.6:
            before, after = self.chosen(number).rows, self.chosen(number + 1).rows
            rows = {key: value for key, value in after.items() if before.get(key) != value}
            rows |= dict.fromkeys(before.keys() - after.keys())
        self.batch(number, rows)

    def rewind(self) -> None:
        """The query is started anew, at times turned back, and does some of its batches again, at times the very
        same.
        """
        number = self.dice.randint(min(self.floor, self.seen), self.seen)
        states = [self.chosen(version).rows for version in range(number, self.seen + 1)]
        same = self.dice.random() < 0.5
        self.restart(number)
        for before, after in list(itertools.pairwise(states))[: self.dice.randrange(4)]:
            changes: Rows = {key: value for key, value in after.items() if before.get(key) != value}
            changes |= dict.fromkeys(before.keys() - after.keys())
            attempt = self.begin(self.memories[0], self.seen, changes if same else None)
            self.commit(attempt)
            self.seen += 1
            if self.dice.random() < 0.5:
                self.clear(self.memories[0])

    def late_attempt(self) -> None:
        """An attempt that was stalled commits now: it counts, or is void."""
        if not self.late:
            return
        attempt = self.late.pop(self.dice.randrange(len(self.late)))
        number = attempt.store.version
        if attempt.launch == self.run.launch and number > self.seen:
            return
        self.commit(attempt)
        if attempt.launch != self.launch_at(number + 1):
            self.count("void")
        elif number == self.seen:
            # the query goes on when the batch is done
            self.seen += 1
            self.count("the newest")
        else:
            self.count("of an older batch")

    def crash(self) -> None:
        self.memories[self.dice.randrange(WORKERS)] = ShardCache()

    def no_rows(self) -> None:
        """A batch without rows, unless an attempt with rows has committed it: what a batch brings is always the
        same.
        """
        if not self.candidates(self.seen + 1) and all(attempt.store.version != self.seen for attempt in self.late):
            self.worker().note_empty(self.seen)
            self.seen += 1
            self.noted.add((self.seen, self.run.launch))

    def no_rows_again(self) -> None:
        """The query is turned back, and the batch brings this shard no rows now."""
        self.restart(self.dice.randint(min(self.floor, self.seen), self.seen))
        self.no_rows()
        self.count("turned back without rows")

    def look(self) -> None:
        number = self.dice.randint(min(self.floor, self.seen), self.seen)
        assert content(self.worker().get_read_store(number)) == self.chosen(number).rows
        if not self.candidates(self.seen + 1):
            with pytest.raises(SkippedBatchError if self.seen else hs.HybridStoreError, match="never written"):
                self.worker().get_store(self.seen + 1)

    def damage(self, copy: Path) -> None:
        """One object of a copy is damaged or lies in another's place: each version is right, or one of our errors."""
        shutil.copytree(self.root, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        for file in files:
            # what may lie in its place, also when the line was given up
            self.museum.setdefault(file.parent.name, []).append(file.read_bytes())
        how, path = self.dice.choice(DAMAGES), self.dice.choice(files)
        data = bytearray(path.read_bytes())
        if how == "flip" and data:
            data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
            path.write_bytes(data)
        elif how == "cut":
            path.write_bytes(data[: self.dice.randrange(len(data) or 1)])
        elif how == "remove":
            path.unlink()
        else:
            # also of lines that were given up since
            path.write_bytes(self.dice.choice(self.museum[path.parent.name]))
        for number in range(self.seen + 1):
            allowed = [self.chosen(number).rows]
            if how == "remove" and path.parent.name == "log":
                # of several attempts nothing tells that there was another, where no later version names it
                version = self.chosen(number).version
                allowed += [node.rows for node in self.candidates(version)]
                if (version, self.launch_at(version)) in self.noted:
                    # a note is an attempt, too: that the batch brought no row
                    before = self.chosen(version - 1)
                    allowed += [node.rows for node in (before, *self.candidates(before.version))]
            if number < self.floor:
                # Where the note of a batch is cleared away, nothing tells that a late attempt of the batch is none of
                # the line's. Versions below the floor are promised to nobody.
                allowed += [node.rows for node in self.candidates(number)]
            try:
                rows = content(provider(copy).get_read_store(number))
            except hs.HybridStoreError:
                self.count(f"{how} named")
            else:
                assert rows in allowed, f"version {number} after: {how} {path}"
                self.count(f"{how} harmless")
        shutil.rmtree(copy)


def live(root: Path, seed: int, steps: int = STEPS) -> dict[str, int]:
    """Run one life and return how often what happened."""
    shard = Shard(root / "shard", seed)
    kinds = [shard.next_batch] * 10 + [shard.replay] * 3 + [shard.rewind] * 2 + [shard.late_attempt] * 3
    kinds += [shard.crash, shard.no_rows, shard.no_rows_again, shard.look, lambda: shard.damage(root / "copy")]
    shard.batch(0)
    for step in range(steps):
        try:
            shard.dice.choice(kinds)()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {step}, version {shard.seen}")
            raise
    for number in range(shard.floor, shard.seen + 1):
        assert content(shard.worker().get_read_store(number)) == shard.chosen(number).rows
    return shard.done


@pytest.mark.stress
def test_a_shard_is_what_the_model_says_whatever_happens(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(4 * rounds):
        live(tmp_path / str(number), seed + number)


def test_the_lives_are_full_of_what_they_are_for(tmp_path: Path) -> None:
    done: dict[str, int] = {}
    for seed in range(10):
        for what, count in live(tmp_path / str(seed), seed).items():
            done[what] = done.get(what, 0) + count
    wanted = ["stalled", "aborted", "void", "the newest", "of an older batch", "turned back without rows"]
    wanted += [f"{how} {answer}" for how in DAMAGES for answer in ("named", "harmless")]
    assert {what for what in wanted if not done.get(what)} == set(), done
