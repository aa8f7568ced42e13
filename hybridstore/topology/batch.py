"""Batch: the rows of a commit as they arrive, and the order in which they are processed.

    dicts, named tuples, Arrow batches, pandas frames ──▶ Records: keys, values, times

pyarrow and numpy are used only if the process has imported them; a caller with an Arrow batch has imported both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import chain, compress, count, groupby
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

from changelog.codec import pack

from ..clock import time_ms
from ..stores.keys import SCALARS, shown
from .failures import text_of
from .null_keys import stored_column, stored_key
from .plan import ALL, Plan, PlanStep
from .python_values import may_have_others, python_row, python_rows
from .row_columns import ArrowColumns, DictColumns, rows_of_arrow
from .times import ToTime, arrow_list, arrow_times, arrow_to_time, plain_times, same, to_time_of

_PLAIN_KEYS: Final = ({str}, {int})
_NOTHING = object()
# The column in which a row that the steps have changed carries the row as it arrived, where late rows are handed out.
ROW: Final = "__hybridstore_row"
# The column of the error of a row that a step could not change.
ERROR: Final = "__hybridstore_error"


class LeftOut(NamedTuple):
    """The number of rows that were left out: because the key (or a part of the key) is null or nan, or because the
    timestamp of a row with a key is null.
    """

    null_key: int = 0
    null_timestamp: int = 0

    def and_also(self, more: LeftOut) -> LeftOut:
        """Return the sums."""
        return LeftOut(self.null_key + more.null_key, self.null_timestamp + more.null_timestamp)


class Records(NamedTuple):
    """Records of one commit by column: keys in the stored form (`null_keys`), projected values, times (ms), and the
    form of times in results.

    If rows of the input are handed out, `source` is the list of rows or the Arrow table of the records, and `places`
    the place of each record in it (None: record i is row i). `failed` has the place and the error of each row whose
    map, filter or projection raised.
    """

    keys: list[Any]
    values: list[Any]
    times: list[int]
    to_time: ToTime = same
    left_out: LeftOut = LeftOut()
    source: Any = None
    places: list[int] | None = None
    failed: tuple[tuple[int, str], ...] = ()

    def rows(self) -> Iterator[tuple[Any, Any, int]]:
        """Yield (key, value, time)."""
        return zip(self.keys, self.values, self.times, strict=True)

    def taken(self, order: list[int]) -> Records:
        """Return the records in this order. O(n)."""
        keys, values, times = ([column[i] for i in order] for column in self[:3])
        places = None
        if self.source is not None:
            places = order if self.places is None else [self.places[i] for i in order]
        return Records(keys, values, times, self.to_time, source=self.source, places=places, failed=self.failed)


def as_row(row: Any) -> Mapping[str, Any]:
    """Return a row as a mapping: dicts unchanged, named tuples by their fields.

    Raises TypeError for anything else.
    """
    if type(row) is dict or isinstance(row, Mapping):  # the first look is a tenth of the second
        mapping: Mapping[str, Any] = row
        return mapping
    as_dict = getattr(row, "_asdict", None) or getattr(row, "asDict", None)
    if as_dict is None:
        raise TypeError(
            f"row: found {type(row).__name__}, expected a dict, a named tuple or an Arrow record batch (plain tuples: "
            "name their columns with columns=)"
        )
    fields: Mapping[str, Any] = as_dict()
    return fields


# further types of keys with `null_keys="group"`, whose stores have their text
_GROUPED: Final = frozenset({date, datetime, Decimal})


class KeyKinds:
    """Checks that the keys of a commit have one type, as stores require, because keys are sorted before a store sees
    them.
    """

    __slots__ = ("_columns", "_kinds", "_nulls", "_stored", "floats")

    def __init__(self, plan: Plan) -> None:
        self._columns = plan.key
        self._nulls = plan.null_keys == "group"
        # custom logic may have keys that are never stored
        self._stored = plan.custom is None or self._nulls
        # the type of each part, if known
        self._kinds: tuple[type, ...] | None = None
        self.floats = False
        """Whether a key, or a part of it, is a float."""

    def admit(self, key: Any, number: int) -> Any:
        """Return the key. O(key columns).

        Raises TypeError, which names the row and the column, if the types of the key differ from the first key.
        """
        kinds = tuple(map(type, key)) if type(key) is tuple else (type(key),)
        if kinds == self._kinds:
            return key
        single = len(self._columns) == 1
        for i, kind in enumerate(kinds):
            known = kind if self._kinds is None else self._kinds[i] if i < len(self._kinds) else kind
            column = self._columns[0 if single else i]
            if self._nulls and kind is NoneType:
                continue
            if kind is not known and not (self._nulls and known is NoneType):
                raise TypeError(
                    f"row {number}: column {column!r}: found a key of {kind.__name__}, expected {known.__name__} as "
                    "in the rows before (keys of one type have an order: convert them with map)"
                )
            if self._stored and kind not in SCALARS and not (self._nulls and kind in _GROUPED):
                raise TypeError(
                    f"row {number}: column {column!r}: found {kind.__name__}, expected a key of "
                    f'{", ".join(SCALARS.values())} (convert it with map; with null_keys="group" dates, datetimes '
                    "and decimals are keys, too)"
                )
        if self._kinds is None:
            self._kinds, self.floats = kinds, float in kinds
        elif NoneType in self._kinds:
            self._kinds = tuple(new if old is NoneType else old for old, new in zip(self._kinds, kinds, strict=False))
        return key


def is_arrow(rows: Any) -> bool:
    """True for an Arrow record batch or table."""
    return type(rows).__module__.startswith("pyarrow") and hasattr(rows, "column_names")


def named_rows(rows: Any, columns: Sequence[str] | None) -> Iterable[Any]:
    """Return rows whose columns have names: a pandas DataFrame as an Arrow table, tuples and lists as dicts by
    `columns`, all other rows as they are.

    Raises TypeError for one row, a text or None in the place of rows, and when `columns` is not a sequence of names;
    later ValueError naming a row of another length.
    """
    if rows is None or isinstance(rows, (str, bytes, Mapping)):
        raise TypeError(
            f"rows: found {type(rows).__name__}, expected an iterable of rows, such as a list of dicts, or Arrow "
            "batches"
        )
    if type(rows).__module__.startswith("pyspark") and hasattr(rows, "isStreaming"):
        raise TypeError(
            "rows: found a DataFrame of Spark, expected an iterable of rows (apply(df, name, location) runs a topology "
            "on Spark; df.toArrow() has the rows of a batch DataFrame)"
        )
    if type(rows).__module__.startswith("pandas") and hasattr(rows, "columns"):
        import pyarrow as pa

        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if columns is None or is_arrow(rows):
        named: Iterable[Any] = rows
        return named
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"columns: found {columns!r}, expected a list of names")
    return _named(rows, tuple(columns))


def absent_columns(plan: Plan, rows: list[Any]) -> list[str]:
    """Return the columns of aggregates that none of these dicts has: a dict may lack a column, so a wrong name is no
    error. O(cells).
    """
    if not all(isinstance(row, Mapping) for row in rows):
        return []
    known = {*chain.from_iterable(rows), *plan.key, plan.timestamp}
    return [name for name in plan.columns if name not in known]


def _named(rows: Iterable[Any], columns: tuple[str, ...]) -> Iterator[Any]:
    for number, row in enumerate(rows):
        if type(row) is not tuple and type(row) is not list:
            yield row  # a named tuple has its own names
        elif len(row) != len(columns):
            raise ValueError(f"row {number}: found {len(row)} values, expected {len(columns)}: {', '.join(columns)}")
        else:
            yield dict(zip(columns, row, strict=True))


def stepped(steps: Sequence[PlanStep], row: Any, number: int) -> Any:
    """Return the row that the maps make of a row, None if a filter leaves the row out; `number` is for messages.

    Raises what a step raises, with a note, and TypeError for a `map` that returns None.
    """
    for step in steps:
        try:
            passed = step.function(row if type(row) is dict or step.kind == "filter" else dict(row))
            if step.kind == "map":
                row = _mapped(passed, number)
        except Exception as error:
            error.add_note(f"{step.kind} {step.name}: while processing row {number}: {shown(row)}")
            raise
        if step.kind == "filter" and not passed:
            return None
    return row


def _stepped_together(step: PlanStep, rows: list[Any], first: int) -> tuple[list[Any], Sequence[int]]:
    """Return the rows that the only step of a topology makes of dicts, with their numbers. Raises as `stepped`.

    O(rows), at C speed but for the function.
    """
    passed: list[Any] = []
    try:
        passed.extend(map(step.function, rows))  # if it raises, the rows before are there
        if step.kind == "filter":
            return list(compress(rows, passed)), list(compress(count(first), passed))
        if not {dict}.issuperset(map(type, passed)):
            given, passed = passed, []
            passed.extend(map(_mapped, given, count(first)))
    except Exception as error:
        at = len(passed)
        error.add_note(f"{step.kind} {step.name}: while processing row {first + at}: {shown(rows[at])}")
        raise
    return passed, range(first, first + len(passed))


def _mapped(row: Any, number: int) -> Any:
    """Return what a `map` has returned for a row of this number. Raises TypeError unless it is a row."""
    if not hasattr(row, "keys"):
        raise TypeError(f"row {number}: map returned {type(row).__name__}, expected a row (a dict)")
    return row


def from_rows(
    plan: Plan,
    rows: Iterable[Any],
    first: int = 0,
    kinds: KeyKinds | None = None,
    unkeyed: list[tuple[Any, Any]] | None = None,
    *,
    copied: bool = True,
) -> Records:
    """Convert rows to columns, with the topology's maps and filters. Rows without a time, and rows without a key
    (unless null is a key), are left out and counted.

    `first` is the number of the first row, for messages; `kinds` has the types of earlier keys of the commit;
    `unkeyed` takes the rows that have a time and no key, with their times. Rows that nobody changes need not be
    `copied`.

    Raises ValueError or TypeError, which name the row and the missing or wrong column. O(rows).
    """
    if plan.traced and type(rows) is not list:
        rows = list(rows)
    steps, numbers, others = plan.pending, None, may_have_others()
    dicts = _dicts(rows)
    if dicts is not None and len(steps) == 1 and not plan.traced:
        rows, numbers = _stepped_together(steps[0], dicts, first)
        dicts, steps = _dicts(rows), ()
    if dicts is not None and others and not steps:
        rows = dicts = python_rows(dicts)
        others = False
    # functions of rows may raise, and are then called one by one
    quick = (kinds is None or plan.null_keys == "skip") and not (plan.errors_column is not None and not plan.columns)
    if quick and dicts is not None and not steps and (plain := _plain_rows(plan, dicts, copied=copied)) is not None:
        if kinds is not None and plan.key:
            kinds.admit(plain.keys[0], numbers[0] if numbers else first)  # all keys have one type
        return plain._replace(source=rows) if plan.traced else plain
    numbered = enumerate(rows, first) if numbers is None else zip(numbers, rows, strict=True)
    records, places, failed = _one_by_one(plan, numbered, first, steps, kinds or KeyKinds(plan), unkeyed, others)
    return records._replace(source=rows, places=places, failed=tuple(failed)) if plan.traced else records


def _dicts(rows: Iterable[Any]) -> list[Any] | None:
    """Return a list of dicts, which can go together; None for other rows. O(rows), at C speed."""
    return rows if type(rows) is list and set(map(type, rows)) == {dict} else None


def _one_by_one(
    plan: Plan,
    numbered: Iterable[tuple[int, Any]],
    first: int,
    steps: Sequence[PlanStep],
    kinds: KeyKinds,
    unkeyed: list[tuple[Any, Any]] | None,
    others: bool,
) -> tuple[Records, list[int], list[tuple[int, str]]]:
    """Return rows, each with its number, as records, with the places of these among the rows, if they are handed out;
    and the places and errors of those that raised. `others`: rows may have values that are not Python's own. See
    `from_rows`.

    One loop, without a call for each row but the user's: it takes most of the time of rows that are no plain dicts.
    """
    traced, catches = plan.traced, plan.errors_column is not None
    failed: list[tuple[int, str]] = []
    places: list[int] = []
    keys: list[Any] = []
    values: list[Any] = []
    times: list[int] = []
    to_time: ToTime = same
    keyless = not plan.key
    single = plan.key[0] if len(plan.key) == 1 else None
    project = plan.aggregates.project if plan.aggregates is not None else dict
    grouped = plan.null_keys == "group"
    last: Any = str if keyless else _NOTHING  # the type of the last key, where keys are no tuples
    null_keys = null_times = 0
    for number, raw in numbered:
        try:
            row: Any = stepped(steps, as_row(raw), number) if steps else as_row(raw)
        except Exception as error:
            if not catches:
                raise
            failed.append((number - first, text_of(error)))
            continue
        if row is not None:
            row = python_row(row) if others else row
            try:
                key = row[single] if single is not None else tuple([row[name] for name in plan.key]) or ALL
                moment = row[plan.timestamp]
                if not grouped and (key is None or (single is None and not keyless and None in key)):
                    null_keys += 1
                    if unkeyed is not None and moment is not None and moment == moment:
                        unkeyed.append((dict(row), moment))
                    continue
                if moment is None or moment != moment:  # pandas' NaT
                    null_times += 1
                    continue
                ms = moment if type(moment) is int and moment >= 0 else time_ms(moment, plan.timestamp)
                if not times:
                    to_time = to_time_of(moment)
                times.append(ms)
            except KeyError as error:
                raise ValueError(
                    f"row {number}: column {error.args[0]!r} is missing: found {', '.join(map(str, row))}"
                ) from None
            except (TypeError, ValueError) as error:
                raise type(error)(f"row {number}: {error}") from None
            if type(key) is not last:
                key = kinds.admit(key, number)
                if type(key) is not tuple:
                    last = type(key)
            if grouped:
                key = stored_key(key)
            elif kinds.floats:
                key = _with_zero(key)
                if key is None:
                    null_keys += 1
                    times.pop()
                    if unkeyed is not None:
                        unkeyed.append((dict(row), moment))
                    continue
            try:
                value = project(row)
            except Exception as error:
                if not catches:
                    raise
                failed.append((number - first, text_of(error)))
                times.pop()
                continue
            keys.append(key)
            values.append(value)
            if traced:
                places.append(number - first)
    return Records(keys, values, times, to_time, LeftOut(null_keys, null_times)), places, failed


def _plain_rows(plan: Plan, rows: list[Any], *, copied: bool) -> Records | None:
    """Return dicts as columns, at C speed, if all have a key and a time of one type; else None: each row must be
    checked. O(rows).
    """
    try:
        parts = [list(map(itemgetter(name), rows)) for name in plan.key]
        moments = list(map(itemgetter(plan.timestamp), rows))
    except KeyError:
        return None
    if any(set(map(type, part)) not in _PLAIN_KEYS for part in parts):
        return None
    times = plain_times(moments)
    if times is None or min(times) < 0:
        return None
    keys = joined_keys(parts, len(rows))
    if plan.null_keys == "group":
        keys = list(map(stored_key, keys))
    if plan.aggregates is None:
        return Records(keys, list(map(dict, rows)) if copied else rows, times, to_time_of(moments[0]))
    values = plan.aggregates.projected(DictColumns(rows, times), len(rows))
    return Records(keys, values, times, to_time_of(moments[0]))


def joined_keys(parts: list[list[Any]], rows: int) -> list[Any]:
    """Return the keys of so many rows by their key columns: values of one column, tuples of several, `ALL` of none.

    O(rows).
    """
    if not parts:
        return [ALL] * rows
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _with_zero(key: Any) -> Any:
    """Return a key with 0.0 for -0.0, or None if the key or a part of the key is nan."""
    parts = [part + 0.0 if type(part) is float else part for part in (key if type(key) is tuple else (key,))]
    if any(part != part for part in parts):
        return None
    return tuple(parts) if type(key) is tuple else parts[0]


def without_nulls(plan: Plan, batch: Any) -> tuple[Any, LeftOut]:
    """Return an Arrow batch or table without the rows that have no time or no key (unless null is a key), and the
    number of these rows.

    O(1) without such rows and float keys. If rows are taken one by one (`Plan.by_column`), no row is left out here;
    `from_rows` leaves them out later.
    """
    names = (*plan.key, plan.timestamp)
    if not plan.by_column or not set(names) <= set(batch.column_names):
        return batch, LeftOut()
    keyed = batch
    for name in plan.key if plan.null_keys == "skip" else ():
        keyed = _with_values(keyed, name)
    kept = _with_values(keyed, plan.timestamp)
    return kept, LeftOut(batch.num_rows - keyed.num_rows, keyed.num_rows - kept.num_rows)


def _with_values(batch: Any, name: str) -> Any:
    """Return an Arrow batch or table without the rows in which a column is null or nan."""
    column = batch.column(name)
    if not (column.null_count or _of_floats(column)):
        return batch
    import pyarrow.compute as pc

    return batch.filter(pc.invert(pc.is_null(column, nan_is_null=True)))


def _of_floats(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(column.type))


def key_columns(plan: Plan, batch: Any) -> list[Any]:
    """Return the keys of an Arrow batch or table in the stored form: one column of text if null is a key, else the key
    columns with 0.0 for -0.0. O(rows).
    """
    columns = [batch.column(name) for name in plan.key]
    if plan.null_keys == "group":
        return [stored_column(columns)]
    from .columns.buffers import array_of, numbers_of

    return [array_of(numbers_of(column) + 0.0) if _of_floats(column) else column for column in columns]


def from_arrow(plan: Plan, batch: Any, first: int = 0) -> Records:
    """Convert an Arrow batch or table to columns, without making rows if the topology allows this; see `from_rows`.

    O(rows).
    """
    traced = plan.traced
    if not plan.by_column:
        carried = [name for name in (ROW, ERROR) if name in batch.column_names]
        rows = batch.drop_columns(carried) if carried else batch
        records = from_rows(plan, rows_of_arrow(rows), first)
        return records._replace(source=batch) if traced else records
    needed = plan.columns or (*plan.key, plan.timestamp)
    missing = [name for name in needed if name not in batch.column_names]
    if missing:
        raise ValueError(f"column {missing[0]!r} is missing: found {', '.join(batch.column_names)}")
    assert plan.aggregates is not None
    batch, left_out = without_nulls(plan, batch)
    parts = list(map(arrow_list, key_columns(plan, batch)))
    keys = joined_keys(parts, batch.num_rows)
    timestamps = batch.column(plan.timestamp)
    times = arrow_times(timestamps, plan.timestamp)
    values = plan.aggregates.projected(ArrowColumns(batch, times, (ROW, ERROR)), len(keys))
    return Records(keys, values, times, arrow_to_time(timestamps.type), left_out, batch if traced else None)


def size_of(part: Any) -> int:
    """Return the number of rows of an Arrow table or of records. O(1)."""
    rows: int = len(part.keys) if isinstance(part, Records) else part.num_rows
    return rows


def rows_at(source: Any, places: list[int]) -> list[dict[str, Any]]:
    """Return rows of a list or an Arrow table as plain dicts, with Python's values. O(places)."""
    if not is_arrow(source):
        return python_rows([dict(as_row(source[place])) for place in places])
    from .columns.buffers import taken_at

    return rows_of_arrow(taken_at(source, places))


def canonical_order(keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[int]:
    """Return the indices in the order in which the records of one commit are processed: by time, key, and value.

    The order does not depend on the order of arrival, so every attempt on every engine gives the same results. Records
    with equal time, key and value are equal for every later step. O(n log n).
    """
    indices = sorted(range(len(times)), key=times.__getitem__)
    if _ascending(times, indices):
        return indices
    try:
        rows = list(zip(times, keys, values, strict=True))
        return sorted(indices, key=rows.__getitem__)
    # Values that Python cannot compare, such as None beside a number or a decimal NaN, are compared in packed form, but
    # no other values: the order of a key's rows must not depend on the keys beside it.
    except (TypeError, InvalidOperation):
        pairs = list(zip(times, keys, strict=True))
        groups = groupby(sorted(indices, key=pairs.__getitem__), key=pairs.__getitem__)
        return [place for _, places in groups for place in _by_value(list(places), values)]


def _by_value(places: list[int], values: Sequence[Any]) -> list[int]:
    if len(places) == 1:  # few rows have the time and the key of another one
        return places
    try:
        return sorted(places, key=values.__getitem__)
    except (TypeError, InvalidOperation):
        return sorted(places, key=lambda place: pack(values[place]))


def _ascending(times: Sequence[int], indices: list[int]) -> bool:
    ordered = itemgetter(*indices)(times) if len(indices) > 1 else ()
    return len(set(ordered)) == len(ordered)
