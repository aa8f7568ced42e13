"""Twenty programs with a bug each, and their right twins: what users write, and what does not show in a first test.

Every program is a function that returns its topology, so that other processes can import it.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import hybridstore as hs

Row = dict[str, Any]
Program = Callable[[], hs.Topology]
BASE = 1_704_067_200_000
SHOPS = hs.stream(key="user", timestamp="ts")
GRACE = "30 seconds"
SEEN = hs.key_value_store("seen")
COUNTS: dict[str, int] = {}
RATES: dict[str, float] = {}
NUMBERS = itertools.count()


def rows(count: int = 80) -> list[Row]:
    """Purchases in order of time, none at the same time, some of them twice."""
    dice, now, result = random.Random(7), BASE, list[Row]()
    for number in range(count):
        now += dice.choice([1, 400, 2_000, 9_000])
        row = {"user": f"user {dice.randrange(6)}", "ts": now, "id": number // 2, "price": dice.randrange(1, 999) / 100}
        result.append({**row, "tags": dice.sample(["new", "gift", "sale", "club", "late"], 3)})
    return result


def per_row(function: Callable[..., Any], *stores: Any) -> hs.Topology:
    return SHOPS.process(function, stores=list(stores or (SEEN,)))


# --- time -------------------------------------------------------------------------------------------------------------


def clock_in_a_result() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "day": date.today().isoformat()}])


def day_of_the_row() -> hs.Topology:
    return per_row(
        lambda row, stores: [{"user": row["user"], "day": str(datetime.fromtimestamp(row["ts"] // 1000, UTC))}]
    )


def clock_for_sessions() -> hs.Topology:
    def visit(row: Row, stores: Any) -> Iterator[Row]:
        hour = int(time.time() // 3600)
        yield {"user": row["user"], "visit": f"{row['user']} {hour}"}

    return per_row(visit)


def time_for_sessions() -> hs.Topology:
    def visit(row: Row, stores: Any) -> Iterator[Row]:
        yield {"user": row["user"], "visit": f"{row['user']} {stores.time // 3_600_000}"}

    return per_row(visit)


def local_hour() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "hour": datetime.fromtimestamp(row["ts"] / 1000).hour}])


def utc_hour() -> hs.Topology:
    return per_row(
        lambda row, stores: [{"user": row["user"], "hour": datetime.fromtimestamp(row["ts"] / 1000, UTC).hour}]
    )


# --- chance -----------------------------------------------------------------------------------------------------------


def order_of_a_set() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "tags": ",".join({*row["tags"], "all"})}])


def sorted_set() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "tags": ",".join(sorted({*row["tags"], "all"}))}])


def hash_of_text() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "half": hash(row["user"]) % 1024}])


def sum_of_bytes() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "half": sum(row["user"].encode()) % 1024}])


def sample_by_chance() -> hs.Topology:
    return SHOPS.filter(lambda row: random.random() < 0.5).aggregate(emit="commit", n=hs.Count())


def sample_by_number() -> hs.Topology:
    return SHOPS.filter(lambda row: row["id"] % 2 == 0).aggregate(emit="commit", n=hs.Count())


# --- state beside the stores ------------------------------------------------------------------------------------------


def global_dict() -> hs.Topology:
    def count(row: Row, stores: Any) -> Iterator[Row]:
        COUNTS[row["user"]] = COUNTS.get(row["user"], 0) + 1
        yield {"user": row["user"], "n": COUNTS[row["user"]]}

    return per_row(count)


def counted(row: Row, stores: Any) -> Iterator[Row]:
    n = (stores["seen"].get(row["user"]) or 0) + 1
    stores["seen"].put(row["user"], n)
    yield {"user": row["user"], "n": n}


def store_of_counts() -> hs.Topology:
    return per_row(counted)


def rate_of(row: Row, stores: Any) -> float:
    """Return the rate of a user, which is that of the newest gift or 1."""
    rate: float = stores["seen"].get(row["user"]) or 1.0
    if "gift" in row["tags"]:
        stores["seen"].put(row["user"], row["price"])
    return rate


def rate_remembered() -> hs.Topology:
    """Each run in this process has the rates of the first one."""

    def convert(row: Row, stores: Any) -> Iterator[Row]:
        rate = rate_of(row, stores)
        yield {"user": row["user"], "ts": row["ts"], "rate": RATES.setdefault(row["user"], rate)}

    return per_row(convert)


def rate_from_the_store() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "ts": row["ts"], "rate": rate_of(row, stores)}])


class InAnAttribute:
    def __init__(self, stores: Any) -> None:
        self.counts: dict[str, int] = {}

    def process(self, row: Row) -> Iterator[Row]:
        self.counts[row["user"]] = self.counts.get(row["user"], 0) + 1
        yield {"user": row["user"], "n": self.counts[row["user"]]}


def attribute() -> hs.Topology:
    return per_row(InAnAttribute)


def default_argument() -> hs.Topology:
    def first(row: Row, stores: Any, seen: list[str] = []) -> Iterator[Row]:  # noqa: B006  # the bug
        seen.append(row["user"])
        yield {"user": row["user"], "n": seen.count(row["user"])}

    return per_row(first)


def numbers_of_the_process() -> hs.Topology:
    return per_row(lambda row, stores: [{"user": row["user"], "number": next(NUMBERS)}])


def numbers_of_the_user() -> hs.Topology:
    return per_row(counted)


def every_third_row() -> hs.Topology:
    number = itertools.count()
    return SHOPS.filter(lambda row: next(number) % 3 == 0).aggregate(emit="commit", n=hs.Count())


def every_third_number() -> hs.Topology:
    return SHOPS.filter(lambda row: row["id"] % 3 == 0).aggregate(emit="commit", n=hs.Count())


def file_beside_the_program() -> hs.Topology:
    def log(row: Row, stores: Any) -> Iterator[Row]:
        with Path("purchases.log").open("a+") as file:
            file.write(f"{row['user']}\n")
            file.seek(0)
            yield {"user": row["user"], "n": file.read().count(row["user"])}

    return per_row(log)


# --- values -----------------------------------------------------------------------------------------------------------


def value_changed_in_place() -> hs.Topology:
    def collect(row: Row, stores: Any) -> Iterator[Row]:
        ids = stores["seen"].get(row["user"])
        if ids is None:
            stores["seen"].put(row["user"], [row["id"]])
        else:
            ids.append(row["id"])  # and no put
        yield {"user": row["user"], "n": len(stores["seen"].get(row["user"]))}

    return per_row(collect)


def value_put_again() -> hs.Topology:
    def collect(row: Row, stores: Any) -> Iterator[Row]:
        ids = [*(stores["seen"].get(row["user"]) or []), row["id"]]
        stores["seen"].put(row["user"], ids)
        yield {"user": row["user"], "n": len(ids)}

    return per_row(collect)


def row_changed_in_place() -> hs.Topology:
    def with_tax(row: Row) -> Row:
        row["price"] *= 2
        return row

    return SHOPS.map(with_tax).aggregate(emit="commit", total=hs.Sum("price"))


def row_copied() -> hs.Topology:
    return SHOPS.map(lambda row: {**row, "price": row["price"] * 2}).aggregate(emit="commit", total=hs.Sum("price"))


# --- order ------------------------------------------------------------------------------------------------------------


def late_rows_forgotten() -> hs.Topology:
    return SHOPS.windowed_by(hs.TumblingWindows("10 seconds", grace=0)).aggregate(emit="close", n=hs.Count())


def late_rows_waited_for() -> hs.Topology:
    return SHOPS.windowed_by(hs.TumblingWindows("10 seconds", grace=GRACE)).aggregate(emit="close", n=hs.Count())


def last_to_arrive() -> hs.Topology:
    return SHOPS.aggregate(emit="commit", price=hs.Reduce(lambda old, new: new, name="newest").on("price"))


def latest() -> hs.Topology:
    return SHOPS.aggregate(emit="commit", price=hs.Last("price"))


def float_equality() -> hs.Topology:
    def paid(row: Row, stores: Any) -> Iterator[Row]:
        total = (stores["seen"].get(row["user"]) or 0.0) + row["price"]
        stores["seen"].put(row["user"], total)
        yield {"user": row["user"], "whole": total == round(total, 2)}

    return per_row(paid)


def whole_cents() -> hs.Topology:
    def paid(row: Row, stores: Any) -> Iterator[Row]:
        total = (stores["seen"].get(row["user"]) or 0) + round(row["price"] * 100)
        stores["seen"].put(row["user"], total)
        yield {"user": row["user"], "whole": total % 100 == 0}

    return per_row(paid)


def mean_of_means() -> hs.Topology:
    mean = hs.Aggregator(
        init=lambda: None,
        add=lambda old, price: price if old is None else (old + price) / 2,
        merge=lambda old, new: new if old is None else old if new is None else (old + new) / 2,
        name="mean",
    )
    return SHOPS.windowed_by(hs.SessionWindows("5 seconds", grace=GRACE)).aggregate(emit="close", mean=mean.on("price"))


def true_mean() -> hs.Topology:
    return SHOPS.windowed_by(hs.SessionWindows("5 seconds", grace=GRACE)).aggregate(emit="close", mean=hs.Mean("price"))


def since_the_row_before() -> hs.Topology:
    def waited(row: Row, stores: Any) -> Iterator[Row]:
        before, longest = stores["seen"].get(row["user"]) or (row["ts"], 0)
        longest = max(longest, row["ts"] - before)
        stores["seen"].put(row["user"], (row["ts"], longest))
        yield {"user": row["user"], "longest": longest}

    return per_row(waited)


def first_to_last() -> hs.Topology:
    return SHOPS.aggregate(emit="commit", first=hs.Min("ts"), last=hs.Max("ts"))


def first_of_an_id(row: Row, stores: Any) -> Iterator[Row]:
    if stores["seen"].put_if_absent(row["id"], 1, ts=row["ts"]) is None:
        yield {"id": row["id"]}


def duplicates_forgotten_too_soon() -> hs.Topology:
    seen = hs.key_value_store("seen", ttl="10 seconds")
    return hs.stream(key="id", timestamp="ts").process(first_of_an_id, stores=[seen])


def duplicates_remembered() -> hs.Topology:
    seen = hs.key_value_store("seen", ttl="1 hour")
    return hs.stream(key="id", timestamp="ts").process(first_of_an_id, stores=[seen])


# --- commits and shards -----------------------------------------------------------------------------------------------


class RowsOfACommit:
    def __init__(self, stores: Any) -> None:
        self.rows = 0

    def process(self, row: Row) -> None:
        self.rows += 1

    def finish(self) -> Iterator[Row]:
        yield {"user": "all", "rows": self.rows}
        self.rows = 0


def rows_of_a_commit() -> hs.Topology:
    return per_row(RowsOfACommit)


def users_of_a_shard() -> hs.Topology:
    def rank(row: Row, stores: Any) -> Iterator[Row]:
        stores["seen"].put_if_absent(row["user"], 1)
        yield {"user": row["user"], "users": sum(1 for _ in stores["seen"].all())}

    return per_row(rank)


def users_of_all() -> hs.Topology:
    return hs.stream(timestamp="ts").aggregate(emit="commit", users=hs.CountDistinct("user"))


# --- what these tools do not see --------------------------------------------------------------------------------------


def logged(row: Row, stores: Any) -> Iterator[Row]:
    for store in stores.values():
        store.put(row["user"], row["id"], ts=row["ts"])
    yield {"user": row["user"], "ts": row["ts"]}


def store_that_grows() -> hs.Topology:
    return per_row(logged, hs.window_store("log", retention="1000 weeks"))


def store_that_expires() -> hs.Topology:
    return per_row(logged, hs.window_store("log", retention="1 minute"))


class Planted(NamedTuple):
    """A bug: the program, its right twin, and the columns by which results are known."""

    bug: Program
    twin: Program
    by: str | None = None


PLANTED = {
    "the clock in a result": Planted(clock_in_a_result, day_of_the_row),
    "the clock for sessions": Planted(clock_for_sessions, time_for_sessions),
    "the time zone of the machine": Planted(local_hour, utc_hour),
    "the order of a set": Planted(order_of_a_set, sorted_set),
    "the hash of a text": Planted(hash_of_text, sum_of_bytes),
    "a sample by chance": Planted(sample_by_chance, sample_by_number),
    "a global dict": Planted(global_dict, store_of_counts, "user"),
    "an attribute of the class": Planted(attribute, store_of_counts, "user"),
    "a default argument": Planted(default_argument, store_of_counts, "user"),
    "numbers of the process": Planted(numbers_of_the_process, numbers_of_the_user, "user"),
    "a filter that counts": Planted(every_third_row, every_third_number),
    "a file beside the program": Planted(file_beside_the_program, store_of_counts, "user"),
    "a value changed in place": Planted(value_changed_in_place, value_put_again, "user"),
    "a row changed in place": Planted(row_changed_in_place, row_copied),
    "late rows forgotten": Planted(late_rows_forgotten, late_rows_waited_for),
    "the last to arrive": Planted(last_to_arrive, latest),
    "equality of floats": Planted(float_equality, whole_cents, "user"),
    "a merge that is not associative": Planted(mean_of_means, true_mean),
    "since the row before": Planted(since_the_row_before, first_to_last, "user"),
    "duplicates forgotten too soon": Planted(duplicates_forgotten_too_soon, duplicates_remembered),
    "rows of a commit": Planted(rows_of_a_commit, store_of_counts, "user"),
    "users of a shard": Planted(users_of_a_shard, users_of_all),
    "a store that grows for ever": Planted(store_that_grows, store_that_expires),
}
