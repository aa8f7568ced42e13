"""The choice of a strategy for an aggregator: by its declared powers, or by name.

exact subtract             subtract     1 add and 1 subtract a record
selects one value          monotone     no add, 2 or 3 comparisons
commutative merge          merge        about log32(N) + 1 adds and 1 merge
ordered merge              chunks       2 adds and about 3 merges
commutative, add only      ladder       log2(N) adds, the least possible
otherwise                  recompute    N adds, the least possible
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .aggregator import Aggregator, check_aggregator
from .chunks import Chunks
from .ladder import Ladder
from .merge_ladder import MergeLadder
from .monotone import Monotone
from .projection import Projection
from .recompute import Recompute
from .subtract import Subtract
from .window_state import Strategy

STRATEGIES: dict[str, Callable[[Aggregator], Strategy[Any]]] = {
    "chunks": Chunks,
    "ladder": Ladder,
    "merge": MergeLadder,
    "monotone": Monotone,
    "recompute": Recompute,
    "subtract": Subtract,
}
"""Every strategy by its name."""


def best_strategy(aggregator: Aggregator) -> str:
    """Return the name of the fastest strategy that is right for an aggregator's declared powers."""
    exact = bool(aggregator.exact_subtract)
    everywhere = aggregator.exact_subtract is True
    if aggregator.linear and not exact:
        return "recompute"
    if exact and (everywhere or (aggregator.commutative and aggregator.merge is not None)):
        return "subtract"
    if aggregator.better is not None:
        return "monotone"
    if aggregator.merge is not None:
        return "merge" if aggregator.commutative else "chunks"
    return "ladder" if aggregator.commutative else "recompute"


def choose(aggregator: Aggregator, strategy: str | None = None) -> Strategy[Any]:
    """Return the strategy for an aggregator: the named one, or the best that its powers allow.

    Raises ValueError for an unknown name and for a strategy whose needs the aggregator does not declare; TypeError for
    anything but an Aggregator.
    """
    check_aggregator(aggregator, "aggregator", "Sum()")
    if isinstance(aggregator.projection, Projection):
        raise ValueError(
            f"aggregator: found {aggregator!r}, which looks at rows, expected an aggregator of values (where= and by= "
            "are for aggregate(...) of a topology)"
        )
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(f"strategy: found {strategy!r}, expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[strategy or best_strategy(aggregator)](aggregator)
