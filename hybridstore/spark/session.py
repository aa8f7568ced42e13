"""Session: settings without which Spark may skip the operator in a batch, and their check in every task."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

from .connect import LOCAL_SERVER, is_client, on_this_machine
from .errors import SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = getLogger("hybridstore.spark")

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
EMPTY_RULE: Final = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
# The interpreter of Python workers: chosen when Spark starts, and chosen by a session's queries.
WORKERS: Final = "spark.pyspark.python"
EXECUTABLE: Final = "spark.sql.execution.pyspark.python"
# True: a client on this machine continues with the server that an earlier process has started.
_REUSE: Final = "spark.local.connect.reuse"
RUN_ID: Final = "spark.jobGroup.id"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
CONTINUOUS: Final = "__is_continuous_processing"


def _with_rule(rules: str | None) -> str:
    present = [rule.strip() for rule in (rules or "").split(",") if rule.strip()]
    return ",".join(present if EMPTY_RULE in present else [*present, EMPTY_RULE])


def configure(builder_or_session: Any) -> Any:
    """Set the settings that a query with hybridstore operators needs before the session is made, and return the
    argument.

    `apply` sets the settings that can be set later (`prepare`). On a builder this function selects Unix sockets between
    Spark and its Python workers, which saves 5-40 ms per batch. If the builder's master is `local`, the function also
    makes this interpreter the one of all Python workers, by the environment variable PYSPARK_PYTHON (unless it is set),
    including the workers that Spark starts for sources by name and for `foreachBatch` of Spark Connect. With a session
    the function calls `prepare`.

    >>> hsp.configure(spark).conf.get("spark.sql.adaptive.enabled")  # or hsp.configure(SparkSession.builder)
    'false'
    """
    if not hasattr(builder_or_session, "getOrCreate"):
        if not hasattr(builder_or_session, "conf"):
            kind = type(builder_or_session).__name__
            raise TypeError(f"configure: found {kind}, expected SparkSession.builder or a session")
        prepare(builder_or_session)
        return builder_or_session
    builder = builder_or_session
    asked = getattr(builder, "_options", {})
    builder = builder.config(ADAPTIVE, "false").config(EXCLUDED, _with_rule(asked.get(EXCLUDED)))
    # Spark reads the address of a server from the environment, too.
    remote = asked.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    master = asked.get("spark.master", "")
    if not _server_runs(builder, remote):
        builder = builder.config(SOCKETS, asked.get(SOCKETS, "true"))
    if (remote or master).startswith("local") and WORKERS not in asked:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder


def _server_runs(builder: Any, remote: str) -> bool:
    """True when a session of this builder is a client of a server that may run already, which has settings of its own,
    and would warn of a setting that it cannot change.
    """
    if is_client(builder) or (remote and not remote.startswith("local")) or LOCAL_SERVER in os.environ:
        return True
    asked = getattr(builder, "_options", {})
    return str(asked.get(_REUSE, os.environ.get("SPARK_LOCAL_CONNECT_REUSE", ""))).lower() in ("1", "true")


def prepare(session: SparkSession) -> None:
    """Set the settings of a session that a query with hybridstore operators needs, and log once what was set and why.

    Adaptive execution is switched off and the rule PropagateEmptyRelation excluded, because either may skip the
    operator in a batch. Spark's workers on this machine get this interpreter, unless another one was chosen. The
    settings are not undone: they are the session's, and hold for its other queries, too.
    """
    changed = []
    if (session.conf.get(ADAPTIVE, "true") or "").lower() != "false":
        session.conf.set(ADAPTIVE, "false")
        changed.append(f"{ADAPTIVE} to false (adaptive execution may leave shards out of a batch)")
    rules = session.conf.get(EXCLUDED, "") or ""
    if _with_rule(rules) != rules:
        session.conf.set(EXCLUDED, _with_rule(rules))
        changed.append(f"{EXCLUDED} to include PropagateEmptyRelation (the rule may leave out a batch without rows)")
    if _choose_interpreter(session):
        changed.append(f"the interpreter of Python workers to {sys.executable} (the one of this process)")
    if changed:
        _LOG.warning(
            "changed Spark session settings (they affect all its queries): %s; call "
            "hybridstore.spark.configure(builder) before creating the session to avoid this",
            ", ".join(changed),
        )


def _choose_interpreter(session: SparkSession) -> bool:
    """Make this interpreter the one of Python workers, if they run on this machine and no other one was chosen.

    Without it Spark takes the `python3` of PATH, which may lack hybridstore and the program.
    """
    chosen = "PYSPARK_PYTHON" in os.environ or session.conf.get(WORKERS, None)
    if chosen or not on_this_machine(session):
        return False
    if is_client(session):
        if session.conf.get(EXECUTABLE, None):
            return False
        session.conf.set(EXECUTABLE, sys.executable)
        return True
    context = session.sparkContext
    before, context.pythonExec = context.pythonExec, sys.executable
    return before != sys.executable


def check_session(get: Callable[[str], str | None]) -> None:
    """Raise SparkSetupError unless the settings seen through `get` are those that `configure` makes."""
    adaptive, rules = get(ADAPTIVE), get(EXCLUDED)
    if (adaptive or "true").lower() != "false":
        raise SparkSetupError(
            f"{ADAPTIVE}: found {adaptive or 'the default, true'}, expected false: adaptive execution may leave "
            "shards out of a batch (it was changed after `apply`: leave it as `apply` sets it)"
        )
    if EMPTY_RULE not in [rule.strip() for rule in (rules or "").split(",")]:
        raise SparkSetupError(
            f"{EXCLUDED}: found {rules or 'nothing'}, expected {EMPTY_RULE} among them: the rule may leave the "
            "operator out of a batch (it was changed after `apply`: leave it as `apply` sets it)"
        )


# The share of an executor's memory outside its heap that shards may use: Python itself, a batch's rows and the
# checkpoint in progress need the rest.
_SHARE: Final = 0.5
_LEAST_OVERHEAD: Final = 384 << 20


def share_of_overhead(get: Callable[[str, str], str | None]) -> int | None:
    """Return the bytes that the shards of one Python worker may hold: half of the executor's memory overhead (or of
    `spark.executor.pyspark.memory`, if that is set), shared by its cores.

    None if no setting bounds a worker: in local mode, and if neither an overhead nor the cores of an executor are set,
    as on a standalone master. `get` reads a setting, as `session.conf.get`.
    """
    master, cores = get("spark.master", "") or "", get("spark.executor.cores", "") or ""
    if master.startswith("local") or (not cores.isdecimal() and master.startswith("spark://")):
        return None
    names = ("spark.executor.pyspark.memory", "spark.executor.memoryOverhead", "spark.executor.memory")
    python, overhead, heap = (size_of(get(name, "") or "", "m") for name in names)
    limit = python or overhead or max(_LEAST_OVERHEAD, (heap or 1 << 30) // 10)
    return int(limit * _SHARE) // max(1, int(cores) if cores.isdecimal() else 1)


def size_of(text: str, unit: str) -> int | None:
    """Return one of Spark's sizes, `2`, `64m`, `64MB`, in bytes; a number alone is of the unit. None for other text."""
    match = re.fullmatch(r"(\d+)\s*([bkmgtp]?)b?", text.strip().lower())
    return int(match[1]) << 10 * "bkmgtp".index(match[2] or unit) if match else None
