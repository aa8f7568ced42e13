"""Generator: the events of Nexmark, seeded, by column.

Of 50 events 1 is a person, 3 are auctions and 46 are bids. Half of the bids are for a hot auction, three of four are by
a hot bidder, three of four auctions are by a hot seller; the others are for one of the last 100 auctions and by one of
the last 1,000 people, or by one of the next 10. Ids begin with 1,000. A price is 100 * 10^(6u), u from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from . import START_MS

EPOCH: Final = 50
FIRST_ID: Final = 1000
IN_FLIGHT: Final = 100
ACTIVE: Final = 1000
LEAD: Final = 10
HOT: Final = 100
CHANNELS: Final = 10_000
_HOT_CHANNELS: Final = ["Google", "Facebook", "Baidu", "Apple"]
_STATES: Final = ["az", "ca", "id", "or", "wa", "wy"]
_CITIES: Final = [
    "phoenix",
    "los angeles",
    "san francisco",
    "boise",
    "portland",
    "bend",
    "redmond",
    "seattle",
    "kent",
    "cheyenne",
]
_FIRST: Final = ["peter", "paul", "luke", "john", "saul", "vicky", "kate", "julie", "sarah", "deiter", "walter"]
_LAST: Final = ["shultz", "abrams", "spencer", "white", "bartels", "walton", "smith", "jones", "noris"]


@dataclass(frozen=True)
class Events:
    """Events by kind: `number` is the place of an event in the stream, `time` its event time (ms)."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table


def _taken(names: list[str], places: Any) -> Any:
    return pa.array(names).take(pa.array(places))


def _words(r: Any, count: int) -> list[str]:
    letters = r.integers(97, 123, (count, 5), dtype=np.uint8)
    return [bytes(word).decode() for word in letters]


def generate(count: int, *, seed: int = 1, rate: int = 10_000, disorder_ms: int = 0) -> Events:
    """Return the first `count` events, `rate` of them to a second of event time. With `disorder_ms` they arrive out of
    order, each at most so late: `number` is then the place of arrival. O(count), by column.
    """
    import pyarrow.compute as pc  # only here: who runs a query imports this module for its names alone

    r = np.random.default_rng(seed)
    number = np.arange(count, dtype=np.int64)
    moments = START_MS + number * 1000 // rate
    place = number
    if disorder_ms:
        # of a sequence of its own, so that the events are the same
        delays = np.random.default_rng([seed, 1]).integers(0, disorder_ms + 1, count)
        order = np.argsort(moments + delays, kind="stable")
        place = np.empty(count, np.int64)
        place[order] = number
    epoch, offset = number // EPOCH, number % EPOCH
    # the greatest ids so far, from 0
    person = epoch
    auction = epoch * 3 + np.clip(offset - 1, -1, 2)
    is_person, is_auction = offset == 0, (offset > 0) & (offset < 4)
    is_bid = ~is_person & ~is_auction

    def people(last: Any, hot: int, hot_one: int) -> Any:
        active = np.minimum(last, ACTIVE)
        some = last - active + (r.random(len(last)) * (active + LEAD)).astype(np.int64)
        return np.where(r.integers(0, hot, len(last)) > 0, last // HOT * HOT + hot_one, some) + FIRST_ID

    def prices(size: int) -> Any:
        return np.rint(10 ** (r.random(size) * 6) * 100).astype(np.int64)

    def column(mask: Any, *columns: tuple[str, Any]) -> pa.Table:
        names = ["number", "time", *(name for name, _ in columns)]
        return pa.table([pa.array(place[mask]), pa.array(moments[mask]), *(part for _, part in columns)], names)

    size = int(is_person.sum())
    first, last = _taken(_FIRST, r.integers(0, len(_FIRST), size)), _taken(_LAST, r.integers(0, len(_LAST), size))
    persons = column(
        is_person,
        ("id", pa.array(person[is_person] + FIRST_ID)),
        ("name", pc.binary_join_element_wise(first, last, " ")),
        ("city", _taken(_CITIES, r.integers(0, len(_CITIES), size))),
        ("state", _taken(_STATES, r.integers(0, len(_STATES), size))),
    )
    size = int(is_auction.sum())
    initial = prices(size)
    horizon = max(1, IN_FLIGHT * EPOCH // 3 * 1000 // rate)
    auctions = column(
        is_auction,
        ("id", pa.array(auction[is_auction] + FIRST_ID)),
        ("initial", pa.array(initial)),
        ("reserve", pa.array(initial + prices(size))),
        ("expires", pa.array(moments[is_auction] + 1 + (r.random(size) * max(horizon * 2, 1)).astype(np.int64))),
        ("seller", pa.array(people(person[is_auction], 4, 0))),
        ("category", pa.array(r.integers(10, 15, size))),
    )
    size = int(is_bid.sum())
    newest = auction[is_bid]
    oldest = np.maximum(newest - IN_FLIGHT, 0)
    some = oldest + (r.random(size) * (newest - oldest + 1 + LEAD)).astype(np.int64)
    hot = np.where(r.integers(0, 2, size) > 0, newest // HOT * HOT, some) + FIRST_ID
    channel = np.where(r.integers(0, 2, size) > 0, r.integers(0, 4, size), 4 + r.integers(0, CHANNELS, size))
    names = [*_HOT_CHANNELS, *(f"channel-{n}" for n in range(CHANNELS))]
    words = _words(r, 3 * len(names))
    urls = [
        f"https://www.nexmark.com/{'/'.join(words[3 * n : 3 * n + 3])}/item.htm?query=1"
        + ("" if n < 4 or n % 10 == 0 else f"&channel_id={n * 31}")
        for n in range(len(names))
    ]
    extras = ["".join(_words(r, 4)) for _ in range(1000)]
    bids = column(
        is_bid,
        ("auction", pa.array(hot)),
        ("bidder", pa.array(people(person[is_bid], 4, 1))),
        ("price", pa.array(prices(size))),
        ("channel", _taken(names, channel)),
        ("url", _taken(urls, channel)),
        ("extra", _taken(extras, r.integers(0, len(extras), size))),
    )
    events = Events(persons, auctions, bids)
    if disorder_ms:
        events = Events(*(table.sort_by("number") for table in (persons, auctions, bids)))
    return events
