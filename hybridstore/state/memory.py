"""Memory: which records of an open state are in memory: blocks are loaded slice by slice, and records are freed when
memory is short.

restored   every block is cold, and a thread begins to decode ahead
slice      a commit loads decoded blocks, for 2 ms; or, under a limit, frees old maps, for as long
relief     what memory needs after a commit: a checkpoint, or to become cold
cool       the state becomes cold, for 12 ms for 1,000 records: the rest behind the commits to come

    memory    0 . 20 % . 50 % ... 80 % ......... 85 % ...... limit
              |   |      |        |              └ becomes cold, if the tail is short; else a checkpoint begins
              |   |      |        └ a commit waits for a checkpoint in progress, up to 25 ms for 1,000 records
              |   |      └ becomes cold when a checkpoint has been made; one begins after 10,000 records, or a 64th
              |   └ the writer process is started
              └ a checkpoint begins when the changes since the last one take a quarter of the limit

A checkpoint also begins, and commits wait, when the tail would take too much in a restart (`long_tail`). And it begins
earlier, from an eighth of the limit on and in the commit in which the state became cold, if with the next commit it
would be late: by how long those before took, and how many records come in.

Beyond 70 % a key-value store frees as many records as come in, beyond 80 % twice, beyond the limit four times as many:
those of the checkpoint in use that were not used for the longest time (`stores.key_ages`). They count as room in all
else. A sliding store frees what that has of changed keys, too: from a quarter on a commit puts apart what was used.

The percentages are of the part of the limit that records may take (`memory_budget.usable`). While a checkpoint is in
progress, a commit waits up to 25 ms, so that the room lasts until the checkpoint is expected to have been made. The
wait also grows, whatever was expected, from nothing at 80 % to 25 ms for 1,000 records at 100 %. From 50 % on a commit
also waits while half as many records again as begin a checkpoint were logged since the one in progress began: the next
one has to copy them at once; in a commit of 10,000 records it then waits 100 ms for 1,000 records. From 115 % to 125 %
the wait of each commit grows to as much. No wait is longer than 1 s. Beyond 125 % and 1 MiB it waits until the
checkpoint has been made, 5 ms for each record and 5 s at most.

To become cold replays nothing: the stores know which keys have changed since the newest checkpoint, and leave all other
records to its blocks. Only where rows of a tail still wait, or blocks are on another machine, it is a restart in place:
the newest checkpoint is attached, and the tail is replayed behind it. The maps of before are emptied in slices, since
freeing all records at once would take seconds; a key-value store keeps its own.
When a checkpoint begins, it puts what is in memory apart (`part`), so to become cold behind it moves no record.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from enum import Enum
from math import inf
from typing import Any, Final

from recovery.checkpoint import CheckpointReader
from recovery.directory import Ahead

from ..collector import collector_held
from ..stores.cold_blocks import SPARING
from ..stores.cold_tail import Maps, Step
from ..stores.sizes import map_bytes
from .checkpoint_job import PIECE_BYTES, PIECE_RECORDS
from .checkpointer import Checkpointer
from .group import StoreGroup
from .hydration import COMMIT_BUDGET_MS, hydrate, read_ahead, stop_ahead
from .long_tail import LEAST_ROOM, TAIL_BEGINS, TAIL_MOST, tail_share
from .memory_budget import BUDGET, CHECK_BYTES, CHECK_COMMITS, CHECK_RECORDS, Copying, Growth, give_back, usable
from .old_maps import FREED_ENTRIES, OldMaps
from .policy import RECORD_BYTES, SPEED, Logged

# Shares of the limit, see above.
_CHANGES: Final = 1 / 4
# Between the next share and `_PRESSED` lies what comes in while a checkpoint is made: where that does not fit, commits
# wait. At 75 % they did most of the time: 39,000 operations/s over 5 million records rather than 58,000.
_RENEWED: Final = 0.5
# Where few of the records read are written, becoming cold makes the earliest ready to be freed. A scan loads no more.
_TURNED: Final = 0.4
# From here on the writer process waits for its first job: its start takes 100 ms, and seconds on a busy machine.
_EXPECTED: Final = 0.2
# Up to here records stay that could be freed. At 75 %, what comes in between two counts was beyond the limit.
_KEPT: Final = 0.7
_PRESSED: Final = 0.8
_FULL: Final = 0.85
# Up to here a commit waits no longer than at the limit: a checkpoint that is late once costs many commits a little,
# and not one of them much. Up to `_FAR_OVER` beyond the limit the wait then grows to that of a large commit.
_STRAINED: Final = 1.15
# The share of what is in memory that the tail may have where a state becomes cold without a new checkpoint.
_TAIL: Final = 1 / 8
# A checkpoint begins after so many records, too, once memory is used: what it copies at a commit stays short. In a
# large state after more, one for so many in it: a checkpoint of few in every block takes as long as one of many; but
# before they are too many for the writer process.
_CUT_RECORDS: Final = 10_000
_CUT_SHARE: Final = 64
# States that share a limit have their part of these records each; so many are worth a checkpoint.
_CUT_LEAST: Final = 1000
# So many states at a time copy what has changed for a checkpoint that a thread makes; twice as many beyond the limit.
_COPYING: Final = 1
# A commit waits once so many times these were logged since the checkpoint in progress began.
_BEHIND: Final = 1.5
# How long a commit waits at most for a checkpoint that is to be made before the room is used up (s).
_STEADY_SECONDS: Final = 0.025
# A checkpoint of so many changes begins where one that begins later would be late.
_LATE_CHANGES: Final = _CHANGES / 2
# How long a commit waits for a checkpoint for each of its records, and at most (s), at the limit, and beyond it or
# where a commit brings very many: so long that a checkpoint keeps up with the commits, and each of them waits a little.
_WAIT_SECONDS: Final = (25e-6, 1.0)
_LARGE_SECONDS: Final = (100e-6, 1.0)
# Far beyond the limit, by so much of it and so many bytes, a commit waits until the checkpoint has been made, unless it
# brought few records: the checkpoint is late because the machine is busy, and more records in memory would end the
# process.
_FAR_OVER: Final = 0.25
_FAR_OVER_BYTES: Final = 1 << 20
_FAR_SECONDS: Final = (5e-3, 5.0)
_NO_WAIT: Final = (0.0, 0.0)
# The longest replay of a tail at a commit (s).
_REPLAY_SECONDS: Final = 0.03
# A commit frees at least so many entries of old maps for each record that came in since the one before: where a commit
# brings many, freeing for a time alone falls behind.
_FREED_FOR_A_RECORD: Final = 2
# A commit becomes cold for at least so long for each of its records (ms): so that all is cold before the next
# checkpoint begins, which waits for it.
_COOLED_MS: Final = 12e-3
# A record takes about so many times its bytes in the log.
_LOGGED_BYTES: Final = 4


class Relief(Enum):
    """What memory needs."""

    CHECKPOINT = "checkpoint"
    COLD = "cold"


def memory_bytes(group: StoreGroup) -> int:
    """Return an estimate of the bytes that stores hold in memory; see `memory_budget`. The call changes nothing; only
    the thread of the stores may make it. O(blocks).
    """
    return sum(store.bytes_in_memory for store in group.stores.values())


def _pressed_wait(share: float) -> tuple[float, float]:
    """Return how long a commit waits for a checkpoint, for each record and at most (s), where this share of the part of
    records is used. O(1).
    """
    each, most = _WAIT_SECONDS
    if share <= _PRESSED:
        return _NO_WAIT
    if share <= _STRAINED:
        return each * min(1.0, (share - _PRESSED) / (1 - _PRESSED)), most
    over = (share - _STRAINED) / (1 + _FAR_OVER - _STRAINED)
    return each + (_LARGE_SECONDS[0] - each) * min(1.0, over), most


class Memory:
    """The memory of one state: a member of the budget of the process, with a `limit` of its own or none (bytes)."""

    def __init__(self, group: StoreGroup, checkpoints: Checkpointer, limit: int | None) -> None:
        self.limit = limit
        # The bytes in memory when the state's own thread counted them last, and whether it did; before, a guess.
        self.counted, self._sure = 0, False
        self._group = group
        self._checkpoints = checkpoints
        self._cold = False
        # whether the stores count lookups, as they do under a limit
        self._counting = False
        self._unchecked = Logged()  # since the budget was checked
        self._loaded = 0  # records, by the count of `SPARING` at that time
        # records logged by the last commit, and those loaded (by the count of `SPARING`) when old maps were freed last
        self._logged, self._seen = 0, SPARING.loaded
        # how many records were loaded between the last two commits
        self._read = 0
        # how long a commit waits for a checkpoint, for each record and at most (s), and whether records fill memory, by
        # the last count
        self._wait, self._filling = _NO_WAIT, False
        # how many records had room by the last count; when the last commit was through with waiting, and when it began
        self._room, self._waited, self._begun = inf, 0.0, 0.0
        # how long the process worked between the last two commits, and how long the last one has waited (s); how many
        # records fit in the limit, by the last count, and which share of those that come in takes room
        self._worked, self._paused, self._fits, self._growth = 0.0, 0.0, inf, Growth()
        # whether what has changed is put apart when a checkpoint begins, by the last count
        self._filled = False
        # a commit that has waited for it uses a new checkpoint; the state becomes cold at the next one
        self._renewed = False
        # what the last time of becoming cold could not free
        self._floor = 0
        self._old = OldMaps()
        # of the bytes that were counted last, those of records that stores can free, and of each such record; how many
        # are freed for each that comes in, and how many are to be freed
        self._spare, self._spare_each = 0, 0.0
        self._freeing, self._due = 0.0, 0.0
        # how many records were in memory when the state became cold, and the bytes of each
        self._cooled, self._cooled_each = 0, 0.0
        # the steps that remain of becoming cold over a checkpoint
        self._cooling: tuple[CheckpointReader, deque[Step]] | None = None
        # what stores freed since the state was opened; see `OldMaps` for the rest
        self._freed_keys, self._freed_bytes = 0, 0
        # the misses whose bytes are counted, and these bytes
        self._missed, self._missed_bytes = 0, 0.0
        # the sizes of the stores when they were estimated last, of how many records, and how often asked for since
        self._sizes: list[int] = []
        self._sized, self._asked = 0, 0
        # by store, between leaving its maps and being cold
        self._before: dict[str, list[dict[Any, Any]]] = {}

    @property
    def copying(self) -> Copying | None:
        """The checkpoint that a thread makes now, None without one; the writer process copies apart. O(1)."""
        attempt = self._checkpoints.attempt
        return attempt if attempt is not None and attempt.copies and attempt.running else None

    def tail_room(self) -> int | None:
        """Return how many bytes the rows of a tail may take in a restore; None without a limit. O(states)."""
        limit = BUDGET.limit
        if limit is None:
            return None
        return max(usable(limit) - BUDGET.used(self)[0] + self.counted, LEAST_ROOM)

    def restored(self, *, read_only: bool = False, lazy: bool = True) -> None:
        """Blocks are cold, if `lazy`: a thread decodes them ahead, and, unless `read_only`, commits load them."""
        self._cold = not read_only
        if BUDGET.limit is not None and not read_only:
            self._checkpoints.expect(soon=False)
        self._count_lookups(BUDGET.limit is not None)
        if BUDGET.limit is None and lazy:
            # an estimate of a long tail is the longest part of a restart; only a state that sets a limit later asks
            self.counted, self._sure = _LOGGED_BYTES * self._checkpoints.behind.bytes, False
            self._count_missed()
        else:
            self.count()
        read_ahead(self._checkpoints.reader, self._group)

    def slice(self) -> None:
        """Load decoded blocks for about 2 ms; under a budget, free what is left of old maps for as long, and apply some
        of the rows of a tail.
        """
        self._begun, self._paused = time.thread_time(), 0.0
        self._read = SPARING.loaded - self._seen
        incoming = self._logged + self._read
        for store in self._group.stores.values():
            self._old.ended += store.take_ended()
            if self._filled:
                store.age()
        if self._old:
            self._old.free(COMMIT_BUDGET_MS, _FREED_FOR_A_RECORD * incoming)
        if self._freeing:
            # a record that is read and written comes in once
            self._due += self._freeing * max(self._logged, self._read)
            if self._due * max(1.0, self._spare_each / RECORD_BYTES) >= FREED_ENTRIES:
                self._free_spare(int(self._due))
                self._due = 0
        self._logged, self._seen = 0, SPARING.loaded
        limited = BUDGET.limit is not None
        self._count_lookups(limited)
        if limited:
            for store in self._group.stores.values():
                # as long as rows wait, every read and put looks for them
                if store.applies_alone and store.waiting_rows:
                    store.apply_some_waiting()
        elif self._cold:
            reader = self._checkpoints.reader
            self.hydrate(COMMIT_BUDGET_MS, None if reader is None else reader.ahead)

    def hydrate(self, budget_ms: float, ahead: Ahead | None = None) -> int:
        """Load cold blocks for about `budget_ms` and return how many remain; see `hydration.hydrate`."""
        self._cold = False  # until a call succeeds: a damaged block must not fail every commit
        remaining = hydrate(self._group.stores.values(), budget_ms, ahead)
        self._cold = remaining > 0
        return remaining

    def count(self) -> int:
        """Estimate the bytes in memory, for this state's part of the budget; see `memory_budget`. O(blocks)."""
        self.counted, self._sure = memory_bytes(self._group) + self._old.remaining() + self._old.ended_bytes(), True
        spares = [store.spare for store in self._group.stores.values()]
        self._spare = sum(size for size, _ in spares)
        self._spare_each = self._spare / max(1, sum(records for _, records in spares))
        self._count_missed()
        return self.counted

    def _in_memory(self) -> int:
        """Return about how many records the stores have in memory. O(buckets)."""
        return sum(store.records_in_memory for store in self._group.stores.values())

    def _count_lookups(self, limited: bool) -> None:
        """Let the stores count lookups or not, where the first limit of the process has come or the last one gone."""
        if limited != self._counting:
            self._counting = limited
            for store in self._group.stores.values():
                store.count_lookups(limited)

    def _count_missed(self) -> int:
        """Return the lookups that read a block, and count the bytes of those since the last call: each has the mean
        length of a record of the checkpoint in use. So the sum never falls, whatever the next one has. O(stores).
        """
        missed = sum(store.lookups.missed for store in self._group.stores.values())
        reader = self._checkpoints.reader
        if reader is not None and reader.meta.records:
            self._missed_bytes += (missed - self._missed) * reader.meta.size / reader.meta.records
            self._missed = missed
        return missed

    def numbers(self, *, anew: bool = True) -> dict[str, Any]:
        """Return the numbers of memory, as the metrics have them; None for those that are counted under a limit only.
        Without `anew`, sizes are those of an earlier call until the records are twice as many, or for CHECK_COMMITS
        calls: no commit should wait for an estimate. The call changes nothing that a caller sees. O(blocks).
        """
        missed = self._count_missed()
        stores, limit, traffic = self._group.stores.values(), BUDGET.limit, self._checkpoints.traffic
        records, self._asked = self._in_memory(), self._asked + 1
        if anew or len(self._sizes) != len(stores) or records >= 2 * self._sized or self._asked >= CHECK_COMMITS:
            self._sizes = [store.bytes_in_memory for store in stores]
            self._sized, self._asked = max(1, records), 0
        sizes = self._sizes
        changed = [store.changed_keys for store in stores]
        numbers: dict[str, Any] = {
            "memory_bytes": sum(sizes) + self._old.remaining(),
            "records_in_memory": records,
            "dirty_keys": sum(keys for keys, _ in changed),
            "dirty_bytes": sum(
                size * min(keys, known) // max(1, known) for size, (keys, known) in zip(sizes, changed, strict=True)
            ),
            "freed_records": round(self._freed_keys + self._old.freed_keys),
            "freed_bytes": self._freed_bytes + self._old.freed_bytes,
            "blocks_read": traffic.blocks,
            "tables_read": traffic.tables,
            "bytes_read": traffic.bytes + round(self._missed_bytes),
        }
        if limit is not None:
            asked = max(missed, sum(store.lookups.asked for store in stores))
            numbers |= {"memory_limit_bytes": limit, "hits": asked - missed, "misses": missed}
            meta = None if self._checkpoints.reader is None else self._checkpoints.reader.meta
            if meta is not None and meta.records and asked:
                numbers["read_amplification"] = numbers["bytes_read"] * meta.records / (asked * max(1, meta.size))
        return numbers

    def relief(self, logged: Logged, *, renewed: bool) -> Relief | None:
        """After a commit of `logged`: what memory needs, None for nothing. `renewed`: a checkpoint has just been made.

        From time to time this state is counted, and compared together with the last counts of the others. Waits a
        little if memory is nearly full and a checkpoint is in progress.
        """
        limit = BUDGET.limit
        if limit is None:
            return None
        BUDGET.renew_room(limit)
        limit = usable(limit)
        self._logged = logged.records
        checkpoints = self._checkpoints
        states = BUDGET.states
        attempt: Copying | None = checkpoints.attempt
        if attempt is None and states > 1 and self._wait[0]:
            attempt = next(iter(BUDGET.copying()), None)  # of another state, whose end lets this one begin
        unchecked = self._unchecked = self._unchecked.plus(logged)
        if attempt is not None and (seconds := self._pause(logged.weight)) > 0:
            self._paused = attempt.wait(seconds)
            # now, rather than at the next commit: what the next checkpoint has to copy would be a commit more
            if checkpoints.finish(wait=False) is not None:
                self._renewed = True
                if self._paused > _STEADY_SECONDS / 2 or not self._late:
                    return None  # the next commit becomes cold, since this one has waited
        now = time.process_time()
        self._worked, self._waited = now - self._waited, now
        renewed, self._renewed = renewed or self._renewed, False
        if renewed:
            give_back()  # what the checkpoint took
        records = unchecked.weight + (SPARING.loaded - self._loaded) * checkpoints.weight
        few = records < min(CHECK_RECORDS, limit // CHECK_BYTES) // states and unchecked.commits < CHECK_COMMITS
        if few and not renewed and self._sure:
            return None
        return self.needed(renewed=renewed)

    def needed(self, *, renewed: bool = False, cold: bool = False) -> Relief | None:
        """Count this state, and return what memory needs now, None for nothing; see `relief`. In the commit in which
        the state became `cold` a checkpoint begins only if the next commit would begin it too late. O(blocks).
        """
        limit = BUDGET.limit
        if limit is None:
            return None
        limit, states, checkpoints = usable(limit), BUDGET.states, self._checkpoints
        came = max(self._unchecked.records, SPARING.loaded - self._loaded)
        self._unchecked, self._loaded = Logged(), SPARING.loaded
        counted = self.count()
        used, large = BUDGET.used(self)
        if used > _EXPECTED * limit:
            checkpoints.expect(soon=True)
        self._freeing = (used > _KEPT * limit) + (used > _PRESSED * limit) + _FREED_FOR_A_RECORD * (used > limit)
        SPARING.full = used > _TURNED * limit
        kept = used - self._spare  # what is not freed before a checkpoint has been made
        self._wait = _pressed_wait(kept / max(1, limit))
        in_memory = max(1, self._in_memory())
        self._fits = limit * in_memory / max(1, counted) / states
        self._room = self._fits * (limit - kept) / max(1, limit)
        self._growth.note(counted - self._spare - self._old.remaining(), came * counted // in_memory)
        far_over = kept > (1 + _FAR_OVER) * limit + _FAR_OVER_BYTES
        if far_over:
            self._wait = _FAR_SECONDS
        self._filled, self._filling = used > _CHANGES * limit, kept > _RENEWED * limit
        if renewed and self._parted:
            return Relief.COLD
        long = self._tail_share > TAIL_BEGINS
        if checkpoints.attempt is not None or self.cooling or not (large or long):
            return None
        behind, old = checkpoints.changes, self._old.maps
        changed = (counted - self._old.remaining()) * min(1.0, behind.records / in_memory)
        full = kept > _FULL * limit and not old
        # rows of the tail come back into memory beside the maps that are freed
        short = SPEED.factor * behind.seconds <= _REPLAY_SECONDS and changed < _TAIL * counted
        if large and checkpoints.reader is not None and counted - self._spare > self._floor and not old:
            if full and (short or renewed):
                return Relief.COLD
            if short and self._cools and kept > _TURNED * limit:
                return Relief.COLD
            if renewed and used > _RENEWED * limit and SPEED.factor * behind.seconds <= _REPLAY_SECONDS:
                return Relief.COLD
        cut = self._many(behind) and used > _RENEWED * limit
        begins = not cold and (full or cut or long or changed > _CHANGES * limit)
        late = changed > _LATE_CHANGES * limit and self._late
        if (begins or late) and behind.commits and checkpoints.ready():
            # States that share a limit make their checkpoints one after the other: each copies what has changed.
            copying = _COPYING if used <= limit else 2 * _COPYING
            if far_over or len(BUDGET.copying()) < copying:
                return Relief.CHECKPOINT
        return None

    @property
    def _cools(self) -> bool:
        """Whether all stores become cold without a replay. O(stores)."""
        return all(store.cools for store in self._group.stores.values())

    @property
    def _parted(self) -> bool:
        """Whether the checkpoint in use is waited for by records that were put apart. O(stores)."""
        return any(store.parted for store in self._group.stores.values())

    def part(self, *, begins: bool) -> None:
        """A checkpoint `begins`, behind which the stores will become cold if records fill memory, or has begun.
        O(stores).
        """
        parting = begins and self._filled and self._cools
        for store in self._group.stores.values():
            store.part(begins=parting)

    def _many(self, logged: Logged, times: float = 1) -> bool:
        """Return whether a checkpoint begins of so much, or of so many times less, once memory is used. O(stores)."""
        records = logged.records / times
        if records < min(_CUT_RECORDS, max(_CUT_LEAST, _CUT_RECORDS // BUDGET.states)):
            return False
        reader = self._checkpoints.reader
        enough = 0 if reader is None else min(reader.meta.records // _CUT_SHARE, PIECE_RECORDS // 2)
        return records >= enough or logged.bytes / times >= PIECE_BYTES // 2

    def _pause(self, records: int) -> float:
        """Return how long a commit of so many records sleeps now (s): the longer pause, less its own work."""
        taken = time.thread_time() - self._begun
        worked = time.process_time() - self._waited
        return max(self._waiting(records) - taken, min(self._steady(records, worked), _STEADY_SECONDS - taken))

    @property
    def _late(self) -> bool:
        """Whether a checkpoint that begins with the next commit makes commits wait for long. O(stores)."""
        room = _STRAINED * self._fits
        return self._checkpoints.late(max(1, self._logged), room, self._worked + _STEADY_SECONDS)

    def pause_begun(self, records: int, stalled: float) -> None:
        """Wait as the next commits do, in one that has begun a checkpoint, for whose start it has `stalled` (s)."""
        attempt, taken = self._checkpoints.attempt, time.thread_time() - self._begun + self._paused + stalled
        seconds = min(self._steady(records, self._worked), _STEADY_SECONDS - taken)
        if attempt is not None and seconds > 0:
            attempt.wait(seconds)
            self._waited = time.process_time()

    def _waiting(self, records: int) -> float:
        """Return the pause of a commit of so many records (s): longer with a checkpoint behind or a full tail."""
        behind = self._filling and self._many(self._checkpoints.since, _BEHIND)
        # a commit of so many is slow by itself, and two of them are more than the next checkpoint should copy
        large = behind and records >= _CUT_RECORDS
        crowded = _LARGE_SECONDS if large else _WAIT_SECONDS if behind else _NO_WAIT
        each, most = max(self._wait, crowded, _pressed_wait(self._tail_share / TAIL_MOST))
        return min(most, records * each)

    @property
    def _tail_share(self) -> float:
        """The share of this state's part of the limit that the tail would take in a restart now. O(1)."""
        limit = BUDGET.limit
        return 0.0 if limit is None else BUDGET.states * tail_share(self._checkpoints.behind, limit)

    def _steady(self, records: int, worked: float) -> float:
        """Return how long a commit of so many records waits so that the room is not used up before the checkpoint in
        progress has been made: their part of the work that remains, less the time that they `worked` (s).
        """
        # a record that is read and written comes in once
        share, came = self._growth.share, max(self._unchecked.records, SPARING.loaded - self._loaded)
        part = min(1.0, share * records / max(1.0, self._room - share * came)) * self._checkpoints.remaining()
        return part - worked

    def leave_maps(self) -> None:
        """Keep the maps of the stores, which are about to become cold, to free them in slices. O(buckets)."""
        stores = self._group.stores.values()
        size, records = memory_bytes(self._group), self._in_memory()
        self._cooled = records
        self._before = {store.name: store.before for store in stores}
        used = [each for before in self._before.values() for each in before]
        known = set(map(id, used))
        self._cooling = None
        self._old.end()
        maps = (each for store in stores for each in store.maps() if id(each) not in known)
        self._old.add(maps, size - sum(map(map_bytes, used)), records - sum(map(len, used)))

    def cool(self, budget_ms: float = inf) -> bool:
        """Make all stores cold without a replay, if each of them can: they keep what changed since the checkpoint in
        use. For about `budget_ms` of processor time; `cool_on` does the rest. False: nothing was done. O(changed +
        pages).
        """
        reader, stores = self._checkpoints.reader, list(self._group.stores.values())
        known = set() if reader is None or reader.ahead is not None else {each.number for each in reader.meta.stores}
        if reader is None or not all(store.can_cool and store.number in known for store in stores):
            return False
        self._cooled = self._in_memory()
        self._cooled_each = memory_bytes(self._group) / max(1, self._cooled)
        self._before = {}
        self._old.end()
        self._cooling = reader, deque(step for store in stores for step in store.cool(reader.directory(store.number)))
        self._cool_some(budget_ms)
        self._cold = True
        return True

    @property
    def cooling(self) -> bool:
        """Whether a part of the state is still to become cold. O(1)."""
        return self._cooling is not None

    @property
    def cool_ms(self) -> float:
        """How long the last commit makes parts of the state cold (ms): longer for many records. O(1)."""
        return max(COMMIT_BUDGET_MS, _COOLED_MS * self._logged)

    def cool_on(self) -> None:
        """Make a further part of the state cold, for `cool_ms`. Where another checkpoint was begun or is in use, what
        remains stays in memory until the state becomes cold over that. O(changed).
        """
        checkpoints = self._checkpoints
        if self._cooling is not None:
            same = checkpoints.attempt is None and checkpoints.reader is self._cooling[0]
            if BUDGET.limit is None or not same:
                self._cooling = None
                return
            self._cool_some(self.cool_ms)
            if not self.cooling:
                self._count_cold()

    def _cool_some(self, budget_ms: float) -> None:
        """Do some of the steps of becoming cold."""
        assert self._cooling is not None
        steps, deadline, records = self._cooling[1], time.thread_time() + budget_ms / 1000, self._in_memory()
        maps: list[Maps] = []
        with collector_held():  # it would visit all that stays
            while steps:
                maps += steps.popleft()()
                if time.thread_time() >= deadline:
                    break
            if not steps:
                self._cooling = None
                self._group.forget_watched()
        freed = records - self._in_memory()
        self._old.add(maps, round(self._cooled_each * freed), freed)

    def _count_cold(self) -> None:
        """Count anew: what could not be freed is not tried again before more is in memory."""
        self.count()
        if not self.cooling:
            self._floor = (self.counted - self._old.remaining() - self._spare) * 5 // 4

    def became_cold(self) -> None:
        """Let stores use their maps of before, and count anew. O(blocks)."""
        for name, before in self._before.items():
            self._group.stores[name].recall(before)
        self._before = {}
        self._wait, self._filling = _NO_WAIT, False  # for a checkpoint that begins before the next count
        self._logged, self._seen = 0, SPARING.loaded  # only what comes in from now on takes room
        if _FREED_FOR_A_RECORD * self._read >= self._cooled:
            # Most of it was loaded since the commit before, as by a scan, and perhaps no further commit follows.
            if self.cooling:
                self._cool_some(inf)
            self._old.free(0, sys.maxsize)
            self._free_spare(self._read)
        elif self._old.maps:
            self._old.free(COMMIT_BUDGET_MS, 0)  # at once, and not beside what the next commit brings
        self._count_cold()

    def _free_spare(self, records: int) -> None:
        """Free so many of the records that the checkpoint in use has, those of the store with the most maps of them
        first. O(records).
        """
        stores = self._group.stores.values()
        while records > 0:
            store = max(stores, key=lambda each: each.ages, default=None)
            if store is None or not store.ages:
                self._freeing = 0
                return
            freed = store.free(records)
            records -= freed
            self._freed_keys += freed
            self._freed_bytes += round(freed * self._spare_each)

    def forget(self) -> None:
        """Close the checkpoint in use."""
        stop_ahead(self._checkpoints.reader)
        self._checkpoints.reader = None
