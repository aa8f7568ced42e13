"""A plain store on an object store, under every order of its storage calls: owners that die and take the state from one
another, lost answers, late writes."""

import pytest

import hybridstore as hs
from changelog import rounds
from changelog.files import Files
from changelog.storage import Storage
from hybridstore.state import bucket_log
from hybridstore.state.home import BucketHome
from hybridstore.state.opening import Opening, Tuning
from tests.conftest import STRESS
from tests.tools.simulated_owners import Owners
from tests.tools.simulated_storage import Dice, searches
from tests.tools.spark_query import WrongState

DEPARTURES, SCHEDULES = (2, 400) if STRESS else (1, 150)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are read one after the other: two threads of one process would take turns as they like."""
    monkeypatch.setattr(rounds, "AT_ONCE", 1)


def open_state(storage: Storage) -> hs.HybridStore:
    asked = Opening("commit", True, hs.CheckpointPolicy(), None, False, None, None, Files(), Tuning())
    return hs.HybridStore(BucketHome(storage, asked), asked)


def play(owners: Owners) -> None:
    try:
        owners.run()
    except BaseException as error:
        error.add_note("\n".join(owners.simulation.history))
        raise


def noticed(owners: Owners) -> bool:
    try:
        owners.run()
    except WrongState:
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


def test_it_would_be_noticed_if_an_owner_took_a_name_that_is_taken_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def created(self: bucket_log.BucketLog, version: int, data: bytes) -> bool:
        self._storage.create(bucket_log.object_name(version), data)
        return True

    monkeypatch.setattr(bucket_log.BucketLog, "_created", created)
    assert any(noticed(Owners(Dice(seed), open_state, owners=3, commits=3)) for seed in range(200))
