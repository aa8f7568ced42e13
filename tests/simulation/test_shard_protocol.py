"""The protocol of a shard, under every order of its storage calls: drivers that die, two attempts of a task, lost answers,
late writes, turning back.

`Search` plays all schedules of a few small histories with at most one departure from the quiet order (two in `make
stress`); `Dice` plays random ones of larger histories, a schedule for each seed. The tests at the end break the rule on
purpose, and see that it is noticed.
"""

import os
from collections.abc import Callable

import pytest

import recovery.rule
from tests.tools.shard_model import MissingVersion, ShardModel
from tests.tools.simulated_storage import Dice, searches
from tests.tools.spark_query import Driver, Query, Shard, WrongState, play

HISTORIES = {
    "a driver dies in its second batch": [Driver(attempts=2, dies_in=1), Driver(attempts=2)],
    "a driver dies before anything is done, twice": [Driver(dies_in=0), Driver(attempts=2, dies_in=0), Driver()],
    "the query is turned back": [Driver(), Driver(back=1, attempts=2, dies_in=1), Driver(back=2)],
    "a driver dies and the query is turned back": [Driver(attempts=2, dies_in=1), Driver(back=1, dies_in=0), Driver()],
}
STRESSED = bool(os.environ.get("HYBRIDSTORE_STRESS"))


def random_query(seed: int, shard: Shard) -> Query:
    return Query(Dice(seed), shard, batches=3, drivers=4, empty=True)


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("history", HISTORIES)
def test_in_no_schedule_of_a_small_history_a_batch_begins_from_a_wrong_state(history: str, strict: bool) -> None:
    count = 0
    for search in searches(2 if STRESSED else 1):
        play(Query(search, ShardModel(strict=strict), batches=2, drivers=HISTORIES[history]))
        count += 1
    assert count > 60
    print(f"{count} schedules")


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("strict", [True, False])
def test_in_no_random_schedule_a_batch_begins_from_a_wrong_state(strict: bool, seed: int, rounds: int) -> None:
    for number in range(seed, seed + 1000 * min(rounds, 50)):
        query = random_query(number, ShardModel(strict=strict))
        try:
            play(query)
        except BaseException as error:
            error.add_note(f"schedule {number}")
            raise


def noticed(shard: Callable[[], Shard], schedules: int) -> bool:
    for seed in range(schedules):
        try:
            random_query(seed, shard()).run()
        except (WrongState, MissingVersion):
            return True
    return False


def test_it_would_be_noticed_if_every_object_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery.rule, "counts", lambda runs, name: True)
    assert noticed(lambda: ShardModel(strict=False), 100)


@pytest.mark.slow
def test_it_would_be_noticed_if_launches_were_numbered_by_the_arrival_of_their_first_tasks() -> None:
    assert noticed(lambda: ShardModel(by_arrival=True), 3000)


def test_a_schedule_follows_from_its_choices() -> None:
    first, second = (random_query(7, ShardModel()) for _ in range(2))
    first.run()
    second.run()
    assert first.history == second.history
