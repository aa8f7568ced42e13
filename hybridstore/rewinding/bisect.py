"""The command `bisect`: the first version whose value of a key is bad, in log2(versions) + 1 reads of the key.

The newest version is read first. Then the versions that can be read, pins among them, are halved: a bad value lies at
or behind the first bad version, and the value is assumed to stay bad. A version that cannot be read is left out, and
the answer then names the versions among which it cannot decide.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from changelog.errors import HybridStoreError
from recovery.errors import RestoreError

from ..inspection import options as o
from ..inspection.commands.get import stored_forms
from ..inspection.commands.versions import program_rows
from ..inspection.options import FINE, NEGATIVE, UsageError, last_options
from ..inspection.shards import shard_places
from ..inspection.show.output import FORMS, Out, time_cell, value_cell
from ..reading.pins import pins_of
from ..reading.places import Place, operator_chain
from ..reading.selection import Selection
from ..reading.store_view import of_key_type
from ..reading.texts import say
from ..reading.versions import reach
from ..reading.view import View, open_view
from ..shards import shard_of
from ..stores.kinds import Row
from .predicate import Predicate, expression, function_of

# What an expression raises for a value that it does not fit.
_MISFITS: Final = (TypeError, LookupError, ValueError, ArithmeticError, MemoryError, RecursionError)
_COLUMNS = ("version", "committed", "before", "value", "good", "program", "versions", "reads")


class Bisected(NamedTuple):
    """What `bisect` has found.

    version   the first bad version; None: the newest version is not bad
    wall_ms   the time of its commit (ms), None if it is not known
    rows      the records of the key that are bad there; [] where the key has none
    good      the version before it that was read and is not bad; None: the oldest version that can be read is bad
    before    the records of the key at that version
    program   the number of the program that wrote the version; None for a state without a topology
    skipped   versions between `good` and `version` that cannot be read: any of them may be the first bad one
    versions  how many versions can be read
    reads     how many were

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> hs.bisect("state", "users", "ann", "value < 0").version is None
    True
    """

    version: int | None
    wall_ms: int | None
    rows: list[Row]
    good: int | None
    before: list[Row]
    program: int | None
    skipped: Sequence[int]
    versions: int
    reads: int


class _Seen(NamedTuple):
    """A version that was read: its view, the records of the key, and those that are bad; `bad` also without records."""

    view: View
    rows: list[Row]
    wrong: list[Row]
    bad: bool


def bisect(
    location: str | os.PathLike[str],
    store: str,
    key: Any,
    bad: str | Callable[[Any], Any],
    *,
    time_from: int | None = None,
    time_to: int | None = None,
) -> Bisected:
    """Return the first version at which a record of a key is bad.

    location            a state directory, the state of a plain topology, the checkpoint location of a Spark query, or
                        the URL of one; its job may run
    store, key          as `hs.inspect(location)[store].get(key)` takes them
    bad                 an expression over `value`, such as "value < 0", or a function of the value; where the key has
                        no record, the value is None
    time_from, time_to  only windows and sessions between these times (ms)

    The versions are those that `at=` can read, and pins of older ones. A value that becomes bad is assumed to stay bad.
    Raises UsageError for an unknown store, a key of another type, an expression that is not understood or that a value
    does not fit; RestoreError, OSError. log2(versions) + 1 reads of O(blocks of the key + tail) each.

    >>> with hs.open("state") as state:
    ...     totals = state.key_value("totals")
    ...     for amount in (5, 3, -20, 1):
    ...         totals["ann"] = totals.get("ann", 0) + amount
    ...         version = state.commit()
    >>> first = hs.bisect("state", "totals", "ann", "value < 0")
    >>> first.version, first.rows[0].value, first.good, first.before[0].value, first.reads
    (3, -12, 2, 8, 3)
    """
    return _Search(location, store, key, bad, Selection(time_from=time_from, time_to=time_to)).first_bad()


class _Search:
    """The versions of one key, and what is bad. `met`: the key had a record at a version that was read."""

    def __init__(
        self, location: str | os.PathLike[str], store: str, key: Any, bad: str | Predicate, chosen: Selection
    ) -> None:
        self._store = store
        self._key = key
        self._bad = expression(bad) if isinstance(bad, str) else bad
        self._chosen = chosen
        self._place = _place_of(location, key)
        self.met = False
        self._reads = 0
        self._versions = self._readable(location)
        self._unread: list[int] = []
        self._known = False  # the newest version that can be read was read, and has the store

    def _readable(self, location: str | os.PathLike[str]) -> dict[int, Place]:
        """Return the place of each version, in order: those of the state, and older ones of its pins."""
        retained = _versions_of(self._place)
        versions = dict.fromkeys(retained, self._place)
        oldest = min(retained, default=0)
        pins = [each.path for each in pins_of(location) if not each.fault]
        for path in pins:
            place = _place_of(path, self._key)
            versions.update(dict.fromkeys((each for each in _versions_of(place) if each < oldest), place))
        return dict(sorted(versions.items()))

    def first_bad(self) -> Bisected:
        numbers = list(self._versions)
        last = self._read_one(numbers)
        if last is None:
            raise RestoreError(f"{self._place.where}: no version can be read, expected one")
        if not last.bad:
            return Bisected(None, None, [], last.view.version, last.rows, None, (), len(self._versions), self._reads)
        good: _Seen | None = None
        while numbers:
            at = (len(numbers) - 1) // 2
            seen = self._read(numbers[at])
            if seen is None:
                del numbers[at]
            elif seen.bad:
                last, numbers = seen, numbers[:at]
            else:
                good, numbers = seen, numbers[at + 1 :]
        return self._answer(last, good)

    def _read_one(self, numbers: list[int]) -> _Seen | None:
        """Read the newest version that can be read, and remove it, and later ones, from the numbers."""
        while numbers:
            seen = self._read(numbers.pop())
            if seen is not None:
                return seen
        return None

    def _read(self, version: int) -> _Seen | None:
        """Read the records of the key at a version; None if the version cannot be read."""
        self._reads += 1
        try:
            view = open_view(self._versions[version], version)
        except RestoreError:
            self._unread.append(version)
            return None
        rows = self._rows(view)
        self.met = self.met or bool(rows)
        if view.faults:  # of a block, which was read just now
            self._unread.append(version)
            return None
        self._known = True
        if not rows:
            try:
                return _Seen(view, [], [], bool(self._bad(None)))
            except _MISFITS:  # what is asked of a value is not true of none
                return _Seen(view, [], [], False)
        wrong = [row for row in rows if self._is_bad(row, view)]
        return _Seen(view, rows, wrong, bool(wrong))

    def _rows(self, view: View) -> list[Row]:
        if self._store not in view.stores:
            if not self._known:
                known = ", ".join(view.stores) or "none"
                raise UsageError(f"{view.place.where}: no store {self._store!r} (known: {known})")
            return []  # the store began later
        store, key = view.stores[self._store], self._key
        try:
            return list(of_key_type(store, [key], store.records(self._chosen._replace(key_from=key, key_to=key))))
        except TypeError as error:
            if self._known:
                return []
            raise UsageError(f"{error} (keys are typed: text, int:5, float:1.5, hex:00ff, json:[..])") from error

    def _is_bad(self, row: Row, view: View) -> bool:
        try:
            return bool(self._bad(row.value))
        except _MISFITS as error:
            raise UsageError(
                f"--bad: version {view.version}, value {row.value!r}: {type(error).__name__}: {error} (expected an "
                "expression that fits every value of the key)"
            ) from error

    def _answer(self, last: _Seen, good: _Seen | None) -> Bisected:
        view = last.view
        below = 0 if good is None else good.view.version
        skipped: Sequence[int] = ()
        if good is not None and view.place.operator_storage is None:
            skipped = range(below + 1, view.version)  # what could be read between both was read
        elif good is not None:  # a batch without rows of the shard is no version of it
            skipped = [version for version in sorted(self._unread) if below < version < view.version]
        return Bisected(
            view.version,
            view.wall_ms,
            last.wrong,
            None if good is None else below,
            [] if good is None else good.rows,
            _program_of(view),
            skipped,
            len(self._versions),
            self._reads,
        )


def _versions_of(place: Place) -> list[int]:
    within = reach(place)
    return sorted({*within.checkpoints, *(each.version for each in within.commits if each.version >= within.oldest)})


def _place_of(location: str | os.PathLike[str], key: Any) -> Place:
    """Return the place of the shard that has a key. Raises UsageError where several may have it."""
    places = shard_places(location)
    if len(places) > 1 and all(place.shard is None for place in places):
        return places[shard_of(key, len(places))]
    if len({place.operator for place in places}) > 1:
        names = ", ".join(sorted({place.operator for place in places}))
        raise UsageError(f"{location}: found the operators {names}, expected one (give its folder)")
    return next((place for place in places if place.holds(key)), places[0])


def _program_of(view: View) -> int | None:
    chain = operator_chain(view.place)
    programs = list(program_rows(view.settings if chain is None else {"programs": chain}, view.version))
    wrote = [row["program"] for row in programs if row["versions"] != "none"]
    return wrote[-1] if wrote else None


# --- the command --------------------------------------------------------------------------------------------------


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.store(parser)
    o.key(parser)
    what = parser.add_argument_group("what is bad")
    text = "An expression over value: 'value < 0', 'value is None' (no record), \"len(value['items']) > 9\"."
    what.add_argument("--bad", metavar="EXPRESSION", help=text)
    text = "Instead a function of the value, in a file of yours, which is run."
    what.add_argument("--predicate", metavar="FILE.py:FUNCTION", help=text)
    o.windows(parser)
    how = parser.add_argument_group("how")
    how.add_argument("-o", "--output", metavar="FORM", choices=FORMS, help=f"{', '.join(FORMS)}.")
    how.add_argument("--iso", action="store_true", help="Times in ISO form (UTC) instead of milliseconds.")
    last_options(how)


def _first_bad(given: Namespace, forms: list[Any], bad: str | Predicate, chosen: Selection) -> Bisected:
    """Return the answer for the form of a key that the store has: the key, or its text where null is a key, which may
    be in another shard.
    """
    answers: list[Bisected] = []
    wrong: UsageError | None = None
    for form in forms:
        search = _Search(given.path, given.store, form, bad, chosen)
        try:
            answers.append(search.first_bad())
        except UsageError as error:
            if search.met:
                raise
            wrong = wrong or error
        if search.met:
            return answers[-1]
    if wrong is not None:
        raise wrong
    return answers[0]


def run(given: Namespace) -> int:
    """Find the first version at which a record of a key is bad: "when did this become wrong?". Nothing is changed.

    Reads the key at log2(versions) + 1 of the versions that can be read, pins among them, and shows the version, the
    time of its commit, the values before and at it, and the number of the program that wrote it (`hybridstore inspect
    versions`). A value that becomes bad is assumed to stay bad.

    Exit codes: 0 found, 1 not bad at the newest version, or bad at the oldest one already, 2 wrong usage, 3 cannot
    read.
    """
    if (given.bad is None) == (given.predicate is None):
        raise UsageError("bisect: expected either --bad EXPRESSION or --predicate FILE.py:FUNCTION")
    bad = function_of(given.predicate) if given.bad is None else given.bad
    key = o.typed_key(given.key)
    chosen = Selection(time_from=o.maybe_time(given.time_from), time_to=o.maybe_time(given.time_to))
    try:
        first = _first_bad(given, list(stored_forms(key)), bad, chosen)
    except HybridStoreError as error:
        if isinstance(error, UsageError):
            raise
        say(f"refused: {error}")
        return o.UNREADABLE
    where = f"{given.store} {given.key}"
    if first.version is None:
        say(f"{where}: not bad at version {first.good}, the newest of {first.versions}")
        return NEGATIVE
    row = {"version": first.version, "committed": time_cell(first.wall_ms, given.iso)}
    values = {"before": first.before, "value": first.rows}
    row |= {name: value_cell(rows[0].value) for name, rows in values.items() if rows}
    row |= {"good": first.good, "program": first.program, "versions": first.versions, "reads": first.reads}
    Out(given.output).rows([{name: cell for name, cell in row.items() if cell is not None}], _COLUMNS)
    if first.good is None:
        say(
            f"{where}: bad at version {first.version} already, the oldest that can be read (older versions are not "
            "retained; `hybridstore pin` keeps one)"
        )
        return NEGATIVE
    if first.skipped:
        say(
            f"{where}: the versions {first.skipped[0]} to {first.skipped[-1]} cannot be read: the first bad version is "
            f"one of {first.good + 1} to {first.version}"
        )
    return FINE
