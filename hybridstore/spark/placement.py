"""Placement: where a task's rows are processed: in Spark's worker, or in a holder of this host that keeps the shard in
memory.

    "worker"   in the worker; a shard that another worker has changed catches up first
    "holder"   in a holder, which is started at once
    "auto"     in holders as soon as the workers of this host have together spent `MOVED_MS` of processor time on
               catching up with shards of one holder that another process had in memory; until then in the worker

A holder only saves time. If a holder does not answer in time, refuses, or ends, the worker logs a sentence and
continues alone from storage.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import exchange
from .exchange import Message, SocketFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from .contract import Batch
    from .shipped import Shipped

# What the workers of a host spend in a run on catching up with what another process had in memory, before the holder of
# these shards is worth its start (0.6 s) and its memory.
MOVED_MS: Final = 60.0
# A holder without a message for this time hangs; a working holder sends a message every second.
SILENCE_SECONDS: Final = 10.0
# How long a worker waits for a starting holder with placement "holder".
START_SECONDS: Final = 20.0
# After n failures no holder is started for 2^n seconds, up to this limit.
LONGEST_PAUSE_SECONDS: Final = 600.0

_log = logging.getLogger("hybridstore.spark")
# Operators that a holder cannot open, and why; they stay in the worker.
_refused: dict[str, str] = {}
# Holders that this process has started, by name; polled from time to time, so that no ended holder stays a zombie.
_started: list[tuple[str, subprocess.Popen[bytes]]] = []


def slots_of(asked: int) -> int:
    """Return how many holders this host has for one operator: as many as can work at once."""
    return max(1, min(asked, len(os.sched_getaffinity(0))))


def holder_names(function: Shipped, batch: Batch) -> list[str]:
    """Return the names of an operator's holders on this host, in this run. O(holders)."""
    operator = function.operator
    place = exchange.short(operator.location.state, operator.name)
    run = exchange.short(batch.run_id, sys.executable)
    return [f"{place}-{run}-{slot}" for slot in range(slots_of(operator.slots))]


def holder_name(function: Shipped, batch: Batch, shard: int) -> str:
    """Return the name of the holder that has this shard on this host, in this run."""
    names = holder_names(function, batch)
    return names[function.operator.task_of(shard) % len(names)]


def note_load(function: Shipped, batch: Batch, shard: int, spent_ms: float, place: SocketFolder | None = None) -> None:
    """Note what catching up with a shard that another process had in memory costs this worker. Start the operator's
    holders on this host when its workers have spent enough on the shards of one holder.

    All holders start at once: where shards of one holder move among the workers, those of the others do, too. One after
    the other, each would make a batch slow.
    """
    if function.operator.placement != "auto" or not exchange.POSSIBLE or function.key in _refused:
        return
    name = holder_name(function, batch, shard)
    with suppress(OSError):
        place = place or SocketFolder()
        if place.has_cost(name, spent_ms, MOVED_MS):
            for each in holder_names(function, batch):
                _start(place, each)


def hand_over(
    function: Shipped, batch: Batch, shard: int, table: pa.Table, read_ms: float, place: SocketFolder | None = None
) -> pa.Table | None:
    """Have the holder of this shard process and commit `table`; return the results, or None when the worker must
    process it.

    Raises the error of the program or the commit in the holder. Never waits longer than `SILENCE_SECONDS` for a
    message.
    """
    operator = function.operator
    if operator.placement == "worker" or not function.packed or function.key in _refused:
        return None
    if not exchange.POSSIBLE:
        _refuse(function, "holders need Linux")
        return None
    if _needs_worker():
        _refuse(function, "it uses accumulators, which Spark takes from its workers only")
        return None
    name = holder_name(function, batch, shard)
    try:
        place = place or SocketFolder()
        connection = _connect(place, name, wait=operator.placement == "holder")
    except OSError as error:
        _refuse(function, str(error))
        return None
    if connection is None:
        return None
    fields = {
        "operator": function.key,
        "batch": batch,
        "shard": shard,
        "read_ms": read_ms,
        "owner": _owner(),
        **_surroundings(),
    }
    with connection:
        try:
            reply = _ask(connection, function, fields, table)
        except TimeoutError:
            _kill(connection)
            _give_up(place, name, connection, f"silent for {SILENCE_SECONDS:g} s: killed", shard, batch)
            return None
        except (EOFError, OSError) as error:
            _give_up(place, name, connection, f"ended: {error}", shard, batch)
            return None
    if reply.kind == exchange.RAISED:
        raise pickle.loads(reply.parts[0])
    if reply.kind == exchange.REFUSED:
        _refuse(function, bytes(reply.parts[0]).decode())
        return None
    return exchange.unpack_table(reply.parts[0])


def _ask(connection: socket.socket, function: Shipped, fields: dict[str, Any], table: pa.Table) -> Message:
    """Send the request, and the operator if the holder does not know it, and wait for the answer."""
    request = [pickle.dumps(fields), exchange.pack_table(table)]
    exchange.send(connection, exchange.SHARD, request)
    while True:
        reply = exchange.receive(connection)
        if reply.kind == exchange.UNKNOWN:
            parts = [function.key.encode(), function.packed, pickle.dumps([path for path in sys.path if path])]
            exchange.send(connection, exchange.OPERATOR, parts)
            exchange.send(connection, exchange.SHARD, request)
        elif reply.kind != exchange.ALIVE:
            return reply


def _surroundings() -> dict[str, Any]:
    """The context of a Spark task that a program may read."""
    from pyspark import TaskContext
    from pyspark.core.files import SparkFiles

    context = TaskContext.get()
    return {"context": dict(context.__dict__) if context is not None else {}, "files": SparkFiles._root_directory}


def _owner() -> int:
    """Return the process that a holder works for, and ends with: the daemon of this worker. Where the daemon was
    killed, the worker itself: Spark gives tasks to such workers, too, whose parent is the system's first process.
    """
    daemon = os.getppid()
    return daemon if daemon > 1 else os.getpid()


def _needs_worker() -> bool:
    from pyspark.accumulators import _accumulatorRegistry

    return bool(_accumulatorRegistry)


def _refuse(function: Shipped, why: str) -> None:
    """Keep this operator in the worker from now on, and log that once."""
    _refused[function.key] = why
    _log.warning("hybridstore: operator %r works without a holder: %s", function.operator.name, why)


def _give_up(place: SocketFolder, name: str, connection: socket.socket, why: str, shard: int, batch: Batch) -> None:
    with suppress(OSError):
        place.note_failure(name, exchange.peer(connection)[0])
        place.sweep()
    _log.warning(
        "hybridstore: gave up on holder %s (%s); batch %d of shard %d continues in the worker",
        name,
        why,
        batch.number,
        shard,
    )


def _kill(connection: socket.socket) -> None:
    """Kill a holder that hangs.

    The connection is open, so the listening process still exists, and no other process has its number.
    """
    with suppress(OSError):
        fd = os.pidfd_open(exchange.peer(connection)[0])
        try:
            if not exchange.ended(connection):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def _connect(place: SocketFolder, name: str, *, wait: bool) -> socket.socket | None:
    """Connect to a holder; None if none exists. With `wait` a holder is started, and waited for."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            return place.connect(name, SILENCE_SECONDS)
        except (BlockingIOError, TimeoutError):
            _log.warning(
                "hybridstore: holder %s takes no connection: it is stopped, or its queue is full; this batch continues "
                "in the worker",
                name,
            )
            return None
        except (FileNotFoundError, ConnectionRefusedError):
            _note_ended(place)
            if not wait or _paused(place, name) or not (_start(place, name) or _starting(place, name)):
                return None
        if time.monotonic() > until:
            # The holder has its lock, but does not listen. The next batches do not wait for it again.
            place.note_failure(name)
            _log.warning("hybridstore: holder %s could not be reached for %g s", name, START_SECONDS)
            return None
        time.sleep(0.02)


def _note_ended(place: SocketFolder) -> None:
    """Note failures of the holders that this process has started and that have ended."""
    for other, process in _started:
        if process.poll():
            _log.warning("hybridstore: holder %s ended with exit code %d", other, process.returncode)
            place.note_failure(other, process.pid)
    _started[:] = [(other, process) for other, process in _started if process.returncode is None]


def _paused(place: SocketFolder, name: str) -> bool:
    """True when the last holders of a name failed recently: 2^n seconds after n failures."""
    failures, age = place.failures(name)
    return bool(failures) and age < min(LONGEST_PAUSE_SECONDS, 2.0**failures)


def _starting(place: SocketFolder, name: str) -> bool:
    """True when another worker has started the holder."""
    fd = place.lock(name)
    if fd is not None:
        os.close(fd)
    return fd is None


def _start(place: SocketFolder, name: str) -> bool:
    """Start a holder unless one runs, or the last ones failed recently; True when this call has started it."""
    _note_ended(place)
    if _paused(place, name):
        return False
    fd = place.lock(name)
    if fd is None:
        return False
    try:
        code = (
            "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
            "from hybridstore.spark.holder import main; main(*sys.argv[2:])"
        )
        command = [sys.executable, "-c", code, json.dumps(sys.path), str(place.path), name, str(_owner())]
        # A separate process group: the end of one executor's workers must not end the holder.
        process = subprocess.Popen(
            command, pass_fds=(fd,), stdin=subprocess.DEVNULL, stdout=2, process_group=0, cwd=Path.cwd()
        )
        _started.append((name, process))
    finally:
        os.close(fd)
    return True
