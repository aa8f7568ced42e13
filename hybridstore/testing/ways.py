"""Ways to run a program that must not change its results: other orders, other cuts, other numbers of shards, Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any, TypeVar

from ..clock import Duration, duration_ms
from ..rescaling.api import rescale
from ..rescaling.report import RescaleError
from ..topologies.declare import Topology
from .comparing import Case, ResultText, Row, Rows, at_least_once

T = TypeVar("T")
Outcomes = Iterator[tuple[str, list[ResultText], list[ResultText]]]


# --- orders -----------------------------------------------------------------------------------------------------------


def shuffled_rows(rows: Sequence[T], moments: Sequence[int], within: Duration, dice: random.Random) -> list[T]:
    """Return rows in a random order in which no row comes later than `within` behind the newest row before it.

    `moments` are their event times (ms). O(n log n).

    >>> from random import Random
    >>> from hybridstore import testing as ht
    >>> ht.shuffled_rows("abcde", [0, 10, 20, 30, 40], 0, Random(1))
    ['a', 'b', 'c', 'd', 'e']
    >>> "".join(ht.shuffled_rows("abcde", [0, 10, 20, 30, 40], 40, Random(1)))
    'abdce'
    """
    reach = duration_ms(within, "shuffled: within", zero=True)
    # some rows at the edge: as late as they may be, or not at all
    delays = [dice.choice([0, reach, dice.randint(0, reach), dice.randint(0, reach)]) for _ in rows]
    ranks = [moment + delay for moment, delay in zip(moments, delays, strict=True)]
    ties = [dice.random() for _ in rows]
    return [rows[place] for place in sorted(range(len(rows)), key=lambda place: (ranks[place], ties[place]))]


@dataclass(frozen=True)
class Shuffled:
    """A way: rows in other orders."""

    within: Duration
    times: int

    def __str__(self) -> str:
        return f"shuffled(within={self.within!r})"

    def results(self, case: Case, dice: random.Random) -> Outcomes:
        """Yield the results of rows in several orders."""
        for number in range(1, self.times + 1):
            rows: Rows
            if isinstance(case.rows, Mapping):
                rows = {
                    name: shuffled_rows(given, case.moments(name), self.within, dice)
                    for name, given in case.rows.items()
                }
            else:
                rows = shuffled_rows(case.rows, case.moments(), self.within, dice)
            # in a commit rows are in order of time again
            size = dice.choice([1, 1, 2, case.commit_rows])
            yield f"order {number}, commits of {size}", case.run(rows, commit_rows=size), case.whole


def shuffled(within: Duration, *, times: int = 10) -> Shuffled:
    """A way for `check`: rows arrive out of order, each at most `within` behind the newest row, `times` times.

    Finds programs that look at the order of arrival, a grace that is too short, late rows that nobody sees, merges that
    depend on the order, sums of floats.

    >>> from hybridstore import testing as ht
    >>> last = hs.Reduce(lambda old, new: new, name="last")  # the last to arrive, not the latest
    >>> users = hs.stream(key="user", timestamp="ts").aggregate(emit="commit", page=last.on("page"))
    >>> rows = [{"user": "ann", "ts": ts, "page": ts} for ts in range(100)]
    >>> ht.check(users, rows, ht.shuffled(within=20))
    Traceback (most recent call last):
        ...
    hybridstore.testing.comparing.DifferentResultsError: shuffled(within=20), seed 0: order ...
    """
    at_least_once("shuffled: times", times)
    return Shuffled(within, times)


# --- cuts -------------------------------------------------------------------------------------------------------------


def cut_rows(rows: Sequence[T], dice: random.Random) -> list[Sequence[T]]:
    """Return rows cut into batches of random sizes: single rows, some, many, or all in one. O(n).

    >>> from random import Random
    >>> from hybridstore import testing as ht
    >>> ht.cut_rows("abcdefgh", Random(0))
    ['abcdefg', 'h']
    """
    most = dice.choice([1, 3, 20, len(rows) or 1])
    ends = [0]
    while ends[-1] < len(rows):
        ends.append(min(len(rows), ends[-1] + dice.randint(1, most)))
    return [rows[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True)
class CutAnyhow:
    """A way: other commits and batches, and restarts between them."""

    times: int

    def __str__(self) -> str:
        return "cut_anyhow()"

    def results(self, case: Case, dice: random.Random) -> Outcomes:
        """Yield the results of rows in commits of other sizes, as Arrow batches, and over restarts."""
        tables = None if isinstance(case.rows, Mapping) else _arrow(case.rows)
        for number in range(self.times):
            if number % 3 == 1 and tables is not None:
                batches = [tables(batch) for batch in cut_rows(list(case.rows), dice)]
                yield f"{len(batches)} Arrow batches", case.run(batches, commit_rows=1 << 30), case.whole
            elif number % 3 == 2:
                with case.place() as state:
                    at, results = dice.randint(0, 1000), list[ResultText]()
                    for rows in (case.parts(at), case.rows):
                        size = dice.randint(1, 30)
                        results += case.run(rows, state, flush=rows is case.rows, commit_rows=size)
                yield f"a restart at {at / 10} % of the rows", results, case.whole
            else:
                size = dice.choice([1, 2, dice.randint(3, 30), 1 << 30])
                yield f"commits of {size} rows", case.run(case.rows, commit_rows=size), case.whole


def cut_anyhow(*, times: int = 9) -> CutAnyhow:
    """A way for `check`: commits of other sizes, rows as Arrow batches (with pyarrow), a restart in the middle; `times`
    runs in all.

    Finds results that depend on commits and batches.

    >>> from hybridstore import testing as ht
    >>> class Sizes:
    ...     def __init__(self, stores):
    ...         self.rows = 0
    ...     def process(self, row):
    ...         self.rows += 1
    ...     def finish(self):
    ...         yield {"rows": self.rows}  # how many rows a commit has, is nobody's business
    >>> sizes = hs.stream(key="user", timestamp="ts").process(Sizes)
    >>> ht.check(sizes, [{"user": "ann", "ts": ts} for ts in range(100)], ht.cut_anyhow())
    Traceback (most recent call last):
        ...
    hybridstore.testing.comparing.DifferentResultsError: cut_anyhow(), seed 0: commits of ...
    """
    at_least_once("cut_anyhow: times", times)
    return CutAnyhow(times)


def _arrow(rows: Any) -> Any:
    """Return a function that makes an Arrow table of some rows; None if Arrow would change them, or is not there."""
    if find_spec("pyarrow") is None or not all(isinstance(row, dict) for row in rows):
        return None
    import pyarrow as pa

    try:
        table = pa.Table.from_pylist(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    if table.to_pylist() != rows:  # rows without some columns, tuples, whole numbers beside floats
        return None
    return lambda batch: pa.Table.from_pylist(list(batch), schema=table.schema)


# --- shards -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rescaled:
    """A way: the state is rescaled to another number of shards in the middle."""

    shards: tuple[int, ...]
    times: int
    routes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"rescaled({', '.join(map(str, self.shards))})"

    def results(self, case: Case, dice: random.Random) -> Outcomes:
        """Yield the results of runs with one number of shards after the other."""
        for _ in range(self.times):
            # how many of a thousand rows each number of shards has had in the end
            ends = [*sorted(dice.randint(1, 999) for _ in self.shards[1:]), 1000]
            results: list[ResultText] = []
            steps, number, before = f"{self.shards[0]} shards", self.shards[0], 0
            with case.place() as state:
                for step, (shards, end) in enumerate(zip(self.shards, ends, strict=True)):
                    if step:
                        # a state without any commit has no shards yet
                        number = self._rescale(case, state, number, shards) if before else shards
                        steps += f", {number} from {ends[step - 1] / 10} % of the rows on"
                    rows = case.parts(end)
                    before = sum(map(len, rows.values())) if isinstance(rows, Mapping) else len(rows)
                    if before:
                        results += case.run(rows, state, shards=number, flush=end == 1000)
            yield steps, results, case.whole

    def _rescale(self, case: Case, state: Path, before: int, shards: int) -> int:
        """Rescale, and return the number of shards. A merge of shards whose times are apart may be refused, because
        windows would close unseen; then to a multiple of both numbers.
        """
        routes = {**by_the_key(case.topology()), **self.routes}
        try:
            rescale(state, shards=shards, routes=routes)
        except RescaleError:
            if lcm(before, shards) == shards:
                raise
            shards = lcm(before, shards)
            rescale(state, shards=shards, routes=routes)
        return shards


def by_the_key(topology: Topology) -> dict[str, str]:
    """Return the routes of the stores of `process`, if their keys are the topology's: few rows do not show that."""
    custom = topology.custom
    return {} if custom is None or topology.joined is not None else dict.fromkeys(custom.stores, "key")


def rescaled(*shards: int, times: int = 5, routes: Mapping[str, Any] | None = None) -> Rescaled:
    """A way for `check`: the program runs on so many shards, then on so many, and so on; the first number may be the
    only one. `routes` as for `hybridstore.rescale`; by default stores of `process` have the topology's keys.

    Finds programs that take what one shard has for everything. Raises ValueError for no number.

    >>> from hybridstore import testing as ht
    >>> def rank(row, stores):
    ...     stores["seen"].put(row["user"], 1)
    ...     yield {"user": row["user"], "rank": sum(1 for _ in stores["seen"].all())}  # among the keys of a shard only
    >>> ranks = hs.stream(key="user", timestamp="ts").process(rank, stores=[hs.key_value_store("seen")])
    >>> ht.check(ranks, [{"user": f"user {n}", "ts": n} for n in range(20)], ht.rescaled(2, 3))
    Traceback (most recent call last):
        ...
    hybridstore.testing.comparing.DifferentResultsError: rescaled(2, 3), seed 0: 2 shards, ...
    """
    if not shards or not all(type(number) is int and number > 0 for number in shards):
        raise ValueError(f"rescaled: shards: found {shards!r}, expected whole numbers of 1 or more")
    at_least_once("rescaled: times", times)
    return Rescaled(shards, times, routes or {})


# --- Spark ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SameOnSpark:
    """A way: the same topology by `apply`."""

    session: Any
    batches: int | None = None

    def __str__(self) -> str:
        return "same_on_spark()"

    def results(self, case: Case, dice: random.Random) -> Outcomes:
        """Yield the rows of a query that reads a file of each input for each commit."""
        from ..spark.batches import rows_of_query

        batches = _batches(case, dice, self.batches)
        expected = case.texts(_commits(case, batches))
        results = case.texts(rows_of_query(self.session, case.topology(), batches, case.shards))
        yield f"{len(batches)} batches", results, expected


def _batches(case: Case, dice: random.Random, number: int | None) -> list[Any]:
    """Return the rows cut into batches, those of a join by the names of its inputs and in order of time."""

    def cut(rows: list[Any]) -> list[Any]:
        if not number:
            return cut_rows(rows, dice)
        ends = [len(rows) * place // number for place in range(number + 1)]
        return [rows[start:end] for start, end in pairwise(ends) if start < end]

    if not isinstance(case.rows, Mapping):
        return cut(list(case.rows))
    given = [(name, row) for name, rows in case.rows.items() for row in rows]
    moments = [moment for name in case.rows for moment in case.moments(name)]
    order = sorted(range(len(given)), key=moments.__getitem__)
    batches = cut([given[place] for place in order])
    return [{name: [row for side, row in batch if side == name] for name in case.rows} for batch in batches]


def _commits(case: Case, batches: list[Any]) -> list[Row]:
    """Return the results of one run with these commits, of rows with all columns, as Spark has them."""
    with case.place() as state, case.topology().open(state, shards=case.shards, durability="os") as engine:
        results: list[Row] = []
        if isinstance(case.rows, Mapping):
            for batch in batches:
                results += engine.process_many(batch)
                engine.commit()
            return results
        names = list(dict.fromkeys(name for batch in batches for row in batch for name in row))
        for batch in batches:
            given = [{name: row.get(name) for name in names} for row in batch]
            for shard, part in enumerate(engine.split_batch(given, 0)):
                results += engine.process_batch(shard, part)
        return results


def same_on_spark(session: Any, *, batches: int | None = None) -> SameOnSpark:
    """A way for `check`: a query with the same topology, in a Spark session, by stream time; rows are written to files,
    a file of each input for each batch. Needs `pip install 'hybridstore[spark]'` and rows of one schema.

    What is open at the end is compared as it is: nothing is flushed. `batches` is the number of batches, of equal sizes
    and of a row at least; None: batches of random sizes. Takes seconds. Raises ValueError for less than one batch.

    >>> from hybridstore import testing as ht
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> rows = [{"user": "ann", "ts": 1000 * second} for second in range(0, 300, 20)]
    >>> ht.check(minutes.aggregate(n=hs.Count()), rows, ht.same_on_spark(spark))
    """
    if batches is not None:
        at_least_once("same_on_spark: batches", batches)
    return SameOnSpark(session, batches)
