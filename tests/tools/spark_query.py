"""Spark query: what Spark does with one shard of a query, for the simulation: batches, attempts, drivers that die and
start again, tasks that go on without a driver, and turning back by hand.

The driver's own log (offsets and commits) is a list here and never fails. A batch is acknowledged when one attempt of it
has succeeded and its driver still lives. The oracle: an attempt of the newest launch never begins from another state than
the one that the acknowledged batches lead to; and when all is over, a new process finds that state and goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tests.tools.simulated_storage import Actor, Chooser, Process, SimulatedStorage, Simulation

ATTEMPTS = 4
Rows = dict[int, int]


class Shard(Protocol):
    """The code under test."""

    def launch(self, storage: SimulatedStorage) -> int:
        """Take the number of a launch, as the driver does."""

    def attempt(
        self,
        storage: SimulatedStorage,
        process: Process,
        launch: int,
        batch: int,
        number: int,
        value: int,
        check: Callable[[Rows], None],
    ) -> None:
        """Load version `batch`, hand what it holds to `check`, add {batch: value} (0: nothing), and commit version
        `batch` + 1."""


class Driver(NamedTuple):
    """What one driver does: how many batches the user turns the query back by before it starts, how many attempts each
    batch begins with, and in which batch the driver dies (None: it does not)."""

    back: int = 0
    attempts: int = 1
    dies_in: int | None = None


class WrongState(AssertionError):
    """An attempt that counts has begun from a state that is not the query's."""


class Query:
    """One history: drivers that do `batches` batches in the end.

    drivers   what each driver does, or how many there are: then the chooser decides what they do
    empty     some batches change nothing
    """

    def __init__(
        self,
        chooser: Chooser,
        shard: Shard,
        *,
        batches: int,
        drivers: Sequence[Driver] | int,
        empty: bool = False,
        faults: int = 1000,
        workers: int = 2,
    ) -> None:
        self.simulation = Simulation(chooser, faults=faults)
        self.chooser = chooser
        self.shard = shard
        self.batches = batches
        self.offsets: list[int] = []
        self.committed = 0
        self.newest = 0
        self.workers = [Process(f"worker {number}") for number in range(workers)]
        self._plans = drivers
        self._empty = empty
        self._busy: set[Process] = set()
        self._inputs = self._numbers = self._forked = 0

    @property
    def history(self) -> list[str]:
        """What happened, in order."""
        return self.simulation.history

    def run(self) -> None:
        """Play the history to its end. Raises WrongState, and what the code under test raises in quiet times."""
        self.simulation.spawn(Process("supervisor"), "supervisor", self._supervise)
        self.simulation.run()
        self._after()

    # --- drivers --------------------------------------------------------------------------------------------------

    def _plan(self, number: int) -> Driver:
        if not isinstance(self._plans, int):
            return self._plans[number]
        back = self.chooser.choose(self.committed + 1, 0.5) if number and self.committed else 0
        dies = self.chooser.choose(2, 0.5)
        return Driver(
            back, 1 + self.chooser.choose(2, 0.3), self.committed - back + self.chooser.choose(3, 0.6) if dies else None
        )

    def _supervise(self, actor: Actor) -> None:
        for number in range(self._plans if isinstance(self._plans, int) else len(self._plans)):
            plan = self._plan(number)
            if plan.back:
                self.committed = max(0, self.committed - plan.back)
                del self.offsets[self.committed :]
                self.newest = 0
                self.history.append(f"turned back to batch {self.committed}")
            process = Process(f"driver {number + 1}")
            self.simulation.spawn(process, process.name, lambda driver, plan=plan: self._drive(driver, plan))  # type: ignore[misc]
            actor.wait(lambda process=process: not process.alive)  # type: ignore[misc]

    def _drive(self, actor: Actor, plan: Driver) -> None:
        try:
            # Spark numbers the attempts of each application from 0.
            self._numbers = 0
            self.newest = launch = self.shard.launch(SimulatedStorage(self.simulation, actor))
            self.history.append(f"{actor.name}: launch {launch}, first batch {self.committed}")
            while self.committed < self.batches and self._batch(actor, launch, plan):
                pass
        except OSError:
            self.history.append(f"{actor.name}: gives up")
        finally:
            actor.process.alive = False

    def _batch(self, driver: Actor, launch: int, plan: Driver) -> bool:
        batch = self.committed
        if len(self.offsets) == batch:
            self._inputs += 1
            self.offsets.append(0 if self._empty and self.chooser.choose(2, 0.8) else self._inputs)
        results: list[bool] = []
        for begun in range(1, ATTEMPTS + 1):
            self._begin(driver, launch, batch, results)
            if begun < plan.attempts:
                continue
            # A driver dies while its tasks are at work, or when one has succeeded and nobody knows.
            driver.wait(lambda: True)
            if plan.dies_in == batch and self.chooser.choose(2, 0.5) == 0:
                break
            driver.wait(lambda begun=begun: True in results or len(results) == begun)  # type: ignore[misc]
            if plan.dies_in == batch:
                break
            if True in results:
                self.committed = batch + 1
                self.history.append(f"{driver.name}: batch {batch} is acknowledged")
                return True
        self.history.append(f"{driver.name}: dies in batch {batch}")
        return False

    # --- tasks ----------------------------------------------------------------------------------------------------

    def _begin(self, driver: Actor, launch: int, batch: int, results: list[bool]) -> None:
        self.workers = [worker for worker in self.workers if worker.alive]
        idle = [worker for worker in self.workers if worker not in self._busy]
        worker = idle[self.chooser.choose(len(idle), 0.4)] if idle else self._new_worker()
        self._busy.add(worker)
        self._numbers += 1
        attempt = self._numbers
        value = self.offsets[batch]

        def work(actor: Actor) -> None:
            succeeded = False
            try:
                self.shard.attempt(
                    SimulatedStorage(self.simulation, actor),
                    worker,
                    launch,
                    batch,
                    attempt,
                    value,
                    self._check(actor, launch, batch),
                )
                succeeded = True
            except WrongState:
                raise
            except Exception as error:
                # A launch that is over may find anything; one that counts may meet faults of the storage only.
                if launch == self.newest and not isinstance(error, OSError):
                    raise
                self.history.append(f"{actor.name}: fails: {error}")
            finally:
                self._busy.discard(worker)
                results.append(succeeded)

        self.simulation.spawn(worker, f"launch {launch}, batch {batch}, attempt {attempt} in {worker.name}", work)

    def _new_worker(self) -> Process:
        self._forked += 1
        worker = Process(f"forked worker {self._forked}")
        self.workers.append(worker)
        return worker

    def expected(self, version: int) -> Rows:
        """What a version of the query's line holds."""
        return {batch: value for batch, value in enumerate(self.offsets[:version]) if value}

    def _check(self, actor: Actor, launch: int, batch: int) -> Callable[[Rows], None]:
        def check(rows: Rows) -> None:
            self.history.append(f"{actor.name}: begins from {rows}")
            if launch == self.newest and rows != self.expected(batch):
                raise WrongState(f"{actor.name}: begins from {rows}, the query has {self.expected(batch)}")

        return check

    def _after(self) -> None:
        """A new driver and a new worker, without faults: all that was acknowledged is there, and can be gone on with."""
        self.simulation.faults = 0
        for batches in (self.committed + 1, self.committed + 2):
            self.batches = batches
            self.workers = []
            process = Process("last driver")
            self.simulation.spawn(process, process.name, lambda driver: self._drive(driver, Driver()))
            self.simulation.run()
            if self.committed != batches:
                raise WrongState(f"batch {self.committed} of {batches} cannot be done")


def describe(query: Query) -> str:
    """The history as text, for messages."""
    return "\n".join(query.history)


def play(query: Query) -> Any:
    """Run a query, and put its history into what it raises."""
    try:
        query.run()
    except BaseException as error:
        error.add_note(describe(query))
        raise
