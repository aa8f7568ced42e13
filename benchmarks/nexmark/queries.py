"""Queries: Nexmark's queries as topologies, the rows that they take, and the answers that their results fold to.

An answer is a set of rows: for queries without state all results, for others the last result of each key and window.
Three queries have two stages, which are two topologies: the results of the first are the rows of the second.

What is otherwise than published: q6 ends with the last ten auctions that have a bid, by their ends (as a stream Flink's
SQL does not run it, FLINK-19059; in batch mode it does); q10 gives the rows with their partition, without writing files
by it; of a bidder's bids in an auction in one millisecond q18 takes the one that `LastBy` defines, since any is the
last; the machine's clock of q12, whose answers nobody could repeat, is a column of arrival: a bid each 20 ms.
"""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hybridstore as hs

from . import START_MS

if TYPE_CHECKING:
    from .generator import Events

Row = dict[str, Any]
_EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "nexmark.py"
# q15 to q19, which are shown to users.
_SHOWN: Final[dict[str, hs.Topology]] = runpy.run_path(str(_EXAMPLE), run_name="nexmark")["QUERIES"]
_FAR: Final = "1000 days"
LOCAL_STATES: Final = ("or", "id", "ca")


class Query(NamedTuple):
    """A query: its stages, the rows of the first (of the events), and the columns by which results are known, of which
    the last one counts; None: all results count. `keep` chooses among the last results, and `columns` what of them.
    """

    stages: tuple[hs.Topology, ...]
    rows: Callable[[Events], Any]
    by: tuple[str, ...] | None
    columns: tuple[str, ...]
    keep: Callable[[Row], bool] | None = None

    @property
    def by_column(self) -> bool:
        """Whether rows can be given as Arrow batches."""
        return self.rows is bids


def bids(events: Events) -> Any:
    """The bids, as one Arrow table."""
    return events.bids


def of_kinds(*names: str) -> Callable[[Events], list[Row]]:
    """Rows of several kinds in the order of arrival, each with its `kind`, and as `key` the auction or the person."""

    def rows(events: Events) -> list[Row]:
        parts = [
            {**row, "kind": name, "key": row[key]}
            for name, key in (each.split(".") for each in names)
            for row in getattr(events, name).to_pylist()
        ]
        return sorted(parts, key=lambda row: row["number"])

    return rows


def two_inputs(first: str, second: str, **chosen: Callable[[Row], bool]) -> Callable[[Events], dict[str, list[Row]]]:
    """Rows by the names of the inputs of a join, only those that are chosen."""

    def rows(events: Events) -> dict[str, list[Row]]:
        return {
            name: [row for row in getattr(events, name).to_pylist() if name not in chosen or chosen[name](row)]
            for name in (first, second)
        }

    return rows


BIDS: Final = hs.stream(key="auction", timestamp="time")
# The columns of a bid, as Spark needs to know them behind a function.
BID: Final = "number long, time long, auction long, bidder long, price long, channel string, url string, extra string"


def converted(bid: Row) -> Row:
    """q1: dollars to euros."""
    return {"auction": bid["auction"], "bidder": bid["bidder"], "price": 0.908 * bid["price"], "time": bid["time"]}


def calculated(bid: Row) -> Row:
    """q14: a price, a time of day and a count of letters."""
    hour = bid["time"] // 3_600_000 % 24
    kind = "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"
    price = 0.908 * bid["price"]
    return {
        "auction": bid["auction"],
        "price": price,
        "kind": kind,
        "letters": bid["extra"].count("c"),
        "time": bid["time"],
    }


def with_side(bid: Row) -> Row:
    """q13: a table that does not change, beside the bids."""
    number = bid["auction"] % 10_000
    return {**bid, "value": f"side {number}"}


def with_partition(bid: Row) -> Row:
    """q10: the day and the minute by which a sink would lay rows into files."""
    moment = datetime.fromtimestamp(bid["time"] / 1000, UTC)
    return {**bid, "day": f"{moment:%Y-%m-%d}", "minute": f"{moment:%H:%M}"}


def with_arrival(bid: Row) -> Row:
    """q12: a moment of arrival (ms)."""
    return {**bid, "arrived": START_MS + 20 * bid["number"]}


def with_channel(bid: Row) -> Row:
    """q21: the id of the channel, by its name or from the address."""
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    number = known.get(bid["channel"].lower()) or bid["url"].partition("channel_id=")[2] or None
    return {**bid, "channel_id": number}


def with_directories(bid: Row) -> Row:
    """q22: three parts of the address."""
    parts = bid["url"].split("/")
    return {**bid, "dir1": parts[3], "dir2": parts[4], "dir3": parts[5]}


class Winning:
    """q9, and the first stage of q4 and q6: the best bid of each auction between its begin and its end."""

    def __init__(self, stores: Any) -> None:
        self.auctions, self.best, self.early = stores["auctions"], stores["best"], stores["early"]

    def process(self, row: Row) -> Iterator[Row]:
        """Yield the best bid of the row's auction, if it has changed."""
        if row["kind"] == "auctions":
            self.auctions.put(row["key"], (row["time"], row["expires"], row["category"], row["seller"]))
            for bid in self.early.get(row["key"]) or ():
                yield from self.bid(row["key"], bid)
            self.early.delete(row["key"])
        elif self.auctions.get(row["key"]) is None:
            bid = (row["price"], row["time"], row["bidder"], row["number"])
            self.early.put(row["key"], [*(self.early.get(row["key"]) or ()), bid])
        else:
            yield from self.bid(row["key"], (row["price"], row["time"], row["bidder"], row["number"]))

    def bid(self, auction: int, bid: tuple[int, ...]) -> Iterator[Row]:
        """Yield a bid that is better than all before: the higher price, of equal prices the earlier bid."""
        begins, expires, category, seller = self.auctions.get(auction)
        price, moment, bidder, number = bid
        if not begins <= moment <= expires:
            return
        best = self.best.get(auction)
        if best is None or (-price, moment, number) < tuple(best):
            self.best.put(auction, (-price, moment, number))
            result = {"id": auction, "category": category, "seller": seller, "expires": expires}
            yield {**result, "price": price, "bidder": bidder, "at": moment, "time": moment}


WINNING: Final = hs.stream(key="key", timestamp="time").process(
    Winning,
    "id long, category long, seller long, expires long, price long, bidder long, at long, time long",
    stores=[hs.key_value_store(name) for name in ("auctions", "best", "early")],
)
AUCTIONS_AND_BIDS: Final = of_kinds("auctions.id", "bids.auction")


class MeanOfBest:
    """The second stage of q4: the mean of the best prices of a category, where a best price replaces an older one."""

    def __init__(self, stores: Any) -> None:
        self.best, self.sums = stores["best"], stores["sums"]

    def process(self, row: Row) -> Iterator[Row]:
        """Yield the mean of the row's category."""
        before = self.best.get((row["category"], row["id"]))
        count, total = self.sums.get(row["category"]) or (0, 0)
        count, total = count + (before is None), total + row["price"] - (before or 0)
        self.best.put((row["category"], row["id"]), row["price"])
        self.sums.put(row["category"], (count, total))
        yield {"category": row["category"], "mean": total / count}


class LastTen:
    """The second stage of q6: the mean of the best prices of a seller's ten auctions that end last."""

    def __init__(self, stores: Any) -> None:
        self.sold = stores["sold"]

    def process(self, row: Row) -> Iterator[Row]:
        """Yield the mean of the row's seller."""
        others = [sale for sale in self.sold.get(row["seller"]) or () if sale[1] != row["id"]]
        last = sorted([*others, [row["expires"], row["id"], row["price"]]])[-10:]
        self.sold.put(row["seller"], last)
        yield {"seller": row["seller"], "mean": sum(price for _, _, price in last) / len(last)}


def winners() -> hs.Aggregator:
    """The second stage of q5: all auctions with the greatest count."""

    def best(pairs: list[list[int]]) -> list[list[int]]:
        most = max((pair[1] for pair in pairs), default=0)
        return sorted(pair for pair in pairs if pair[1] == most)

    return hs.Aggregator(
        init=list,
        add=lambda pairs, row: best([*pairs, [row["auction"], row["n"]]]),
        merge=lambda pairs, more: best([*pairs, *more]),
        name="winners",
    )


QUERIES: Final[dict[str, Query]] = {
    "q0": Query((BIDS.map(dict, BID),), bids, None, ("auction", "bidder", "price", "channel", "url", "time", "extra")),
    "q1": Query(
        (BIDS.map(converted, "auction long, bidder long, price double, time long"),),
        bids,
        None,
        ("auction", "bidder", "price", "time"),
    ),
    "q2": Query((BIDS.filter(lambda bid: bid["auction"] % 123 == 0),), bids, None, ("auction", "price")),
    "q3": Query(
        (
            hs.stream(name="auctions", key="seller", timestamp="time", columns=["id"]).join(
                hs.stream(name="persons", key="id", timestamp="time", columns=["name", "city", "state"]),
                within=_FAR,
                select={
                    "name": "persons.name",
                    "city": "persons.city",
                    "state": "persons.state",
                    "id": "auctions.id",
                },
            ),
        ),
        two_inputs(
            "auctions",
            "persons",
            auctions=lambda row: row["category"] == 10,
            persons=lambda row: row["state"] in LOCAL_STATES,
        ),
        None,
        ("name", "city", "state", "id"),
    ),
    "q4": Query(
        (
            WINNING,
            hs.stream(key="category", timestamp="time").process(
                MeanOfBest,
                "category long, mean double",
                stores=[hs.key_value_store("best"), hs.key_value_store("sums")],
            ),
        ),
        AUCTIONS_AND_BIDS,
        ("category",),
        ("category", "mean"),
    ),
    "q5": Query(
        (
            BIDS.windowed_by(hs.HoppingWindows("10 seconds", "2 seconds", grace=0)).aggregate(
                emit="close", n=hs.Count()
            ),
            hs.stream(key="start", timestamp="start")
            .map(
                lambda row: {"start": row["window_start"], "auction": row["auction"], "n": row["n"]},
                "start long, auction long, n long",
            )
            .aggregate(emit="commit", best=winners()),
        ),
        bids,
        ("start",),
        ("start", "best"),
    ),
    "q6": Query(
        (
            WINNING,
            hs.stream(key="seller", timestamp="time").process(
                LastTen, "seller long, mean double", stores=[hs.key_value_store("sold")]
            ),
        ),
        AUCTIONS_AND_BIDS,
        ("seller",),
        ("seller", "mean"),
    ),
    "q7": Query(
        (
            hs.stream(timestamp="time")
            .windowed_by(hs.TumblingWindows("10 seconds", grace=0))
            .aggregate(emit="close", best=hs.MaxBy("price", ["auction", "bidder", "price"])),
        ),
        bids,
        ("window_start",),
        ("window_start", "best"),
    ),
    "q8": Query(
        (
            hs.stream(key="key", timestamp="time")
            .windowed_by(hs.TumblingWindows("10 seconds", grace=0))
            .aggregate(
                emit="close",
                name=hs.First("name"),
                persons=hs.Count(where=lambda row: row["kind"] == "persons"),
                auctions=hs.Count(where=lambda row: row["kind"] == "auctions"),
            ),
        ),
        of_kinds("persons.id", "auctions.seller"),
        ("key", "window_start"),
        ("key", "name", "window_start"),
        lambda row: row["persons"] > 0 and row["auctions"] > 0,
    ),
    "q9": Query((WINNING,), AUCTIONS_AND_BIDS, ("id",), ("id", "bidder", "price", "at")),
    "q10": Query(
        (BIDS.map(with_partition, f"{BID}, day string, minute string"),),
        bids,
        None,
        ("auction", "bidder", "price", "time", "extra", "day", "minute"),
    ),
    "q11": Query(
        (
            hs.stream(key="bidder", timestamp="time")
            .windowed_by(hs.SessionWindows("10 seconds", grace=0))
            .aggregate(emit="close", n=hs.Count()),
        ),
        bids,
        ("bidder", "window_start"),
        ("bidder", "n", "window_start", "window_end"),
    ),
    "q12": Query(
        (
            hs.stream(key="bidder", timestamp="arrived")
            .map(with_arrival, f"{BID}, arrived long")
            .windowed_by(hs.TumblingWindows("10 seconds", grace=0))
            .aggregate(emit="close", n=hs.Count()),
        ),
        bids,
        ("bidder", "window_start"),
        ("bidder", "n", "window_start"),
    ),
    "q13": Query((BIDS.map(with_side, f"{BID}, value string"),), bids, None, ("auction", "bidder", "price", "value")),
    "q14": Query(
        (
            BIDS.filter(lambda bid: 1_000_000 < 0.908 * bid["price"] < 50_000_000).map(
                calculated, "auction long, price double, kind string, letters long, time long"
            ),
        ),
        bids,
        None,
        ("auction", "price", "kind", "letters"),
    ),
    "q15": Query((_SHOWN["q15"],), bids, ("window_start",), ("window_start", *_SHOWN["q15"].combined.names)),
    "q16": Query(
        (_SHOWN["q16"],), bids, ("channel", "window_start"), ("channel", "window_start", *_SHOWN["q16"].combined.names)
    ),
    "q17": Query(
        (_SHOWN["q17"],), bids, ("auction", "window_start"), ("auction", "window_start", *_SHOWN["q17"].combined.names)
    ),
    "q18": Query((_SHOWN["q18"],), bids, ("bidder", "auction"), ("bidder", "auction", "last")),
    "q19": Query((_SHOWN["q19"],), bids, ("auction",), ("auction", "top")),
    "q20": Query(
        (
            hs.stream(name="bids", key="auction", timestamp="time", columns=["bidder", "price"]).join(
                hs.stream(name="auctions", key="id", timestamp="time", columns=["seller", "reserve"]),
                within=_FAR,
                select={
                    "auction": "bids.auction",
                    "bidder": "bids.bidder",
                    "price": "bids.price",
                    "seller": "auctions.seller",
                    "reserve": "auctions.reserve",
                },
            ),
        ),
        two_inputs("bids", "auctions", auctions=lambda row: row["category"] == 10),
        None,
        ("auction", "bidder", "price", "seller", "reserve"),
    ),
    "q21": Query(
        (BIDS.map(with_channel, f"{BID}, channel_id string").filter(lambda bid: bid["channel_id"] is not None),),
        bids,
        None,
        ("auction", "bidder", "channel", "channel_id"),
    ),
    "q22": Query(
        (BIDS.map(with_directories, f"{BID}, dir1 string, dir2 string, dir3 string"),),
        bids,
        None,
        ("auction", "bidder", "dir1", "dir2", "dir3"),
    ),
}


def results_of(query: Query, events: Events, *, arrow: bool = False, **options: Any) -> list[Row]:
    """Run a query, and return the results of its last stage. `arrow`: bids as Arrow batches, else as dicts."""
    rows = query.rows(events)
    if query.by_column:
        rows = rows.to_batches(10_000) if arrow else rows.to_pylist()
    results: list[Row] = []
    for number, topology in enumerate(query.stages):
        given = rows if number == 0 else results
        flush = topology.complete().custom is None or topology.complete().joined is not None
        state = options.get("location")
        of_stage = options if state is None else {**options, "location": Path(state) / str(number)}
        results = [dict(row) for row in topology.run(given, flush=flush, **of_stage)]
    return results


def answer_of(query: Query, results: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return the answer that results fold to, sorted. O(n log n)."""
    rows = list(results)
    if query.by is not None:
        rows = list({tuple(row[name] for name in query.by): row for row in rows}.values())
    chosen = [row for row in rows if query.keep is None or query.keep(row)]
    return sorted((plain(tuple(row[name] for name in query.columns)) for row in chosen), key=repr)


def plain(value: Any) -> Any:
    """Return nested rows as tuples, and lists too, so that engines can be compared."""
    if isinstance(value, dict):
        return tuple(plain(part) for part in value.values())
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def digest_of(answer: list[tuple[Any, ...]]) -> str:
    """Return a short text that two equal answers share: the number of rows, and a hash."""
    text = json.dumps(answer, separators=(",", ":"))
    return f"{len(answer)} {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
