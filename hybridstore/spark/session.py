"""Session: the settings without which Spark may leave the operator out of a batch, and the check of them in every
task.
"""

from __future__ import annotations

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
