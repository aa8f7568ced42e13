"""Changes: the differences between the program that made a state and the program that continues it, and which are
allowed.

taken       nothing is lost, or only what the rule of the change names; the change is logged and needs no consent
consent     something is lost, or begins only now: the change needs `allow=` with the words that the error names
refused     the state cannot be changed so: the text says what to do instead
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from recovery.errors import ProgramMismatchError

Verdict = Literal["taken", "consent", "refused"]
_LOG: Final = logging.getLogger("hybridstore")


class Difference(NamedTuple):
    """One thing in which a program differs from the one before.

    what      what differs: "retention: 1000 ms in the state, 2000 ms in the program"
    verdict   see the module
    note      what happens to the state, or what to do if the change is refused
    consent   the words that `allow=` needs; "" if no consent is needed

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> with minutes.aggregate(n=hs.Count()).open("state") as engine:
    ...     engine.commit()
    []
    >>> for change in minutes.aggregate(n=hs.Count(), last=hs.Last("page")).compare("state"):
    ...     print(change.verdict, change.what, change.consent, sep=" | ")
    consent | aggregate last: new | add aggregate last from now
    """

    what: str
    verdict: Verdict
    note: str
    consent: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.note})"


def differs(part: str, stored: Any, asked: Any) -> str:
    """Return the words for a part of a program that differs."""
    return f"{part}: the state has {stored!r}, asked for {asked!r}"


def refused(part: str, stored: Any, asked: Any, note: str = "") -> Difference:
    """Return the refusal of a difference; the default note says to run the old program or to begin a new state."""
    note = note or "ask for what the state has, or begin in a new checkpoint location or directory"
    return Difference(differs(part, stored, asked), "refused", note)


def consents(allow: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the words of `allow=` as a tuple of texts. Raises TypeError for other types."""
    words = tuple(allow) if isinstance(allow, Iterable) and not isinstance(allow, str) else (allow,) if allow else ()
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"allow: found {type(word).__name__}, expected text, or a list of texts")
    return words


def judge(
    where: object,
    changes: Sequence[Difference],
    allow: Collection[str] = (),
    used: Collection[str] = (),
    earlier: Collection[str] | None = None,
) -> None:
    """Raise ProgramMismatchError unless all changes may be taken with these words of consent.

    `used` are the words with which the program in force was accepted: a restarted job still passes them. `earlier` are
    those among them that changes needed, if others are looked at later (None: all): an error about a change names the
    words beside them that nothing needs. O(n).
    """
    needed = {change.consent for change in changes if change.consent}
    hindrances = [f"{change.what} ({change.note})" for change in changes if change.verdict == "refused"]
    hindrances += [
        f"{change.what} ({change.note}; to do it: allow={change.consent!r})"
        for change in changes
        if change.consent and change.consent not in allow
    ]
    if hindrances:
        known = needed | set(used if earlier is None else earlier)
        hindrances += [f"allow: found {word!r}, but no change needs that" for word in allow if word not in known]
        raise ProgramMismatchError(f"{where}: the program does not match the state: {'; '.join(hindrances)}")
    for word in allow:
        if word not in needed and word not in used:
            raise ProgramMismatchError(
                f"{where}: allow: found {word!r}, but the program does not change that "
                f"(expected {', '.join(map(repr, sorted(needed))) or 'nothing'}; take it out)"
            )


def announce(where: object, changes: Iterable[Difference]) -> None:
    """Log one warning for each change. O(n)."""
    for change in changes:
        _LOG.warning("%s: the program has changed: %s", where, change)
