"""Forks and pins on an object store: the store copies objects by itself; nothing that happens to the one state changes
the other; a kill at any request leaves the whole or nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from changelog.bucket import Bucket
from changelog.cloud_storage import CloudStorage
from changelog.errors import StorageUnreachableError
from changelog.storage import storage_at
from hybridstore.cli import run
from hybridstore.errors import HybridStoreError, StateDirectoryError, StatePoisonedError
from hybridstore.inspection.rebuild import OccupiedError
from hybridstore.rewinding import fork as forking
from hybridstore.rewinding import fork_bucket, makers
from hybridstore.state.generations import identity_at, levels_of_pin
from hybridstore.state.registry import forks_of
from recovery.errors import RestoreError
from tests.conftest import STRESS
from tests.state.test_fork import Killed
from tests.state.test_rewind import SMALL, rows, rows_of
from tests.tools.faults import kill_points
from tests.tools.hooks import check_stores
from tests.tools.s3_server import S3Server

KEPT = hs.CheckpointPolicy(every_commits=None, keep=3)
NEWEST = hs.CheckpointPolicy(every_commits=None, keep=1)


Place = Callable[[str], Bucket]


def build(where: Bucket, commits: int = 12, checkpoints: tuple[int, ...] = (5, 9)) -> list[dict[str, Any]]:
    """Fill a state; return its rows of each version. Version 1 is the claim of its owner."""
    seen: list[dict[str, Any]] = [{}, {}]
    with hs.open(where, checkpoints=KEPT, _tuning=SMALL) as state:
        table = state.key_value("rows")
        for number in range(2, commits + 1):
            table.put(f"k{number % 4}", f"{number} {'x' * 40}")
            assert state.commit() == number
            seen.append(rows(state))
            if number in checkpoints:
                state.checkpoint(wait=True)
    return seen


def objects(where: Bucket) -> dict[str, bytes]:
    """All objects of a state, without the notes of forks."""
    storage = storage_at(where)
    return {name: storage.get(name) for name in storage.list() if not name.startswith("forks/")}


def go_on(where: Bucket, version: int, seen: dict[str, Any], mark: str) -> None:
    """Commit, prune, and open again."""
    with hs.open(where, checkpoints=NEWEST, _tuning=SMALL) as state:
        assert rows(state) == seen
        assert state.version == version + 1  # the claim
        check_stores(state)
        for number in range(6):
            state.key_value("rows").put(mark, number)
            state.commit()
            state.checkpoint(wait=True)
        after = rows(state)
    with hs.open(where, at="newest") as state:
        assert rows(state) == after


@pytest.mark.parametrize("version", [5, 7, 9, 12])
def test_a_fork_is_the_version_and_both_go_on(place: Place, version: int) -> None:
    where, new = place("s"), place("f")
    seen = build(where)
    before = objects(where)
    assert hs.fork(where, new, at=version) == new
    assert objects(where) == before
    assert hs.inspect(new).version == version
    go_on(where, 12, seen[12], "old")
    go_on(new, version, seen[version], "new")
    storage_at(where).delete(storage_at(where).list())  # by whatever tools, of whomever
    with hs.open(new) as state:
        assert rows(state) == {**seen[version], "new": 5}
        check_stores(state)


def test_a_state_without_a_checkpoint_is_forked(place: Place) -> None:
    seen = build(place("s"), checkpoints=())
    hs.fork(place("s"), place("f"), at=8)
    go_on(place("f"), 8, seen[8], "new")


def test_no_byte_of_a_pack_comes_here_and_the_requests_are_counted(
    place: Place, server: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place("s")
    with hs.open(where, checkpoints=NEWEST) as state:
        for part in range(4):
            state.key_value("rows").put_many({f"key-{part}-{number}": "x" * 40 for number in range(5000)})
            state.commit()
            state.checkpoint(wait=True)
    packs = [name for name in storage_at(where).list("packs/")]
    read: list[str] = []
    for verb in ("get", "get_ranges"):
        real = getattr(CloudStorage, verb)

        def noted(self: CloudStorage, name: str, *args: Any, real: Any = real) -> Any:
            read.append(name)
            return real(self, name, *args)

        monkeypatch.setattr(CloudStorage, verb, noted)
    server.reset()
    _, taken = forking.begin(where, None, place("f"))
    assert (taken.shared, taken.copied, taken.size) == (len(packs) + 2, 0, 0)
    assert not [name for name in read if name.startswith("packs/")]
    assert server.count["put"] == taken.shared + 2  # and the note at each of the two
    # of a state of 20,000 records, 1.2 MB
    assert server.bytes_sent < 40_000
    assert server.count.total() - server.count["put"] <= 14


def test_the_command_says_what_was_copied(
    place: Place, server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = build(place("s"))
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    assert run(["fork", f"{place('s')!s}@7", str(place("f"))]) == 0
    assert "version 7 of " in (output := capsys.readouterr().out)
    assert "objects: 5 copied by the store, 0 from here (0 B)" in output
    assert run(["pin", f"{place('s')!s}@9", "nine"]) == 0
    assert run(["pin", str(place("s"))]) == 0
    assert "nine" in (output := capsys.readouterr().out)
    assert run(["inspect", "stat", str(place("s"))]) == 0
    assert "nine" in capsys.readouterr().out
    assert run(["fork", f"{place('s')!s}@nine", str(place("g"))]) == 0
    assert run(["unpin", str(place("s")), "nine"]) == 0
    with hs.open(place("g"), at="newest") as state:
        assert rows(state) == seen[9]
    assert hs.pins(place("s")) == []


def test_a_pin_stays_its_version_and_is_never_written(place: Place, tmp_path: Path) -> None:
    where = place("s")
    seen = build(where)
    pin = hs.pin(where, "seven", at=7)
    assert (pin.name, pin.version, pin.fault) == ("seven", 7, "")
    assert pin.size == sum(len(data) for name, data in objects(where).items() if name.startswith("pins/"))
    with pytest.raises(RestoreError, match="found a pin seven already"):
        hs.pin(where, "seven")
    go_on(where, 12, seen[12], "old")
    with pytest.raises(RestoreError, match="version 7 is not retained"):
        hs.fork(where, place("g"), at=7)
    with hs.open(pin.path, at="newest") as state:
        assert rows(state) == seen[7]
    with pytest.raises(StateDirectoryError, match="belongs to the pin seven, which is read and never written"):
        hs.open(pin.path)
    hs.fork(pin.path, place("f"))
    assert hs.pins(where) == [pin]
    assert hs.unpin(where, "seven") == pin.size
    assert (hs.pins(where), list(map(str, forks_of(where)))) == ([], [str(place("f"))])
    go_on(place("f"), 7, seen[7], "new")
    with pytest.raises(RestoreError, match="found no pin 'seven' "):
        hs.unpin(where, "seven")


def test_a_topology_of_several_shards_is_forked_and_pinned_at_one_commit(place: Place) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"{number % 7}", "ts": number} for number in range(600)]
    where = place("s")
    whole = [dict(row) for row in topology.run(source, where, shards=3, commit_rows=50)]
    with hs.open(where / "0", at="newest") as state:
        newest = state.version
    pin = hs.pin(where, "before", at=newest - 7)
    for new in (place("f"), place("g")):
        hs.fork(where, new, at=newest - 7 if new == place("f") else "before")
        again = [dict(row) for row in topology.run(source, new, shards=3, commit_rows=50, replay_last=False)]
        assert again == whole[len(whole) - len(again) :]
        assert 200 <= len(again) <= 400
        with topology.open(where, shards=3) as engine, topology.open(new, shards=3) as other:
            assert [rows_of(state) for state in engine.states] == [rows_of(state) for state in other.states]
    with pytest.raises(HybridStoreError, match="belongs to the pin before"):
        topology.open(pin.path, shards=3)


def kill_at(patch: pytest.MonkeyPatch, last: int) -> None:
    """Let the process be killed in place of its request number `last` that writes: no later one is made."""
    requests = itertools.count()

    def request(real: Any, *args: Any) -> Any:
        if next(requests) >= last:
            raise Killed
        return real(*args)

    patch.setattr("changelog.rounds.AT_ONCE", 1)
    for verb in ("create", "take", "delete"):
        real = getattr(CloudStorage, verb)
        patch.setattr(CloudStorage, verb, lambda *args, real=real: request(real, *args))


@pytest.mark.parametrize("at", [5, 7])
def test_whenever_it_is_killed_the_fork_is_there_as_a_whole_or_not_at_all(place: Place, at: int) -> None:
    seen = build(place("s"), 8, (5,))
    before = objects(place("s"))
    for last in itertools.count():
        new = place(f"f{last}")
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            try:
                hs.fork(place("s"), new, at=at)
                done = True
            except Killed:
                done = False
        assert objects(place("s")) == before
        try:
            with hs.open(new, at="newest") as state:
                assert rows(state) == seen[at]
        except HybridStoreError:
            assert not done
            if storage_at(new).list():
                with pytest.raises(HybridStoreError):
                    hs.open(new).close()  # and no job begins on what a kill has left
            hs.fork(place("s"), new, at=at)
        with pytest.raises(OccupiedError, match="found objects below it"):
            hs.fork(place("s"), new, at=at)
        with hs.open(new) as state:
            assert rows(state) == seen[at]
        if done:
            assert last >= 4
            return


def test_whenever_it_is_killed_the_pin_is_there_as_a_whole_or_not_at_all(place: Place) -> None:
    seen = build(place("s"), 8, (5,))
    for last in itertools.count():
        ends = []
        for command in (lambda: hs.pin(place("s"), "p", at=7), lambda: hs.unpin(place("s"), "p")):
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, last)
                try:
                    command()
                    ends.append(True)
                except Killed:
                    ends.append(False)
            (pin,) = hs.pins(place("s")) or [None]
            if pin is not None and not pin.fault:
                with hs.open(pin.path, at="newest") as state:
                    assert rows(state) == seen[7]
            elif not ends[0]:
                hs.pin(place("s"), "p", at=7)  # the same command again
        if hs.pins(place("s")):
            hs.unpin(place("s"), "p")
        assert not [name for name in storage_at(place("s")).list() if name.startswith("pins/")]
        with hs.open(place("s"), at="newest") as state:
            assert rows(state) == seen[8]
        if all(ends):
            assert last >= 5
            return


def test_the_owner_may_prune_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(place("s"), checkpoints=NEWEST, _tuning=SMALL) as state:
        real, calls = CloudStorage.take, itertools.count()

        def commits() -> None:
            for _ in range(6):
                state.key_value("rows").put("a", f"{state.version} {'z' * 900}")
                state.commit()
            state.checkpoint(wait=True)

        def take(*args: Any) -> Any:
            if next(calls) == 0:
                commits()
            return real(*args)

        commits()
        monkeypatch.setattr("changelog.rounds.AT_ONCE", 1)
        monkeypatch.setattr(CloudStorage, "take", take)
        hs.fork(place("s"), place("f"))
        with hs.open(place("f"), at="newest") as copy:
            assert copy.version == 13
            assert copy.key_value("rows")["a"].startswith("12 ")
        # a version that is pruned meanwhile is named, and nothing of the fork stays
        monkeypatch.setattr(CloudStorage, "take", lambda *args: (commits(), real(*args))[1])
        with pytest.raises(RestoreError, match=r"is not retained|which was there a moment ago"):
            hs.fork(place("s"), place("g"), at=state.version)
    assert not storage_at(place("g")).list()


def test_another_bucket_or_other_settings_get_copies(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = build(place("s"))
    monkeypatch.setattr(CloudStorage, "take", lambda *args: False)
    _, taken = forking.begin(place("s"), "9", place("f"))
    assert taken.shared == 0
    assert taken.size > 300
    go_on(place("f"), 9, seen[9], "new")


def test_a_copy_that_the_store_has_not_made_whole_is_no_fork(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    build(place("s"))

    def half(self: CloudStorage, name: str, source: CloudStorage, of: str) -> bool:
        return self.create(name, source.get(of)[:-1] if of.startswith("packs/") else source.get(of))

    monkeypatch.setattr(CloudStorage, "take", half)
    with pytest.raises(RestoreError, match=r"packs/.*: found \d+ bytes, expected the copy of"):
        hs.fork(place("s"), place("f"))
    assert not storage_at(place("f")).list()


def test_what_cannot_be_forked_is_refused_and_nothing_is_written(place: Place, tmp_path: Path) -> None:
    build(place("s"))
    storage_at(place("full")).create("file", b"1")
    names = storage_at(place("")).list()
    for new, at, error, sentence in (
        (place("f"), 13, RestoreError, "version 13"),
        (place("f"), "named", RestoreError, "found no pin 'named'"),
        (place("full"), None, OccupiedError, "found objects below it"),
        (place("s/inner"), None, RestoreError, "is inside of"),
        (tmp_path / "f", None, RestoreError, "expected a URL"),
    ):
        with pytest.raises(error, match=sentence):
            hs.fork(place("s"), new, at=at)
    with pytest.raises(HybridStoreError, match="found neither"):
        hs.fork(place("absent"), place("f"))
    with pytest.raises(RestoreError, match="found the name"):
        hs.pin(place("s"), "7")
    assert storage_at(place("")).list() == names
    assert not (tmp_path / "f").exists()
    assert makers.is_whole(storage_at(place("s")).list())


def test_an_erase_takes_pins_names_forks_and_sees_those_that_are_being_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place("s")
    build(where)
    pin = hs.pin(where, "seven", at=7)
    fork = hs.fork(where, place("f"), at="seven")

    def has(each: Bucket, key: str) -> bool:
        with hs.open(each, at="newest") as state:
            return key in state.key_value("rows")

    def ordered() -> None:
        with hs.open(where) as state, pytest.raises(HybridStoreError, match=r"erase: found pins.*seven"):
            state.key_value("rows").erase("k1")

    ordered()
    with pytest.raises(RestoreError, match=r"found forks that have the keys: .*/f "):
        hs.erase(where, "k1")
    done = hs.erase(where, "k1", forks="leave")
    assert list(map(str, done.holders)) == [str(fork)]
    assert len(done.places) == 2
    assert hs.prove(where, "k1").traces == []
    assert (has(where, "k1"), has(pin.path, "k1"), has(fork, "k1")) == (False, False, True)
    assert hs.erase(where, "k1", forks="erase").holders == []
    assert not has(fork, "k1")

    real = CloudStorage.take

    def erased(*args: Any) -> Any:
        """An erase begins while a pin is made: one of the two is refused."""
        monkeypatch.setattr(CloudStorage, "take", real)
        with pytest.raises(HybridStoreError):
            hs.erase(where, "k2", forks="leave")
        return real(*args)

    monkeypatch.setattr(CloudStorage, "take", erased)
    monkeypatch.setattr("changelog.rounds.AT_ONCE", 1)
    hs.pin(where, "more")
    hs.erase(where, "k2", forks="leave")
    assert hs.prove(where, "k2").traces == []


@pytest.mark.parametrize("running", [False, True])
def test_an_erase_leaves_no_byte_of_a_key_in_its_cache(place: Place, tmp_path: Path, running: bool) -> None:
    def cached() -> bool:
        return any(b"a long key" in file.read_bytes() for file in (tmp_path / "cache").rglob("*") if file.is_file())

    with hs.open(place("s")) as state:
        table = state.key_value("rows")
        table.put_many({"a long key": 1, "b": 2})
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(place("s")) as state:
        assert state.key_value("rows")["b"] == 2
        assert cached()
        if running:
            state.key_value("rows").erase("a long key")
            state.commit()
    if not running:
        hs.erase(place("s"), "a long key")
    assert not cached()
    assert hs.prove(place("s"), "a long key").traces == []


def test_whenever_an_erase_of_shards_is_killed_jobs_are_refused_until_the_command_has_ended(place: Place) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    for _ in topology.run([{"k": f"{n % 7}", "ts": n} for n in range(600)], place("s"), shards=2, commit_rows=300):
        pass
    stored = objects(place("s"))

    def content(where: Bucket) -> list[Any]:
        places = [where / str(shard) for shard in range(2)]
        return [rows_of(state) for each in places for state in [hs.open(each, at="newest")]]

    before, halves = content(place("s")), 0
    hs.erase(place("s"), "3")
    after = content(place("s"))
    assert before != after
    sentence = "an erase has begun here and has not ended, .*run the same `hybridstore erase` again"
    for last in kill_points(29):
        where = place(f"s{last}")
        for name, data in stored.items():
            assert storage_at(where).create(name, data)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            try:
                hs.erase(where, "3")
                done = True
            except (Killed, StatePoisonedError):
                done = False
        if "generations/erasing" in storage_at(where).list("generations/"):
            halves += 1
            for begin in (
                lambda where=where: topology.open(where, shards=2),
                lambda where=where: hs.open(where / "0"),
                lambda where=where: hs.open(where / "1"),
                lambda where=where: hs.rescale(where, shards=3),
            ):
                with pytest.raises(StateDirectoryError, match=sentence):
                    begin()
            with pytest.raises(RestoreError, match="an erase of other keys has begun"):
                hs.erase(where, "4")
        else:
            assert content(where) == (after if done else before)
        if not done:
            hs.erase(where, "3")
        assert not [name for name in storage_at(where).list() if name.endswith("erasing")]
        with topology.open(where, shards=2) as engine:
            assert [rows_of(state) for state in engine.states] == after
        if done:
            assert halves > (20 if STRESS else 2)
            return


def test_the_root_of_a_bucket_is_no_pin(server: S3Server) -> None:
    assert levels_of_pin(storage_at(server.bucket(""))) is None
    assert levels_of_pin(storage_at(server.bucket("pins/state"))) is None


@pytest.mark.parametrize("url", ["s3://pins", "s3://pins/x", "s3://pins/a/b", "s3://bucket/pins", "s3://123", "s3://0"])
def test_the_name_of_a_bucket_is_that_of_no_folder(server: S3Server, url: str) -> None:
    storage = storage_at(Bucket(url, **server.options))
    assert (levels_of_pin(storage), identity_at(storage)) == (None, None)


@pytest.mark.parametrize("kind", ["damaged", "out of reach"])
def test_what_a_fork_has_become_is_never_removed(place: Place, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    build(place("s"))
    hs.fork(place("s"), place("f"))
    pin = hs.pin(place("s"), "p")
    if kind == "damaged":
        for each in (place("f"), pin.path):
            storage_at(each).delete(storage_at(each).list("packs/")[:1])
    before = storage_at(place("")).list()
    if kind == "out of reach":

        def fails(*_: Any, **__: Any) -> Any:
            raise StorageUnreachableError("for a moment")

        monkeypatch.setattr(fork_bucket, "open_view", fails)
    with pytest.raises(HybridStoreError):
        hs.fork(place("s"), place("f"), at=7)
    with pytest.raises(HybridStoreError):
        hs.pin(place("s"), "p", at=7)
    assert storage_at(place("")).list() == before


def test_a_state_whose_first_checkpoint_is_made_meanwhile_is_forked_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.open(place("s"), checkpoints=NEWEST, _tuning=SMALL) as state:
        for number in range(6):
            state.key_value("rows").put("a", number)
            state.commit()
        real, calls = fork_bucket.BucketSite.begin, itertools.count()

        def begin(*args: Any) -> None:
            if next(calls) == 0:  # the view has commits only, and they are pruned
                for number in (6, 7):
                    state.checkpoint(wait=True)
                    state.key_value("rows").put("a", number)
                    state.commit()
                state.checkpoint(wait=True)
            real(*args)

        monkeypatch.setattr(fork_bucket.BucketSite, "begin", begin)
        hs.fork(place("s"), place("f"))
    with hs.open(place("f"), at="newest") as state:
        assert rows(state) == {"a": 7}


def test_an_erase_that_cannot_be_done_leaves_no_note(place: Place) -> None:
    for last in range(1, 5):
        where = place(f"s{last}")
        build(where, 8, (5,))
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            with pytest.raises(Killed):
                hs.pin(where, "p", at=7)
        before = objects(where)
        with pytest.raises(RestoreError, match=r"pins/p: is being made, or its maker was killed .*unpin"):
            hs.erase(where, "k1")
        assert objects(where) == before
        hs.unpin(where, "p")
        hs.erase(where, "k1")
        assert hs.prove(where, "k1").traces == []
    storage = storage_at(where)
    name = storage.list("changelog/")[-1]
    data = storage.get(name)
    storage.delete([name])
    storage.create(name, data[:-3] + b"xxx")
    before = objects(where)
    with pytest.raises(HybridStoreError, match=r"changelog/.*repair it first"):
        hs.erase(where, "k2")
    assert objects(where) == before


def test_whoever_makes_a_pin_looks_for_an_erase_before_it_is_a_state(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(place("s"), 8, (5,))
    real = fork_bucket.BucketOrigin.check_no_erase

    def looked(self: fork_bucket.BucketOrigin, parts: Any) -> None:
        assert not makers.is_whole(storage_at(place("s") / "pins" / "p").list())
        storage_at(place("s")).create("erasing", b"{}")
        real(self, parts)

    monkeypatch.setattr(fork_bucket.BucketOrigin, "check_no_erase", looked)
    with pytest.raises(RestoreError, match="an erase is at work"):
        hs.pin(place("s"), "p")
    assert hs.pins(place("s")) == []


def test_no_topology_begins_where_the_maker_of_its_fork_was_killed(place: Place) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"{number % 7}", "ts": number} for number in range(300)]
    assert list(topology.run(source, place("s"), shards=2, commit_rows=50))
    with topology.open(place("s"), shards=2) as engine:
        contents = [rows_of(state) for state in engine.states]
    for last in itertools.count(1, 3):
        new, done = place(f"f{last}"), False
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            try:
                hs.fork(place("s"), new)
                done = True
            except Killed:
                with pytest.raises(HybridStoreError, match=r"maker was killed|without generations"):
                    topology.open(new, shards=2)
        if done:
            break
        hs.fork(place("s"), new)
        with topology.open(new, shards=2) as engine:
            assert [rows_of(state) for state in engine.states] == contents
    assert last > 10


def test_an_erase_takes_pins_and_forks_of_the_version_of_a_checkpoint(place: Place) -> None:
    build(place("s"))
    pin = hs.pin(place("s"), "nine", at=9)
    fork = hs.fork(place("s"), place("f"), at=9)
    assert storage_at(pin.path).list("changelog/") == [f"changelog/{9:020d}.log"]
    assert hs.erase(place("s"), "k1", forks="erase").holders == []
    for each in (place("s"), pin.path, fork):
        with hs.open(each, at="newest") as state:
            assert "k1" not in state.key_value("rows")
    assert hs.prove(place("s"), "k1").traces == hs.prove(fork, "k1").traces == []
