"""Timers of custom logic (`process`): by event time and by the clock, in plain Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.topology import custom
from hybridstore.topology.declared_stores import StoreDeclaration

CLICKS = hs.stream(key="user", timestamp="ts")
SEEN = hs.key_value_store("seen")


def click(user: Any, ts: int, **more: Any) -> dict[str, Any]:
    return {"user": user, "ts": ts, **more}


def session(row: dict[str, Any], stores: Any) -> Any:
    """A session that ends ten milliseconds behind its last row, or at a log-out."""
    stores["seen"].put(row["user"], (stores["seen"].get(row["user"]) or 0) + 1)
    stores.timers.clear()
    if row.get("out"):
        yield {"user": row["user"], "n": stores["seen"].delete(row["user"]), "at": row["ts"], "why": "out"}
    else:
        stores.timers.set(row["ts"] + 10)


def session_ends(timer: hs.Timer, stores: Any) -> Any:
    yield {"user": timer.key, "n": stores["seen"].delete(timer.key), "at": stores.time, "why": timer.clock}


SESSIONS = CLICKS.process(session, stores=[SEEN], on_timer=session_ends)


def test_a_session_ends_at_a_log_out_or_behind_its_last_row() -> None:
    rows = [click("ann", 0), click("bob", 1), click("ann", 5), click("bob", 3, out=True), click("cat", 15)]
    rows += [click("cat", 16, out=True), click("ann", 100)]
    assert [tuple(row.values()) for row in SESSIONS.run(rows, commit_rows=1)] == [
        ("bob", 2, 3, "out"),
        ("ann", 2, 15, "event"),
        ("cat", 2, 16, "out"),
    ]


def test_timers_fire_in_order_before_the_row_that_moves_time() -> None:
    def function(row: dict[str, Any], stores: Any) -> Any:
        for ts in row["set"]:
            stores.timers.set(ts)
        yield {"row": row["ts"], "timers": tuple(stores.timers.list())}

    def fires(timer: hs.Timer, stores: Any) -> Any:
        yield {"row": -timer.time, "timers": (timer.key, *stores.timers.list())}

    topology = CLICKS.process(function, on_timer=fires)
    rows = [click("b", 0, set=[7, 3, 7, 9]), click("a", 1, set=[3, 5]), click("c", 7, set=[2]), click("c", 8, set=[])]
    assert [tuple(row.values()) for row in topology.run(rows, commit_rows=1)] == [
        (0, (3, 7, 9)),
        (1, (3, 5)),
        (-3, ("a", 5)),
        (-3, ("b", 7, 9)),
        (-5, ("a",)),
        (-7, ("b", 9)),
        (7, (2,)),
        # due when it is set: it fires as soon as the function has returned
        (-2, ("c",)),
        (8, ()),
    ]


def test_a_timer_may_set_later_ones_which_fire_in_the_same_move_of_time() -> None:
    def each_ten(timer: hs.Timer, stores: Any) -> Any:
        stores.timers.set(timer.time + 10)
        yield {"user": timer.key, "at": timer.time}

    topology = CLICKS.process(lambda row, stores: stores.timers.set(row["ts"] + 10), on_timer=each_ten)
    rows = [click("a", 0), click("b", 5), click("c", 30)]
    assert [(row["user"], row["at"]) for row in topology.run(rows)] == [
        ("a", 10), ("b", 15), ("a", 20), ("b", 25), ("a", 30)
    ]  # fmt: skip

    def for_ever(timer: hs.Timer, stores: Any) -> Any:
        stores.timers.set(timer.time)

    endless = CLICKS.process(lambda row, stores: stores.timers.set(row["ts"] + 10), on_timer=for_ever)
    with pytest.raises(ValueError, match=r"found 10 while the timer 10 fires, expected a later time") as caught:
        list(endless.run(rows))
    assert caught.value.__notes__[0] == "process: while the event timer 10 of key 'a' fired"


@pytest.mark.parametrize(
    ("key", "null_keys", "users"),
    [
        ("user", "skip", [5, 7]),
        ("user", "group", [None, "a"]),
        (["user", "ts"], "skip", ["a", "b"]),
        (["user", "ts"], "group", [None, "b"]),
        (None, "skip", ["a", "b"]),
    ],
)
def test_keys_of_any_form(key: Any, null_keys: Any, users: list[Any]) -> None:
    more = {} if key is None else {"key": key}
    topology = hs.stream(timestamp="ts", null_keys=null_keys, **more).process(
        lambda row, stores: stores.timers.set(row["ts"] + 1), on_timer=lambda timer, stores: [{"key": timer.key}]
    )
    rows = [click(users[0], 0), click(users[1], 10), click(users[0], 20)]
    keys = [row["key"] for row in topology.run(rows)]
    if key is None:
        assert keys == ["", ""]
    else:
        assert keys == ([(users[0], 0), (users[1], 10)] if type(key) is list else users)


class Random:
    """Sets and deletes timers at random, by its rows."""

    def __init__(self, stores: Any) -> None:
        self.stores = stores

    def process(self, row: dict[str, Any]) -> Any:
        timers = self.stores.timers
        for ts in row["set"]:
            timers.set(ts)
        for ts in row["delete"]:
            timers.delete(ts)
        yield {"user": row["user"], "at": -1, "left": tuple(timers.list())}

    def on_timer(self, timer: hs.Timer) -> Any:
        if timer.time % 5 == 0:
            self.stores.timers.set(timer.time + 7)
        yield {"user": timer.key, "at": timer.time, "left": tuple(self.stores.timers.list())}


def expected_of(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The same by a set of (time, key)."""
    timers: set[tuple[int, str]] = set()
    results: list[tuple[Any, ...]] = []
    now = -1

    def of(user: str) -> tuple[int, ...]:
        return tuple(sorted(ts for ts, key in timers if key == user))

    def fire() -> None:
        while timers and min(timers)[0] <= now:
            ts, user = min(timers)
            timers.remove((ts, user))
            if ts % 5 == 0:
                timers.add((ts + 7, user))
            results.append((user, ts, of(user)))

    for row in rows:
        now = max(now, row["ts"])
        fire()
        timers |= {(ts, row["user"]) for ts in row["set"]}
        timers -= {(ts, row["user"]) for ts in row["delete"]}
        results.append((row["user"], -1, of(row["user"])))
        fire()
    return results


def test_random_timers_with_restarts_agree_with_a_set(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(max(rounds, 20)):
        r, ts = random.Random(seed + number), 0
        rows = []
        for _ in range(30):
            ts += r.randrange(8)
            # in disorder: a row behind moves no time
            at = ts if r.random() < 0.8 else max(0, ts - r.randrange(20))
            times = [at + r.randrange(-5, 25) for _ in range(r.randrange(3))]
            rows.append(click(r.choice("abc"), at, set=times, delete=[at + r.randrange(20)]))
        topology, state = CLICKS.process(Random), tmp_path / f"{number}"
        results: list[Any] = []
        place = 0
        while place < len(rows):
            with topology.open(state) as engine:
                for row in rows[place : place + r.randrange(1, 6)]:
                    results += engine.process(row)
                    place += 1
                results += engine.commit()
                if r.random() < 0.3:  # lost with the process
                    engine.process(click("a", ts + 1000, set=[1], delete=[]))
        assert [tuple(row.values()) for row in results] == expected_of(rows), seed + number


def test_timers_by_the_clock_fire_at_the_end_of_the_first_commit_that_reaches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000]
    monkeypatch.setattr(custom, "wall_ms", lambda: clock[0])

    def function(row: dict[str, Any], stores: Any) -> None:
        stores.clock_timers.set(stores.clock_timers.now + 100)
        stores.timers.set(row["ts"] + 5)

    def fires(timer: hs.Timer, stores: Any) -> Any:
        yield {"user": timer.key, "at": timer.time, "clock": timer.clock}

    topology = CLICKS.process(function, on_timer=fires, clock_ticks="1 second")
    with topology.open(tmp_path) as engine:
        assert engine.process(click("a", 0)) == []
        clock[0] = 1099
        assert engine.process(click("b", 0)) == []  # the clock of a commit is that of its first row
        assert engine.commit() == []
        assert engine.commit() == []
        clock[0] = 1150
    with topology.open(tmp_path) as engine:
        fired = engine.commit()  # without a row, in every shard
        assert [tuple(row.values()) for row in fired] == [("a", 1100, "wall"), ("b", 1100, "wall")]
        clock[0] = 5000
        assert engine.commit() == []
        assert [tuple(row.values()) for row in engine.process(click("c", 50))] == [("a", 5, "event"), ("b", 5, "event")]


def test_timers_are_refused_where_they_cannot_fire() -> None:
    with pytest.raises(ValueError, match="found no on_timer"):
        list(CLICKS.process(lambda row, stores: stores.timers.set(5)).run([click("a", 0)]))
    fires: Any = lambda timer, stores: None  # noqa: E731
    with pytest.raises(ValueError, match="clock_ticks="):
        list(CLICKS.process(lambda row, stores: stores.clock_timers.set(5), on_timer=fires).run([click("a", 0)]))
    with pytest.raises(ValueError, match="clock_ticks: found without on_timer"):
        CLICKS.process(lambda row, stores: None, clock_ticks="1 second")
    with pytest.raises(TypeError, match="on_timer: found with a class"):
        CLICKS.process(Random, on_timer=fires)
    with pytest.raises(TypeError, match="on_timer: found int"):
        CLICKS.process(lambda row, stores: None, on_timer=5)  # type: ignore[arg-type]
    reserved: StoreDeclaration = hs.key_value_store("timers:due")
    with pytest.raises(ValueError, match="'timers:due' is a store of timers"):
        CLICKS.process(lambda row, stores: None, stores=[reserved], on_timer=fires)
    with pytest.raises(TypeError, match="set: found float"):
        list(CLICKS.process(lambda row, stores: stores.timers.set(0.5), on_timer=fires).run([click("a", 0)]))
    wrong = CLICKS.process(lambda row, stores: stores.timers.set(0), on_timer=lambda timer, stores: {"a": 1})
    with pytest.raises(TypeError, match="returned dict"):
        list(wrong.run([click("a", 0)]))


def test_timers_go_with_their_keys_to_other_shards(tmp_path: Path) -> None:
    topology = CLICKS.process(
        lambda row, stores: stores.timers.set(100), on_timer=lambda timer, stores: [{"user": timer.key}]
    )
    users = [f"u{i}" for i in range(40)]
    with topology.open(tmp_path / "state", shards=2) as engine:
        for user in users:
            engine.process(click(user, 0))
        engine.commit()
    hs.rescale(tmp_path / "state", shards=3)
    with topology.open(tmp_path / "state", shards=3) as engine:
        fired: list[Any] = []
        for user in users:
            fired += engine.process(click(user, 100))
    assert sorted(row["user"] for row in fired) == sorted([*users, *users])
