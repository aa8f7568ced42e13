"""Web server logs in Apache's combined format: read a line, read a file, make a file that looks real.

    203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET /a.png HTTP/1.1" 200 2037 "http://referer/" "agent"

A row is `{"ip", "time", "method", "path", "status", "bytes"}`: `time` in milliseconds since the epoch (UTC), `bytes` 0
where the server wrote `-`. Everything up to the bytes must be as above; what follows is not looked at, so the common
format without referer and agent is read too, and so is a line that was cut inside the agent.

One pattern serves Python and Spark: it uses only what `re` and Java's expressions mean alike.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from pyspark.sql import Column

# Groups: client, day, time of day, offset from UTC, method, path, status, bytes.
PATTERN = (
    r"^([^ ]+) [^ ]+ [^\[]+ "
    r"\[([0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}) ([+-](?:0[0-9]|1[0-4])[0-5][0-9])\] "
    # possessive (*+), so that no line, however made, takes more than linear time
    r'"((?:[^"\\ ]|\\[^\n])*+) ?+((?:[^"\\ ]|\\[^\n])*+)(?:[^"\\]|\\[^\n])*+" '
    r"([1-5][0-9]{2}) ([0-9]{1,18}|-)(?: |$)"
)
# How Spark's try_to_timestamp reads group 2, a blank, group 3, a blank, and group 4.
SPARK_TIME_FORMAT = "dd/MMM/yyyy HH:mm:ss xx"

_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {m: i for i, m in enumerate(_MONTH_NAMES, 1)}
_match = re.compile(PATTERN).match
_midnights: dict[str, int | None] = {}


class Request(TypedDict):
    """One line of the log."""

    ip: str
    time: int
    method: str
    path: str
    status: int
    bytes: int


class BadLine(NamedTuple):
    """A line that is not in the format: its number in the file, from 1, and its text."""

    number: int
    text: str


class BadLines:
    """Count what did not parse and keep the first such line, to be shown."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BadLine | None = None

    def add(self, number: int, text: str) -> None:
        self.count += 1
        self.first = self.first or BadLine(number, text)

    def __str__(self) -> str:
        """One sentence for people, empty if all lines parsed."""
        if self.first is None:
            return ""
        lines = "1 line is" if self.count == 1 else f"{self.count:,} lines are"
        text = self.first.text if len(self.first.text) <= 120 else self.first.text[:117] + "..."
        return f"{lines} not in the combined log format and left out; the first is line {self.first.number}: {text!r}"


def _midnight(day: str) -> int | None:
    """Milliseconds of the day's start in UTC, or None for a day that does not exist or is before 1970."""
    if day not in _midnights:
        if len(_midnights) > 10_000:  # a hostile file of many dates must not fill the memory
            _midnights.clear()
        try:
            date = datetime(int(day[7:]), _MONTHS.get(day[3:6], 0), int(day[:2]), tzinfo=UTC)
        except ValueError:
            date = datetime.min.replace(tzinfo=UTC)
        _midnights[day] = int(date.timestamp()) * 1000 if date.year >= 1970 else None
    return _midnights[day]


def parse(line: str) -> Request | None:
    """Return the row of one line, or None where the line is not in the format.

    A request without a method or path, as a scanner or an idle connection leaves it, has `-` for what is missing.
    """
    match = _match(line)
    if match is None:
        return None
    ip, day, clock, offset, method, path, status, size = match.groups()
    midnight = _midnight(day)
    hour, minute, second = int(clock[:2]), int(clock[3:5]), int(clock[6:])
    if midnight is None or hour > 23 or minute > 59 or second > 59:
        return None
    minutes = hour * 60 + minute - int(offset[0] + "1") * (int(offset[1:3]) * 60 + int(offset[3:]))
    time = midnight + (minutes * 60 + second) * 1000
    if time < 0:
        return None
    return {
        "ip": ip,
        "time": time,
        "method": method or "-",
        "path": path or "-",
        "status": int(status),
        "bytes": 0 if size == "-" else int(size),
    }


def parse_all(lines: Iterable[str], bad: BadLines | None = None) -> Iterator[Request]:
    """Yield the row of each line; count in `bad` those that have none. Empty lines are nothing at all."""
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        row = parse(text)
        if row is not None:
            yield row
        elif bad is not None and text:
            bad.add(number, text)


def read(path: str | Path, bad: BadLines | None = None) -> Iterator[Request]:
    """Yield the rows of a file, in its order. Bytes that are no UTF-8 are replaced, as Spark's text source does."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        yield from parse_all(lines, bad)


def parse_column(value: "Column") -> "Column":
    """Return `parse` as a Spark expression: a struct of the same fields, null where the line is not in the format.

    `lines.select(parse_column(lines.value).alias("row")).where("row is not null").select("row.*")` are the requests.
    """
    from pyspark.sql import functions as F

    def group(number: int) -> "Column":
        return F.regexp_extract(value, PATTERN, number)

    stamp = F.concat_ws(" ", group(2), group(3), group(4))
    time = F.unix_millis(F.try_to_timestamp(stamp, F.lit(SPARK_TIME_FORMAT)))

    def named(number: int, name: str) -> "Column":
        return F.when(group(number) == "", "-").otherwise(group(number)).alias(name)

    size = F.when(group(8) == "-", F.lit(0)).otherwise(group(8).try_cast("bigint"))
    row = F.struct(
        group(1).alias("ip"),
        time.alias("time"),
        named(5, "method"),
        named(6, "path"),
        group(7).try_cast("bigint").alias("status"),
        size.cast("bigint").alias("bytes"),
    )
    return F.when(time >= 0, row)


def generate(
    path: str | Path,
    lines: int = 200_000,
    seed: int = 1,
    *,
    hours: float = 6.0,
    clients: int = 2_000,
    paths: int = 600,
    disorder_seconds: int = 60,
    bad_lines: int = 0,
    start: datetime = datetime(2026, 3, 2, 8, tzinfo=UTC),
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a log that looks like a real one; the same arguments write the same bytes.

    A few clients and paths make most of the requests (Zipf). Traffic swells and falls. A tenth of the lines carry a
    time that lies up to `disorder_seconds` before that of lines already written, as a server leaves them that logs
    requests when they end. `bad_lines` further lines are cut in the middle. `progress` is called with the lines written
    so far.
    """
    random = Random(seed)
    addresses = [
        f"198.{random.choice((18, 19))}.{n >> 8 & 255}.{n & 255}" for n in random.sample(range(65_536), clients)
    ]
    words = ["blog", "images", "projects", "docs", "presentations", "articles", "style", "feed", "search", "about"]
    kinds = (("html", 9.2), ("png", 10.5), ("css", 8.1), ("js", 9.4), ("", 9.0), ("pdf", 13.0))
    pages = []
    for number in range(paths):
        kind, log_size = random.choice(kinds)
        name = f"/{random.choice(words)}/{number}" + (f".{kind}" if kind else "/")
        pages.append((name, max(35, int(random.lognormvariate(log_size, 1.0)))))
    agents = [
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0 Safari/537.36",
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.4 "
        "Safari/605.1.15",
        "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://example.com/bot.html)",
        "curl/8.5.0",
    ]
    requests = (
        [("GET", 200)] * 91 + [("GET", 304)] * 4 + [("GET", 404)] * 2 + [("GET", 301), ("HEAD", 200), ("POST", 200)]
    )
    bad = set(random.sample(range(lines), min(bad_lines, lines)))

    # Arrivals: even within each of 24 stretches, whose shares of the traffic differ.
    shares = list(accumulate(random.uniform(0.4, 1.6) for _ in range(24)))
    span = hours * 3600
    stretches = random.choices(range(24), cum_weights=shares, k=lines)
    arrivals = sorted((stretch + random.random()) * span / 24 for stretch in stretches)
    who = random.choices(addresses, cum_weights=list(accumulate(1 / (n + 3) for n in range(clients))), k=lines)
    what = random.choices(pages, cum_weights=list(accumulate(1 / (n + 2) for n in range(paths))), k=lines)
    how = random.choices(requests, k=lines)
    with_agent = random.choices(agents, k=lines)

    stamps: dict[int, str] = {}
    with open(path, "w", encoding="ascii", newline="\n") as log:
        for number in range(lines):
            late = random.random() * disorder_seconds if random.random() < 0.1 else 0.0
            second = max(0, int(arrivals[number] - late))
            stamp = stamps.get(second)
            if stamp is None:
                at = start + timedelta(seconds=second)
                stamp = stamps[second] = f"{at.day:02}/{_MONTH_NAMES[at.month - 1]}/{at.year}:{at:%H:%M:%S} +0000"
            (page, size), (method, status) = what[number], how[number]
            sent = "-" if status == 304 or method == "HEAD" else size if status == 200 else 209
            line = (
                f'{who[number]} - - [{stamp}] "{method} {page} HTTP/1.1" {status} {sent} "-" "{with_agent[number]}"\n'
            )
            log.write(line)
            if number in bad:
                log.write(line[: random.randrange(5, 40)] + "\n")
            if progress is not None and number % 10_000 == 9_999:
                progress(number + 1)


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of argparse: an int that is no less."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text}, expected {least} or more")
        return int(text)

    return number


def main() -> int:
    """Write a log from the command line."""
    options = argparse.ArgumentParser(description="write a web server log that looks real")
    options.add_argument("path", help="the file to write")
    options.add_argument("--lines", type=at_least(1), default=200_000, help="how many requests (default: 200,000)")
    options.add_argument("--seed", type=int, default=1, help="the same seed writes the same log (default: 1)")
    options.add_argument("--bad-lines", type=at_least(0), default=0, help="lines cut short on top (default: 0)")
    asked = options.parse_args()
    try:
        generate(asked.path, asked.lines, asked.seed, bad_lines=asked.bad_lines)
    except OSError as error:
        print(f"weblog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
