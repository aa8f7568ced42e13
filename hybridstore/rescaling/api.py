"""API: `hybridstore.rescale`, which finds the kind of a location and runs its rescale."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from changelog.storage import local_path
from recovery.layout import SPARK_FOLDER

from ..errors import StateDirectoryError
from ..progress import OnProgress, watching
from ..spark.location import Location, located
from ..state.arguments import RULES, check
from ..state.lock import refuse_pinned
from .engine import RescaleArguments
from .plain import go_back_state, remove_old_state, rescale_state
from .report import RescaleError, RescaleReport
from .routes import Route
from .spark import go_back, remove_old, rescale_operator


def rescale(
    location: str | PathLike[str] | Location,
    operator: str | None = None,
    *,
    shards: int | None = None,
    back: bool = False,
    dry_run: bool = False,
    accept_late: bool = False,
    routes: Mapping[str, Route | str] | None = None,
    stopped: bool = False,
    spark: Any = None,
    state_location: str | PathLike[str] | None = None,
    progress: OnProgress | bool | None = None,
    on_report: Callable[[RescaleReport], None] | None = None,
) -> RescaleReport:
    """Give existing state another number of shards, and return the report.

    location    the checkpointLocation of a stopped Spark query, or the state of a plain topology that does not run: a
                path, or a URL of an object store
    operator    the operator's name; None for the state of a plain topology
    shards      the new number; a multiple of the present number is exact, any other number merges shards
    back        instead of `shards`: make the shards from before the last rescale count again; possible until the next
                batch
    dry_run     only return the report; nothing is written
    accept_late  accept that records expire by a merge, or that windows close without being emitted
    routes      store name -> how the operator's key follows from a key of the store: a function, "key", "key,last" (all
                but the last part) or "first,key" (all but the first), for stores of custom logic with other keys
    stopped     the query is stopped, though the process of its driver is alive
    spark       a session of Spark (not Connect) whose workers make the shards side by side; None: this process makes
                them
    state_location  as in `apply`
    progress    called as progress(phase, done, total), or True for a bar on a terminal
    on_report   called with the report before anything is written

    The new shards are made beside the old ones and checked; one create makes them count. Until then the old shards
    count, whatever happens. Then start the query with `shards=` the new number. Raises RescaleError, with nothing
    changed, when the rescale is refused. O(records); the local folder for temporary files has a copy of records that
    are in no checkpoint.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> counts = minutes.aggregate(n=hs.Count())
    >>> with counts.open("state", shards=2) as engine:
    ...     results = engine.process({"user": "ann", "ts": 500}) + engine.commit()
    >>> report = hs.rescale("state", shards=4)
    >>> report.exact
    True
    >>> counts.open("state", shards=4).process({"user": "ann", "ts": 600})
    [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 2}]
    """
    started = time.perf_counter()
    if back and shards is not None:
        raise RescaleError("shards: found with back=True, expected one of them")
    if not back and not RULES["shards"].fits(shards):
        raise RescaleError(f"shards: found {shards!r}, expected {RULES['shards'].expected}, or back=True")
    check(progress=progress)
    with watching(progress, "rescale") as step:
        asked = RescaleArguments(
            shards or 0, routes or {}, dry_run, accept_late, spark, step, on_report or (lambda report: None)
        )
        if operator is None:
            place = _plain(location, state_location)
            if back:
                report = go_back_state(place)
            else:
                report = rescale_state(place, asked)
        else:
            at = located(location, state_location)
            try:
                refuse_pinned(at.states())
            except StateDirectoryError as error:
                raise RescaleError(str(error)) from None
            if back:
                report = go_back(at, operator, stopped=stopped)
            else:
                report = rescale_operator(at, operator, asked, stopped=stopped)
    report.duration_ms = (time.perf_counter() - started) * 1000
    return report


def remove_old_shards(
    location: str | PathLike[str] | Location,
    operator: str | None = None,
    *,
    state_location: str | PathLike[str] | None = None,
) -> int:
    """Remove the shards that no longer count, and return the number of objects.

    Raises RescaleError before the first batch with the new shards. O(objects).
    """
    if operator is None:
        return remove_old_state(_plain(location, state_location))
    return remove_old(located(location, state_location), operator)


def _plain(location: str | PathLike[str] | Location, state_location: object) -> str | PathLike[str]:
    if isinstance(location, Location) or state_location is not None:
        raise RescaleError("operator: found None, expected its name (the location is a query's checkpoint)")
    if any((local_path(location) / name).is_dir() for name in (SPARK_FOLDER, "offsets")):
        raise RescaleError(f"{location}: a Spark query has its checkpoint there, expected an operator's name, too")
    return location
