"""Session: the settings without which Spark may leave the operator out of a batch, and the check of them in every
task.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from .errors import SparkSetupError

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
EMPTY_RULE: Final = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
RUN_ID: Final = "spark.jobGroup.id"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
CONTINUOUS: Final = "__is_continuous_processing"


def _with_rule(rules: str | None) -> str:
    present = [rule.strip() for rule in (rules or "").split(",") if rule.strip()]
    return ",".join(present if EMPTY_RULE in present else [*present, EMPTY_RULE])


def configure(builder_or_session: Any) -> Any:
    """Set what a query with hybridstore operators needs, before it is started, and return what was given.

    Turns adaptive execution off and excludes the rule PropagateEmptyRelation (either may leave the operator out of a
    batch). On a builder it also asks for Unix sockets between Spark and its Python workers, which takes 5-40 ms off
    every batch.
    """
    session = builder_or_session
    if hasattr(session, "getOrCreate"):
        asked = getattr(session, "_options", {})
        return (
            session.config(ADAPTIVE, "false")
            .config(EXCLUDED, _with_rule(asked.get(EXCLUDED)))
            .config(SOCKETS, asked.get(SOCKETS, "true"))
        )
    session.conf.set(ADAPTIVE, "false")
    session.conf.set(EXCLUDED, _with_rule(session.conf.get(EXCLUDED, "")))
    return session


def check_session(get: Callable[[str], str | None]) -> None:
    """Raise SparkSetupError unless the settings seen through `get` are those that `configure` makes."""
    adaptive, rules = get(ADAPTIVE), get(EXCLUDED)
    if (adaptive or "true").lower() != "false":
        raise SparkSetupError(
            f"{ADAPTIVE}: found {adaptive or 'the default, true'}, expected false: adaptive execution may leave "
            "shards out of a batch (call hybridstore.spark.configure(spark) before the query starts)"
        )
    if EMPTY_RULE not in [rule.strip() for rule in (rules or "").split(",")]:
        raise SparkSetupError(
            f"{EXCLUDED}: found {rules or 'nothing'}, expected {EMPTY_RULE} among them: the rule may leave the "
            "operator out of a batch (call hybridstore.spark.configure(spark) before the query starts)"
        )


# Of what Spark adds to an executor's heap for everything outside of it, so much may be shards: Python itself, a batch's
# rows and the checkpoint in the making take the rest.
_SHARE: Final = 0.5
_LEAST_OVERHEAD: Final = 384 << 20
_BYTES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def share_of_overhead(get: Callable[[str, str], str | None]) -> int | None:
    """Return the bytes that the shards of one Python worker may hold: half of the executor's memory overhead (or of
    `spark.executor.pyspark.memory`, where that is set), shared by its cores.

    None where nothing bounds a worker: in local mode, and where neither an overhead nor the cores of an executor are
    set, as on a standalone master. `get` reads a setting, as `session.conf.get`.
    """
    master, cores = get("spark.master", "") or "", get("spark.executor.cores", "") or ""
    if master.startswith("local") or (not cores.isdecimal() and master.startswith("spark://")):
        return None
    limit = _size(get("spark.executor.pyspark.memory", "") or "") or _size(
        get("spark.executor.memoryOverhead", "") or ""
    )
    if limit is None:
        heap = _size(get("spark.executor.memory", "") or "1g") or 1 << 30
        limit = max(_LEAST_OVERHEAD, heap // 10)
    return int(limit * _SHARE) // max(1, int(cores) if cores.isdecimal() else 1)


def _size(text: str) -> int | None:
    """Return a size of Spark's in bytes (a number alone is MiB); None for what is none."""
    match = re.fullmatch(r"(\d+)\s*([bkmgt]?)b?", text.strip().lower())
    return int(match[1]) * _BYTES[match[2] or "m"] if match and int(match[1]) else None
