"""Queries of the Nexmark benchmark over bids: what an auction house reports, each as one topology.

    q15  a day: bids, bidders and auctions, in all and by three ranks of price
    q16  the same for each channel
    q17  a day of an auction: bids by rank, and their least, greatest, mean and summed prices
    q18  the last bid of each bidder in each auction
    q19  the ten highest bids of each auction

Run as a script it prints the last results over some made bids. The same topologies run on Spark with `apply`.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import hybridstore as hs

Bid = dict[str, Any]
DAY_MS = 86_400_000


def cheap(bid: Bid) -> bool:
    """Rank 1 of price."""
    return bool(bid["price"] < 10_000)


def middling(bid: Bid) -> bool:
    """Rank 2 of price."""
    return 10_000 <= bid["price"] < 1_000_000


def dear(bid: Bid) -> bool:
    """Rank 3 of price."""
    return bool(bid["price"] >= 1_000_000)


RANKS: tuple[Callable[[Bid], bool] | None, ...] = (None, cheap, middling, dear)


def ranked(name: str, make: Callable[[Callable[[Bid], bool] | None], hs.Aggregator]) -> dict[str, hs.Aggregator]:
    """An aggregate of all bids, and of those of each rank."""
    names = [f"total_{name}", *(f"rank{rank}_{name}" for rank in (1, 2, 3))]
    return {name: make(where) for name, where in zip(names, RANKS, strict=True)}


REPORT = (
    ranked("bids", lambda where: hs.Count(where=where))
    | ranked("bidders", lambda where: hs.CountDistinct("bidder", where=where))
    | ranked("auctions", lambda where: hs.CountDistinct("auction", where=where))
)
PRICES: dict[str, hs.Aggregator] = {
    "min_price": hs.Min("price"),
    "max_price": hs.Max("price"),
    "avg_price": hs.Mean("price"),
    "sum_price": hs.Sum("price"),
}
DAYS = hs.TumblingWindows("1 day")
QUERIES: dict[str, hs.Topology] = {
    "q15": hs.stream(timestamp="time").windowed_by(DAYS).aggregate(emit="commit", **REPORT),
    "q16": hs.stream(key="channel", timestamp="time")
    .windowed_by(DAYS)
    .aggregate(emit="commit", newest=hs.Max("time"), **REPORT),
    "q17": hs.stream(key="auction", timestamp="time")
    .windowed_by(DAYS)
    .aggregate(emit="commit", **ranked("bids", lambda where: hs.Count(where=where)), **PRICES),
    "q18": hs.stream(key=["bidder", "auction"], timestamp="time").aggregate(
        emit="commit", last=hs.LastBy("time", ["price", "channel", "time"])
    ),
    "q19": hs.stream(key="auction", timestamp="time").aggregate(
        emit="commit", top=hs.TopK(10, by="price", columns=["bidder", "price", "time"])
    ),
}


def bids(count: int, seed: int = 0) -> Iterator[Bid]:
    """Made bids of three days, in order of time."""
    r = random.Random(seed)
    for number in range(count):
        yield {
            "auction": r.randint(1, 20),
            "bidder": r.randint(1, 40),
            "price": int(10 ** r.uniform(2, 7.5)),
            "channel": r.choice(["Apple", "Google", "Facebook", "Baidu"]),
            "time": 1_704_067_200_000 + number * 3 * DAY_MS // count,
        }


if __name__ == "__main__":
    for name, query in QUERIES.items():
        *_, newest = query.run(bids(2_000), commit_rows=500)
        print(name, newest)
