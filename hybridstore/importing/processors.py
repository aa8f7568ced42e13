"""Processors: state variables, timers and groups of Spark's processors, and what puts them into ours.

__variable   the name of the state variable, null for a timer
s<n>         the value of the n-th variable; of a list all its elements; with a ttl each beside its time of expiry
m<n>         the key of an entry of a map
__expiry     the time (ms) of a timer, or at which a value or an entry expires
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..spark.contract import Batch
from ..spark.group_state import STATE, GroupProgram
from ..spark.grouping_keys import GroupingKeys
from ..spark.processor_state import Handle, ListVariable, MapVariable, ValueVariable, Variable
from ..spark.stateful_processor import INITIAL, ProcessorProgram, python_values
from ..state.group import StoreGroup
from .arrow_values import listed, tuple_of

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE: Final = "__variable"
EXPIRY: Final = "__expiry"
# The name that a list and its expiry have in Spark's arrays.
_NO_TIMEOUT: Final = -1
CLASSES: Final[dict[str, type[Variable]]] = {
    "ValueState": ValueVariable,
    "ListState": ListVariable,
    "MapState": MapVariable,
}


def opened(program: ProcessorProgram, group: StoreGroup, now_ms: int) -> Handle:
    """Return the handle of a processor whose `init` has asked for its variables."""
    handle = Handle(group, program.upgrade, GroupingKeys(program.key_columns), program.mode)
    handle.begin(now_ms)
    processor: Any = program.processor
    processor.init(handle)
    handle.ready()
    return handle


def _texts(handle: Handle, key: Sequence[str], table: pa.Table) -> list[str]:
    """Return the grouping keys of the rows in the stored form. O(rows)."""
    columns = [python_values(table.column(name)) for name in key]
    return list(map(handle.keys.stored, zip(*columns, strict=True))) if columns else ["[]"] * table.num_rows


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables and timers of a processor. `names` has the variables by their numbers."""

    program: ProcessorProgram
    names: Sequence[str]

    def load(self, group: StoreGroup, table: pa.Table, batch: Batch) -> int:
        """See `Loader`. O(values, elements, entries and timers)."""
        import pyarrow.compute as pc

        program = self.program
        handle = opened(program, group, batch.timestamp_ms)
        lives: dict[str, int] = {}
        for number, name in enumerate(self.names):
            rows = table.filter(pc.equal(table.column(VARIABLE), name))
            if rows.num_rows:
                lives[name] = _fill(handle.variables[name], _texts(handle, program.key, rows), rows, number)
        handle.begin(batch.timestamp_ms)
        timers = table.filter(pc.is_null(table.column(VARIABLE)))
        for text, expiry in zip(_texts(handle, program.key, timers), timers.column(EXPIRY).to_pylist(), strict=True):
            handle.timers.register(text, expiry)
        processor: Any = program.processor
        processor.close()
        handle.flush()
        for name, life_ms in lives.items():
            # Spark's ttl may have been longer
            keep_for(group, handle.variables[name], life_ms)
        # the old query has had its initial state
        group.set(INITIAL, True)
        return int(table.num_rows)


def _fill(variable: Variable, texts: list[str], rows: pa.Table, number: int) -> int:
    """Put the rows of one variable. A value expires when it would have in Spark: the variable's time is set so that the
    variable computes this time. Return how long the last one lives (ms), at least the variable's ttl.
    """
    ttl_ms, before = variable._ttl_ms or 0, variable.now
    latest = before + ttl_ms
    values = listed(rows.column(f"s{number}"))
    expiries = rows.column(EXPIRY).to_pylist()
    keys = listed(rows.column(f"m{number}")) if isinstance(variable, MapVariable) else [None] * len(values)
    for text, value, expiry, key in zip(texts, values, expiries, keys, strict=True):
        variable.key = text
        if isinstance(variable, ListVariable):
            for element in value:
                timed = element.get("ttlExpirationMs") if element.keys() == {"value", "ttlExpirationMs"} else None
                variable.now = before if timed is None else timed - ttl_ms
                latest = max(latest, timed or 0)
                variable.appendValue(tuple_of(element if timed is None else element["value"]))
            continue
        variable.now = before if expiry is None else expiry - ttl_ms
        latest = max(latest, expiry or 0)
        if isinstance(variable, MapVariable):
            variable.updateValue(tuple_of(key), tuple_of(value))
        elif isinstance(variable, ValueVariable):
            variable.update(tuple_of(value))
    variable.now = before
    return latest - before


def keep_for(group: StoreGroup, variable: Variable, ttl_ms: int) -> None:
    """Let the stores of a variable keep the values that it has written for so long (ms), and not only for its ttl.
    O(values) where that is longer.
    """
    for prefix in (variable.stored or variable.kind, *variable.also):
        store = group.stores[f"{prefix}:{variable.name}"]
        if store.parameters["ttl_ms"] is not None and store.parameters["ttl_ms"] < ttl_ms:
            group.rebuild(store.name, {"ttl_ms": ttl_ms})


@dataclass(frozen=True, slots=True)
class Groups:
    """The state and the time-outs of the groups of `applyInPandasWithState`: s0, and `__expiry`."""

    program: GroupProgram

    def load(self, group: StoreGroup, table: pa.Table, batch: Batch) -> int:
        """See `Loader`. O(groups)."""
        program = self.program
        handle = Handle(group, keys=GroupingKeys(program.key_columns))
        variable = handle.getValueState(STATE, program.state)
        handle.begin(batch.timestamp_ms)
        values, expiries = listed(table.column("s0")), table.column(EXPIRY).to_pylist()
        for text, value, expiry in zip(_texts(handle, program.key, table), values, expiries, strict=True):
            handle.select_stored(text)
            if value is not None:
                variable.update(tuple_of(value))
            if expiry is not None and expiry != _NO_TIMEOUT:
                handle.registerTimer(expiry)
        handle.flush()
        return int(table.num_rows)
