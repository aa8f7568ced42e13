"""Holder: a process of this host that keeps shards in memory for Spark's many short-lived workers.

    worker: rows of a shard, and the operator -> holder: load, process, commit -> worker: results

A holder runs the worker's code, so that the end of a holder loses only memory: every commit is on storage, and late
writes of a holder count as little as those of a worker. A holder works on one shard after the other; a host has one
holder for each slot of an operator. `placement` starts holders. A holder ends with the last of the daemons whose
workers it served (with the worker itself, where the daemon was killed), after `IDLE_SECONDS` without a request, when a
newer run of the query has its own holders, or when somebody has removed its socket or lock: then no worker can reach
it, or another holder has its name.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from ..collector import Tasks
from ..state.log_lines import SPARK, warn
from . import exchange
from .exchange import Message, SocketFolder
from .shipped import Operator
from .worker import ShardWork

# How often a worker gets the message that its request is being processed.
ALIVE_SECONDS: Final = 1.0
# Longer than the minute of Spark's own idle workers, because triggers may be minutes apart.
IDLE_SECONDS: Final = 600.0
# How long a worker may take to read its results.
SEND_SECONDS: Final = 60.0


@dataclass(slots=True)
class Request:
    """The rows of one shard, from arrival to answer."""

    connection: socket.socket
    fields: dict[str, Any]
    packed: bytes
    table: memoryview
    answered: threading.Event = field(default_factory=threading.Event)
    # the answer is on its way, or will never be
    sent: threading.Event = field(default_factory=threading.Event)
    answer: tuple[bytes, list[Any]] = (exchange.REFUSED, [b"the holder ended"])


class Holder:
    """The holder of one name. `serve` returns when it is not needed any more."""

    def __init__(self, place: SocketFolder, name: str, idle_seconds: float = IDLE_SECONDS) -> None:
        self.place = place
        self.name = name
        self._lock = place.inherited_lock(name)
        self._socket_inode = 0
        self._idle_seconds = idle_seconds
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._operators: dict[str, bytes] = {}
        # what `placement._owner` gave: process file descriptors by process id
        self._owners: dict[int, int] = {}
        self._guard = threading.Lock()
        self._asked = time.monotonic()
        self._busy = 0
        self._tasks = Tasks()

    def serve(self, owner: int) -> None:
        """Listen, and work until this holder is not needed any more."""
        if not self._owned_by(owner):
            return
        listener = self.place.listen(self.name)
        self._socket_inode = (self.place.path / f"{self.name}.sock").stat().st_ino
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        while (request := self._requests.get()) is not None:
            if exchange.ended(request.connection):
                # the worker was killed, or gave up, while other requests were processed
                request.answered.set()
                continue
            self._work(request)

    def _owned_by(self, owner: int) -> bool:
        """Live as long as process `owner`; False when that process has already ended."""
        with self._guard:
            if owner not in self._owners:
                try:
                    self._owners[owner] = os.pidfd_open(owner)
                except ProcessLookupError:
                    return False
        return True

    # --- threads beside the one that works ------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            if exchange.peer(connection)[1] == os.geteuid():
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _converse(self, connection: socket.socket) -> None:
        """Receive the request of one worker, send messages of progress, and send the answer."""
        with connection, suppress(OSError, EOFError):
            connection.settimeout(SEND_SECONDS)
            while True:
                message = exchange.receive(connection)
                if message.kind == exchange.END:
                    self._requests.put(None)
                    return
                if message.kind == exchange.OPERATOR:
                    self._learn(message)
                    continue
                fields = pickle.loads(message.parts[0])
                packed = self._operators.get(fields["operator"])
                if packed is None:
                    exchange.send(connection, exchange.UNKNOWN)
                    continue
                self._owned_by(fields["owner"])
                with self._guard:
                    self._asked, self._busy = time.monotonic(), self._busy + 1
                try:
                    request = Request(connection, fields, packed, message.parts[1])
                    self._requests.put(request)
                    while not request.answered.wait(ALIVE_SECONDS):
                        exchange.send(connection, exchange.ALIVE)
                    exchange.send(connection, *request.answer)
                finally:
                    request.sent.set()
                    with self._guard:
                        self._asked, self._busy = time.monotonic(), self._busy - 1

    def _learn(self, message: Message) -> None:
        key, packed, paths = (bytes(part) for part in message.parts)
        for path in pickle.loads(paths):
            if path not in sys.path:
                sys.path.append(path)
        self._operators[key.decode()] = packed

    def _watch(self) -> None:
        """End the process when the last owner has ended, even during a request, or when the holder has been idle for
        long.
        """
        poller = select.poll()
        watched: dict[int, int] = {}
        leaving = False
        while True:
            with self._guard:
                for pid, fd in self._owners.items():
                    if fd not in watched:
                        watched[fd] = pid
                        poller.register(fd, select.POLLIN)
                idle = not self._busy and time.monotonic() - self._asked > self._idle_seconds
            if idle:
                self.end()
            if not leaving and not self.place.has_place(self.name, self._lock, self._socket_inode):
                # No worker reaches this holder any more. What is being processed is answered first.
                warn("holder %s ends: its socket or lock in %s was removed", self.name, self.place.path, logger=SPARK)
                leaving = True
                self._requests.put(None)
            for fd, _ in poller.poll(1000):
                poller.unregister(fd)
                with self._guard:
                    del self._owners[watched.pop(fd)]
                os.close(fd)
                if not self._owners:
                    self.end()

    def end(self) -> NoReturn:
        """End the process at once: everything worth keeping is on storage. Files of another holder of this name stay,
        and so does what killed holders of this run have left.
        """
        if self.place.has_lock(self.name, self._lock):
            self.place.clear(self.name)
        self.place.sweep(self.name.rpartition("-")[0] + "-")
        os._exit(0)

    # --- work -----------------------------------------------------------------------------------------------------

    def _work(self, request: Request) -> None:
        with self._tasks.task():
            work: ShardWork | None = None
            try:
                try:
                    operator = self._open(request)
                except Exception as error:
                    sentence = (
                        f"the operator cannot be opened outside of a worker of Spark: {type(error).__name__}: {error}"
                    )
                    request.answer = exchange.REFUSED, [sentence.encode()]
                    return
                work = ShardWork(operator, request.fields["batch"], "holder")
                table = exchange.unpack_table(request.table)
                results = work.shard(request.fields["shard"], table, request.fields["read_ms"])
                request.answer = exchange.MADE, [exchange.pack_table(results)]
                del table, results
            except MemoryError:
                # the worker sees that this process has ended, continues alone, and waits before another is started
                warn("holder %s is out of memory and ends", self.name, logger=SPARK)
                os._exit(1)
            except BaseException as error:
                request.answer = exchange.RAISED, [_packed(error)]
            finally:
                request.answered.set()
            # What follows keeps the interpreter from the thread that sends the answer.
            request.sent.wait(ALIVE_SECONDS)
            if work is not None:
                work.maintain()

    def _open(self, request: Request) -> Operator:
        """Return the operator in the form of a Spark task: unpickled for the task, with its context."""
        from pyspark import TaskContext
        from pyspark.core.files import SparkFiles

        context = TaskContext()
        context.__dict__.update(request.fields["context"])
        TaskContext._setTaskContext(context)
        SparkFiles._root_directory = request.fields["files"]
        SparkFiles._is_running_on_worker = True
        operator: Operator = pickle.loads(request.packed)
        return operator


def _packed(error: BaseException) -> bytes:
    """An exception as bytes, with its traceback as a note; an exception that cannot be pickled becomes a RuntimeError
    with the same text.
    """
    error.add_note("in the holder:\n" + "".join(traceback.format_exception(error)))
    try:
        packed = pickle.dumps(error.with_traceback(None))
        pickle.loads(packed)
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.add_note(error.__notes__[-1])
        packed = pickle.dumps(other)
    return packed


def end_older(place: SocketFolder, name: str) -> None:
    """Ask the holders of earlier runs of the operator on this host to end."""
    operator, run, _ = name.split("-")
    for other in place.names():
        if other.startswith(f"{operator}-") and not other.startswith(f"{operator}-{run}-"):
            with suppress(OSError), place.connect(other, 1.0) as connection:
                exchange.send(connection, exchange.END)


def main(folder: str, name: str, owner: str) -> None:
    """Run a holder. The process inherits the lock from its starter, and keeps it until its end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # threads that pass bytes must not wait five milliseconds each time
    sys.setswitchinterval(0.0005)
    place = SocketFolder(Path(folder))
    place.sweep()
    end_older(place, name)
    holder = Holder(place, name)
    holder.serve(int(owner))
    holder.end()
