"""Spark query: what Spark does with one shard of a query, for the simulation: batches, attempts, drivers that die and
start again, tasks that go on without a driver, and turning back by hand.

The driver's own log (offsets and commits) is a list here and never fails. A batch is acknowledged when one attempt of
it has succeeded and its driver still lives. The oracle: an attempt of the newest launch never begins from another state
than the one that the acknowledged batches lead to; and when all is over, a new process finds that state and goes on
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from tests.tools.simulated_storage import Actor, Chooser, Process, SimulatedError, SimulatedStorage, Simulation

ATTEMPTS = 4
Rows = dict[int, int]


class Task(NamedTuple):
    """One attempt of a batch: which run of the query it is of, the launch that the run was applied with, the batch, the
    number that Spark gives the attempt, and what the batch adds to the state: {batch: value} (0: nothing)."""

    run: int
    launch: int
    batch: int
    number: int
    value: int


class Shard(Protocol):
    """The code under test."""

    def launch(self, storage: SimulatedStorage) -> int:
        """Take the number of a launch, as the driver does when the operator is applied."""

    def attempt(self, storage: SimulatedStorage, process: Process, task: Task, check: Callable[[Rows], None]) -> None:
        """Load version `task.batch`, hand what it holds to `check`, add to it, and commit the next version."""


class Driver(NamedTuple):
    """What one run of the query does.

    back      how many batches the user turns the query back by before it starts
    attempts  how many attempts each batch begins with
    dies_in   in which batch the run ends (None: it does not)
    again     the DataFrame of the run before is started once more, in the same application
    """

    back: int = 0
    attempts: int = 1
    dies_in: int | None = None
    again: bool = False


class WrongState(AssertionError):
    """An attempt that counts has begun from a state that is not the query's."""


def is_simulated(error: BaseException | None) -> bool:
    """True for a fault of the storage, and for an error that one has led to."""
    while error is not None and not isinstance(error, SimulatedError):
        error = error.__cause__ or error.__context__
    return error is not None


class Query:
    """One history: drivers that do `batches` batches in the end.

    drivers   what each driver does, or how many there are: then the chooser decides what they do
    empty     some batches change nothing
    differing the program is not deterministic: each attempt adds a value of its own. Then a batch must begin from what
    an
              attempt of the batch before it, which counts, has led to
    stale     listings of the storage may be without the newest objects
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
        differing: bool = False,
        stale: bool = False,
    ) -> None:
        self.simulation = Simulation(chooser, faults=faults, stale=stale)
        self.chooser = chooser
        self.shard = shard
        self.batches = batches
        self.offsets: list[int] = []
        self.committed = 0
        self.newest = 0
        self.workers = [Process(f"worker {number}") for number in range(workers)]
        self._plans = drivers
        self._empty, self._differing = empty, differing
        # First batch of each run, and what attempts of the runs that count may have led to, by version.
        self._firsts: dict[int, int] = {}
        self._outcomes: dict[int, list[Rows]] = {0: [{}]}
        self._busy: set[Process] = set()
        self._inputs = self._numbers = self._forked = self._launch = 0

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
        attempts = 1 + self.chooser.choose(2, 0.3)
        dies_in = self.committed - back + self.chooser.choose(3, 0.6) if self.chooser.choose(2, 0.5) else None
        return Driver(back, attempts, dies_in, bool(number and self.chooser.choose(2, 0.4)))

    def _supervise(self, actor: Actor) -> None:
        for number in range(self._plans if isinstance(self._plans, int) else len(self._plans)):
            plan = self._plan(number)
            if plan.back:
                self.committed = max(0, self.committed - plan.back)
                del self.offsets[self.committed :]
                self._begun()
                self.history.append(f"turned back to batch {self.committed}")
            process = Process(f"driver {number + 1}")
            self.simulation.spawn(process, process.name, partial(self._drive, plan=plan))
            actor.wait(lambda process=process: not process.alive)  # type: ignore[misc]

    def _drive(self, actor: Actor, plan: Driver) -> None:
        try:
            if not plan.again or not self._launch:
                # Spark numbers the attempts of each application anew.
                self._numbers = self._launch = 0
                self._launch = self.shard.launch(SimulatedStorage(self.simulation, actor.process))
            self._begun()
            self.history.append(
                f"{actor.name}: run {self.newest} of launch {self._launch}, first batch {self.committed}"
            )
            while self.committed < self.batches and self._batch(actor, plan):
                pass
        except Exception as error:
            if not is_simulated(error):
                raise
            self.history.append(f"{actor.name}: gives up")
        finally:
            actor.process.alive = False

    def _batch(self, driver: Actor, plan: Driver) -> bool:
        batch = self.committed
        if len(self.offsets) == batch:
            self._inputs += 1
            self.offsets.append(0 if self._empty and self.chooser.choose(2, 0.8) else self._inputs)
        results: list[bool] = []
        for begun in range(1, ATTEMPTS + 1):
            self._begin(batch, results)
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

    def _begin(self, batch: int, results: list[bool]) -> None:
        self.workers = [worker for worker in self.workers if worker.alive]
        idle = [worker for worker in self.workers if worker not in self._busy]
        worker = idle[self.chooser.choose(len(idle), 0.4)] if idle else self._new_worker()
        self._busy.add(worker)
        self._numbers += 1
        value = self.offsets[batch]
        if self._differing and value:
            self._inputs += 1
            value = self._inputs
        task = Task(self.newest, self._launch, batch, self._numbers, value)

        def work(actor: Actor) -> None:
            succeeded = False
            try:
                storage = SimulatedStorage(self.simulation, worker)
                self.shard.attempt(storage, worker, task, lambda rows: self._check(actor, task, rows))
                succeeded = True
            except WrongState:
                raise
            except Exception as error:
                # A run that is over may find anything; one that counts may meet faults of the storage only.
                if task.run == self.newest and not is_simulated(error):
                    raise
                self.history.append(f"{actor.name}: fails: {error}")
            finally:
                self._busy.discard(worker)
                results.append(succeeded)

        self.simulation.spawn(worker, f"run {task.run}, batch {batch}, attempt {task.number} in {worker.name}", work)

    def _new_worker(self) -> Process:
        self._forked += 1
        worker = Process(f"forked worker {self._forked}")
        self.workers.append(worker)
        return worker

    def _begun(self) -> None:
        """From now on nothing counts that older runs do for the batches that are to come."""
        self.newest += 1
        self._firsts[self.newest] = self.committed
        self._outcomes = {version: rows for version, rows in self._outcomes.items() if version <= self.committed}

    def _check(self, actor: Actor, task: Task, rows: Rows) -> None:
        self.history.append(f"{actor.name}: begins from {rows}")
        if task.run == self.newest and rows not in self._outcomes[task.batch]:
            raise WrongState(f"{actor.name}: begins from {rows}, the query has {self._outcomes[task.batch]}")
        if all(first > task.batch for run, first in self._firsts.items() if run > task.run):
            rows = {**rows, task.batch: task.value} if task.value else rows
            self._outcomes.setdefault(task.batch + 1, []).append(rows)

    def _after(self) -> None:
        """A new driver and a new worker, without faults: all that was acknowledged is there, and can be gone on
        with.
        """
        self.simulation.faults, self.simulation.stale = 0, False
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
