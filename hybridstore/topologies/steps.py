"""Steps: what a user declares once, step by step.

    stream(key, timestamp) -> map/filter -> windowed_by -> aggregate -> hold
                                         -> aggregate -> hold
                                         -> process

A topology is immutable; every step returns a new topology and checks its arguments at once, so that a mistake raises at
its line and not in the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from ..aggregation import (
    Aggregator,
    Combined,
    CountDistinct,
    Forever,
    HoppingWindows,
    Max,
    Mean,
    Min,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
    Variance,
    Windows,
)
from ..clock import Duration, duration_ms
from ..stores.suppression_bounds import OnFull, Timer, bounds_of
from ..topology import declared_stores
from ..topology.declared_stores import StoreDeclaration
from ..topology.duplicates import SEEN, WithoutDuplicates
from ..topology.joins.declared import Table, Within, joined
from ..topology.joins.spec import How
from ..topology.output_rows import columns_of_schema
from ..topology.plan import END, START, Custom, Emit, Plan, PlanStep

_WINDOWS = (TumblingWindows, HoppingWindows, SlidingWindows, SessionWindows)
RESERVED = (START, END)
# What is written so for Spark, and what does it here.
_OF_SPARK = {
    "Column": " (on Spark: df.where or df.withColumn before apply)",
    "update": ' (Spark\'s update is "commit")',
    "append": ' (Spark\'s append is "close")',
}
# Aggregators that need a column.
_OF_NUMBERS = (Sum, Mean, Variance, Min, Max, CountDistinct)


def key_columns(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the key columns as a tuple. Raises TypeError or ValueError."""
    if key is not None and not isinstance(key, str | list | tuple):
        raise TypeError(f"stream: key: found {type(key).__name__}, expected the name of a column, or a list of names")
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    for name in keys:
        check_column("key", name)
    if not keys and key is not None:
        raise ValueError("stream: key: found no column, expected at least one")
    if len(set(keys)) < len(keys):
        raise ValueError(f"stream: key: found a column twice in {', '.join(keys)}")
    for name in RESERVED:
        if name in keys:
            raise ValueError(f"stream: key: {name!r} is the name of a window bound (rename the column)")
    return keys


def check_column(argument: str, name: object) -> None:
    """Raise TypeError or ValueError unless an argument of `stream` is a column's name."""
    if not isinstance(name, str):
        raise TypeError(f"stream: {argument}: found {type(name).__name__}, expected the name of a column")
    if not name:
        raise ValueError(f"stream: {argument}: found an empty name, expected the name of a column")


@dataclass(frozen=True, slots=True, repr=False)
class Steps(Plan):
    """A plan with the steps that continue it; see `Topology`."""

    def map(self, function: Callable[[dict[str, Any]], dict[str, Any]], output_schema: Any = None) -> Self:
        """Replace every row (a dict) by `function(row)`. Before `windowed_by`, and behind a join its results.

        `output_schema` names the columns of the rows that the function returns, with their types, as for `process`:
        DDL text, a StructType or an Arrow schema. On Spark the steps then run before rows are given to shards, so that
        the function may make the key and the time; results have the types of these columns. Without it, the key, the
        time and the aggregated columns have the types of the input's columns of the same names. In plain Python the
        schema is not needed. Raises ValueError for a schema that cannot be read, and TypeError for another type.

        >>> clicks = hs.stream(key="user", timestamp="ts").map(lambda row: {**row, "user": row["user"].lower()})
        >>> counts = clicks.windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
        >>> [row["user"] for row in counts.run([{"user": "Ann", "ts": 0}])]
        ['ann']
        """
        columns_of_schema(output_schema, "map: output_schema")
        return self._step("map", function, output_schema)

    def filter(self, function: Callable[[dict[str, Any]], bool]) -> Self:
        """Keep the rows (dicts) for which `function(row)` is true. Before `windowed_by`, and behind a join its results.

        >>> views = hs.stream(key="user", timestamp="ts").filter(lambda row: row["status"] == 200)
        >>> counts = views.windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
        >>> rows = [{"user": "ann", "ts": 0, "status": 404}, {"user": "bob", "ts": 0, "status": 200}]
        >>> [row["user"] for row in counts.run(rows)]
        ['bob']
        """
        return self._step("filter", function)

    def _step(
        self, kind: Literal["map", "filter"], function: Callable[[dict[str, Any]], Any], schema: Any = None
    ) -> Self:
        if not callable(function):
            raise TypeError(
                f"{kind}: function: found {(given := type(function).__name__)}, expected a function of one row"
                f"{_OF_SPARK.get(given, '')}"
            )
        step = PlanStep(kind, function, schema)
        if self.joined is not None:
            return replace(self, joined=replace(self.joined, behind=(*self.joined.behind, step)))
        if self.windows is not None or self.custom is not None:
            raise ValueError(
                f"{kind}: found after windowed_by or process, expected before it (to filter results, use `if` in "
                "your loop, or `where` on the DataFrame that apply returns)"
            )
        return replace(self, steps=(*self.steps, step))

    def windowed_by(self, windows: Windows, *, retention: Duration | None = None) -> Self:
        """Group the rows of a key into windows: Tumbling-, Hopping-, Sliding- or SessionWindows.

        `retention` is how long windows are kept, for `Engine.windows` and `Engine.find_sessions` to read (default: as
        long as they may change; tumbling and hopping windows count from their start, sessions from their end). Sliding
        `SlidingWindows` keep none. With `KafkaSlidingWindows` a window beyond its retention is not emitted as
        final either, as in Kafka. Raises ValueError when the retention is less than the time that windows may change,
        and TypeError for another type.

        >>> clicks = hs.stream(key="user", timestamp="ts")
        >>> visits = clicks.windowed_by(hs.SessionWindows("30 minutes"), retention="1 day").aggregate(n=hs.Count())
        >>> engine = visits.open("state")
        >>> for ts in (0, 60_000, 86_000_000):  # the last one is 23 hours later
        ...     results = engine.process({"user": "ann", "ts": ts})
        >>> [(row["window_start"], row["window_end"], row["n"]) for row in engine.find_sessions("ann")]
        [(0, 60000, 2), (86000000, 86000000, 1)]
        """
        if not isinstance(windows, _WINDOWS):
            raise TypeError(
                f"windowed_by: windows: found {type(windows).__name__}, expected Tumbling-, Hopping-, Sliding- or "
                'SessionWindows, such as TumblingWindows("10 minutes")'
            )
        if self.windows is not None or self.custom is not None:
            raise ValueError("windowed_by: found a second time or after process, expected once")
        return replace(self, windows=windows, retention_ms=_retention_ms(windows, retention))

    def aggregate(self, *, emit: Emit = "record", strategy: str | None = None, **aggregates: Aggregator) -> Self:
        """Aggregate every window: `aggregate(requests=Count(), bytes=Sum("bytes"))`; each name becomes a column.

        Without `windowed_by` all rows of a key are aggregated, from the first one on: results have no window bounds,
        no row is late, and nothing ever closes.

        emit      "record": a result per accepted record; "commit": the last result per key and window of a commit or
                  batch; "close": one final result per window, when it can no longer change
        strategy  for sliding windows: the name of the algorithm that updates them; None: the best that the aggregators
                  allow

        Raises ValueError for a name that is taken, an unknown emit or strategy, and TypeError for an argument that is
        not an aggregator, or has no merge with SessionWindows.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> totals = minutes.aggregate(emit="commit", requests=hs.Count(), bytes=hs.Sum("bytes"))
        >>> rows = [{"user": "ann", "ts": 0, "bytes": 10}, {"user": "ann", "ts": 500, "bytes": 32}]
        >>> for row in totals.run(rows):  # a result for the commit, not for each row
        ...     print(row)
        {'user': 'ann', 'window_start': 0, 'window_end': 60000, 'requests': 2, 'bytes': 42}
        """
        if self.custom is not None:
            raise ValueError("aggregate: found after process, expected instead of it")
        if self.aggregates is not None:
            raise ValueError("aggregate: found a second time, expected once")
        if emit not in ("record", "commit", "close"):
            raise ValueError(
                f'aggregate: emit: found {emit!r}, expected "record", "commit" or "close"{_OF_SPARK.get(str(emit), "")}'
            )
        for name in aggregates:
            if name in RESERVED or name in self.key:
                raise ValueError(f"aggregate: {name}: is the name of the key or of a window bound (choose another)")
            if isinstance(aggregates[name], _OF_NUMBERS) and aggregates[name].column is None:
                kind = type(aggregates[name]).__name__
                raise ValueError(f'aggregate: {name}: found {kind} of whole rows, expected a column ({kind}("column"))')
        parts = Combined(aggregates).parts  # which checks them
        combined = Combined(
            {name: part.with_time(self.timestamp) for name, part in zip(aggregates, parts, strict=True)}
        )
        if self.windows is None and emit == "close":
            raise ValueError(
                'aggregate: emit: found "close" without windows, expected "record" or "commit", because nothing closes '
                "(or windowed_by(...) before it)"
            )
        if isinstance(self.windows, SessionWindows):
            for name, aggregator in aggregates.items():
                if aggregator.merge is None:
                    raise TypeError(
                        f"aggregate: {name}: found {type(aggregator).__name__} without merge, expected merge with "
                        "SessionWindows, because a record may join two sessions (give merge=)"
                    )
        if isinstance(self.windows, SlidingWindows):
            from ..aggregation import choose

            choose(combined, strategy)
            if emit == "close" and self.windows.flavour == "kip450":
                raise ValueError(
                    'aggregate: emit: found "close", but a sliding window never closes: it slides (use "record" or '
                    '"commit", or KafkaSlidingWindows(...), whose windows stay where they are and close)'
                )
        elif strategy is not None:
            raise ValueError(f"aggregate: strategy: found {strategy!r}, expected with SlidingWindows only")
        return replace(self, windows=self.windows or Forever(), aggregates=combined, emit=emit, strategy=strategy)

    def hold(
        self,
        until: Duration | Literal["close"] | None = None,
        *,
        grace: Duration | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        timer: Timer = "latest",
        on_full: OnFull | None = None,
    ) -> Self:
        """Hold results back and emit the last one per key and window, so that fewer are emitted (Kafka's `suppress`).

        `aggregate(emit="close")` has the same final results as `hold("close")`, which has bounds and a grace of its
        own.

        until      how long a result is held at most, in stream time (None: no limit); or "close": until no record can
                   change its window any more, so that it is emitted once and is final
        grace      with "close": how long after its end a window still changes (None: the grace of the windows)
        max_records, max_bytes  bounds of the buffer (None: no bound)
        timer      "latest": an update restarts the time of its key; "first": a key is emitted at the latest `until`
                   after its first update
        on_full    at a bound: "emit" the oldest results early (with a duration, the default), or "raise"
                   BufferFullError (with "close" always, because a result that is emitted early is not final)

        Raises ValueError or TypeError for a wrong bound or duration, and for what never closes.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count())
        >>> rows = [{"user": "ann", "ts": 0}, {"user": "ann", "ts": 500}, {"user": "bob", "ts": 60_000}]
        >>> [(row["user"], row["n"]) for row in counts.hold("10 seconds").run(rows)]
        [('ann', 2)]
        >>> [(row["user"], row["n"]) for row in counts.hold("close").run(rows)]  # bob's row closes ann's window
        [('ann', 2)]
        """
        bounds = bounds_of(
            until, grace=grace, max_records=max_records, max_bytes=max_bytes, timer=timer, on_full=on_full
        )
        if self.aggregates is None:
            raise ValueError("hold: found without an aggregate, expected aggregate(...) before it")
        if self.suppression is not None:
            raise ValueError("hold: found a second time, expected once")
        if self.emit == "close":
            raise ValueError('hold: found after emit="close", which emits final results only already')
        if bounds.final and isinstance(self.windows, Forever):
            raise ValueError('hold: until: found "close" without windows, expected a duration, because nothing closes')
        if bounds.final and isinstance(self.windows, SlidingWindows) and self.windows.flavour == "kip450":
            raise ValueError(
                'hold: until: found "close", but a sliding window never closes: it slides (use KafkaSlidingWindows, '
                "whose windows stay where they are and close, or a duration)"
            )
        return replace(self, suppression=bounds)

    def join(
        self,
        right: Steps | Table,
        *,
        within: Within | None = None,
        how: How = "inner",
        grace: Duration | None = None,
        as_of: bool = False,
        broadcast: bool = False,
        on: str | None = None,
        select: Mapping[str, str] | None = None,
        prefixes: Mapping[str, str] | None = None,
    ) -> Self:
        """Join this stream with another stream, or with a table; both have names (`stream(name=...)`, `table`).

        With a stream, rows of one key join whose times are near each other: left - before <= right <= left + after.

        within     (before, after), both inclusive, or one duration for both
        how        "inner": pairs; "left", "right", "full": pairs, and the rows of that side, or of both, without a
                   partner, with None in the columns of the other; "semi": left rows at their first partner; "anti":
                   left rows without one. A row without a partner comes when none can arrive any more: T > the time of
                   its last possible partner + grace, where T is the newest time of both inputs (of the shard)
        grace      how late rows may be: a row with a time < T - grace is late. Default: 0

        With a table, each row of the stream joins the table's row of its key:

        how        "inner" or "left"
        as_of      the version that is valid at the time of the row (the table needs `history`), in place of the newest
        grace      with `as_of`: a row waits until T > its time + grace, where T is the newest time of both inputs, so
                   that versions that arrive late count; the result is that of a sorted as-of merge. None: a row is
                   joined at once
        broadcast  the whole table is in every shard, and is asked for the value of the stream's column `on`

        select     the columns of results by name: `{"paid": "payments.amount"}`; only these columns are stored. None:
                   the key, time and columns of both sides, and `result_time`, the later of both times
        prefixes   what is put before the columns of an input, but for the key: `{"payments": "paid_"}`

        A row whose key is null has no partner. Give the rows of both inputs by name: `run({"orders": ..., "payments":
        ...})`. See docs/joins.md. Raises TypeError or ValueError for wrong arguments, and for a name of two columns.

        >>> orders = hs.stream(name="orders", key="order", timestamp="ordered")
        >>> payments = hs.stream(name="payments", key="order", timestamp="paid")
        >>> paid = orders.join(payments, within=("0 s", "1 hour"))
        >>> rows = {"orders": [{"order": 7, "ordered": 0, "item": "tea"}], "payments": [{"order": 7, "paid": 60_000}]}
        >>> list(paid.run(rows))
        [{'order': 7, 'ordered': 0, 'item': 'tea', 'paid': 60000, 'result_time': 60000}]
        """
        fields = joined(
            self,
            right,
            within=within,
            how=how,
            grace=grace,
            as_of=as_of,
            broadcast=broadcast,
            on=on,
            select=select,
            prefixes=prefixes,
        )
        return type(self)(**fields)

    def late(self, column: str = "late") -> Self:
        """Emit late rows as results of their commit or batch, exactly once like all results.

        Every result has one more column, `column`: None in results of windows; in a late row all columns of the input
        row, before `map` and `filter` (a dict; a struct on Spark), while the window bounds and the aggregates are None
        and the key columns are the row's. A row is late when no window accepts it; a row that is too late for only some
        of its windows is not emitted, and these windows are counted (`Engine.dropped`). Call `late` after `aggregate`
        and `hold`; late rows are never held back. The state does not depend on this step, so it may be added or
        left out at every start. Raises ValueError for a wrong place in the topology, and for a name that is taken.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count()).late("too_late")
        >>> rows = [{"user": "ann", "ts": 90_000}, {"user": "bob", "ts": 0}]
        >>> [row["too_late"] for row in counts.run(rows, commit_rows=1)]
        [None, {'user': 'bob', 'ts': 0}]
        """
        if self.joined is not None:
            return replace(self, joined=replace(self.joined, late=_late_name(column)))
        if self.aggregates is None:
            raise ValueError("late: found without an aggregate, expected aggregate(...) before it")
        if isinstance(self.windows, Forever):
            raise ValueError("late: found without windows, expected windowed_by(...), because no row is late otherwise")
        if self.late_column is not None or self.errors_column is not None:
            raise ValueError("late: found a second time or beside errors, expected one of them, once")
        if _late_name(column) in (*self.key, *RESERVED, *self.aggregates.names):
            raise ValueError(f"late: column: {column!r} is the name of another column of the results (choose another)")
        return replace(self, late_column=column)

    def process(
        self,
        function: Callable[..., Any],
        output_schema: Any = None,
        stores: Sequence[StoreDeclaration] = (),
        *,
        on_timer: Callable[..., Any] | None = None,
        clock_ticks: Duration | None = None,
    ) -> Self:
        """Run custom logic on every row, with its own stores; `stores` are made by
        `hybridstore.key_value_store(...)` and its kin. A store has the keys that the function gives it: it is not
        divided by the key of the row.

        `function(row, stores)` gets a row (a dict) and the stores by name, and returns an iterable of output rows
        (dicts) or None. A class is made once per shard with the stores, its `process(row)` is called, and, if it has
        one, its `finish()` at the end of each commit, which may return rows too. Before each row the stores are at the
        stream time of all rows so far, this row among them, so that old records have expired; `stores.time` is the
        row's own time (ms), and `stores.timers.now` that stream time. No row is late for `process`: a function that
        emits final results compares the two.
        `output_schema` names the output columns and their types: DDL text such as "k string, n bigint", a StructType or
        an Arrow schema; in plain Python it may be None. Each row must have exactly these columns, with values of these
        types, in plain Python too.

        `on_timer(timer, stores)`, of a class the method `on_timer(timer)`, is called with each `hybridstore.Timer` that
        fires, and may return rows too. Timers belong to a key, and are part of the state: a class keeps `stores` and
        asks for `stores.timers` in its methods, not in `__init__`; a store may be kept from `__init__` on.
        `stores.timers` sets, lists and deletes those of the key in hand by event time, which fire when stream time (or
        the watermark) reaches them; without `on_timer` it raises ValueError.
        `clock_ticks` allows timers by the clock as well, `stores.clock_timers`, which fire at the end of the first
        commit whose clock has reached them. On Spark a batch is made as often as `clock_ticks`, with or without rows,
        and its time, which a replay repeats, is the clock.

        Raises ValueError for a schema that cannot be read, and TypeError for a wrong function, store or schema.

        >>> def first_visits(row, stores):
        ...     if stores["seen"].put_if_absent(row["user"], 1) is None:
        ...         yield {"user": row["user"]}
        >>> clicks = hs.stream(key="user", timestamp="ts")
        >>> firsts = clicks.process(first_visits, "user string", [hs.key_value_store("seen")])
        >>> [row["user"] for row in firsts.run([{"user": name, "ts": 0} for name in ("ann", "bob", "ann")])]
        ['ann', 'bob']

        A class with a timer: the clicks of a user, one minute behind the first of them.

        >>> class Clicks:
        ...     def __init__(self, stores):
        ...         self.stores, self.counts = stores, stores["counts"]
        ...     def process(self, row):
        ...         if (count := self.counts.get(row["user"], 0)) == 0:
        ...             self.stores.timers.set(row["ts"] + 60_000)
        ...         self.counts[row["user"]] = count + 1
        ...     def on_timer(self, timer):
        ...         yield {"user": timer.key, "clicks": self.counts.delete(timer.key)}
        >>> minutes = clicks.process(Clicks, stores=[hs.key_value_store("counts")])
        >>> rows = [{"user": "ann", "ts": 0}, {"user": "ann", "ts": 9_000}, {"user": "bob", "ts": 60_000}]
        >>> [dict(row) for row in minutes.run(rows)]
        [{'user': 'ann', 'clicks': 2}]
        """
        if not callable(function):
            raise TypeError(f"process: function: found {type(function).__name__}, expected a function or class")
        if self.windows is not None:
            raise ValueError("process: found after windowed_by or aggregate, expected instead of it")
        if isinstance(stores, StoreDeclaration):
            raise TypeError(f"process: stores: found the store {stores.name!r} alone, expected a list of stores")
        declared: dict[str, StoreDeclaration] = {}
        for store in stores:
            if not isinstance(store, StoreDeclaration):
                raise TypeError(
                    f"process: stores: found {type(store).__name__}, expected key_value_store(...), window_store(...), "
                    "session_store(...), sliding_store(...) or suppression_store(...)"
                )
            if store.name in declared:
                raise ValueError(f"process: stores: found {store.name!r} twice, expected each name once")
            declared[store.name] = store
        columns_of_schema(output_schema)
        if on_timer is not None and not callable(on_timer):
            raise TypeError(f"process: on_timer: found {type(on_timer).__name__}, expected a function")
        if on_timer is not None and isinstance(function, type):
            raise TypeError("process: on_timer: found with a class, expected a method of this name")
        tick_ms = None if clock_ticks is None else duration_ms(clock_ticks, "process: clock_ticks")
        custom = Custom(function, output_schema, declared, on_timer, tick_ms)
        if tick_ms is not None and not custom.timed:
            raise ValueError("process: clock_ticks: found without on_timer, expected with it")
        if custom.timed and (reserved := {"timers:due", "timers:key", "clock:due", "clock:key"} & declared.keys()):
            raise ValueError(f"process: stores: {sorted(reserved)[0]!r} is a store of timers (choose another name)")
        return replace(self, custom=custom)

    def errors(self, column: str = "errors") -> Self:
        """Emit rows whose processing raises as results of their commit or batch, exactly once like all results.

        By default a row whose `map`, `filter`, `where`, `process` or aggregator raises ends the job, and again at every
        start. With this step every result has one more column, `column`: None in other results, and for such a row a
        dict (on Spark a struct) of the `error`, its class and its message, and the `row` as it arrived. The key columns
        are the row's, None if a `map` or `filter` raised; the others are None. What `process` has put before it raised
        stays. In sliding windows only values that an aggregator cannot add to an empty aggregate are emitted. Call
        `errors` after `aggregate`, `hold` or `process`; not together with `late`. The state does not depend on this
        step. Raises ValueError for a wrong place in the topology, and for a name that is taken.

        >>> most = hs.stream(key="user", timestamp="ts").aggregate(emit="commit", n=hs.Max("n")).errors()
        >>> for row in most.run([{"user": "ann", "ts": 0, "n": 7}, {"user": "ann", "ts": 1, "n": "x"}]):
        ...     print(row["n"], row["errors"] and row["errors"]["row"])
        7 None
        None {'user': 'ann', 'ts': 1, 'n': 'x'}
        """
        if self.aggregates is None and self.custom is None:
            raise ValueError("errors: found without an aggregate or process, expected one of them before it")
        if self.joined is not None:
            raise ValueError("errors: found with join, expected a topology of one input")
        if self.late_column is not None or self.errors_column is not None:
            raise ValueError("errors: found a second time or beside late, expected one of them, once")
        if type(column) is not str or not column:
            raise ValueError(f"errors: column: found {column!r}, expected a name")
        names = () if self.aggregates is None else self.aggregates.names
        of_rows = [] if self.custom is None else [part.name for part in columns_of_schema(self.custom.schema) or ()]
        if column in (*self.key, *RESERVED, *names, *of_rows):
            raise ValueError(f"errors: column: {column!r} is the name of another column of the results")
        return replace(self, errors_column=column)

    def drop_duplicates(self, on: str | Sequence[str] | None = None, *, within: Duration) -> Self:
        """Pass rows on without duplicates: rows whose columns `on` (None: the key) were seen in a row within the time.

        With `on`, these columns become the key. By a watermark (`apply(..., time="watermark")`) the rows are those of
        Spark's `dropDuplicatesWithinWatermark` with a watermark delay of `within`: a row at or before the watermark is
        late, and a key is forgotten when the watermark has reached the time of its first row and `within`. By stream
        time the watermark is the stream time less `within`. Late rows are left out and counted (`Engine.dropped`, on
        Spark `hybridstore.spark.metrics`). Rows with a null in `on` are left out, too, unless the stream has `key=on`
        and `null_keys="group"`. Raises ValueError for an invalid duration or after `windowed_by`, `aggregate` or
        `process`, and TypeError for other names.

        >>> clicks = hs.stream(timestamp="ts").drop_duplicates("id", within="1 minute")
        >>> rows = [{"id": 7, "ts": 0}, {"id": 8, "ts": 500}, {"id": 7, "ts": 900}, {"id": 7, "ts": 200_000}]
        >>> [(row["id"], row["ts"]) for row in clicks.run(rows)]
        [(7, 0), (8, 500), (7, 200000)]
        """
        within_ms = duration_ms(within, "drop_duplicates: within")
        keyed = self if on is None else replace(self, key=key_columns(on))
        if not keyed.key:
            raise ValueError("drop_duplicates: on: found None without a key, expected the columns of a duplicate")
        function = WithoutDuplicates(within_ms)
        store = declared_stores.window_store(SEEN, retention=function.retention_ms)
        return keyed.process(function, self.mapped_schema, [store])


def _late_name(column: object) -> str:
    if type(column) is not str or not column:
        raise ValueError(f"late: column: found {column!r}, expected a name")
    return column


def _retention_ms(windows: Windows, retention: Duration | None) -> int | None:
    if retention is None:
        return None
    asked, needed = duration_ms(retention, "windowed_by: retention"), windows.needed_retention_ms
    if isinstance(windows, SlidingWindows) and windows.flavour == "kip450":
        raise ValueError(
            "windowed_by: retention: found with SlidingWindows, which keep the records of one window and no older ones "
            "(leave it out)"
        )
    if asked < needed:
        raise ValueError(
            f"windowed_by: retention: found {asked} ms, expected {needed} ms or more, the time that windows may change"
        )
    return asked
