"""In place: an open state is restored again, in the same process, for the same stores of the user.

    rollback         the last commit, without the version in progress
    memory is short  the last commit, all of it cold
    erase            the last commit, from a checkpoint without the erased keys

An erase is an order that is logged, in a running job and by the command. The version of the order has its entry in the
setting "erasures", and a record in the settings says what is still to be done, so that a commit, or the opening after a
crash, continues there:

    [[store, key, ...]]   a checkpoint of this version, and the pins; then one of the same version whose packs have no
                          trace of the keys, at the begin of a new segment, in whose settings the record is
    True                  all other files are removed; then the next version says that nothing is ordered (None)
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Self

from changelog.cached_storage import bare
from changelog.identity import Identity
from changelog.storage import LocalStorage, Storage
from recovery.erase import ERASURES
from recovery.errors import RestoreError
from recovery.ladder import never
from recovery.layout import PINS
from recovery.restore import Progress, Reached

from ..errors import HybridStoreError
from ..markup import stores_table
from .checkpointer import Checkpointer, Target
from .erasing import Order, ordered, sweep, sweep_packs, write_erased
from .generations import above, identity_at, location_of
from .home import Home, home_of
from .log import Log
from .log_lines import warn
from .long_tail import TAIL_PIECE, tail_over
from .memory import Memory, Relief
from .memory_budget import give_back
from .opening import Opening
from .policy import CheckpointPolicy, Logged
from .registry import forks_of, kept_from_erase, remove_unfinished
from .usable import MarkedStep, Usable

# The setting with what is to be erased, see above.
ORDERS: Final = "erase"
# The setting of a topology's program.
_PROGRAM: Final = "topology"


def _is_far(storage: Storage) -> bool:
    """Return whether a storage is an object store, as far as orders and pins are concerned."""
    from changelog.cloud_storage import CloudStorage  # only here: a state in a directory needs none of it

    return isinstance(bare(storage), CloudStorage)


class InPlace(Usable, ABC):
    """The part of an open state that is restored again while it is open."""

    _home: Home
    _asked: Opening
    _checkpoints: Checkpointer
    _memory: Memory
    _identity: Identity
    # the forks that an order has seen, and left as they are
    _forks_known: frozenset[Path | str] = frozenset()
    # whoever orders erases in pins and forks, too
    _alone: bool = False

    @classmethod
    @abstractmethod
    def at_home(cls, home: Home, asked: Opening) -> Self:
        """Open the state of a home. Raises as `open`."""

    @abstractmethod
    def _checkpoint(self, log: Log, *, wait: bool) -> bool:
        """Begin a checkpoint of the last commit; False if that checkpoint exists."""

    def _relieve(self, log: Log, logged: Logged, *, renewed: bool) -> None:
        """Behind a commit of `logged`: keep the limit of memory. Raises nothing: the version is durable."""
        relief = self._memory.relief(logged, renewed=renewed)
        try:
            if relief is Relief.COLD:
                self._go_cold(self._memory.cool_ms)
                relief = self._memory.needed(cold=True)
            elif self._memory.cooling:
                self._freeing(self._memory.cool_on)
                relief = self._memory.needed(cold=True)
            if relief is Relief.CHECKPOINT:
                stalled = time.thread_time() - time.perf_counter()
                self._begin_checkpoint(log)
                self._memory.pause_begun(logged.weight, stalled + time.perf_counter() - time.thread_time())
        except Exception as error:
            self._checkpoints.fail(self._group.version, error)

    def _begin_checkpoint(self, log: Log) -> None:
        """Begin a checkpoint in the background: under a limit of memory, one behind which records can be freed. Raises
        as `_checkpoint`. O(changed), and O(buckets) where the writer process does the work.
        """
        self._memory.part(begins=True)
        try:
            self._checkpoint(log, wait=False)
        finally:
            self._memory.part(begins=False)

    def _go_cold(self, budget_ms: float = inf) -> None:
        """Make all records cold as of the last commit, and free those in memory, in slices. Without a replay, for about
        `budget_ms`: the commits to come do the rest.

        Raises StatePoisonedError when the last commit cannot be read. O(changed + pages), O(tail) with a replay.
        """
        self._usable()
        self._checkpoints.finish(wait=True)  # records of a checkpoint that fails are taken back into the maps

        def become_cold() -> None:
            if not self._memory.cool(budget_ms):
                self._memory.leave_maps()
                self._restore_in_place()
            self._memory.became_cold()

        self._freeing(become_cold)

    def _freeing(self, step: Callable[[], None]) -> None:
        """Take a step that frees memory. Raises StatePoisonedError when a file that it needs cannot be read."""
        try:
            with MarkedStep(self, "freeing memory"):
                step()
        except (OSError, HybridStoreError) as error:
            raise self._refusal("freeing memory", error) from error

    def _climb(self, at: int | None, progress: Progress | None) -> Reached:
        """Fill the stores with a version (None: the newest), and have the checkpoint below it in use. A tail that does
        not fit in the limit of memory becomes checkpoints, piece by piece; where none can be made, and of a reader,
        which writes nothing, it is replayed as it is. Raises what a restore raises. O(pages + tail), and with pieces as
        that of checkpoints.
        """
        home, group, checkpoints = self._home, self._group, self._checkpoints
        room = None if self._read_only else self._memory.tail_room()
        reached = home.restore(group, at, progress, never if room is None else partial(tail_over, room))
        while room is not None and not reached.whole:
            reached = home.restore(group, at, progress, partial(tail_over, room * TAIL_PIECE))
            if not reached.whole and not self._piece(reached):
                reached = home.restore(group, at, progress)
        self._memory.forget()  # the old map is unmapped after the last iterator that was opened before
        report = reached.report
        tail = Logged.of(report.tail_versions, report.tail_bytes, report.tail_counts, group.kinds)
        checkpoints.reader, checkpoints.since = reached.checkpoint, tail
        return reached

    def _piece(self, reached: Reached) -> bool:
        """Make a checkpoint of a version within the tail; False if it cannot be made, which is logged and counted."""
        home, group, checkpoints, report = self._home, self._group, self._checkpoints, reached.report
        group.pin_key_types()
        position = reached.resume.reached
        assert position is not None
        checkpoints.reader = reached.checkpoint
        target = Target(home.storage, report.belongs_to, report.version, report.digest, position)
        checkpoints.begin(target, before=home.sync, wait=True)
        give_back()  # what the checkpoint took
        return checkpoints.failure is None

    def _restore_in_place(self) -> None:
        """Restore the stores as of the last commit. Raises what a restore raises. O(restore)."""
        reached = self._climb(None, None)
        if reached.report.version != self._group.version:
            self._writable().check_owner()  # who has the state by now says more than two versions
            raise RestoreError(
                f"{self.path}: found version {reached.report.version}, expected the committed version "
                f"{self._group.version}"
            )
        self._group.reached(reached.report.version, reached.report.digest)
        self._group.redefine_lost()
        self._memory.restored()

    def _repr_html_(self) -> str:
        stores = () if self._closed else self._group.stores.values()
        return stores_table(repr(self), stores)

    # --- erase ------------------------------------------------------------------------------------------------

    @property
    def erase_orders(self) -> list[Order]:
        """What the next commit erases. O(orders)."""
        orders = self._group.settings.get(ORDERS)
        return [Order(*fields) for fields in orders] if type(orders) is list else []

    def order_erase(
        self,
        orders: Sequence[Order],
        *,
        keys: int,
        prefix: bool = False,
        wall_ms: int | None = None,
        alone: bool = False,
    ) -> None:
        """Order more, as part of the version in progress. `keys` and `prefix` are noted: how many keys were given.
        `alone`: the caller sees to pins and forks. O(orders).
        """
        group, waiting = self._group, self.erase_orders
        entries = list(group.settings.get(ERASURES, ()))
        # no two entries have one time: a pin says by it what is done there
        time_ms = max(int(time.time() * 1000), _last_ms(entries) + 1) if wall_ms is None else wall_ms
        if waiting:  # one entry of all that is erased together
            keys += entries.pop()["keys"]
        group.set(ERASURES, [*entries, {"wall_ms": time_ms, "keys": keys, "prefix": prefix}])
        group.set(ORDERS, [list(order) for order in (*waiting, *orders)])
        self._alone = alone

    def _order_erase(self, store: str, key: Any, leave_forks: bool) -> None:
        self._usable()
        if isinstance(self._home.storage, LocalStorage):
            self._check_ways(self._home.storage.root, leave_forks=leave_forks)
            self._forks_known = frozenset(self._forks_at(self._home.storage.root))
        elif _is_far(self._home.storage):
            self._check_bucket(leave_forks=leave_forks)
        self.order_erase([Order(store, key)], keys=1)

    def _check_ways(self, path: Path, *, leave_forks: bool) -> None:
        """Raise HybridStoreError where a running job cannot erase all that the state has."""
        states = self._states_at(path)
        shard = self._home.identity
        if len(states) > 1 and shard is not None and shard.generation:
            raise HybridStoreError(
                f"{path}: erase: is a shard behind a rescale, whose older shards have the key, too (stop the job, "
                "and run: hybridstore erase)"
            )
        if _PROGRAM in self._group.settings and any(_pins(state) for state in states):
            raise HybridStoreError(
                f"{path}: erase: found pins of a topology, expected none while its job runs (remove them with "
                "hybridstore unpin, or stop the job, and run: hybridstore erase)"
            )
        forks = self._forks_at(path)
        if forks and not leave_forks:
            raise HybridStoreError(
                f"{path}: erase: found forks, which may have the key: {', '.join(map(str, forks))} (leave them: "
                "leave_forks=True; or stop the job, and run: hybridstore erase --forks)"
            )

    def _check_bucket(self, *, leave_forks: bool) -> None:
        """As `_check_ways`, on an object store: pins are erased by the command only. Two requests, of a shard four."""
        storage = bare(self._home.storage)
        for state in [storage, above(storage, 1)] if identity_at(storage) is not None else [storage]:
            pins = list(state.folders(PINS))
            forks = [] if leave_forks else forks_of(location_of(state))
            if pins or forks:
                raise HybridStoreError(
                    f"{state.url}: erase: found {'pins' if pins else 'forks'}, which may have the key: "
                    f"{', '.join(map(str, pins or forks))} (stop the job, and run: hybridstore erase; or leave forks: "
                    "leave_forks=True)"
                )

    def _forks_at(self, path: Path) -> list[Path | str]:
        return sorted({fork for state in self._states_at(path) for fork in forks_of(state)}, key=str)

    def _states_at(self, path: Path) -> list[Path]:
        """Return the states of which forks and pins may have a key: this one and, of a shard, the whole topology's."""
        shard = self._home.identity is not None and identity_at(LocalStorage(path)) is not None
        return [path, path.parent] if shard else [path]

    def _erase_ordered(self) -> None:
        """Do what is ordered, behind a commit or a restore. Raises StatePoisonedError for an erase that was cut short:
        the next opening continues it. O(1) without an order.
        """
        if self._group.settings.get(ORDERS) is None or self._read_only:
            return
        log, home = self._usable(), self._home
        states: list[Path] = []
        with ExitStack() as stack:
            if isinstance(home.storage, LocalStorage) and not self._asked.erasing:
                states = self._states_at(home.storage.root)
                try:
                    for state in states:
                        stack.enter_context(kept_from_erase(state, erasing=True))
                    # pins that were made since the order
                    self._check_ways(home.storage.root, leave_forks=True)
                except HybridStoreError as error:  # the version is durable, and with it the order
                    warn("%s: nothing is erased yet: %s; the next commit tries again", self.path, error)
                    return
            elif _is_far(home.storage) and not self._asked.erasing:
                try:
                    self._check_bucket(leave_forks=True)
                except HybridStoreError as error:  # as above
                    warn("%s: nothing is erased yet: %s; the next commit tries again", self.path, error)
                    return
            self._checkpoints.finish(wait=True)
            try:
                with MarkedStep(self, "an erase"):
                    for state in states:
                        remove_unfinished(state)
                    self._erase(log)
                self._name_forks()
            except (OSError, HybridStoreError) as error:
                raise self._refusal("an erase", error) from error

    def _name_forks(self) -> None:
        """Name the forks that were made since the order, or before a crash: whoever ordered may not know them."""
        storage = self._home.storage
        forks = self._forks_at(storage.root) if isinstance(storage, LocalStorage) and not self._alone else []
        names = ", ".join(str(fork) for fork in forks if fork not in self._forks_known)
        if names:
            warn("%s: forks may have what was erased: %s (run: hybridstore erase FORK KEY)", self.path, names)

    def _erase(self, log: Log) -> None:
        home, group, checkpoints = self._home, self._group, self._checkpoints
        orders = self.erase_orders
        if orders:
            if isinstance(home.storage, LocalStorage) and not self._alone:
                for pin in _pins(home.storage.root):
                    self._erase_in(pin, orders, _last_ms(group.settings[ERASURES]))
            if self._checkpoint(log, wait=True) and checkpoints.failure is not None:
                raise checkpoints.failure
            log.part_now(group.version)
            assert checkpoints.reader is not None
            reader = checkpoints.reader.twin()
            try:
                if (reader.meta.version, reader.meta.digest) != (group.version, group.digest):
                    raise RestoreError(
                        f"{self.path}: found a checkpoint of version {reader.meta.version}, expected one of "
                        f"{group.version} (open the state again)"
                    )
                settings = {**reader.meta.settings, ORDERS: True}
                name = write_erased(home.storage, reader, log.position, settings, ordered(reader, orders)).name
            finally:
                reader.close()
        else:
            # the restored one: of the same version there may be another, of before, which is damaged
            assert checkpoints.reader is not None
            name = checkpoints.reader.name
        through = sys.maxsize if home.locks else group.version  # later files may be those of a later owner
        log.check_owner()
        sweep(home.storage, name, home.prune, through=through)
        self._restore_in_place()
        if not sweep_packs(
            home.storage, through=through
        ):  # on an object store a reader keeps the packs whose ranges it reads
            warn("%s: packs of before an erase are still read here; the next commit removes them", self.path)
            return
        group.set(ORDERS, None)
        checkpoints.since = log.commit(group)

    def _erase_in(self, pin: Path, orders: list[Order], wall_ms: int) -> None:
        """Erase in a pin, which is a state of its own, as its owner; a pin with the entry of this time is done, or its
        opening does it: a job that was killed behind the pin does the same orders again.
        """
        asked = replace(
            self._asked,
            at=None,
            checkpoints=CheckpointPolicy(every_commits=None),
            memory_limit=None,
            progress=False,
            identity=None,
            rescaled=True,
            erasing=True,
        )
        with self.at_home(home_of(pin, asked), asked) as state:  # type: ignore[attr-defined]
            mine = [order for order in orders if order.store is None or order.store in state.stores]
            if mine and _last_ms(state.settings.get(ERASURES, ())) != wall_ms:
                state.order_erase(mine, keys=len(mine), wall_ms=wall_ms)
                state.commit()


def _last_ms(entries: Sequence[dict[str, Any]]) -> int:
    """Return the time of the last entry; 0 without one."""
    return entries[-1]["wall_ms"] if entries else 0


def _pins(state: Path) -> list[Path]:
    """Return the folders of the pins of a state, finished ones. O(pins)."""
    return sorted(path for path in (state / PINS).glob("*") if not path.name.startswith("."))
