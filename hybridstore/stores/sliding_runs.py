"""Sliding runs: the values of each key of a sliding store, the index of their expiry, and their blocks.

    runs   key -> window state (a value log with what its strategy derives from it), or
                  [array of times, list of values] as they came from a block or the changelog, until the key is touched
    older  maps of window states of before, where memory is short (`ages`): the first ones, `wide` of them, may
           have keys that have changed since the checkpoint in use was begun; a commit begins one (`age`)
    cut    key -> the times and then the values of what came since then of a changed key, in one tuple, which takes half
           of the bytes of a run, to lie beside the blocks of the checkpoint
    idle   when to look -> keys of `runs` that may have gone quiet by then

Which values a key has changes by `SlidingMaps.apply_...` and by time (`apply_time`). A window state has all values of
its key, whatever a cold block has; a run may have those alone that lie beside a block, unless the key was taken out of
it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from sys import getsizeof
from typing import Any, Final

from changelog.journal import Journal
from changelog.mutation import PUT_AT, PUT_COLUMNS
from recovery.block import BlockEntry, BucketChange, Columns, Combine
from recovery.directory import Directory

from ..aggregation import Strategy, WindowState
from ..clock import INT64_MAX, NO_TIME, slid_out_through
from .ages import SEALS, Ages
from .buckets import Sealed, SealedBucket
from .cold_blocks import TakenBlock, taken_block, taken_sets, with_keys
from .cold_tail import ColdTail, Maps
from .columns import beside_each_other
from .sizes import NUMBER_BYTES, SAMPLE, STATE_BYTES, deep, ends, run_bytes

# So many keys at most are looked at when time moves, and so many by a commit: some 0.3 and 2 ms.
_DUE_OF_A_ROW: Final = 256
_DUE_OF_A_COMMIT: Final = 2048
_COUNTED: Final = 1024  # of so many keys at least the values are counted where an estimate is asked for
# A key takes about one in so many of its bytes when its values are cut.
_CUT_REST: Final = 4
_IDLE_STEPS: Final = 16  # searches for keys without live values in the time of one window


class SlidingRuns(Ages):
    """The values of each key's window with their derived data, and an index of the times at which keys lose their last
    value.
    """

    ops = PUT_AT, PUT_COLUMNS, None
    _idle: dict[int, list[Any]]
    _low: int
    _next_idle: int

    def __init__(self, name: str, number: int, parameters: dict[str, Any], journal: Journal) -> None:
        self.size_ms: int = parameters["size_ms"]
        self._idle_width = max(1, self.size_ms // _IDLE_STEPS)
        self._strategy: Strategy[Any] | None = None
        # whether window states have (time, value) in place of values
        self._timed = False
        self._state_type: type | None = None
        self._tail = ColdTail(3)
        super().__init__(name, number, parameters, journal, {"expired": 0})

    @property
    def bound(self) -> Strategy[Any] | None:
        """What `bind` was given last; None: nothing yet."""
        return self._strategy

    def bind(self, strategy: Strategy[Any]) -> None:
        """Aggregate with this strategy from now on. A strategy with the same description as the present strategy
        changes nothing.
        """
        present = self._strategy
        if present is not None and _described(present) == _described(strategy):
            return
        self._gather()
        self._older.clear()  # the blocks have what is in them
        states = [key for key, run in self._runs.items() if type(run) is not list]
        for key in states:
            self._runs[key] = list(self._values_of(self._runs[key]))
        self._mark_whole(states)
        self._strategy = strategy
        self._timed = strategy.aggregator.timed
        self._state_type = type(strategy.new())

    def apply_time(self, ts: int) -> None:
        """Move stream time to `ts`, if `ts` is later, and remove keys without live values. O(removed keys)."""
        if ts <= self._stream_time:
            return
        self._stream_time = ts
        expired = slid_out_through(ts, self.size_ms)
        self._low = expired + 1
        if expired >= self._next_idle:
            self._drop_idle(expired)
        if expired >= self._cold_until and self._expire_cold(expired):
            self._cold_changed()

    def _watch(self, key: Any, newest: int) -> None:
        """Schedule a check of a key for the time at which its newest value has expired."""
        step = newest // self._idle_width
        waiting = self._idle.get(step)
        if waiting is not None:
            waiting.append(key)
            return
        self._idle[step] = [key]
        self._next_idle = min(self._next_idle, (step + 1) * self._idle_width - 1)

    def end_version(self, ts: int, version: int) -> None:
        super().end_version(ts, version)
        if self._older.due:
            self._drop_due(_DUE_OF_A_COMMIT)

    def _drop_idle(self, expired: int) -> None:
        """Find the due keys, and look at some of them."""
        width = self._idle_width
        steps = [step for step in self._idle if (step + 1) * width - 1 <= expired]
        self._older.due += map(self._idle.pop, steps)
        self._drop_due(_DUE_OF_A_ROW)

    def _drop_due(self, most: int) -> None:
        """Remove those of some due keys whose newest value has expired, and schedule another check of the others. A key
        that is not removed yet has no value in the window, whoever asks.
        """
        width, runs, expired, due = self._idle_width, self._runs, self._low - 1, self._older.due
        keys: list[Any] = []
        while due and len(keys) < most:
            keys += due[-1][-most:]
            del due[-1][-most:]
            if not due[-1]:
                due.pop()
        scheduled = ((step + 1) * width - 1 for step in self._idle)
        self._next_idle = NO_TIME if due else min(scheduled, default=INT64_MAX)
        for key in keys:
            run = runs.get(key)
            if run is None:
                continue
            newest = _newest(run)
            if newest > expired:
                self._watch(key, newest)
                continue
            del runs[key]
            if self._dirty is not None:
                self._dirty.add(key)

    def _wake(self, key: Any) -> Any:
        """Return the window state of a key, loaded and restored, or None if the key has no values. The values stay the
        same; only their form becomes the form of the strategy.
        """
        if self._strategy is None:
            raise RuntimeError(
                f"store {self.name!r}: found no aggregator, expected one (ask for the store by "
                "`sliding(name, size=..., aggregator=...)` first)"
            )
        runs = self._runs
        if self._bucket.cold or self._older or self._older.cut:
            self._touch(key, absent=True)
        run = runs.get(key)
        if type(run) is list:
            # expired values are not restored, so they are never aggregated
            i = bisect_left(run[0], self._low)
            times, values = (run[0][i:], run[1][i:]) if i else run
            given = list(zip(times, values, strict=True)) if self._timed else values
            runs[key] = run = self._strategy.restore(times, given)
        return run

    def _touch(self, key: Any, *, absent: bool = False) -> None:
        if self._older or self._older.cut:
            self._recall(key)
        if not self._is_whole(key):
            super()._touch(key, absent=absent)

    def _is_whole(self, key: Any) -> bool:
        """Whether no cold block has more of a key than the map, as its form says."""
        return type(self._runs.get(key)) is self._state_type

    def _mark_whole(self, keys: Collection[Any]) -> None:
        """Let no cold block say anything of these keys: memory has all values. O(keys log blocks)."""
        for i, its_keys in with_keys(self._bucket.cold, keys):
            taken_block(self._bucket.cold, i).take_uncounted(its_keys)

    def _recall(self, key: Any) -> None:
        """Move what an older map has of a key into the map. O(older maps)."""
        for older in (*self._older, self._older.cut):
            run = older.get(key)
            if run is not None:
                with self._journal.sure:
                    self._put_back(key, run)
                    del older[key]
                return

    def _put_back(self, key: Any, run: Any) -> None:
        """Put what an older map had of a key into the map, unless no value is in the window any more."""
        if type(run) is tuple:
            count = len(run) // 2
            # the blocks may be those of a later checkpoint than when it was cut
            run = self._since([array("q", run[:count]), list(run[count:])], self._used_since)
            if not run[1]:
                return
        newest = _newest(run)
        if newest >= self._low:
            self._runs[key] = run
            self._watch(key, newest)
            self._older.twice += self._in_blocks(key, run)
        elif self._dirty is not None:
            self._dirty.add(key)

    def _in_blocks(self, key: Any, run: Any) -> int:
        """Return how many values of a key of an older map the blocks have, too. O(values since the checkpoint)."""
        if type(run) is list:
            return 0
        changed = any(key in each for each in self._changed_sets())
        return len(run) - (len(self._since(run, self._used_since)[1]) if changed else 0)

    @property
    def _all_changed(self) -> bool:
        """Whether no checkpoint is in use. O(1)."""
        seals = self._older.seals
        return (seals[0].dirty if seals else self._dirty) is None

    def _changed_sets(self) -> list[set[Any]]:
        """Return the sets of keys that have changed since the checkpoint in use was begun. O(checkpoints begun)."""
        sets = [*(each.dirty for each in self._older.seals), self._dirty]
        return [each for each in sets if each]

    def _gather(self) -> None:
        """Put what the checkpoint in use does not have into one map again. O(records put)."""
        older = self._older
        if older.wide or older.cut:
            with self._journal.sure:
                for key, run in chain.from_iterable(each.items() for each in (*older[: older.wide], older.cut)):
                    self._put_back(key, run)
                del older[: older.wide]
                older.wide = older.newer = 0
                older.cut = {}

    def _values_of(self, state: WindowState) -> tuple[array[int], list[Any]]:
        """Return the times and values of a window state, as they are stored."""
        times, values = state.columns()
        return times, [value for _, value in values] if self._timed else values

    def _live(self, key: Any) -> tuple[Sequence[int], list[Any]]:
        """Return the times and values of a loaded key that are in the window."""
        run = self._runs.get(key)
        if run is None:
            return (), []
        times, values = run if type(run) is list else self._values_of(run)
        i = bisect_left(times, self._low)
        return times[i:], values[i:]

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def clear_state(self) -> None:
        super().clear_state()
        # time of a key's newest value // width -> keys to check when that value has expired
        self._idle = {}
        self._next_idle = INT64_MAX
        self._low = slid_out_through(NO_TIME, self.size_ms) + 1

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        super().attach(directory, state)
        self._bucket.captured(self._stream_time)

    def _cool(self, directory: Directory) -> list[Maps]:
        """See `KeyBlocks`. Window states become an older map as they are: `free` cuts those that have changed."""
        bucket, older, runs = self._bucket, self._older, self._runs
        others: list[Maps] = [
            *self._idle.values(),
            *older.due,
            *taken_sets(bucket.cold),
        ]
        dirty, late = self._dirty or set(), bucket.late
        for key in [key for key in late if key in dirty and type(runs.get(key)) is list]:
            self._touch(key, absent=True)  # which may load a block: the lists are those behind it
        lists = [key for key, run in runs.items() if type(run) is list]
        kept, whole = self._cooled(lists)
        others.append({key: runs.pop(key) for key in lists})
        if older.seals:
            # what changed before is in the checkpoint, and what was touched since is in none but the newer maps
            changed = older.cut.keys() & (self._dirty or ())
            others.append(older.cut)
            older.cut = {key: older.cut.pop(key) for key in changed}
            older.wide, older.newer, older.seals = older.newer, 0, []
        if runs:
            older.insert(0, runs)
            older.wide += 1
        self._runs = bucket.runs = kept
        older.merge()
        self._become_cold(directory)
        self._mark_whole(whole)
        older.loaded = False
        older.beside.clear()
        self._watch_alone(kept)
        self._expire_cold(self._low - 1)
        return others

    def _watch_alone(self, runs: dict[Any, Any]) -> None:
        """Watch the keys of what is the map from now on, which has nothing that the blocks count. O(keys)."""
        self._older.twice = 0
        self._idle, self._next_idle, self._older.due = {}, INT64_MAX, []
        for key, run in runs.items():
            self._watch(key, _newest(run))

    def age(self) -> None:
        """See `Edge`. The window states become an older map, and blocks that they were taken out of count for them
        again, so that they can be cut before a checkpoint has what changed.
        """
        older, bucket, states = self._older, self._bucket, self._runs
        if self._all_changed or older.loaded or not self._is_age:
            return
        lists = {key: run for key, run in states.items() if type(run) is list}
        if len(lists) == len(states):
            return
        with self._journal.sure:
            for key in lists:
                del states[key]
            older.insert(0, states)
            older.wide += 1
            older.newer += bool(older.seals)
            self._runs = bucket.runs = lists
            self._watch_alone(lists)
            for block in bucket.cold:
                if type(block) is TakenBlock:
                    block.give_back(states)

    def _cooled(self, keys: Collection[Any]) -> tuple[dict[Any, Any], Collection[Any]]:
        """Return the runs of these keys that stay in memory over the newest checkpoint: of what has changed, the values
        that came since it was begun; of a key with values before those that it has, all values, and which keys these
        are. O(keys).
        """
        dirty, late, kept = self._dirty or set(), self._bucket.late, {}
        changed = [key for key in keys if key in dirty]
        for key in changed:
            run = self._runs[key] if key in late else self._since(self._runs[key], self._bucket.since)
            if run[1]:
                kept[key] = run
        return kept, [key for key in changed if key in late]

    @property
    def _used_since(self) -> int:
        """No row in the checkpoint in use has this time or a later one; see `StoreBucket.since`. O(1)."""
        seals = self._older.seals
        return seals[0].since if seals else self._bucket.since

    def _since(self, run: Any, since: int) -> list[Any]:
        """Return the values of a run or window state from `since` on, as a run."""
        if type(run) is list:
            first = bisect_left(run[0], since)
            return [run[0][first:], run[1][first:]]
        times, values = run.since(since)
        return [times, [value for _, value in values] if self._timed else values]

    @property
    def spare(self) -> tuple[int, int]:
        size, _ = super().spare
        older = self._older
        rest = self._bytes_of(older[: older.wide]) // _CUT_REST
        return size - rest, sum(map(_about, older))

    def free(self, records: int) -> int:
        """See `Tailed`. Of a key that has changed since the checkpoint was begun, the values that came since stay."""
        older, freed, changed, since = self._older, 0, self._changed_sets(), self._used_since
        lates = [each for each in (*(seal.late for seal in older.seals), self._bucket.late) if each]
        with self._journal.sure:
            while freed < records and older:
                last = older[-1]
                while last and freed < records:
                    key, state = last.popitem()
                    freed += len(state)
                    if lates and any(key in each for each in lates):
                        self._put_back(key, state)
                        continue
                    for each in changed:
                        if key in each:
                            times, values = self._since(state, since)
                            if values:
                                older.cut[key] = (*times, *values)
                            break
                if not last:
                    older.pop()
                    older.wide = min(older.wide, len(older))
                    older.newer = min(older.newer, len(older))
        return freed

    def _loaded(self, entry: BlockEntry) -> None:
        self._older.loaded = True

    def _cold_changed(self) -> None:
        if not self._bucket.cold:
            self._older.beside.clear()

    def _install(self, columns: Columns) -> None:
        """Insert values of a block before values of the same time that were added since."""
        runs, low, dirty = self._runs, self._low, self._dirty
        times, values = columns.ints[0], columns.values
        start = 0
        for key, count in zip(columns.keys, columns.counts or [1] * len(columns.keys), strict=True):
            end = start + count
            newest = times[end - 1]
            if self._older or self._older.cut:
                self._recall(key)
            run = runs.get(key)
            if run is not None and type(run) is not list:
                self._older.twice = max(0, self._older.twice - count)  # it has these values
            elif newest < low:
                # no value is in the window, so the next checkpoint need not keep the key
                if dirty is not None:
                    dirty.add(key)
            elif run is None:
                runs[key] = [times[start:end], values[start:end]]
                self._watch(key, newest)
            else:
                older_rows = (times[start:end],), values[start:end]
                (merged,), its_values = beside_each_other(low, older_rows, ((run[0],), run[1]))
                runs[key] = [merged, its_values]
            start = end

    def _change(self, dirty: set[Any] | None) -> BucketChange:
        self._gather()
        if dirty is None:
            return BucketChange(self._columns(self._runs)[0], set(), True)
        over: list[Any] = []
        unknown: set[Any] = set()
        if self._bucket.cold:
            for key in list(dirty):
                if self._is_whole(key) or self._bucket.covering(key) < 0:
                    continue
                if key in self._older.beside and key in self._bucket.late:
                    # values beside the block are in the last checkpoint already, and would be added twice
                    self._touch(key, absent=True)
                elif key in self._runs:
                    over.append(key)
                else:
                    unknown.add(key)  # only the block has values of this key
        # loading blocks may have added keys
        columns, emptied = self._columns(dirty.difference(over, unknown), changed=True)
        return BucketChange(columns, emptied, False, self._columns(over, changed=True)[0] if over else None)

    def _set_beside(self) -> set[Any]:
        runs, newly = self._runs, set()
        if self._bucket.cold and self._dirty:
            covering = self._bucket.covering
            newly = {key for key in self._dirty if type(runs.get(key)) is list and covering(key) >= 0}
            newly |= self._dirty & self._older.cut.keys()
            newly -= self._older.beside
            self._older.beside |= newly
        if len(self._older.seals) == SEALS:
            self._gather()
        self._older.note_seal(SealedBucket(self._dirty, self._bucket.since, self._bucket.late))
        return newly

    def _columns(self, keys: Iterable[Any], *, changed: bool = False) -> tuple[Columns, set[Any]]:
        """Return the live values of these keys by column, and the keys that have none; with `changed`, only the values
        that changed since the last checkpoint.
        """
        since, late, low, runs = self._bucket.since, self._bucket.late, self._low, self._runs
        kept: list[Any] = []
        froms: list[int] = []
        emptied: set[Any] = set()
        counts: list[int] = []
        times: array[int] = array("q")
        values: list[Any] = []
        for key in sorted(keys):
            run = runs.get(key)
            own_times, own_values = ((), ()) if run is None else run if type(run) is list else self._values_of(run)
            first, end = bisect_left(own_times, low), len(own_times)
            if first == end:
                emptied.add(key)
                continue
            if changed:
                time = late.get(key, since)
                first = bisect_left(own_times, time, first)
                if first == end and key not in late:
                    continue
                froms.append(time)
            kept.append(key)
            counts.append(end - first)
            times.extend(own_times[first:])
            values.extend(own_values[first:])
        counted = None if counts.count(1) == len(kept) else counts
        return Columns(kept, counted, (times,), values, froms if changed else None), emptied

    @property
    def _combine(self) -> Combine:
        return partial(beside_each_other, self._low)

    def unseal(self, sealed: Sealed) -> None:
        super().unseal(sealed)
        self._older.beside -= sealed.beside
        self._older.forget_seal(sealed.buckets[0])

    def _expired_through(self) -> int:
        return self._low - 1

    def _bytes_of(self, maps: Sequence[dict[Any, Any]]) -> int:
        """See `Ages`. The values are counted apart: a key may have more than all others. O(sample + maps)."""
        sample = [
            (_records(run), (deep(key) or NUMBER_BYTES) + self._state_bytes(run))
            for key, run in ends(max(maps, key=len, default={}), SAMPLE)
        ]
        if not sample:
            return sum(map(getsizeof, maps))
        (fewest, smallest), (most, largest) = min(sample), max(sample)
        each = max(0.0, largest - smallest) / max(1, most - fewest)
        rest = sum(size - count * each for count, size in sample) / len(sample)
        return sum(map(getsizeof, maps)) + int(rest * sum(map(len, maps)) + each * sum(map(_about, maps)))

    def _maps_bytes(self) -> int:
        return super()._maps_bytes() + self._bytes_of([self._older.cut])

    def maps(self) -> list[Maps]:
        return [*super().maps(), self._older.cut]

    def _state_bytes(self, run: Any) -> int:
        kind = type(run)
        return run_bytes(run) if kind is list or kind is tuple else STATE_BYTES + run_bytes(list(run.columns()))

    @property
    def records_in_memory(self) -> int:
        """See `Tailed`. O(sample): commits under a limit ask."""
        decoded = self._block_records - self.cold_records
        return sum(map(_about, (self._runs, *self._older, self._older.cut))) + decoded + len(self._tail)

    @property
    def _applied_records(self) -> int:
        older, records = self._older, self._block_records
        for key, state in chain.from_iterable(each.items() for each in older[: older.wide]):
            records += len(state) - self._in_blocks(key, state)
        runs = chain(self._runs.values(), older.cut.values())
        return max(0, records + sum(map(_records, runs)) - older.twice)

    def _check(self) -> None:
        self._check_cold()
        self._check_tail()
        expired = self._low - 1
        # the window follows stream time
        assert expired == slid_out_through(self._stream_time, self.size_ms), ("window", expired, self._stream_time)
        steps: dict[Any, list[int]] = {}
        waiting = [(step, keys) for step, keys in self._idle.items()] + [(0, keys) for keys in self._older.due]
        for step, keys in waiting:
            for key in keys:
                steps.setdefault(key, []).append(step)
        older = self._older
        assert 0 <= older.newer <= older.wide <= len(older), ("wide", older.newer, older.wide, len(older))
        assert not (self._all_changed and (older.wide or older.cut)), ("cut without a checkpoint", older)
        changed, unchanged = self._changed_sets(), {key for each in older[older.wide :] for key in each}
        assert all(unchanged.isdisjoint(each) for each in changed), ("changed keys in maps that have none",)
        assert all(type(state) is self._state_type for each in older for state in each.values()), ("older runs",)
        assert all(type(run) is tuple for run in older.cut.values()), ("cut states",)
        keys = [key for each in (self._runs, *older, older.cut) for key in each]
        # no key is in two maps
        assert len(keys) == len(set(keys)), ("keys twice", len(keys) - len(set(keys)))
        for key, run in self._runs.items():
            if type(run) is list:
                times, values = run
                # as many values as times, in event order
                assert len(times) == len(values) > 0, ("run lengths", key, run)
                assert all(a <= b for a, b in pairwise(times)), ("run order", key, times)
                newest = times[-1]
            else:
                assert isinstance(run, WindowState), ("neither run nor state", key, run)
                assert type(run) is self._state_type, ("state of another strategy", key, run)
                run.check()
                newest = run.newest
            # every key has a scheduled check, at the latest when its newest value has expired
            assert key in steps, ("key not watched", key)
            assert newest < 0 or min(steps[key]) <= newest // self._idle_width, ("watched too late", key, newest)
            assert newest <= self._stream_time, ("time after stream time", key, newest)
        # no check is overdue
        assert self._older.due or self._next_idle > expired, ("idle", self._next_idle, expired)
        assert all(self._next_idle <= (step + 1) * self._idle_width - 1 for step in self._idle), ("next idle",)
        # every cold block may have live values
        assert all(block.until > expired for block in self._bucket.cold), ("expired block",)


def _records(run: Any) -> int:
    return len(run[1]) if type(run) is list else len(run) // 2 if type(run) is tuple else len(run)


def _about(runs: dict[Any, Any]) -> int:
    """Return about how many values a map has. O(sample)."""
    # of all parts, of a large map of both ends: keys that are used often have more values, and are near the beginning
    most = min(len(runs), 64 * _COUNTED)
    step, half, values = most // _COUNTED + 1, most // 2, runs.values()
    sample = [*islice(values, 0, half, step), *islice(reversed(values), 0, most - half, step)]
    return sum(map(_records, sample)) * len(runs) // max(1, len(sample))


def _newest(run: Any) -> int:
    """Return the time of the newest value of a key."""
    newest: int = run[0][-1] if type(run) is list else run.newest
    return newest


def _described(strategy: Strategy[Any]) -> list[Any]:
    return [strategy.describe(), strategy.aggregator.describe()]
