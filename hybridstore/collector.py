"""Collector: keeps Python's garbage collector away from the stored records.

Stored records never form cycles, but the collector visits all of them again and again while records are put. The
collector then takes more time than the puts (measured). `collector_held` turns the collector off for one block of code.
`Tasks` is for a process that works task by task on a state that stays in memory (a Spark worker). The objects that are
alive after a task are frozen, so the collector does not visit them. `SHORT_PAUSES` is for a program with open states: a
collection of all objects visits only the objects that are new since the last one.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

# The collector visits all frozen objects again after their number has grown by half, and by at least this many objects.
# Each object is then visited about three times, and garbage that was frozen while still in use stays below half of
# the objects in use.
GROWTH_OBJECTS = 100_000
# A search for a task's garbage visits all objects that the task has made: up to a seventh of a task's time. After
# CLEAN_TASKS tasks without garbage, only one task in SELDOM is searched, until a search finds garbage. Then twice as
# many tasks without garbage are needed, because a wrong guess costs a visit to all objects.
CLEAN_TASKS = 2
# After so many collections of the second generation (each of some 7,700 objects) the survivors are frozen, if the
# process has grown by so many blocks of memory: the collector would visit them all at the tenth.
YOUNG_COLLECTIONS = 3
OLD_BLOCKS = 20_000
# To count the blocks visits all memory of the process, which takes 2 ms for 12 million: a large process counts them
# after more collections, one for so many blocks, but before the tenth.
COUNTED_BLOCKS: Final = 1 << 20
MOST_COLLECTIONS: Final = 8
SELDOM = 8
# As many young objects are visited when stores have new sets: more are of a program that turned the collector off.
_FEW_YOUNG: Final = 10_000


class collector_held:
    """Turn the garbage collector off inside a `with` block. A collector that was off before stays off, so blocks can be
    nested.

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
    """The tasks of one process: `with tasks.task(): ...` turns the collector off, frees the task's cyclic garbage and
    freezes the remaining objects.

    An object that was alive at the end of a task and became cyclic garbage later is freed by a collection of all
    objects. This collection runs when the frozen objects have grown by half, and at the earliest by `growth` objects.
    Garbage of tasks that were not searched (SELDOM) is also freed by a collection of all objects, which runs after the
    next search that finds garbage.
    """

    def __init__(self, growth: int = GROWTH_OBJECTS) -> None:
        self.growth = growth
        # The number of frozen objects after the last collection of all objects, and the number of objects frozen since.
        self._walked = 0
        self._grown = 0
        # the number of consecutive tasks that had no garbage or were not searched
        self._clean = 0
        self._needed = CLEAN_TASKS

    @contextmanager
    def task(self) -> Iterator[None]:
        """Enclose one task. O(objects that the task has made), independent of the number of stored records."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            self._freeze()
            if enabled:
                gc.enable()

    def _freeze(self) -> None:
        # The first number counts the objects made minus the objects freed since the last freeze. Garbage must be freed
        # before the freeze, because frozen garbage would stay for ever.
        allocated = gc.get_count()[0]
        trusted = self._clean >= self._needed
        freed = 0 if trusted and self._clean % SELDOM else gc.collect()
        self._clean = 0 if freed else self._clean + 1
        self._grown += max(0, allocated - freed)
        # Garbage after trusted tasks means that the unsearched tasks before may have left garbage, too.
        if trusted and freed:
            self._needed *= 2
        elif self._grown <= max(self.growth, self._walked // 2):
            gc.freeze()
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._grown, self._walked = 0, gc.get_freeze_count()


# Python 3.12 freezes 375 objects of its own when it starts; a program that freezes its own has more.
_OWN_FROZEN: Final = 1000
# How long a thread waits for another one that opens or closes a state.
LOCK_SECONDS: Final = 1.0


class ShortPauses:
    """As long as a state is open, old objects are frozen by the tens of thousands, so that a collection of all objects
    visits a few only, whatever their number: without this 300 ms for 300,000 records.

    Objects are frozen when they have outlived two collections, and only when the process has grown by OLD_BLOCKS in the
    meantime: that is growth of the stores, not garbage of the program. The growth is counted by the allocator, because
    `gc.get_objects` would hand out tuples that another thread is still making, whose making then fails. Garbage that is
    frozen while still in use is freed at the close of the last state: all objects are unfrozen then, unless some were
    frozen before by another. The surprise: freezing comes before a collection of all objects, because such a
    collection would untrack the dicts of the stores, and visit them each time they are tracked again. Counting what is
    frozen visits all of it: that is done at the first freeze, and not at an opening.
    """

    def __init__(self) -> None:
        self._users = 0
        # whether another froze objects before this did; None until this freezes some
        self._frozen_before: bool | None = None
        # the blocks of memory of the process at the last freeze, or fewer, if it has shrunk since; None until a
        # collection: counting visits all memory of the process, which is not for an opening
        self._blocks: int | None = None
        # how many collections of the second generation were since that was counted, and after how many it is counted
        self._young, self._apart = 0, YOUNG_COLLECTIONS
        # whether the collection that runs is one of new sets
        self._sealing = False
        # states of several threads are opened at once; a signal handler may open one in the middle of an opening
        self._lock = threading.RLock()

    def join(self) -> None:
        """A state is open from now on. O(1)."""
        with self._turn():
            self._users += 1
            if self._users == 1:
                self._frozen_before = None
                self._blocks = None
                if self._collected not in gc.callbacks:  # an exception from outside may have ended a leaving
                    gc.callbacks.append(self._collected)

    def leave(self) -> None:
        """A state was closed. O(1)."""
        with self._turn():
            self._users -= 1
            if self._users == 0:
                with suppress(ValueError):  # somebody else has cleared the list
                    gc.callbacks.remove(self._collected)
                if self._frozen_before is False:
                    gc.unfreeze()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # An exception from outside, as of Ctrl-C, may come between a lock and its release. Whoever waits for that
        # lock continues after a second: what it guards takes microseconds.
        locked = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if locked:
                self._lock.release()

    def loaded(self) -> None:
        """Freeze the records of a restore that has loaded many: none of them is garbage. O(1)."""
        if gc.get_count()[0] > GROWTH_OBJECTS:
            self._freeze()

    def sealed(self) -> None:
        """The stores have new sets, with few keys still: let the collector visit these now, and not when they have the
        keys of 100,000 changes, which took 7 ms, twice. O(young objects), of which fewer than 10,000 are visited.
        """
        if gc.get_count()[0] < _FEW_YOUNG:
            self._sealing = True
            try:
                gc.collect(1)
            finally:
                self._sealing = False

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        # a collection of new sets says nothing of how stores grow, and a commit would wait for the count
        if phase != "stop" or info["generation"] != 1 or self._sealing:
            return
        self._young += 1
        if self._blocks is not None and self._young < self._apart:
            return
        blocks = sys.getallocatedblocks()
        self._young, self._apart = 0, min(MOST_COLLECTIONS, max(YOUNG_COLLECTIONS, blocks // COUNTED_BLOCKS))
        before = blocks if self._blocks is None else self._blocks
        if gc.get_count()[2] >= YOUNG_COLLECTIONS and blocks - before >= OLD_BLOCKS:
            self._freeze()
            self._blocks = blocks
        else:
            self._blocks = min(before, blocks)

    def _freeze(self) -> None:
        if self._frozen_before is None:
            self._frozen_before = gc.get_freeze_count() > _OWN_FROZEN
        gc.freeze()


SHORT_PAUSES: Final = ShortPauses()
