"""Apply: stores apply the mutations of committed versions, through the same functions as on the live path.

    frame    code, arg, ..., code, arg, ...    most frames hold one kind of mutation: every column is then a slice

The functions of columns that a store gives (`batch_appliers`) take all mutations of a kind in a frame at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress, count, repeat
from operator import ne
from typing import Any, Final, NamedTuple, Protocol

from changelog.codec import unpack
from changelog.errors import ChangelogError
from changelog.mutation import ARITY, DEFINE, SET, SYSTEM
from changelog.reader import LoggedVersion

from .directory import Directory
from .line import CLAIM


class Restorable(Protocol):
    """What a restore needs of a store.

    A store may keep mutations waiting and apply those of a key when the key is touched; only its stream time is then
    correct at once.
    """

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        """Become the store of a checkpoint, cold."""

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function of the op's arguments."""

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function of the op's arguments by column, for ops that go faster together than one by one."""

    def end_version(self, ts: int, version: int) -> None:
        """A version ends: what was applied belongs to it, and stream time is `ts` (ms), also that of rows that wait. No
        claim of an owner is one.
        """


class Known(NamedTuple):
    """How to apply a code: the function, how many arguments it takes, and the function that takes columns, or None."""

    function: Callable[..., None]
    arity: int
    batch: Callable[..., None] | None


Table = dict[int, Known]
# From this many mutations of one kind in a row on, taking them out by column is faster.
_RUN: Final = 8


class Host(Protocol):
    """What a restore fills: a group of stores."""

    settings: dict[str, Any]

    def reset(self) -> None:
        """Forget everything."""

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> Restorable:
        """Create a store. Raises HybridStoreError for a kind that is unknown."""

    def restorable(self, number: int) -> Restorable:
        """Return a store by number. Raises KeyError."""


def apply_version(version: LoggedVersion, host: Host, table: Table) -> None:
    """Apply the mutations of one version. `table` caches what `_lookup` found. O(n).

    Raises ChangelogError for a mutation that cannot be applied; a store that keeps it waiting raises when the key is
    touched.
    """
    _apply_bodies(version.bodies, host, table)
    commit = version.commit
    for number, ts in commit.times.items() if CLAIM not in commit.extra else ():
        try:
            host.restorable(number).end_version(ts, commit.version)
        except (KeyError, TypeError) as error:
            raise ChangelogError(f"time {ts!r} of store {number!r} in a commit cannot be applied: {error}") from error


def _apply_bodies(bodies: list[bytes], host: Host, table: Table) -> None:
    for body in bodies:
        flat = unpack(body)
        i, n, tried = 0, len(flat), False
        try:
            while i < n:
                code = flat[i]
                known = table.get(code)
                if known is None:
                    known = table[code] = _lookup(code, host)
                function, arity, batch = known
                step = arity + 1
                if batch is not None and flat[i : i + _RUN * step : step].count(code) == _RUN:
                    # nearly all mutations stand in long runs of one kind: then every column is a slice
                    end = i + _run(flat[i::step], code, (n - i) // step) * step
                    batch(*(flat[at:end:step] for at in range(i + 1, i + step)))
                    i = end
                    continue
                # not worth a look in a frame of few mutations, as small commits write them
                if batch is not None and not tried and n - i >= _RUN * step and (n - i) % step == 0:
                    tried = True
                    batches = _batches(flat[i::step], arity, host, table)
                    if batches:
                        columns = [flat[at::step] for at in range(i + 1, i + step)]
                        codes = flat[i::step]
                        for code, batch in batches.items():
                            chosen = [its_code == code for its_code in codes]
                            batch(*(list(compress(column, chosen)) for column in columns))
                        break
                if arity == 3:
                    function(flat[i + 1], flat[i + 2], flat[i + 3])
                elif arity == 2:
                    function(flat[i + 1], flat[i + 2])
                elif arity == 1:
                    function(flat[i + 1])
                else:
                    function(*flat[i + 1 : i + 1 + arity])
                i += step
        except (IndexError, TypeError, ValueError) as error:
            raise ChangelogError(f"mutation at item {i} of a frame cannot be applied: {error}") from error


def _run(codes: list[Any], code: int, most: int) -> int:
    """Return how many mutations of this code stand in a row, at most `most`. O(n), at C speed."""
    if codes.count(code) == len(codes):
        return most
    return min(most, next(compress(count(), map(ne, codes, repeat(code)))))


def _batches(codes: list[Any], arity: int, host: Host, table: Table) -> dict[int, Callable[..., None]]:
    """Return code -> function of columns if a frame holds mutations of several stores in turn, all of one length; else
    nothing.

    An item at one of these places is a code only if the code before it has the expected arity: the first item is a
    code, so all are codes if all have one arity. Each store may have one op in the frame: with two, their order would
    be lost.
    """
    batches: dict[int, Callable[..., None]] = {}
    if [*map(type, codes)].count(int) < len(codes):
        return batches
    for code in dict.fromkeys(codes):
        known = table.get(code)
        if known is None:
            if code < 0 or ARITY[code & 15] != arity or code >> 4 == SYSTEM:
                return {}
            known = table[code] = _lookup(code, host)
        if known.arity != arity or known.batch is None or any(code >> 4 == other >> 4 for other in batches):
            return {}
        batches[code] = known.batch
    return batches


def _lookup(code: Any, host: Host) -> Known:
    if type(code) is not int or code < 0:
        raise ChangelogError(f"mutation code: found {code!r}, expected a whole number")
    op, store = code & 15, code >> 4
    if store == SYSTEM:
        if op == DEFINE:
            define: Callable[..., Any] = host.define
            return Known(define, ARITY[op], None)
        if op == SET:
            return Known(host.settings.__setitem__, ARITY[op], None)
        raise ChangelogError(f"op {op} of store 0: expected set or define")
    try:
        restorable = host.restorable(store)
        return Known(restorable.appliers()[op], ARITY[op], restorable.batch_appliers().get(op))
    except KeyError:
        raise ChangelogError(f"op {op} of store {store}: no such store or op") from None
