"""The writer process beside its owner, in one thread at a time, in an order that dice pick.

The code of the process runs unchanged, in a thread that goes on only when the owner lets it, and gives the baton back
at a step: before it writes a word of a finder, appends to a file, changes a name, or opens a checkpoint. The owner lets
it take steps between two calls of its own, and within them: before each look at a word of a finder and before each read
of a block. So between any two writes of the process the owner may do anything, and between two looks of a read the
process may.

    killed     the process ends at a step, or does what it was about to do long after that; its job has failed
    late       the owner has ended, and the process is at work for some steps more
    lost       the owner cannot open a checkpoint that the process has made, and goes on from the one before

A checkpoint of the owner's thread takes its steps in the same way, and ends with the owner; and so do commands.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from changelog.codec import pack, unpack
from changelog.files import AppendFile, Files
from hybridstore.state.checkpoint_job import Job, KeptPacks, Outcome, make
from hybridstore.state.checkpointer import Attempt, Checkpointer
from hybridstore.state.writer_process import Pending, WriterProcess
from recovery import finder, finder_writer
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError

# At a point where the process may go on, it takes so many steps.
STEPS = (1, 1, 2, 3, 10, 60)
# Why a checkpoint fails here, and for no other reason.
LOST, WAS_KILLED = FORESEEN = "the checkpoint cannot be opened", "the writer process was killed"


class Killed(BaseException):
    """The process has ended: raised in its code by each further step."""


class Worker:
    """Code that goes on only when the owner gives it the baton."""

    # how many names it has changed since another owner has the state
    late_changes: int | None = None

    def __init__(self) -> None:
        self.alive, self.idle, self.steps = True, False, 0
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._remaining = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # --- in the thread of the owner -----------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        """Take so many steps, or fewer until nothing is to be done. Raises what its code has raised."""
        if self.alive and not self.idle:
            self._remaining = steps
            self._go.release()
            self._back.acquire()
            if self._failure is not None:
                raise self._failure

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._go.release()
            self._thread.join()

    # --- in its own ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        if not self.alive:
            raise Killed
        self.steps += 1
        self._remaining -= 1
        if self._remaining <= 0:
            self._pass()

    def _pass(self) -> None:
        self._back.release()
        self._go.acquire()
        if not self.alive:
            raise Killed

    def _run(self) -> None:
        _at_work.worker = self
        with suppress(Killed):
            self._go.acquire()
            if self.alive:
                try:
                    self._do()
                except Exception as error:
                    self._failure = error
                self.alive, self.idle = False, True
                self._back.release()

    def _do(self) -> None:
        raise NotImplementedError


class Task(Worker):
    """One call, as a thread or another program makes it; for its owner it is a thread."""

    ident = 0

    def __init__(self, call: Callable[[], object]) -> None:
        self._do = call  # type: ignore[method-assign]
        super().__init__()

    def is_alive(self) -> bool:
        return self.alive

    def join(self, seconds: float | None = None) -> None:
        while self.alive:
            self.work(1000)


class Process(Worker):
    """One writer process, which waits for the baton, for a job, or has ended."""

    ready = True

    def __init__(self, lost: Callable[[], bool]) -> None:
        """`lost` says of each checkpoint whether the owner cannot open it."""
        self._lost = lost
        self._kept = KeptPacks()
        self._jobs: deque[tuple[list[Any], Answer]] = deque()
        self._answers: deque[tuple[Answer, list[Any]]] = deque()
        self._asked: list[Answer] = []
        super().__init__()

    def give(self, job: Job, then: Callable[[Outcome], Outcome]) -> Answer:
        answer = Answer(self, then)
        self._asked.append(answer)
        self._jobs.append((unpack(pack(job.packed())), answer))
        self.idle = False
        return answer

    def hear(self) -> bool:
        """Let the owner hear the oldest answer, as the thread does that listens; False without one."""
        if self._answers:
            answer, fields = self._answers.popleft()
            self._asked.remove(answer)
            lost = Outcome(None, CheckpointError(LOST))
            answer.end(lost if self._lost() else Outcome.of(fields))
            return True
        return False

    def silent(self) -> bool:
        return False

    def kill(self) -> None:
        if self.alive:
            super().kill()
            self.fail()

    def fail(self) -> None:
        """Let the owner hear of no job any more."""
        for answer in self._asked:
            answer.end(Outcome(None, CheckpointError(WAS_KILLED)))
        self._asked.clear()
        self._answers.clear()

    def _do(self) -> None:
        """As `writer_process.main`."""
        while True:
            while not self._jobs and self._kept.enter_some():
                self.step()
            if not self._jobs:
                self.idle = True
                self._pass()
                continue
            fields, answer = self._jobs.popleft()
            outcome = make(Job.of(fields), self.step, self._kept)
            self._answers.append((answer, unpack(pack(outcome.packed()))))
            self.step()


class Answer(Pending):
    """A job that was given: who waits for it lets the process go on."""

    def __init__(self, process: Process, then: Callable[[Outcome], Outcome]) -> None:
        super().__init__(process, then)  # type: ignore[arg-type]
        self.done = _Done(process)  # type: ignore[assignment]


class _Done:
    def __init__(self, process: Process) -> None:
        self._process, self._set = process, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float | None = None) -> None:
        while not self._set and not self._process.hear():
            assert not self._process.idle, "the process has no answer"
            self._process.work(1000)


class _AtWork(threading.local):
    worker: Worker | None = None


_at_work = _AtWork()


def step() -> None:
    """A step of whoever is at work beside the owner."""
    if _at_work.worker is not None:
        _at_work.worker.step()


def change() -> None:
    """A step before a name is changed."""
    step()
    worker = _at_work.worker
    if worker is not None and worker.late_changes is not None:
        worker.late_changes += 1


class Words:
    """The words of a file of a finder; something is called before each of them is read or written."""

    def __init__(self, words: memoryview, before_read: Callable[[], None], before_write: Callable[[], None]) -> None:
        self._words, self._before_read, self._before_write = words, before_read, before_write
        self.nbytes = words.nbytes

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, at: Any) -> Any:
        self._before_read()
        return self._words[at]

    def __setitem__(self, at: int, word: int) -> None:
        self._before_write()
        self._words[at] = word


class Beside:
    """What is at work beside an owner: its process and thread, a command, and processes of owners that ended."""

    def __init__(self, dice: random.Random) -> None:
        self.process: Process | None = None
        self.given = self.killed = self.threads = 0
        self.user: object = None  # the owner, as the process knows it
        self._dice = dice
        self._thread: Task | None = None
        self._command: Task | None = None
        self._late: list[Worker] = []
        self._dying: list[Process] = []
        self._at_work = False
        # some processes are slow beside their owner, others fast
        self._odds = dice.choice([0.02, 0.1, 0.4])
        # behind a slow command old versions are removed while it reads them
        self._pace = dice.choice([1.0, 0.05])
        self._losses = dice.choice([0.0, 0.1])

    def give(self, job: Job, user: object, then: Callable[[Outcome], Outcome]) -> Pending:
        if self.process is None or not self.process.alive:
            self.process = Process(lambda: self._dice.random() < self._losses)
        self.given += 1
        return self.process.give(job, then)

    def begin(self, attempt: Attempt) -> bool:
        """Begin a checkpoint in a thread of the owner."""
        attempt._thread = self._thread = Task(attempt.run)  # type: ignore[assignment]
        self.threads += 1
        return True

    def command(self, call: Callable[[], object]) -> Task:
        """Begin a command, as another program does."""
        self._command = Task(call)
        return self._command

    def meanwhile(self) -> None:
        """A point of the owner at which the others may go on."""
        if self._at_work or _at_work.worker is not None or self._dice.random() >= self._odds:
            return
        self._at_work = True
        try:
            if self.process is not None and not (self._dice.random() < 0.3 and self.process.hear()):
                self.process.work(self._dice.choice(STEPS))
            self._late = [late for late in self._late if late.alive]
            command = self._command if self._dice.random() < self._pace else None
            for worker in (*self._late, self._thread, command):
                if worker is not None:
                    worker.work(self._dice.choice(STEPS))
                    # only what it was about to do when the state was opened again
                    late = worker.late_changes or 0
                    assert late <= 1, f"the process of an owner that has ended: {late} changed names, expected 1"
            for worker in self._late:
                if self._dice.random() < 0.02:
                    worker.kill()
            if self._dying and self._dice.random() < 0.1:
                dying = self._dying.pop()
                dying.work(1)
                dying.kill()
        finally:
            self._at_work = False

    def request(self, verb: str, name: str, call: Callable[[], Any]) -> Any:
        """A request of a storage that is watched."""
        self.meanwhile()
        step()
        return call()

    def kill(self) -> None:
        """Kill the process, wherever it is: what it was about to do may be done, and late."""
        if self.process is not None:
            self.killed += not self.process.idle
            if self._dice.random() < 0.5:
                self.process.fail()
                self._dying.append(self.process)
            else:
                self.process.kill()
            self.process = None

    def taken(self) -> None:
        """Another owner takes the state, and the one before goes on with its thread."""
        if self._thread is not None:
            self._late.append(self._thread)
            self._thread = None

    def owner_ended(self, user: object) -> None:
        """If `user` is the owner, it has ended, and its thread with it: the process may hear of it late."""
        if user is not self.user:
            return
        if self._thread is not None:
            self._thread.kill()
        if self.process is not None:
            self._late.append(self.process)
            self.process = None

    def opened(self) -> None:
        """The state is opened again: what is late may change nothing any more."""
        for worker in self._late:
            worker.late_changes = worker.late_changes or 0

    def end(self) -> None:
        self.kill()
        for worker in (*self._late, *self._dying, self._thread, self._command):
            if worker is not None:
                worker.kill()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let states of this process have this writer process, and let its code and theirs come to points and steps."""
        meanwhile, mapped = self.meanwhile, finder._mapped

        def nothing() -> None: ...

        class Part(finder_writer._Part):
            __slots__ = ()

            def __init__(self, *given: Any, **named: Any) -> None:
                step()
                super().__init__(*given, **named)
                self.slots: Any = Words(self.slots, nothing, step)

        def behind(of: type, name: str, *points: Callable[[], None]) -> None:
            """Let calls of a method begin with these points."""
            method = getattr(of, name)

            def called(*given: Any, **named: Any) -> Any:
                for point in points:
                    point()
                return method(*given, **named)

            monkeypatch.setattr(of, name, called)

        for name in ("link", "remove"):
            behind(Files, name, change)
        behind(AppendFile, "write", step)
        behind(CheckpointReader, "__init__", meanwhile, step)
        behind(CheckpointReader, "raw_block", meanwhile)
        monkeypatch.setattr(WriterProcess, "give", lambda _, job, user, then: self.give(job, user, then))
        monkeypatch.setattr(WriterProcess, "leave", lambda _, user: self.owner_ended(user))
        monkeypatch.setattr(finder, "_mapped", lambda path: Words(mapped(path), meanwhile, nothing))
        monkeypatch.setattr(finder_writer, "_Part", Part)
        monkeypatch.setattr(Attempt, "begin", lambda attempt: self.begin(attempt))
        fail = Checkpointer.fail

        def failed(checkpoints: Checkpointer, version: int, error: Exception) -> None:
            assert str(error) in FORESEEN, f"a checkpoint has failed: found {error}, expected one of {FORESEEN}"
            fail(checkpoints, version, error)

        monkeypatch.setattr(Checkpointer, "fail", failed)
