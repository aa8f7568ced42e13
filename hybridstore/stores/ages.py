"""Ages: which records of a store with one dict by key are in memory where memory is short.

    runs     what was read or written since the last checkpoint began
    older    dicts of before, the youngest first: the first ones, `fresh` of them, have changes that are not in the
             checkpoint in use; the others have what its blocks have, and are freed, the last one first

A read that finds a record in an older dict moves it into `runs`, so records that are used stay. When a checkpoint
begins, `runs` becomes the first of the older dicts as it is (`part`), and when the checkpoint is in use, it and all
older ones can be freed. So nothing is copied or moved then, however much has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, ClassVar, Final

from recovery.finder import Finder

from .buckets import SealedBucket
from .cold_tail import Maps
from .key_blocks import KeyBlocks
from .sizes import map_bytes

# The dict becomes an older one when it has as many records as one in so many of the older ones have: so these are few,
# and each has records of about one age.
_SHARE: Final = 4
# A map of a sliding store of fewer keys than one in so many of the next older one becomes a part of that.
_SMALL: Final = 4
# After so many checkpoints over which a sliding store did not become cold, what may be cut there becomes whole again.
SEALS: Final = 8


class Older(list[dict[Any, Any]]):
    """The older dicts, and what belongs to them; in one object, because a store of more than 30 attributes is slower: a
    put by a tenth.

    fresh      how many of them have changes that are not in the checkpoint in use
    parting    a checkpoint begins: what has changed is put apart
    finder     says where records are that are not in memory, without a search of the cold blocks; None: blocks say it
    offered    the finder of the newest checkpoint, which is used when the store is cold over that checkpoint: no
               tombstone hides what is deleted of its records before
    loaded     a block was loaded whole: no tombstone hides what is deleted of its records, so no finder is used; a
               sliding store cannot read them there again
    twice      the records in the youngest dict that are in cold blocks, too, besides those that the blocks count
    deleted    the keys that were deleted since the last checkpoint began; None: they are among the changed keys
    heaps      of the expiries of the dicts that have changes: not needed, to be freed in slices
    wide       of a sliding store: how many of them may have changed keys, which are cut when they are freed
    newer      of a sliding store: how many of them may have keys that changed since the first of `seals`
    cut        of a sliding store: of changed keys the values that came since the checkpoint in use was begun, or more
    due        of a sliding store: keys to be looked at, because their last value may have expired
    seals      of a sliding store: what had changed before each checkpoint that was begun since it became cold over one;
               one with `dirty` None is for all of them, and nothing is cut
    beside     keys with values beside a cold block that a checkpoint has merged into that block
    """

    __slots__ = (
        "beside",
        "cut",
        "deleted",
        "due",
        "finder",
        "fresh",
        "heaps",
        "loaded",
        "newer",
        "offered",
        "parting",
        "seals",
        "twice",
        "wide",
    )

    def __init__(self) -> None:
        self.fresh = self.twice = self.wide = self.newer = 0
        self.deleted: set[Any] | None = None
        self.heaps: list[list[Any]] = []
        self.beside: set[Any] = set()
        self.cut: dict[Any, Any] = {}
        self.due: list[list[Any]] = []
        self.seals: list[SealedBucket] = []
        self.finder: Finder | None = None
        self.offered: Finder | None = None
        self.loaded = False
        self.parting = False

    def note_seal(self, seal: SealedBucket) -> None:
        """Note what had changed before a checkpoint that begins: until a sliding store is cold over it, its blocks do
        not have that. A store that has nothing to cut, as without a limit, keeps no set of keys for each. O(1).
        """
        if self.seals and not self.wide and not self.cut:
            self.seals = [SealedBucket(None, seal.since, seal.late)]
        else:
            self.seals.append(seal)

    def forget_seal(self, seal: SealedBucket) -> None:
        """Undo `note_seal` of a checkpoint that has failed. O(1)."""
        if self.seals and (seal.dirty is None or self.seals[-1].dirty is not None):
            self.seals.pop()
        if not self.seals:
            self.newer = 0

    def merge(self) -> None:
        """Put small maps into the next older ones, so that a key is looked for in few. O(records of small maps)."""
        self[: self.wide] = wide = [each for each in self[: self.wide] if each]
        self.wide = len(wide)
        for first in (self.wide, 0):
            last = len(self) if first else self.wide
            while last - first > 1 and _SMALL * len(self[first]) < len(self[first + 1]):
                small = self.pop(first)
                self[first].update(small)
                last -= 1
                self.wide -= not first


class Ages(KeyBlocks):
    """One dict by key, and older ones behind it, with key ranges that are still in a checkpoint behind these."""

    cools: ClassVar[bool] = True
    _older: Older

    def clear_state(self) -> None:
        super().clear_state()
        self._older = Older()

    def _bytes_of(self, maps: Sequence[dict[Any, Any]]) -> int:
        """Return about how many bytes dicts of records take. O(sample) for each."""
        return sum(map(map_bytes, maps))

    def _maps_bytes(self) -> int:
        return self._bytes_of([self._runs]) + self._bytes_of(self._older)

    def maps(self) -> list[Maps]:
        """Return the maps of the records in memory, to be emptied in slices when the store has others. O(1)."""
        return [*super().maps(), *self._older, *self._older.heaps]

    @property
    def changed_keys(self) -> tuple[int, int]:
        known = len(self._runs) + sum(map(len, self._older))
        return known if self._dirty is None else len(self._dirty), known

    @property
    def _is_age(self) -> bool:
        """Whether the dict has so much of what is in memory that it becomes an older one. O(older dicts)."""
        return _SHARE * len(self._runs) >= sum(map(len, self._older))

    @property
    def spare(self) -> tuple[int, int]:
        older = self._older[self._older.fresh :]
        return self._bytes_of(older), sum(map(len, older))

    def free(self, records: int) -> int:
        older, freed = self._older, 0
        while freed < records and len(older) > self._older.fresh:
            last = older[-1]
            count = min(len(last), records - freed)
            deque(map(dict.popitem, repeat(last, count)), maxlen=0)
            freed += count
            if not last:
                older.pop()
        return freed

    @property
    def ages(self) -> int:
        return len(self._older) - self._older.fresh

    def part(self, *, begins: bool) -> None:
        self._older.parting = begins

    @property
    def parted(self) -> bool:
        return self._older.fresh > 0
