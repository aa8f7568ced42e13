"""`hybridstore fork`: another state begins at a version, by reference, and neither harms the other, whatever is done to
either of them, and whenever the command is killed.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog import files
from changelog.files import AppendFile, Files
from changelog.storage import LocalStorage
from hybridstore.cli import run
from hybridstore.inspection.rebuild import OccupiedError
from hybridstore.rewinding import fork as forking
from hybridstore.state import registry
from hybridstore.state.opening import Tuning
from tests.conftest import STRESS
from tests.state.test_rewind import KEPT, SMALL, build_state, rewind, rows, rows_of
from tests.tools.checkpoints import flip
from tests.tools.hooks import check_stores, crash


def fork(source: str | Path, target: Path) -> int:
    return run(["fork", str(source), str(target)])


def contents(path: Path) -> dict[Path, bytes]:
    """The files below a directory, without the notes of forks."""
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file() and each.parent.name != "forks"}


@pytest.mark.parametrize("version", [4, 5, 7, 8, 9, 12])
def test_a_fork_is_the_version_and_both_go_on(tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]) -> None:
    seen = build_state(tmp_path / "s")
    files_before = contents(tmp_path / "s")
    assert fork(f"{tmp_path / 's'}@{version}", tmp_path / "f") == 0
    assert f"version {version} of " in capsys.readouterr().out
    assert contents(tmp_path / "s") == files_before
    assert run(["inspect", "verify", str(tmp_path / "f"), "--full"]) == 0
    keep = hs.CheckpointPolicy(every_commits=None, keep=1)
    for path, first, mark in ((tmp_path / "s", 12, "old"), (tmp_path / "f", version, "new")):
        with hs.open(path, checkpoints=keep, _tuning=SMALL) as state:
            assert (state.version, rows(state)) == (first, seen[first])
            check_stores(state)
            for number in range(6):
                state.key_value("rows").put(mark, number)
                state.commit()
                state.checkpoint(wait=True)
            after = rows(state)
        with hs.open(path) as state:
            assert (state.version, rows(state)) == (first + 6, after)
        assert run(["inspect", "verify", str(path), "--full"]) == 0
    shutil.rmtree(tmp_path / "s")
    with hs.open(tmp_path / "f") as state:
        assert rows(state) == {**seen[version], "new": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_files_are_named_a_second_time_and_only_the_last_segment_is_copied(tmp_path: Path) -> None:
    build_state(tmp_path / "s")
    assert fork(tmp_path / "s", tmp_path / "f") == 0
    shared = {path.relative_to(tmp_path / "f") for path in contents(tmp_path / "f") if path.stat().st_nlink == 2}
    parts, taken = forking.begin(tmp_path / "s", "12", tmp_path / "g")
    (part,) = parts
    assert shared == {Path(name) for name in part.shared}
    assert {name.partition("/")[0] for name in part.shared} == {"packs", "checkpoints", "changelog"}
    assert (taken.shared, taken.copied) == (len(part.shared), 1)
    assert taken.size == part.end <= (tmp_path / "s" / part.segment).stat().st_size < 3000


@pytest.mark.parametrize("seed", range(12 if STRESS else 3))
def test_nothing_that_is_done_to_a_state_changes_its_forks_or_its_origin(tmp_path: Path, seed: int) -> None:
    """Random commits, checkpoints, kills, rewinds, forks and removals in a family of states, each with a model."""
    draw = random.Random(seed)
    family: dict[Path, list[dict[str, Any]]] = {tmp_path / "0": build_state(tmp_path / "0", 6, (3,))}
    for number in range(1, 40):
        path = draw.choice(list(family))
        seen = family[path]
        what = draw.choice(["write", "write", "write", "rewind", "fork", "fork", "remove"])
        if what == "write":
            keep = hs.CheckpointPolicy(every_commits=None, keep=draw.choice([1, 2]))
            state = hs.open(path, checkpoints=keep, _tuning=SMALL)
            assert rows(state) == seen[-1]
            for _ in range(draw.randrange(4)):
                state.key_value("rows").put(f"{draw.randrange(9)}", f"{number} {'y' * draw.randrange(900)}")
                state.commit()
                seen.append(rows(state))
                if not draw.randrange(3):
                    state.checkpoint(wait=True)
            crash(state) if draw.randrange(2) else state.close()
        elif what == "remove" and len(family) > 1:
            shutil.rmtree(path)
            del family[path]
        else:
            version = draw.randrange(1, len(seen))
            target = tmp_path / f"{number}"
            if what == "rewind" and rewind(path, version, "--write") == 0:
                del seen[version + 1 :]
            elif what == "fork" and fork(f"{path}@{version}", target) == 0:
                family[target] = [dict(each) for each in seen[: version + 1]]
        for each, expected in family.items():
            with hs.open(each, at="newest") as state:
                assert (state.version, rows(state)) == (len(expected) - 1, expected[-1]), (number, what, each)
    assert all(run(["inspect", "verify", str(each), "--full"]) == 0 for each in family)
    assert {path for path in tmp_path.iterdir()} == set(family)


class Killed(BaseException):
    """The process is killed here."""


def kill_at(patch: pytest.MonkeyPatch, last: int) -> None:
    """Let the process be killed in place of its step number `last` that changes a file or a name."""
    steps = itertools.count()

    def step(real: Any, *args: Any) -> Any:
        if next(steps) == last:
            raise Killed
        return real(*args)

    changes = [(Files, "create"), (Files, "mkdir"), (Files, "link"), (Files, "sync_directory"), (Files, "remove")]
    for owner, name in [*changes, (AppendFile, "write"), (AppendFile, "sync"), (Path, "rename"), (Path, "replace")]:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, real=real: step(real, *args))


def test_whenever_it_is_killed_the_fork_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    seen = build_state(tmp_path / "s")
    before = contents(tmp_path / "s")
    for last in itertools.count():
        target = tmp_path / f"new{last}" / "f"
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            try:
                assert fork(f"{tmp_path / 's'}@9", target) == 0
                done = True
            except Killed:
                done = False
        assert contents(tmp_path / "s") == before
        if not target.exists():
            assert not done
            assert fork(f"{tmp_path / 's'}@9", target) == 0
        with hs.open(target, checkpoints=KEPT, _tuning=SMALL) as state:
            assert (state.version, rows(state)) == (9, seen[9])
        if done:
            assert last > 10
            return


def test_whenever_it_is_killed_a_shared_segment_is_cut_in_one_state_only(tmp_path: Path) -> None:
    """A rewind cuts a segment that the fork has, too, and is killed at every step."""
    for last in itertools.count():
        path, other = tmp_path / f"s{last}", tmp_path / f"f{last}"
        seen = build_state(path)
        assert fork(path, other) == 0
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            try:
                assert rewind(path, 5, "--write") == 0
                done = True
            except Killed:
                done = False
        assert run(["inspect", "verify", str(other), "--full"]) == 0
        with hs.open(other, at="newest") as state:
            assert (state.version, rows(state)) == (12, seen[12])
        state = hs.open(path, _tuning=SMALL, checkpoints=KEPT)
        assert 5 <= state.version <= 12
        assert rows(state) == seen[state.version]
        crash(state)
        assert rewind(path, 5, "--write") == 0
        with hs.open(path) as state:
            assert (state.version, rows(state)) == (5, seen[5])
            state.checkpoint(wait=True)
        if done:
            assert last > 5
            return


def test_the_owner_may_prune_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path / "s", checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1), _tuning=SMALL) as state:
        real, calls = forking._share, itertools.count()

        def commits() -> None:
            for _ in range(6):
                state.key_value("rows").put("a", f"{state.version} {'z' * 900}")
                state.commit()
            state.checkpoint(wait=True)

        def share(*args: Any) -> Any:
            if next(calls) in (0, 5):
                commits()
            return real(*args)

        commits()
        monkeypatch.setattr(forking, "_share", share)
        assert fork(tmp_path / "s", tmp_path / "f") == 0
        with hs.open(tmp_path / "f", at="newest") as copy:
            assert copy.version in (12, 18)
            assert copy.key_value("rows")["a"].startswith(f"{copy.version - 1} ")
        # a version that is pruned meanwhile is named
        monkeypatch.setattr(forking, "_share", lambda *args: (commits(), real(*args))[1])
        assert fork(f"{tmp_path / 's'}@{state.version}", tmp_path / "g") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "s"]


def steps_of(patch: pytest.MonkeyPatch, at_step: Callable[[], None]) -> None:
    """Call `at_step` before each step that names, creates, opens, copies, cuts or removes a file."""

    def step(real: Any, *args: Any) -> Any:
        at_step()
        return real(*args)

    changes = [(Files, "create"), (Files, "append"), (Files, "link"), (Files, "remove"), (AppendFile, "truncate")]
    for owner, name in [
        *changes,
        (Path, "rename"),
        (forking._DirectoryOrigin, "parts"),
        (forking, "_fill"),
        (forking, "_copy"),
    ]:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, real=real: step(real, *args))


@pytest.mark.parametrize("version", ["", "@9", "@12"])
def test_a_rewind_before_any_step_of_a_fork_leaves_a_sound_fork_or_none(tmp_path: Path, version: str) -> None:
    """The fork begins anew when the state that it has read is another one; a version that is gone is refused."""
    seen = build_state(tmp_path / "origin")
    results = []
    for last in itertools.count():
        path, other = tmp_path / f"s{last}", tmp_path / f"f{last}"
        shutil.copytree(tmp_path / "origin", path)
        steps = itertools.count()

        def at_step(path: Path = path, last: int = last, steps: Any = steps) -> None:
            if next(steps) == last:
                assert rewind(path, 5, "--write") == 0

        with pytest.MonkeyPatch.context() as patch:
            steps_of(patch, at_step)
            code = fork(f"{path}{version}", other)
        results.append(code)
        check_pair(path, other, seen, code)
        if next(steps) <= last:
            assert last > 6
            break
    if not version:
        assert set(results) == {0}
    else:
        assert set(results) == {0, 1}


def check_pair(path: Path, other: Path, seen: list[dict[str, Any]], code: int) -> None:
    """Check a state and its fork, which is there if the code is 0, and each again after commits of the other."""
    assert other.exists() == (code == 0)
    for each in (path, other) if code == 0 else (path,):
        assert run(["inspect", "verify", str(each), "--full"]) == 0
        with hs.open(each, checkpoints=KEPT, _tuning=SMALL) as state:
            assert rows(state) == seen[state.version]
            state.key_value("rows").put("more", 1)
            state.commit()
    for each in (path, other) if code == 0 else (path,):
        assert run(["inspect", "verify", str(each), "--full"]) == 0


@pytest.mark.parametrize("before", range(8))
def test_a_fork_between_any_steps_of_a_rewind_is_never_cut(tmp_path: Path, before: int) -> None:
    """The fork does so many steps; then the rewind begins and stops at any of its steps; the fork ends; then the rewind
    ends.
    """
    seen = build_state(tmp_path / "origin")
    for last in itertools.count():
        path, other = tmp_path / f"s{last}", tmp_path / f"f{last}"
        shutil.copytree(tmp_path / "origin", path)
        paused, go_on = threading.Event(), threading.Event()
        forks, rewinds, codes = itertools.count(), itertools.count(), list[int]()

        def turn_back(path: Path = path, codes: list[int] = codes, paused: threading.Event = paused) -> None:
            try:
                codes.append(rewind(path, 8, "--write"))
            finally:
                paused.set()

        other_thread = threading.Thread(target=turn_back)

        def at_step(
            other_thread: threading.Thread = other_thread,
            last: int = last,
            forks: Any = forks,
            rewinds: Any = rewinds,
            paused: threading.Event = paused,
            go_on: threading.Event = go_on,
        ) -> None:
            if threading.current_thread() is other_thread:
                if next(rewinds) == last:
                    paused.set()
                    go_on.wait()
            elif next(forks) == before:
                other_thread.start()
                paused.wait()

        with pytest.MonkeyPatch.context() as patch:
            steps_of(patch, at_step)
            code = fork(path, other)
            go_on.set()
            assert other_thread.ident is not None  # the fork has so many steps
            other_thread.join()
        assert codes == [0]
        assert code == 0
        check_pair(path, other, seen, code)
        if next(rewinds) <= last:
            assert last > 2  # remove, look for second names, cut
            return


def test_a_file_system_without_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = build_state(tmp_path / "s")

    real = Files.link

    def link(self: Files, temporary: Path, final: Path) -> None:
        if temporary.parent != final.parent:
            raise OSError(errno.EXDEV, "on another file system")
        real(self, temporary, final)

    with monkeypatch.context() as patch:
        patch.setattr(files.Files, "link", link)
        assert fork(tmp_path / "s", tmp_path / "f") == 0
    copies = contents(tmp_path / "f")
    assert all(path.stat().st_nlink == 1 for path in copies)
    assert f"files: 0 shared, {len(copies)} copied (" in capsys.readouterr().out
    with hs.open(tmp_path / "f") as state:
        assert (state.version, rows(state)) == (12, seen[12])


def test_a_topology_of_several_shards_is_forked_at_one_commit_and_both_go_on(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"{number % 7}", "ts": number} for number in range(1000)]
    path = tmp_path / "s"
    whole = [dict(row) for row in topology.run(source, path, shards=3, commit_rows=50)]
    with hs.open(path / "0", at="newest") as state:
        newest = state.version
    assert fork(f"{path}@{newest - 7}", tmp_path / "f") == 0
    again = [dict(row) for row in topology.run(source, tmp_path / "f", shards=3, commit_rows=50, replay_last=False)]
    assert again == whole[len(whole) - len(again) :]
    assert 300 <= len(again) <= 400
    with topology.open(path, shards=3) as engine, topology.open(tmp_path / "f", shards=3) as other:
        assert [rows_of(state) for state in engine.states] == [rows_of(state) for state in other.states]
    assert all(run(["inspect", "verify", str(tmp_path / "f" / shard), "--full"]) == 0 for shard in "012")


def test_what_cannot_be_forked_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_state(tmp_path / "s")
    (tmp_path / "query" / "offsets").mkdir(parents=True)
    (tmp_path / "full" / "file").mkdir(parents=True)
    hs.open(tmp_path / "empty").close()
    names = sorted(tmp_path.rglob("*"))
    for source, target, code, sentence in (
        ("s@3", "f", 1, "version 3 is not retained"),
        ("s@13", "f", 1, "version 13 is not retained"),
        ("s", "full", 3, "exists already"),
        ("s", "s/inner", 1, "is inside of"),
        ("query", "f", 3, "query"),
        ("empty", "f", 1, "has no version yet"),
        ("absent", "f", 3, "absent"),
    ):
        assert fork(tmp_path / source, tmp_path / target) == code
        assert sentence in capsys.readouterr().err
    assert run(["fork", "s3://bucket/state", str(tmp_path / "f")]) == 1
    assert "inspect compact" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == names
    (index,) = [path for path in (tmp_path / "s" / "checkpoints").iterdir() if "008-" in path.name]
    for path in (*(tmp_path / "s" / "checkpoints").iterdir(), *(tmp_path / "s" / "packs").iterdir()):
        flip(path, path.stat().st_size // 2)
    assert index.exists()
    assert fork(tmp_path / "s", tmp_path / "f") != 0
    assert not (tmp_path / "f").exists()


def test_a_state_on_a_file_system_without_links_is_forked_and_rewound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints and packs were written in place, under names with a suffix."""

    def link(self: Files, temporary: Path, final: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(files.Files, "link", link)
    seen = build_state(tmp_path / "s")
    assert list((tmp_path / "s" / "packs").glob("*.whole"))
    assert fork(f"{tmp_path / 's'}@9", tmp_path / "f") == 0
    assert rewind(tmp_path / "s", 5, "--write") == 0
    for path, version in ((tmp_path / "f", 9), (tmp_path / "s", 5)):
        with hs.open(path, checkpoints=KEPT, _tuning=SMALL) as state:
            assert (state.version, rows(state)) == (version, seen[version])


def test_who_may_not_read_a_state_may_not_read_its_fork(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", file_mode=0o600, checkpoints=KEPT, _tuning=SMALL) as state:
        for number in range(8):
            state.key_value("rows").put("a", f"{number} {'z' * 900}")
            state.commit()
    assert fork(tmp_path / "s", tmp_path / "f") == 0
    assert rewind(tmp_path / "s", 2, "--write") == 0
    for path in (tmp_path / "f", *(tmp_path / "f").rglob("*"), *(tmp_path / "s" / "changelog").iterdir()):
        assert not path.stat().st_mode & 0o077, path


def test_notes_of_forks_that_are_no_more_go_unless_a_fork_is_in_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_state(tmp_path / "s")
    forks = [tmp_path / name for name in ("a", "b", "c")]
    for each in forks:
        assert fork(tmp_path / "s", each) == 0
    shutil.rmtree(forks[0])
    with monkeypatch.context() as making:
        making.setattr(registry, "is_unfinished", lambda place: place == forks[1])
        assert registry.forks_of(tmp_path / "s") == forks[1:]
        assert len(list((tmp_path / "s/forks").iterdir())) == 6  # each fork had another name while it was made
    assert registry.forks_of(tmp_path / "s") == forks[1:]
    assert len(list((tmp_path / "s/forks").iterdir())) == 2


def test_an_empty_directory_becomes_the_fork(tmp_path: Path) -> None:
    build_state(tmp_path / "s")
    (tmp_path / "f").mkdir()
    assert fork(tmp_path / "s", tmp_path / "f") == 0
    with hs.open(tmp_path / "f", _tuning=Tuning()) as state:
        assert state.version == 12


@pytest.mark.parametrize("name", ["link", "."])
def test_an_empty_directory_may_have_another_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build_state(tmp_path / "s")
    (tmp_path / "f").mkdir()
    (tmp_path / "link").symlink_to("f")
    monkeypatch.chdir(tmp_path / "f" if name == "." else tmp_path)
    assert fork(tmp_path / "s", Path(name)) == 0
    with hs.open(tmp_path / "f", _tuning=Tuning()) as state:
        assert state.version == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "link", "s"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_state_that_can_only_be_read_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    seen = build_state(tmp_path / "s")
    real = LocalStorage.create

    def create(self: LocalStorage, name: str, data: bytes) -> bool:
        if self.root == tmp_path / "s":
            raise OSError(number, os.strerror(number), str(self.root / name))
        return real(self, name, data)

    monkeypatch.setattr(LocalStorage, "create", create)
    if number == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            hs.fork(tmp_path / "s", tmp_path / "f")
        assert not list(tmp_path.glob("*f*"))
        return
    hs.fork(tmp_path / "s", tmp_path / "f")
    with hs.open(tmp_path / "f", _tuning=SMALL) as state:
        assert rows(state) == seen[state.version]


def test_of_two_forks_to_one_directory_one_is_made_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = build_state(tmp_path / "s")
    real, calls = forking._share, itertools.count()

    def share(*args: Any) -> Any:
        if next(calls) == 0:
            hs.fork(tmp_path / "s", tmp_path / "f", at=9)
        return real(*args)

    monkeypatch.setattr(forking, "_share", share)
    with pytest.raises(OccupiedError, match="another command has made it meanwhile"):
        hs.fork(tmp_path / "s", tmp_path / "f", at=7)
    with hs.open(tmp_path / "f", at="newest") as state:
        assert rows(state) == seen[9]
    assert {path.name for path in tmp_path.iterdir()} == {"s", "f"}
