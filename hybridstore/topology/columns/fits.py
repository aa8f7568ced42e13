"""Fits: whether an Arrow batch can go into its windows by column, and then its columns of numbers.

batch ── fits ──▶ Way: times, keys, values, all as numpy's numbers
              ──▶ Why: what of the batch has to go row by row
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...aggregation import Aggregator, Projection, SlidingWindows
from ...shards import shard_of
from ..batch import ERROR, ROW, key_columns
from ..plan import Plan
from ..row_columns import ArrowColumns
from ..times import arrow_list
from .arrow import Keys, keys_of, numbered, plain_key, times_of
from .buffers import array_of, numbers_of, zero_of
from .groups import Coded, Pick
from .why import COMPUTED, Why, picked, tallied

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# numpy forms sums in doubles, which are exact up to here
EXACT: Final = 2**53
# what is compared has room for a number beside it
LARGEST: Final = 2**62


class ColumnBatch(NamedTuple):
    """A batch by column: times (ms), keys, per value column its numbers and 1 for each number, 0 for null, the columns
    whose distinct values count, and how rows are chosen."""

    times: Ints
    keys: Keys
    columns: list[tuple[Any, Ints]]
    coded: list[Coded]
    picks: list[Pick]


def fits(plan: Plan, batch: pa.Table) -> ColumnBatch | Why:
    """Return the columns of a batch whose plan has a way by column (`never` is None), or why rows are taken one by one.

    O(rows).
    """
    if not batch.num_rows:
        return Why.NO_ROWS
    if not _read(plan) <= set(batch.column_names):
        return Why.MISSING
    times = times_of(batch.column(plan.timestamp))
    if times is None:
        return Why.TIMES
    keys = keys_of(key_columns(plan, batch), batch.num_rows)
    if keys is None:
        return Why.KEYS
    rows = ArrowColumns(batch, (), (ROW, ERROR))
    columns: list[tuple[Any, Ints]] = []
    numbers, added = numeric(plan), summed(plan)
    sliding = isinstance(plan.windows, SlidingWindows)
    for place, column in enumerate(plan.combined.columns):
        values = (
            _chosen(column, rows, batch, numbers=place in numbers, added=place in added)
            if isinstance(column, Projection)
            else _plain(batch.column(column))
            if sliding
            else _numbers(batch.column(column), plan.emit == "record", numbers=place in numbers, added=place in added)
        )
        if isinstance(values, Why):
            return values
        columns.append(values)
    coded = _coded(plan, batch)
    if isinstance(coded, Why):
        return coded
    picks: list[Pick] = []
    for part, place in zip(plan.combined.parts, plan.combined.places, strict=True):
        if picked(part):
            pick = _pick(part, batch, columns[place][1], times)
            if isinstance(pick, Why):
                return pick
            picks.append(pick)
    return ColumnBatch(times, keys, columns, coded, picks)


def _pick(part: Aggregator, batch: pa.Table, valid: Ints, times: Ints) -> Pick | Why:
    """Return how an aggregator chooses rows: `valid` says which have a value."""
    projection = part.projection
    assert isinstance(projection, Projection)
    assert projection.by is not None
    assert projection.columns is not None
    column = batch.column(projection.by)
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        column = column.cast(pa.int64())
    if not (pa.types.is_integer(column.type) or is_float_type(column.type)):
        return Why.VALUES
    deciding = numbers_of(pc.fill_null(column, zero_of(column.type)) if column.null_count else column)
    if deciding.dtype.kind == "f":
        valid = valid * (deciding == deciding)  # NaN has no order
    elif max(abs(int(deciding.max())), abs(int(deciding.min()))) > LARGEST:
        return Why.LARGE
    else:
        deciding = deciding.astype(np.int64)
    single = isinstance(projection.columns, str)
    chosen = [projection.columns] if isinstance(projection.columns, str) else projection.columns
    moments = times if projection.time is not None else np.zeros(len(times), np.int64)
    greatest, latest = part.name in ("max_by", "last_by", "topk"), part.name == "last_by"
    return Pick(
        part.parameters[0] if part.name == "topk" else 1,
        valid,
        deciding if greatest else -deciding,
        moments if latest else -moments,
        moments,
        [batch.column(name) for name in (projection.by, *chosen)],
        single,
    )


def _coded(plan: Plan, batch: pa.Table) -> list[Coded] | Why:
    """Return the columns whose distinct values count, each once, with the places of `columns` that choose its rows."""
    places: dict[str, set[int]] = {}
    for part, place in zip(plan.combined.parts, plan.combined.places, strict=True):
        if tallied(part):
            assert part.column is not None
            places.setdefault(part.column, set()).add(place)
    coded: list[Coded] = []
    for name, which in places.items():
        column = batch.column(name)
        if not plain_key(column.type):
            return Why.VALUES
        if column.null_count:
            none = "" if not pa.types.is_integer(column.type) else zero_of(column.type)
            column = pc.fill_null(column, none)
        distinct, codes = numbered(column)
        coded.append(Coded(sorted(which), arrow_list(distinct), codes))
    return coded


def _read(plan: Plan) -> set[str | None]:
    """Return the columns that the way by column reads, besides those of `where`."""
    columns: set[str | None] = {*plan.key, plan.timestamp}
    for part in plan.combined.columns:
        columns |= {part.column, *part.taken} if isinstance(part, Projection) else {part}
    return columns - {None}


def numeric(plan: Plan) -> set[int]:
    """Return the places of value columns that must be numbers; columns that are only counted may have any type."""
    parts = zip(plan.combined.parts, plan.combined.places, strict=True)
    each = plan.emit == "record"
    return {place for part, place in parts if each or part.name in COMPUTED} - {-1}


def summed(plan: Plan) -> set[int]:
    """Return the places of value columns that are added up."""
    parts = zip(plan.combined.parts, plan.combined.places, strict=True)
    return {place for part, place in parts if part.name in ("sum", "mean")}


def is_float_type(kind: pa.DataType) -> bool:
    """Whether numbers of an Arrow type are those of a float or a double."""
    return bool(pa.types.is_float64(kind) or pa.types.is_float32(kind))


def _plain(column: pa.ChunkedArray) -> tuple[Any, Ints] | Why:
    if column.null_count:
        return Why.NULLS
    if is_float_type(column.type):
        return numbers_of(column).astype(np.float64), np.ones(len(column), np.int64)
    return (numbers_of(column), np.ones(len(column), np.int64)) if pa.types.is_integer(column.type) else Why.VALUES


def _numbers(column: pa.ChunkedArray, each: bool, *, numbers: bool, added: bool) -> tuple[Any, Ints] | Why:
    valid = numbers_of(column.is_valid().cast(pa.int64())) if column.null_count else np.ones(len(column), np.int64)
    if not numbers:
        return valid, valid
    floats = is_float_type(column.type)
    if not (floats or pa.types.is_integer(column.type)):
        return Why.VALUES
    if column.null_count and each:
        return Why.NULLS
    values = numbers_of(pc.fill_null(column, zero_of(column.type)) if column.null_count else column)
    if floats:
        return values.astype(np.float64), valid
    largest = max(abs(int(values.max())), abs(int(values.min())))
    # every window of a record counts, and a sum may be added to a stored sum
    large = largest * len(values) >= EXACT if added or each else largest > LARGEST
    return Why.LARGE if large else (values.astype(np.int64), valid)


def _chosen(
    column: Projection, rows: ArrowColumns, batch: pa.Table, *, numbers: bool, added: bool
) -> tuple[Any, Ints] | Why:
    """Return the numbers of a column in the rows that `where` chooses, elsewhere zeros that do not count; of what
    decides only which rows have it."""
    where = column.where
    chosen = np.ones(batch.num_rows, np.int64) if where is None else np.array(rows.asked(where), np.int64)
    if column.by is not None:
        deciding = batch.column(column.by)
        if deciding.null_count:
            chosen = chosen * numbers_of(deciding.is_valid().cast(pa.int64()))
        return chosen, chosen
    if column.column is None:
        return chosen, chosen
    of_all = _numbers(batch.column(column.column), False, numbers=numbers, added=added)
    if isinstance(of_all, Why):
        return of_all
    values, valid = of_all[0], of_all[1] * chosen
    return np.where(valid > 0, values, values.dtype.type(0)), valid


def split(plan: Plan, batch: Any, shards: int) -> list[pa.Table] | Why:
    """Return the part of a batch for each shard, or the reason why its rows must be checked one by one. O(rows).

    The surprise: a batch is split only when the keys and times of all its rows are known to be good, because shards
    commit one after the other, and a bad row has to be found before the first shard commits.
    """
    if not _read(plan) <= set(batch.column_names):
        return Why.MISSING
    whole = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    # a late row is emitted with all its columns, and `where` may look at any
    table = whole if plan.traced or not plan.columns else whole.select(list(plan.columns))
    if shards == 1 or not table.num_rows:
        return [table] * shards
    keys = keys_of(key_columns(plan, table), table.num_rows)
    if keys is None:
        return Why.KEYS
    if times_of(table.column(plan.timestamp)) is None:
        return Why.TIMES
    places = np.array([shard_of(name, shards) for name in keys.names], np.int64)[keys.codes]
    return [table.take(array_of(np.nonzero(places == shard)[0])) for shard in range(shards)]
