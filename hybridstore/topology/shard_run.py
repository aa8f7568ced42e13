"""Shard run: a plan that runs on the stores of one shard. The same code runs in plain Python and in Spark's workers.

    batch ── without null keys and times ──▶ by column, or in canonical order ──▶ windows or custom logic ──▶ results
                                                                                  suppression

State between the beginning and the end of a commit is in memory only: when `commit` returns, the stores hold the data
of the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice
from operator import itemgetter, lt
from typing import Any, NamedTuple

from ..clock import Watermark
from ..collector import collector_held
from ..shards import shard_of
from ..state.group import StoreGroup
from .adopt import adopt
from .aggregating import Aggregating
from .batch import ERROR, ROW, LeftOut, Records, from_arrow, joined_keys, rows_at, without_nulls
from .columns.why import Why
from .custom import CustomLogic
from .failures import FailedRows, Failure, fault_of
from .joins.rows import Sides, from_tagged
from .null_keys import given_keys
from .plan import Plan
from .results import Late, ResultTable, tabled_rows
from .times import TimeForm, arrow_list


class LateRows(NamedTuple):
    """Rows that no window accepted: their places in the list or Arrow table of the input, and their keys."""

    source: Any
    places: list[int]
    keys: list[Any]

    def rows(self) -> list[dict[str, Any]]:
        """Return the input rows. O(late rows)."""
        return rows_at(self.source, self.places) if self.places else []


def _joining(plan: Plan, group: StoreGroup, *, clocked: bool) -> CustomLogic:
    """Open a join. Its stores are of a kind of their own, and imported for joins only."""
    from .joins.joining import Joining

    return Joining(plan, group, clocked=clocked)


class ShardRun:
    """A plan that is open on the stores of one shard.

    clocked   a watermark is the time, given to every commit
    where     names the state in messages
    allow     consent to the losses of a changed topology

    A state of another topology is converted (`adopt`), as part of the version in progress. Raises
    ProgramMismatchError for a refused change, and UpgradeError.
    """

    def __init__(
        self,
        plan: Plan,
        group: StoreGroup,
        *,
        clocked: bool = False,
        where: object = "state",
        allow: Collection[str] = (),
    ) -> None:
        adopted = self.adopted = adopt(plan, group, where, allow, clocked=clocked)
        self.plan = plan = adopted.plan
        self.logic: Aggregating | CustomLogic = (
            _joining(plan, group, clocked=clocked)
            if plan.joined is not None
            else CustomLogic(plan, group, clocked=clocked)
            if plan.custom is not None
            else Aggregating(plan, group, clocked=clocked, adopted=adopted)
        )
        self.place: tuple[int, int] | None = None
        """Which of how many shards this is, where rows were given to shards by their keys before any `map`."""
        self.left_out = LeftOut()
        """Rows left out since the run was opened: how many have no key, and how many no time."""
        self.by_row: Counter[Why] = Counter()
        """How many Arrow batches went row by row since the run was opened, and why."""
        self.why: Why | None = None
        """Why the last batch went row by row; None if it went by column, or had no rows."""
        # rows that raised: in a step before the shards; and place, key and error of those that cannot be added
        self._before: list[dict[str, Any]] = []
        self._unaddable: list[tuple[int, Any, str]] = []
        self.late_rows: LateRows | FailedRows | None = None
        """The late rows of the last `process_batch` or `process`; None where they are not handed out."""
        self._maps = any(step.kind == "map" for step in plan.pending)

    @property
    def dropped(self) -> int:
        """Late records dropped since the run was opened."""
        return self.logic.dropped

    def process_batch(self, batch: Any, clock: Watermark | None = None) -> Any:
        """Process one shard's rows of a whole commit, `Records`, an Arrow table, or `Sides` of a join, and return the
        results of the commit.

        The results do not depend on the order in which the rows arrived. `clock` is the time, if the run is clocked.
        The return value is `Results`, or the rows of custom logic. Raises ValueError or TypeError for a row that cannot
        be processed. O(n log n) and the cost of the windows.
        """
        with collector_held():
            if isinstance(batch, Sides):
                self._forget_late()
                results = self._by_column(batch, clock)
                if not isinstance(results, Why):
                    return results
                batch = from_tagged(self.plan, batch.tagged())
                self.left_out = self.left_out.and_also(batch.left_out)
            elif not isinstance(batch, Records):
                batch = self._without_failed(batch)
                batch, left_out = without_nulls(self.plan, batch)
                self.left_out = self.left_out.and_also(left_out)
                self._forget_late()
                results = self._by_column(batch, clock)
                if not isinstance(results, Why):
                    self._take_late(batch)
                    return results
                batch = from_arrow(self.plan, batch)
                self.left_out = self.left_out.and_also(batch.left_out)
            self._check_keys(batch.keys)
            self._forget_late()
            records = self._ordered(self._addable(batch))
            results = self.logic.process_batch(records, clock)
            self._take_late(records)
            return results

    def _by_column(self, batch: Any, clock: Watermark | None) -> Any:
        results = self.logic.by_column(batch, clock)
        self.why = results if isinstance(results, Why) and batch.num_rows else None
        if self.why is not None:
            self.by_row[self.why] += 1
        return results

    def process(self, records: Records, clock: Watermark | None = None) -> list[Any]:
        """Process records of the commit in progress, in canonical order, and return the results due at once."""
        self._forget_late()
        records = self._ordered(self._addable(records))
        results = self.logic.process(records, clock)
        self._take_late(records)
        return results

    def _forget_late(self) -> None:
        """Forget the late rows of a commit that failed."""
        if isinstance(self.logic, Aggregating) and self.logic.windowed.late:
            self.logic.windowed.late.clear()
        for failed in (self._logic_failed, self._unaddable):
            if failed:
                failed.clear()

    @property
    def _logic_failed(self) -> list[Failure] | None:
        return self.logic.windowed.failed if isinstance(self.logic, Aggregating) else self.logic.failed

    def _without_failed(self, batch: Any) -> Any:
        """Return an Arrow table without the rows that a step before the shards could not change, and keep these."""
        self._before = []
        if ERROR not in batch.column_names:
            return batch
        import pyarrow.compute as pc

        raised = batch.filter(pc.is_valid(batch.column(ERROR)))
        rows = zip(raised.column(ERROR).to_pylist(), raised.column(ROW).to_pylist(), strict=True)
        self._before = [{"error": text, "row": row} for text, row in rows]
        return batch.filter(pc.is_null(batch.column(ERROR)))

    def _addable(self, records: Records) -> Records:
        """Return records without those whose value no aggregator could add to an empty aggregate, and note these."""
        self._unaddable.clear()
        if self.plan.errors_column is None or not isinstance(self.logic, Aggregating):
            return records
        combined = self.plan.combined
        faults = [fault_of(combined, value, ts) for _, value, ts in records.rows()]
        if not any(faults):
            return records
        for at, text in enumerate(faults):
            if text is not None:
                self._unaddable.append(
                    (records.places[at] if records.places is not None else at, records.keys[at], text)
                )
        return records.taken([at for at, text in enumerate(faults) if text is None])

    def _take_failed(self, taken: Any) -> None:
        """Collect the rows of the input that raised, in the order of arrival, with their errors."""
        failed, self._before = self._before, []
        width = len(self.plan.key)
        none: Any = None if width == 1 else (None,) * width
        keys, cells = [none] * len(failed), failed
        if isinstance(taken, Records):
            raised: dict[int, tuple[Any, str]] = {place: (none, text) for place, text in taken.failed}
            raised |= {place: (key, text) for place, key, text in self._unaddable}
            for at, text in self._logic_failed or ():
                raised.setdefault(at if taken.places is None else taken.places[at], (taken.keys[at], text))
            places = sorted(raised)
            of_rows = [raised[place][0] for place in places]
            if self.plan.null_keys == "group":
                of_rows = [none if key is none else given_keys([key])[0] for key in of_rows]
            keys = keys + [key if width else () for key in of_rows]
            rows = rows_at(taken.source, places) if places else []
            cells = cells + [
                {"error": raised[place][1], "row": row.get(ROW, row)} for place, row in zip(places, rows, strict=True)
            ]
        self.late_rows = FailedRows(keys, cells)

    def _take_late(self, taken: Any) -> None:
        """Collect the late rows of the input, `Records` or an Arrow table, in the order of arrival. O(late rows)."""
        if self.plan.errors_column is not None:
            self._take_failed(taken)
        if self.plan.late_column is None:
            return
        assert isinstance(self.logic, Aggregating)
        late = self.logic.windowed.late
        assert late is not None
        if isinstance(taken, Records):
            places = late if taken.places is None else [taken.places[i] for i in late]
            pairs = sorted(zip(places, [taken.keys[i] for i in late], strict=True), key=itemgetter(0))
            keys = [key for _, key in pairs]
            if self.plan.null_keys == "group":
                keys = given_keys(keys)
            self.late_rows = LateRows(taken.source, [place for place, _ in pairs], keys)
        else:
            places = sorted(late)
            from .columns.buffers import taken_at

            chosen = taken_at(taken, places)
            parts = [arrow_list(chosen.column(name)) for name in self.plan.key]
            self.late_rows = LateRows(taken, places, joined_keys(parts, len(places)))
        late.clear()

    def table(self, results: Any, times: TimeForm) -> ResultTable:
        """Return the results of the last commit by column, and its late rows if the topology emits them. O(results)."""
        late = self.late_rows or LateRows([], [], [])
        errors = self.plan.errors_column
        if errors is not None and isinstance(self.logic, CustomLogic):
            rows = list(self.logic.table(results, times).rows(dict))
            names = self.logic.output.names or (list(rows[0]) if rows else [])
            marked = [{**row, errors: None} for row in rows]
            return tabled_rows([*marked, *({**dict.fromkeys(names), errors: cell} for cell in late.rows())])
        table = self.logic.table(results, times)
        if self.plan.extra_column is None:
            return table
        return table._replace(late=Late(self.plan.extra_column, late.keys, late.rows()))

    def finish(self) -> Any:
        """End the commit in progress and return the results due at its end."""
        self.late_rows = None
        return self.logic.finish()

    def flush(self) -> Any:
        """End the commit as at the end of the stream; see `Aggregating.flush`."""
        self.late_rows = None
        return self.logic.flush()

    def _ordered(self, records: Records) -> Records:
        """Return records in canonical order; the same object if each record is later than the one before."""
        times = records.times
        if all(map(lt, times, islice(times, 1, None))):
            return records
        return records.taken(self.logic.order(records))

    def _check_keys(self, keys: list[Any]) -> None:
        """Raise ValueError for a key that a `map` has changed so that it belongs to another shard. O(keys)."""
        if self.place is None or not self._maps:
            return
        shard, shards = self.place
        for key in dict.fromkeys(keys):
            if shard_of(key, shards) != shard:
                raise ValueError(
                    f"map: found key {key!r} of shard {shard_of(key, shards)} in shard {shard}, expected the key that "
                    "the row came with (a map that makes the key declares the columns that it returns: "
                    "map(function, 'user string'))"
                )
