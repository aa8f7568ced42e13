"""A thread of ours that dies at any line: its owner gets an error, or goes on right; nobody waits for it for ever, and
nothing is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import changelog
import hybridstore as hs
import recovery
from changelog import digest
from changelog.digest import PIECE_BYTES
from hybridstore.state.opening import Tuning
from recovery import ahead
from tests.conftest import TRACED
from tests.tools.faults import QuickFiles
from tests.tools.hooks import crash

OURS = tuple(os.path.dirname(package.__file__ or "") + os.sep for package in (changelog, hs, recovery))
NEVER = hs.CheckpointPolicy(max_restore="1 hour")


# What these raise goes nowhere: finalizers, and what the collector calls, in whichever thread it runs.
DEAF = ("__del__", "_collected")


class Kill(BaseException):
    """What kills a thread: no handler of ours expects it."""


class Killer:
    """Raises Kill at the n-th line of our files in the thread of a name; `seen` is how many there were."""

    def __init__(self, name: str, nth: int) -> None:
        self._name, self._nth = name, nth
        self.seen = 0

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if threading.current_thread().name != self._name or not frame.f_code.co_filename.startswith(OURS):
            return None
        if any(of is not None and of.f_code.co_name in DEAF for of in (frame, frame.f_back)):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self._nth:
                raise Kill
        return self._line

    def __enter__(self) -> Killer:
        threading.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        threading.settrace(None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was killed on purpose says nothing; nobody waits long for one."""
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    monkeypatch.setattr(digest, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(digest, "_WORKER", digest._Worker())
    monkeypatch.setattr(ahead, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(ahead, "REST_SECONDS", 0.0)


def opened(path: Path) -> hs.State:
    return hs.open(path, checkpoints=NEVER, _files=QuickFiles(), _tuning=Tuning(block_records=10))


def rows(path: Path) -> tuple[int, dict[Any, Any]]:
    with opened(path) as state:
        return state.version, dict(state.key_value("kv").all())


def every_line(
    name: str, path: Path, work: Callable[[Path, Killer], None], *, most: int = 10_000, step: int = 1
) -> int:
    """Do the work, in a new directory each, with the thread killed at one line after the other; return how many there
    are.
    """
    for nth in count(1, step):
        killer = Killer(name, nth)
        with killer:
            digest._WORKER._hasher = None
            work(path / str(nth), killer)
        if killer.seen < nth or nth > most:
            return killer.seen
    raise AssertionError("unreachable")


@pytest.mark.slow
@TRACED
def test_the_hashing_thread_dies_at_any_line(tmp_path: Path) -> None:
    refused = 0

    def work(path: Path, killer: Killer) -> None:
        nonlocal refused
        expected: dict[Any, Any] = {}
        with opened(path) as state:
            kv = state.key_value("kv")
            for number in range(3):
                values = {f"{number}-{i}": bytes(PIECE_BYTES // 4) for i in range(10)}
                try:
                    kv.put_many(values.items())
                    state.commit()
                except hs.StatePoisonedError:
                    refused += 1
                    break
                expected |= values
            version = state.version
        assert rows(path) == (version, expected)

    lines = every_line("hybridstore-digest", tmp_path, work)
    assert lines >= 15
    # only where nobody knows what was hashed: at two lines of each piece
    assert 1 <= refused < lines / 3


@pytest.mark.slow
@pytest.mark.stress
@TRACED
def test_the_checkpoint_thread_dies_at_any_line(tmp_path: Path, rounds: int) -> None:
    def work(path: Path, killer: Killer) -> None:
        with opened(path) as state:
            kv = state.key_value("kv")
            for i in range(30):
                kv[i] = i
            state.commit()
            state.checkpoint(wait=True)
            kv[1] = "changed"
            del kv[2]
            state.commit()
            state.checkpoint()
            assert state._checkpoints.attempt is not None
            state._checkpoints.attempt.join()
            kv[3] = "changed"
            state.commit()
            expected, version = dict(kv.all()), state.version
            state.checkpoint(wait=True)
            crash(state)
        assert rows(path) == (version, expected)

    # at each line in `make stress`
    assert every_line("hybridstore-checkpoint", tmp_path, work, step=1 if rounds > 1 else 17) >= 100


@pytest.mark.slow
@pytest.mark.stress
@TRACED
def test_the_thread_that_reads_ahead_dies_at_any_line(tmp_path: Path, rounds: int) -> None:
    def work(path: Path, killer: Killer) -> None:
        with opened(path) as state:
            kv = state.key_value("kv")
            for i in range(60):
                kv[i] = i
            state.commit()
            state.checkpoint(wait=True)
        with opened(path) as state:
            kv = state.key_value("kv")
            assert kv[59] == 59
            assert kv[1] == 1
            for i in range(3):
                kv[i] = "changed"
                state.commit()
            # it comes to its last line, or dies, however late it was begun
            reader = state._checkpoints.reader
            assert reader is not None
            assert reader.ahead is not None
            assert reader.ahead._thread is not None
            reader.ahead._thread.join()
            while state.hydrate(1):
                pass
            expected, version = dict(kv.all()), state.version
            assert len(expected) == 60
        assert rows(path) == (version, expected)

    # at each line in `make stress`
    assert every_line("hybridstore-read-ahead", tmp_path, work, step=1 if rounds > 1 else 11) >= 50


def test_threads_that_use_a_store_at_once_get_errors_but_the_state_opens(tmp_path: Path) -> None:
    unexpected: list[BaseException] = []
    with opened(tmp_path) as state:
        kv = state.key_value("kv")
        together = threading.Barrier(4)

        def use(number: int) -> None:
            together.wait()
            for i in range(300):
                try:
                    kv[f"{i % 50}"] = number
                    if i % 7 == number:
                        state.commit()
                    if i % 50 == number:
                        state.rollback()
                    list(kv.all())
                except hs.errors.StateInUseError:
                    pass  # one thread owns a state
                except BaseException as error:
                    unexpected.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        acknowledged = state.version
        with suppress(hs.HybridStoreError):
            state.close()
    assert unexpected == []
    version, values = rows(tmp_path)
    assert version >= acknowledged
    assert set(values.values()) <= set(range(4))


@pytest.mark.parametrize("limit", [None, 12 << 20])
def test_a_state_closed_by_a_finalizer_as_the_interpreter_ends_waits_for_no_thread(
    tmp_path: Path, limit: int | None
) -> None:
    program = (
        "import sys, hybridstore as hs\n"
        "from hybridstore.state import writer_process\n"
        "writer_process.PATIENCE_SECONDS = 1e9\n"
        f"state = hs.open('state', memory_limit={limit})\n"
        "numbers = state.key_value('numbers')\n"
        "for i in range(6):\n"
        "    numbers.put_many({f'number {j % 1500}': [i, 'x' * 50] for j in range(0, 5600, 7)})\n"
        "    state.commit()\n"
        "    state.checkpoint()\n"
        "class Closer:\n"
        "    def __init__(self, state): self.state = state\n"
        "    def __del__(self): self.state.close()\n"
        "closer = Closer(state)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    with hs.open(tmp_path / "state") as state:
        assert state.version == 6
        assert state.key_value("numbers")["number 7"] == [5, "x" * 50]


def test_a_checkpoint_of_a_thread_is_not_waited_for_as_the_interpreter_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def slow(*_: object, **__: object) -> None:
        goes_on.wait()
        raise OSError("it has waited")

    monkeypatch.setattr("hybridstore.state.checkpointer.write_checkpoint", slow)
    state = hs.open(tmp_path)
    state.key_value("kv")["a"] = 1
    state.commit()
    state.checkpoint()
    attempt = state._checkpoints.attempt
    assert attempt is not None
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        attempt.join()
    assert attempt.running
    goes_on.set()
    state.close()
    with hs.open(tmp_path) as state:
        assert dict(state.key_value("kv")) == {"a": 1}
