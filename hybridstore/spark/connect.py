"""Connect: the differences of a session that is a client of a Spark Connect server.

    driver                the process can reach the location, and the workers have its packages
    client                only the server can reach the location: a small job reads and creates the objects of `apply`

The methods of sessions and DataFrames used here are public in both.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from changelog.errors import HybridStoreError

from .errors import SparkSetupError
from .shipped import MISSING, carried

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Spark's mark on the schema of a column that has a watermark, and the name of the step in a plan.
DELAY: Final = "spark.watermarkDelayMs"
_STEP: Final = "EventTimeWatermark"
# The plan in which names are resolved, and in both plans the step of a grouping.
_ANALYZED: Final = "== Analyzed Logical Plan =="
_GROUPS: Final = re.compile(r"\bAggregate \[")
# Functions that Spark replaces by columns of their names, so that only the plan before has them.
_WINDOWS: Final = frozenset(("window", "session_window"))
# One plan at a time: the standard output of the process is what `explain` writes to.
_EXPLAINING: Final = Lock()
_ANSWER: Final = "answer string"
# The settings by which `foreach_batch` tells tasks their batch and run.
BATCH: Final = "spark.hybridstore.batch"
RUN: Final = "spark.hybridstore.run"
# Set by pyspark if this process has started the server: remote("local[2]").
LOCAL_SERVER: Final = "SPARK_LOCAL_REMOTE"


def is_client(session: Any) -> bool:
    """True for a session of Spark Connect, and for a builder of such sessions alone."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def on_this_machine(session: SparkSession) -> bool:
    """True if Spark's workers run on the machine of this process and were started by it."""
    if is_client(session):
        return LOCAL_SERVER in os.environ
    master: str = session.sparkContext.master or ""
    return master.startswith("local")


def parallelism(session: SparkSession) -> int | None:
    """Return how many tasks can run at once, None if a client cannot know."""
    if not is_client(session):
        return session.sparkContext.defaultParallelism
    master = session.conf.get("spark.master", "") or ""
    if not master.startswith("local"):
        return None
    number = master.partition("[")[2].rstrip("]").split(",")[0]
    return int(number) if number.isdigit() else 1 if master == "local" else None


def watermark_column(df: DataFrame) -> str | None:
    """Return the column of a DataFrame by which Spark decides that rows are late; None if none exists."""
    return next((field.name for field in df.schema if DELAY in (field.metadata or {})), None)


def has_watermark(df: DataFrame) -> bool:
    """Whether the plan of a DataFrame has a watermark in it, its own or that of an input. O(plan)."""
    if watermark_column(df) is not None:
        return True
    return _STEP in _plans(df)


def _plans(df: DataFrame) -> str:
    """Return the text of a DataFrame's plans."""
    text = StringIO()
    with _EXPLAINING, redirect_stdout(text):
        df.explain(mode="extended")
    return text.getvalue()


def grouping(grouped: Any, df: DataFrame) -> tuple[str, ...]:
    """Return the names of the columns of `df.groupBy(...)`, as `df` writes them. O(plan).

    Raises ValueError without columns, and for an expression, also if it is called as a column is.
    """
    counted = grouped.count()
    names = tuple(counted.columns[:-1])
    if not names:
        raise ValueError("groupBy: found no column, expected those of the key (a constant column for one group)")
    parsed, _, analyzed = _plans(counted).partition(_ANALYZED)
    columns = ", ".join(rf"{re.escape(name)}#\d+L?(-T\d+ms)?" for name in names)
    written, groups = (_behind(_GROUPS, plan) for plan in (parsed, analyzed))
    by_window = any(f"{name}(" in written.partition("], [")[0] for name in _WINDOWS.intersection(names))
    shortened = not groups or "more fields" in groups.partition("\n")[0]
    if by_window or (not shortened and not re.match(rf"{columns}\], ", groups)):
        raise ValueError(
            f"groupBy: found an expression called {', '.join(names)}, expected columns of the DataFrame "
            '(df.withColumn("name", expression).groupBy("name"))'
        )
    return tuple(_written(name, df.columns) for name in names)


def _behind(mark: re.Pattern[str], text: str) -> str:
    """Return the text behind the first mark in it, "" without one."""
    place = mark.search(text)
    return "" if place is None else text[place.end() :]


def _written(name: str, columns: Sequence[str]) -> str:
    """Return the name of a column as its DataFrame writes it, which may be in capitals."""
    same = [column for column in columns if column.lower() == name.lower()]
    return same[0] if name not in columns and len(same) == 1 else name


def run_near_location(session: SparkSession, question: Callable[[], Any]) -> Any:
    """Answer a question about the location: in this process, or for a client, which may not reach the location, in a
    worker of the server.

    A client's question is pickled, and its answer must fit in JSON. Raises what the question raises, and
    SparkSetupError where the server's workers lack hybridstore. One small job for a client, nothing else.
    """
    if not is_client(session):
        return question()
    from pyspark.errors import PythonException

    try:
        rows = session.range(1, numPartitions=1).mapInArrow(carried(Question(question)), _ANSWER).collect()
    except PythonException as error:
        sentence = next((line for line in str(error).splitlines() if MISSING in line), None)
        if sentence is None:
            raise
        raise SparkSetupError(sentence[sentence.index(MISSING) :]) from None
    answer = json.loads(rows[0][0])
    if "raised" in answer:
        raise _at_client(*answer["raised"])
    return answer["answer"]


def _at_client(name: str, text: str, fields: dict[str, Any]) -> HybridStoreError:
    """Return a worker's error with its own type; SparkSetupError for the operating system's errors, and for a type that
    no module of this process has.
    """
    kind = _kinds(HybridStoreError).get(name, SparkSetupError)
    # not by `__init__`, which may take parts of the text
    error = kind.__new__(kind, text)
    vars(error).update(fields)
    return error


def _kinds(kind: type[HybridStoreError]) -> dict[str, type[HybridStoreError]]:
    """Return a type of errors and the types below it, by name."""
    below = [_kinds(child) for child in kind.__subclasses__()]
    return {kind.__name__: kind, **{name: each for part in below for name, each in part.items()}}


def foreach_batch(function: Callable[[DataFrame, int], Any]) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that tells tasks their batch, then calls `function`.

    Spark Connect calls such a function in a separate process. Jobs of that process run outside of the query, so Spark
    tells their tasks neither the batch nor the query. Without Spark Connect the returned function only calls
    `function`.

    >>> def keep(df, batch):
    ...     print(batch, df.count())
    >>> writer = events.writeStream.foreachBatch(hsp.foreach_batch(keep)).option("checkpointLocation", location)
    >>> writer.trigger(availableNow=True).start().awaitTermination()
    0 2
    """
    return ForeachBatch(function)


class ForeachBatch:
    """See `foreach_batch`. Spark starts one process for each run of a query, so an object of this class represents
    one run.
    """

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function
        self._run = ""

    def __call__(self, df: DataFrame, number: int) -> None:
        session = df.sparkSession
        if is_client(session):
            self._run = self._run or uuid.uuid4().hex
            session.conf.set(BATCH, str(number))
            session.conf.set(RUN, self._run)
        self._function(df, number)


class Question:
    """A question as a function of `mapInArrow`: a row in, the answer out."""

    def __init__(self, content: Callable[[], Any]) -> None:
        self.content = content

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            if batch.num_rows:
                try:
                    answer = {"answer": self.content()}
                except (HybridStoreError, OSError) as error:
                    fields = {name: part for name, part in vars(error).items() if isinstance(part, str | int)}
                    answer = {"raised": (type(error).__name__, str(error), fields)}
                yield pa.RecordBatch.from_arrays([pa.array([json.dumps(answer)])], names=["answer"])
