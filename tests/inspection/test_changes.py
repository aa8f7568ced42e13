"""What changed: `history`, `log` and `diff` agree with what the live store held at every version."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.changes import DELETED
from hybridstore.cli import run
from hybridstore.reading.changes import ChangeHistory
from hybridstore.reading.differences import compare
from hybridstore.reading.events import Event, history_of
from hybridstore.reading.places import resolve
from hybridstore.reading.versions import reach_once
from hybridstore.reading.view import open_view
from hybridstore.state.opening import Tuning
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(segment_bytes=1500, block_records=5, parts=SMALL_PARTS)
Held = dict[int, dict[str, dict[Any, Any]]]


def build(path: Path, seed: int, *, keep: int = 100, commits: int = 20) -> Held:
    """Make a state by a random script; return version -> store -> slot -> value."""
    draw = random.Random(seed)
    kept: Held = {}
    with hs.open(path, checkpoints=hs.CheckpointPolicy(keep=keep), _tuning=TUNING) as state:
        kv, win = state.key_value("kv"), state.window("win", retention=100)
        ses = state.session("ses", retention=100)
        clock = 0
        for _ in range(commits):
            for _ in range(draw.randrange(1, 15)):
                clock += draw.randrange(6)
                key, value = f"k{draw.randrange(12)}", draw.choice([None, True, 1, 1.0, "a", [1], (1,)])
                ts = max(0, clock - draw.randrange(30))
                match draw.randrange(4):
                    case 0:
                        kv.put(key, value)
                    case 1:
                        kv.put_columns([key, "k0"], [0 if value is None else value, "column"])
                    case 2:
                        win.put(key, value, ts)
                    case _:
                        ses.put(key, value, start=max(0, ts - 5), end=ts)
            state.set("position", clock)
            kept[state.commit()] = {
                "kv": {(key, ()): value for key, value in kv.all()},
                "win": {(key, (ts,)): value for (key, ts), value in win.all()},
                "ses": {(key, (end, start)): value for (key, start, end), value in ses.all()},
            }
            if draw.random() < 0.3:
                state.checkpoint(wait=True)
    return kept


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


def test_diff_is_the_difference_of_what_was_held(tmp_path: Path, seed: int) -> None:
    kept = build(tmp_path / "s", seed)
    (place,) = resolve(tmp_path / "s")
    draw = random.Random(seed)
    for _ in range(15):
        old_version, new_version = draw.choice(list(kept)), draw.choice(list(kept))
        old_view, new_view = open_view(place, old_version), open_view(place, new_version)
        for name in ("kv", "win", "ses"):
            old, new = kept[old_version][name], kept[new_version][name]
            expected = {("removed", slot) for slot in old.keys() - new.keys()}
            expected |= {("added", slot) for slot in new.keys() - old.keys()}
            expected |= {("changed", slot) for slot in old.keys() & new.keys() if not same(old[slot], new[slot])}
            changes = list(compare(old_view.store(name), new_view.store(name)))
            assert {(change.change, (change.key, change.times)) for change in changes} == expected
            assert len(changes) == len(expected)
            for change in changes:
                assert same(change.old, old.get((change.key, change.times)))
                assert same(change.new, new.get((change.key, change.times)))


def test_diff_of_a_buffer_shows_an_updated_key_as_changed(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    kept: dict[int, dict[str, Any]] = {}
    with hs.open(tmp_path / "s", checkpoints=hs.CheckpointPolicy(keep=100), _tuning=TUNING) as state:
        buffer = state.suppression("buffer", time_limit=40)
        for number in range(60):
            buffer.put(f"k{draw.randrange(12)}", number, 3 * number)
            kept[state.commit()] = {key: value for key, value, _ in buffer.buffered()}
            if draw.random() < 0.3:
                state.checkpoint(wait=True)
    look = hs.inspect(tmp_path / "s")
    for _ in range(15):
        before, after = draw.choice(list(kept)), draw.choice(list(kept))
        old, new = kept[before], kept[after]
        both = {(key, old.get(key), new.get(key)) for key in old.keys() | new.keys()}
        expected = {(key, was, is_now) for key, was, is_now in both if was != is_now}
        differences = look.at(before).diff(look.at(after))["buffer"] if expected else []
        assert {(each.key, each.old, each.new) for each in differences} == expected
        assert len(differences) == len(expected)
        assert [each.times for each in differences] == sorted(each.times for each in differences)
        changes = {each.key: each.change for each in differences}
        assert {key for key, change in changes.items() if change == "changed"} == {
            key for key, *_ in expected if key in old and key in new
        }


def with_another_retention(path: Path, rows: list[dict[str, Any]], before: str, after: str) -> None:
    """Commit rows one by one to a window store, whose retention changes behind the first half."""

    def step(row: dict[str, Any], stores: Any) -> None:
        stores["win"].put(row["k"], row["n"], row["ts"])

    for count, retention in ((len(rows) // 2, before), (len(rows), after)):
        stores = [hs.window_store("win", retention=retention)]
        topology = hs.stream(key="k", timestamp="ts").process(step, stores=stores)
        assert list(topology.run(rows[:count], path, commit_rows=1)) == []


@pytest.mark.parametrize("retentions", [("1 hour", "2 hours"), ("2 hours", "1 hour")])
def test_diff_knows_records_again_whose_retention_has_changed(tmp_path: Path, retentions: tuple[str, str]) -> None:
    """Their buckets have another length since."""
    rows = [{"k": f"k{n % 3}", "n": n, "ts": n * 60_000} for n in range(30)]
    with_another_retention(tmp_path / "s", rows, *retentions)
    state = hs.inspect(tmp_path / "s")
    differences = state.at(10).diff(state)["win"]
    assert [(of.change, of.key, of.times) for of in differences] == [
        ("added", row["k"], (row["ts"],)) for row in rows[10:]
    ]


def test_history_of_a_buffer_begins_before_the_oldest_version_that_can_be_read(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", checkpoints=hs.CheckpointPolicy(keep=1), _tuning=TUNING) as state:
        buffer = state.suppression("buffer", time_limit=20)
        for number in range(200):
            buffer.put(f"k{number % 7}", number, 5 * number)
            state.commit()
            if number % 10 == 0:
                state.checkpoint(wait=True)
        buffered = {key: value for key, value, _ in buffer.buffered()}
    look = hs.inspect(tmp_path / "s")
    oldest = min(int(path.name[:20]) for path in (tmp_path / "s" / "checkpoints").glob("*.lmdb"))
    assert 1 < look.versions[0].version < oldest
    for key in (f"k{number}" for number in range(7)):
        changes = look.history("buffer", key)
        assert changes[-1].new == buffered.get(key, DELETED)
        for version in range(oldest, look.version + 1):
            last = [change.new for change in changes if change.version <= version][-1:]
            rows = look.at(version)["buffer"].get(key)
            assert [value for value in last if value is not DELETED] == [row.value for row in rows], (key, version)


def test_segments_that_the_owner_removes_while_the_log_is_read_are_no_fault(tmp_path: Path, seed: int) -> None:
    kept = build(tmp_path / "s", seed)
    (place,) = resolve(tmp_path / "s")
    story = ChangeHistory(place)
    versions = story.versions()
    first = next(versions)
    sorted((tmp_path / "s" / "changelog").glob("*.log"))[1].unlink()
    numbers = [first.commit.version, *(logged.commit.version for logged in versions)]
    assert (story.faults, story.removed) == ([], True)
    assert numbers[-1] == max(kept)
    assert len(numbers) < len(kept)


def test_history_is_read_again_where_the_owner_has_removed_the_checkpoint_on_which_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def reach_and_prune(place: Any) -> Any:
        nonlocal looks
        looks, within = looks + 1, reach_once(place)
        if looks == 1:
            commit_some()
        return within

    with hs.open(tmp_path / "s", checkpoints=hs.CheckpointPolicy(keep=1), _tuning=TUNING) as state:
        store = state.key_value("kv")

        def commit_some() -> None:
            for number in range(60):
                store.put(f"k{number % 7}", number)
                state.commit()
                if number % 10 == 9:
                    state.checkpoint(wait=True)

        commit_some()
        monkeypatch.setattr("hybridstore.reading.events.reach_once", reach_and_prune)
        changes = hs.inspect(tmp_path / "s").history("kv", "k3")
    assert looks == 2
    assert changes[-1].new == 59


@pytest.mark.parametrize("retentions", [("1 hour", "2 hours"), ("2 hours", "1 hour")])
def test_history_expires_records_by_the_retention_of_their_version(tmp_path: Path, retentions: tuple[str, str]) -> None:
    rows = [{"k": "ab"[n > 0], "n": n, "ts": n * 45 * 60_000} for n in range(6)]
    with_another_retention(tmp_path / "s", rows, *retentions)
    state = hs.inspect(tmp_path / "s")
    for key in "ab":
        changes = state.history("win", key)
        for commit in state.versions:
            stored = {row.times: row.value for row in state.at(commit.version)["win"].get(key)}
            assert replayed(changes, commit.version) == stored, (key, commit.version)


def test_diff_reads_no_block_that_both_sides_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path / "s", _tuning=Tuning(block_records=10, parts=SMALL_PARTS)) as state:
        kv = state.key_value("kv")
        kv.put_columns([f"k{i:04}" for i in range(1000)], list(range(1000)))
        state.commit()
        state.checkpoint(wait=True)
        kv.put("k0500", "new")
        state.commit()
        state.checkpoint(wait=True)
    (place,) = resolve(tmp_path / "s")
    old, new = open_view(place, 1).store("kv"), open_view(place, 2).store("kv")
    read: list[int] = []
    for store in (old, new):
        load = store.block
        monkeypatch.setattr(store, "block", lambda entry, load=load: (read.append(entry.block), load(entry))[1])
    assert [(change.key, change.old, change.new) for change in compare(old, new)] == [("k0500", 500, "new")]
    assert len(read) == 2


def replayed(events: list[Event], version: int) -> dict[Any, Any]:
    """The records of a key after a version, from its history alone."""
    slots: dict[Any, Any] = {}
    for event in events:
        if event.version > version:
            break
        if event.new is DELETED:
            slots.pop(event.times, None)
        else:
            slots[event.times] = event.new
    return slots


@pytest.mark.parametrize("keep", [100, 1])
def test_history_tells_what_was_held_at_every_version(tmp_path: Path, seed: int, keep: int) -> None:
    kept = build(tmp_path / "s", seed, keep=keep)
    (place,) = resolve(tmp_path / "s")
    oldest = min((tmp_path / "s" / "checkpoints").glob("*.lmdb"), default=None)
    first = 1 if keep == 100 or oldest is None else int(oldest.name[:20])
    for name in ("kv", "win", "ses"):
        for key in {f"k{i}" for i in range(12)}:
            faults: list[str] = []
            events = history_of(place, name, key, faults)
            assert faults == []
            for version, stores in kept.items():
                if version >= first:
                    expected = {times: value for (row_key, times), value in stores[name].items() if row_key == key}
                    assert same(sorted(replayed(events, version).items()), sorted(expected.items()))
            for earlier, later in itertools.pairwise(events):
                if name == "kv" and later.op != "found" and later.old is not None and later.version > first:
                    assert same(earlier.new, later.old)


@pytest.mark.parametrize("kind", ["window", "sliding"])
@pytest.mark.parametrize("pruned", [False, True])
def test_history_has_every_record_of_a_key_and_time(tmp_path: Path, kind: str, pruned: bool) -> None:
    tuning = Tuning(frame_records=1, segment_bytes=64)
    with hs.open(tmp_path / "s", checkpoints=hs.CheckpointPolicy(keep=1), _tuning=tuning) as state:
        if kind == "window":
            put = state.window("store", retention=10, retain_duplicates=True).put
        else:
            put = state.sliding("store", size=9, aggregator=hs.Sum()).add
        for value in (1, 2, 2):
            put("ann", value, 5)
            state.commit()
        if pruned:
            state.checkpoint(wait=True)
        put("ann", 3, 5)
        state.commit()
        put("ann", 4, 50)
        state.commit()
    events = hs.inspect(tmp_path / "s").history("store", "ann")
    began = [(event.op, event.new) for event in events if event.op in ("put", "found") and event.times == (5,)]
    assert sorted(value for _, value in began) == [1, 2, 2, 3]
    assert any(op == "found" for op, _ in began) == pruned
    assert [event.old for event in events if event.op == "expire"] == [1, 2, 2, 3]


def test_the_log_holds_every_put_in_order(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        kv, win = state.key_value("kv"), state.window("win", retention=100)
        kv.put("a", 1)
        win.put("b", "x", 7)
        state.commit()
        win.delete("b", 7)
        kv.delete("a")
        state.set("position", 5)
        state.commit()
    (place,) = resolve(tmp_path / "s")
    story = ChangeHistory(place)
    seen = [
        (logged.commit.version, change.op, story.name(change.store), change.key, change.times)
        for logged in story.versions()
        for change in logged.changes
        if change.op != "define"
    ]
    assert seen == [
        (1, "put", "kv", "a", ()),
        (1, "put", "win", "b", (7,)),
        (2, "delete", "win", "b", (7,)),
        (2, "delete", "kv", "a", ()),
        (2, "set", "", "position", ()),
    ]


def test_diff_has_the_exit_codes_of_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    build(path, 3)
    assert run(["inspect", "diff", str(path), f"{path}@20"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["inspect", "diff", f"{path}@3", "@20", "--summary", "-o", "jsonl"]) == 1
    stores = [json.loads(line)["store"] for line in capsys.readouterr().out.splitlines()]
    assert set(stores) <= {"kv", "win", "ses"}
    assert run(["inspect", "diff", f"{path}@3", str(tmp_path / "absent")]) == 3
    assert run(["inspect", "diff", "@3", "@4"]) == 2


def test_history_of_an_unknown_key_is_a_negative_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "s", 3)
    assert run(["inspect", "history", str(tmp_path / "s"), "kv", "nobody"]) == 1
    assert "kv: no retained change of key nobody" in capsys.readouterr().err
    assert run(["inspect", "history", str(tmp_path / "s"), "nothing", "k1"]) == 2
    assert capsys.readouterr().out == ""


def test_log_is_filtered_by_store_op_version_and_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "s", 3)
    assert run(["inspect", "log", str(tmp_path / "s"), "--store", "win", "--op", "put", "-o", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(row["store"], row["op"]) for row in rows} == {("win", "put")}
    arguments = ["--from-version", "4", "--to-version", "6", "--commits", "-o", "jsonl"]
    assert run(["inspect", "log", str(tmp_path / "s"), *arguments]) == 0
    assert [json.loads(line)["version"] for line in capsys.readouterr().out.splitlines()] == [4, 5, 6]
    assert run(["inspect", "log", str(tmp_path / "s"), "--limit", "3", "-o", "raw"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_log_of_an_unknown_store_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("users").put("ann", 1)
        state.window("clicks", retention=9)
        state.commit()
    assert run(["inspect", "log", str(tmp_path / "s"), "--store", "clicks"]) == 0
    assert run(["inspect", "log", str(tmp_path / "s"), "--store", "user"]) == 2
    assert f"{tmp_path / 's'}: no store 'user' (known: users, clicks)" in capsys.readouterr().err
