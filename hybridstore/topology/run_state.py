"""Run state: what `run` commits with every shard beside the windows: how far it is, and the results of its last
commits."""

from __future__ import annotations

from itertools import accumulate
from operator import sub
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from recovery.layout import CHANGELOG
from recovery.restore import restore

from ..collector import collector_held
from ..state.directory import HybridStore
from ..state.group import StoreGroup
from .batch import TimeForm
from .results import END, START, Late, ResultTable

_RUN: Final = "run"
_RESULTS: Final = "results of the last commits"


class RunState(NamedTuple):
    """How far the run of a shard is.

    commit     the number of its last commit
    position   the position in the source behind that commit; None at first
    since      the newest commit before it that had results: those of both are kept
    delivered  the commit through which a consumer is known to have taken all results, because it asked for more at the
               end of the source
    flushed    whether the commit was a flush, which took no rows
    last_row   key and time of the last row that was taken, as text; None when unknown
    times      how times are handed out
    """

    commit: int = 0
    position: Any = None
    since: int = 0
    delivered: int = 0
    flushed: bool = False
    last_row: str | None = None
    times: TimeForm = "ms"

    @classmethod
    def of(cls, store: HybridStore) -> RunState:
        """Return the state of a shard's run."""
        return cls(**store.settings.get(_RUN, {}))

    def set_in(self, store: HybridStore) -> None:
        """Make it part of the version in progress."""
        store.set(_RUN, self._asdict())


def kept_commits(store: HybridStore) -> list[int]:
    """Return the numbers of the commits whose results a shard keeps."""
    return list(store.key_value(_RESULTS))


def kept(store: HybridStore, commit: int) -> ResultTable:
    """Return the results of a shard's commit, one of the last. O(results)."""
    value = store.key_value(_RESULTS).get(commit)
    if value is None:
        return ResultTable(None, None, [])
    names, times, columns, *late = value
    if times is not None:
        start, end = names.index(START), names.index(END)
        ends = list(accumulate(columns[end]))
        columns = columns.copy()
        columns[start], columns[end] = list(map(sub, ends, columns[start])), ends
    return ResultTable(names, times, columns, Late(*late[0]) if late else None)


def keep(store: HybridStore, commit: int, table: ResultTable, since: int) -> None:
    """Keep the results of the commit in progress, and drop those of commits before `since`, which the consumer has.

    Ends of windows are kept as differences, and starts as lengths: small numbers. O(results).
    """
    results = store.key_value(_RESULTS)
    for old in [number for number in results if number < since]:
        results.delete(old)
    if not table:
        return
    names, times, columns, late = table
    with collector_held():
        if names is not None and times is not None:
            start, end = names.index(START), names.index(END)
            ends = columns[end]
            columns = columns.copy()
            columns[start] = list(map(sub, ends, columns[start]))
            columns[end] = [*ends[:1], *map(sub, ends[1:], ends)]
        results.put(commit, [names, times, columns, *([list(late)] if late is not None and late.rows else [])])


def last_position(state: str | PathLike[str]) -> Any:
    """Return the source position that a `run` on this state directory has committed, or None.

    The directory may be open elsewhere.
    """
    path = Path(state)
    if not path.exists():
        return None
    paths = (
        sorted((p for p in path.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
        if not (path / CHANGELOG).is_dir()
        else [path]
    )
    runs: list[RunState] = []
    for shard in paths:
        group = StoreGroup(lambda body: None)
        restore(shard, group)
        runs.append(RunState(**group.settings.get(_RUN, {})))
    return min(runs, key=lambda run: run.commit).position if runs else None
