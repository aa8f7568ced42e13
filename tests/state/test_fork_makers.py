"""Two commands that make a fork or a pin at one place of an object store: one is made and whole. What a killed command
has left is removed where it is certain that the command was killed, and by one command only.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any

import pytest

pytest.importorskip("obstore")

import changelog.rounds as rounds_module
import hybridstore as hs
from changelog.bucket import Bucket
from changelog.cloud_storage import CloudStorage
from changelog.storage import storage_at
from hybridstore.errors import HybridStoreError
from hybridstore.inspection.rebuild import OccupiedError
from hybridstore.rewinding import fork as forking
from hybridstore.rewinding import makers
from recovery.errors import RestoreError
from tests.state.test_far_forks import Place, build, kill_at, objects
from tests.state.test_fork import Killed
from tests.state.test_rewind import rows
from tests.tools.hooks import check_stores


def before_each_request(patch: pytest.MonkeyPatch, number: int, act: Callable[[], Any]) -> None:
    """Let another command run in place of a pause before the request `number` that writes, or behind a list."""
    requests, inside = itertools.count(), list[bool]()

    def request(real: Any, *args: Any, after: bool = False) -> Any:
        if inside:
            return real(*args)
        due = next(requests) == number
        result = real(*args) if after else None
        if due:
            inside.append(True)
            act()
            inside.pop()
        return result if after else real(*args)

    patch.setattr("changelog.rounds.AT_ONCE", 1)
    for verb in ("create", "take", "delete", "list"):
        real = getattr(CloudStorage, verb)
        patch.setattr(
            CloudStorage, verb, lambda *args, real=real, after=verb == "list": request(real, *args, after=after)
        )


def attempt(commands: list[str], name: str, command: Callable[[], Any]) -> None:
    with contextlib.suppress(HybridStoreError):
        command()
        commands.append(name)


def killed_at(last: int, command: Callable[[], Any]) -> bool:
    """Run a command that is killed in place of a request; return whether it was."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, last)
        try:
            command()
        except Killed:
            return True
    return False


@pytest.mark.parametrize(("kind", "killed", "step"), [("fork", False, 2), ("fork", True, 1), ("pin", True, 3)])
def test_of_two_forks_to_one_place_one_is_made_and_whole(place: Place, kind: str, killed: bool, step: int) -> None:
    """The second one begins at every request of the first; what a killed one has left is there, or nothing."""
    seen = build(place("s"), 8, (5,))
    winners = set()
    for number in itertools.count(0, step):
        new = place(f"f{number}") if kind == "fork" else place("s") / "pins" / "p"

        def make(at: int, new: Bucket = new) -> None:
            hs.fork(place("s"), new, at=at) if kind == "fork" else hs.pin(place("s"), "p", at=at)

        assert not killed or killed_at(3, lambda make=make: make(6))  # type: ignore[misc]
        done: list[str] = []
        ran: list[int] = []
        with pytest.MonkeyPatch.context() as patch:

            def second(done: list[str] = done, ran: list[int] = ran, make: Any = make) -> None:
                ran.append(1)
                attempt(done, "second", lambda: make(7))

            before_each_request(patch, number, second)
            attempt(done, "first", lambda: make(5))
        winners.update(done)
        assert len(done) == 1 or (ran and not done and killed), number
        if not done:
            make(5)
        with hs.open(new, at="newest") as state:
            assert rows(state) == seen[7 if done == ["second"] else 5]
        if kind == "pin":
            hs.unpin(place("s"), "p")
        else:
            with hs.open(new) as state:
                check_stores(state)
        if not ran:
            break
    assert number > 8
    assert winners == {"first", "second"}


def test_what_may_be_made_elsewhere_is_not_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = build(place("s"), 8, (5,))

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("hybridstore.rewinding.makers._machine", lambda: "another")
        assert killed_at(3, lambda: hs.fork(place("s"), place("f"), at=7))
        assert killed_at(3, lambda: hs.pin(place("s"), "p", at=7))
    before = objects(place(""))
    sentence = r"process \d+ on .* since .*Z makes a fork or a pin here, .* remove the objects below this place"
    for command in (lambda: hs.fork(place("s"), place("f")), lambda: hs.pin(place("s"), "p")):
        with pytest.raises(RestoreError, match=sentence):
            command()
    assert objects(place("")) == before
    hs.unpin(place("s"), "p")
    hs.pin(place("s"), "p", at=7)
    # a process of this machine: as long as it is there, it may be at work
    real = makers.at_work

    @contextlib.contextmanager
    def of_another() -> Iterator[makers.Maker]:
        with real() as maker:
            yield maker._replace(pid=4_194_304)

    with monkeypatch.context() as other:
        other.setattr(forking, "at_work", of_another)
        assert killed_at(3, lambda: hs.fork(place("s"), place("g"), at=7))
        assert killed_at(3, lambda: hs.pin(place("s"), "q", at=7))
    with monkeypatch.context() as there:
        there.setattr("os.kill", lambda *_: None)
        for command in (lambda: hs.fork(place("s"), place("g")), lambda: hs.unpin(place("s"), "q")):
            with pytest.raises(RestoreError, match=sentence):
                command()

    def ended(*_: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr("os.kill", ended)
    hs.fork(place("s"), place("g"), at=7)
    hs.unpin(place("s"), "q")
    for where in (place("g"), place("s") / "pins" / "p"):
        with hs.open(where, at="newest") as state:
            assert rows(state) == seen[7]


def test_what_two_killed_commands_have_left_is_removed(place: Place) -> None:
    seen = build(place("s"), 8, (5,))
    for number in itertools.count():
        new, ends = place(f"f{number}"), []
        for last in (4, number, number):
            try:
                ends.append(not killed_at(last, lambda new=new: hs.fork(place("s"), new, at=7)))  # type: ignore[misc]
            except OccupiedError:
                break
        if True not in ends:
            hs.fork(place("s"), new, at=7)
        with hs.open(new, at="newest") as state:
            assert rows(state) == seen[7]
        assert not [name for name in storage_at(new).list("forks/") if "removing" in name]
        if ends[1]:
            break
    assert number > 8


@pytest.mark.parametrize("reads", [1, 2])
def test_a_fork_that_begins_beside_a_removal_of_what_is_left_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """Its command found nothing here; then another was killed, and the command that removed what was left, too."""
    storage = storage_at(place("f"))
    with makers.at_work() as ended:
        storage.create("forks/removing-00-1", ended.line())
    real, count = makers._note, itertools.count(1)

    def note(at: Any) -> bytes:
        text = real(at)
        if next(count) == reads:
            storage.create(makers.ORIGIN, b"s3://b/s\n{}")
        return text

    monkeypatch.setattr(makers, "_note", note)
    with makers.at_work() as maker, contextlib.suppress(RestoreError):
        makers.remove_alone(storage, maker, begun=True)
    assert real(storage) == b"s3://b/s\n{}"


def test_followers_of_a_state_its_fork_and_its_pin_see_their_own_only(place: Place) -> None:
    """They follow while a fork is made, killed and made again, while both states go on and prune, behind an erase."""
    seen = build(place("s"), 8, (5,))
    pruned = hs.CheckpointPolicy(every_commits=None, keep=1)

    def at(view: Any) -> tuple[int, dict[str, Any]]:
        view.refresh()
        return view.version, {row.key: row.value for row in view["rows"]} if "rows" in view else {}

    with hs.inspect(place("s")).follow() as of_state:
        assert killed_at(3, lambda: hs.fork(place("s"), place("f"), at=7))
        assert at(of_state) == (8, seen[8])
        hs.fork(place("s"), place("f"), at=7)
        pin = hs.pin(place("s"), "p", at=7)
        with hs.inspect(place("f")).follow() as of_fork, hs.inspect(pin.path).follow() as of_pin:
            assert at(of_state) == (8, seen[8])
            assert at(of_fork) == at(of_pin) == (7, seen[7])
            with hs.open(place("f"), checkpoints=pruned) as fork, hs.open(place("s"), checkpoints=pruned) as state:
                for number in range(4):
                    for each, view, mark in ((fork, of_fork, "fork"), (state, of_state, "state")):
                        each.key_value("rows").put(mark, number)
                        each.commit()
                        each.checkpoint(wait=True)
                        assert at(view) == (each.version, rows(each))
                    assert at(of_pin) == (7, seen[7])
    # a reader in the process of an erase keeps the packs
    with hs.inspect(place("f")).follow() as of_fork:
        hs.erase(place("s"), "k1", forks="leave")
        assert at(of_fork)[1] == {**seen[7], "fork": 3}
        storage_at(place("s")).delete(storage_at(place("s")).list())
        with hs.open(place("f"), checkpoints=pruned) as fork:
            fork.key_value("rows").put("fork", 4)
            fork.commit()
            assert at(of_fork) == (fork.version, rows(fork)) != (fork.version, seen[7])


def test_a_fork_asks_side_by_side_and_lists_no_folders_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    build(place("s"))
    rounds, folders = list[str](), list[str]()
    carry_out = rounds_module._carry_out

    def together(work: Any, items: list[Any]) -> list[Any]:
        if len(items) > 1 and threading.current_thread() is threading.main_thread():
            rounds.append("side by side")
        return carry_out(work, items)

    def request(self: CloudStorage, verb: str, real: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            rounds.append(verb)
        if verb == "folders":
            folders.append(self.url)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(rounds_module, "_carry_out", together)
    for verb in ("create", "folders", "get", "get_ranges", "list", "size", "sizes", "take"):
        monkeypatch.setattr(CloudStorage, verb, partialmethod(request, verb, getattr(CloudStorage, verb)))
    hs.fork(place("s"), place("new"))
    assert folders == [str(place("s"))]
    assert len(rounds) <= 8, rounds
