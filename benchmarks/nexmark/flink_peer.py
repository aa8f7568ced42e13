"""Flink peer: what Flink takes for a query, and how long it is silent behind a kill -9.

It runs flink_program.py in the environment of `oracles.flink_python()`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .oracles import FLINK_PROGRAM, flink_program, flink_python


def seconds_of(folder: Path, queries: Sequence[str]) -> dict[str, float]:
    """Return the processor seconds of Java that the rows of each query cost as a stream into nothing, RocksDB and
    checkpoints on; "read" is reading the bids alone. What a job costs over few rows is taken off.
    """
    lines = [json.loads(text) for text in flink_program(folder, "rates", queries).splitlines() if text[:1] == "{"]
    return {line["query"]: line["all"][0] - line["few"][0] for line in lines}


def _started(folder: Path, query: str, behind: Path | None) -> subprocess.Popen[bytes]:
    command = [str(flink_python()), str(FLINK_PROGRAM), str(folder), "endless", query]
    environment = {"JAVA_TOOL_OPTIONS": "-Xmx1g", **os.environ}
    return subprocess.Popen(
        command if behind is None else [*command, str(behind)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def checkpoints_of(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder's jobs, the newest last."""
    return sorted(
        (path.parent for path in folder.glob("checkpoints/*/chk-*/_metadata")), key=lambda path: path.stat().st_mtime
    )


def _is_result(line: bytes) -> bool:
    return line[:3] in (b"+I[", b"+U[", b"-U[", b"-D[")


def silent_behind_a_kill(folder: Path, query: str, least: int) -> float:
    """Run a query whose results are printed, kill it with all its processes when `least` results and a checkpoint are
    there, start it from the checkpoint, and return the seconds from that start to the first result.

    Raises RuntimeError if it ends before.
    """
    before = set(checkpoints_of(folder))  # of other queries
    process = _started(folder, query, None)
    results = 0
    newest: Path | None = None
    assert process.stdout is not None
    for line in process.stdout:
        results += _is_result(line)
        if results >= least and (complete := [each for each in checkpoints_of(folder) if each not in before]):
            newest = complete[-1]
            break
    if newest is None:
        raise RuntimeError(f"Flink, {query}: ended with {results} results and no checkpoint in time")
    _kill(process)
    begun = time.perf_counter()
    process = _started(folder, query, newest)
    assert process.stdout is not None
    first: Any = next((line for line in process.stdout if _is_result(line)), None)
    taken = time.perf_counter() - begun
    _kill(process)
    if first is None:
        raise RuntimeError(f"Flink, {query}: no result behind the checkpoint {newest}")
    return taken


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
