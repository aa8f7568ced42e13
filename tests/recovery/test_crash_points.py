"""A crash at any moment, whatever of the unsynced data survives: the state is the last acknowledged commit or the one
after.

One seeded workload over all kinds of stores runs once, with commits, rollbacks, checkpoints, prunes and reopenings, on
a file layer that keeps its history (`tests/tools/faults.py`). Every disk that a crash after every single write, sync,
cut, rename and remove could have left is then laid out, opened, compared with the model, and worked on for two commits
more: each twentieth disk of every mode; with HYBRIDSTORE_STRESS=N all of them, of N workloads.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from hybridstore.state.opening import Tuning
from tests.conftest import STRESS
from tests.tools.faults import MODES, Disk, QuickFiles, Recorder, disks
from tests.tools.hooks import check_stores, crash
from tests.tools.model import ModelState
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(frame_records=3, segment_bytes=700, block_records=4, bucket_divisor=8, parts=SMALL_PARTS)
STEPS = 150
# Kind, parameters of the store, parameters of its model where they differ.
STORES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    name: declared
    for name, declared in {
        "kv": ("key_value", {}, {}),
        "kv-ttl": ("key_value", {"ttl": 40}, {}),
        "win": ("window", {"retention": 60, "grace": 30}, {}),
        "dup": ("window", {"retention": 60, "retain_duplicates": True}, {}),
        "ses": ("session", {"retention": 60}, {}),
        "sup": ("suppression", {"max_records": 4, "time_limit": 20}, {}),
        "sli": ("sliding", {"size": 30, "aggregator": "sum"}, {}),
    }.items()
    if hasattr(hs.State, declared[0])
}
KEYS = ["a", "b", "c", "d", "e", "f", "g"]
Calls = list[tuple[str, str, tuple[Any, ...]]]


class Step(NamedTuple):
    """What is done between two commits: calls that are rolled back, calls that count, and what comes after the
    commit.
    """

    undone: Calls
    calls: Calls
    after: str


def calls(dice: random.Random, now: int, count: int) -> Calls:
    calls: Calls = []
    for _ in range(count):
        name = dice.choice(list(STORES))
        key, ts, value = (
            dice.choice(KEYS),
            max(0, now + dice.randint(-40, 3)),
            dice.choice([now, (now, "x"), "v" * dice.randint(0, 60)]),
        )
        kind = STORES[name][0]
        if kind == "key_value":
            times = (ts,) if name == "kv-ttl" else ()
            calls.append((name, "delete", (key,)) if dice.random() < 0.25 else (name, "put", (key, value, *times)))
        elif kind == "window":
            calls.append((name, "put", (key, None if dice.random() < 0.25 else value, ts)))
        elif kind == "session":
            start, end = max(0, ts - dice.randint(0, 9)), ts
            calls.append(
                (name, "put", (key, value, start, end)) if dice.random() < 0.75 else (name, "delete", (key, start, end))
            )
        elif kind == "suppression":
            calls.append((name, "put", (key, value, ts)) if dice.random() < 0.8 else (name, "advance", (ts,)))
        else:
            calls.append((name, "add", (key, dice.randint(1, 9), ts)))
    return calls


def workload(seed: int) -> list[Step]:
    dice = random.Random(seed)
    steps = []
    for number in range(STEPS):
        undone = calls(dice, number * 3, 5) if dice.random() < 0.15 else []
        after = dice.choice(["checkpoint", "checkpoint", "reopen", "crash"]) if dice.random() < 0.3 else ""
        # The first call changes something for certain, so every step is a version.
        steps.append(
            Step(undone, [("kv", "put", ("step", number)), *calls(dice, number * 3, dice.randint(1, 9))], after)
        )
    return steps


def stores(state: Any, model: bool) -> dict[str, Any]:
    content = {}
    for name, (kind, parameters, of_model) in STORES.items():
        options = of_model or parameters if model else parameters
        if kind == "sliding" and not model:
            options = {**parameters, "aggregator": hs.Sum()}  # type: ignore[attr-defined]
        content[name] = getattr(state, kind)(name, **options)
    return content


def shown(result: Any) -> Any:
    return list(result) if isinstance(result, Iterator) else result


def do(handles: dict[str, Any], calls: Calls) -> list[Any]:
    return [shown(getattr(handles[name], call)(*args)) for name, call, args in calls]


def contents(handles: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, store in handles.items():
        rows: Any = None
        if hasattr(store, "buffered"):
            rows = list(store.buffered())
        elif STORES[name][0] != "sliding":  # whose results are compared as they come
            rows = list(store.all())
        content[name] = (rows, store.stream_time)
    return content


class Sequel(NamedTuple):
    """What the model holds at a version, what the next two steps answer there, and what it holds then."""

    before: dict[str, Any]
    answers: list[list[Any]]
    after: dict[str, Any]


class Played:
    """A workload that ran: the history of its files, and the model after each version."""

    def __init__(self, steps: list[Step], recorder: Recorder, models: list[dict[str, Any]]) -> None:
        self.steps = steps
        self.recorder = recorder
        self.models = models
        self._sequels: dict[int, Sequel] = {}

    def sequel(self, version: int) -> Sequel:
        """Return what must follow from a version: worked out once, for the many crashes that lead back to it."""
        if version not in self._sequels:
            model = ModelState(deepcopy(self.models[version]))
            before = contents(stores(model, True)) if version else {}
            answers = []
            for step in self.steps[version : version + 2]:
                answers.append(do(stores(model, True), step.calls))
                model.commit()
            self._sequels[version] = Sequel(before, answers, contents(stores(model, True)))
        return self._sequels[version]


def open_state(path: Path, files: QuickFiles, durability: Any = "commit") -> hs.State:
    return hs.open(path, durability=durability, checkpoints=hs.CheckpointPolicy(keep=2), _tuning=TUNING, _files=files)


def play(path: Path, steps: list[Step], durability: str = "commit") -> Played:
    """Run the workload once, on the recorder and on the model, and compare all the way."""
    recorder = Recorder(path)
    disk: dict[str, Any] = {}
    models = [deepcopy(disk)]
    state, model = open_state(path, recorder, durability), ModelState(disk)
    for step in steps:
        if step.undone:
            do(stores(state, False), step.undone)
            state.rollback()
        handles = stores(state, False)
        assert do(handles, step.calls) == do(stores(model, True), step.calls)
        state.commit()
        model.commit()
        recorder.note("acknowledged", detail=state.version)
        models.append(deepcopy(disk))
        if step.after == "checkpoint":
            state.checkpoint(wait=True)
        elif step.after:
            if step.after == "reopen":
                state.close()
            else:
                crash(state)
            state = open_state(path, recorder, durability)
        if len(models) % 10 == 0:
            assert contents(stores(state, False)) == contents(stores(model, True))
    state.close()
    return Played(steps, recorder, models)


def check(played: Played, disk: Disk, path: Path) -> None:
    """The disk opens at an allowed version with the model's state, and goes on as the model does."""
    disk.write(path)
    state = open_state(path, QuickFiles())
    version = state.version
    assert version in (disk.acknowledged, disk.acknowledged + 1), f"version {version}, acknowledged {disk.acknowledged}"
    sequel = played.sequel(version)
    if version:
        assert contents(stores(state, False)) == sequel.before
    for step, answer in zip(played.steps[version : version + 2], sequel.answers, strict=True):
        assert do(stores(state, False), step.calls) == answer
        state.commit()
        check_stores(state)
    assert contents(stores(state, False)) == sequel.after
    crash(state)
    state = open_state(path, QuickFiles())
    assert contents(stores(state, False)) == sequel.after
    state.close()


@pytest.mark.slow
@pytest.mark.stress
def test_a_crash_anywhere_leaves_the_last_commit_or_the_one_after(tmp_path: Path, seed: int, rounds: int) -> None:
    points = 0
    modes: Counter[str] = Counter()
    for number in range(rounds):
        root = tmp_path / str(number)
        root.mkdir()
        played = play(root / "state", workload(seed + number))
        for disk in disks(played.recorder.history, seed + number):
            modes[disk.mode] += 1
            if not STRESS and modes[disk.mode] % 20 != 1:
                continue
            points += 1
            path = root / "crashed"
            try:
                check(played, disk, path)
            except BaseException as error:
                event = played.recorder.history[disk.moment - 1]
                error.add_note(
                    f"workload {seed + number}, crash after event {disk.moment} ({event.what} {event.detail!r:.80}), "
                    f"mode {disk.mode}"
                )
                raise
            shutil.rmtree(path)
        shutil.rmtree(root)
    assert modes.keys() >= set(MODES) - {"named"}  # which is rarely a tree of its own
    assert points >= (2000 if STRESS else 80) * rounds, f"only {points} crash points"
    print(f"{points} crash points")


def test_the_check_would_notice_a_sync_that_is_missing(tmp_path: Path) -> None:
    played = play(tmp_path / "state", workload(1)[:12], durability="os")
    lost = 0
    for number, disk in enumerate(disks(played.recorder.history, 1)):
        if not STRESS and number % 3:
            continue
        try:
            check(played, disk, tmp_path / str(number))
        except (AssertionError, hs.HybridStoreError):
            lost += 1
            assert disk.mode != "kept"
    assert lost > 10


def test_a_killed_process_loses_nothing_even_without_syncs(tmp_path: Path) -> None:
    played = play(tmp_path / "state", workload(2)[:30], durability="os")
    for number, disk in enumerate(disks(played.recorder.history, 2)):
        if disk.mode in ("kept", "torn") and (STRESS or number % 6 == 0):
            check(played, disk, tmp_path / str(number))


def test_a_power_loss_without_syncs_may_shorten_but_never_invents(tmp_path: Path) -> None:
    played = play(tmp_path / "state", workload(3)[:25], durability="os")
    outcomes = set()
    for number, disk in enumerate(disks(played.recorder.history, 3)):
        if not STRESS and number % 3:
            continue
        path = tmp_path / str(number)
        disk.write(path)
        try:
            state = open_state(path, QuickFiles())
        except hs.HybridStoreError:
            outcomes.add("refused")
            continue
        if state.version:
            assert contents(stores(state, False)) == played.sequel(state.version).before
        outcomes.add("shorter" if state.version < disk.acknowledged else "whole")
        crash(state)
    assert outcomes == {"refused", "shorter", "whole"}
