"""Observing: the numbers of each batch, in Spark's own progress of the query.

    our operator ─ results, and behind those of a task a row of its numbers ─▶ observe ─▶ filter ─▶ results
                                                                                  └▶ lastProgress.observedMetrics

Spark adds the numbers of all tasks up, as for any `DataFrame.observe`, and gives them to listeners. The row of numbers
never reaches what is behind the operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .operator import applied, remember
from .shipped import carried
from .task_numbers import COLUMN, NUMBERS
from .worker import ShardFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def observed(results: DataFrame) -> DataFrame:
    """Return the results of an operator so that Spark's progress of the query has the operator's numbers.

    results  what `topology.apply`, `apply_program`, `transform_with_state`, ... has returned, as it is

    After each batch `query.lastProgress.observedMetrics["hybridstore:NAME"]` has, for the operator of that name: shards
    that had rows or ticks, rows, rows_out, late, null_key and null_timestamp (rows left out); over Spark Connect the
    values in this order. Listeners get the same (`StreamingQueryListener`); `explain` shows a node `CollectMetrics`.
    Use the result once in a query: Spark takes a name once. An action that reads only a part of the results (`limit`)
    counts only the tasks that it has run.

    Raises ValueError for a DataFrame that `apply` has not returned.

    >>> totals = hs.stream(key="user", timestamp="ts").aggregate(n=hs.Count(), emit="commit")
    >>> results = hsp.observed(totals.apply(events, "totals", location=location, shards=1))
    >>> query = results.writeStream.format("noop").option("checkpointLocation", location).start()
    >>> query.processAllAvailable()
    >>> query.recentProgress[0].observedMetrics["hybridstore:totals"].rows
    2
    >>> query.stop()
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import LongType, StructField, StructType

    known = applied(results)
    operator = replace(known.operator, observed=True)
    # a row of numbers has nulls in all other columns
    fields = [StructField(field.name, field.dataType, True, field.metadata) for field in known.output]
    numbers = StructType([StructField(name, LongType()) for name in NUMBERS])
    output = StructType([*fields, StructField(COLUMN, numbers)])
    rows = known.lying.mapInArrow(carried(ShardFunction(operator)), output)
    sums = [f.coalesce(f.sum(f"{COLUMN}.{name}"), f.lit(0)).alias(name) for name in NUMBERS]
    seen = rows.observe(f"hybridstore:{operator.name}", *sums).where(f.col(COLUMN).isNull()).drop(COLUMN)
    remember(seen, known)
    return seen
