"""Windows that are aligned, of local days, or with gaps: against the calendar, and what becomes of their state."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from tests.tools.ways import went_by_column

# Midnight twice or never, a skipped date, half hours, and a zone without changes.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Kolkata",
    "America/Havana",
]
HOUR = 3_600_000
YEARS_MS = 50 * 365 * 86_400_000


def ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def local_date(ts: int, zone: str) -> date:
    return datetime.fromtimestamp(ts / 1000, ZoneInfo(zone)).date()


@given(ts=st.integers(200_000_000, YEARS_MS), zone=st.sampled_from(ZONES))
def test_a_local_day_is_all_the_time_of_its_date(ts: int, zone: str) -> None:
    windows = hs.TumblingWindows("1 day", time_zone=zone)
    ((start, end),) = windows.spans_of(ts)
    assert start <= ts < end == windows.end_of(start)
    day = local_date(ts, zone)
    # where the clock goes back over midnight, the second hour of the old date lies in the new day
    assert local_date(start, zone) == day or local_date(start, zone) == day + timedelta(days=1)
    assert local_date(end, zone) > day
    assert local_date(start - 1, zone) < local_date(start, zone)
    assert windows.spans_of(end - 1) == [(start, end)] != windows.spans_of(end)
    assert end - start <= windows.longest_ms


def test_days_on_which_the_clock_changes_have_23_and_25_hours() -> None:
    windows = hs.TumblingWindows("1 day", time_zone="Europe/Berlin")
    for day, hours in ((date(2024, 3, 31), 23), (date(2024, 10, 27), 25), (date(2024, 7, 1), 24)):
        noon = ms(datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo("Europe/Berlin")))
        ((start, end),) = windows.spans_of(noon)
        assert end - start == hours * HOUR
        assert datetime.fromtimestamp(start / 1000, ZoneInfo("Europe/Berlin")).time().hour == 0


def test_a_date_that_a_zone_has_skipped_has_no_window() -> None:
    windows = hs.TumblingWindows("1 day", time_zone="Pacific/Apia")
    before = ms(datetime(2011, 12, 30, 9, 59, tzinfo=UTC))  # the 29th there; the 30th never was
    ((_, end),) = windows.spans_of(before)
    assert local_date(end, "Pacific/Apia") == date(2011, 12, 31)
    assert [local_date(s.start, "Pacific/Apia").day for s in windows.grid.spans(before, end)] == [29, 31]


def test_windows_are_aligned_to_a_moment() -> None:
    monday = hs.TumblingWindows("7 days", align_to=date(2024, 1, 1))
    (start,) = monday.windows_for(ms(datetime(2024, 2, 29, 5, tzinfo=UTC)))
    assert datetime.fromtimestamp(start / 1000, UTC) == datetime(2024, 2, 26, tzinfo=UTC)
    early = hs.TumblingWindows("1 day", align_to=datetime(2024, 1, 1, 6), time_zone="Europe/Berlin")
    (start,) = early.windows_for(ms(datetime(2024, 7, 1, 2, tzinfo=UTC)))
    assert datetime.fromtimestamp(start / 1000, UTC) == datetime(2024, 6, 30, 4, tzinfo=UTC)
    # an aware time is the same moment in every zone
    aware = hs.TumblingWindows("1 day", align_to=datetime(2024, 1, 1, 5, tzinfo=UTC), time_zone="Europe/Berlin")
    assert aware == early
    # and without a zone one on the clock of UTC
    east = datetime(2024, 1, 1, 8, tzinfo=timezone(timedelta(hours=2)))
    (start,) = hs.TumblingWindows("1 day", align_to=east).windows_for(ms(datetime(2024, 7, 1, 2, tzinfo=UTC)))
    assert datetime.fromtimestamp(start / 1000, UTC) == datetime(2024, 6, 30, 6, tzinfo=UTC)
    assert hs.TumblingWindows(10, align_to=3).windows_for(2) == [0]
    assert hs.TumblingWindows(10, align_to=13).describe() == ["tumbling", 10, 0, "align 3"]
    assert repr(monday) == "TumblingWindows(size='7 days', grace=None, align_to=datetime.date(2024, 1, 1))"


DAYS: dict[str, Any] = {
    "a day": hs.TumblingWindows("1 day", time_zone="Europe/Berlin", grace="2 hours"),
    "two days": hs.HoppingWindows("2 days", "1 day", time_zone="America/New_York", grace="1 day"),
    "a week with gaps": hs.HoppingWindows("2 days", "7 days", time_zone="Asia/Beirut", align_to=date(2024, 1, 1)),
    "aligned": hs.HoppingWindows("3 hours", "2 hours", align_to="1 hour"),
}


def rows_of(r: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows over some weeks around a change of the clock, mostly in order."""
    begin = ms(datetime(2024, r.choice([3, 10]), 20, tzinfo=UTC))
    times = sorted(begin + r.randrange(20 * 24 * HOUR) for _ in range(count))
    return [
        {"k": r.choice("ab"), "t": max(0, t - r.choice([0, 0, HOUR, 30 * HOUR])), "n": r.randint(0, 9)} for t in times
    ]


@pytest.mark.parametrize("windows", DAYS)
@pytest.mark.stress
def test_local_days_are_full_scans_in_every_way(windows: str, seed: int, rounds: int, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    shape = DAYS[windows]
    topology = hs.stream(key="k", timestamp="t").windowed_by(shape).aggregate(emit="close", n=hs.Count(), s=hs.Sum("n"))
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows, size = rows_of(r, 80), r.choice([1, 9])
        sums: dict[Any, list[int]] = {}
        now, late = 0, 0
        # within a commit rows are taken by their times
        for at in range(0, 80, size):
            for row in sorted(rows[at : at + size], key=lambda row: row["t"]):
                now = max(now, row["t"])
                for span in shape.spans_of(row["t"]):
                    if span.end + shape.grace_ms > now:
                        cell = sums.setdefault((row["k"], *span), [0, 0])
                        cell[0], cell[1] = cell[0] + 1, cell[1] + row["n"]
                    else:
                        late += 1
        expected = {(*key, *values) for key, values in sums.items()}
        tables = [pa.Table.from_pylist(rows[at : at + size]).to_batches()[0] for at in range(0, 80, size)]
        state = tmp_path / str(number)
        cut = 40 // size * size
        ways: list[list[Any]] = [
            list(topology.run(rows, commit_rows=size, flush=True)),
            list(topology.run(tables, flush=True)),
            [
                *topology.run(rows[:cut], state, commit_rows=size),
                *topology.run(rows, state, commit_rows=size, flush=True),
            ],
        ]
        for way in ways:
            assert {tuple(row.values()) for row in way} == expected
            assert len(way) == len(expected)
        with topology.open(tmp_path / f"{number} steps") as engine:
            for table in tables:
                engine.process_batch(0, engine.split_batch(table, 0)[0])
                assert went_by_column(engine, table)
            assert engine.dropped == late


def test_another_zone_is_another_topology(tmp_path: Path) -> None:
    def days(**more: Any) -> hs.Topology:
        windows = hs.TumblingWindows("1 day", **more)
        return hs.stream(key="k", timestamp="t").windowed_by(windows).aggregate(n=hs.Count())

    berlin = days(time_zone="Europe/Berlin")
    rows = [{"k": "a", "t": ms(datetime(2024, 7, 1, 22, 30, tzinfo=UTC))}]
    (result,) = berlin.run(rows, tmp_path)
    assert result["window_start"] == ms(datetime(2024, 7, 1, 22, tzinfo=UTC))
    assert berlin.compare(tmp_path) == []
    for other in (days(), days(time_zone="Europe/Paris"), days(time_zone="Europe/Berlin", align_to="6 hours")):
        (change,) = other.compare(tmp_path)
        assert change.verdict == "refused"
        assert change.what.startswith("windows: align_to and time_zone: the state has ['zone Europe/Berlin']")
    (change,) = days(time_zone="Europe/Berlin", grace="1 hour").compare(tmp_path)[:1]
    assert change.verdict == "taken"
