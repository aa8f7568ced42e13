"""Comparing: a program on some rows, run once as a whole and again in other ways, whose results must be the same.

rows ── whole, in one run ──────▶ results ┐
     ── in another way (`Way`) ─▶ results ┴─ by text: equal, or DifferentResultsError names the first difference
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..clock import time_ms
from ..topologies.declare import Topology

Row = dict[str, Any]
Rows = list[Row] | Mapping[str, list[Row]]
Program = Topology | Callable[[], Topology]


class DifferentResultsError(AssertionError):
    """Another way to run a program gave other results. The message names the way, the seed and the first differences.

    >>> from hybridstore import testing as ht
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))  # without grace
    >>> rows = [{"user": "ann", "ts": 1000 * second} for second in range(0, 300, 20)]
    >>> ht.check(minutes.aggregate(emit="close", n=hs.Count()), rows, ht.shuffled(within="1 minute"), seed=1)
    Traceback (most recent call last):
        ...
    hybridstore.testing.comparing.DifferentResultsError: shuffled(within='1 minute'), seed 1: ...
    """


class ResultText(NamedTuple):
    """A result as text: by which columns it is known, and the whole of it. Without columns every result counts."""

    known_by: str | None
    text: str


class Way(Protocol):
    """A way to run a program. `str(way)` names it."""

    def results(self, case: Case, dice: random.Random) -> Iterator[tuple[str, list[ResultText], list[ResultText]]]:
        """Yield what was done, the results, and the results that are expected."""


@dataclass
class Case:
    """A program with rows; what a way is given. `rows` are in the order of arrival, or by the names of the inputs of a
    join.
    """

    program: Program
    rows: Rows
    by: tuple[str, ...] | None = None
    shards: int = 1
    commit_rows: int = 10
    _whole: list[ResultText] | None = field(default=None, init=False)

    def topology(self) -> Topology:
        """Return the topology; a program that is a function is called, as at the start of a process."""
        return (self.program if isinstance(self.program, Topology) else self.program()).complete()

    @property
    def flushes(self) -> bool:
        """Whether the end of the rows can close what is open; only `process` knows what it holds back."""
        plan = self.topology()
        return plan.custom is None or plan.joined is not None

    def run(self, rows: Any, state: Path | None = None, *, flush: bool = True, **options: Any) -> list[ResultText]:
        """Run the program, and return its results."""
        options = {"shards": self.shards, "commit_rows": self.commit_rows, "flush": flush and self.flushes, **options}
        return self.texts(self.topology().run(rows, state, **options))

    @property
    def whole(self) -> list[ResultText]:
        """The results of one run over all rows, with which other ways are compared."""
        if self._whole is None:
            self._whole = self.run(self.rows)
        return self._whole

    def texts(self, results: Iterable[Mapping[str, Any]]) -> list[ResultText]:
        """Return results as text."""
        plan = self.topology()
        by = self.by
        if by is None and plan.aggregates is not None:
            by = (*plan.key, *plan.bounds)
        late = plan.extra_column
        texts = []
        for row in results:
            known = by is None or (late is not None and row[late] is not None)
            if not known and (missing := [name for name in by or () if name not in row]):
                raise ValueError(
                    f"check: by: found no column {missing[0]!r} in a result, expected some of {', '.join(row)}"
                )
            texts.append(ResultText(None if known else text_of([row[name] for name in by or ()]), text_of(row)))
            if not known and plan.aggregates is not None and all(row[name] is None for name in plan.aggregates.names):
                texts[-1] = texts[-1]._replace(text="")  # the window is no longer there
        return texts

    def moments(self, name: str | None = None) -> list[int]:
        """Return the event times of the rows (ms), of an input of a join by its name. Raises ValueError if only a `map`
        gives rows their time.
        """
        plan = self.topology()
        timestamp = plan.timestamp
        if plan.joined is not None:
            (timestamp,) = [each.timestamp for each in plan.joined.inputs if each.name == name]
        rows = self.rows[str(name)] if isinstance(self.rows, Mapping) else self.rows
        try:
            return [time_ms(row[timestamp], timestamp) for row in rows]
        except KeyError:
            raise ValueError(f"check: rows: found no column {timestamp!r}, expected the time in every row") from None

    def parts(self, cut: int) -> Any:
        """Return the first rows, `cut` of a thousand of each input."""
        if isinstance(self.rows, Mapping):
            return {name: rows[: len(rows) * cut // 1000] for name, rows in self.rows.items()}
        return self.rows[: len(self.rows) * cut // 1000]

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield the path of a state that does not exist."""
        with tempfile.TemporaryDirectory(prefix="hybridstore-", ignore_cleanup_errors=True) as folder:
            yield Path(folder, "state")


def text_of(value: Any) -> str:
    """Return a text that is the same for equal values of equal types: the order of dicts and sets does not count.

    >>> from hybridstore.testing.comparing import text_of
    >>> text_of({"b": {2, 1}, "a": 1.0}) == text_of({"a": 1.0, "b": {1, 2}})
    True
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{name!r}: {text_of(part)}" for name, part in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}(" + ", ".join(sorted(map(text_of, value))) + ")"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}(" + ", ".join(map(text_of, value)) + ")"
    return repr(value)


def last_results(results: Iterable[ResultText]) -> Counter[str]:
    """Return the last result of each key and window, or all results, each with how often it is there.

    >>> from hybridstore.testing.comparing import ResultText, last_results
    >>> last_results([ResultText("ann", "n=1"), ResultText("ann", "n=2"), ResultText(None, "a row")])
    Counter({'a row': 1, 'n=2': 1})
    """
    last: dict[str, str] = {}
    every: Counter[str] = Counter()
    for known_by, text in results:
        if known_by is None:
            every[text] += 1
        else:
            last[known_by] = text
    every.update(text for text in last.values() if text)
    return Counter(dict(sorted(every.items())))


def at_least_once(what: str, number: int) -> None:
    """Raise ValueError for a way that would run nothing, and so find nothing."""
    if type(number) is not int or number < 1:
        raise ValueError(f"{what}: found {number!r}, expected a whole number of 1 or more")
