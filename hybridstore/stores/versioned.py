"""Versioned store: the versions of each key, each valid from its time to the time of the next version (KIP-889).

    newest     key-value store:  key -> [ts, value]                     the version that is valid now; absent if deleted
    versions   session store:    (key, ts, end of validity) -> value    older versions; (key, ts, ts) marks a deletion

The store has no maps of its own: both parts are stores of the state, which log, checkpoint, rescale and show what is
put. The surprise: an older version is kept by the END of its validity, because the version that is valid at the
boundary of the history may have begun long before.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple

from ..clock import check_time
from .edge import K, V
from .key_value import KeyValueStore
from .session import SessionStore

# The value of a session that marks a deletion; versions are wrapped in a list, so no version equals the mark.
_DELETED: Final = False
_BY_TIME: Final = attrgetter("ts")


class ValueVersion(NamedTuple, Generic[V]):
    """One version of a key: its value, the time from which it is valid, and the time of the next version (ms).

    `valid_to` is exclusive; None: the version is the newest.
    """

    value: V
    ts: int
    valid_to: int | None


class Stored(NamedTuple):
    """The outcome of a put or delete: whether it was stored, and the next version's time (None: no next version)."""

    stored: bool
    valid_to: int | None


class VersionedStore(Generic[K, V]):
    """A versioned key-value store. Made by `State.versioned`; see there for the parameters.

    T is the newest time that any put or delete of the store had; with `moved` False only `advance` moves T. Time
    complexity: put and get of the newest version O(1); of another O(log n + versions of the key that overlap).

    >>> prices = hs.open("state").versioned("prices", history="1 hour")
    >>> prices.put("tea", 3, ts=0)
    Stored(stored=True, valid_to=None)
    >>> prices.put("tea", 4, ts=60_000)
    Stored(stored=True, valid_to=None)
    >>> prices.get("tea"), prices.get("tea", as_of=59_999)
    (ValueVersion(value=4, ts=60000, valid_to=None), ValueVersion(value=3, ts=0, valid_to=60000))
    """

    __slots__ = ("_moved", "_newest", "_versions", "dropped", "history_ms")

    def __init__(self, newest: KeyValueStore, versions: SessionStore, history_ms: int, *, moved: bool = True) -> None:
        self._newest = newest
        self._versions = versions
        self._moved = moved
        self.history_ms = history_ms
        self.dropped = 0
        """Puts and deletes that this object has refused, because their time was behind the history: every call of
        `State.versioned` returns an object that counts from 0.
        """

    @property
    def stream_time(self) -> int:
        """T: the newest time (ms) that any put or delete had; -1 at first.

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> prices.put("tea", 3, ts=60_000).stored, prices.stream_time
        (True, 60000)
        """
        return self._versions.stream_time

    def put(self, key: K, value: V | None, ts: int) -> Stored:
        """Store the version of `key` that is valid from `ts` (ms) on; None deletes the key from `ts` on.

        A version of the same time is replaced. A time before T - history is refused and counted. Raises TypeError or
        ValueError, with nothing changed, for a key, value or time that cannot be stored.

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> prices.put("tea", 3, ts=60_000).stored, prices.put("tea", 2, ts=0)  # an older version
        (True, Stored(stored=True, valid_to=60000))
        """
        check_time(ts, "versioned store: ts")
        if ts < self.stream_time - self.history_ms:
            self.dropped += 1
            return Stored(False, None)
        newest = self._newest.get(key)
        marks = None
        if newest is None or ts < newest[0]:
            marks = list(self._versions.find_sessions(key, ts))
        if newest is not None and ts >= newest[0]:
            end = None
        else:
            starts = [start for (_, start, _), _ in marks or () if start > ts]
            end = min(starts, default=None if newest is None else newest[0])
        if end is None:
            self._put_newest(key, value, ts, newest, marks or [])
        else:
            self._put_between(key, value, ts, end, marks or [])
        if self._moved:
            self._versions.advance(ts)
        return Stored(True, end)

    def _put_newest(self, key: Any, value: Any, ts: int, newest: Any, marks: list[Any]) -> None:
        """Store a version behind all others."""
        if value is not None:
            self._newest.put(key, [ts, value])
        if newest is not None and newest[0] < ts:
            self._versions.put(key, newest[1:], start=newest[0], end=ts)
        for (_, start, end), _ in marks:
            if start == end == ts:  # a deletion of this time is replaced
                self._versions.delete(key, start, end)
        if value is None:
            if newest is not None:
                self._newest.delete(key)
            self._versions.put(key, _DELETED, start=ts, end=ts)

    def _put_between(self, key: Any, value: Any, ts: int, end: int, marks: list[Any]) -> None:
        """Store a version that is valid until `end`, the time of the next one."""
        for (_, start, stop), older in marks:
            if start == ts:
                self._versions.delete(key, start, stop)
            elif start < ts < stop:  # the version that was valid at `ts` ends there
                self._versions.delete(key, start, stop)
                self._versions.put(key, older, start=start, end=ts)
        if value is None:
            self._versions.put(key, _DELETED, start=ts, end=ts)
        else:
            self._versions.put(key, [value], start=ts, end=end)

    def delete(self, key: K, ts: int) -> ValueVersion[V] | None:
        """Delete `key` from `ts` (ms) on, and return the version that was valid at `ts`, or None.

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> prices.put("tea", 3, ts=0).stored
        True
        >>> prices.delete("tea", ts=60_000), prices.get("tea"), prices.get("tea", as_of=59_999)
        (ValueVersion(value=3, ts=0, valid_to=None), None, ValueVersion(value=3, ts=0, valid_to=60000))
        """
        check_time(ts, "versioned store: ts")
        before = self.get(key, as_of=ts)
        return before if self.put(key, None, ts).stored else None

    def get(self, key: K, as_of: int | None = None) -> ValueVersion[V] | None:
        """Return the version of `key` that is valid at `as_of` (ms; None: the newest), or None.

        A time before T - history has an answer only where the newest version of the key is that old: it never expires.

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> prices.get("tea") is None
        True
        """
        newest = self._newest.get(key)
        if newest is not None and (as_of is None or newest[0] <= as_of):
            return ValueVersion(newest[1], newest[0], None)
        if as_of is None or as_of < self.stream_time - self.history_ms:
            return None
        for (_, start, end), value in self._versions.find_sessions(key, as_of + 1, as_of):
            if value is not _DELETED:
                return ValueVersion(value[0], start, end)
        return None

    def versions(
        self, key: K, time_from: int | None = None, time_to: int | None = None, *, reverse: bool = False
    ) -> Iterator[ValueVersion[V]]:
        """Iterate over the versions of `key` whose validity touches `time_from` to `time_to` (ms, inclusive, None:
        open), oldest first; deletions are no versions.

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> [prices.put("tea", price, ts).stored for price, ts in ((3, 0), (4, 60_000))]
        [True, True]
        >>> [version.value for version in prices.versions("tea", reverse=True)]
        [4, 3]
        """
        newest = self._newest.get(key)
        rows: list[ValueVersion] = []
        if time_to is None or time_to >= self.stream_time - self.history_ms:
            low = max(0 if time_from is None else time_from, self.stream_time - self.history_ms, 0)
            for (_, start, end), value in self._versions.find_sessions(key, low + 1, time_to):
                if value is not _DELETED:
                    rows.append(ValueVersion(value[0], start, end))
            rows.sort(key=_BY_TIME)
        if newest is not None and (time_to is None or newest[0] <= time_to):
            rows.append(ValueVersion(newest[1], newest[0], None))
        return reversed(rows) if reverse else iter(rows)

    def items(self) -> Iterator[tuple[K, ValueVersion[V]]]:
        """Iterate over `(key, newest version)`, by key.

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> prices.put("tea", 3, ts=0).stored
        True
        >>> list(prices.items())
        [('tea', ValueVersion(value=3, ts=0, valid_to=None))]
        """
        return ((key, ValueVersion(value, ts, None)) for key, (ts, value) in self._newest.all())

    def advance(self, ts: int) -> None:
        """Move T to `ts` (ms) without a version; an earlier time changes nothing. O(expired).

        >>> prices = hs.open("state").versioned("prices", history="1 hour")
        >>> prices.advance(60_000)
        >>> prices.stream_time
        60000
        """
        self._versions.advance(ts)

    def __len__(self) -> int:
        """Count the keys that have a newest version. O(1)."""
        return len(self._newest)
