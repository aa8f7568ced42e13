"""Topology: what a user declares once, to run in plain Python or on Spark.

steps            see `steps.Steps`; `print(topology)` draws them, with the stores that they need
open, run        in plain Python
apply            on Spark
compare          with an existing state; nothing is written
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..state.opening import Durability
from ..topology.duplicates import WithoutDuplicates
from ..topology.joins.declared import input_name, names_of
from ..topology.plan import NullKeys, Plan
from .steps import Steps, check_column, key_columns

if TYPE_CHECKING:
    from os import PathLike

    from ..progress import OnProgress
    from ..state.changes import Difference
    from ..state.policy import CheckpointPolicy
    from ..topology.engine import Engine
    from ..topology.run import ResultRows


@dataclass(frozen=True, slots=True, repr=False)
class Topology(Steps):
    """A declared computation. Made by `hybridstore.stream`; see the methods for the steps.

    >>> views = hs.stream(key="user", timestamp="ts").filter(lambda row: row["status"] == 200)
    >>> print(views.windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count()))
    stream      key user; time ts
    └─ filter      <lambda>
    └─ windowed_by TumblingWindows(size='1 minute', grace=None)
    └─ aggregate   n=Count(); emit record
    └─ stores      windows (window)
    """

    # --- going on with a state ----------------------------------------------------------------------------------

    def compare(
        self, location: str | PathLike[str], *, operator: str | None = None, allow: str | Iterable[str] | None = None
    ) -> list[Difference]:
        """Return the changes that a start with this topology would make in the state at `location`: [] if nothing
        differs.

        `location` is that of `open` or `run`, or a Spark query's checkpointLocation, with the name of the
        `operator` if it has several. A `hybridstore.Difference` says what differs (`what`), if it is "taken", needs
        "consent" or is "refused" (`verdict`), the effect on the state or what to do (`note`), and the words of consent
        (`consent`). `allow` may declare renamings. Nothing is written; beside a writer the newest commit is compared.
        Raises ForeignFileError without a state, and the errors of reading it. O(description), and O(records) of a
        store with a shorter retention.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> with minutes.aggregate(n=hs.Count()).open("state") as engine:
        ...     engine.commit()
        []
        >>> minutes.aggregate(n=hs.Count()).compare("state")
        []
        >>> [change.verdict for change in minutes.aggregate(n=hs.Count(), last=hs.Last("page")).compare("state")]
        ['consent']
        """
        from ..state.changes import consents
        from .preview import preview

        def of_operator() -> tuple[dict[str, Any], Any]:
            from ..spark.preview import operator_program

            return operator_program(location, operator)

        return preview(self.complete(), location, of_operator, consents(allow))

    # --- running ----------------------------------------------------------------------------------------------

    def open(
        self,
        location: str | PathLike[str],
        *,
        shards: int = 1,
        durability: Durability = "commit",
        checkpoints: CheckpointPolicy | None = None,
        allow: str | Iterable[str] | None = None,
        memory_limit: int | None = None,
    ) -> Engine:
        """Open the topology on a state directory for stepping: process, commit, look. See
        `hybridstore.topology.engine.Engine`.

        shards  parts of the key space, each with a state of its own; fixed with the first opening

        durability and memory_limit are those of `hybridstore.open`; location, checkpoints and
        allow those of `run`.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> with minutes.aggregate(n=hs.Count()).open("state") as engine:
        ...     engine.process({"user": "ann", "ts": 500})
        [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 1}]
        """
        from ..topology.engine import Engine

        return Engine(
            self.complete(),
            location,
            shards=shards,
            durability=durability,
            checkpoints=checkpoints,
            allow=allow,
            memory_limit=memory_limit,
        )

    def run(
        self,
        rows: Iterable[Any] | Callable[[Any], Iterable[Any]],
        location: str | PathLike[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        shards: int = 1,
        position: str | Callable[[Any], Any] | None = None,
        commit_rows: int = 10_000,
        commit_seconds: float | None = None,
        checkpoints: CheckpointPolicy | None = None,
        progress: OnProgress | bool | None = None,
        metrics_port: int | None = None,
        flush: bool = False,
        replay_last: bool = False,
        allow: str | Iterable[str] | None = None,
        memory_limit: int | None = None,
    ) -> ResultRows:
        """Run over rows and yield results.

        Crash-safe and resumable. Rows are dicts, named tuples, tuples with `columns`, Arrow record batches, one Arrow
        table, or one pandas DataFrame. Or a function, for a source that can seek: it is called once, with the committed
        position (None: none), and returns the rows behind it; it needs `position`. A join takes a dict of its inputs.

        columns         the names of the columns, for rows that are plain tuples or lists
        location        where the state is: a directory, or a place on an object store (`s3://bucket/path`); None keeps
                        the state for this run only, in a temporary directory
        shards          parts of the key space, as for `open`
        commit_rows     rows per commit at most; an Arrow batch of fewer rows is a commit by itself. 1: rows are
                        processed as they arrive
        commit_seconds  a commit takes no further row when taking rows, and processing them at the speed of the commit
                        before, come to this time; None: no bound. Arrow batches are not cut for it
        position        the position of a row in the source: a column or a function of the row (of Arrow batches: a
                        column), which rises with every row, also from one run to the next. None: the count of rows;
                        every run then gets the source from its beginning. The last position is committed with the state
                        (`hybridstore.inspect(location).position`)
        checkpoints     when to checkpoint, as for `hybridstore.open`; None: aim at a replay of 25 ms at a restart
        progress        True: a line on standard error with rows, rows a second, event time and late rows, on a terminal
                        twice a second, elsewhere every ten seconds; or a function, called as
                        progress(phase, done, total) after every commit: "commits", its number, and 0, because nobody
                        knows how many will come
        metrics_port    serve the run's numbers as OpenMetrics text at http://127.0.0.1:PORT/metrics while it runs (0: a
                        free port, which the log names)
        flush           at the end of the source, emit the results held back (`emit="close"`, `hold`): begun windows
                        close, and later rows are late for them; windows that begin later behave as usual
        replay_last     yield the results of the last two commits with results again, also after a clean end
        allow           consent to the losses of a changed topology, in the words of the error that asks for it; a
                        restarted job may keep them
        memory_limit    bytes that the stores of this process may hold, an estimate, as for `hybridstore.open`

        Within a commit and a shard, rows are processed in canonical order: by time, then key, then values. A row that
        arrives behind a later row of its commit is in order, so which rows are late depends on where commits are cut.

        `run(...).tables()` yields the number and the results of each commit as an Arrow table, in place of rows.

        A result carries the number of its commit (`row.commit`). Committed rows are skipped. After a crash, or when the
        consumer stopped before the end, the results of the newest two commits with results are yielded again. So a
        consumer that skips the commits that it already has sees each result exactly once, even if it stores a commit's
        results only when the first result of the next commit arrives. After the consumer has reached the end of the
        source nothing is yielded again, unless `replay_last` is set, for a consumer that stores the last results later.
        Late rows are dropped, unless the topology emits them (`late`), and their number is logged at the end (logger
        "hybridstore"). More in docs/topologies.md.

        Raises RestoreError, with nothing changed, when the source ends before the committed position, or has another
        row at that position; ValueError for positions that do not rise, for a function as source without `position`,
        and for `flush` with `process`.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count())
        >>> rows = [{"user": "ann", "ts": 0}, {"user": "ann", "ts": 500}]
        >>> [row["n"] for row in counts.run(rows, "state")]
        [1, 2]
        >>> rows.append({"user": "ann", "ts": 900})  # the source has grown
        >>> [row["n"] for row in counts.run(rows, "state")]  # the first two rows are skipped
        [3]
        >>> def behind(position):
        ...     return rows if position is None else [row for row in rows if row["ts"] > position]
        >>> [row["n"] for row in counts.run(behind, "by-time", position="ts")]
        [1, 2, 3]
        """
        from ..topology.run import ResultRows, run

        tables = run(
            self.complete(),
            rows,
            location,
            columns=columns,
            shards=shards,
            position=position,
            commit_rows=commit_rows,
            commit_seconds=commit_seconds,
            checkpoints=checkpoints,
            progress=progress,
            metrics_port=metrics_port,
            flush=flush,
            replay_last=replay_last,
            allow=allow,
            memory_limit=memory_limit,
        )
        return ResultRows(tables)

    def apply(
        self,
        df: Any,
        name: str,
        location: str,
        *,
        shards: int | None = None,
        time: Literal["stream", "watermark"] = "stream",
        event_time: str | None = None,
        types: dict[str, Any] | None = None,
        checkpoints: CheckpointPolicy | None = None,
        placement: Literal["auto", "worker", "holder"] = "auto",
        state_location: str | None = None,
        tasks: int | None = None,
        allow: str | Iterable[str] | None = None,
        memory_limit: int | None = None,
    ) -> Any:
        """Run on Spark: a streaming DataFrame in, a streaming DataFrame out. See docs/spark.md.

        A join takes its inputs by name: `apply({"orders": orders, "payments": payments}, ...)`; with `time="watermark"`
        each has a `withWatermark` of its own.

        name        names the operator's state under the location; one per operator of the query
        location    the query's checkpointLocation: a path that every worker can write as files, or a URL of an object
                    store (`s3a://bucket/path`; needs `pip install 'hybridstore[cloud]'` on driver and workers)
        shards      parts of the key space, fixed by the first batch (None: as many as the state has; for a new state
                    twice as many as tasks can run at once, 4 to 64, or 16 for a Spark Connect client that cannot know)
        tasks       Spark tasks that share the shards, 1 to `shards` (None: as many as shards); the number may change at
                    every start without a change of state or results
        time        "stream": stream time per shard, by the records; "watermark": the query's watermark, and nothing
                    else
        event_time  the column of the results that carries the watermark to Spark's operators behind, with
                    time="watermark": a new column with the last microsecond of the window (Spark's `window_time`), of
                    a join when a row became certain (docs/joins.md), or a timestamp of `process`, which must be later
                    than the watermark of the batch before
        types       the types of aggregates by name, as Spark's DDL text or Arrow types, if they do not follow from a
                    built-in aggregator
        checkpoints  when to checkpoint; None: so that a restart takes under half a second, with an aim of 25 ms, and
                    every 100 batches
        placement   where shards are kept in memory: in Spark's workers, in holder processes, or in the faster of both
                    ("auto")
        state_location  where the state is instead of below `location`: a path or URL of its own, for this query alone
        allow       consent to the losses of a changed topology, in the words of the error that asks for it
        memory_limit  bytes that the shards of one process may hold in memory, an estimate; beyond the limit the least
                      recently used shards are freed (None: a share of the executor's overhead, docs/spark.md, "Memory";
                      in local mode no limit)

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count(), emit="commit")
        >>> results = counts.apply(events, "counts", location=location, shards=1)
        >>> query = results.writeStream.format("memory").queryName("counts").option("checkpointLocation", location)
        >>> query.trigger(availableNow=True).start().awaitTermination()
        >>> spark.table("counts").collect()
        [Row(user='ann', window_start=0, window_end=60000, n=2)]
        """
        from ..spark.operator import apply_program, arrow_type
        from ..spark.program import TopologyProgram
        from ..spark.shard.provider import POLICY
        from ..spark.steps import passed_through, stepped
        from ..state.changes import consents

        plan: Plan = self.complete()
        if plan.passes:
            return passed_through(df, plan, "apply", keyed=True)
        program = TopologyProgram
        if plan.joined is not None:
            from ..spark.joined import JoinProgram, union

            program = JoinProgram
            df, plan = union(plan, df)
        else:
            df, plan = stepped(df, plan)
            if plan.custom is not None and isinstance(plan.custom.function, WithoutDuplicates):
                plan = replace(plan, custom=replace(plan.custom, schema=df.schema))
        return apply_program(
            df,
            program(
                plan,
                {name: arrow_type(kind) for name, kind in (types or {}).items()},
                clocked=time == "watermark",
                allow=consents(allow),
                event_time=event_time,
            ),
            name=name,
            location=location,
            shards=shards,
            time=time,
            checkpoints=checkpoints or POLICY,
            placement=placement,
            state_location=state_location,
            tasks=tasks,
            allow=allow,
            memory_limit=memory_limit,
        )


def stream(
    *,
    key: str | Sequence[str] | None = None,
    timestamp: str,
    null_keys: NullKeys = "skip",
    name: str | None = None,
    columns: Sequence[str] | None = None,
) -> Topology:
    """Begin a topology: rows are grouped by the column `key` (or several, as a tuple; None: all rows are one group) and
    timed by the column `timestamp`.

    Timestamps are integer milliseconds, datetimes (without a zone: UTC) or text in ISO 8601. `null_keys` says what
    becomes of rows whose key, or a part of it, is null or not a number: "skip" leaves them out and counts them; "group"
    groups them like others, each null and each not a number as one value, as GROUP BY of SQL does. Keys are then stored
    as JSON text (`null`, `"a"`, `["a",null]`), and a state keeps to its `null_keys`. `name` and `columns` are for an
    input of a join: its name, and the columns that are kept besides key and timestamp (None: all). Raises TypeError or
    ValueError for other names.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> counts = minutes.aggregate(n=hs.Count())
    >>> for row in counts.run([{"user": "ann", "ts": 0}, {"user": "ann", "ts": 500}]):
    ...     print(row)
    {'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 1}
    {'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 2}
    """
    called = None if name is None else input_name("stream", name)
    if key is None and null_keys == "group":
        raise ValueError(
            'stream: null_keys: found "group" without a key, expected "skip", because no key is null (before '
            "drop_duplicates: key=, the same columns as on=)"
        )
    keys = key_columns(key)
    check_column("timestamp", timestamp)
    if null_keys not in get_args(NullKeys):
        raise ValueError(f'stream: null_keys: found {null_keys!r}, expected "skip" or "group"')
    return Topology(
        keys,
        timestamp,
        null_keys=null_keys,
        name=called,
        kept=None if columns is None else names_of("stream: columns", columns),
    )
