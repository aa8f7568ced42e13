"""Fresh process: run one function of ours in a new interpreter and take its answer as JSON.

Memory and openings are only measured well where nothing ran before. Also a program: `python -m
benchmarks.measure.fresh_process module:function '{"argument": ...}'`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def call(target: str, **arguments: Any) -> Any:
    """Call `target` ("module:function") in a fresh interpreter and return what it returns, through JSON.

    Raises WrongAnswerError when it did, and RuntimeError with its last line when it failed.
    """
    import subprocess  # only here, as the next one: the fresh process is measured from its start on

    from benchmarks.measure.timing import WrongAnswerError

    # an installed program is compiled once, and not at every start
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    root = Path(__file__).resolve().parent.parent.parent
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    answer = subprocess.run(
        [sys.executable, "-m", __name__, target, json.dumps(arguments)],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        if last.startswith(f"{WrongAnswerError.__module__}.{WrongAnswerError.__name__}: "):
            raise WrongAnswerError(last.partition(": ")[2])
        raise RuntimeError(f"{target} in a fresh process: {last}")
    return json.loads(answer.stdout.splitlines()[-1])


def resident_bytes() -> int:
    """Return how much memory this process holds now, or its peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the most memory that this process ever held (not its parent, whose peak `getrusage` hands down on
    Linux).
    """
    try:
        for text in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if text.startswith("VmHWM:"):
                return int(text.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def bytes_read() -> tuple[int, int]:
    """Return (bytes asked for by read calls, bytes that came from the disk) of this process; zeros where the system
    does not tell.
    """
    counters = _io_counters()
    return counters.get("rchar", 0), counters.get("read_bytes", 0)


def bytes_written() -> int:
    """Return how many bytes this process caused to be written to the disk, whole pages, those of memory maps too; 0
    where the system does not tell.
    """
    return _io_counters().get("write_bytes", 0)


def _io_counters() -> dict[str, int]:
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, value in (text.split(": ") for text in lines)}


def main(arguments: list[str]) -> None:
    """Run `module:function` with its JSON arguments and print the answer as JSON."""
    target, packed = arguments
    module, _, name = target.partition(":")
    print(json.dumps(getattr(import_module(module), name)(**json.loads(packed))))


if __name__ == "__main__":
    main(sys.argv[1:])
