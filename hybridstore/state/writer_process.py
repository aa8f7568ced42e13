"""Writer process: makes checkpoints of directories (`checkpoint_job`) beside the process that owns them.

    owner      give: number, job ─────▶        ◀───── number, outcome; or None: still at work (number 0: started)
    process                        main: one job at a time

One for all states of an owner: started for the first large checkpoint (under a limit, before it is due), kept while a
state is open, and ended by the end of its socket, also when the owner is killed. It imports no code of the user, has a
low priority, and waits in a read while it has no job. Nothing depends on it: a process that cannot be started, dies, or
says nothing for `PATIENCE_SECONDS` is a failed checkpoint, and the owner's thread makes the next one.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from changelog.codec import pack, unpack
from recovery.errors import CheckpointError
from recovery.pack import LARGE, SMALL

from .checkpoint_job import Job, KeptPacks, Outcome, make
from .memory_budget import give_back

# A process that says nothing for so long, with a job, is ended.
PATIENCE_SECONDS = 60.0
# The modules are found where this process finds them, and the program itself is not imported.
PROGRAM: Final = "import sys; sys.path[:] = sys.argv[1:]; from hybridstore.state.writer_process import main; main()"


# NumPy, which packs columns, loads a library that starts a thread for each core, and has nothing to do for them.
_ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1"}
# The priority of the process: the owner and other programs run first.
_NICE: Final = 5
# The process looks into every block that has changed: it keeps so many open tables of blocks, of 33 million small
# records, and of layers, together up to 22 MB.
_MOST_LARGE: Final = 8192
_MOST_SMALL: Final = 8192
# The process says at most so often that it is at work (s).
_SIGN_SECONDS: Final = 1.0
_SIZE: Final = struct.Struct("<I")


def framed(message: list[Any]) -> bytes:
    """Return a message as it is sent."""
    data = pack(message)
    return _SIZE.pack(len(data)) + data


def received(link: socket.socket) -> Iterator[list[Any]]:
    """Yield the messages of the other side, until it ends. Raises OSError."""
    data = bytearray()
    while part := link.recv(1 << 16):
        data += part
        while len(data) >= _SIZE.size and len(data) >= (end := _SIZE.size + _SIZE.unpack_from(data)[0]):
            yield unpack(bytes(data[_SIZE.size : end]))
            del data[:end]


class Pending:
    """A job that was given to the process: `done` is set when it has an outcome, behind `then`, which is called with
    the outcome and returns the one to keep.
    """

    def __init__(self, process: WriterProcess, then: Callable[[Outcome], Outcome]) -> None:
        self.process = process
        self._then = then
        self.done = threading.Event()
        self.outcome: Outcome | None = None

    def end(self, outcome: Outcome) -> None:
        """Set the outcome, once."""
        if self.outcome is None:
            try:
                self.outcome = self._then(outcome)
            finally:
                self.done.set()


class WriterProcess:
    """The process, or none yet. Its methods may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        self._forget()

    def _forget(self) -> None:
        self.pid: int | None = None
        self._link: socket.socket | None = None
        self._pending: dict[int, Pending] = {}
        self._number = 0
        self._heard = 0.0
        # whether the process has started: it takes a job at once
        self.ready = False

    @property
    def starting(self) -> bool:
        """Whether the process was started, and would take a job only when it has loaded its code. O(1)."""
        return self._link is not None and not self.ready

    def start(self, user: object) -> None:
        """Start the process, unless it runs, because `user` will give it a job: it ends with the last user. Raises
        OSError when it cannot be started. A start takes this thread a millisecond or two, and the process some 100.
        """
        with self._lock:
            if self._link is None:
                self._start()
            self._users.add(user)

    def give(self, job: Job, user: object, then: Callable[[Outcome], Outcome]) -> Pending:
        """Give a job to the process, which is started if it does not run, and ends with the last `user`. A thread calls
        `then` with the outcome. Raises OSError when the process cannot be started or takes no job. A start takes this
        thread a millisecond or two, else O(1).
        """
        with self._lock:
            known = self._link
            link = self._start() if known is None else known
            self._users.add(user)
            self._number += 1
            number = self._number
            data = framed([number, *job.packed()])
            if not self._pending:
                self._heard = time.monotonic()
            # before the job is sent: the answer of a small job may arrive before `send` returns
            pending = self._pending[number] = Pending(self, then)
            try:
                whole = link.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
            except BlockingIOError:
                whole = False
            except BaseException as error:
                self._pending.pop(number, None)
                if known is not None and isinstance(error, BrokenPipeError | ConnectionResetError):
                    # it was killed while it waited for a job, and the thread that listens has not said so yet
                    self._ended(link, "has ended")
                    return self.give(job, user, then)
                raise
            if not whole:
                self.kill("took no job, and was ended")
                raise OSError("the writer process takes no job")
            return pending

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-c", PROGRAM, *map(str, sys.path)],  # some programs have paths among them
                    {**_ENVIRONMENT, **os.environ},
                    # what it prints is no message
                    file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), (os.POSIX_SPAWN_DUP2, 2, 1)],
                )
            threading.Thread(target=self._listen, args=(ours, pid), name="hybridstore-writer", daemon=True).start()
        except RuntimeError as error:  # the system gives no thread: without the socket the process ends
            ours.close()
            raise OSError(str(error)) from error
        except BaseException:
            ours.close()
            raise
        self.pid, self._link = pid, ours
        return ours

    def _listen(self, link: socket.socket, pid: int) -> None:
        """Run in a thread that waits for answers, and in the end for the process."""
        try:
            for number, fields in received(link):
                self._heard = time.monotonic()
                if fields is not None:
                    self._answered(number, Outcome.of(fields))
                elif not number:
                    self._started(link)
        except OSError as error:
            self._ended(link, f"cannot be heard: {error}")
        try:
            _, status = os.waitpid(pid, 0)
            how = f"ended with status {os.waitstatus_to_exitcode(status)}"
        except ChildProcessError:  # this program ignores its children, or has waited for all of them
            how = "ended"
        self._ended(link, how)
        link.close()

    def _started(self, link: socket.socket) -> None:
        with self._lock:
            self.ready = self._link is link  # else it was killed meanwhile

    def _answered(self, number: int, outcome: Outcome) -> None:
        # No variable of the thread that waits may refer to a job: it would keep the files of a state that is no more.
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.end(outcome)

    def _ended(self, link: socket.socket, how: str) -> None:
        """Forget the process at the other end of `link`, with its jobs."""
        with self._lock:
            if self._link is link:
                pid, pending = self.pid, self._pending
                self.pid, self._link, self._pending, self.ready = None, None, {}, False
                for each in pending.values():
                    each.end(Outcome(None, CheckpointError(f"the writer process {pid} {how}")))

    def silent(self) -> bool:
        """True when the process has said nothing for `PATIENCE_SECONDS`. O(1)."""
        return time.monotonic() - self._heard >= PATIENCE_SECONDS

    def kill(self, why: str) -> None:
        """End the process now; its jobs have failed. O(jobs)."""
        with self._lock:
            if self._link is not None and self.pid is not None:
                with suppress(ProcessLookupError):  # it has ended at this moment
                    os.kill(self.pid, signal.SIGKILL)
                self._ended(self._link, why)

    def leave(self, user: object) -> None:
        """The user needs no more checkpoints; without users the process is ended. O(1)."""
        with self._lock:
            self._users.discard(user)
            if not self._users and self._link is not None:
                link = self._link
                self._ended(link, "was ended")
                with suppress(OSError):  # it has ended at this moment
                    link.shutdown(socket.SHUT_RDWR)

    def _inherited(self) -> None:
        """In a forked child: the process is the parent's."""
        self._lock = threading.RLock()
        self._users.clear()
        if self._link is not None:
            self._link.close()
        self._forget()


WRITER: Final = WriterProcess()
os.register_at_fork(after_in_child=WRITER._inherited)


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run in the writer process: make the checkpoints of the jobs that come over the socket at descriptor 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    os.nice(_NICE)
    link = socket.socket(fileno=0)
    jobs: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    opened = KeptPacks()
    LARGE.most, SMALL.most = _MOST_LARGE, _MOST_SMALL
    threading.Thread(target=_receive, args=(link, jobs), daemon=True).start()
    _send(link, framed([0, None]))  # it has started; jobs have the numbers from 1 on
    while True:
        while jobs.empty() and opened.enter_some():
            pass
        number, *fields = jobs.get()
        outcome = make(Job.of(fields), _Signs(link, number).send, opened)
        _send(link, framed([number, outcome.packed()]))
        give_back()


def _receive(link: socket.socket, jobs: queue.SimpleQueue[list[Any]]) -> None:
    try:
        for message in received(link):
            jobs.put(message)
    finally:
        os._exit(0)  # the owner has ended, or needs no more checkpoints: in the middle of one, too


def _send(link: socket.socket, data: bytes) -> None:
    """Send data to the owner; without one the process ends, as in `_receive`, which may not have heard of it yet."""
    try:
        link.sendall(data)
    except OSError:
        os._exit(0)


class _Signs:
    """Says that the process is at work on a job, from time to time."""

    def __init__(self, link: socket.socket, number: int) -> None:
        self._link = link
        self._sign = framed([number, None])
        self._last = time.monotonic()

    def send(self) -> None:
        """Send a sign, unless one was sent a moment ago. O(1)."""
        now = time.monotonic()
        if now - self._last >= _SIGN_SECONDS:
            self._last = now
            _send(self._link, self._sign)
