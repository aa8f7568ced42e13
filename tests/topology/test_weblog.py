"""The log parser and generator of the examples: one format, read alike by Python and by Spark."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import weblog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGENT = '"http://example.com/" "Mozilla/5.0 (X11; Linux)"'
STAMP = "[17/May/2015:10:05:03 +0000]"
TIME = 1_431_857_103_000  # 17 May 2015, 10:05:03 UTC

GOOD = [
    (
        f'203.0.113.9 - - {STAMP} "GET /a.png HTTP/1.1" 200 2037 {AGENT}',
        ("203.0.113.9", TIME, "GET", "/a.png", 200, 2037),
    ),
    (f'203.0.113.9 - - {STAMP} "HEAD / HTTP/1.1" 304 - {AGENT}', ("203.0.113.9", TIME, "HEAD", "/", 304, 0)),
    # a user name, IPv6, an offset from UTC
    (
        f'2001:db8::7 - ann [17/May/2015:12:35:03 +0230] "POST /x?a=b&c=%20 HTTP/2.0" 201 9 {AGENT}',
        ("2001:db8::7", TIME, "POST", "/x?a=b&c=%20", 201, 9),
    ),
    (
        f'host.example - - [17/May/2015:02:05:03 -0800] "GET / HTTP/1.0" 404 209 {AGENT}',
        ("host.example", TIME, "GET", "/", 404, 209),
    ),
    # the common format, and a line cut inside the agent: nothing that we use is missing
    (f'203.0.113.9 - - {STAMP} "GET / HTTP/1.1" 200 5', ("203.0.113.9", TIME, "GET", "/", 200, 5)),
    (f'203.0.113.9 - - {STAMP} "GET / HTTP/1.1" 200 5 "-" "Mozi', ("203.0.113.9", TIME, "GET", "/", 200, 5)),
    # requests as scanners leave them: none, bytes that are no request, an escaped quote
    (f'203.0.113.9 - - {STAMP} "-" 408 - "-" "-"', ("203.0.113.9", TIME, "-", "-", 408, 0)),
    (f'203.0.113.9 - - {STAMP} "" 400 0 "-" "-"', ("203.0.113.9", TIME, "-", "-", 400, 0)),
    (f'203.0.113.9 - - {STAMP} "\\x16\\x03" 400 226 "-" "-"', ("203.0.113.9", TIME, "\\x16\\x03", "-", 400, 226)),
    (
        f'203.0.113.9 - - {STAMP} "GET /a\\"b c HTTP/1.1" 200 1 "-" "-"',
        ("203.0.113.9", TIME, "GET", '/a\\"b', 200, 1),
    ),
    ('203.0.113.9 - - [01/Jan/1970:00:00:00 +0000] "GET / x" 200 1', ("203.0.113.9", 0, "GET", "/", 200, 1)),
]
BAD = [
    "nothing of the kind",
    "203.0.113.9 - - [17/May/2015:10",
    f'203.0.113.9 - - {STAMP} "GET /never closed',
    f'203.0.113.9 - - {STAMP} "GET / HTTP/1.1" OK 5 {AGENT}',
    f'203.0.113.9 - - {STAMP} "GET / HTTP/1.1" 200 -5 {AGENT}',
    f'203.0.113.9 - - {STAMP} "GET / HTTP/1.1" 200 5x {AGENT}',
    f'203.0.113.9 - - {STAMP} "GET / HTTP/1.1" 200 99999999999999999999 {AGENT}',
    f'203.0.113.9 - - [31/Feb/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 {AGENT}',
    f'203.0.113.9 - - [17/Mai/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 {AGENT}',
    f'203.0.113.9 - - [17/May/2015:24:00:00 +0000] "GET / HTTP/1.1" 200 5 {AGENT}',
    f'203.0.113.9 - - [17/May/2015:10:05:61 +0000] "GET / HTTP/1.1" 200 5 {AGENT}',
    f'203.0.113.9 - - [01/Jan/1970:00:00:00 +0100] "GET / HTTP/1.1" 200 5 {AGENT}',
    f'203.0.113.9 - - [17/May/0000:10:05:03 +0000] "GET / HTTP/1.1" 200 5 {AGENT}',
    f'{STAMP} "GET / HTTP/1.1" 200 5 {AGENT}',
]


@pytest.mark.parametrize(("line", "row"), GOOD)
def test_a_line_of_the_format_gives_its_row(line: str, row: tuple[object, ...]) -> None:
    parsed = weblog.parse(line)
    assert parsed is not None
    assert tuple(parsed.values()) == row
    assert list(parsed) == ["ip", "time", "method", "path", "status", "bytes"]


@pytest.mark.parametrize("line", BAD)
def test_any_other_line_gives_nothing(line: str) -> None:
    assert weblog.parse(line) is None


def test_bad_lines_are_counted_the_first_is_kept_and_the_rest_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes("\n".join([GOOD[0][0], "", BAD[0], GOOD[1][0], BAD[1]]).encode() + b"\n\xff\xfe\n")
    bad = weblog.BadLines()
    assert [row["method"] for row in weblog.read(log, bad)] == ["GET", "HEAD"]
    assert bad.count == 3
    assert bad.first == (3, BAD[0])
    assert str(bad) == (
        "3 lines are not in the combined log format and left out; the first is line 3: 'nothing of the kind'"
    )
    assert str(weblog.BadLines()) == ""


def test_a_long_hostile_request_ends(tmp_path: Path) -> None:
    # with ordinary quantifiers this one line would take hours
    assert weblog.parse(f'203.0.113.9 - - {STAMP} "' + "a" * 200_000 + '" x') is None


def test_a_generated_log_looks_as_it_says(tmp_path: Path) -> None:
    log = tmp_path / "made.log"
    steps: list[int] = []
    weblog.generate(log, 20_000, seed=7, hours=2, bad_lines=5, progress=steps.append)
    bad = weblog.BadLines()
    rows = list(weblog.read(log, bad))
    assert len(rows) == 20_000
    assert bad.count == 5
    assert steps == [10_000, 20_000]

    newest = late = behind = 0
    for row in rows:
        newest = max(newest, row["time"])
        late = max(late, newest - row["time"])
        behind += row["time"] < newest
    assert 50_000 <= late <= 60_000
    assert 1_000 <= behind <= 3_000
    assert newest - min(row["time"] for row in rows) > 1.9 * 3_600_000

    requests = sorted(
        (sum(row["ip"] == ip for row in rows) for ip in {row["ip"] for row in rows[:2_000]}), reverse=True
    )
    assert requests[0] > 20 * requests[len(requests) // 2]
    assert any(row["bytes"] == 0 for row in rows)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        weblog.generate(tmp_path / name, 500, seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_it_writes_a_log_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "made.log"
    monkeypatch.setattr(sys, "argv", ["weblog.py", str(log), "--lines", "50", "--seed", "3", "--bad-lines", "1"])
    assert weblog.main() == 0
    assert len(log.read_text().splitlines()) == 51


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_each_line_as_python_does(spark: "SparkSession", tmp_path: Path) -> None:
    log = tmp_path / "made.log"
    weblog.generate(log, 300, seed=5, bad_lines=20)
    lines = [line for line, _ in GOOD] + BAD + ["", "\u0663 \u2028 \u00e9"] + log.read_text().splitlines()
    frame = spark.createDataFrame([(number, line) for number, line in enumerate(lines)], "number int, value string")
    rows = frame.select("number", weblog.parse_column(frame.value).alias("row")).orderBy("number").collect()
    assert [row.row and row.row.asDict() for row in rows] == [weblog.parse(line) for line in lines]
