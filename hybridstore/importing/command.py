"""The command `import`: the state of a stopped query of Spark's own operators, for a job of ours."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from changelog.installed import installed

from ..inspection.options import FINE, NEGATIVE, UsageError, imported, last_options, named_texts
from ..progress import Progress
from ..reading.texts import say
from .report import ImportRefusedError


def arguments(parser: ArgumentParser) -> None:
    text = "Number of the stateful operator; left out for a query of one."
    parser.add_argument("operator", metavar="OPERATOR", nargs="?", help=text)
    what = parser.add_argument_group("what is moved, and where to")
    text = "The checkpointLocation of the stopped query, with state of Spark's own operators."
    what.add_argument("--from-spark", metavar="CHECKPOINT", required=True, help=text)
    text = (
        "A function that takes a session of Spark and returns what `apply` has returned for the new query "
        "(jobs.clicks:applied). Left out: only show the operators."
    )
    what.add_argument("--job", metavar="MODULE:NAME", help=text)
    how = parser.add_argument_group("how")
    text = "The topology's aggregates in the order of the old query's, if they are declared in another order."
    how.add_argument("--order", metavar="NAME,NAME", help=text)
    text = "How a key column of the topology follows from Spark's: an SQL expression. May be given several times."
    how.add_argument("--column", metavar="NAME=EXPRESSION", action="append", default=[], help=text)
    last_options(how, progress=True)


def run(given: Namespace) -> int:
    """Let a query of Spark's own operators (aggregations, dropDuplicates, session windows, transformWithState,
    applyInPandasWithState) go on as a job of ours, at the next rows of its sources and with the old watermark.

    The job's module is imported and its function called, so its code runs, in this session of Spark (in a cluster:
    spark-submit). The old checkpoint stays as it is. Nothing counts before the whole state is in the new location.

    Exit codes: 0 done, 1 refused with nothing changed that counts, 2 wrong usage, 3 cannot read.
    """
    if given.operator is not None and not given.operator.isdecimal():
        raise UsageError(f"import: OPERATOR: found {given.operator!r}, expected the number of an operator")
    job = None if given.job is None else imported("--job", given.job, "jobs.clicks:applied")
    try:
        return _run(given, job)
    except ImportRefusedError as error:
        say(f"refused: {error}")
        return NEGATIVE


def _run(given: Namespace, job: Any) -> int:
    installed("import", "pyspark", "pip install 'hybridstore[spark]'")
    from pyspark.sql import SparkSession

    from ..spark.session import configure
    from .api import import_spark
    from .spark_state import operators_of

    session = SparkSession.getActiveSession() or configure(SparkSession.builder).getOrCreate()
    if job is None:
        for operator in operators_of(session, given.from_spark):
            print(operator)
        return FINE
    with Progress("import", shown=not given.no_progress) as progress:
        report = import_spark(
            given.from_spark,
            job(session),
            None if given.operator is None else int(given.operator),
            order=None if given.order is None else given.order.split(","),
            columns=named_texts("--column", given.column, "NAME=EXPRESSION", "user=lower(name)") or None,
            progress=progress,
        )
    for sentence in report.sentences():
        print(sentence)
    return FINE
