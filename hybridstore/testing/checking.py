"""Checking: a program on some rows as a whole, and in other ways, with the same results."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Mapping
from typing import Final

from .comparing import Case, DifferentResultsError, Program, ResultText, Rows, Way, last_results
from .crashes import crash_everywhere
from .elsewhere import elsewhere
from .ways import cut_anyhow, rescaled

# Differences that a message shows.
_SHOWN: Final = 3


def check(
    program: Program,
    rows: Rows,
    *ways: Way,
    by: str | Iterable[str] | None = None,
    shards: int = 1,
    commit_rows: int = 10,
    seed: int = 0,
) -> None:
    """Run a program on rows as a whole, and again in each of the `ways`; raise DifferentResultsError unless they give
    the same results.

    program      a topology, or a function that returns one, which is called for every start
    rows         dicts in the order of arrival, or for a join a dict of them by the names of the inputs
    ways         `crash_everywhere()`, `cut_anyhow()`, `rescaled(2, 3)`, `shuffled(within=...)`, `elsewhere()`,
                 `same_on_spark(spark)`; without any the first three of these and `elsewhere()`
    by           the columns by which a result is known, of which the last one counts; by default those of the key and
                 the window for aggregates, and for `process` and joins every result counts
    shards, commit_rows  as for `Topology.run`
    seed         chooses cuts, orders and crashes; a message names it, and a note the way in which a program raised

    In a commit rows are processed in order of time, so a program that looks at the order of rows needs rows in order
    of time, or `crash_everywhere` alone. Costs some tens of runs. Where the program gives no result for the rows in any
    way, nothing was compared, and a UserWarning says so. Raises ValueError for no rows, and for a column of `by` that
    results have not; TypeError for rows that are no list and for what is no way.

    >>> from hybridstore import testing as ht
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute", grace="1 minute"))
    >>> rows = [{"user": "ann", "ts": 1000 * second} for second in range(0, 300, 20)]
    >>> counts = minutes.aggregate(emit="close", n=hs.Count())
    >>> ht.check(counts, rows, ht.crash_everywhere(), ht.cut_anyhow(), ht.shuffled(within="1 minute"))
    """
    if not isinstance(rows, list | Mapping):
        raise TypeError(f"check: rows: found {type(rows).__name__}, expected a list, because they are given many times")
    if not rows:
        raise ValueError("check: rows: found none, expected at least one")
    for way in ways:
        if not hasattr(way, "results"):
            name = getattr(way, "__name__", type(way).__name__)
            raise TypeError(f"check: ways: found {name}, expected ways, such as crash_everywhere() with its brackets")
    names = None if by is None else (by,) if isinstance(by, str) else tuple(by)
    case = Case(program, rows, names, shards, commit_rows)
    compared = 0
    for way in ways or (crash_everywhere(), cut_anyhow(), rescaled(2, 3), elsewhere()):
        try:
            for done, results, expected in way.results(case, random.Random(f"{seed} {way}")):
                _compare(f"{way}, seed {seed}: {done}", results, expected)
                compared += len(expected)
        except DifferentResultsError:
            raise
        except Exception as error:
            error.add_note(f"check: raised in {way}, seed {seed}")
            raise
    if not compared:
        # no error: rows that a property test draws may give no result now and then
        given = sum(map(len, rows.values())) if isinstance(rows, Mapping) else len(rows)
        warnings.warn(
            f"check: found no result of {given} rows in any way, so nothing was compared (give rows that have results, "
            "such as later ones that close a window or fire a timer)",
            stacklevel=2,
        )


def _compare(what: str, results: list[ResultText], expected: list[ResultText]) -> None:
    actual, wanted = last_results(results), last_results(expected)
    if actual == wanted:
        return
    missing, more = list((wanted - actual).elements()), list((actual - wanted).elements())
    lines = [f"  expected {text}" for text in missing[:_SHOWN]] + [f"  found    {text}" for text in more[:_SHOWN]]
    raise DifferentResultsError(
        f"{what}: {len(missing)} of {wanted.total()} results are missing, {len(more)} are others (expected: as in one "
        "run over all rows)\n" + "\n".join(lines)
    )
