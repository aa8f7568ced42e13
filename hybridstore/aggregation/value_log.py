"""The value log of one key: its live records in event order, in blocks of at most 512.

    oldest block            blocks between                 newest block
    times  [.. h t t t]     [times, times, ...]            times  [t t t ..]      array('q'), ms
    values [.. h v v v]     [values, values, ...]          values [v v v ..]      list
              ^ head        positions count up: start ................. end

A block is an ``array('q')`` of times beside a list of values: 16 bytes a record and the value itself. A record has a
*position*, counted from the birth of the log: `start` is the position of the oldest live record, `end` the one after
the newest. Expiry moves `start`, appending moves `end`, and an insert in the middle raises every later position by one.
Strategies remember ranges of positions, so strategies need no special case for records with equal times.

The surprise: `oldest`, the time of the first live record, becomes -1 when the log becomes empty, and stays -1 until the
next `expire`. An append need not update `oldest`; -1 is then a lower bound.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

BLOCK = 512
"""Most records in one block: an insert in the middle moves at most this many."""

_TRIM = 32  # expired records that may stay at the head of the oldest block before they are cut off

Block = tuple["array[int]", list[Any]]


_last_time: Callable[[array[int]], int] = itemgetter(-1)


class TimeLog:
    """Records (time, value) of one key in event order; equal times keep their order of arrival.

    Times are integer milliseconds, not negative. Memory is about 16 bytes for each record without its value, and about
    350 bytes for a log of one record.
    """

    __slots__ = (
        "end",
        "head",
        "middle",
        "newest",
        "old_times",
        "old_values",
        "oldest",
        "start",
        "times",
        "values",
    )

    def __init__(self) -> None:
        self.times: array[int] = array("q")
        self.values: list[Any] = []
        self.old_times = self.times
        self.old_values = self.values
        self.middle: tuple[list[array[int]], list[list[Any]]] | None = None
        self.head = 0
        self.start = 0
        self.end = 0
        self.newest = -1
        self.oldest = -1

    # -- writing

    def insert(self, ts: int, value: Any) -> int:
        """Add a record after all records of the same or an earlier time, and return its position.

        This method defines how the newest record is appended. `update` of the strategies' states has a copy of these
        lines, because a call would cost 6 to 9 % of an update; `tests/aggregation/test_one_append.py` compares the
        copies.

        Complexity: O(1) in order; out of order O(log blocks), a move within one block, and a count of the blocks
        between it and the nearer end.
        """
        if ts < self.newest:
            return self.insert_late(ts, value)
        end = self.end
        if not end & 63:
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end + 1
        return end

    def push(self, ts: int, value: Any, lo: int) -> bool:
        """Insert a record and expire all before `lo` in one call; return whether it came in order. `ts >= lo`."""
        if ts < self.newest:
            self.insert_late(ts, value)
            if self.oldest < lo:
                self.expire(lo)
            return False
        end = self.end
        if not end & 63:
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end + 1
        oldest = self.oldest
        if oldest < lo:
            # nearly always one record expires for each record that arrives
            head = self.head + 1
            times = self.old_times
            if oldest >= 0 and head < len(times) and (oldest := times[head]) >= lo:
                if head < _TRIM:
                    self.head = head
                else:
                    self.trim(head)
                self.start += 1
                self.oldest = oldest
            else:
                self.expire(lo)
        return True

    def roll(self) -> None:
        """Begin a new block if the newest block is nearly full. The caller must append to the new block at once.

        Called once in 64 records, which is cheaper than a check of the length for each record.
        """
        times = self.times
        if len(times) <= BLOCK - 64:
            return
        if times is not self.old_times:
            if self.middle is None:
                self.middle = ([], [])
            self.middle[0].append(times)
            self.middle[1].append(self.values)
        self.times = array("q")
        self.values = []

    def extend(self, times: array[int], values: list[Any]) -> None:
        """Append at least one record. The records are in event order, and none is older than the newest record of the
        log. The given columns may become part of the log.

        O(n), at C speed.
        """
        count = len(values)
        first = 0
        if self.end == self.start and count < BLOCK - 63:
            self.times = self.old_times = times
            self.values = self.old_values = values
            first = count
        elif count <= BLOCK - 63 - len(self.times):
            self.times.extend(times)
            self.values.extend(values)
            first = count
        while first < count:
            # leave room for the appends before the next call of `roll`
            room = BLOCK - 63 - len(self.times)
            if room <= 0:
                self.roll()
                continue
            self.times.extend(times[first : first + room])
            self.values.extend(values[first : first + room])
            first += room
        self.newest = times[-1]
        self.end += count

    def insert_late(self, ts: int, value: Any) -> int:
        """Add a record older than the newest one, and return its position."""
        # the record belongs to the first block whose last time is later, so its place is always inside this block
        old = self.old_times
        middle = self.middle
        if old[-1] > ts:
            values = self.old_values
            index = bisect_right(old, ts, self.head)
            position = self.start + index - self.head
            old.insert(index, ts)
            values.insert(index, value)
            if index == self.head and ts < self.oldest:
                self.oldest = ts
            if len(old) > BLOCK:
                self._split(-1)
        elif middle is not None and middle[0] and middle[0][-1][-1] > ts:
            at = bisect_right(middle[0], ts, key=_last_time)
            times = middle[0][at]
            index = bisect_right(times, ts)
            if at * 2 <= len(middle[0]):
                position = self.start + len(old) - self.head + sum(map(len, middle[1][:at])) + index
            else:
                position = self.end - len(self.times) - sum(map(len, middle[1][at:])) + index
            times.insert(index, ts)
            middle[1][at].insert(index, value)
            if len(times) > BLOCK:
                self._split(at)
        else:
            times = self.times
            index = bisect_right(times, ts)
            position = self.end - len(times) + index
            times.insert(index, ts)
            self.values.insert(index, value)
            if len(times) > BLOCK:
                self._split(len(middle[0]) if middle else 0)
        if not self.end & 63 and len(self.times) > BLOCK - 64:
            # this insert takes the place of the append that would have begun a new block
            self._split(-1 if self.times is old else len(self.middle[0]) if self.middle else 0)
        self.end += 1
        self.displaced(position, ts, value)
        return position

    def displaced(self, position: int, ts: int, value: Any) -> None:
        """Called after an insert in the middle. The positions of later records are now larger by one."""

    def _split(self, at: int) -> None:
        """Halve a block that is too large. `at` is -1 for the oldest block, else an index of the middle blocks."""
        half = BLOCK // 2
        if at < 0 and self.old_times is self.times:
            self.times, self.values = self.old_times[half:], self.old_values[half:]
            del self.old_times[half:], self.old_values[half:]
            return
        if self.middle is None:
            self.middle = ([], [])
        all_times, all_values = self.middle
        if at == len(all_times):
            # the newest block keeps its later half; other blocks keep their earlier half
            all_times.append(self.times[:half])
            all_values.append(self.values[:half])
            del self.times[:half], self.values[:half]
            return
        times, values = (self.old_times, self.old_values) if at < 0 else (all_times[at], all_values[at])
        all_times.insert(at + 1, times[half:])
        all_values.insert(at + 1, values[half:])
        del times[half:], values[half:]

    def expire(self, lo: int) -> int:
        """Drop every record with a time below `lo`, and return the number of dropped records.

        Complexity: O(1) if one record expires, O(expired / 512 + log 512) if many records expire.
        """
        if self.oldest >= lo:
            return 0
        before = self.start
        if self.newest < lo:
            self.clear()
            return self.start - before
        times = self.old_times
        head = self.head
        if times[-1] < lo:
            # drop whole blocks; the newest block has a live record
            self.start += len(times) - head
            head = 0
            if self.middle:
                all_times, all_values = self.middle
                expired = bisect_left(all_times, lo, key=_last_time)
                self.start += sum(map(len, all_values[:expired]))
                if expired < len(all_times):
                    times, self.old_values = all_times[expired], all_values[expired]
                else:
                    times, self.old_values = self.times, self.values
                del all_times[: expired + 1], all_values[: expired + 1]
            else:
                times, self.old_values = self.times, self.values
            self.old_times = times
        oldest = times[head]
        if oldest < lo:
            index = head + 1
            oldest = times[index]
            if oldest < lo:
                index = bisect_left(times, lo, index + 1)
                oldest = times[index]
            self.start += index - head
            if index >= _TRIM:
                self.trim(index)
                index = 0
            head = index
        self.head = head
        # one int object for both if the key has one record
        self.oldest = self.newest if oldest == self.newest else oldest
        return self.start - before

    def trim(self, head: int) -> None:
        """Remove the first `head` records of the oldest block. These records have expired, and their memory must be
        freed also for a key with few records.
        """
        del self.old_times[:head], self.old_values[:head]
        self.head = 0

    def clear(self) -> None:
        """Drop every record. Positions are not reset."""
        self.start = self.end
        self.times = self.old_times = array("q")
        self.values = self.old_values = []
        self.middle = None
        self.head = 0
        self.newest = self.oldest = -1

    def load(self, times: Iterable[int], values: Iterable[Any]) -> None:
        """Replace the contents by records that are in event order.

        Complexity: O(n) at C speed. Raises ValueError if the columns differ in length or the times are not sorted.
        """
        column = array("q", times)
        rows = list(values)
        if len(column) != len(rows):
            raise ValueError(f"value log: columns differ in length: {len(column)} times and {len(rows)} values")
        ordered = column.tolist()
        if ordered != sorted(ordered):
            raise ValueError("value log: times are not sorted (sort records by time, ties in order of arrival)")
        if self.end:  # a new log has nothing to forget
            self.clear()
        if rows:
            self.extend(column, rows)
            self.oldest = column[0]

    # -- reading

    def __len__(self) -> int:
        return self.end - self.start

    def _blocks(self) -> Iterator[Block]:
        """Yield every block, with only its live records."""
        if self.end == self.start:
            return
        if self.head:
            yield self.old_times[self.head :], self.old_values[self.head :]
        else:
            yield self.old_times, self.old_values
        if self.middle:
            yield from zip(*self.middle, strict=True)
        if self.times is not self.old_times:
            yield self.times, self.values

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (time, value) in event order. The log must not change meanwhile."""
        for times, values in self._blocks():
            yield from zip(times, values, strict=True)

    def columns(self) -> tuple[array[int], list[Any]]:
        """Return copies of the live times and values, in event order. A store persists these columns."""
        times: array[int] = array("q")
        rows: list[Any] = []
        for block_times, values in self._blocks():
            times.extend(block_times)
            rows.extend(values)
        return times, rows

    def before(self, lo: int) -> Block:
        """Return copies of the live times and values before `lo`, in event order.

        O(records before `lo` + log 512), at C speed.
        """
        old = self.old_times
        stop = bisect_left(old, lo, self.head)
        if stop < len(old) or old is self.times:
            return old[self.head : stop], self.old_values[self.head : stop]
        times: array[int] = array("q")
        rows: list[Any] = []
        for block_times, values in self._blocks():
            stop = bisect_left(block_times, lo)
            times.extend(block_times[:stop])
            rows.extend(values[:stop])
            if stop < len(block_times):
                break
        return times, rows

    def since(self, lo: int) -> Block:
        """Return copies of the live times and values from `lo` on, in event order.

        O(log 512 + records from `lo` on), at C speed; O(records) where these are in several blocks.
        """
        times, only = self.times, self.times is self.old_times
        if only or times[0] < lo:
            start = bisect_left(times, lo, self.head if only else 0)
            return times[start:], self.values[start:]
        times, rows = self.columns()
        start = bisect_left(times, lo)
        return times[start:], rows[start:]

    def slice(self, first: int, stop: int) -> Sequence[Any]:
        """Return the values at the positions first..stop-1. These positions must be live.

        Complexity: O(stop - first + blocks between the range and the nearer end of the log).
        """
        offset = first - self.start + self.head
        values = self.old_values
        if stop - first + offset <= len(values):
            return values[offset : offset + stop - first]
        values = self.values
        offset = first - self.end + len(values)
        if offset >= 0:
            return values[offset : offset + stop - first]
        return self._gather(first, stop)

    def _gather(self, first: int, stop: int) -> list[Any]:
        """Return values of several blocks, or of a middle block. The search begins at the nearer end."""
        blocks = self.middle[1] if self.middle else []
        wanted = stop - first
        ahead = first - self.start + self.head - len(self.old_values)
        behind = self.end - len(self.values) - first
        at = 0
        if ahead < 0:
            values = self.old_values[ahead:]
        else:
            if ahead <= behind:
                while ahead >= len(blocks[at]):
                    ahead -= len(blocks[at])
                    at += 1
            else:
                at = len(blocks) - 1
                while behind > len(blocks[at]):
                    behind -= len(blocks[at])
                    at -= 1
                ahead = len(blocks[at]) - behind
            values = blocks[at][ahead : ahead + wanted]
            at += 1
        while len(values) < wanted:
            more = blocks[at] if at < len(blocks) else self.values
            values += more[: wanted - len(values)]
            at += 1
        return values

    def check(self) -> None:
        """Assert every invariant of the representation; for tests."""
        blocks = [(self.old_times, self.old_values), *(zip(*self.middle, strict=True) if self.middle else ())]
        if self.times is not self.old_times:
            blocks.append((self.times, self.values))
        else:
            assert self.values is self.old_values, "one block, two lists of values"
            assert not self.middle or not self.middle[0], "blocks between one block and itself"
        # every block has as many times as values, and at most BLOCK
        for times, values in blocks:
            assert len(times) == len(values) <= BLOCK, (len(times), len(values))
        # no block is empty, unless the log is empty
        assert all(len(t) for t, _ in blocks) or self.start == self.end, [len(t) for t, _ in blocks]
        # the blocks have as many records as the positions say
        counted = sum(len(t) for t, _ in blocks) - self.head
        assert counted == self.end - self.start, (counted, self.start, self.end)
        assert 0 <= self.head <= _TRIM, self.head
        # times ascend, and lie within `oldest` and `newest`
        times, _ = self.columns()
        assert list(times) == sorted(times), list(times)
        if times:
            assert self.newest == times[-1], (self.newest, times[-1])
            assert self.oldest <= times[0], (self.oldest, times[0])
            assert self.head < len(self.old_times), (self.head, len(self.old_times))
