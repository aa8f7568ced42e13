"""Joining: a join on the stores of one shard: which rows are late, what a commit does, and results as rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count, islice, pairwise, zip_longest
from operator import eq
from typing import Any

from changelog.codec import pack

from ...clock import NO_TIME, Watermark
from ...state.group import StoreGroup
from ...stores.versioned import VersionedStore
from ..batch import Records, stepped
from ..columns.why import Why
from ..custom import CustomLogic
from ..null_keys import given_keys
from ..plan import Plan
from ..results import ResultTable, tabled_rows
from ..times import TimeForm, listed, times_as
from .columns import all_names, chosen_columns, named_twice
from .interval import IntervalJoin
from .pairs import Pairs, by_value, together
from .shapes import Shape, plain
from .spec import LEFT, RESULT_TIME, RIGHT
from .stores import keyless_name, versions_name
from .tables import TableJoin


class Joining(CustomLogic):
    """A join that is open on the stores of one shard."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        super().__init__(plan, group, clocked=clocked)
        assert plan.joined is not None
        self.join = join = plan.joined
        self._plan = plan
        shapes = Shape(join.left_side, group, LEFT), Shape(join.right_side, group, RIGHT)
        self.shapes = shapes
        self.logic: IntervalJoin | TableJoin
        if join.interval:
            rows = self.stores[join.left_side.name], self.stores[join.right_side.name]
            first, second = (self.stores.get(keyless_name(source.name)) for source in join.inputs)
            self.logic = IntervalJoin(join, rows, (first, second), shapes, group)
        else:
            newest, versions = self.stores[join.right_side.name], None
            if join.right_side.history_ms is not None:
                sessions = self.stores[versions_name(join.right_side)]
                versions = VersionedStore(newest, sessions, join.right_side.history_ms, moved=False)
            waiting, null_is_key = self.stores.get(join.left_side.name), plan.null_keys == "group"
            self.logic = TableJoin(join, newest, versions, waiting, shapes, group, null_is_key=null_is_key)
        self._late: list[tuple[Any, int, dict[str, Any], int]] = []

    def order(self, records: Records) -> list[int]:
        """Return the canonical order of a commit: by time, a table before its stream, key, and content. O(n log n)."""
        times = records.times
        order = sorted(range(len(times)), key=times.__getitem__)
        ascending = list(map(times.__getitem__, order))
        # the places of rows whose time is that of the row before
        tied = list(compress(count(1), map(eq, ascending, islice(ascending, 1, None))))
        if not tied:
            return order
        # a stream's row sees the rows that its table has at the same time
        rank = (LEFT, RIGHT) if self.join.interval else (RIGHT, LEFT)
        keys, values = records.keys, records.values

        def place(at: int) -> tuple[Any, ...]:
            side, row = values[at]
            return rank[side], keys[at] is None, 0 if keys[at] is None else keys[at], sorted(row.items())

        def packed(at: int) -> tuple[Any, ...]:
            first, _, key, items = place(at)
            return first, pack([key, [[name, plain(part)] for name, part in items]])

        ends = [at + 1 for at, following in zip_longest(tied, tied[1:]) if following != at + 1]
        starts = [tied[0] - 1, *(at - 1 for before, at in pairwise(tied) if at != before + 1)]
        for start, end in zip(starts, ends, strict=True):
            same = order[start:end]
            try:
                order[start:end] = sorted(same, key=place)
            except TypeError:  # values that Python cannot compare
                order[start:end] = sorted(same, key=packed)
        return order

    def process(self, records: Records, clock: Watermark | None = None) -> list[Any]:
        """Join records in canonical order, and return the results as pairs. The cost of the join."""
        self._late.clear()
        alone = Pairs()
        kept = self._kept(records, clock, alone)
        newest = max(records.times[-1:], default=NO_TIME) if clock is None else clock.now_ms
        return ([alone] if alone else []) + self.logic.process(kept, clock, newest)

    def by_column(self, batch: Any, clock: Watermark | None = None) -> list[Any] | Why:
        """Join the Arrow tables of a whole commit by column (`rows.Sides`), or return why it must go row by row."""
        from .arrow import arranged, fits, matched

        why = fits(self._plan, batch)
        if why is not None or not isinstance(self.logic, IntervalJoin):
            return why or Why.WHOLE_ROWS
        new = arranged(self._plan, batch, self.shapes, self.logic.late_through(clock))
        if isinstance(new, Why):
            return new
        self._late.clear()
        self.dropped += new.late
        newest = max(new.times[-1:].tolist(), default=NO_TIME) if clock is None else clock.now_ms
        return self.logic.join(new.rows, newest, lambda stored, reach: matched(new, stored, reach))

    def _kept(self, records: Records, clock: Watermark | None, alone: Pairs) -> Records:
        """Return the records that take part: late ones are counted, and those without a key come out `alone`, if their
        side is kept whole.
        """
        late = [self._late_through(side, clock) for side in (LEFT, RIGHT)]
        times = records.times
        if (not times or min(times) > max(late)) and None not in records.keys:
            return records
        places: list[int] = []
        for place, (key, (side, row), ts) in enumerate(records.rows()):
            if ts <= late[side]:
                self.dropped += 1
                if self.join.late is not None:
                    self._late.append((key, side, row, ts))
            elif key is not None or (side == LEFT and self.join.on is not None and row.get(self.join.on) is not None):
                places.append(place)
            else:
                self._take_alone(side, row, ts, alone, clock)
        return records.taken(places)

    def _take_alone(self, side: int, row: dict[str, Any], ts: int, alone: Pairs, clock: Watermark | None) -> None:
        """Take a row without a key: it comes out at once, or by a watermark when its time has passed, as in Spark."""
        value, key = self.shapes[side].encoded(row), self.shapes[side].no_key(row)
        if clock is not None and isinstance(self.logic, IntervalJoin) and self.join.alone(side):
            self.logic.wait_without_key(side, key, value, ts)
            return
        if side == LEFT and (self.join.kept_whole(LEFT) or self.join.how == "anti"):
            alone.add(key, ts, value, None, None)
        elif side == RIGHT and self.join.kept_whole(RIGHT) and self.join.interval:
            alone.add(key, None, None, ts, value)

    def _late_through(self, side: int, clock: Watermark | None) -> int:
        if isinstance(self.logic, IntervalJoin):
            return self.logic.late_through(clock)
        return self.logic.late_through(clock, side)

    def finish(self) -> list[Any]:
        """End the commit; all results are returned by `process`."""
        return []

    def advance(self, ts: int) -> list[Any]:
        """Move T to `ts` (ms) without a row, and return the results that are due then. O(due rows)."""
        self._late.clear()
        return self.logic.advance(ts)

    @property
    def holds_back(self) -> bool:
        """Whether rows wait for time to pass."""
        return self.logic.holds_back

    def flush(self) -> list[Any]:
        """Return the results of all waiting rows, as at the end of the stream."""
        self._late.clear()
        return self.logic.flush()

    # --- results ----------------------------------------------------------------------------------------------

    def table(self, results: list[Any], times: TimeForm) -> ResultTable:
        """Return pairs, and late rows behind them, by column. Raises ValueError for a column that both sides have, and
        OverflowError for a time beyond datetime. O(results).
        """
        pairs = together(results)
        keys = given_keys(pairs.keys) if self._plan.null_keys == "group" else pairs.keys
        moments = self._times_of(pairs)
        if times != "ms":
            moments = times_as(times, moments)
        columns = self._whole(pairs, keys, moments) if pairs else None
        if columns is not None:
            names, places = self._layout()
            table = ResultTable(names, None, columns if places is None else [columns[place] for place in places])
        else:
            values = by_value(pairs)
            sides = listed(pairs.left_times), values[LEFT], listed(pairs.right_times), values[RIGHT]
            rows_of = zip(listed(keys), listed(moments), *sides, strict=True)
            table = tabled_rows([self._mapping(key, moment, *row) for key, moment, *row in rows_of])
        if self.join.behind:
            rows = (stepped(self.join.behind, row, number) for number, row in enumerate(table.rows(dict)))
            table = tabled_rows([dict(row) for row in rows if row is not None])
        return table if self.join.late is None else self._with_late(table, self.join.late)

    def _with_late(self, table: ResultTable, column: str) -> ResultTable:
        """Return results with a column for late rows, and behind them the late rows, which come once."""
        late, self._late = self._late, []
        if table.names is not None and not late:
            return table._replace(names=[*table.names, column], columns=[*table.columns, [None] * table.size])
        rows = list(table.rows(dict))
        layout = self._known and not any(step.kind == "map" for step in self.join.behind)
        names = list(rows[0]) if rows else self._layout()[0] if layout else list(self.join.left_side.key)
        behind = [self._late_row(names, *row) for row in late]
        return tabled_rows([*({**row, column: None} for row in rows), *behind])

    def _times_of(self, pairs: Pairs) -> Any:
        """Return the times of results: the later of two streams' rows, and of a table join that of the stream's row."""
        lefts, rights = pairs.left_times, pairs.right_times
        if not self.join.interval:
            return lefts
        if type(lefts) is not list:
            from .arrow import later

            return later(lefts, rights)
        if None not in lefts and None not in rights:
            return list(map(max, lefts, rights))
        return [b if a is None else a if b is None else max(a, b) for a, b in zip(lefts, rights, strict=True)]

    def certain(self, results: list[Any]) -> list[int]:
        """Return when each result became certain (ms): the later time of a pair, and the time behind the last at which
        a partner of a row could arrive, where a row waits for that. O(results).
        """
        pairs = together(results)
        join = self.join
        if not join.interval:
            waits = 0 if join.grace_ms is None else join.grace_ms + 1
            return [ts + waits for ts in pairs.left_times if ts is not None]
        certain = listed(self._times_of(pairs))
        if join.how != "semi":
            for at, (first, second) in enumerate(zip(pairs.left_times, pairs.right_times, strict=True)):
                if first is None or second is None:
                    certain[at] += join.due_ms(RIGHT if first is None else LEFT) + 1
        return certain

    @property
    def _known(self) -> bool:
        """Whether the columns of both sides are known."""
        sides = self.shapes[:1] if self.join.one_sided else self.shapes
        return all(shape.names is not None for shape in sides)

    def _key_parts(self, key: Any) -> tuple[Any, ...]:
        if len(self._plan.key) == 1:
            return (key,)
        return (None,) * len(self._plan.key) if key is None else tuple(key)

    def _whole(self, pairs: Pairs, keys: Any, moments: Any) -> list[Any] | None:
        """Return all columns of results in the order of `all_names`; None if a row has columns of its own."""
        if not self._known:
            return None
        columns = self._columns(LEFT, pairs.left_values, pairs.left_columns, pairs.left_times)
        others: list[Any] | None = []
        if not self.join.one_sided:
            others = self._columns(RIGHT, pairs.right_values, pairs.right_columns, pairs.right_times)
        if columns is None or others is None:
            return None
        parts = [keys] if len(self._plan.key) == 1 else list(map(list, zip(*map(self._key_parts, keys), strict=True)))
        return [*parts, *columns, *others, moments]

    def _columns(self, side: int, values: list[Any], columns: list[Any] | None, times: Any) -> list[Any] | None:
        return self.shapes[side].columns(values, times) if columns is None else [times, *columns]

    def _layout(self) -> tuple[list[str], list[int] | None]:
        """Return the names of the columns of results, and their places in `all_names`; None: all in order."""
        names = all_names(self.join, tuple(shape.names or () for shape in self.shapes))
        places, chosen = chosen_columns(self.join, names)
        return chosen, places

    def _mapping(
        self, key: Any, moment: Any, left_ts: int | None, left_value: Any, right_ts: int | None, right_value: Any
    ) -> dict[str, Any]:
        """Return a result whose rows have columns of their own, by name."""
        join = self.join
        parts = dict(zip(self.join.left_side.key, self._key_parts(key), strict=True))
        columns: dict[tuple[int, str], Any] = {}
        for side, ts, value in ((LEFT, left_ts, left_value), (RIGHT, right_ts, right_value)):
            if side == RIGHT and join.one_sided:
                continue
            if ts is not None:
                columns |= {(side, name): part for name, part in self.shapes[side].mapping(value, ts).items()}
            else:
                names = (join.inputs[side].timestamp, *(self.shapes[side].names or ()))
                columns |= {(side, name): None for name in names}
        if join.select is not None:
            keys = {(side, name): part for side in (LEFT, RIGHT) for name, part in self._keys_of(side, key)}
            known = {**columns, **keys, (LEFT, RESULT_TIME): moment}
            return {name: known.get((side, column)) for name, side, column in join.select}
        row = dict(parts)
        for (side, name), part in columns.items():
            column = join.prefixes[side] + name
            if column in row:
                raise ValueError(named_twice(join, column))
            row[column] = part
        row[RESULT_TIME] = moment
        return row

    def _keys_of(self, side: int, key: Any) -> zip[tuple[str, Any]]:
        return zip(self.join.inputs[side].key, self._key_parts(key), strict=True)

    def _late_row(self, names: Sequence[str], key: Any, side: int, row: dict[str, Any], ts: int) -> dict[str, Any]:
        """Return a late row as a result: its key, and the row with the name of its input."""
        assert self.join.late is not None
        given = given_keys([key])[0] if self._plan.null_keys == "group" and key is not None else key
        parts = dict(zip(self.join.left_side.key, self._key_parts(given), strict=True))
        late = {"input": self.join.inputs[side].name, **row}
        return {**dict.fromkeys(names), **{name: parts[name] for name in names if name in parts}, self.join.late: late}
