"""Plan: a topology as frozen data. Every worker reads the plan; the plan runs nothing.

    key, timestamp -> steps -> windows, aggregates, emit -> suppression
                            -> custom

`Topology` (`declare`) is a plan with the methods that declare and run it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from ..aggregation import Combined, Forever, HoppingWindows, Projection, Windows
from ..markup import Html, tag
from ..stores.suppression_bounds import Suppression
from .declared_stores import StoreDeclaration
from .joins.spec import Join

START: Final = "window_start"
END: Final = "window_end"
# The key of every row of a stream without a key: one group for all.
ALL: Final = ""
Emit = Literal["record", "commit", "close"]
NullKeys = Literal["skip", "group"]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A function on rows: a `map` returns a row, a `filter` whether to keep the row.

    `schema` declares the columns of the rows that a `map` returns; None: they are not declared.
    """

    kind: Literal["map", "filter"]
    function: Callable[[dict[str, Any]], Any]
    schema: Any = None

    @property
    def name(self) -> str:
        """The function's name, by which stored state is compared with the code."""
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)


@dataclass(frozen=True, slots=True)
class Custom:
    """Custom logic: `function(row, stores)` or a class with `process(row)`, and the stores it declares.

    `on_timer` is called with timers that fire; a class has a method of this name instead. `tick_ms`: how late a timer
    by the clock may fire on Spark; None: no timers by the clock.
    """

    function: Callable[..., Any]
    schema: Any
    stores: dict[str, StoreDeclaration]
    on_timer: Callable[..., Any] | None = None
    tick_ms: int | None = None

    @property
    def timed(self) -> bool:
        """Whether the logic has timers."""
        return self.on_timer is not None or (isinstance(self.function, type) and hasattr(self.function, "on_timer"))


def passed_on(row: dict[str, Any], stores: object) -> list[dict[str, Any]]:
    """Return the row as the only result."""
    return [row]


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The computation of a topology.

    key, timestamp    the columns by which rows are grouped and timed; without key columns all rows are one group
    null_keys         rows whose key, or a part of it, is null: "skip" leaves them out, "group" groups them like others
    steps             functions on rows, before anything else
    stepped           the rows come as the steps return them: on Spark they ran before the rows were given to shards
    windows           the windows of a key, None with custom logic
    retention_ms      how long windows are kept, None: as long as they may change
    aggregates        what is computed of every window, None with custom logic
    emit              when results come out: with each record, at the end of a commit, or when a window closes
    strategy          how sliding windows are kept up to date, None: the best that the aggregators allow
    suppression       what holds results back, None: nothing
    late_column       the column of results that holds rows which came too late, None: they are counted only
    errors_column     the column of results that holds rows whose processing raised, None: the error ends the job
    custom            the user's own logic, in place of windows
    whole             hopping windows are kept whole also where they could be kept as panes: the state has them so
    joined            two inputs whose rows meet, None: one input
    name              the name of the stream as an input of a join
    kept              the columns that a join keeps besides key and timestamp; None: all
    """

    key: tuple[str, ...]
    timestamp: str
    steps: tuple[PlanStep, ...] = ()
    windows: Windows | None = None
    retention_ms: int | None = None
    aggregates: Combined | None = None
    emit: Emit = "record"
    strategy: str | None = None
    suppression: Suppression | None = None
    custom: Custom | None = None
    late_column: str | None = None
    errors_column: str | None = None
    whole: bool = False
    null_keys: NullKeys = "skip"
    stepped: bool = False
    joined: Join | None = None
    name: str | None = None
    kept: tuple[str, ...] | None = None

    @property
    def pending(self) -> tuple[PlanStep, ...]:
        """The steps that are still to run on the rows that arrive."""
        return () if self.stepped else self.steps

    @property
    def extra_column(self) -> str | None:
        """The column of results of windows that holds rows of the input: late ones, or those that raised."""
        return self.late_column or (self.errors_column if self.custom is None else None)

    @property
    def traced(self) -> bool:
        """Whether rows of the input may be handed out, so that they are kept until the commit ends."""
        return self.late_column is not None or self.errors_column is not None

    @property
    def dates_results(self) -> bool:
        """Whether results know their largest record time (`Result.ts`): suppression asks for it."""
        return self.suppression is not None

    @property
    def bounds(self) -> tuple[str, ...]:
        """The names of the bounds of windows in results; none without windows."""
        return () if isinstance(self.windows, Forever) else (START, END)

    @property
    def mapped_schema(self) -> Any:
        """The declared columns of the rows behind the steps: those of the last `map`; None if they are not declared."""
        maps = [step for step in self.steps if step.kind == "map"]
        return maps[-1].schema if maps else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The needed input columns; () if whole rows are needed (map, filter, process, or an aggregator without a
        column).
        """
        if self.pending or self.custom is not None or self.aggregates is None:
            return ()
        needed = [*self.key, self.timestamp]
        for column in self.aggregates.columns:
            names = column.needs if isinstance(column, Projection) else None if column is None else (column,)
            if names is None:
                return ()
            needed += names
        return tuple(dict.fromkeys(needed))

    @property
    def by_column(self) -> bool:
        """Whether the rows of an Arrow batch are taken by column, and not one by one: no function changes them, and
        none whose error is a result looks at them.
        """
        return bool(self.columns) or not (self.pending or self.custom or self.errors_column or self.aggregates is None)

    @property
    def paned(self) -> bool:
        """Whether hopping windows are kept as the panes that they share (`hybridstore.topology.windows.panes`):
        possible if windows overlap, aggregates can be combined in any order, and closed windows are not read.
        """
        windows, aggregates = self.windows, self.aggregates
        return (
            isinstance(windows, HoppingWindows)
            and not self.whole
            and aggregates is not None
            and windows.advance_ms < windows.size_ms
            and windows.regular
            and aggregates.commutative
            and aggregates.merge is not None
            # closed windows cannot be read
            and self.retention_ms in (None, windows.default_retention_ms)
        )

    def describe(self) -> dict[str, Any]:
        """Return a stable, plain description, with which the stored description is compared."""
        return {
            "key": list(self.key),
            **({"null_keys": self.null_keys} if self.null_keys != "skip" else {}),
            "timestamp": self.timestamp,
            "steps": [[step.kind, step.name] for step in self.steps],
            "windows": None if self.windows is None else [*self.windows.describe(), *(["panes"] if self.paned else [])],
            "retention_ms": self.retention_ms,
            "aggregates": None if self.aggregates is None else self.aggregates.describe(),
            "emit": self.emit,
            "suppression": None if self.suppression is None else self.suppression.describe(),
            "process": None
            if self.custom is None
            else {store.name: [store.kind, store.parameters] for store in self.custom.stores.values()},
            **({} if self.joined is None else {"join": self.joined.describe()}),
        }

    @property
    def passes(self) -> bool:
        """Whether the topology has only `map` and `filter`: their rows are the results."""
        return self.custom is not None and self.custom.function is passed_on

    def complete(self) -> Self:
        """Return the complete topology; one of `map` and `filter` alone passes their rows on. Raises ValueError for a
        topology without any step.
        """
        if self.custom is not None or self.aggregates is not None:
            return self
        if not self.steps or self.windows is not None:
            raise ValueError(
                "topology: found no aggregate and no process, expected one of them, or map or filter, before it is run"
            )
        return replace(self, custom=Custom(passed_on, self.mapped_schema, {}))

    def __str__(self) -> str:
        if self.joined is not None:
            return str(self.joined)
        nulls = "" if self.null_keys == "skip" else ", null too"
        key = f"key {', '.join(self.key)}" if self.key else "one group"
        lines = [f"stream      {key}{nulls}; time {self.timestamp}"]
        lines += [f"{step.kind:<11} {step.name}" for step in self.steps]
        stores: list[str] = []
        if self.windows is not None and self.bounds:
            lines.append(f"windowed_by {self.windows!r}")
        if self.aggregates is not None:
            parts = zip(self.aggregates.names, self.aggregates.parts, strict=True)
            lines.append(f"aggregate   {', '.join(f'{name}={part!r}' for name, part in parts)}; emit {self.emit}")
            kind = {"SlidingWindows": "sliding", "SessionWindows": "session"}.get(type(self.windows).__name__, "window")
            stores.append(f"windows ({kind}{', as panes' if self.paned else ''})")
        if self.suppression is not None:
            lines.append(f"hold        {self.suppression}")
            stores.append("suppressed (suppression)")
        if self.late_column is not None:
            lines.append(f"late        column {self.late_column}")
        if self.errors_column is not None:
            lines.append(f"errors      column {self.errors_column}")
        if self.custom is not None:
            name = getattr(self.custom.function, "__qualname__", type(self.custom.function).__name__)
            lines.append(f"process     {name}")
            stores += [f"{store.name} ({store.kind})" for store in self.custom.stores.values()]
        lines.append(f"stores      {', '.join(stores) or 'none'}")
        return "\n".join(("└─ " if i else "") + line for i, line in enumerate(lines))

    def __repr__(self) -> str:
        lines = (" ".join(line.strip("└─ ").split()) for line in str(self).splitlines())
        return f"<{type(self).__name__} {' | '.join(lines)}>"

    def _repr_html_(self) -> str:
        return tag("pre", *(line for text in str(self).split("\n") for line in (text, Html("\n"))))

    # --- what workers ask ------------------------------------------------------------------------------------

    @property
    def combined(self) -> Combined:
        """The aggregates. Raises TypeError for a topology without any."""
        if self.aggregates is None:
            raise TypeError("topology: found process, expected windows with aggregates")
        return self.aggregates

    @property
    def final(self) -> bool:
        """Whether only final results are emitted."""
        return self.emit == "close" or (self.suppression is not None and self.suppression.final)

    @property
    def kept_ms(self) -> int:
        """How long windows are kept (ms): the declared retention, or as long as they may change."""
        assert self.windows is not None
        return self.windows.default_retention_ms if self.retention_ms is None else self.retention_ms
