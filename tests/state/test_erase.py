"""`hybridstore erase`: no byte of a key is in any file, all else is as it was, and a kill leaves no half."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import AppendFile, Files
from hybridstore.cli import run
from hybridstore.errors import StateDirectoryError, StateLockedError, StatePoisonedError
from hybridstore.state import in_place
from hybridstore.state.directory import State
from hybridstore.topology.results import ResultTable
from hybridstore.topology.run_state import RESULTS, Keeping, RunState, kept
from recovery.errors import RestoreError
from tests.state.test_fork import Killed
from tests.state.test_rewind import SMALL
from tests.tools.faults import kill_points
from tests.tools.hooks import check_stores
from tests.tools.ways import two_in_a_piece

KEEP = hs.CheckpointPolicy(every_commits=None, keep=2)


def secrets(path: Path) -> list[Path]:
    """The files with the text that all values of the key have, and those of no other key."""
    return [each for each in path.rglob("*") if each.is_file() and b"secret-ann." in each.read_bytes()]


def content(state: hs.State) -> dict[str, Any]:
    return {
        "users": dict(state.key_value("users").all()),
        "clicks": dict(state.window("clicks", retention="1 hour").all()),
        "visits": dict(state.session("visits", retention="1 hour").all()),
        "rates": dict(state.sliding("rates", size="1 minute", aggregator=hs.Collect()).all()),
    }


def without(seen: dict[str, Any], key: str = "key-ann") -> dict[str, Any]:
    def of(each: Any) -> Any:
        return each[0] if type(each) is tuple else each

    return {name: {each: value for each, value in rows.items() if of(each) != key} for name, rows in seen.items()}


def fill(path: Path, seed: int, commits: int = 14) -> dict[str, Any]:
    """Random changes of all keys, with checkpoints; return what the state has."""
    draw = random.Random(seed)
    names = [f"key-{name}" for name in ("ann", "anna", "bob", "eve", *map(str, range(20)))]
    with hs.open(path, checkpoints=KEEP, _tuning=SMALL) as state:
        content(state)
        for number in range(commits):
            ts = 1_000_000 + number * 10_000
            for key in ["key-ann", *draw.sample(names, 8)]:
                value = f"secret{key[3:]} {number} {'x' * draw.randrange(60)}" if key != "key-ann" else "secret-ann."
                state.key_value("users")[key] = value
                state.window("clicks", retention="1 hour").put(key, value, ts)
                state.session("visits", retention="1 hour").put(key, value, ts, ts + 5)
                state.sliding("rates", size="1 minute", aggregator=hs.Collect()).add(key, value, ts)
            if not draw.randrange(4):
                state.key_value("users").delete("key-ann")
            state.commit()
            if not draw.randrange(3):
                state.checkpoint(wait=True)
        return content(state)


@pytest.mark.parametrize("seed", range(6))
def test_no_byte_of_a_key_remains_and_all_else_is_as_it_was(tmp_path: Path, seed: int) -> None:
    seen = fill(tmp_path, seed)
    assert secrets(tmp_path)
    assert hs.prove(tmp_path, "key-ann").traces
    done = hs.erase(tmp_path, "key-ann")
    assert done.records > 0
    # the bytes of key-anna begin with those of the key, and it is another one
    assert not secrets(tmp_path)
    assert all("the bytes of a key" in trace for trace in hs.prove(tmp_path, "key-ann").traces)
    assert run(["inspect", "verify", str(tmp_path), "--full"]) == 0
    with hs.open(tmp_path, checkpoints=KEEP, _tuning=SMALL) as state:
        assert content(state) == without(seen)
        check_stores(state)
        (entry,) = state.settings["erasures"]
        assert (entry["keys"], entry["prefix"]) == (1, False)
        version = state.version
        state.key_value("users")["key-ann"] = "again"
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path) as state:
        assert (state.version, state.key_value("users")["key-ann"]) == (version + 1, "again")
    assert run(["inspect", "verify", str(tmp_path), "--full"]) == 0


def test_a_prefix_and_keys_of_other_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = fill(tmp_path / "s", 7)
    with hs.open(tmp_path / "s") as state:
        state.key_value("numbers").put_many({5: "five", 6: "six"})
        state.key_value("pairs").put_many({("key-ann", 1): "a", ("key-ann", 2): "b", ("bob", 1): "c"})
        state.key_value("floats").put_many({-0.0: "zero", 1.5: "more"})
        state.commit()
    assert run(["erase", str(tmp_path / "s"), 'json:["key-ann"]', "--prefix", "--prove"]) == 0
    assert "2 records erased in 1 place" in capsys.readouterr().out
    assert run(["erase", str(tmp_path / "s"), "key-ann", "--prefix", "--prove"]) == 0
    out = capsys.readouterr().out
    assert "bytes: the keys are in none" in out
    assert "found: " not in out
    assert run(["erase", str(tmp_path / "s"), "int:5", "float:0.0", 'json:["bob", 1]', "--prove"]) == 0
    assert "3 records erased in 1 place" in capsys.readouterr().out
    assert not secrets(tmp_path / "s")
    with hs.open(tmp_path / "s") as state:
        assert content(state) == without(without(seen), "key-anna")
        stores = [dict(state.key_value(name).all()) for name in ("numbers", "pairs", "floats")]
        assert stores == [{6: "six"}, {}, {1.5: "more"}]
        assert [entry["prefix"] for entry in state.settings["erasures"]] == [True, True, False]


def kill_from(patch: pytest.MonkeyPatch, last: int) -> None:
    """The process is killed in place of its step number `last` that changes a file or a name: no later one is done."""
    steps = itertools.count()

    def step(real: Any, *args: Any) -> Any:
        if next(steps) >= last:
            raise Killed
        return real(*args)

    changes = [(Files, "create"), (Files, "mkdir"), (Files, "link"), (Files, "sync_directory"), (Files, "remove")]
    parts = [(AppendFile, "write"), (AppendFile, "sync"), (AppendFile, "truncate")]
    for owner, name in [*changes, *parts, (Path, "rename"), (Path, "replace")]:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, real=real: step(real, *args))


def test_whenever_it_is_killed_the_key_is_erased_or_the_state_says_so(tmp_path: Path) -> None:
    seen = fill(tmp_path / "origin", 3, 6)
    hs.pin(tmp_path / "origin", "good")
    halves = 0
    for last in kill_points(5):
        path = tmp_path / f"s{last}"
        shutil.copytree(tmp_path / "origin", path)
        with pytest.MonkeyPatch.context() as patch:
            kill_from(patch, last)
            try:
                hs.erase(path, "key-ann")
                done = True
            except (Killed, StatePoisonedError):
                done = False
        begun = [each.parent for each in path.rglob("erasing")]
        if done:
            assert not begun
        elif path in begun:
            halves += 1
            with pytest.raises(StateDirectoryError, match="an erase has begun here and has not ended"):
                hs.open(path)
            assert any("an erase has begun" in trace for trace in hs.prove(path, "key-ann").traces)
        else:
            # nothing was written, or all was done but for the notes
            with hs.open(path, at="newest") as state:
                rows = content(state)
            assert rows in (seen, without(seen))
            assert bool(secrets(path)) == (rows == seen)
        if not done:
            hs.erase(path, "key-ann")
        assert not secrets(path)
        assert not list(path.rglob("erasing"))
        with hs.open(path) as state:
            assert content(state) == without(seen)
        assert run(["inspect", "verify", str(path / "pins" / "good"), "--full"]) == 0
        shutil.rmtree(path)
        if done:
            assert halves > last // 10 > 3
            return


def test_pins_are_part_of_a_state_and_forks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, first, second = tmp_path / "s", tmp_path / "f", tmp_path / "g"
    seen = fill(path, 5)
    hs.pin(path, "good")
    hs.fork(path, first, at="good")
    hs.fork(first, second)
    assert run(["erase", str(path), "key-ann"]) == 1
    assert f"found forks that have the keys: {first}, {second} (erase there, too: --forks" in capsys.readouterr().err
    assert secrets(path)
    shutil.rmtree(first)  # the fork of a fork is known to the first origin
    assert run(["erase", str(path), "key-ann", "--leave-forks"]) == 0
    assert f"still has the keys: {second}\n" in capsys.readouterr().out
    assert not secrets(path)
    with hs.open(path / "pins" / "good", at="newest") as state:
        assert content(state) == without(seen)
    with hs.open(second) as state:
        assert content(state) == seen
    assert run(["erase", str(path), "key-ann", "--forks"]) == 0
    with hs.open(second) as state:
        assert content(state) == without(seen)
    assert not secrets(tmp_path)
    capsys.readouterr()
    # nobody has the key any more, so nobody is named
    assert run(["erase", str(path), "key-ann"]) == 0
    assert "still has" not in capsys.readouterr().out
    shutil.rmtree(second)
    assert run(["erase", str(path), "key-ann"]) == 0
    assert [each.name for each in (path / "forks").iterdir()] == []


@pytest.mark.usefixtures(two_in_a_piece.__name__)
def test_shards_kept_results_and_the_run_that_goes_on(tmp_path: Path) -> None:
    source = [{"k": f"key-{number % 7}", "ts": number} for number in range(900)]
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    whole = [dict(row) for row in topology.run(source, tmp_path / "w", shards=3, commit_rows=50)]
    begun = [dict(row) for row in topology.run(source[:450], tmp_path / "s", shards=3, commit_rows=50)]
    done = hs.erase(tmp_path / "s", "key-3")
    assert len(done.places) == 3
    assert not [each for each in (tmp_path / "s").rglob("*") if each.is_file() and b"key-3" in each.read_bytes()]
    assert not hs.prove(tmp_path / "s", "key-3").traces
    rest = [dict(row) for row in topology.run(source, tmp_path / "s", shards=3, commit_rows=50)]
    others = [row for row in whole if row["k"] != "key-3"]
    last = {(row["k"], row["window_start"]): row["n"] for row in [*begun, *rest] if row["k"] != "key-3"}
    assert last == {(row["k"], row["window_start"]): row["n"] for row in others}
    assert all(row["window_start"] >= 400 for row in rest if row["k"] == "key-3")
    for shard in range(3):
        assert run(["inspect", "verify", str(tmp_path / "s" / str(shard)), "--full"]) == 0


def remind(row: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
    stores["seen"][row["k"]] = row["ts"]
    stores.timers.set(row["ts"] + 1000)
    return [{"k": row["k"], "seen": row["ts"]}]


def on_timer(timer: hs.Timer, stores: Any) -> list[dict[str, Any]]:
    return [{"k": timer.key, "seen": -1}]


COUNTED = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())


@pytest.mark.parametrize(
    "topology",
    [
        COUNTED.late("too_late"),
        COUNTED.hold("1 minute"),
        hs.stream(key="k", timestamp="ts").process(remind, None, [hs.key_value_store("seen")], on_timer=on_timer),
    ],
)
def test_late_rows_held_results_and_timers_of_a_key(tmp_path: Path, topology: Any) -> None:
    source = [{"k": f"key-{number % 7}", "ts": 1000 + number - 500 * (number % 5 == 0)} for number in range(450)]
    for _ in topology.run(source[:400], tmp_path, commit_rows=50):
        pass
    assert bytes_left(tmp_path, b"key-3")
    hs.erase(tmp_path, "key-3")
    assert not bytes_left(tmp_path, b"key-3")
    assert bytes_left(tmp_path, b"key-4")
    source.append({"k": "key-0", "ts": 100_000})
    rows = [dict(row) for row in topology.run(source, tmp_path, commit_rows=50)]
    assert {"key-3", "key-4"} <= {row["k"] for row in rows}


def test_only_packs_with_the_key_are_written_anew(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        users = state.key_value("users")
        users["key-ann"] = "secret-ann."
        state.commit()
        state.checkpoint(wait=True)
        draw = random.Random(1)
        users.put_many({f"other-{number:06d}": draw.randbytes(100) for number in range(60_000)})
        state.commit()
        state.checkpoint(wait=True)
    packs = {each.name for each in (tmp_path / "packs").iterdir()}
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.key_value("users")["key-zoe"] = "last"
        state.commit()
        state.checkpoint(wait=True)
    before = sum(each.stat().st_size for each in (tmp_path / "packs").iterdir())
    done = hs.erase(tmp_path, "key-zoe")
    assert done.records == 1
    assert done.written < before / 4
    assert packs & {each.name for each in (tmp_path / "packs").iterdir()}


def test_a_directory_with_a_key_in_a_pack_without_its_records(tmp_path: Path) -> None:
    draw = random.Random(2)
    names = [f"other-{number:06d}" for number in range(30_000)]
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        users = state.key_value("users")
        users["a-key-ann"] = "secret-ann."
        users.put_many({name: draw.randbytes(100) for name in names})
        state.commit()
        state.checkpoint(wait=True)
    first = {*(tmp_path / "packs").iterdir()}
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.key_value("users").put_many({f"p{name}": draw.randbytes(100) for name in names[15_000:]})
        state.commit()
        state.checkpoint(wait=True)
    later = {*(tmp_path / "packs").iterdir()} - first
    assert all(b"a-key-ann" in each.read_bytes() for each in later)
    assert not any(b"secret-ann." in each.read_bytes() for each in later)
    hs.erase(tmp_path, "a-key-ann")
    assert not bytes_left(tmp_path, b"a-key-ann")


def test_what_cannot_be_erased_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    fill(path, 1, 3)
    with hs.open(path) as state:
        with pytest.raises(StateLockedError):
            hs.erase(path, "key-ann")
        state.key_value("users")["more"] = 1
        state.commit()
    assert not list(path.rglob("erasing"))
    (tmp_path / "q" / "offsets").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for place, message in (
        (str(tmp_path / "q"), "found no state of an operator"),
        (str(tmp_path / "empty"), "found no state"),
    ):
        assert run(["erase", place, "key-ann"]) == 1
        assert message in capsys.readouterr().err
    assert run(["erase", str(path), "int:5", "--prefix"]) == 1
    assert run(["erase", str(path), "key-ann", "--forks", "--leave-forks"]) == 2
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    list(topology.run([{"k": f"{number % 7}", "ts": number} for number in range(90)], tmp_path / "t", shards=2))
    hs.rescale(tmp_path / "t", shards=3)
    with pytest.raises(RestoreError, match="before a rescale, which may have the keys: 0, 1"):
        hs.erase(tmp_path / "t", "3")


def bytes_left(path: Path, text: bytes) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file() and text in each.read_bytes()]


def test_versions_that_a_rewind_has_taken_back_are_erased(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        users = state.key_value("users")
        users["key-bob"] = 1
        state.commit()
        state.checkpoint(wait=True)
        for number in range(5):
            users["key-ann"] = number
            state.key_value("numbers")[123_456_789] = number
            state.commit()
        state.checkpoint(wait=True)
    assert run(["rewind", str(tmp_path), "--to", "1", "--write"]) == 0
    assert bytes_left(tmp_path / "packs", b"key-ann")
    assert any("in a pack of no checkpoint" in trace for trace in hs.prove(tmp_path, 123_456_789).traces)
    hs.erase(tmp_path, "key-ann", 123_456_789)
    assert not bytes_left(tmp_path, b"key-ann")
    assert not hs.prove(tmp_path, 123_456_789).traces
    with hs.open(tmp_path) as state:
        assert dict(state.key_value("users").all()) == {"key-bob": 1}


def test_rows_of_a_join_without_a_key_are_of_no_key(tmp_path: Path) -> None:
    """Their store has the number of the side in place of a key, which a key of rows may equal."""
    sides = [hs.stream(name=name, key="k", timestamp="ts", columns=[]) for name in ("left", "right")]
    join = sides[0].join(sides[1], within="1 hour", how="full", prefixes={"right": "right_"})
    rows = [{"k": 0, "ts": 10}, {"k": 1, "ts": 20}]
    for _ in join.run({"left": rows, "right": rows}, tmp_path):
        pass
    with hs.open(tmp_path) as state:  # as a row waits by a watermark
        for side, name in enumerate(("left", "right")):
            state.stores[f"{name} without key"].put(side, [None, ["value"]], 40)
        state.commit()

    def keys() -> dict[str, list[Any]]:
        view = hs.inspect(tmp_path)
        return {name: [row.key for row in view[name]] for name in view if name in names}

    names = ("left", "right", "left without key", "right without key")
    assert keys() == {"left": [0, 1], "right": [0, 1], "left without key": [0], "right without key": [1]}
    hs.erase(tmp_path, 0, 1)
    assert keys() == {"left": [], "right": [], "left without key": [0], "right without key": [1]}


def test_a_key_of_a_store_that_was_dropped_is_erased(tmp_path: Path) -> None:
    """Its blocks stay in a pack with blocks of other stores."""
    draw = random.Random(3)
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.key_value("users").put_many({f"{number:06d}": draw.randbytes(100) for number in range(30_000)})
        state.key_value("former")["key-ann"] = "secret-ann."
        state.commit()
        state.checkpoint(wait=True)
        state.group.drop("former")
        state.commit()
        state.checkpoint(wait=True)
    assert secrets(tmp_path / "packs")
    hs.erase(tmp_path, "key-ann")
    assert not secrets(tmp_path)
    assert not hs.prove(tmp_path, "key-ann").traces


def test_many_keys_with_a_prefix_are_few_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order says which keys, and does not list them: what is logged does not grow with the keys."""
    orders: list[Any] = []
    real = State.order_erase
    monkeypatch.setattr(
        State, "order_erase", lambda state, new, **noted: (orders.extend(new), real(state, new, **noted))
    )
    with hs.open(tmp_path) as state:
        state.key_value("users").put_many({f"key-{number}": number for number in range(1000)})
        state.commit()
    assert hs.erase(tmp_path, "key-1", prefix=True).records == 111
    assert len(orders) == 2


def test_keys_of_one_part_and_of_other_types_of_parts(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("tuples").put_many({("ann",): 1, ("bob",): 2, ("eve",): 3})
        state.key_value("numbers").put_many({("n", 1): 1})
        state.key_value("flags").put_many({("n", True): 1})
        state.commit()
    assert hs.erase(tmp_path, ("ann",)).records == 1
    assert hs.erase(tmp_path, "bob").records == 1
    assert hs.erase(tmp_path, ("eve",), prefix=True).records == 1
    assert hs.erase(tmp_path, ("n", True)).records == 1
    with hs.open(tmp_path) as state:
        assert list(state.key_value("numbers")) == [("n", 1)]
        version = state.version
    for keys, prefix in (((), False), (("",), True), (((),), True), ((5,), True)):
        with pytest.raises(RestoreError, match="erase: found "):
            hs.erase(tmp_path, *keys, prefix=prefix)
    with hs.open(tmp_path) as state:
        assert state.version == version


@pytest.mark.parametrize("key", ["k", ["k", "n"]])
def test_a_prefix_where_null_is_a_key(tmp_path: Path, key: str | list[str]) -> None:
    names = ["key-ann", 'key-a"b', "key-bob", None]
    source = [{"k": names[number % 4], "n": number % 3, "ts": number} for number in range(400)]
    stream = hs.stream(key=key, timestamp="ts", null_keys="group")
    topology = stream.windowed_by(hs.TumblingWindows(100)).aggregate(n_rows=hs.Count())
    for _ in topology.run(source, tmp_path, commit_rows=50, shards=2):
        pass
    prefix: Any = "key-a" if key == "k" else ("key-ann",)
    done = hs.erase(tmp_path, prefix, prefix=True)
    assert done.records == (2 if key == "k" else 3)
    assert not bytes_left(tmp_path, b"key-ann")
    assert bytes_left(tmp_path, b"key-bob")
    if key == "k":
        assert not bytes_left(tmp_path, b"key-a")
    assert hs.erase(tmp_path, *([None] if key == "k" else [(None, 0), (None, 1), (None, 2)])).records > 0


def test_forks_of_pins_and_of_shards_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    fill(path, 4, 4)
    hs.pin(path, "good")
    with pytest.raises(RestoreError, match="is inside of"):
        hs.fork(path / "pins" / "good", path / "f")
    hs.fork(path / "pins" / "good", tmp_path / "f")
    hs.unpin(path, "good")
    with pytest.raises(RestoreError, match=f"found forks that have the keys: {tmp_path / 'f'} "):
        hs.erase(path, "key-ann")
    assert hs.erase(path, "key-ann", forks="leave").holders == [tmp_path / "f"]
    source = [{"k": f"key-{number % 7}", "ts": number} for number in range(300)]
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    state = tmp_path / "t"
    for _ in topology.run(source, state, shards=2, commit_rows=50):
        pass
    hs.pin(state, "whole")
    hs.pin(state / "0", "one")
    hs.fork(state / "1", tmp_path / "one-shard")
    for shard, words in (
        ("0", "is a shard"),
        ("pins/whole", "belongs to the pin"),
        ("0/pins/one", "belongs to the pin"),
    ):
        with pytest.raises(RestoreError, match=words):
            hs.erase(state / shard, "key-1")
    every = [f"key-{number}" for number in range(7)]
    with pytest.raises(RestoreError, match="one-shard"):
        hs.erase(state, *every)
    assert len(hs.erase(state, *every, forks="erase").places) == 6
    assert not bytes_left(state, b"key-")
    assert not bytes_left(tmp_path / "one-shard", b"key-")


def test_a_fork_may_have_a_name_like_that_of_an_unfinished_one(tmp_path: Path) -> None:
    fill(tmp_path / "s", 4, 3)
    hs.fork(tmp_path / "s", tmp_path / ".mine.fork")
    assert hs.erase(tmp_path / "s", "key-ann", forks="leave").holders == [tmp_path / ".mine.fork"]
    assert secrets(tmp_path / ".mine.fork")


def test_another_erase_is_refused_until_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, 6, 4)

    def killed(*args: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(in_place, "write_erased", killed)
        with pytest.raises(Killed):
            hs.erase(tmp_path, "key-ann")
    assert b"ann" not in (tmp_path / "erasing").read_bytes()
    assert run(["inspect", "verify", str(tmp_path)]) == 1
    assert "an erase has begun and has not ended" in capsys.readouterr().out
    for keys, prefix in ((["key-bob"], False), (["key-ann"], True), (["key-ann", "key-bob"], False)):
        with pytest.raises(RestoreError, match="an erase of other keys has begun here and has not ended"):
            hs.erase(tmp_path, *keys, prefix=prefix)
    hs.erase(tmp_path, "key-ann")
    assert not secrets(tmp_path)
    hs.erase(tmp_path, "key-bob")


def test_kept_results_in_a_pack_of_other_blocks(tmp_path: Path) -> None:
    """The key's columns are apart in kept results, and the pack with older ones is not written anew for others."""
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.set("topology", {"key": ["a", "b"], "process": None})
        rows = [["part-ann", "part-bob"], ["other-ann", "other-bob"], [1, 2]]
        RunState(commit=1).set_in(state)
        Keeping(state, 1, 0).keep(ResultTable(["a", "b", "n"], None, rows))
        draw = random.Random(1)
        state.key_value("users").put_many({f"{number:06d}": draw.randbytes(100) for number in range(30_000)})
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path, checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1)) as state:
        RunState(commit=2).set_in(state)
        Keeping(state, 2, 2).keep(ResultTable(["a", "b", "n"], None, [["part-bob"], ["other-bob"], [3]]))
        state.commit()
        state.checkpoint(wait=True)
    assert bytes_left(tmp_path / "packs", b"part-ann")
    hs.erase(tmp_path, ("part-ann", "other-ann"))
    assert not bytes_left(tmp_path, b"part-ann") + bytes_left(tmp_path, b"other-ann")
    assert bytes_left(tmp_path, b"part-bob")


def test_shards_are_merged_after_an_erase(tmp_path: Path) -> None:
    source = [{"k": f"key-{number % 7}", "ts": number} for number in range(300)]
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    for _ in topology.run(source, tmp_path, shards=2, commit_rows=50):
        pass
    hs.erase(tmp_path, "key-1")
    with hs.open(tmp_path / "0") as shard:  # as after an erase that was killed between two shards
        entries = [*shard.settings["erasures"], {"wall_ms": 5, "keys": 1, "prefix": False}]
        shard.set("erasures", entries)
        shard.commit()
    hs.rescale(tmp_path, shards=1)
    assert hs.inspect(tmp_path).settings["erasures"] == [entries[1], entries[0]]


def test_whole_numbers_in_the_columns_of_kept_results_are_erased(tmp_path: Path) -> None:
    small, large = 123_456_789, 12_345_678_901_234
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.set("topology", {"key": ["a"], "process": None})
        state.key_value(RESULTS)
        draw = random.Random(2)
        state.key_value("users").put_many({f"{number:06d}": draw.randbytes(100) for number in range(30_000)})
        for commit, (key, other) in enumerate([(small, 7), (large, 8)], 1):
            RunState(commit=commit).set_in(state)
            Keeping(state, commit, 0).keep(ResultTable(["a", "n"], None, [[key, other], [1, 2]]))
            state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path, checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1)) as state:
        RunState(commit=3).set_in(state)
        Keeping(state, 3, 3).keep(ResultTable(["a", "n"], None, [[large, 9], [3, 4]]))
        state.commit()
        state.checkpoint(wait=True)
    bytes_of = [small.to_bytes(4, "little"), large.to_bytes(8, "little")]
    assert all(bytes_left(tmp_path / "packs", each) for each in bytes_of)
    hs.erase(tmp_path, small, large)
    assert not any(bytes_left(tmp_path, each) for each in bytes_of)
    with hs.open(tmp_path) as state:
        assert [table.columns for table in kept(state, 3)] == [[[9], [4]]]


def test_whole_numbers_that_no_store_has_as_keys_are_erased_and_proved(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        RunState(commit=1).set_in(state)
        Keeping(state, 1, 0).keep(ResultTable(["a"], None, [[1, -(2**63)]]))
        state.commit()
    for key in (2**63, 2**64 - 1, 2**70, -(2**63), (1, 2**63)):
        assert hs.erase(tmp_path, key).records == 0
        assert hs.prove(tmp_path, key).traces == []
