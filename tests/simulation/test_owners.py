"""A plain store on an object store, under every order of its storage calls: owners that die and take the state from one
another, lost answers, late writes, pruned versions, clocks that are set and hosts that sleep."""

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import hybridstore as hs
from changelog import rounds
from changelog.files import Files
from changelog.storage import Storage
from hybridstore.state import bucket_log
from hybridstore.state.home import BucketHome
from hybridstore.state.opening import Opening, Tuning
from recovery import object_log, retrying
from recovery.ahead import ReadAhead
from recovery.layout import fence_name
from recovery.restore import Reached
from tests.conftest import STRESS
from tests.tools.memory_storage import MemoryStorage
from tests.tools.simulated_owners import Clocks, Owners
from tests.tools.simulated_storage import Dice, Died, searches
from tests.tools.spark_query import WrongState

DEPARTURES, SCHEDULES = (2, 400) if STRESS else (1, 150)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Objects are read one after the other: two threads of one process would take turns as they like."""
    report = threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda args: None if args.exc_type is Died else report(args))
    monkeypatch.setattr(rounds, "AT_ONCE", 1)
    monkeypatch.setattr(ReadAhead, "start", lambda self: None)
    monkeypatch.setattr(retrying, "_WAIT_SECONDS", 0.0)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    for name in ("time", "time_ns", "monotonic"):
        monkeypatch.setattr(time, name, getattr(clocks, name))
    return clocks


POLICY = hs.CheckpointPolicy(every_commits=None, keep=1)


def open_state(storage: Storage) -> hs.State:
    asked = Opening("commit", True, POLICY, None, False, None, None, Files(), Tuning())
    return hs.State.at_home(BucketHome(storage, asked), asked)


def play(owners: Owners) -> None:
    try:
        owners.run()
    except BaseException as error:
        error.add_note("\n".join(owners.simulation.history))
        raise


def noticed(owners: Owners, *errors: type[BaseException]) -> bool:
    try:
        owners.run()
    except (WrongState, *errors):
        return True
    return False


@pytest.mark.slow
@pytest.mark.stress
def test_in_no_schedule_of_two_owners_an_acknowledged_commit_is_lost() -> None:
    count = 0
    for search in searches(DEPARTURES):
        play(Owners(search, open_state, owners=2, commits=2))
        count += 1
    print(f"{count} schedules")


@pytest.mark.slow
@pytest.mark.stress
def test_in_no_random_schedule_of_three_owners_an_acknowledged_commit_is_lost(seed: int, rounds: int) -> None:
    for number in range(seed, seed + SCHEDULES * min(rounds, 100)):
        try:
            play(Owners(Dice(number), open_state, owners=3, commits=3))
        except BaseException as error:
            error.add_note(f"schedule {number}")
            raise


@pytest.mark.slow
@pytest.mark.stress
def test_nor_in_any_schedule_where_versions_are_pruned_and_clocks_are_set(clocks: Clocks) -> None:
    # Without faults: who goes on, and what the clocks do, are the only choices.
    count = 0
    for search in searches(2 if STRESS else 1):
        play(Owners(search, open_state, owners=2, commits=2, checkpoints=True, clocks=clocks, faults=0))
        count += 1
    print(f"{count} schedules")


@pytest.mark.slow
@pytest.mark.stress
def test_nor_in_a_random_one(clocks: Clocks, seed: int, rounds: int) -> None:
    for number in range(seed, seed + SCHEDULES // 3 * min(rounds, 100)):
        try:
            play(Owners(Dice(number), open_state, owners=3, commits=4, checkpoints=True, clocks=clocks))
        except BaseException as error:
            error.add_note(f"schedule {number}")
            raise


def test_an_owner_that_commits_faster_than_a_claimant_reads_is_stopped_by_the_note_of_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    first, warned = open_state(storage), []
    restore, take_in = BucketHome.restore, BucketHome._take_in
    acknowledged: list[int] = []

    def commit() -> None:
        first.key_value("rows").put(len(acknowledged), 1)
        first.commit()
        acknowledged.append(len(acknowledged))
        assert len(acknowledged) < 5, "the claimant is never the owner"

    def restored(self: BucketHome, *given: Any) -> Reached:
        reached = restore(self, *given)
        commit()
        return reached

    def taken_in(self: BucketHome, *given: Any) -> None:
        take_in(self, *given)
        with pytest.raises(hs.StateLockedError):
            commit()

    monkeypatch.setattr(bucket_log, "LOOK_SECONDS", -1.0)  # an owner looks at every commit
    monkeypatch.setattr(bucket_log, "warn", lambda *line: warned.append(line))
    monkeypatch.setattr(BucketHome, "restore", restored)
    monkeypatch.setattr(BucketHome, "_take_in", taken_in)
    second = open_state(storage)
    assert [key for key, _ in second.key_value("rows").all()] == acknowledged == [0]
    assert object_log.claims(storage) == {1, second.version}
    assert len(warned) == 1, "only the owner that was stopped commits nothing more"


def test_a_claimant_whose_clock_says_before_1970_notes_the_next_free_time(clocks: Clocks) -> None:
    class Counting(MemoryStorage):
        tries = 0

        def create(self, name: str, data: bytes) -> bool:
            self.tries += 1
            assert self.tries < 9, name
            return super().create(name, data)

    storage = Counting()
    storage.create(fence_name(1, 0), b"of another claimant")
    clocks.set(-1e9 - time.time())
    open_state(storage).close()
    assert fence_name(1, 1) in storage.list()


def test_it_would_be_noticed_if_the_name_of_a_claim_were_freed(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_log, "claims", lambda storage: set())
    assert any(
        noticed(Owners(Dice(seed), open_state, owners=3, commits=4, checkpoints=True, clocks=clocks))
        for seed in range(400)
    )


def test_it_would_be_noticed_if_an_owner_took_a_name_that_is_taken_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def created(self: bucket_log.BucketLog, version: int, data: bytes) -> bool:
        self._storage.create(bucket_log.object_name(version), data)
        return True

    monkeypatch.setattr(bucket_log.BucketLog, "_created", created)
    assert any(noticed(Owners(Dice(seed), open_state, owners=3, commits=3), hs.HybridStoreError) for seed in range(200))
