"""Aggregation in memory: aggregators, windows, and sliding windows at the least cost their powers allow.

For an owner of state (a store):

    strategy = choose(aggregator, strategy=None)   # once a store; ValueError if the powers do not suffice
    state = strategy.new()                                    # once a key
    aggregate = state.update(ts, value, lo)                   # insert, expire all before lo, value(): the fast path
    state.insert(ts, value); state.expire(lo); state.value()  # the same in three calls; expire returns how many went
    len(state), iter(state) -> (ts, value), state.newest      # live records in event order; newest is -1 when empty
    times, values = state.columns()                           # array('q') and list: all that is persisted
    state = strategy.restore(times, values)                   # no adds until the first value(), then exactly N

For a topology: `Combined({"requests": Count(), "bytes": Sum("bytes")})` is one aggregator of projected rows
(`combined.project(row)`), whose results are tuples in the order of `combined.names`. `aggregator.describe()` and
`windows.describe()` are plain lists, to be stored and compared; `windows_of` makes windows of one. For windows whose
aggregates are themselves stored: `init`, `add`, `merge` (older session first), `finish(aggregate)` of an aggregator.

Nothing here knows stores or files.
"""

from .aggregator import Aggregator, independent_copy
from .combined import Combined
from .distinct import CountDistinct
from .grid import DAY_MS, described
from .kept import Collect, CollectSet, First, Last
from .laws import check_laws, nearly_equal
from .projection import Projection, Where, renamed_column
from .rows import FirstBy, LastBy, MaxBy, MinBy, OfRows
from .standard import Count, Max, Mean, Min, Reduce, Sum, TopK, Variance
from .strategy import STRATEGIES, best_strategy, choose
from .value_log import TimeLog
from .window_state import Strategy, WindowState
from .windows import (
    FOREVER,
    Forever,
    HoppingWindows,
    KafkaSlidingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    Windows,
    windows_of,
)

__all__ = [
    "DAY_MS",
    "FOREVER",
    "STRATEGIES",
    "Aggregator",
    "Collect",
    "CollectSet",
    "Combined",
    "Count",
    "CountDistinct",
    "First",
    "FirstBy",
    "Forever",
    "HoppingWindows",
    "KafkaSlidingWindows",
    "Last",
    "LastBy",
    "Max",
    "MaxBy",
    "Mean",
    "Min",
    "MinBy",
    "OfRows",
    "Projection",
    "Reduce",
    "SessionWindows",
    "SlidingWindows",
    "Strategy",
    "Sum",
    "TimeLog",
    "TopK",
    "TumblingWindows",
    "Variance",
    "Where",
    "WindowState",
    "Windows",
    "best_strategy",
    "check_laws",
    "choose",
    "described",
    "independent_copy",
    "nearly_equal",
    "renamed_column",
    "windows_of",
]
