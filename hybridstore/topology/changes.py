"""Changes of a topology: the table of effects on a state when another topology continues the state.

    description in the state ─┐
                              ├─ compare ─▶ [Difference, ...]     taken, with consent, refused (`state.changes`)
    description asked for ────┘

docs/changing.md has the table; each of its lines is a branch here and a test in tests/topology/test_changes.py. This
module reads only descriptions (`Plan.describe`) and needs no stores; `adopt` carries the changes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from ..aggregation import described, renamed_column, windows_of
from ..state.changes import Difference, refused
from ..stores.kinds import SLIDING, SUPPRESSION, WINDOW

ANEW: Final = (
    "declare it as a topology of its own with a state of its own beside this one, and switch over once its windows are "
    "complete"
)
EXPIRES: Final = "what is older expires at once"
_GROWS: Final = {"retention_ms", "ttl_ms"}
_BOUNDS: Final = {"time_limit_ms", "max_records", "max_bytes", "on_full", "grace_ms"}
# The attributes of windows that are their sizes (ms).
_SIZES: Final = ("size_ms", "advance_ms", "gap_ms")


def compare(
    stored: Mapping[str, Any],
    asked: Mapping[str, Any],
    allow: Collection[str] = (),
    upgrades: Mapping[str, Collection[int]] | None = None,
) -> list[Difference]:
    """Return the differences of the requested topology from the topology that made the state, possibly [].

    Both are results of `Plan.describe`. `allow` is the user's consent; "rename OLD to NEW" in it declares a renaming.
    `upgrades` has the stores of `process` with upgrade functions, and their versions. O(description).
    """
    if "aggregates" not in stored:
        # on Spark an operator's state may be that of another kind of program
        return [refused("program", stored.get("processor", "another program"), "a topology")]
    names = _Names(stored, asked, allow)
    changes = [*names.changes(asked)]
    joins = [dict(each.get("join") or {}) for each in (stored, asked)]
    absent = [join.pop("without", None) for join in joins]
    if joins[0] != joins[1]:
        changes.append(refused("join", stored.get("join"), asked.get("join"), ANEW))
        return changes
    changes += _of_inputs(*absent)
    if stored["steps"] != asked["steps"]:
        what = f"map and filter: {_steps(stored)} in the state, {_steps(asked)} in the program"
        changes.append(
            Difference(what, "consent", "what is stored was made by the old ones, and stays as it is", "change steps")
        )
    if (stored["windows"] is None) != (asked["windows"] is None):
        changes.append(refused("windows", stored["windows"], asked["windows"], ANEW))
        return changes
    if stored["windows"] is not None:
        changes += _of_windows(stored, asked, names)
    changes += _of_stores(stored["process"] or {}, asked["process"] or {}, names, upgrades or {})
    return changes


class OtherInputs(Difference):
    """A change of the inputs that are given, for which a query on Spark must know its sources by name."""


def _of_inputs(before: str | None, now: str | None) -> Iterator[Difference]:
    """Yield the changes of a join's inputs, by the name of the one that is not given."""
    if before == now:
        return
    if before is not None:
        note = "its rows meet what is stored; rows that have come out without a partner do not come out again"
        yield OtherInputs(f"input {before}: not given before, given now", "consent", note, f"add input {before}")
    if now is not None:
        note = "what is stored of it stays until it expires, and no row of it arrives"
        yield OtherInputs(f"input {now}: given before, not given now", "consent", note, f"drop input {now}")


def _steps(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in description["steps"]) or "none"


def renamings(allow: Collection[str]) -> dict[str, str]:
    """Return the new names of columns and stores by their old names, from "rename OLD to NEW"."""
    words = [word.split() for word in allow]
    return {word[1]: word[3] for word in words if len(word) == 4 and word[0] == "rename" and word[2] == "to"}


def renamed_aggregates(stored: Mapping[str, Any], asked: Mapping[str, Any], allow: Collection[str]) -> dict[str, str]:
    """Return the new names of aggregates by their old names: those that `allow` renames. O(aggregates)."""
    if stored["aggregates"] is None or asked["aggregates"] is None:
        return {}
    before, now = ({part[0] for part in parts_of(description)} for description in (stored, asked))
    return {old: new for old, new in renamings(allow).items() if old in before - now and new in now - before}


def renamed_columns(asked: Mapping[str, Any], allow: Collection[str]) -> dict[str, str]:
    """Return the new names of columns by their old names: those that `allow` renames and no aggregate asks for."""
    wanted = [] if asked["aggregates"] is None else [part[2] for part in parts_of(asked)]
    return {old: new for old, new in renamings(allow).items() if old not in _flat(wanted)}


def _flat(parts: Any) -> list[Any]:
    return [name for part in parts for name in _flat(part)] if isinstance(parts, list | tuple) else [parts]


class _Names:
    """Renamed columns and stores: key columns by their place, others by the consent."""

    def __init__(self, stored: Mapping[str, Any], asked: Mapping[str, Any], allow: Collection[str]) -> None:
        self._stored = stored
        self.renamed = renamings(allow)
        self.columns = renamed_columns(asked, allow)
        self.aggregates = renamed_aggregates(stored, asked, allow)

    def now(self, name: Any) -> Any:
        """Return the name in the program of a store of the state."""
        return self.renamed.get(name, name)

    def changes(self, asked: Mapping[str, Any]) -> Iterator[Difference]:
        """Yield the changes of the names of the key and of the timestamp."""
        old, new = self._stored["key"], asked["key"]
        if len(old) != len(new) or any(a != b and (a in new or b in old) for a, b in zip(old, new, strict=False)):
            yield refused("key", old, new)
        else:
            yield from (_renamed("key", a, b) for a, b in zip(old, new, strict=True) if a != b)
        nulls = self._stored.get("null_keys", "skip"), asked.get("null_keys", "skip")
        if nulls[0] != nulls[1]:
            yield refused("null_keys", *nulls)
        if self._stored["timestamp"] != asked["timestamp"]:
            yield _renamed("timestamp", self._stored["timestamp"], asked["timestamp"])


def _renamed(part: str, old: str, new: str) -> Difference:
    note = "if it is the same under another name; otherwise begin in a new checkpoint location or directory"
    return Difference(f"{part}: {old} in the state, {new} in the program", "consent", note, f"rename {old} to {new}")


# --- windows ----------------------------------------------------------------------------------------------------


def kind_of(windows: Sequence[Any]) -> str:
    """Return the kind of windows of a description: of sliding windows with their flavour."""
    return " ".join(windows[:2]) if windows[0] == SLIDING.name else str(windows[0])


def kept_ms(description: Mapping[str, Any]) -> int:
    """Return how long windows are kept (ms), of a topology's description: as asked, or as long as they may change."""
    asked: int | None = description["retention_ms"]
    return windows_of(description["windows"]).default_retention_ms if asked is None else asked


def _of_windows(stored: Mapping[str, Any], asked: Mapping[str, Any], names: _Names) -> Iterator[Difference]:
    kind, new_kind = kind_of(stored["windows"]), kind_of(asked["windows"])
    if kind != new_kind:
        yield refused("windows", kind, new_kind, ANEW)
        return
    before, now = windows_of(stored["windows"]), windows_of(asked["windows"])
    grace, new_grace = before.grace_ms, now.grace_ms
    grids = described(stored["windows"]), described(asked["windows"])
    if grids[0] != grids[1]:
        yield refused("windows: align_to and time_zone", grids[0], grids[1], ANEW)
    for attribute in _SIZES:
        name, old, new = attribute.removesuffix("_ms"), getattr(before, attribute, 0), getattr(now, attribute, 0)
        if old == new or (name == "advance" and kind == "tumbling"):
            continue
        if kind != "sliding kip450":
            yield refused(f"windows: {name}", old, new, ANEW)
        elif new < old:
            yield Difference(
                f"windows: size {old} ms before, {new} ms now", "taken", "what is older leaves the windows"
            )
        else:
            note = f"windows begin with what is stored, and are whole when {new - old} ms more have passed"
            yield Difference(f"windows: size {old} ms before, {new} ms now", "taken", note)
    if grace != new_grace:
        note = (
            "what is open stays open longer; what has closed does not open again"
            if new_grace > grace
            else "windows that have closed by it close with the next commit, and later records are late"
        )
        yield Difference(f"windows: grace {grace} ms before, {new_grace} ms now", "taken", note)
    if "panes" in stored["windows"] and "panes" not in asked["windows"]:
        note = "panes do not make up for a longer retention, nor for an aggregator whose order matters: keep both, or "
        yield Difference("hopping windows: panes in the state, whole in the program", "refused", note + ANEW)
    if kind != "sliding kip450" and stored["retention_ms"] != asked["retention_ms"]:
        yield from _retention("windows", "retention", kept_ms(stored), kept_ms(asked))
    yield from _of_aggregates(stored, asked, names, kind)
    yield from _of_results(stored, asked)


def _retention(store: str, part: str, old: int | None, new: int | None) -> Iterator[Difference]:
    if old is None or new is None:
        if old != new:
            yield refused(part, old, new, "ask for what the state has, or use another name")
    elif new > old:
        yield Difference(
            f"{part}: {old} ms before, {new} ms now", "taken", "what has expired is gone, what is there stays"
        )
    elif new < old:
        shorter = Shorter(f"{part}: {old} ms before, {new} ms now", "taken", EXPIRES)
        shorter.store, shorter.kept_ms = store, new
        yield shorter


class Shorter(Difference):
    """A change that makes records expire: its store keeps them for `kept_ms` only."""

    store: str
    kept_ms: int


def columns_of(aggregates: Sequence[Sequence[Any]], names: Mapping[str, str] | None = None) -> list[Any]:
    """Return the columns of a projected row (`aggregation.Combined`) by the description of aggregates, under their new
    names.
    """
    columns: list[Any] = []
    for _, kind, column, *_ in aggregates:
        if column not in columns and not (column is None and kind == "count"):
            columns.append(column)
    return [renamed_column(column, names or {}) for column in columns]


def parts_of(description: Mapping[str, Any], names: Mapping[str, str] | None = None) -> list[list[Any]]:
    """Return `[name, kind, column, parameters ...]` of each aggregate of a topology's description, under its new
    name.
    """
    renamed = names or {}
    return [[renamed.get(part[0], part[0]), *part[1:]] for part in description["aggregates"][2:]]


def exact(stored: Mapping[str, Any], part: Sequence[Any], names: Mapping[str, str]) -> bool:
    """Whether a new aggregate can be computed from the stored values: only sliding windows store values, and the column
    must be among them.
    """
    if kind_of(stored["windows"]) != "sliding kip450":
        return False
    return follows(columns_of(parts_of(stored), names), part)


def follows(columns: Sequence[Any], part: Sequence[Any]) -> bool:
    """Whether an aggregate can be computed from projected rows with these columns; None is the whole row."""
    if isinstance(part[2], list | tuple):
        return renamed_column(part[2], {}) in columns
    return part[2] in columns or None in columns or (part[1], part[2]) == ("count", None)


def _of_aggregates(
    stored: Mapping[str, Any], asked: Mapping[str, Any], names: _Names, kind: str
) -> Iterator[Difference]:
    parts = parts_of(stored, names.aggregates)
    old = {part[0]: [part[1], renamed_column(part[2], names.columns), *part[3:]] for part in parts}
    before = {part[0]: [part[1], renamed_column(part[2], {}), *part[3:]] for part in parts}
    new = {part[0]: [part[1], renamed_column(part[2], {}), *part[3:]] for part in parts_of(asked)}
    for name, now in names.aggregates.items():
        note = "what is stored of it stays"
        yield Difference(f"aggregate {name}: {now} in the program", "consent", note, f"rename {name} to {now}")
    for name in old:
        if name not in new:
            note = "the next commit deletes what is stored of it"
            alike = [other for other, part in new.items() if other not in old and part == old[name]]
            if alike:
                note += f"; if it is the same under another name: allow='rename {name} to {alike[0]}'"
            yield Difference(f"aggregate {name}: not in the program", "consent", note, f"drop aggregate {name}")
    for name, part in new.items():
        if name not in old:
            if exact(stored, (name, *part), names.columns):
                yield Difference(f"aggregate {name}: new", "taken", "exact from the first result on: values are stored")
            else:
                note = (
                    "it begins empty: rows before the change are not in it"
                    if kind == "forever"
                    else "None for the windows that have begun, exact for those that begin later"
                )
                yield Difference(f"aggregate {name}: new", "consent", note, f"add aggregate {name} from now")
        elif old[name] != part:
            note = "remove it, and add it under another name"
            if len(part) == len(old[name]) and [part[0], *part[2:]] == [old[name][0], *old[name][2:]]:
                note += f"; if only its column has another name: allow='rename {before[name][1]} to {part[1]}'"
            yield refused(f"aggregate {name}", before[name], part, note)
        elif before[name] != part:
            yield _renamed(f"aggregate {name}: column", before[name][1], part[1])
    both = [name for name in old if name in new]
    if both != [name for name in new if name in old]:
        yield Difference(f"aggregates: in the order {', '.join(new)}", "taken", "aggregates are matched by name")


def _of_results(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[Difference]:
    old, new = stored["emit"], asked["emit"]
    if old != new and "close" in (old, new):
        yield refused("emit", old, new, "results that were handed out cannot be taken back: " + ANEW)
    elif old != new:
        yield Difference(f"emit: {old!r} before, {new!r} now", "taken", "from the next commit on")
    before, now = stored["suppression"], asked["suppression"]
    if before == now:
        return
    if before is None or now is None or any(before[name] != now[name] for name in before if name not in _BOUNDS):
        yield refused("hold", before, now, "what is held back cannot follow: " + ANEW)
    else:
        bounds = [f"{name} {before[name]} before, {now[name]} now" for name in before if before[name] != now[name]]
        note = "buffered results stay, and the new limits apply to them"
        yield Difference(f"hold: {'; '.join(bounds)}", "taken", note)


# --- stores of `process` ------------------------------------------------------------------------------------------


def _of_stores(
    stored: Mapping[str, Any], asked: Mapping[str, Any], names: _Names, upgrades: Mapping[str, Collection[int]]
) -> Iterator[Difference]:
    before = {names.now(name) if names.now(name) in asked else name: name for name in stored}
    for name, old in before.items():
        if name not in asked:
            note = "the next commit deletes all that is in it"
            alike = [new for new, described in asked.items() if new not in stored and described == stored[old]]
            if alike:
                note += f"; if it is the same under another name: allow='rename {old} to {alike[0]}'"
            yield Difference(f"store {old}: not in the program", "consent", note, f"drop store {old}")
            continue
        if name != old:
            yield _renamed("store", old, name)
        (kind, parameters), (new_kind, new_parameters) = stored[old], asked[name]
        if kind != new_kind:
            yield refused(f"store {name}", kind, new_kind, "use another name")
            continue
        yield from _of_parameters(name, kind, parameters, new_parameters, upgrades.get(name, ()))
    for name in asked:
        if name not in before:
            yield Difference(f"store {name}: new", "taken", "it begins empty")


def _of_parameters(
    store: str, kind: str, old: Mapping[str, Any], new: Mapping[str, Any], upgrades: Collection[int]
) -> Iterator[Difference]:
    for name in sorted(old.keys() | new.keys()):
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        part = f"store {store}: {name}"
        bounded = kind == SUPPRESSION.name and name in _BOUNDS and old["final"] == new["final"]
        if name == "version":
            yield _version(store, before or 0, now or 0, upgrades)
        elif name in _GROWS or (kind == SLIDING.name and name == "size_ms"):
            yield from _retention(store, part, before, now)
        elif bounded or (kind == WINDOW.name and name == "grace_ms"):
            yield Difference(f"{part}: {before} before, {now} now", "taken", "what is stored stays")
        else:
            yield refused(part, before, now, "ask for what the state has, or use another name")


def _version(store: str, before: int, now: int, upgrades: Collection[int]) -> Difference:
    what = f"store {store}: values of version {before} in the state, {now} in the program"
    missing = [version for version in range(before + 1, now + 1) if version not in upgrades]
    if now < before:
        return Difference(what, "refused", f"run the program of version {before}, or a later one")
    if missing:
        return Difference(what, "refused", f"pass upgrade= to convert values to version {missing[0]}")
    return Difference(what, "taken", "the next commit passes every value through upgrade=")
