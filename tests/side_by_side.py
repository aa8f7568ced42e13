"""How `make test` spreads the tests over processes (pytest-xdist): which stay together, and what begins first.

A file stays together, so that what it makes once for all its tests is made once, and the tests that need a Spark
session share the one of their process. The files of ALONE, whose tests are long and need nothing of each other, are
taken apart. What takes longest begins first, so that no process waits for another's last test.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Files whose tests go to whichever process is free, each on its own.
ALONE = frozenset(
    {
        "tests/test_bench_suites.py",
        "tests/test_crash_points.py",
        "tests/test_damage.py",
        "tests/test_examples.py",
        "tests/test_kill.py",
        "tests/test_readme.py",
        "tests/test_spark_murders.py",
        "tests/test_weblog.py",
    }
)
# What begins first, the longest first; then come files with tests marked `spark`, those with `slow` ones, and the rest.
FIRST = ("tests/test_spark_murders.py", "tests/test_spark_operator.py", "tests/test_spark_processor.py")
MEMORY_EACH = 2 * 1024**3  # bytes: a process of tests, and its Java at the most


def processes() -> int:
    """Return how many processes to start: two more than cores, because half of the time they wait for another process.

    One core gets three, and more than eight bring nothing: the longest file of Spark tests then decides. Each may start
    a Java, so there is one for every 2 GiB of memory at most.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores + 2, 8, memory // MEMORY_EACH))


def unit(nodeid: str) -> str:
    """Return the unit that a test belongs to: its file, or the test itself where the file is one of ALONE."""
    file = nodeid.partition("::")[0]
    return nodeid if file in ALONE else file


def rank(nodeid: str, marks: set[str]) -> tuple[int, int]:
    """Return the place of a unit that has a test with these marks: the smallest comes first."""
    file = nodeid.partition("::")[0]
    if file in FIRST:
        return 0, FIRST.index(file)
    return (1 if "spark" in marks else 2 if "slow" in marks else 3), 0


def sort(items: list[pytest.Item]) -> None:
    """Bring the tests into the order in which their units should begin; the order within a unit stays."""
    ranks: dict[str, tuple[int, int]] = {}
    for item in items:
        own = rank(item.nodeid, {mark.name for mark in item.iter_markers()})
        ranks[unit(item.nodeid)] = min(own, ranks.get(unit(item.nodeid), own))
    items.sort(key=lambda item: ranks[unit(item.nodeid)])


class Scheduling(LoadScopeScheduling):
    """Hands out units, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Callable[..., Any] | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)  # type: ignore[arg-type]

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
