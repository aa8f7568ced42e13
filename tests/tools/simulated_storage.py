"""Simulated storage: several processes on one object store, in one thread at a time, in an order and with faults that a
chooser picks.

Every call of a verb is a scheduling point: the chooser picks who goes on, and what becomes of the call.

    done        as asked
    failed      not done, OSError
    lost        done, OSError: its answer was lost
    late        OSError now; done at a later scheduling point, perhaps after its process has ended
    dies        the process ends before the call
    died        the process ends, the call is done
    dies late   the process ends, the call is done later

Real code runs unchanged: each actor is a thread that has the baton only between two of its calls. A run follows from
its choices alone. `Dice` makes them at random; `Search` makes all of them in turn, up to a number of departures from
the quiet order (the actor at work goes on, the call is done), as in "Delay-bounded scheduling" (Emmi, Qadeer,
Rakamaric, 2011).
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.tools.memory_storage import MemoryStorage

READS = ("done", "failed", "dies")
WRITES = ("done", "lost", "late", "died", "dies late", "failed", "dies")
STEPS = 20_000
# How likely dice are to let another actor go on, and to let a call go wrong.
SWITCH = 0.3
FAULT = 0.03
STALE = 0.2


class Died(BaseException):
    """The process of the actor has ended: raised in its code by every call from then on."""


class SimulatedError(OSError):
    """What a faulty call raises."""


class Chooser(Protocol):
    """Whoever decides."""

    def choose(self, count: int, odds: float) -> int:
        """Return a number below `count`; 0 is the quiet choice. `odds` is how likely another one is where dice
        decide.
        """


class Dice:
    """Chooses at random, from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        # Some histories are wild, some nearly quiet.
        self.temper = self.dice.choice((0.3, 1.0, 2.0))

    def choose(self, count: int, odds: float) -> int:
        return self.dice.randrange(count) if self.dice.random() < odds * self.temper else 0


class Search:
    """Chooses all ways in turn, each with at most `departures` choices other than 0.

    for search in searches(2): run(search)
    """

    def __init__(self, prefix: Sequence[int], departures: int) -> None:
        self.taken: list[int] = []
        self.counts: list[int] = []
        self._prefix = prefix
        self._departures = departures

    def choose(self, count: int, odds: float) -> int:
        at = len(self.taken)
        choice = self._prefix[at] if at < len(self._prefix) else 0
        if choice >= count:
            raise AssertionError(f"choice {at}: found {count} ways, {choice + 1} before: the run does not repeat")
        # A way that may not be taken any more is not counted: nothing has to be tried there.
        self.counts.append(count if sum(map(bool, self.taken)) < self._departures else 1)
        self.taken.append(choice)
        return choice


def searches(departures: int) -> Iterator[Search]:
    """Yield a chooser for each schedule; each must have been used to its end before the next is asked for."""
    prefix: list[int] | None = []
    while prefix is not None:
        search = Search(prefix, departures)
        yield search
        prefix = None
        for at in range(len(search.taken) - 1, -1, -1):
            if search.taken[at] + 1 < search.counts[at]:
                prefix = [*search.taken[:at], search.taken[at] + 1]
                break


class Process:
    """A process, with one actor at a time, which ends with it, as `memory` does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.memory: dict[str, Any] = {}
        self.actor: Actor | None = None


class Actor:
    """A thread of a process in the simulation; at work only while it has the baton."""

    def __init__(self, simulation: Simulation, process: Process, name: str, work: Callable[[Actor], None]) -> None:
        self.process, self.name = process, name
        self.ready: Callable[[], bool] | None = None
        self._simulation = simulation
        self._baton = threading.Semaphore(0)
        self._work = work
        threading.Thread(target=self._run, daemon=True, name=name).start()

    def _run(self) -> None:
        self._baton.acquire()
        try:
            if self.process.alive:
                self.process.actor = self
                self._work(self)
        except Died:
            pass
        except BaseException as error:
            self._simulation.failures.append(error)
        self._simulation.ended(self)

    def give(self) -> None:
        """Let the actor go on."""
        self._baton.release()

    def wait_for_turn(self) -> None:
        """Stop until the actor is chosen."""
        self._baton.acquire()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let others work until `ready()`; a scheduling point. Raises Died."""
        self.ready = ready
        self._simulation.turn(self)
        self.ready = None
        if not self.process.alive:
            raise Died

    def __repr__(self) -> str:
        return self.name


class Simulation:
    """The world: objects, processes at work, writes that are under way. At most `faults` calls go wrong.

    With `stale` a listing may be without the newest objects: no storage that the product is made for does that.
    """

    def __init__(self, chooser: Chooser, *, faults: int = 1000, stale: bool = False) -> None:
        self.chooser = chooser
        self.objects: dict[str, bytes] = {}
        self.history: list[str] = []
        self.failures: list[BaseException] = []
        self.faults = faults
        self.stale = stale
        self.steps = 0
        self._under_way: list[tuple[str, Callable[[], bool]]] = []
        self._actors: list[Actor] = []
        self._main = threading.Semaphore(0)

    def spawn(self, process: Process, name: str, work: Callable[[Actor], None]) -> Actor:
        """Begin `work` in a process; it runs when it is chosen."""
        actor = Actor(self, process, name, work)
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Run all actors to their end. Raises what one of them raised first."""
        if self._actors:
            self._pick(None).give()
            self._main.acquire()
        self.arrive()
        if self.failures:
            raise self.failures[0]

    def arrive(self) -> None:
        """Do all writes that are under way."""
        while self._under_way:
            self._land(0)

    def _land(self, number: int) -> None:
        text, act = self._under_way.pop(number)
        self.history.append(f"late: {text} -> {act()}")

    def _pick(self, current: Actor | None) -> Actor:
        """Return who goes on. Writes that are under way may arrive before."""
        while True:
            dead = next((actor for actor in self._actors if not actor.process.alive), None)
            if dead is not None:
                return dead
            # The newest first: those that a dead driver has left come late, unless they are chosen.
            actors = [actor for actor in reversed(self._actors) if actor.ready is None or actor.ready()]
            if current in actors:
                actors.remove(current)
                actors.insert(0, current)
            writes = len(self._under_way)
            if not actors and not writes:
                raise AssertionError(f"nobody can go on: {self._actors}")
            choice = self.chooser.choose(len(actors) + writes, SWITCH) if len(actors) + writes > 1 else 0
            if choice < len(actors):
                return actors[choice]
            self._land(choice - len(actors))

    def turn(self, actor: Actor) -> None:
        """A scheduling point of the actor at work."""
        self.steps += 1
        if self.steps > STEPS:
            raise AssertionError(f"no end after {STEPS} steps")
        chosen = self._pick(actor)
        if chosen is not actor:
            chosen.give()
            actor.wait_for_turn()

    def ended(self, actor: Actor) -> None:
        """The actor at work has come to its end."""
        self._actors.remove(actor)
        if self.failures:
            for other in self._actors:
                other.process.alive = False
        if not self._actors:
            self._main.release()
            return
        try:
            self._pick(None).give()
        except AssertionError as error:
            self.failures.append(error)
            for other in self._actors:
                other.process.alive = False
            self._actors[0].give()

    def fate(self, fates: Sequence[str], odds: float) -> str:
        """Let the chooser decide what happens, while faults are left."""
        if self.faults <= 0:
            return fates[0]
        fate = fates[self.chooser.choose(len(fates), odds)]
        self.faults -= fate != fates[0]
        return fate

    def call(self, actor: Actor, text: str, act: Callable[[], Any], *, write: bool = False) -> Any:
        """One call of a verb: a scheduling point, a fate, and what follows from it. Raises Died, OSError."""
        if actor.process.alive:
            self.turn(actor)
        if not actor.process.alive:
            raise Died
        fate = self.fate(WRITES, 2 * FAULT) if write else self.fate(READS, FAULT)
        result = act() if fate in ("done", "lost", "died") else None
        self.history.append(f"{actor.name}: {text} {fate if result is None else '-> ' + shown(result)}")
        if fate in ("late", "dies late"):
            self._under_way.append((text, act))
        if fate in ("dies", "died", "dies late"):
            actor.process.alive = False
            raise Died
        if fate != "done":
            raise SimulatedError(errno.EIO, fate, text)
        return result


def shown(result: Any) -> str:
    """What a call answered, without contents: they hold the time of day."""
    first = next(iter(result), None) if isinstance(result, list) else result
    return "bytes" if isinstance(first, bytes) else str(result)[:300]


class SimulatedStorage:
    """The storage as one process sees it: its actor of the moment makes the calls."""

    def __init__(self, simulation: Simulation, process: Process, base: str = "") -> None:
        self.simulation, self.process = simulation, process
        self.memory = MemoryStorage(simulation.objects, base)

    @property
    def url(self) -> str:
        return self.memory.url

    def _call(self, text: str, act: Callable[[], Any], *, write: bool = False) -> Any:
        actor = self.process.actor
        assert actor is not None
        return self.simulation.call(actor, text.replace("$", self.memory.base), act, write=write)

    def create(self, name: str, data: bytes) -> bool:
        data = bytes(data)
        created: bool = self._call(f"create ${name}", lambda: self.memory.create(name, data), write=True)
        return created

    def get(self, name: str) -> bytes:
        data: bytes = self._call(f"get ${name}", lambda: self.memory.get(name))
        return data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        parts: Sequence[bytes] = self._call(f"get parts of ${name}", lambda: self.memory.get_ranges(name, ranges))
        return parts

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        def act() -> Sequence[str]:
            names = self.memory.list(prefix, after)
            # Objects are in the order in which they were created.
            newest = list(self.simulation.objects)[-2:]
            if self.simulation.stale and self.simulation.chooser.choose(2, STALE):
                names = [name for name in names if self.memory.base + name not in newest]
            return names

        names: Sequence[str] = self._call(f"list ${prefix} after {after!r}", act)
        return names

    def folders(self, folder: str = "") -> Sequence[str]:
        return self.memory.folders(folder)

    def delete(self, names: Iterable[str]) -> None:
        names = [*names]
        self._call(f"delete $ {names}", lambda: self.memory.delete(names))

    def size(self, name: str) -> int:
        size: int = self._call(f"size of ${name}", lambda: self.memory.size(name))
        return size

    def path(self, name: str) -> Path | None:
        return self.memory.path(name)

    def below(self, folder: str) -> SimulatedStorage:
        return SimulatedStorage(self.simulation, self.process, f"{self.memory.base}{folder}/")
