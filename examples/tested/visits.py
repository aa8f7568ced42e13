"""The program that `test_visits.py` tests: visits of a shop, and reminders for carts that nobody paid."""

from collections.abc import Iterator
from typing import Any

import hybridstore as hs

GRACE = "30 seconds"
clicks = hs.stream(key="user", timestamp="ts")

visits = (
    clicks.filter(lambda row: row["page"] != "/health")
    .windowed_by(hs.SessionWindows("5 minutes", grace=GRACE))
    .aggregate(emit="close", pages=hs.Count(), spent=hs.Sum("price"))
)


def remember(row: dict[str, Any], stores: Any) -> None:
    """A cart is remembered for ten minutes; whoever pays has none."""
    stores.timers.clear()
    if row["page"] == "/pay":
        stores["carts"].delete(row["user"])
    elif row["page"] == "/cart":
        stores["carts"].put(row["user"], (stores["carts"].get(row["user"]) or 0) + row["price"])
        stores.timers.set(stores.time + 600_000)


def remind(timer: Any, stores: Any) -> Iterator[dict[str, Any]]:
    """Nobody paid in time."""
    yield {"user": timer.key, "waits": stores["carts"].get(timer.key)}
    stores["carts"].delete(timer.key)


reminders = clicks.process(remember, "user string, waits double", [hs.key_value_store("carts")], on_timer=remind)
