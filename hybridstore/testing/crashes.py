"""Crashes: a program that ends at a commit, before or behind it, and starts again; a consumer that counts once."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ..state.directory import State
from .comparing import Case, ResultText, Row, at_least_once


class Crash(BaseException):
    """The end of a simulated process: no `except Exception` of a program takes it."""


@contextmanager
def crashes(after: int, *, behind: bool = False) -> Iterator[None]:
    """Let the process end at a commit of a state, inside of a `with` block: `after` commits are whole. The block ends
    there, and what was not committed is gone.

    behind  the last of these commits is the last thing that the process does; else the next one begins, and is lost

    >>> from hybridstore import testing as ht
    >>> for behind in (False, True):
    ...     with ht.crashes(after=1, behind=behind), hs.open(f"state-{behind}") as state:
    ...         state.key_value("seen").put("ann", 1)
    ...         version = state.commit()
    ...         state.key_value("seen").put("bob", 1)
    ...         version = state.commit()
    ...     hs.inspect(f"state-{behind}").restart().version
    1
    1
    """
    commit, close = State.commit, State.close
    count, over = 0, False

    def counted(state: State) -> int:
        nonlocal count, over
        if over or count >= after:
            over = True
            raise Crash
        version = commit(state)
        count += 1
        if behind and count == after:
            over = True
            raise Crash
        return version

    def closed(state: State) -> None:
        if over:
            state._checkpoints.finish(wait=True)
            state._abandon()
        else:
            close(state)

    with patch.object(State, "commit", counted), patch.object(State, "close", closed):
        try:
            yield
        except Crash:
            return


class Consumer:
    """Takes each result of runs exactly once: results of commits that it has as a whole are skipped.

    >>> from hybridstore import testing as ht
    >>> consumer = ht.Consumer()
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> counts, rows = minutes.aggregate(n=hs.Count()), [{"user": "ann", "ts": ts} for ts in (1, 2, 3)]
    >>> for after in (1, 1, 9):
    ...     with ht.crashes(after=after):
    ...         consumer.take(counts.run(rows, "state", commit_rows=1))
    >>> [row["n"] for row in consumer.rows()]
    [1, 2, 3]
    """

    def __init__(self) -> None:
        self.commits: dict[int, list[Row]] = {}
        """The results of each commit."""
        self.complete = 0
        """The last commit that the consumer has as a whole."""

    def take(self, results: Iterable[Any], stop_after: int | None = None) -> None:
        """Take results; with `stop_after`, abandon the run at the first result of a later commit. A commit is whole
        when a result of a later commit has arrived, or the run has ended.
        """
        self.commits = {commit: rows for commit, rows in self.commits.items() if commit <= self.complete}
        newest = self.complete
        for row in results:
            if row.commit <= self.complete:
                continue
            if stop_after is not None and row.commit > stop_after:
                break
            if row.commit > newest:
                newest, self.complete = row.commit, newest
            self.commits.setdefault(row.commit, []).append(dict(row))
        else:
            self.complete = newest
        if stop_after is not None:
            self.complete = max(self.complete, stop_after)

    def rows(self) -> list[Row]:
        """Return all results, in order."""
        return [row for commit in sorted(self.commits) for row in self.commits[commit]]


@dataclass(frozen=True)
class CrashEverywhere:
    """A way: the program ends at every commit in turn, before and behind it, and starts again."""

    most: int

    def __str__(self) -> str:
        return "crash_everywhere()"

    def results(self, case: Case, dice: random.Random) -> Iterator[tuple[str, list[ResultText], list[ResultText]]]:
        """Yield the results of two runs that end and start again at each of their commits."""
        for behind in (False, True):
            with case.place() as state:
                consumer, starts, whole = Consumer(), 0, False
                while not whole:
                    # one commit a start, as long as that is affordable
                    after = 1 if starts < self.most else 1 << 30
                    starts += 1
                    # the end of the rows is a commit, too, behind which the consumer may not have been
                    options: dict[str, Any] = {"flush": case.flushes, "replay_last": True}
                    with crashes(after=after, behind=behind):
                        run = case.topology().run(
                            case.rows, state, shards=case.shards, commit_rows=case.commit_rows, **options
                        )
                        consumer.take(run)
                        whole = True
                where = "behind" if behind else "before"
                yield f"ended {where} each of {starts - 1} commits", case.texts(consumer.rows()), case.whole


def crash_everywhere(most: int = 100) -> CrashEverywhere:
    """A way for `check`: the program ends at every commit of every shard in turn, once before and once behind the
    commit, and starts again; a consumer takes each result once. `most`: starts, before the rest runs through.

    Finds state beside the stores (globals, attributes, closures), values changed in place, rows that a program changes,
    chance and clocks.

    >>> from hybridstore import testing as ht
    >>> seen = {}
    >>> def count(row, stores):
    ...     seen[row["user"]] = seen.get(row["user"], 0) + 1  # a global dict
    ...     yield {"n": seen[row["user"]]}
    >>> counts = hs.stream(key="user", timestamp="ts").process(count)
    >>> ht.check(counts, [{"user": "ann", "ts": ts} for ts in range(30)], ht.crash_everywhere())
    Traceback (most recent call last):
        ...
    hybridstore.testing.comparing.DifferentResultsError: crash_everywhere(), seed 0: ended before each of ...
    """
    at_least_once("crash_everywhere: most", most)
    return CrashEverywhere(most)
