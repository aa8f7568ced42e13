"""Why: the reasons to process an Arrow batch row by row instead of by column, as values for metrics.

Both ways give the same results and changelog; by column a row costs a fraction.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from ...aggregation import Aggregator, HoppingWindows, OfRows, Projection, SessionWindows, SlidingWindows
from ..plan import Plan

COMPUTED: Final = frozenset({"sum", "mean", "min", "max"})
ADDED: Final = frozenset({"count", "sum", "mean"})
TAKEN: Final = ADDED | COMPUTED


class Why(StrEnum):
    """Why a batch is processed row by row; the value is the sentence that metrics show."""

    # of the topology
    NO_NUMPY = "numpy or pyarrow is not installed"
    WHOLE_ROWS = "map, filter, process and aggregates of whole rows take rows"
    WINDOWS = "session windows and KafkaSlidingWindows have no way by column"
    SUPPRESSED = "hold takes results one by one"
    AGGREGATES = "an aggregator has no way by column with this emit"
    WATERMARK = "sliding windows by a watermark let records wait one by one"
    # of the batch
    NO_ROWS = "no rows"
    FEW_ROWS = "so few rows take less time one by one"
    MISSING = "a column is missing"
    TIMES = "times are null, before 1970, or neither timestamps nor whole numbers"
    KEYS = "keys are null, or neither text nor whole numbers"
    VALUES = "values are not numbers that can be added by column"
    NULLS = "values are null, and every record has a result"
    LARGE = "numbers are too large to be summed exactly by column"
    ORDER = "rows of one key and time have values without an order by column"
    # of the batch and the state
    STEPPED = "rows of the same commit were processed one by one"
    LATE = "records are too late for windows that the watermark closes in this batch"
    SPREAD = "times are too far apart for windows that are aligned, or of local days"
    STORED = "what is stored is a decimal, a float where whole numbers come, or too large"


def never(plan: Plan, *, clocked: bool) -> Why | None:
    """Return why no batch of a plan can go by column, or None if it depends on the batch. O(aggregates)."""
    windows = plan.windows
    if find_spec("numpy") is None or find_spec("pyarrow") is None:
        return Why.NO_NUMPY
    # `where` is a function of whole rows, which is asked for the rows of windows that only add up
    adds_up = plan.emit != "record" and not isinstance(windows, SlidingWindows)
    if not plan.columns and not (adds_up and plan.by_column and None not in plan.combined.columns):
        return Why.WHOLE_ROWS
    if isinstance(windows, SessionWindows) or (isinstance(windows, SlidingWindows) and windows.flavour == "kafka"):
        return Why.WINDOWS
    if plan.suppression is not None:
        return Why.SUPPRESSED
    if any(isinstance(column, Projection) for column in plan.combined.columns) and not adds_up:
        return Why.AGGREGATES
    if isinstance(windows, SlidingWindows):
        return Why.WATERMARK if clocked else None
    taken = ADDED if plan.emit == "record" else TAKEN
    apart = adds_up and not isinstance(windows, HoppingWindows)
    if all(part.name in taken or (apart and (tallied(part) or picked(part))) for part in plan.combined.parts):
        return None
    return Why.AGGREGATES


def tallied(part: Aggregator) -> bool:
    """Whether the aggregate is distinct values with their counts, of which the result shows no order."""
    return part.name == "count_distinct" and not part.parameters  # a sketch has parameters


def picked(part: Aggregator) -> bool:
    """Whether the aggregate is one row, or a number of rows, of which some columns are chosen."""
    return isinstance(part, OfRows) and part.chosen_columns is not None
