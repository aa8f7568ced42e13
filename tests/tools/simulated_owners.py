"""Owners of a plain store on an object store, for the simulation: processes that open one state, commit, die, and take
the state from one another.

The oracle: an opened state has every commit that was acknowledged before the opening began, and nothing that nobody
committed; and in the end every acknowledged commit is there.
"""

from __future__ import annotations

from collections.abc import Callable

import hybridstore as hs
from changelog.storage import Storage
from tests.tools.simulated_storage import Actor, Chooser, Process, SimulatedStorage, Simulation
from tests.tools.spark_query import WrongState, is_simulated

Open = Callable[[Storage], hs.HybridStore]
OPENINGS = 3


class Owners:
    """One history: `owners` processes, each of which opens the state up to three times and commits `commits` times."""

    def __init__(self, chooser: Chooser, open_state: Open, *, owners: int, commits: int) -> None:
        self.simulation = Simulation(chooser)
        self.owners, self.commits = owners, commits
        # What was tried and what was acknowledged: keys, one for each commit.
        self.tried: set[str] = set()
        self.acknowledged: set[str] = set()
        self._open = open_state

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
                    key = f"{actor.name}, {opening}, {number}"
                    self.tried.add(key)
                    rows.put(key, number)
                    state.commit()
                    self.acknowledged.add(key)
                    self.simulation.history.append(f"{actor.name}: version {state.version} is acknowledged")
                state.close()
                return
            except (hs.StateDirectoryLockedError, hs.StorePoisonedError) as error:
                self.simulation.history.append(f"{actor.name}: {error}")
            except Exception as error:
                if not is_simulated(error):
                    raise
                self.simulation.history.append(f"{actor.name}: fails: {error}")
