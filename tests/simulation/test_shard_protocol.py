"""The protocol of a shard, by the provider's own code, under every order of its storage calls: drivers that die, two
attempts of a task, lost answers, late writes, turning back, one DataFrame that is started twice.

`Search` plays all schedules of a few small histories with at most one departure from the quiet order (two in `make
stress`); `Dice` plays random ones of larger histories, a schedule for each seed. The tests at the end break the
protocol on purpose, and see that it is noticed.
"""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

import recovery.rule
from changelog import rounds
from hybridstore.spark import MissingVersionError, SkippedBatchError
from hybridstore.state.policy import CheckpointPolicy
from tests.conftest import STRESS
from tests.tools.simulated_shard import ProviderShard
from tests.tools.simulated_storage import Chooser, Dice, Died, searches
from tests.tools.spark_query import Driver, Query, Shard, WrongState, play

HISTORIES = {
    "a driver dies in its second batch": [Driver(attempts=2, dies_in=1), Driver(attempts=2)],
    "two drivers die before anything is done": [Driver(dies_in=0), Driver(attempts=2, dies_in=0), Driver()],
    "the query is turned back": [Driver(), Driver(back=1, attempts=2, dies_in=1), Driver(back=2)],
    "a driver dies and the query is turned back": [Driver(attempts=2, dies_in=1), Driver(back=1, dies_in=0), Driver()],
    "one DataFrame is started again": [Driver(attempts=2, dies_in=0), Driver(attempts=2, dies_in=1, again=True)],
}
# what the two others show of drivers that die, the query that is turned back shows too
FURTHER = pytest.mark.further("test_in_no_schedule_of_a_small_history_a_batch_begins_from_a_wrong_state")
OTHERS = ("a driver dies in its second batch", "two drivers die before anything is done")
EACH_RUN = [pytest.param(name, marks=FURTHER if name in OTHERS else []) for name in HISTORIES]
DEPARTURES, SCHEDULES = (2, 500) if STRESS else (1, 200)
OFTEN = CheckpointPolicy(every_commits=1, keep=1)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody reads a thousand warnings of checkpoints that failed, nor the traceback of a thread that died as asked."""
    report = threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda args: None if args.exc_type is Died else report(args))
    logging.disable(logging.WARNING)
    # Objects are read one after the other: threads of one process would take turns as they like.
    monkeypatch.setattr(rounds, "AT_ONCE", 1)
    yield
    logging.disable(logging.NOTSET)


def random_query(chooser: Chooser, shard: Shard, **options: bool) -> Query:
    return Query(chooser, shard, batches=3, drivers=4, empty=True, **options)


def play_random(seeds: range, shard: Callable[[], Shard]) -> None:
    for seed in seeds:
        try:
            play(random_query(Dice(seed), shard(), differing=bool(seed % 2)))
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("history", EACH_RUN)
def test_in_no_schedule_of_a_small_history_a_batch_begins_from_a_wrong_state(history: str) -> None:
    count = 0
    for search in searches(DEPARTURES):
        play(Query(search, ProviderShard(), batches=2, drivers=HISTORIES[history]))
        count += 1
    assert count > 50
    print(f"{count} schedules")


@pytest.mark.slow
@pytest.mark.stress
def test_in_no_random_schedule_a_batch_begins_from_a_wrong_state(seed: int, rounds: int) -> None:
    play_random(range(seed, seed + SCHEDULES * min(rounds, 100)), ProviderShard)


@pytest.mark.slow
@pytest.mark.stress
def test_nor_does_one_where_checkpoints_are_made_and_old_objects_removed(seed: int, rounds: int) -> None:
    play_random(range(seed, seed + 25 * min(rounds, 100)), lambda: ProviderShard(policy=OFTEN, retain=2))


def noticed(query: Query) -> bool:
    try:
        query.run()
    except (WrongState, MissingVersionError, SkippedBatchError):
        return True
    return False


def test_it_would_be_noticed_if_every_object_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery.rule, "counts", lambda runs, name: True)
    assert any(noticed(random_query(Dice(seed), ProviderShard())) for seed in range(200))


def test_it_would_be_noticed_if_launches_were_numbered_by_the_arrival_of_their_first_tasks() -> None:
    history = [Driver(dies_in=0), Driver()]
    assert any(
        noticed(Query(search, ProviderShard(by_arrival=True), batches=2, drivers=history)) for search in searches(1)
    )


def test_it_would_be_noticed_if_a_storage_listed_without_the_newest_objects() -> None:
    assert any(noticed(random_query(Dice(seed), ProviderShard(), stale=True)) for seed in range(200))


def test_a_schedule_follows_from_its_choices() -> None:
    first, second = (random_query(Dice(7), ProviderShard()) for _ in range(2))
    first.run()
    second.run()
    assert first.history == second.history
