"""Collector: Python's garbage collector kept away from the stored records.

Stored records never form cycles, yet the collector walks them again and again while records are put: measured, the
collector then takes more time than the puts themselves. `collector_held` puts the collector off for one block of code.
`Tasks` is for a process that works task by task on a state that stays (a Spark worker): what a task leaves is put where
the collector never looks.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# All that is frozen is walked again after it has grown by half, and by at least this many objects: the walks then cost
# each object some three visits, and garbage that was frozen while it was still in use stays below a half of what is in
# use.
GROWTH_OBJECTS = 100_000
# To look for a task's garbage costs a walk over what the task has made. After so many tasks without any, only one task
# in SELDOM is looked at, until that one has some.
CLEAN_TASKS = 8
SELDOM = 8


class collector_held:
    """Hold the garbage collector inside a `with` block; one that was off stays off, also when blocks are nested.

    O(1).
    """

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()


class Tasks:
    """The tasks of one process: `with tasks.task(): ...` holds the collector, frees the task's cyclic garbage and
    freezes what is left.

    An object that was alive at the end of a task and became cyclic garbage later is freed by a walk over everything,
    which comes when the frozen objects have grown by half, and at the earliest by `growth` objects. So is garbage of
    tasks that were not looked at (SELDOM), for which the walk comes with the next garbage that is seen.
    """

    def __init__(self, growth: int = GROWTH_OBJECTS) -> None:
        self.growth = growth
        # How many objects were frozen after the last walk over everything, and by how many more they have grown since.
        self._walked = 0
        self._grown = 0
        # how many tasks in a row had no garbage, or were not looked at
        self._clean = 0

    @contextmanager
    def task(self) -> Iterator[None]:
        """Enclose one task. Costs at most a walk over what the task has made, O(made), whatever is stored."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            self._freeze()
            if enabled:
                gc.enable()

    def _freeze(self) -> None:
        # The first number is what was made less what was freed since the last freeze. The garbage has to go before the
        # freeze, which would keep it for ever.
        allocated = gc.get_count()[0]
        trusted = self._clean >= CLEAN_TASKS
        freed = 0 if trusted and self._clean % SELDOM else gc.collect()
        self._clean = 0 if freed else self._clean + 1
        self._grown += max(0, allocated - freed)
        # Where trust was misplaced, tasks before this one have left garbage, too.
        if self._grown <= max(self.growth, self._walked // 2) and not (trusted and freed):
            gc.freeze()
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._grown, self._walked = 0, gc.get_freeze_count()
