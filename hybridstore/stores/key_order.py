"""Key order: the keys of a dict in order, for a store whose puts do not pay for an order.

The first ordered scan sorts the keys. Later ones sort in those that came or went since, which the store notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sortedcontainers import SortedList

from .buckets import TOMBSTONE

# When more than one key in so many has changed, sorting all of them anew is cheaper.
_FEW: Final = 4


class KeyOrder:
    """The live keys of `runs` in order. `changed` has the keys that may have come or gone since the last scan: who
    changes `runs` adds them.
    """

    __slots__ = ("_keys", "_runs", "changed")

    def __init__(self, runs: Mapping[Any, Any]) -> None:
        self._runs = runs
        self._keys: SortedList | None = None
        self.changed: set[Any] = set()

    def keys(self) -> SortedList:
        """Return all live keys in order. O(changed log n), and O(n log n) after many changes."""
        runs, keys, changed = self._runs, self._keys, self.changed
        if keys is not None and not changed:
            return keys
        self._keys = None  # sorted anew if what follows is cut short
        if keys is None or len(changed) * _FEW > len(runs):
            keys = SortedList(key for key, value in runs.items() if value is not TOMBSTONE)
        else:
            for key in changed:
                keys.discard(key)
            keys.update(key for key in changed if runs.get(key, TOMBSTONE) is not TOMBSTONE)
        self._keys, self.changed = keys, set()
        return keys

    def _check(self) -> None:
        """Assert every invariant of the representation."""
        if self._keys is not None:
            wrong = set(self._keys) ^ {key for key, value in self._runs.items() if value is not TOMBSTONE}
            # the order differs from the dict only by keys that are known to have changed
            assert wrong <= self.changed, ("order", wrong - self.changed)
            assert len(set(self._keys)) == len(self._keys), ("order holds a key twice",)
