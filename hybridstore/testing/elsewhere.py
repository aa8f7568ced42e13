"""Elsewhere: the same program in other processes, where hashes, the clock, the time zone and the folder are others."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from changelog.codec import pack

from ..topologies.declare import Topology
from .comparing import Case, Program, ResultText

# Far from whole hours; the second is for those who live in the first.
_ZONES: Final = ("Asia/Kathmandu", "America/St_Johns")


def source_of(program: Program) -> tuple[str, str]:
    """Return the file of a program and its name there. Raises ValueError for a program without a name of a module."""
    if not isinstance(program, Topology):
        code, name = getattr(program, "__code__", None), getattr(program, "__qualname__", "")
        if code is not None and name.isidentifier() and name != "<lambda>":
            return code.co_filename, name
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        for name, value in list(getattr(module, "__dict__", {}).items()) if file else ():
            if value is program:
                return str(file), name
    raise ValueError(
        "elsewhere: program: found a program without a name in a module, expected a topology, or a function that "
        "returns one, at the top of a module, because another process has to import it"
    )


@dataclass(frozen=True)
class Elsewhere:
    """A way: the program in other processes."""

    def __str__(self) -> str:
        return "elsewhere()"

    def results(self, case: Case, dice: random.Random) -> Iterator[tuple[str, list[ResultText], list[ResultText]]]:
        """Yield the results of a state that two processes share, and of the whole in another process."""
        file, name = source_of(case.program)
        options: dict[str, Any] = {"shards": case.shards, "commit_rows": case.commit_rows, "flush": case.flushes}
        with case.place() as state:
            cut = dice.randint(1, 999)
            first = case.run(case.parts(cut), state, flush=False)
            job = {"file": file, "name": name, "by": case.by, "rows": case.rows, "options": options, "path": sys.path}
            # the state first: a process that has seen all rows would know more than one that starts behind a crash
            rest, whole = _in_another_process({**job, "states": [str(state), None]}, dice)
        yield f"in another process from {cut / 10} % of the rows on", first + rest, case.whole
        yield "in another process", whole, case.whole


def _in_another_process(job: dict[str, Any], dice: random.Random) -> Iterator[list[ResultText]]:
    """Return the results of a job on each of its states, in one process."""
    zone = _ZONES[time.localtime().tm_gmtoff == 20_700]
    environment = {**os.environ, "PYTHONHASHSEED": str(dice.randint(1, 2**32 - 1)), "TZ": zone, "LC_ALL": "C.UTF-8"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, job["path"]))
    command = [sys.executable, "-m", "hybridstore.testing.other_process"]
    with tempfile.TemporaryDirectory(prefix="hybridstore-", ignore_cleanup_errors=True) as folder:
        answer = subprocess.run(command, input=pack(job), env=environment, cwd=folder, capture_output=True, check=False)
    if answer.returncode:
        lines = answer.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise RuntimeError(f"elsewhere: {Path(job['file']).name}: {job['name']}: the process ended with: {lines[-1]}")
    runs = json.loads(answer.stdout.splitlines()[-1])
    return ([ResultText(known_by, text) for known_by, text in run] for run in runs)


def elsewhere() -> Elsewhere:
    """A way for `check`: the program in another process, and on a state that two processes work on one after the other,
    with another hash seed, clock (400 days on), time zone and working folder. The program is imported there, so it is a
    topology, or a function that returns one, at the top of a module. Takes a second.

    Finds the order of sets, `hash` and `id` of text, today's date, local time, chance, files beside the program, state
    that only one process has, and caches that a process has kept for too long. Raises ValueError for a program that
    cannot be imported.

    >>> from hybridstore import testing as ht
    >>> from pathlib import Path
    >>> _ = Path("tags.py").write_text('''
    ... import hybridstore as hs
    ...
    ... def tags(row, stores):
    ...     yield {"tags": ",".join({"blue", "red", row["tag"]})}
    ...
    ... topology = hs.stream(key="user", timestamp="ts").process(tags)
    ... ''')
    >>> from importlib.util import module_from_spec, spec_from_file_location
    >>> import sys
    >>> spec = spec_from_file_location("tags", "tags.py")
    >>> sys.modules["tags"] = module = module_from_spec(spec)
    >>> spec.loader.exec_module(module)
    >>> rows = [{"user": "ann", "ts": ts, "tag": f"tag {ts}"} for ts in range(20)]
    >>> ht.check(module.topology, rows, ht.elsewhere())
    Traceback (most recent call last):
        ...
    hybridstore.testing.comparing.DifferentResultsError: elsewhere(), seed 0: in another process from ...
    """
    return Elsewhere()
