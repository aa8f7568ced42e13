"""Watched: run one function of ours in a new process, and read its anonymous memory from outside while it works.

    parent   samples /proc/PID/status every few ms      highest RssAnon of each phase, less that of the base line
    worker   phase("base"), phase("uniform"), ...       tells over its standard output what it begins

Anonymous memory is what a container is killed for; pages of mapped files are not counted. Processes that the worker
starts are counted apart.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import subprocess
import sys
from contextlib import suppress
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


def call(target: str, **arguments: Any) -> tuple[Any, dict[str, Memory]]:
    """Call `target` ("module:function") in a fresh interpreter; return its answer, through JSON, and the memory of each
    phase.

    Raises WrongAnswerError when it did, and RuntimeError with its last line when it failed. On systems without
    /proc the memory is 0.
    """
    root = Path(__file__).resolve().parent.parent.parent
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, target, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        answer, peaks = _watch(process)
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.returncode or answer is None:
        last = errors[-1] if errors else "no message"
        if last.startswith(f"{WrongAnswerError.__module__}.{WrongAnswerError.__name__}: "):
            raise WrongAnswerError(last.partition(": ")[2])
        raise RuntimeError(f"{target} in a fresh process: {last}")
    return answer, peaks


def _watch(process: subprocess.Popen[bytes]) -> tuple[Any, dict[str, Memory]]:
    """Sample until the worker has closed its output; answer its phases, so that a phase begins behind its sample."""
    assert process.stdout is not None
    assert process.stdin is not None
    output, pending = process.stdout.fileno(), b""
    answer, phase, base = None, "", 0
    peaks: dict[str, Memory] = {}
    while True:
        ready = select.select([output], [], [], _SAMPLE_SECONDS)[0]
        now, children = anonymous_bytes(process.pid), sum(map(anonymous_bytes, children_of(process.pid)))
        before = peaks.get(phase, Memory(0, 0))
        peaks[phase] = Memory(max(before.anonymous, now - base), max(before.children, children))
        if not ready:
            continue
        data = os.read(output, 65536)
        if not data:
            return answer, {name: peak for name, peak in peaks.items() if name not in ("", BASE)}
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(" ")
            if name == "answer":
                answer = json.loads(value)
            elif name == "phase":
                base = now if phase == BASE else base
                phase = value
                with suppress(BrokenPipeError):
                    process.stdin.write(b"\n")
                    process.stdin.flush()


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


def main(arguments: list[str]) -> None:
    """Run `module:function` with its JSON arguments and print the answer."""
    target, packed = arguments
    module, _, name = target.partition(":")
    answer = getattr(import_module(module), name)(**json.loads(packed))
    print(f"answer {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    # `phase` is called as a function of the imported module
    main(sys.argv[1:])
