"""How `make test` spreads the tests over processes (pytest-xdist): which stay together, and what begins first.

A file stays together, so that what it makes once for all its tests is made once. The files of ALONE, whose tests are
long and need nothing of each other, are taken apart. What takes long begins first, so that no process waits for
another's last test. A Spark session takes fifteen seconds of a processor until its second query, so half of the
processes, rounded up, have none while there is something else to do.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Files whose tests go to whichever process is free, each on its own.
ALONE = (
    "tests/spark/test_murders.py",
    "tests/benchmarks/test_suites.py",
    "tests/docs/test_examples.py",
    "tests/recovery/test_crash_points.py",
    "tests/recovery/test_damage.py",
    "tests/state/test_kill.py",
)
# What takes long, in the order in which it begins; then come the other files in the order of their names.
LONG = (
    "tests/spark/test_moving_in.py",
    "tests/spark/test_event_time.py",
    "tests/spark/test_joins.py",
    "tests/spark/test_watermark.py",
    "tests/spark/test_pandas_doors.py",
    "tests/spark/test_processor.py",
    "tests/spark/test_operator_tasks.py",
    "tests/spark/test_murders.py",
    "tests/docs/test_examples.py",
    "tests/spark/test_no_ceremony.py",
    "tests/benchmarks/",
    "tests/spark/",
    "tests/aggregation/test_sliding_strategies.py",
    "tests/inspection/test_urls.py",
    "tests/stores/test_vectors.py",
    "tests/topology/test_every_way.py",
    "tests/state/test_object_store.py",
    "tests/simulation/",
    "tests/docs/test_site.py",
    "tests/inspection/test_memory.py",
    "tests/state/test_interrupts.py",
    "tests/recovery/test_crash_points.py",
    "tests/recovery/test_damage.py",
    "tests/state/test_kill.py",
    "tests/testing/test_planted_bugs.py",
    "tests/topology/test_cut_anywhere.py",
)
ROOT = Path(__file__).resolve().parents[2]
# Files whose tests share the Spark session of their process: those that name its type, or jobs that run in it.
_USES = re.compile(r"^    from .* import .*SparkSession|spark_jobs import", re.MULTILINE)
_FILES = sorted(ROOT.glob("tests/*/test_*.py"))
SESSION = tuple(str(path.relative_to(ROOT)) for path in _FILES if _USES.search(path.read_text(encoding="utf-8")))
MEMORY_EACH = 2 * 1024**3  # bytes: a process of tests, and its Java


def processes() -> int:
    """Return how many processes to start: one more than cores, because now and then they wait for another process.

    On two cores four processes let 6 core-seconds of 600 pass unused, and three 16 of 578: a fourth one collects the
    tests once more, and its Java begins cold. More than eight bring nothing: the longest file of Spark tests then
    decides. Each may start a Java, so there is one for every 2 GiB of memory at most.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores + 1, 8, memory // MEMORY_EACH))


def from_own_place(files: Sequence[Path], process: int, count: int) -> list[Path]:
    """Return all files in the order in which this one of so many processes imports them: each begins at another."""
    first = len(files) * process // count
    return [*files[first:], *files[:first]]


def import_ahead(process: int, count: int) -> None:
    """Import all files of tests, each process from its own place on.

    pytest rewrites the asserts of a file that it meets for the first time, which takes ten seconds for all, and keeps
    the result beside the file. Processes that import the files in one order would each do all of that.
    """
    for path in from_own_place(_FILES, process, count):
        # pytest imports anew what could not be imported, or is to be skipped, and says so
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def unit(nodeid: str) -> str:
    """Return the unit that a test belongs to: its file, or the test itself where the file is one of ALONE."""
    file = nodeid.partition("::")[0]
    return nodeid if file in ALONE else file


def rank(unit: str) -> int:
    """Return the place of a unit in LONG, or the number behind all of them."""
    return next((place for place, start in enumerate(LONG) if unit.startswith(start)), len(LONG))


def choose(queue: list[str], waiting: list[str], *, session: bool, alone: bool = False) -> str:
    """Return the unit of the queue that a process gets next, which has these before it; `session` says whether the
    process is one of those that are to have a Spark session, and `alone` whether no other process is.

    The longest; but behind a long one a short one, because another process may be free for a long one sooner.
    """
    fitting = [name for name in queue if name.startswith(SESSION) == session] or queue
    if any(rank(name) < len(LONG) for name in waiting) and not (alone and fitting[0].startswith(SESSION)):
        return max((name for name in queue if not name.startswith(SESSION)), key=rank, default=fitting[0])
    return min(fitting, key=rank)


class Scheduling(LoadScopeScheduling):
    """Hands out units as `choose` says."""

    def __init__(self, config: pytest.Config, log: Callable[..., Any] | None = None) -> None:
        # which would order units by the number of their tests
        config.option.loadscopereorder = False
        super().__init__(config, log)  # type: ignore[arg-type]

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Stop waiting for a process, and return the test in which it ended, which no other process begins again.

        The rest of its units goes to others. pytest-xdist itself hands out all of its units again, and at once: a
        process that gets one that is complete has nothing to report, so it gets no further unit and the run never ends.
        """
        units = self.assigned_work.pop(node)
        if not self._pending_of(units):
            return None
        ended_in = next(name for tests in units.values() for name, ended in tests.items() if not ended)
        units[unit(ended_in)][ended_in] = True
        self.workqueue.update((name, tests) for name, tests in units.items() if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_in

    def _reschedule(self, node: Any) -> None:
        """Give a process more units, if it needs some and has told which tests it knows. A process begins a test only
        when it knows the next one, or that there is none.
        """
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)

    def _assign_work_unit(self, node: Any) -> None:
        units = self.assigned_work.get(node, {})
        waiting = [name for name, tests in units.items() if not all(tests.values())]
        sessions = max(1, len(self.nodes) // 2)
        chosen = choose(list(self.workqueue), waiting, session=self.nodes.index(node) < sessions, alone=sessions == 1)
        self.workqueue.move_to_end(chosen, last=False)
        with suppress(OSError):  # it has ended, and `remove_node` will be told so: then others get the unit
            super()._assign_work_unit(node)
