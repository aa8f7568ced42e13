"""`hs.inspect(path).follow()` is at the newest committed version after every refresh, whatever its owner does."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.inspection.api import InspectedShards
from hybridstore.reading import version as version_module
from hybridstore.reading.follow import Followed, follow
from hybridstore.reading.places import resolve
from hybridstore.reading.version import Version
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.opening import Tuning
from hybridstore.state.policy import CheckpointPolicy
from recovery.runs import newest_claim
from tests.tools.hooks import crash
from tests.tools.shard_tools import ATTEMPTS, OFTEN, operator, provider, put, restarted, write

KEYS = [f"k{i}" for i in range(12)]


def opened(path: Path) -> hs.State:
    return hs.open(path, checkpoints=CheckpointPolicy(every_commits=4, keep=1))


def one_commit(state: hs.State, r: random.Random, now: int) -> None:
    counts, windows, sessions = (
        state.key_value("counts"),
        state.window("windows", retention=50),
        state.session("sessions", retention=50),
    )
    for _ in range(r.randint(0, 6)):
        key = r.choice(KEYS)
        if r.random() < 0.2:
            counts.delete(key)
        else:
            counts.put(key, r.randint(0, 99))
        windows.put(key, r.randint(0, 9), now)
        sessions.put(key, r.randint(0, 9), start=now - 1, end=now)
    state.commit()


def content(state: hs.State) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    rows: dict[str, dict[str, list[tuple[Any, ...]]]] = {"counts": {}, "windows": {}, "sessions": {}}
    for key, value in state.key_value("counts").all():
        rows["counts"].setdefault(key, []).append((key, (), value))
    for (key, ts), value in state.window("windows", retention=50).all():
        rows["windows"].setdefault(key, []).append((key, (ts,), value))
    for (key, start, end), value in state.session("sessions", retention=50).all():
        rows["sessions"].setdefault(key, []).append((key, (end, start), value))
    return rows


@pytest.mark.stress
def test_a_view_follows_whatever_the_owner_does(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r, path = random.Random(f"{seed} {number}"), tmp_path / str(number)
        state, now = opened(path), 10
        one_commit(state, r, now)
        view = hs.inspect(path).follow()
        for _ in range(40):
            now += r.choice([0, 1, 5, 30])
            for _ in range(r.choice([0, 1, 1, 1, 9])):
                one_commit(state, r, now)
                if r.random() < 0.2:
                    state.checkpoint(wait=True)
            if r.random() < 0.15:
                (crash if r.random() < 0.5 else hs.State.close)(state)
                state = opened(path)
            before = view.version
            assert view.refresh() == (before != state.version)
            assert view.version == state.version
            for store, by_key in content(state).items():
                for key in KEYS:
                    assert view.get(store, key) == by_key.get(key, []), (store, key)
                assert sorted(view[store]) == sorted(row for rows in by_key.values() for row in rows)
        assert not view.refresh()
        view.close()
        state.close()


def test_where_nothing_was_committed_a_refresh_reads_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as state:
        state.key_value("counts").put("a", 1)
        state.commit()
        view = hs.inspect(tmp_path).follow()
        view.refresh()  # what came while it was opened
        with monkeypatch.context() as patched:
            patched.setattr(version_module, "log_walk", None)
            assert not view.refresh()
        state.key_value("counts").put("a", 2)
        assert not view.refresh()
        state.commit()
        assert view.refresh()
        assert view.get("counts", "a") == [("a", (), 2)]
        assert [view["counts"].kind, len(view["counts"]), list(view)] == ["key_value", 1, ["counts"]]
        with pytest.raises(KeyError, match="no store 'other'"):
            view.get("other", "a")
        with pytest.raises(TypeError):
            view.get("counts", 1)


def test_a_view_of_shards_that_count_no_more_says_so(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").aggregate(n=hs.Count(), emit="commit")
    rows = [{"k": f"k{number % 7}", "ts": number} for number in range(90)]
    before: list[Followed] = []
    for shards in (1, 2, 4):
        with topology.open(tmp_path, shards=shards) as engine:
            engine.process_many(rows)
            engine.commit()
        places = resolve(tmp_path)
        views = [follow([place], None) for place in places]
        assert not any(view.refresh() for view in views)
        for view in before:
            with pytest.raises(hs.errors.RestoreError, match="other shards count since a rescale"):
                view.refresh()
        before += views
        if shards < 4:
            hs.rescale(tmp_path, shards=2 * shards)


def test_nothing_is_written_by_a_view(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        one_commit(state, random.Random(1), 5)
        state.checkpoint(wait=True)
        before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
        with hs.inspect(tmp_path).follow() as view:
            assert view.get("counts", "none") == []
        assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def followed(root: Path) -> Any:
    state = hs.inspect(root)
    return state.follow()


def finished(root: Path, batch: int) -> None:
    """Spark notes that a batch is finished."""
    (root / "commits").mkdir(exist_ok=True)
    (root / "commits" / str(batch)).touch()


def test_a_view_of_a_query_is_at_the_newest_finished_batch(tmp_path: Path) -> None:
    shard = provider(tmp_path)
    write(shard, 0, a=1)
    finished(tmp_path, 0)
    view = followed(tmp_path)
    write(shard, 1, a=2)
    assert not view.refresh()
    assert [view.version, view.get("default", "a")] == [1, [("a", (), 1)]]
    finished(tmp_path, 1)
    assert view.refresh()
    assert [view.version, view.get("default", "a")] == [2, [("a", (), 2)]]


def test_a_view_of_a_query_follows_past_checkpoints_and_batches_without_rows(tmp_path: Path) -> None:
    shard = provider(tmp_path, policy=OFTEN)
    write(shard, 0, a=0)
    view = followed(tmp_path)
    version = 1
    for jump in (1, 1, 3, 9, 1, 20):
        for _ in range(jump):
            if version % 4 == 3:
                shard.note_empty(version)
            else:
                write(shard, version, a=version, b=-version)
            shard.maintain(wait=True)
            version += 1
        assert view.refresh()
        newest = max(number for number in range(version) if number % 4 != 3)
        assert [view.version, view.get("default", "a")] == [version, [("a", (), newest)]]
    assert not view.refresh()


def test_a_view_of_a_query_that_was_turned_back_is_read_anew(tmp_path: Path) -> None:
    shard = provider(tmp_path)
    for version in range(4):
        write(shard, version, a=version)
    view = followed(tmp_path)
    again = restarted(tmp_path, 2)
    store = again.get_store(2)
    put(store, a=20)
    store.commit()
    assert view.refresh()
    assert [view.version, view.get("default", "a")] == [3, [("a", (), 20)]]
    write(again, 3, a=30)
    view.refresh()
    assert [view.version, view.get("default", "a")] == [4, [("a", (), 30)]]


def test_a_view_is_of_one_operator_and_of_no_file(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1)
    other = tmp_path / "hybridstore" / "other"
    (tmp_path / "hybridstore" / "op").rename(other)
    write(provider(tmp_path), 0, a=1)
    state = hs.inspect(tmp_path)
    assert isinstance(state, InspectedShards)
    with pytest.raises(ValueError, match="expected one of op, other"):
        state.follow()
    with pytest.raises(ValueError, match="found 'third', expected one of op, other"):
        state.follow("third")
    assert state.follow("op").version == 1
    with opened(tmp_path / "plain") as plain:
        plain.key_value("counts").put("a", 1)
        plain.commit()
        segment = next((tmp_path / "plain" / "changelog").iterdir())
        with pytest.raises(ValueError, match="found a file, which does not change"):
            hs.inspect(segment).follow()


def test_shards_of_a_plain_topology_are_followed_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a rescale, whose shards are named by the sentence of a command that reads one state."""
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    assert list(topology.run([{"k": f"{n % 7}", "ts": n} for n in range(50)], tmp_path / "s", shards=2))
    for shards, folder in ((2, "0"), (3, "000001/000000")):
        if shards == 3:
            assert run(["rescale", str(tmp_path / "s"), "--shards", "3"]) == 0
        state = hs.inspect(tmp_path / "s")
        assert isinstance(state, InspectedShards)
        assert len(state.shards) == shards
        where = re.escape(str(tmp_path / "s"))
        for name in (None, "0"):
            with pytest.raises(ValueError, match=f"^{where}: follow: found {shards} shards of a plain topology"):
                state.follow(name)
        with pytest.raises(ValueError, match=rf"^{where}: found {shards} shards \(0, 1.*choose one: .*\['0'\]"):
            _ = state.version
        with state.shards["0"].follow() as view:
            assert "windows" in view
        assert run(["inspect", "info", str(tmp_path / "s" / folder)]) == 0


def test_shards_stay_at_one_version_when_the_refresh_of_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = provider(tmp_path)
    second = StateStoreProvider(
        StateStoreId(str(tmp_path), "op", 1),
        cache=ShardCache(),
        claim=newest_claim(operator(tmp_path)),
        attempts=ATTEMPTS,
    )
    shards = [first, second]
    for shard in shards:
        write(shard, 0, **{"abcd"[number]: 0 for number in range(4)})
    view = Followed(resolve(tmp_path))
    assert len(view._states) == 2
    for shard in shards:
        write(shard, 1, **{"abcd"[number]: 1 for number in range(4)})
    refresh, away = Version.refresh, True

    def failing(version: Version, at: int | None = None) -> bool:
        if away and version is view._states[1] and at == 2:
            raise OSError("the disk is away")
        return refresh(version, at)

    monkeypatch.setattr(Version, "refresh", failing)
    with pytest.raises(OSError, match="away"):
        view.refresh()
    assert [view.version, {row.value for row in view["default"]}] == [1, {0}]
    away = False
    assert view.refresh()
    assert [view.version, {row.value for row in view["default"]}] == [2, {1}]
    view.close()


def test_what_is_of_one_state_names_the_shards_of_a_location_with_several(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    assert list(topology.run([{"k": f"{n % 7}", "ts": n} for n in range(50)], tmp_path / "s", shards=5))
    look = hs.inspect(tmp_path / "s")
    assert sum(len(state["windows"]) for state in look.shards.values()) == 7
    for act in (look.restart, lambda: look["windows"], lambda: look.version, lambda: list(look), lambda: look.at(1)):
        with pytest.raises(ValueError, match=r"found 5 shards \(0, 1, 2, 3, \.\.\.\), expected one"):
            act()
    first = hs.inspect(tmp_path / "s" / "0")
    assert [state.version for state in first.shards.values()] == [first.version]


def test_a_view_loads_all_blocks_or_stays_within_a_limit(tmp_path: Path) -> None:
    rows = {f"key-{number:05d}": f"value {number}" for number in range(3_000)}
    with hs.open(tmp_path / "s", _tuning=Tuning(block_records=64)) as state:
        state.key_value("users").put_many(rows)
        state.commit()
        state.checkpoint(wait=True)
        with hs.inspect(tmp_path / "s").follow() as view:
            slices = 0
            while view.warm(0.01):
                slices += 1
            assert slices > 3
            assert {row.key: row.value for row in view["users"]} == rows
            whole = view._memory()
        with hs.inspect(tmp_path / "s").follow() as view:
            limit, forgotten = whole // 4, 0
            while view.warm(0.01, limit):
                assert view._memory() <= limit
            for key, value in list(rows.items())[::7]:
                assert view.get("users", key)[0].value == value
                forgotten += view.keep_within(limit)
                assert view._memory() <= limit
            assert forgotten > 3
            # the changelog behind the checkpoint cannot be forgotten: it is not opened again and again
            state.key_value("users").put_many({key: "x" * 1000 for key in rows})
            state.commit()
            view.refresh()
            assert view.keep_within(limit)
            assert not view.keep_within(limit)
            assert view.get("users", "key-00007")[0].value == "x" * 1000


@pytest.mark.parametrize("number", range(3))
def test_a_view_follows_prunes_rewinds_erases_and_changes_of_the_program(
    tmp_path: Path, seed: int, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever becomes of the files below the view: after a refresh it is the newest version, whole."""
    r, now, stores = random.Random(f"{seed} {number}"), 10, 0
    state = opened(tmp_path)
    one_commit(state, r, now)
    view = hs.inspect(tmp_path).follow()
    for _ in range(25):
        now += r.choice([0, 1, 30])
        act = r.choice(["commit", "commit", "prune", "rewind", "erase", "erase stopped", "new store", "drop"])
        if act == "prune":
            for _ in range(6):
                one_commit(state, r, now)
                state.checkpoint(wait=True)
        elif act == "rewind":
            versions = [commit.version for commit in hs.inspect(tmp_path).versions][-3:] or [state.version]
            state.close()
            run(["rewind", str(tmp_path), "--to", str(r.choice(versions)), "--write"])
            state = opened(tmp_path)
        elif act == "erase":
            content(state)
            for name in ("counts", "windows", "sessions"):
                state.stores[name].erase(r.choice(KEYS))
            state.commit()
        elif act == "erase stopped":
            state.close()
            hs.erase(tmp_path, r.choice(KEYS))
            state = opened(tmp_path)
        elif act == "new store":
            stores += 1
            state.key_value(f"more {stores}")["k"] = now
            state.commit()
        elif act == "drop" and stores and f"more {stores}" in state.stores:
            state.group.drop(f"more {stores}")
            state.commit()
        one_commit(state, r, now)
        view.refresh()
        assert view.version == state.version, act
        assert set(view) == set(state.stores), act
        for store, by_key in content(state).items():
            assert sorted(view[store]) == sorted(row for rows in by_key.values() for row in rows), (act, store)
            key = r.choice(KEYS)
            assert view.get(store, key) == by_key.get(key, []), (act, store, key)
    view.close()
    state.close()


def test_a_view_of_a_query_that_is_turned_back_again_and_again(tmp_path: Path) -> None:
    """A query that is turned back again and again, in which a view is never between two lines of versions."""
    shard = provider(tmp_path)
    for version in range(6):
        write(shard, version, a=version, **{f"k{version}": version})
    view = followed(tmp_path)
    for turn, back in enumerate((4, 2, 5, 3), 1):
        shard = restarted(tmp_path, back)
        for version in range(back, 7):
            write(shard, version, a=100 * turn + version)
        view.refresh()
        assert (view.version, view.get("default", "a")[0].value) == (7, 100 * turn + 6)
        rows = {row.key for row in view["default"]}
        assert {f"k{version}" for version in range(6) if version < min((4, 2, 5, 3)[:turn])} <= rows
        assert not view.refresh()


def test_a_view_of_many_stores_knows_another_line_after_a_rewind(tmp_path: Path) -> None:
    """The digest of a commit is far from its end, behind which the times of all stores are."""

    def commits(*values: int) -> None:
        with hs.open(tmp_path, checkpoints=CheckpointPolicy(every_commits=None)) as state:
            for value in values:
                for number in range(80):
                    state.window(f"store-{number}", retention="1 hour").put("k", value, ts=1_000_000)
                state.commit()

    commits(0, 1)
    with hs.inspect(tmp_path).follow() as view:
        assert view.get("store-0", "k")[0].value == 1
        view.refresh()
        run(["rewind", str(tmp_path), "--to", "1", "--write"])
        commits(2)
        view.refresh()
        assert (view.version, view.get("store-0", "k")[0].value) == (2, 2)
