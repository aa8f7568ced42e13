"""The one rule against a model: random lives of one shard, with restarts, retries, late attempts, rewinds and quiet
batches.

The oracle is the list of what the batches brought, up to the last one that Spark has committed: the digest of a version
is that of all its batches. Every load of every live attempt must give it. Each way of breaking the rule is seen to
fail.
"""

import itertools
import random
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.layout import LogName
from recovery.line import EMPTY, Step
from recovery.rule import NOTE, CountingObjects, MissingParent, Run, Runs, begun, counting, counts, note, note_of
from tests.conftest import STRESS

STEPS = 150
Load = Callable[["Objects", Runs, int], Step]


def after(parent: Step, version: int, rows: int) -> Step:
    return Step(version, blake2b(parent.digest + rows.to_bytes(8, "big"), digest_size=16).digest())


class Objects:
    """What is on storage: log objects with their parents, and the runs as the newest of them has seen them."""

    def __init__(self) -> None:
        self.log: dict[LogName, tuple[Step, Step]] = {}
        self.runs: dict[int, Runs] = {}

    def view(self) -> Runs:
        return self.runs[max(self.runs)] if self.runs else ()

    def claim(self, launch: int, first: int) -> bool:
        """Begin a run, unless a newer one has begun; True when it has begun, now or before."""
        if launch not in self.runs:
            if self.runs and max(self.runs) > launch:
                return False
            self.runs[launch] = begun(self.view(), Run(launch, first))
        return True

    def write(self, launch: int, attempt: int, parent: Step, step: Step | None, version: int) -> None:
        """Write an attempt's object, or the note of a batch without rows."""
        if step is None:
            self.log[LogName(version, launch, NOTE, f"{attempt:08x}")] = (EMPTY, EMPTY)
        else:
            parsed = LogName(version, launch, attempt, step.digest[:4].hex())
            self.log[parsed] = (parent, step)


def by_the_rule(objects: Objects, runs: Runs, version: int) -> Step:
    standing = CountingObjects(objects.log, runs)
    line = list(standing.line(version, lambda name: objects.log[name][0]))
    for (_, parent), (name, _) in itertools.pairwise(line):
        assert objects.log[name][1] == parent
    assert all(standing.has(number) for number in range(line[0][0].version if line else 1, version + 1))
    return objects.log[line[0][0]][1] if line else EMPTY


def greatest_of_all(objects: Objects, runs: Runs, version: int) -> Step:
    """Broken: the greatest launch and attempt of the greatest version, whenever its run has begun."""
    names = [name for name in objects.log if name.version <= version and name.attempt != NOTE]
    return objects.log[max(names)][1] if names else EMPTY


def attempts_before_launches(objects: Objects, runs: Runs, version: int) -> Step:
    """Broken: any launch counts that has begun at all below the version."""
    names = [
        name
        for name in objects.log
        if name.version <= version
        and name.attempt != NOTE
        and any(run.launch == name.launch and run.first < name.version for run in runs)
    ]
    return objects.log[max(names)][1] if names else EMPTY


class Wrong(Exception):
    """A load gave another state than the batches that were committed."""


class Life:
    """One query's life over one shard."""

    def __init__(self, dice: random.Random, load: Load, *, by_arrival: bool = False) -> None:
        self.dice = dice
        self.load = load
        self.by_arrival = by_arrival
        self.objects = Objects()
        # what each batch brought (None: nothing); the batches below `committed` are in Spark's commit log
        self.batches: list[int | None] = []
        self.committed = 0
        self.launch = self.first = self.attempt = 0
        self.alive = False
        # late attempts: everything they need to claim their run, and to write
        self.late: list[tuple[int, int, int, Step, Step | None, int]] = []
        self.loads = self.voided = 0

    def expected(self, version: int) -> Step:
        step = EMPTY
        for number, rows in enumerate(self.batches[:version]):
            if rows is not None:
                step = after(step, number + 1, rows)
        return step

    def start(self) -> None:
        """The query begins, or begins again; at times its logs were turned back before."""
        if self.committed and self.dice.random() < 0.25:
            self.committed = self.dice.randrange(self.committed)
            del self.batches[self.committed :]
        self.launch, self.first, self.alive = self.launch + 1, self.committed, True

    def late_attempt(self) -> None:
        launch, first, attempt, parent, step, version = self.late.pop(self.dice.randrange(len(self.late)))
        if self.by_arrival and launch not in self.objects.runs:
            launch = max(self.objects.runs, default=0) + 1
            self.launch = max(self.launch, launch)
        if self.objects.claim(launch, first):
            self.objects.write(launch, attempt, parent, step, version)

    def batch(self) -> None:
        dice, number = self.dice, self.committed
        if len(self.batches) == number:
            self.batches.append(dice.randrange(1 << 30) if dice.random() < 0.6 else None)
        outcome = dice.choice(["done", "done", "done", "dies first", "stalls", "dies behind", "two attempts"])
        self.attempt += 1
        if outcome == "dies first":
            self.alive = False
            return
        unclaimed = self.launch not in self.objects.runs and outcome == "stalls" and dice.random() < 0.5
        if not unclaimed:
            assert self.objects.claim(self.launch, self.first)
        runs = self.objects.view() if not unclaimed else begun(self.objects.view(), Run(self.launch, self.first))
        before = self.load(self.objects, runs, number)
        self.loads += 1
        if before != self.expected(number):
            raise Wrong(f"batch {number} of launch {self.launch} began with another state")
        rows = self.batches[number]
        step = None if rows is None else after(before, number + 1, rows)
        if outcome == "stalls":
            self.late.append((self.launch, self.first, self.attempt, before, step, number + 1))
            self.alive = not unclaimed and dice.random() < 0.5
            return
        self.objects.write(self.launch, self.attempt, before, step, number + 1)
        if outcome == "two attempts":
            self.attempt += 1
            self.objects.write(self.launch, self.attempt, before, step, number + 1)
        if outcome == "dies behind":
            self.alive = False
            return
        self.committed += 1

    def live(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            if not self.alive or self.dice.random() < 0.08:
                self.start()
            elif self.late and self.dice.random() < 0.3:
                self.late_attempt()
            else:
                self.batch()
        self.voided = sum(not counts(self.objects.view(), name) for name in self.objects.log)


def wrong(load: Load, lives: int, **options: bool) -> int:
    """How many of so many lives met a wrong state."""
    count = 0
    for seed in range(lives):
        try:
            Life(random.Random(seed), load, **options).live()
        except (Wrong, MissingParent, AssertionError):
            count += 1
    return count


def test_no_life_loads_another_state_than_its_batches_made() -> None:
    loads = voided = 0
    lives = 600 if STRESS else 150
    for seed in range(lives):
        life = Life(random.Random(seed), by_the_rule)
        try:
            life.live()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        loads, voided = loads + life.loads, voided + life.voided
    # the lives are full of what they are for
    assert loads > 50 * lives
    assert voided > 8 * lives


@pytest.mark.stress
def test_no_life_of_very_many_loads_another_state(seed: int, rounds: int) -> None:
    for number in range(25 * rounds):
        Life(random.Random(seed + number), by_the_rule).live(2 * STEPS)


@pytest.mark.parametrize("load", [greatest_of_all, attempts_before_launches])
def test_lives_without_the_rule_load_wrong_states(load: Load) -> None:
    assert wrong(load, 100) > 50


def test_launches_that_are_numbered_by_their_arrival_load_wrong_states() -> None:
    assert wrong(by_the_rule, 100, by_arrival=True) > 50


@settings(max_examples=max(150, STRESS), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=8), st.integers(0, 14))
def test_the_launch_that_counts_is_the_newest_that_began_below(starts: list[tuple[int, int]], version: int) -> None:
    launch, everything = 0, []
    runs: Runs = ()
    for gap, first in starts:
        launch += gap
        everything.append(Run(launch, first))
        runs = begun(runs, everything[-1])
    assert counting(runs, version) == max((run for run in everything if run.first < version), default=None)
    assert list(runs) == sorted(runs)
    assert len({run.first for run in runs}) == len(runs)


class Named(NamedTuple):
    name: LogName
    parent: Step


def named(version: int, attempt: int, parent: Step, rows: int) -> tuple[Named, Step]:
    step = after(parent, version, rows)
    return Named(LogName(version, 1, attempt, step.digest[:4].hex()), parent), step


def test_a_successor_names_the_attempt_that_counts() -> None:
    first, step = named(1, 1, EMPTY, 1)
    lost, _ = named(2, 9, step, 2)
    won, winner = named(2, 4, step, 3)
    last, _ = named(3, 5, winner, 4)
    names = {each.name: each.parent for each in (first, lost, won, last)}
    standing = CountingObjects(names, (Run(1, 0),))
    # the last version settles which attempt of the one before it counts, whoever asks for that
    assert [name for name, _ in standing.line(2, names.__getitem__)] == [won.name, first.name]
    alone = CountingObjects([first.name, lost.name, won.name], (Run(1, 0),))
    assert [name for name, _ in alone.line(2, names.__getitem__)] == [lost.name, first.name]
    assert [name for name, _ in standing.line(3, names.__getitem__)] == [last.name, won.name, first.name]
    assert [name for name, _ in standing.line(3, names.__getitem__, base=2)] == [last.name]
    assert standing.differing() == 1
    del names[won.name]
    with pytest.raises(MissingParent, match=f"version 2 .*{last.name}") as raised:
        list(CountingObjects(names, (Run(1, 0),)).line(3, names.__getitem__))
    assert raised.value.step == winner


def test_a_note_ranks_below_every_attempt() -> None:
    first, step = named(1, 1, EMPTY, 1)
    noted = LogName(1, 1, NOTE, "ffffffff")
    standing = CountingObjects([noted, first.name, LogName(2, 1, NOTE, "00000003")], (Run(1, 0),))
    assert standing.top(2, {first.name: EMPTY}.__getitem__) == first.name
    assert (standing.has(2), standing.has(3), standing.newest) == (True, False, 2)
    assert standing.parent(step) == first.name


def test_a_note_covers_its_own_version_or_all_that_it_spans() -> None:
    counting_objects = CountingObjects([note(5, 1, 3), note_of(9, 1, 3)], (Run(1, 0),))
    assert [version for version in range(1, 11) if not counting_objects.has(version)] == [1, 2, 3, 4, 6, 10]
    assert list(counting_objects.absent(4, 10)) == [6, 10]


def test_a_launch_that_is_not_newer_does_not_begin() -> None:
    with pytest.raises(ValueError, match="launch 3 does not come after launch 3"):
        begun((Run(3, 0),), Run(3, 4))
