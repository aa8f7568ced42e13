"""Rule: which log objects of a shard count. Pure functions of names and of the runs of a query.

    An object of version v counts only if its launch is the newest whose first batch is below v.

A restarted query runs its first batch again in full. So every object that older launches wrote for that batch or a
later one is void, whether it existed before or arrives late: from tasks that outlive their query, or from batches that
were undone when the query was turned back. No object has to be removed for that.

Of several attempts of one launch at a version the greatest counts, until the object of a later version names its
parent. An object of attempt 0 is a note: no row came. It has no parent and no digest, and ranks below every attempt. A
note may span the quiet versions before its own, so that those before it can be removed.

docs/format.md, "Which objects count", is the page of this module.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from .layout import LogName
from .line import EMPTY, Step

# The attempt of a note; Spark's attempts are counted from 1 here.
NOTE: Final = 0
# The fault of a version of a shard without its expected object.
ABSENT: Final = "version {} has left no object: batch {} did not reach this shard, or its object was lost"
# In the place of a note's digest: this bit and how many versions the note spans, or else the number of the attempt,
# which makes the name unique.
_SPANS: Final = 1 << 31


def note(version: int, launch: int, attempt: int) -> LogName:
    """Return the name of the note of an attempt without rows."""
    return LogName(version, launch, NOTE, f"{attempt % _SPANS:08x}")


def note_of(version: int, launch: int, versions: int) -> LogName:
    """Return the name of the note that spans this many versions, of which `version` is the last."""
    return LogName(version, launch, NOTE, f"{_SPANS + min(versions, _SPANS - 1):08x}")


def spanned(name: LogName) -> int:
    """Return how many versions a note spans."""
    number = int(name.digest8, 16)
    return number - _SPANS if number >= _SPANS else 1


class Run(NamedTuple):
    """One launch that has begun: its number, and the first batch that it did."""

    launch: int
    first: int


# Launches that count for some version, oldest first: each with a later first batch than the one before it.
Runs = tuple[Run, ...]


class MissingParent(LookupError):
    """An object that another one names as its parent is not there. `step` is the parent."""

    def __init__(self, step: Step, child: LogName) -> None:
        super().__init__(
            f"the log object of version {step.version} with digest {step.digest[:4].hex()} is missing, though {child} "
            "continues it"
        )
        self.step = step


def begun(runs: Runs, run: Run) -> Runs:
    """Return `runs` with a newer run: runs that begin with its first batch or later no longer count. O(runs).

    Raises ValueError unless it is newer.
    """
    if runs and run.launch <= runs[-1].launch:
        raise ValueError(f"launch {run.launch} does not come after launch {runs[-1].launch}")
    return (*(older for older in runs if older.first < run.first), run)


def counting(runs: Runs, version: int) -> Run | None:
    """Return the run whose objects of this version count; None where none has begun below it. O(log runs)."""
    at = bisect_left(runs, version, key=lambda run: run.first)
    return runs[at - 1] if at else None


def launch_of(runs: Runs, version: int) -> int:
    """Return the launch whose objects of a version count; 0 if none exists. O(log runs)."""
    run = counting(runs, version)
    return 0 if run is None else run.launch


def counts(runs: Runs, name: LogName) -> bool:
    """True when the object of this name is not void. O(log runs)."""
    run = counting(runs, name.version)
    return run is not None and run.launch == name.launch


class CountingObjects:
    """The objects of a shard that count: `attempts` by version, the greatest first, and the `notes`.

    O(n log n) to build.
    """

    def __init__(self, names: Iterable[LogName], runs: Runs) -> None:
        self.runs = runs
        self.attempts: dict[int, list[LogName]] = {}
        self.notes: dict[int, LogName] = {}
        for name in sorted(names, reverse=True):
            if not counts(runs, name):
                continue
            if name.attempt == NOTE:
                # in this order the note that spans most versions is first
                self.notes.setdefault(name.version, name)
            else:
                self.attempts.setdefault(name.version, []).append(name)

    @property
    def newest(self) -> int:
        """The newest version that counts; 0 if none exists."""
        return max(max(self.attempts, default=0), max(self.notes, default=0))

    def newest_name(self) -> LogName | None:
        """Return the object of the newest version that counts, or its note; None if none exists. O(versions)."""
        version = self.newest
        return self.attempts[version][0] if version in self.attempts else self.notes.get(version)

    def greatest(self) -> LogName | None:
        """Return the greatest attempt of the newest version that has an attempt; None if none exists. O(versions)."""
        return self.attempts[max(self.attempts)][0] if self.attempts else None

    def has(self, version: int) -> bool:
        """True when the batch before this version reached the shard. O(1), O(notes) for one that a later note spans."""
        if version in self.attempts or version in self.notes:
            return True
        above = min((number for number in self.notes if number > version), default=None)
        return above is not None and spanned(self.notes[above]) > above - version

    def absent(self, after: int, through: int) -> Iterator[int]:
        """Yield the versions above `after`, up to `through`, that have left no object. O(versions)."""
        return (version for version in range(after + 1, through + 1) if not self.has(version))

    def differing(self) -> int:
        """Return how many versions have attempts with different digests. O(objects)."""
        return sum(len({name.digest8 for name in names}) > 1 for names in self.attempts.values())

    def top(self, version: int, parent_of: Callable[[LogName], Step]) -> LogName | None:
        """Return the newest object at or below a version that is not a note; None where none exists.

        If attempts differ, or a note has the same version, the result is the attempt that later objects name, else the
        greatest. O(versions), and one call of `parent_of` for each later version that does not settle it.
        """
        newest = max((number for number in self.attempts if number <= version), default=None)
        if newest is None:
            return None
        settled = newest
        for later in sorted(number for number in self.attempts if number > newest):
            if not self._differ(settled):
                break
            settled = later
        name = self.attempts[settled][0]
        while name.version > version:
            parent = parent_of(name)
            before = self.parent(parent)
            if before is None:
                return None if parent == EMPTY else self.attempts[newest][0]
            name = before
        return name

    def _differ(self, version: int) -> bool:
        names = self.attempts[version]
        return version in self.notes or any(name.digest8 != names[0].digest8 for name in names)

    def below(self, version: int) -> LogName | None:
        """Return the greatest attempt of the newest version below `version` that has an attempt; None if none exists.
        O(versions).
        """
        older = max((number for number in self.attempts if number < version), default=None)
        return None if older is None else self.attempts[older][0]

    def parent(self, step: Step) -> LogName | None:
        """Return the object of a step, as a later object names it; None where it is not there. O(attempts)."""
        digest8 = step.digest[:4].hex()
        return next((name for name in self.attempts.get(step.version, ()) if name.digest8 == digest8), None)

    def line(self, version: int, parent_of: Callable[[LogName], Step], base: int = 0) -> Iterator[tuple[LogName, Step]]:
        """Yield the objects of the line that ends at or below `version`, newest first, each with its parent.

        It begins with `top` and follows parents, down to the first one at or below
        `base`. `parent_of` gives an object's parent, as its header says. Raises MissingParent. O(versions), one call of
        `parent_of` for each.
        """
        name = self.top(version, parent_of)
        while name is not None and name.version > base:
            parent = parent_of(name)
            yield name, parent
            if parent == EMPTY or parent.version <= base:
                return
            before = self.parent(parent)
            if before is None:
                raise MissingParent(parent, name)
            name = before
