"""Adopt: migrates the stored state to a changed topology, as part of the version in progress.

    settings    topology    the newest description          programs    the chain: what held from which version on
                since       aggregate -> time (ms): of windows that begin at or before it, it is not known
                closed      the largest end that had closed when the grace last changed

All changes are mutations of the first commit, so that after a crash before that commit the state is unchanged. The
surprise: a shard without rows for a while may be several programs behind, and changes in one step. So each shard is
compared separately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ..aggregation import choose, renamed_column, windows_of
from ..clock import BY_ADVANCE, NO_TIME, closed_through
from ..state.changes import Difference, judge
from ..state.group import StoreGroup
from ..stores.kinds import KINDS, SLIDING, SUPPRESSION
from .changes import columns_of, compare, follows, kind_of, parts_of, renamed_aggregates, renamed_columns, renamings
from .declared_stores import StoreDeclaration
from .plan import Plan
from .windows.stored import bare
from .windows.suppressed import SUPPRESSED, buffer_parameters
from .windows.windowed import WINDOWS

TOPOLOGY: Final = "topology"
PROGRAMS: Final = "programs"
_SINCE: Final = "since"
_CLOSED: Final = "closed"


class Adopted(NamedTuple):
    """The facts about earlier programs that the windows of a shard need.

    plan      the topology of this shard: hopping windows that are stored as whole windows are still stored as whole
              windows
    since     column of results -> time: the aggregate is None in windows that begin at or before this time
    floor     the largest end that had closed when the grace last changed; None if the grace never changed
    before    the largest end that had closed at the last commit of the topology before; None if this topology made the
              last commit
    released  the records that the suppression buffer emitted because its values changed
    changes   the differences from the topology before; [] if the last commit was of this topology
    consents  the words that these and all earlier changes needed; None for a new state
    """

    plan: Plan
    since: dict[int, int] = {}  # noqa: RUF012  # never changed
    floor: int | None = None
    before: int | None = None
    released: list[tuple[Any, Any, int]] = []  # noqa: RUF012  # never changed
    changes: list[Difference] = []  # noqa: RUF012  # never changed
    consents: list[str] | None = None


def changes_of(plan: Plan, settings: Mapping[str, Any], allow: Collection[str] = ()) -> list[Difference]:
    """Return the differences of a topology from the one in a shard's settings, [] for a new shard. O(description)."""
    stored, asked = settings.get(TOPOLOGY), plan.describe()
    if stored is None or stored == asked:
        return []
    stores = {} if plan.custom is None else plan.custom.stores
    upgrades = {name: list(declaration.upgrades.functions) for name, declaration in stores.items()}
    return compare(stored, asked, allow, upgrades)


def adopt(
    plan: Plan,
    group: StoreGroup,
    where: object,
    allow: Collection[str] = (),
    *,
    clocked: bool = False,
) -> Adopted:
    """Change a state to this topology, if it is of another one, with the user's consent (`allow`).

    Raises ProgramMismatchError for a refused change, naming `where`, and UpgradeError, with nothing changed. O(1)
    without changes, else O(records of the changed stores).
    """
    stored, asked = group.settings.get(TOPOLOGY), plan.describe()
    chain = group.settings.get(PROGRAMS, [])
    before: int | None = None
    released: list[tuple[Any, Any, int]] = []
    changes = changes_of(plan, group.settings, allow)
    judge(where, changes, allow, allow, [word for entry in chain for word in entry["consents"]])
    if stored is None:
        group.set(TOPOLOGY, asked)
    elif stored != asked and plan.paned and "panes" not in stored["windows"]:
        plan = replace(plan, whole=True)
        asked = plan.describe()
    if stored is not None and stored != asked:
        adoption = _Adoption(plan, group, stored, asked, allow, clocked)
        adoption.take_over()
        before, released = adoption.before, adoption.released
        entry = {
            "number": len(chain or [0]) + 1,
            "from": group.version + 1,
            "program": asked,
            "changes": [change.what for change in changes],
            "consents": [change.consent for change in changes if change.consent],
        }
        chain = [*(chain or [first(stored)]), entry]
        group.set(PROGRAMS, chain)
        group.set(TOPOLOGY, asked)
    names = plan.aggregates.names if plan.aggregates is not None else ()
    since = {names.index(name): ts for name, ts in group.settings.get(_SINCE, {}).items() if name in names}
    consents = None if stored is None else [word for entry in chain for word in entry["consents"]]
    return Adopted(plan, since, group.settings.get(_CLOSED), before, released, changes, consents)


def first(program: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first entry of a chain."""
    return {"number": 1, "from": 1, "program": program, "changes": [], "consents": []}


class _Adoption:
    """One change of topology on the stores of one shard."""

    def __init__(
        self,
        plan: Plan,
        group: StoreGroup,
        stored: Mapping[str, Any],
        asked: Mapping[str, Any],
        allow: Collection[str],
        clocked: bool,
    ) -> None:
        self._plan = plan
        self._group = group
        self._stored = stored
        self._asked = asked
        self._renamed = renamings(allow)
        self._columns = renamed_columns(asked, allow)
        self._names = renamed_aggregates(stored, asked, allow)
        self._clocked = clocked
        self.before: int | None = None
        self.released: list[tuple[Any, Any, int]] = []

    def take_over(self) -> None:
        """Change every store whose form differs from that of the topology before."""
        if self._plan.windows is not None:
            if WINDOWS in self._group.stores:
                self._close()
                self._windows()
            if SUPPRESSED in self._group.stores:
                self._suppressed()
        if self._plan.custom is not None:
            self._stores(self._plan.custom.stores)

    # --- windows ------------------------------------------------------------------------------------------------

    def _stream_time(self) -> int:
        group, time = self._group, self._group.stores[WINDOWS].stream_time
        kept: int = group.settings.get(f"stream time of {WINDOWS}", NO_TIME)
        return max(time, kept)

    def _close(self) -> None:
        """Store which windows had closed, so that a longer grace does not open them again."""
        group = self._group
        if kind_of(self._stored["windows"]) == "sliding kip450" or self._stream_time() < 0:
            return
        windows = windows_of(self._stored["windows"])
        closed = closed_through(self._stream_time(), windows.closing_ms(clocked=self._clocked))
        self.before = max(closed, group.settings.get(_CLOSED, closed))
        if windows.grace_ms != windows_of(self._asked["windows"]).grace_ms:
            group.set(_CLOSED, self.before)

    def _windows(self) -> None:
        group, store = self._group, self._group.stores[WINDOWS]
        old, new = parts_of(self._stored, self._names), parts_of(self._asked)
        change: Callable[[Any], Any] | None = None
        bound: Any = None
        fresh: set[str] = {part[0] for part in new} - {part[0] for part in old}
        known = {part[0]: part[1:] for part in old}
        fresh |= {name for name, *part in new if name in known and self._unlike(known[name], part)}
        newest = self._newest(store) if fresh else NO_TIME
        if store.kind == SLIDING.name:
            parameters = {**store.parameters, "size_ms": windows_of(self._asked["windows"]).latest_end(0)}
            parameters["aggregator"] = self._plan.combined.describe()
            bound = choose(self._plan.combined, self._plan.strategy)
            columns = columns_of(old, self._columns)
            change = _reprojected(columns, columns_of(new))
            fresh = {part[0] for part in new if part[0] in fresh and not follows(columns, part)}
            ahead = f"{WINDOWS} ahead"
            if ahead in group.stores:
                newest = max(newest, self._newest(group.stores[ahead])) if fresh else NO_TIME
                pieces = max(1, parameters["size_ms"] // 4)
                if change is not None or pieces != group.stores[ahead].parameters["retention_ms"]:
                    waiting = {**group.stores[ahead].parameters, "retention_ms": pieces, "grace_ms": pieces}
                    group.rebuild(ahead, waiting, _inside(change))
        else:
            kept = max(self._plan.kept_ms, self._still_needed())
            parameters = {**store.parameters, "retention_ms": kept}
            if "grace_ms" in parameters:
                parameters["grace_ms"] = kept
            if [part[0] for part in old] != [part[0] for part in new] or fresh:
                change = self._cells(old, fresh)
        if parameters != store.parameters or change is not None:
            group.rebuild(WINDOWS, parameters, change, bound=bound)
        self._begin(set() if not self._plan.bounds else fresh, newest)

    def _unlike(self, old: Sequence[Any], new: Sequence[Any]) -> bool:
        """Whether an aggregate of this name was replaced by another one while the shard had no rows."""
        stored = [old[0], renamed_column(old[1], self._columns), *old[2:]]
        return stored != [new[0], renamed_column(new[1], {}), *new[2:]]

    def _still_needed(self) -> int:
        """Return how long (ms) windows that the change of grace closes must be kept for one more read."""
        old, new = windows_of(self._stored["windows"]), windows_of(self._asked["windows"])
        return old.default_retention_ms if new.grace_ms < old.grace_ms else 0

    def _newest(self, store: Any) -> int:
        """Return the largest time of a store and its records: no record before the change is later."""
        times = KINDS[store.kind].copied(store)[-1]
        return max(self._stream_time(), times[-1] if times else NO_TIME)

    def _cells(self, old: Sequence[Sequence[Any]], fresh: set[str]) -> Callable[[Any], Any]:
        """Return the function that converts a stored value, with a cell for each aggregate, to the present aggregates:
        cells are identified by name, and new cells begin empty.
        """
        combined = self._plan.combined
        timed = self._plan.dates_results or kind_of(self._stored["windows"]) == "sliding kafka"
        names = [part[0] for part in old]
        was_bare = bare([part[1] for part in old], timed)
        is_bare = bare([part.name for part in combined.parts], timed)
        places = [
            (names.index(name) if name in names and name not in fresh else -1, part.init)
            for name, part in zip(combined.names, combined.parts, strict=True)
        ]

        def change(value: Any) -> Any:
            newest = value[:1] if timed else []
            cells = [value] if was_bare else value[1:] if timed else value
            new = [cells[place] if place >= 0 else init() for place, init in places]
            return new[0] if is_bare else [*newest, *new]

        return change

    def _begin(self, fresh: set[str], newest: int) -> None:
        """Store the time from which new aggregates are known."""
        names = {part[0] for part in parts_of(self._asked)}
        before: dict[str, int] = self._group.settings.get(_SINCE, {})
        since = {self._names.get(name, name): ts for name, ts in before.items()}
        since = {name: ts for name, ts in since.items() if name in names}
        since |= dict.fromkeys(sorted(fresh), newest)
        if since != before:
            self._group.set(_SINCE, since)

    def _suppressed(self) -> None:
        buffer = self._group.stores[SUPPRESSED]
        assert isinstance(buffer, SUPPRESSION.store_class())
        parameters = buffer_parameters(self._plan, clocked=self._clocked)
        if parameters != buffer.parameters:
            self._group.alter(SUPPRESSED, parameters)
        old = [part[0] for part in parts_of(self._stored, self._names)]
        new = list(self._plan.combined.names)
        if old == new:
            return
        places = [old.index(name) if name in old else -1 for name in new]
        for key, value, ts in list(buffer.buffered()):
            if value is not None:
                cells = [value[place] if place >= 0 else None for place in places]
                self.released += buffer.put(key, cells, ts)

    # --- stores of `process` ------------------------------------------------------------------------------------

    def _stores(self, declared: Mapping[str, StoreDeclaration]) -> None:
        group = self._group
        before: Mapping[str, Any] = self._stored["process"]
        names = {old: self._renamed.get(old, old) for old in before}
        for old, new in names.items():
            if old not in group.stores:
                continue
            name = new if new in declared else old
            if name not in declared:
                group.drop(old)
                continue
            declaration, store = declared[name], group.stores[old]
            more = BY_ADVANCE if self._clocked and KINDS[declaration.kind].by_advance else {}
            parameters = {**declaration.parameters, **more}
            if parameters == store.parameters and name == old:
                continue
            if declaration.kind == SUPPRESSION.name and name == old:
                group.alter(old, parameters)
                continue
            change = declaration.upgrades.function(name, store.parameters.get("version", 0))
            group.rebuild(old, parameters, change, called=name, bound=declaration.bound)


def _reprojected(old: list[Any], new: list[Any]) -> Callable[[Any], Any] | None:
    """Return the function that converts a projected row of the old columns to a row of the new columns; None if the
    columns are the same. A column that was not stored is None.
    """
    if old == new:
        return None

    def change(value: Any) -> Any:
        cells: dict[Any, Any] = dict(zip(old, value if len(old) > 1 else [value], strict=False))
        whole = cells.get(None)
        row: Mapping[Any, Any] = whole if isinstance(whole, Mapping) else {}
        values = [cells[column] if column in cells else row.get(column) for column in new]
        return values if len(values) > 1 else values[0] if values else 0

    return change


def _inside(change: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Return the function for values that are each wrapped in a list."""
    return None if change is None else lambda waiting: [change(waiting[0])]
