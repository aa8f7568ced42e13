"""Holder: a process of this host that keeps shards in memory for Spark's workers, which come and go and are many.

    worker: rows of a shard, and the operator -> holder: load, process, commit -> worker: results

It does what the worker would do, with the same code, so that nothing but memory is lost with it: every commit is on
storage, and what a holder writes late counts for no more there than what a worker does. It works on one shard after the
other; a host has one holder for each slot of an operator. Started by `placement`, it ends with the last of the daemons
whose workers it served, or when nobody has asked for anything for `IDLE_SECONDS`, or when a newer run of the query has
holders of its own.
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
from .exchange import Message, Place
from .shipped import Operator
from .worker import ShardWork

# A worker is told this often that its request is being worked on.
ALIVE_SECONDS: Final = 1.0
# Longer than Spark's own workers, which end after a minute: triggers may be minutes apart.
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

    def __init__(self, place: Place, name: str, idle_seconds: float = IDLE_SECONDS) -> None:
        self.place = place
        self.name = name
        self._idle_seconds = idle_seconds
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._operators: dict[str, bytes] = {}
        # the daemons whose workers were served: process file descriptors by process id
        self._owners: dict[int, int] = {}
        self._guard = threading.Lock()
        self._asked = time.monotonic()
        self._busy = 0
        self._tasks = Tasks()

    def serve(self, owner: int) -> None:
        """Listen, and work until nobody needs this holder."""
        if not self._owned_by(owner):
            return
        listener = self.place.listen(self.name)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        while (request := self._requests.get()) is not None:
            if exchange.ended(request.connection):
                # its worker was killed, or gave up, while others were served
                request.answered.set()
                continue
            self._work(request)

    def _owned_by(self, owner: int) -> bool:
        """Live as long as process `owner`; False when it has ended already."""
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
        """Take what one worker asks for, tell it that work goes on, and give the answer."""
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
        """End the process when the last owner has ended, whatever it is doing, or when it has been idle for long."""
        poller = select.poll()
        watched: dict[int, int] = {}
        while True:
            with self._guard:
                for pid, fd in self._owners.items():
                    if fd not in watched:
                        watched[fd] = pid
                        poller.register(fd, select.POLLIN)
                idle = not self._busy and time.monotonic() - self._asked > self._idle_seconds
            if idle:
                self.end()
            for fd, _ in poller.poll(1000):
                poller.unregister(fd)
                with self._guard:
                    del self._owners[watched.pop(fd)]
                os.close(fd)
                if not self._owners:
                    self.end()

    def end(self) -> NoReturn:
        """End the process here and now: what is on storage is all there is to keep."""
        self.place.clear(self.name)
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
                # the worker sees this process end, goes on by itself, and lets some time pass before another is started
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
        """Return the operator as a task of Spark gets it: unpickled for the task, with its context."""
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
    """An exception as bytes, with its traceback as a note; one that does not travel as a RuntimeError that says the
    same."""
    error.add_note("in the holder:\n" + "".join(traceback.format_exception(error)))
    try:
        packed = pickle.dumps(error.with_traceback(None))
        pickle.loads(packed)
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.add_note(error.__notes__[-1])
        packed = pickle.dumps(other)
    return packed


def end_older(place: Place, name: str) -> None:
    """Ask the holders that earlier runs of the same operator have left on this host to end."""
    operator, run, _ = name.split("-")
    for other in place.names():
        if other.startswith(f"{operator}-") and not other.startswith(f"{operator}-{run}-"):
            with suppress(OSError), place.connect(other, 1.0) as connection:
                exchange.send(connection, exchange.END)


def main(folder: str, name: str, owner: str) -> None:
    """Run a holder; the caller has given its lock along, which this process keeps until it ends."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # threads that hand bytes over must not wait for five milliseconds each time
    sys.setswitchinterval(0.0005)
    place = Place(Path(folder))
    place.sweep()
    end_older(place, name)
    holder = Holder(place, name)
    holder.serve(int(owner))
    holder.end()
