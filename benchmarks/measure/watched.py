"""Watched: run functions of ours in new processes, and read their anonymous memory from outside while they work.

    parent   samples /proc/PID/status every few ms      highest RssAnon of each phase, less that of the base line
    worker   phase("base"), phase("uniform"), ...       tells over its standard output what it begins

Anonymous memory is what a container is killed for; pages of mapped files are not counted. Processes that the worker
starts are counted apart. Workers that are called together work in turn, a phase each; those that wait are stopped by
the system, with what they have started, so that nothing of them works beside the one whose turn it is.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.measure.timing import WrongAnswerError

# The phase whose last sample is the base line.
BASE: Final = "base"
_SAMPLE_SECONDS: Final = 0.005


class Memory(NamedTuple):
    """The highest anonymous memory of a phase beyond the base line (bytes), and that of all child processes."""

    anonymous: int
    children: int


class Worker:
    """A function of ours in a fresh interpreter, which stops before each of its phases. `memory`: of the phases that
    have begun; `answer`: what the function returned, through JSON.
    """

    def __init__(self, target: str, arguments: Mapping[str, Any]) -> None:
        root = Path(__file__).resolve().parent.parent.parent
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.answer: Any = None
        self.memory: dict[str, Memory] = {}
        self._target = target
        self._base = 0
        self._phase = self._pending = ""
        self._stopped: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, target, json.dumps(arguments)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:  # in the middle: another worker failed
            self.stop()
            for pid in reversed(self._stopped):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def advance(self) -> bool:
        """Let the worker work until its next phase is to begin; False when it has answered.

        Raises WrongAnswerError when it did, and RuntimeError with its last line when it failed.
        """
        process = self._process
        assert process.stdin is not None
        for pid in reversed(self._stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped = []
        if self._pending:
            self._phase, self._pending = self._pending, ""
            with suppress(BrokenPipeError):
                process.stdin.write(b"\n")
                process.stdin.flush()
        if self._sampled():
            return True
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace").strip().splitlines()
        process.wait()
        if process.returncode or self.answer is None:
            last = errors[-1] if errors else "no message"
            if last.startswith(f"{WrongAnswerError.__module__}.{WrongAnswerError.__name__}: "):
                raise WrongAnswerError(last.partition(": ")[2])
            raise RuntimeError(f"{self._target} in a fresh process: {last}")
        self.memory = {name: peak for name, peak in self.memory.items() if name not in ("", BASE)}
        return False

    def stop(self) -> None:
        """Stop the worker and what it has started, until it is to work again. O(processes)."""
        for pid in [self._process.pid, *children_of(self._process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)

    def _sampled(self) -> bool:
        """Sample memory until the worker is about to begin a phase; False when it has closed its output."""
        assert self._process.stdout is not None
        pid, output, rest = self._process.pid, self._process.stdout.fileno(), b""
        while True:
            ready = select.select([output], [], [], _SAMPLE_SECONDS)[0]
            now, children = anonymous_bytes(pid), sum(map(anonymous_bytes, children_of(pid)))
            before = self.memory.get(self._phase, Memory(0, 0))
            self.memory[self._phase] = Memory(max(before.anonymous, now - self._base), max(before.children, children))
            if not ready:
                continue
            data = os.read(output, 65536)
            if not data:
                return False
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                name, _, value = line.decode().partition(" ")
                if name == "answer":
                    self.answer = json.loads(value)
                elif name == "phase":
                    self._base = now if self._phase == BASE else self._base
                    self._pending = value
            if self._pending:
                return True


def call(target: str, **arguments: Any) -> tuple[Any, dict[str, Memory]]:
    """Call `target` ("module:function") in a fresh interpreter; return its answer, through JSON, and the memory of each
    phase.

    Raises WrongAnswerError when it did, and RuntimeError with its last line when it failed. On systems without
    /proc the memory is 0.
    """
    return call_together(target, [arguments])[0]


def call_together(target: str, calls: Sequence[Mapping[str, Any]]) -> list[tuple[Any, dict[str, Memory]]]:
    """Call `target` with each of these arguments, in fresh interpreters that work in turn, a phase each: the first one
    begins the first phase, the second one the second phase. As `call`.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(target, arguments)) for arguments in calls]
        working, turn = list(workers), 0
        while working:
            first = turn % len(working)
            turn += 1
            for worker in working[first:] + working[:first]:
                if not worker.advance():
                    working.remove(worker)
                elif len(workers) > 1:
                    worker.stop()
        return [(worker.answer, worker.memory) for worker in workers]


def phase(name: str) -> None:
    """In the worker: begin a phase. Returns when the parent has taken the last sample of the phase before."""
    if name == BASE:
        # what imports and preparation freed is given back, so that it does not hide what the phases take
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
    print(f"phase {name}", flush=True)
    sys.stdin.readline()


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process (bytes); 0 where the system does not tell, or the process has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    at = text.find("RssAnon:")
    return int(text[at + 8 :].split(maxsplit=1)[0]) * 1024 if at >= 0 else 0


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of the children that it has waited for (s), in steps of 10 ms; 0 where
    the system does not tell, or the process has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> None:
    """Run `module:function` with its JSON arguments and print the answer."""
    target, packed = arguments
    module, _, name = target.partition(":")
    answer = getattr(import_module(module), name)(**json.loads(packed))
    print(f"answer {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    # `phase` is called as a function of the imported module
    main(sys.argv[1:])
