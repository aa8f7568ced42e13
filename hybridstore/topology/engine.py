"""The plain-Python engine: a topology on state directories, one per shard.

`run` drives it over rows, commit by commit.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Final

from changelog.bucket import Bucket
from changelog.identity import ID_BYTES
from changelog.storage import LocalStorage, Storage, storage_at
from changelog.turn import Turn, entry_of_all
from recovery.errors import ProgramMismatchError, RestoreError

from ..clock import Watermark
from ..collector import collector_held
from ..shards import shard_of
from ..state.arguments import check
from ..state.changes import announce, consents, judge
from ..state.directory import State, open_store
from ..state.generations import Generation, begin_shards, current_shards, existing_shards, place_below
from ..state.numbers import TOTALS, added, row_of
from ..state.opening import TUNING, Durability, Tuning, as_documented
from ..state.policy import CheckpointPolicy
from .aggregating import Aggregating
from .batch import KeyKinds, LeftOut, Records, absent_columns, from_arrow, from_rows, is_arrow, without_nulls
from .columns.why import Why, never
from .joins.rows import Sides, from_tagged, tagged
from .joins.spec import RIGHT
from .null_keys import stored_key
from .plan import Plan
from .results import ResultTable
from .run_state import Keeping, RunState
from .shard_run import ShardRun
from .times import TO_TIME, TimeForm, ToTime, arrow_to_time, form_of, same

_LOG: Final = logging.getLogger("hybridstore")
# A restart then replays only a few commits. Checkpoints cost a topology so much less than rows that this aim is cheap.
POLICY: Final = CheckpointPolicy(aim=timedelta(milliseconds=25))


class Engine:
    """A topology that is open on its state: `process(row) -> rows`, `commit()`, and queries. A context manager.

    With one shard `location` is the state directory itself, with more shards it has one directory per shard, named by
    number. The first commit converts the state of another topology, if possible. The arguments are those of
    `Topology.open`. Raises ProgramMismatchError, with the differences, when the state cannot be converted or has
    another number of shards.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> with minutes.aggregate(n=hs.Count()).open("state", shards=4) as engine:
    ...     results = engine.process({"user": "ann", "ts": 500}) + engine.commit()
    >>> [(row["user"], row["n"]) for row in results]
    [('ann', 1)]
    """

    @as_documented
    def __init__(
        self,
        topology: Plan,
        location: str | PathLike[str],
        *,
        shards: int = 1,
        durability: Durability = "commit",
        checkpoints: CheckpointPolicy | None = None,
        allow: str | Iterable[str] | None = None,
        memory_limit: int | None = None,
        _clocked: bool = False,
        _debug: bool = False,
        _tuning: Tuning = TUNING,
    ) -> None:
        check(shards=shards)
        self.topology = topology
        place = storage_at(location)
        self.location: Path | str = place.root if isinstance(place, LocalStorage) else place.url
        """Where the state is: a directory, or the url of a place on an object store."""
        self._turn = Turn()
        self._turn.where, self._turn.bound = self.location, True
        self.shards = shards
        self._to_time: ToTime = same
        self._kinds = KeyKinds(topology)
        self._checked: Any = None  # the last Arrow schema that was checked; True behind a first commit of rows
        self.left_out = LeftOut()
        """Rows left out since the engine was opened: how many have no key, and how many no time."""
        # rows in and out of the commit in progress, of each shard
        self._stepped = [[0, 0] for _ in range(shards)]
        self._numbers = [dict.fromkeys(TOTALS, 0) for _ in range(shards)]
        self._last: list[dict[str, Any]] = [{} for _ in range(shards)]
        self._servers: list[Any] = []
        # batches that could not be split by column, and why
        self._unsplit: Counter[Why] = Counter()
        self.states: list[State] = []
        """The open state of each shard."""
        self._runs: list[ShardRun] = []
        try:
            opening = dict(durability=durability, checkpoints=checkpoints or POLICY, memory_limit=memory_limit)
            self._open_shards(location, place, debug=_debug, _tuning=_tuning, **opening)
            words = consents(allow)
            for opened in self.states:
                run = ShardRun(topology, opened.group, clocked=_clocked, where=opened.path, allow=words)
                self._runs.append(run)
            self._check_consent(words)
        except BaseException:
            self.close()
            raise
        self._hand_over()

    def _open_shards(self, location: str | PathLike[str], place: Storage, **opening: Any) -> None:
        """Open the state of each shard. Existing ones are opened first: a crash while shards were made leaves some of
        them, empty. Raises RestoreError for a shard that is missing beside others with commits.
        """
        there = self._generation(place)
        # a bucket's shards have its settings
        above = location if isinstance(location, Bucket) else self.location
        paths = {place_below(above, there.folder(shard)): shard for shard in range(self.shards)}
        existing = existing_shards(place, there)
        present = [path for path, shard in paths.items() if shard in existing]
        ordered = (*present, *(path for path in paths if path not in present))
        for path in ordered:
            if len(self.states) == len(present) and any(opened.stores for opened in self.states):
                raise RestoreError(
                    f"{path}: found no shard {paths[path]} of {self.shards}, though others have commits: committed "
                    "data is lost (restore the folder from a copy)"
                )
            self.states.append(open_store(path, _identity=there.identity(paths[path]), **opening))
        self.states = [self.states[ordered.index(path)] for path in paths]

    def _generation(self, place: Storage) -> Generation:
        """Return the shards of the state, which are described first if the state is new and has several. Raises
        ProgramMismatchError, and StateDirectoryError where an erase has not ended.
        """
        there = current_shards(place, writing=True)
        if there is None:
            new = self.shards > 1
            there = begin_shards(place, self.shards, os.urandom(ID_BYTES)) if new else Generation(0, 0, 1)
        if there.shards != self.shards:
            raise self._other_number(there.shards)
        return there

    def _other_number(self, stored: int) -> ProgramMismatchError:
        return ProgramMismatchError(
            f"{self.location}: the state has {stored} shard{'s' if stored > 1 else ''}, asked for {self.shards} (ask "
            f"for {stored}, or stop the job and run: hybridstore rescale {self.location} --shards {self.shards})"
        )

    def _check_consent(self, words: tuple[str, ...]) -> None:
        """Raise ProgramMismatchError for a word that no change of the topology needs or has needed."""
        adopted = [run.adopted for run in self._runs]
        used = [each.consents for each in adopted if each.consents is not None]
        changes = [change for each in adopted for change in each.changes]
        if used:
            judge(self.location, changes, words, [word for words_of in used for word in words_of])
        announce(self.location, dict.fromkeys(changes))

    # --- threads ----------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Let another thread use this engine: the next thread that uses it owns it; see `State.hand_over`. The
        opening is no use. Raises StateInUseError when another thread owns the engine, and in the middle of a call.

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(emit="close", n=hs.Count()).open("state")
        >>> results = engine.process({"user": "ann", "ts": 500})
        >>> engine.hand_over()
        >>> with ThreadPoolExecutor(1) as thread:
        ...     thread.submit(engine.commit).result()
        []
        """
        self._turn.hand_over()
        self._hand_over()

    def _hand_over(self) -> None:
        for opened in self.states:
            opened.hand_over()

    def for_generator(self) -> None:
        """Let any thread continue: Python sees to it that a generator runs in one thread at a time."""
        for turn in (self._turn, *(opened.group.journal.turn for opened in self.states)):
            turn.bound = False

    # --- stepping ---------------------------------------------------------------------------------------------

    @entry_of_all
    def process(self, row: Any) -> list[dict[str, Any]]:
        """Process one row, in the order given, and return its immediate results. O(cost of the windows).

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(n=hs.Count()).open("state")
        >>> engine.process({"user": "ann", "ts": 500})
        [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 1}]
        >>> engine.commit()
        []
        """
        if self.topology.joined is not None:
            return self.process_many(row)
        records = from_rows(self.topology, [row], kinds=self._kinds)
        self._leave_out(records.left_out)
        if not records.keys and not records.failed:
            return []
        self._to_time = records.to_time if records.keys else self._to_time
        shard = self._shard(records.keys[0]) if records.keys else 0
        run, stepped = self._runs[shard], self._stepped[shard]
        stepped[0] += 1
        if self.topology.traced:
            rows = _rows(run.table(run.process(records), self.times))
        else:
            results = run.logic.process(records)
            rows = run.logic.rows(results, self.times) if results else []
        stepped[1] += len(rows)
        return rows

    @entry_of_all
    def process_many(self, rows: Any) -> list[dict[str, Any]]:
        """Process the rows of one commit (dicts or an Arrow batch) in canonical order (by time, then key, then values),
        shard by shard, and return the results. O(n log n).

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(n=hs.Count()).open("state")
        >>> rows = [{"user": "ann", "ts": 900}, {"user": "bob", "ts": 500}]
        >>> [(row["user"], row["n"]) for row in engine.process_many(rows)]  # in order of time
        [('bob', 1), ('ann', 1)]
        """
        results: list[dict[str, Any]] = []
        for shard, (run, records) in enumerate(zip(self._runs, self._by_shard(self.records(rows)), strict=True)):
            with collector_held():
                given = _rows(run.table(run.process(records), self.times))
            results += given
            self._stepped[shard][0] += len(records.keys)
            self._stepped[shard][1] += len(given)
        return results

    def records(self, rows: Any, first: int = 0) -> Records:
        """Return rows by column, mapped and filtered; of a join as (side, row), or by the names of the inputs."""
        if (join := self.topology.joined) is not None:
            pairs = rows if isinstance(rows, list) else tagged(join, rows)
            records = from_tagged(self.topology, pairs, self._kinds)
        else:
            records = (
                from_arrow(self.topology, rows, first) if is_arrow(rows) else from_rows(self.topology, rows, first)
            )
        self._leave_out(records.left_out)
        if records.times:
            self._to_time = records.to_time
        return records

    def _leave_out(self, rows: LeftOut) -> None:
        if any(rows):
            self.left_out = self.left_out.and_also(rows)
            _LOG.warning("%s: left out rows: %d without a key, %d without a time", self.location, *rows)

    def split_batch(self, rows: Any, first: int) -> list[Any]:
        """Return the rows of a whole commit shard by shard: Arrow tables if they can be processed by column, else
        `Records`.
        """
        if isinstance(rows, Sides):
            sides = self._split_sides(rows)
            if not isinstance(sides, Why):
                return sides
            self._unsplit[sides] += 1
            rows = rows.tagged()
        if is_arrow(rows):
            if rows.schema != self._checked:
                from .column_types import check_columns

                check_columns(self.topology, rows.schema)
                self._checked = rows.schema
            rows, left_out = without_nulls(self.topology, rows)
            self._leave_out(left_out)
            parts = self._split(rows)
            if not isinstance(parts, Why):
                self._to_time = arrow_to_time(rows.schema.field(self.topology.timestamp).type)
                return parts
            self._unsplit[parts] += 1
        elif self._checked is None:
            self._checked = True
            for name in absent_columns(self.topology, rows):
                _LOG.warning("%s: column %r is in no row of the first commit: nothing is added", self.location, name)
        with collector_held():
            return self._by_shard(self.records(rows, first))

    def _split(self, batch: Any) -> list[Any] | Why:
        why = never(self.topology, clocked=False)
        if why is not None:
            return why
        from .columns.fits import split

        return split(self.topology, batch, self.shards)

    def _split_sides(self, sides: Sides) -> list[Any] | Why:
        if find_spec("numpy") is None:
            return Why.NO_NUMPY
        from .joins.arrow import fits, split

        join = self.topology.joined
        assert join is not None
        parts = fits(self.topology, sides) or split(self.topology, sides, self.shards)
        if not isinstance(parts, Why):
            given = next((side, table) for side, table in enumerate(sides) if table is not None)
            self._to_time = arrow_to_time(given[1].schema.field(join.inputs[given[0]].timestamp).type)
        return parts

    @entry_of_all
    def process_batch(self, shard: int, part: Any) -> list[dict[str, Any]]:
        """Process a shard's rows of a whole commit, and return all results."""
        return _rows(self.table_of(shard, part))

    @entry_of_all
    def table_of(self, shard: int, part: Any, clock: Watermark | None = None) -> ResultTable:
        """Process a shard's rows of a whole commit, and return its results by column. `clock` is the time, if given."""
        run = self._runs[shard]
        with collector_held():
            return run.table(run.process_batch(part, clock), self.times)

    def keeping(self, shard: int, commit: int, since: int) -> Keeping:
        """Return what keeps the results of a shard's next commit with its state. Of windows that close it has the first
        results before `table_of` or `flush_shard` returns the last ones.
        """
        logic = self._runs[shard].logic
        keeping = Keeping(self.states[shard], commit, since, partial(logic.table, times=self.times))
        if isinstance(logic, Aggregating) and logic.windowed.emit == "close":
            logic.windowed.taker = keeping
        return keeping

    def _shard(self, key: Any) -> int:
        return 0 if self.shards == 1 or key is None else shard_of(key, self.shards)

    def _by_shard(self, records: Records) -> list[Records]:
        if self.shards == 1:
            return [records]
        parts: list[Records] = [Records([], [], [], records.to_time) for _ in range(self.shards)]
        if records.source is not None:
            parts = [part._replace(source=records.source, places=[]) for part in parts]
            # a row without a mapped key is of no shard
            parts[0] = parts[0]._replace(failed=records.failed)
        known: dict[Any, Records] = {}
        joined = self.topology.joined
        broadcast = joined is not None and joined.on is not None
        for key, value, ts in zip(records.keys, records.values, records.times, strict=True):
            if broadcast and value[0] == RIGHT:
                for every in parts:  # each shard has the whole table
                    every.keys.append(key)
                    every.values.append(value)
                    every.times.append(ts)
                continue
            part = known.get(key)
            if part is None:
                part = known[key] = parts[self._shard(key)]
            part.keys.append(key)
            part.values.append(value)
            part.times.append(ts)
        if records.source is not None:
            for place, key in enumerate(records.keys):
                places = known[key].places
                assert places is not None
                places.append(place if records.places is None else records.places[place])
        return parts

    @entry_of_all
    def finish(self) -> list[dict[str, Any]]:
        """Return the results due at the end of the commit; `commit` calls this too."""
        results: list[dict[str, Any]] = []
        for run, stepped in zip(self._runs, self._stepped, strict=True):
            rows = _rows(run.table(run.finish(), self.times))
            stepped[1] += len(rows)
            results += rows
        return results

    @property
    def holds_back(self) -> bool:
        """Whether results wait in the state for windows to close or time to pass."""
        return any(run.logic.holds_back for run in self._runs)

    @entry_of_all
    def flush_shard(self, shard: int) -> ResultTable:
        """End a shard's commit as at the end of the stream, and return all results that were held back.

        See `Aggregating.flush`.
        """
        run = self._runs[shard]
        return run.table(run.flush(), self.times)

    @property
    def times(self) -> TimeForm:
        """The form of times in results: that of the last rows."""
        return form_of(self._to_time)

    @times.setter
    def times(self, form: TimeForm) -> None:
        self._to_time = TO_TIME[form]

    @entry_of_all
    def commit(self) -> list[dict[str, Any]]:
        """End the commit on every shard, durably, and return the results due at its end.

        All of them are in memory, some 300 bytes each: where many windows close together, `Topology.run` hands them out
        piece by piece. O(changes + results).

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(emit="close", n=hs.Count()).open("state")
        >>> engine.process({"user": "ann", "ts": 500}), engine.process({"user": "bob", "ts": 60_000})
        ([], [])
        >>> [(row["user"], row["n"]) for row in engine.commit()]  # bob's row has closed ann's window
        [('ann', 1)]
        """
        results = self.finish()
        for shard, state in enumerate(self.states):
            begun = time.perf_counter()
            state.commit()
            rows_in, rows_out = self._stepped[shard]
            self._stepped[shard] = [0, 0]
            self.note_numbers(shard, rows_in, rows_out, 0.0, (time.perf_counter() - begun) * 1000)
        self._kinds = KeyKinds(self.topology)
        return results

    # --- looking ----------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Late records dropped since the engine was opened.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(n=hs.Count()).open("state")
        >>> results = engine.process({"user": "ann", "ts": 60_000})
        >>> engine.process({"user": "bob", "ts": 500})  # too late
        []
        >>> engine.dropped
        1
        """
        return sum(run.dropped for run in self._runs)

    @property
    def by_row(self) -> dict[str, int]:
        """How many Arrow batches were processed row by row since the engine was opened, by the reason that prevented
        the way by column. A split batch counts once for each shard. Results are the same; a row costs several times as
        much.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> minutes.aggregate(n=hs.Count()).open("state").by_row  # no Arrow batch so far
        {}
        """
        counts = sum((run.by_row for run in self._runs), start=Counter(self._unsplit))
        return {str(why): count for why, count in counts.items()}

    def _aggregating(self) -> Iterator[Aggregating]:
        return (run.logic for run in self._runs if isinstance(run.logic, Aggregating))

    @entry_of_all
    def windows(self) -> list[dict[str, Any]]:
        """Return the windows (or sessions) stored now, as rows. O(windows).

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(emit="close", n=hs.Count()).open("state")
        >>> engine.process({"user": "ann", "ts": 500})
        []
        >>> engine.windows()
        [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'n': 1}]
        """
        return [row for logic in self._aggregating() for row in _rows(logic.table(logic.windowed.live(), self.times))]

    @entry_of_all
    def find_sessions(
        self, key: Any, earliest_end: int | None = None, latest_start: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the sessions of a key with end >= earliest_end and start <= latest_start (ms, inclusive, None
        open), as rows.

        >>> clicks = hs.stream(key="user", timestamp="ts")
        >>> engine = clicks.windowed_by(hs.SessionWindows("30 minutes")).aggregate(n=hs.Count()).open("state")
        >>> results = engine.process({"user": "ann", "ts": 500}) + engine.process({"user": "ann", "ts": 900})
        >>> engine.find_sessions("ann")
        [{'user': 'ann', 'window_start': 500, 'window_end': 900, 'n': 2}]
        """
        if self.topology.null_keys == "group":
            key = stored_key(key)
        logic = self._runs[self._shard(key)].logic
        if not isinstance(logic, Aggregating):
            raise TypeError("find_sessions: found a topology without windows, expected SessionWindows")
        return _rows(logic.table(logic.find_sessions(key, earliest_end, latest_start), self.times))

    @entry_of_all
    def position(self) -> Any:
        """Return the source position that every shard has committed, None at first.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> counts = minutes.aggregate(n=hs.Count())
        >>> results = list(counts.run([{"user": "ann", "ts": 0, "offset": 17}], "state", position="offset"))
        >>> counts.open("state").position()
        17
        """
        return min((RunState.of(state) for state in self.states), key=lambda run: run.commit).position

    def note_numbers(self, shard: int, rows: int, rows_out: int, process_ms: float, commit_ms: float) -> None:
        """Note the numbers of a shard's commit, for `numbers`."""
        run, state = self._runs[shard], self.states[shard]
        totals, last = self._numbers[shard], self._last[shard]
        metrics = state._metrics(anew=False)
        batch = {
            "rows": rows,
            "rows_out": rows_out,
            "late": run.dropped - totals["late"],
            "segment_bytes": metrics.changelog_bytes_written - totals["segment_bytes"],
        }
        self._numbers[shard] = totals = added(totals, batch)
        # The row is complete, because another thread may read it.
        self._last[shard] = row_of(
            {
                **{name: getattr(metrics, name) for name in metrics.__slots__},
                **batch,
                "operator": "",
                "shard": shard,
                "batch": (last.get("batch") or 0) + 1,
                "wall_ms": int(time.time() * 1000),
                "event_time_ms": max((ts for ts in metrics.stream_time_ms.values() if ts >= 0), default=None),
                "by_row": None if run.why is None else str(run.why),
                "process_ms": round(process_ms, 3),
                "commit_ms": round(commit_ms, 3),
                "restore_estimate_ms": round(metrics.restore_estimate_ms, 3),
                "totals": totals,
            }
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Return a row of numbers for each shard that has committed, as `hybridstore.spark.metrics` does on Spark; the
        columns are those of `hybridstore.state.numbers`. Rows without a key or a time are counted with shard 0.

        The numbers are those of the last commit, and other threads may call this. O(shards).

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> with minutes.aggregate(n=hs.Count()).open("state") as engine:
        ...     results = engine.process({"user": "ann", "ts": 500}) + engine.commit()
        ...     (row,) = engine.metrics()
        >>> row["shard"], row["version"], row["rows"], row["event_time_ms"], row["total_rows"]
        (0, 1, 1, 500, 1)
        """
        rows = [dict(row) for row in self._last if row]
        if rows:
            rows[0]["total_null_key"], rows[0]["total_null_timestamp"] = self.left_out
        return rows

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> tuple[str, int]:
        """Serve `metrics` as OpenMetrics text at `http://host:port/metrics` until the engine is closed.

        Returns host and port; port 0 takes a free port. Without another `host` only this machine can read the numbers;
        no password protects them. Raises OSError for a port that is taken.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> with minutes.aggregate(n=hs.Count()).open("state") as engine:
        ...     host, port = engine.serve_metrics()
        >>> host
        '127.0.0.1'
        """
        from ..state.metrics_server import MetricsServer  # only here: few engines serve

        server = MetricsServer(self.metrics, port, host)
        self._servers.append(server)
        address: tuple[str, int] = server.address
        return address

    @entry_of_all
    def close(self) -> None:
        """Close the state; uncommitted changes are lost.

        >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
        >>> engine = minutes.aggregate(n=hs.Count()).open("state")
        >>> results = engine.process({"user": "ann", "ts": 500})
        >>> engine.close()  # without a commit
        >>> hs.inspect("state").restart().version
        0
        """
        with ExitStack() as stack:  # if one close fails, the others still run
            for server in self._servers:
                stack.callback(server.close)
            for state in self.states:
                stack.callback(state.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rows(table: ResultTable) -> list[dict[str, Any]]:
    with collector_held():
        return list(table.rows(dict))
