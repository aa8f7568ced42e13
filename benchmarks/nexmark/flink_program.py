"""Flink program: the queries in Flink's SQL over files of JSON; run by a Python that has `apache-flink`, and Java.

    python flink_program.py FOLDER answers q0,q1       reads FOLDER/{persons,auctions,bids}/*.json, writes answers.json
    python flink_program.py FOLDER rates q0,q1         the same as streams into nothing; prints processor seconds
    python flink_program.py FOLDER endless q11         a stream whose results are printed, with checkpoints; for kills
    python flink_program.py FOLDER endless q11 PATH    the same from a checkpoint

Answers come from batch mode, where session windows do not exist: sessions are numbered by gaps. Rates and kills are of
streaming mode: RocksDB, a checkpoint each 2 s, one slot. Nothing of hybridstore is imported here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COLUMNS = {
    "persons": "number bigint, `time` bigint, id bigint, name string, city string, state string",
    "auctions": "number bigint, `time` bigint, id bigint, `initial` bigint, reserve bigint, expires bigint, "
    "seller bigint, category bigint",
    "bids": "number bigint, `time` bigint, auction bigint, bidder bigint, price bigint, channel string, url string, "
    "extra string",
}
RANKS = ("price > -1", "price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000")
COUNTS = ", ".join(f"count(*) filter (where {rank})" for rank in RANKS)
DISTINCT = ", ".join(
    f"count(distinct {name}) filter (where {rank})" for name in ("bidder", "auction") for rank in RANKS
)
DAY = "`time` / 86400000 * 86400000"
HOUR = "`time` / 3600000 - `time` / 86400000 * 24"
PRICE = "cast(0.908 as double) * price"
WINNING = """
    select id, category, seller, bidder, price, won, expires from (
        select a.id, a.category, a.seller, a.expires, b.bidder, b.price, b.`time` as won,
               row_number() over (partition by a.id order by b.price desc, b.`time`, b.number) as place
        from auctions a join bids b on a.id = b.auction and b.`time` between a.`time` and a.expires
    ) where place = 1
"""
QUERIES = {
    "q0": "select auction, bidder, price, channel, url, `time`, extra from bids",
    "q1": f"select auction, bidder, {PRICE}, `time` from bids",
    "q2": "select auction, price from bids where mod(auction, 123) = 0",
    "q3": "select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id "
    "where a.category = 10 and p.state in ('or', 'id', 'ca')",
    "q4": f"select category, avg(cast(price as double)) from ({WINNING}) group by category",
    "q5": """
        select begins, auction, n from (
            select begins, auction, n, rank() over (partition by begins order by n desc) as place from (
                select window_start as begins, auction, count(*) as n
                from table(hop(table bids, descriptor(ts), interval '2' second, interval '10' second))
                group by window_start, window_end, auction
            )
        ) where place = 1
    """,
    "q6": f"""
        select seller, avg(cast(price as double)) from (
            select seller, price, row_number() over (partition by seller order by expires desc, id desc) as place
            from ({WINNING})
        ) where place <= 10 group by seller
    """,
    "q7": """
        select begins, auction, bidder, price from (
            select window_start as begins, auction, bidder, price,
                   row_number() over (partition by window_start, window_end order by price desc, `time`) as place
            from table(tumble(table bids, descriptor(ts), interval '10' second))
        ) where place = 1
    """,
    "q8": """
        select p.id, p.name, p.begins from (
            select id, name, window_start as begins
            from table(tumble(table persons, descriptor(ts), interval '10' second))
        ) p join (
            select distinct seller, window_start as begins
            from table(tumble(table auctions, descriptor(ts), interval '10' second))
        ) a on p.id = a.seller and p.begins = a.begins
    """,
    "q9": f"select id, bidder, price, won from ({WINNING})",
    "q10": "select auction, bidder, price, `time`, extra, date_format(ts, 'yyyy-MM-dd'), date_format(ts, 'HH:mm') "
    "from bids",
    "q11": """
        select bidder, count(*), min(`time`), max(`time`) from (
            select bidder, `time`,
                   sum(fresh) over (partition by bidder order by `time` range unbounded preceding) as session
            from (
                select bidder, `time`,
                       case when `time` - lag(`time`) over (partition by bidder order by `time`) <= 10000
                            then 0 else 1 end as fresh from bids
            )
        ) group by bidder, session
    """,
    "q12": "select bidder, count(*), (1704067200000 + 20 * number) / 10000 * 10000 from bids "
    "group by bidder, (1704067200000 + 20 * number) / 10000 * 10000",
    "q13": "select auction, bidder, price, concat('side ', cast(mod(auction, 10000) as string)) from bids",
    "q14": f"""
        select auction, euros, case when h >= 8 and h <= 18 then 'dayTime' when h <= 6 or h >= 20 then 'nightTime'
                                    else 'otherTime' end, char_length(extra) - char_length(replace(extra, 'c', ''))
        from (select auction, extra, {PRICE} as euros, {HOUR} as h from bids)
        where euros > 1000000 and euros < 50000000
    """,
    "q15": f"select {DAY}, {COUNTS}, {DISTINCT} from bids group by {DAY}",
    "q16": f"select channel, {DAY}, max(`time`), {COUNTS}, {DISTINCT} from bids group by channel, {DAY}",
    "q17": f"""
        select auction, {DAY}, {COUNTS}, min(price), max(price), avg(cast(price as double)), sum(price)
        from bids group by auction, {DAY}
    """,
    "q18": """
        select bidder, auction, price, channel, `time` from (
            select *, row_number() over (partition by bidder, auction
                order by `time` desc, price desc, char_length(channel) desc, channel desc) as place from bids
        ) where place = 1
    """,
    "q19": """
        select auction, bidder, price, `time`, place from (
            select *, row_number() over (partition by auction order by price desc, `time`) as place from bids
        ) where place <= 10
    """,
    "q20": "select b.auction, b.bidder, b.price, a.seller, a.reserve from bids b join auctions a on b.auction = a.id "
    "where a.category = 10",
    "q21": """
        select auction, bidder, channel, id from (
            select *, case when lower(channel) = 'apple' then '0' when lower(channel) = 'google' then '1'
                           when lower(channel) = 'facebook' then '2' when lower(channel) = 'baidu' then '3'
                           else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as id from bids
        ) where id is not null and id <> ''
    """,
    "q22": "select auction, bidder, split_index(url, '/', 3), split_index(url, '/', 4), split_index(url, '/', 5) "
    "from bids",
}
# where streaming mode has its own way, the one that the benchmark uses
STREAMED = {
    "q11": """
        select bidder, count(*), window_start, window_end
        from table(session(table bids partition by bidder, descriptor(ts), interval '10' second))
        group by bidder, window_start, window_end
    """,
}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: times as ms."""
    return int(value.replace(tzinfo=UTC).timestamp() * 1000) if isinstance(value, datetime) else value


def table_environment(streaming: bool, checkpoints: Path, behind: str | None = None, **more: str) -> Any:
    """Return Flink without tables. A stream has RocksDB and `checkpoints`, of which it begins with `behind`; `more` are
    settings by their names, with underscores for dots.
    """
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    options = {"parallelism.default": "1", "table.local-time-zone": "UTC", "jobmanager.memory.process.size": "1g"}
    if streaming:
        options |= {"state.backend.type": "rocksdb", "execution.checkpointing.interval": "2 s"}
        options |= {"execution.checkpointing.dir": f"file://{checkpoints}"}
        options |= {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    if behind:
        options["execution.state-recovery.path"] = f"file://{behind}"
    configuration = Configuration()
    for name, value in (options | {name.replace("_", "."): value for name, value in more.items()}).items():
        configuration.set_string(name, value)
    builder = EnvironmentSettings.new_instance().with_configuration(configuration)
    return TableEnvironment.create((builder.in_streaming_mode() if streaming else builder.in_batch_mode()).build())


def environment(folder: Path, streaming: bool, behind: str | None = None) -> Any:
    """Return Flink with the tables of a folder; `few_bids` and so on hold the first rows only."""
    env = table_environment(streaming, folder / "checkpoints", behind)
    for name, columns in COLUMNS.items():
        for prefix in ("", "few_"):
            if not (folder / f"{prefix}{name}").exists():
                continue
            connector = f"'connector' = 'filesystem', 'format' = 'json', 'path' = 'file://{folder / (prefix + name)}'"
            moment = "ts as to_timestamp_ltz(`time`, 3), watermark for ts as ts"
            env.execute_sql(f"create table {prefix}{name} ({columns}, {moment}) with ({connector})")
    return env


def answers(folder: Path, names: list[str]) -> None:
    """Run the queries, and write what each gave as lists of rows."""
    env = environment(folder, streaming=False)
    given: dict[str, Any] = {}
    for query in names:
        with env.execute_sql(QUERIES[query]).collect() as rows:
            given[query] = [[plain(value) for value in row] for row in rows]
        print(query, len(given[query]), flush=True)
        (folder / "answers.json").write_text(json.dumps(given))


def java_seconds() -> float:
    """Return the processor seconds of this process's Java so far."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and "java" in os.readlink(path / "exe"):
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue
    return total


def rates(folder: Path, names: list[str]) -> None:
    """Run each query as a stream into nothing, over all rows and over few; the difference is what the rows cost."""
    from pyflink.table import TableDescriptor

    env = environment(folder, streaming=True)

    def run(sql: str) -> tuple[float, float]:
        begun, processor = time.perf_counter(), java_seconds()
        env.sql_query(sql).execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
        return java_seconds() - processor, time.perf_counter() - begun

    # reading comes last once more: what Java compiles during the first query is no part of reading
    for query in ["read", *names, "read"]:
        sql = STREAMED.get(query) or QUERIES.get(query) or "select * from bids"
        few = sql
        for name in COLUMNS:
            few = few.replace(f" {name}", f" few_{name}")
        # the first of a query makes its code
        run(few)
        taken = {"few": run(few), "all": run(sql)}
        print(json.dumps({"query": query, **taken}), flush=True)


def endless(folder: Path, query: str, behind: str | None) -> None:
    """Run a query whose results are printed; whoever started this ends it."""
    from pyflink.table import TableDescriptor

    env = environment(folder, streaming=True, behind=behind)
    printed = TableDescriptor.for_connector("print").build()
    env.sql_query(STREAMED.get(query) or QUERIES[query]).execute_insert(printed).wait()


if __name__ == "__main__":
    place, mode, chosen, *more = sys.argv[1:]
    if mode == "endless":
        endless(Path(place).resolve(), chosen, more[0] if more else None)
    else:
        {"answers": answers, "rates": rates}[mode](Path(place).resolve(), chosen.split(","))
