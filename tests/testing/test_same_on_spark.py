"""same_on_spark: right programs pass in a session of Spark, and a program that Spark runs otherwise is found."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore import testing as ht
from tests.conftest import STRESS
from tests.testing import planted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SALES = hs.stream(key="user", timestamp="ts")
MINUTES = SALES.windowed_by(hs.TumblingWindows("1 minute", grace="30 seconds"))


def counted(row: dict[str, Any], stores: Any) -> Any:
    number = (stores["seen"].get(row["user"]) or 0) + 1
    stores["seen"].put(row["user"], number)
    yield {"user": row["user"], "n": number}


def payments(count: int = 40) -> dict[str, list[dict[str, Any]]]:
    """Orders and their payments, some without a partner, in order of time."""
    dice = random.Random(3)
    orders = [{"id": f"o{n}", "placed": planted.BASE + 700 * n, "price": n} for n in range(count)]
    paid = [
        {"order": f"o{n}", "paid": planted.BASE + 700 * n + dice.randrange(3000), "by": dice.choice(["card", "bill"])}
        for n in range(count)
        if dice.random() < 0.8
    ]
    return {"orders": orders, "payments": sorted(paid, key=lambda row: row["paid"])}


ORDERS = hs.stream(name="orders", key="id", timestamp="placed", columns=["price"])
PAYMENTS = hs.stream(name="payments", key="order", timestamp="paid", columns=["by"])
# A program, its rows, the columns by which a result is known.
RIGHT: dict[str, tuple[Any, Any, str | None]] = {
    "windows, each commit": (MINUTES.aggregate(emit="commit", n=hs.Count(), total=hs.Sum("price")), None, None),
    "windows, at their end": (MINUTES.aggregate(emit="close", n=hs.Count(), most=hs.Max("price")), None, None),
    "a function": (
        SALES.process(counted, "user string, n long", stores=[hs.key_value_store("seen")]),
        None,
        "user",
    ),
    "a join": (ORDERS.join(PAYMENTS, within="10 seconds", how="left"), payments(), None),
}


def test_right_programs_give_the_same_on_spark(spark: SparkSession) -> None:
    """One session and one test: a query takes seconds."""
    for name, (program, rows, by) in RIGHT.items():
        if name == "windows, each commit" and not STRESS:
            continue  # what is emitted at the end of windows was counted in them
        rows = rows or planted.rows()
        way = ht.same_on_spark(spark, batches=None if STRESS else 3)
        ht.check(program, rows, way, by=by, shards=2, seed=len(name))


def test_a_program_that_spark_runs_otherwise_is_found(spark: SparkSession) -> None:
    """A column with whole numbers only in some rows: Spark has one type."""
    with pytest.raises(ht.DifferentResultsError, match=r"same_on_spark\(\), seed 0: \d+ batches"):
        ht.check(mixed, planted.rows(), ht.same_on_spark(spark, batches=None if STRESS else 1))


def mixed() -> hs.Topology:
    def name(row: dict[str, Any], stores: Any) -> Any:
        yield {"user": row["user"], "price": row["price"] if row["id"] % 2 else 0}

    return SALES.process(name, "user string, price double", stores=[hs.key_value_store("seen")])
