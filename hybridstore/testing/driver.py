"""Driver: a topology in a test, a commit at a time, without Spark: the engine and the files are those of production."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from changelog.errors import ForeignFileError

from ..clock import NO_TIME, Duration, Watermark, duration_ms, time_ms
from ..rescaling.api import rescale
from ..topologies.declare import Topology
from ..topology.batch import LeftOut
from ..topology.custom import CustomLogic
from ..topology.engine import Engine
from ..topology.joins.joining import Joining
from .comparing import Program
from .ways import by_the_key

# The column in which late rows arrive, where the topology has none of its own.
_LATE: Final = "late rows of the driver"
Rows = list[dict[str, Any]]


class Driver:
    """A topology that a test drives: rows in, time on, results, late rows and stores out. A context manager.

    topology  or a function that returns one, which is called for every start
    time    "stream": the rows move time; "watermark": only `advance` does, as on Spark with time="watermark"
    delay   with "watermark": behind each `push` the watermark follows the newest row by this duration, and a batch
            without rows closes what is due, as Spark does
    shards  parts of the key space
    debug   raise `hybridstore.errors.ValueChangedInPlaceError` at the commit for a value changed in place after a put

    Every call that gives rows or time is a commit. The state is in a temporary directory, in the form that it has in
    production. A program that raises is restarted from the last commit before the error reaches the test. Raises
    ValueError for `delay` without a watermark. A test takes a few milliseconds.

    >>> from hybridstore import testing as ht
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> with ht.Driver(minutes.aggregate(emit="close", n=hs.Count())) as driver:
    ...     driver.push({"user": "ann", "ts": 500}, {"user": "ann", "ts": 900})
    ...     driver.advance(60_000)
    ...     driver.push({"user": "bob", "ts": 7})
    ...     driver.late
    []
    [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 2}]
    []
    [{'user': 'bob', 'ts': 7}]
    """

    def __init__(
        self,
        topology: Program,
        *,
        time: Literal["stream", "watermark"] = "stream",
        delay: Duration | None = None,
        shards: int = 1,
        debug: bool = False,
    ) -> None:
        if time not in ("stream", "watermark"):
            raise ValueError(f'Driver: time: found {time!r}, expected "stream" or "watermark"')
        if delay is not None and time != "watermark":
            raise ValueError('Driver: delay: found with time="stream", expected with time="watermark"')
        self.results: Rows = []
        """All results so far; late rows are among them only where the topology emits them (`late`)."""
        self.late: list[Any] = []
        """All late rows so far; empty for topologies of `process`, which decide what is late themselves."""
        self.shards = shards
        """Parts of the key space; `rescale` changes it."""
        self.dropped = 0
        """How many late rows were dropped so far; a row counts once for each window that had closed."""
        self.left_out = LeftOut()
        """How many rows so far had no key, and how many no time."""
        self._program = topology
        self._clocked, self._debug = time == "watermark", debug
        self._delay_ms = None if delay is None else duration_ms(delay, "Driver: delay", zero=True)
        self._watermark = Watermark(0, 0)
        self._newest = NO_TIME
        self._clock_ms = 0
        self._rows = 0
        self._folder = tempfile.TemporaryDirectory(prefix="hybridstore-", ignore_cleanup_errors=True)
        self.state = Path(self._folder.name, "state")
        """The directory of the state, for `hybridstore.inspect` and `hybridstore.open(at="newest")`."""
        self._open()

    def _open(self) -> None:
        program = self._program
        self._topology = _with_late((program if isinstance(program, Topology) else program()).complete())
        joined = self._topology.joined
        self._late_column = self._topology.late_column if joined is None else joined.late
        self._engine = Engine(
            self._topology, self.state, shards=self.shards, durability="os", _clocked=self._clocked, _debug=self._debug
        )

    # --- rows and time ------------------------------------------------------------------------------------------

    def push(self, *rows: Any) -> Rows:
        """Process rows as one commit and return its results: dicts, or for a join one dict of rows by the names of the
        inputs. In a commit rows are in order of time.

        Raises what the program raises; the commit has then not happened.
        """
        given: Any = list(rows)
        if self._topology.joined is not None:
            if len(rows) != 1 or not isinstance(rows[0], Mapping):
                raise TypeError(
                    "Driver.push: expected one dict of rows by the names of the inputs, because it is a join"
                )
            given = rows[0]
        results = self._commit(given)
        if self._delay_ms is not None and self._newest - self._delay_ms > self._watermark.now_ms:
            results += self.advance(self._newest - self._delay_ms)
        return results

    def advance(self, to: Any) -> Rows:
        """Move stream time, or the watermark, without a row, and return the results that are due then.

        `to` is a time: ms, a datetime or ISO 8601. Time never moves back. In production only rows move stream time.
        """
        moment = to if type(to) is int else time_ms(to, "advance")
        if self._clocked:
            self._watermark = Watermark(self._watermark.late_ms, max(self._watermark.now_ms, moment))
            return self._commit([])
        return self._commit([], moment)

    def advance_clock(self, to: int) -> Rows:
        """Move the clock to a time (ms), and return the results of timers by the clock. It begins at 0."""
        self._clock_ms = max(self._clock_ms, to)
        return self._commit([])

    def flush(self) -> Rows:
        """End the stream: begun windows close, and held results come."""
        try:
            tables = [self._engine.flush_shard(shard) for shard in range(self.shards)]
            return self._taken(tables)
        except BaseException:
            self.restart()
            raise

    def _commit(self, rows: Any, stream_time: int | None = None) -> Rows:
        engine = self._engine
        before, unkeyed = engine.dropped, engine.left_out
        try:
            tables = []
            for shard, part in enumerate(engine.split_batch(rows, self._rows)):
                run = engine._runs[shard]
                if isinstance(run.logic, CustomLogic):
                    run.logic.at_clock(self._clock_ms)
                self._newest = max(self._newest, max(part.times, default=NO_TIME))
                if stream_time is not None and isinstance(run.logic, Joining):
                    tables.append(run.table(run.logic.advance(stream_time), engine.times))
                    continue
                clock = self._watermark if self._clocked else None
                if stream_time is not None:
                    clock = Watermark(stream_time, stream_time)
                tables.append(engine.table_of(shard, part, clock))
            results = self._taken(tables)
        except BaseException:
            self.restart()
            raise
        self._rows += len(rows)
        self._watermark = Watermark(self._watermark.now_ms, self._watermark.now_ms)
        self.dropped += engine.dropped - before
        news = LeftOut(*(now - old for now, old in zip(engine.left_out, unkeyed, strict=True)))
        self.left_out = self.left_out.and_also(news)
        return results

    def _taken(self, tables: list[Any]) -> Rows:
        """Commit every shard, and return the results; late rows are kept apart."""
        for state in self._engine.states:
            state.commit()
        results: Rows = []
        for row in (row for table in tables for row in table.rows(dict)):
            late = row.get(self._late_column)
            if late is not None:
                self.late.append(late)
            if self._late_column == _LATE:
                row.pop(_LATE, None)
            if late is None or self._late_column != _LATE:
                results.append(row)
        self.results += results
        return results

    # --- looks --------------------------------------------------------------------------------------------------

    def store(self, name: str, shard: int = 0) -> Any:
        """Return a store of `process` by its name, of one shard, to read. Raises KeyError, TypeError for windows, and
        ValueError for a shard that is not there.

        >>> from hybridstore import testing as ht
        >>> def count(row, stores):
        ...     stores["seen"].put(row["user"], (stores["seen"].get(row["user"]) or 0) + 1)
        >>> counts = hs.stream(key="user", timestamp="ts").process(count, stores=[hs.key_value_store("seen")])
        >>> with ht.Driver(counts) as driver:
        ...     results = driver.push({"user": "ann", "ts": 1}, {"user": "ann", "ts": 2})
        ...     driver.store("seen").get("ann")
        2
        """
        if not 0 <= shard < self.shards:
            raise ValueError(f"Driver.store: shard: found {shard}, expected 0 to {self.shards - 1}")
        logic = self._engine._runs[shard].logic
        if not isinstance(logic, CustomLogic):
            raise TypeError("Driver.store: found a topology of windows, expected process (windows() reads windows)")
        return logic.stores[name]

    def windows(self) -> Rows:
        """Return the windows that are stored now, as rows."""
        return self._engine.windows()

    @property
    def watermark(self) -> int:
        """The watermark (ms), with time="watermark"."""
        return self._watermark.now_ms

    # --- accidents ----------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """End the program and start it again from the last commit: what a program keeps beside its stores is lost,
        unless it is global.
        """
        self._engine.close()
        self._open()

    def rescale(self, shards: int, routes: Mapping[str, Any] | None = None) -> None:
        """Stop the program, share its state out to another number of shards, and start it again. `routes` as for
        `hybridstore.rescale`; stores of `process` have the topology's keys if nothing else is said.
        """
        self._engine.close()
        rescale(self.state, shards=shards, routes={**by_the_key(self._topology), **(routes or {})})
        self.shards = shards
        self._open()

    def close(self) -> None:
        """End the program and remove its state."""
        self._engine.close()
        # at the end of the interpreter the folder may be removed before
        with suppress(ForeignFileError):
            self._folder.cleanup()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _with_late(topology: Topology) -> Topology:
    """Return a topology that hands out its late rows: its state is the same."""
    joined = topology.joined
    if joined is not None:
        return topology if joined.late is not None else replace(topology, joined=replace(joined, late=_LATE))
    windowed = topology.aggregates is not None and topology.bounds and topology.errors_column is None
    return replace(topology, late_column=_LATE) if windowed and topology.late_column is None else topology
