"""Owners of a plain store on an object store, for the simulation: processes that open one state, commit, die, and take
the state from one another.

With `checkpoints` an owner makes a checkpoint after each commit, keeps one, and prunes what is before it. With `clocks`
a chooser steps the clocks of the processes: by days, in both directions; and time passes or stands still while a
process sleeps (`time.monotonic` stands still in a suspended host).

The oracle: an opened state has every commit that was acknowledged before the opening began, and nothing that nobody
committed; and in the end every acknowledged commit is there.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import hybridstore as hs
from changelog.storage import Storage
from tests.tools.simulated_storage import Actor, Chooser, Process, SimulatedStorage, Simulation
from tests.tools.spark_query import WrongState, is_simulated

Open = Callable[[Storage], hs.State]
OPENINGS = 3
DAY = 86_400.0
# What a clock may do between two commits, in seconds: the quiet choice first.
STEPS = (0.0, -3 * DAY, 1.1 * DAY, 3650 * DAY)
CLOCK = 0.3


class Clocks:
    """The clocks of all processes: each thread reads that of its process, which is named as the thread is."""

    def __init__(self) -> None:
        self._wall: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self._real, self._real_monotonic = time.time, time.monotonic

    def time(self) -> float:
        return self._real() + self._wall[threading.current_thread().name]

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def monotonic(self) -> float:
        return self._real_monotonic() + self._passed[threading.current_thread().name]

    def set(self, seconds: float) -> None:
        """Set the clock of this process by so much."""
        self._wall[threading.current_thread().name] += seconds

    def step(self, chooser: Chooser) -> None:
        """Let the clock of this process be set, and let it note or not that time has passed."""
        self.set(STEPS[chooser.choose(len(STEPS), CLOCK)])
        self._passed[threading.current_thread().name] += (0.0, DAY)[chooser.choose(2, CLOCK)]


class Owners:
    """One history: `owners` processes, each of which opens the state up to three times and commits `commits` times."""

    def __init__(
        self,
        chooser: Chooser,
        open_state: Open,
        *,
        owners: int,
        commits: int,
        checkpoints: bool = False,
        clocks: Clocks | None = None,
        faults: int = 1000,
    ) -> None:
        self.simulation = Simulation(chooser, faults=faults)
        self.owners, self.commits = owners, commits
        # What was tried and what was acknowledged: keys, one for each commit.
        self.tried: set[str] = set()
        self.acknowledged: set[str] = set()
        self._open = open_state
        self._chooser, self._checkpoints, self._clocks = chooser, checkpoints, clocks

    def run(self) -> None:
        """Play the history to its end. Raises WrongState, and what the code under test raises in quiet times."""
        for number in range(self.owners):
            process = Process(f"owner {number + 1}")
            self.simulation.spawn(process, process.name, self._owned_by)
        self.simulation.run()
        self.simulation.faults = 0
        self.simulation.spawn(Process("last owner"), "last owner", self._owned_by)
        self.simulation.run()
        if not self.acknowledged:
            raise WrongState("the last owner has committed nothing")

    def _owned_by(self, actor: Actor) -> None:
        storage = SimulatedStorage(self.simulation, actor.process)
        for opening in range(OPENINGS):
            before = set(self.acknowledged)
            try:
                state = self._open(storage)
                rows = state.key_value("rows")
                keys = {key for key, _ in rows.all()}
                self.simulation.history.append(f"{actor.name}: has version {state.version}: {sorted(keys)}")
                if not before <= keys <= self.tried:
                    raise WrongState(f"{actor.name}: has {keys}, acknowledged are {before}, tried {self.tried}")
                for number in range(self.commits):
                    if self._clocks is not None:
                        self._clocks.step(self._chooser)
                    key = f"{actor.name}, {opening}, {number}"
                    self.tried.add(key)
                    rows.put(key, number)
                    state.commit()
                    self.acknowledged.add(key)
                    self.simulation.history.append(f"{actor.name}: version {state.version} is acknowledged")
                    if self._checkpoints:
                        self._checkpoint(state)
                state.close()
                return
            except (hs.StateLockedError, hs.StatePoisonedError) as error:
                self.simulation.history.append(f"{actor.name}: {error}")
            except Exception as error:
                if not is_simulated(error):
                    raise
                self.simulation.history.append(f"{actor.name}: fails: {error}")

    def _checkpoint(self, state: hs.State) -> None:
        try:
            state.checkpoint(wait=True)
        except hs.errors.CheckpointError as error:  # no commit is lost
            self.simulation.history.append(str(error))
