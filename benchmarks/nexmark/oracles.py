"""Oracles: the queries in SQL, by the definitions of the benchmark, as DuckDB and Flink run them.

DuckDB reads the generator's tables in this process (`pip install duckdb==2.0.0`, the group `peers`). Flink is a program
of its own (flink_program.py) in an environment of its own: `python3.11 -m venv FLINK && FLINK/bin/pip install
apache-flink==2.3.0` (Java 17; 844 MB), then `HYBRIDSTORE_FLINK=FLINK/bin/python`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from .generator import Events
from .queries import plain

_DAY: Final = "time // 86400000 * 86400000"
_RANKS: Final = ("true", "price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000")
_COUNTS: Final = ", ".join(f"count(*) filter (where {rank})" for rank in _RANKS)
_DISTINCT: Final = ", ".join(
    f"count(distinct {name}) filter (where {rank})" for name in ("bidder", "auction") for rank in _RANKS
)
_WINNING: Final = """
    select a.id, a.category, a.seller, a.expires, b.bidder, b.price, b.time as won,
           row_number() over (partition by a.id order by b.price desc, b.time, b.number) as place
    from auctions a join bids b on a.id = b.auction and b.time between a.time and a.expires
"""
DUCKDB: Final[dict[str, str]] = {
    "q0": "select auction, bidder, price, channel, url, time, extra from bids",
    "q1": "select auction, bidder, 0.908::double * price, time from bids",
    "q2": "select auction, price from bids where auction % 123 = 0",
    "q3": "select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id "
    "where a.category = 10 and p.state in ('or', 'id', 'ca')",
    "q4": f"select category, avg(price) from ({_WINNING}) where place = 1 group by category",
    "q5": """
        with hops as (
            select time // 2000 * 2000 - 2000 * hop as start, auction, count(*) as n
            from bids, range(5) as hops(hop) group by all
        )
        select start, list([auction, n] order by auction) from hops
        where n = (select max(n) from hops as others where others.start = hops.start) group by start
    """,
    "q6": f"""
        select seller, avg(price) from (
            select seller, price, row_number() over (partition by seller order by expires desc, id desc) as nth
            from ({_WINNING}) where place = 1
        ) where nth <= 10 group by seller
    """,
    "q7": """
        select time // 10000 * 10000 as start,
               arg_max([auction, bidder, price], [price, -time]) from bids group by start
    """,
    "q8": """
        select p.id, p.name, p.time // 10000 * 10000 as start from persons p
        where exists (select 1 from auctions a where a.seller = p.id and a.time // 10000 = p.time // 10000)
    """,
    "q9": f"select id, bidder, price, won from ({_WINNING}) where place = 1",
    "q10": """
        select auction, bidder, price, time, extra, strftime(make_timestamp(time * 1000), '%Y-%m-%d'),
               strftime(make_timestamp(time * 1000), '%H:%M') from bids
    """,
    "q11": """
        with marked as (
            select bidder, time,
                   coalesce(time - lag(time) over (partition by bidder order by time) > 10000, true) as new
            from bids
        ), numbered as (
            select bidder, time,
                   sum(new::int) over (partition by bidder order by time rows unbounded preceding) as session
            from marked
        )
        select bidder, count(*), min(time), max(time) from numbered group by bidder, session
    """,
    "q12": "select bidder, count(*), (1704067200000 + 20 * number) // 10000 * 10000 as start from bids "
    "group by bidder, start",
    "q13": "select auction, bidder, price, 'side ' || (auction % 10000) from bids",
    "q14": """
        select auction, 0.908::double * price,
               case when hour >= 8 and hour <= 18 then 'dayTime' when hour <= 6 or hour >= 20 then 'nightTime'
                    else 'otherTime' end,
               length(extra) - length(replace(extra, 'c', ''))
        from (select *, time // 3600000 % 24 as hour from bids)
        where 0.908::double * price > 1000000 and 0.908::double * price < 50000000
    """,
    "q15": f"select {_DAY} as day, {_COUNTS}, {_DISTINCT} from bids group by day",
    "q16": f"select channel, {_DAY} as day, max(time), {_COUNTS}, {_DISTINCT} from bids group by channel, day",
    "q17": f"""
        select auction, {_DAY} as day, {_COUNTS}, min(price), max(price), avg(price), sum(price)::bigint
        from bids group by auction, day
    """,
    "q18": """
        select bidder, auction, [price::varchar, channel, time::varchar] from (
            select *, row_number() over (partition by bidder, auction
                order by time desc, price desc, strlen(channel) desc, channel desc) as place from bids
        ) where place = 1
    """,
    "q19": """
        select auction, list([bidder, price, time] order by place) from (
            select *, row_number() over (partition by auction order by price desc, time) as place from bids
        ) where place <= 10 group by auction
    """,
    "q20": "select b.auction, b.bidder, b.price, a.seller, a.reserve from bids b join auctions a on b.auction = a.id "
    "where a.category = 10",
    "q21": """
        select auction, bidder, channel, id from (
            select *, case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
                           when 'baidu' then '3'
                           else nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') end as id
            from bids
        ) where id is not null
    """,
    "q22": """
        select auction, bidder, split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6) from bids
    """,
}


def by_duckdb(query: str, events: Events) -> list[tuple[Any, ...]]:
    """Return the answer of DuckDB. Raises ImportError where DuckDB is not installed."""
    import duckdb

    connection = duckdb.connect()
    for name in ("persons", "auctions", "bids"):
        connection.register(name, getattr(events, name))
    rows = connection.execute(DUCKDB[query]).fetchall()
    if query == "q18":
        rows = [(bidder, auction, (int(price), channel, int(time))) for bidder, auction, (price, channel, time) in rows]
    return sorted((plain(row) for row in rows), key=repr)


# --- Flink ------------------------------------------------------------------------------------------------------------

FLINK_PROGRAM: Final = Path(__file__).with_name("flink_program.py")
# The Python of the environment that Flink is installed in.
FLINK_VARIABLE: Final = "HYBRIDSTORE_FLINK"
_FEW: Final = 50
Answer = list[tuple[Any, ...]]


def flink_python() -> str | None:
    """Return the Python that has Flink, or None."""
    return os.environ.get(FLINK_VARIABLE) or None


def write_json(events: Events, folder: Path) -> None:
    """Write the tables as files of JSON that Flink reads, and the first rows of each as tables of their own."""
    for name in ("persons", "auctions", "bids"):
        rows = [json.dumps(row) + "\n" for row in getattr(events, name).to_pylist()]
        for table, part in ((name, rows), (f"few_{name}", rows[:_FEW])):
            (folder / table).mkdir(parents=True)
            (folder / table / "rows.json").write_text("".join(part), encoding="utf-8")


def flink_program(folder: Path, mode: str, queries: Sequence[str]) -> str:
    """Run Flink's program to its end, and return what it prints. Raises RuntimeError with its last line if it fails."""
    command = [str(flink_python()), str(FLINK_PROGRAM), str(folder), mode, ",".join(queries)]
    environment = {"JAVA_TOOL_OPTIONS": "-Xmx1g", **os.environ}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"Flink, {mode}: {last}")
    return answer.stdout


def by_flink(queries: Sequence[str], events: Events, folder: Path) -> dict[str, Answer]:
    """Return the answers of Flink. One start of it takes half a minute of a processor, a query some seconds more."""
    write_json(events, folder)
    flink_program(folder, "answers", queries)
    return flink_answers(folder)


def flink_answers(folder: Path) -> dict[str, Answer]:
    """Return the answers that Flink's program has written, in the form of `answer_of`."""
    given = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    return {name: sorted(map(plain, _FOLDS.get(name, list)(rows)), key=repr) for name, rows in given.items()}


def _by_window(rows: list[list[Any]]) -> list[list[Any]]:
    windows: dict[int, list[Any]] = {}
    for start, auction, count in sorted(rows):
        windows.setdefault(start, []).append([auction, count])
    return [[start, best] for start, best in windows.items()]


def _by_place(rows: list[list[Any]]) -> list[list[Any]]:
    auctions: dict[int, list[Any]] = {}
    for auction, *bid, _ in sorted(rows, key=lambda row: (row[0], row[-1])):
        auctions.setdefault(auction, []).append(bid)
    return [[auction, bids] for auction, bids in auctions.items()]


# Flink has rows where others have a list.
_FOLDS: Final[dict[str, Callable[[list[list[Any]]], list[list[Any]]]]] = {
    "q5": _by_window,
    "q7": lambda rows: [[start, best] for start, *best in rows],
    "q18": lambda rows: [[bidder, auction, last] for bidder, auction, *last in rows],
    "q19": _by_place,
}
