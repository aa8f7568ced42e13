"""Times by column: the same as one by one, whatever makes them."""

import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy
import pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.clock import time_ms
from hybridstore.topology.times import _LAST_MS, _MANY, TO_TIME, TimeForm, plain_times, times_as

TIMES = st.integers(0, _LAST_MS) | st.integers(1_500_000_000_000, 1_900_000_000_000)


@pytest.mark.parametrize("form", list(TO_TIME))
@pytest.mark.parametrize("loaded", [True, False], ids=["numpy", "no numpy"])
@given(st.lists(TIMES, max_size=2 * _MANY))
@example([0, _LAST_MS] * _MANY)
@example([2**32 * 1000 - 1, 2**32 * 1000, 1_234_567_890_123] * _MANY)
def test_times_by_column_are_those_that_come_one_by_one(form: TimeForm, loaded: bool, times: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", numpy)
        if not loaded:
            patch.delitem(sys.modules, "numpy")
        answer = times_as(form, times)
    expected = [TO_TIME[form](ts) for ts in times]
    assert answer == expected
    assert list(map(type, answer)) == list(map(type, expected))
    assert [getattr(moment, "tzinfo", None) for moment in answer] == [
        getattr(moment, "tzinfo", None) for moment in expected
    ]


@pytest.mark.parametrize("form", ["naive", "aware"])
@pytest.mark.parametrize("count", [1, _MANY])
def test_a_time_that_no_datetime_can_say_is_an_overflow(form: TimeForm, count: int) -> None:
    for ts in (_LAST_MS + 1, 2**63 - 1):
        with pytest.raises(OverflowError):
            times_as(form, [ts] * count)


@pytest.mark.parametrize("zoned", [True, False])
@pytest.mark.parametrize("loaded", [True, False], ids=["pyarrow", "no pyarrow"])
@given(st.data())
def test_times_taken_by_column_are_those_taken_one_by_one(zoned: bool, loaded: bool, data: st.DataObject) -> None:
    since_1970: Any = {"min_value": datetime(1970, 1, 3), "max_value": datetime.max - timedelta(days=2)}
    zones: Any = st.sampled_from([UTC, timezone(timedelta(hours=-5, microseconds=7)), ZoneInfo("Europe/Paris")])
    moments = st.datetimes(**since_1970, timezones=zones if zoned else st.none())
    given = data.draw(st.lists(moments, min_size=1, max_size=5)) * data.draw(st.sampled_from([1, _MANY]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", pyarrow)
        if not loaded:
            patch.delitem(sys.modules, "pyarrow")
        assert plain_times(given) == [time_ms(moment, "time") for moment in given]


def test_moments_with_and_without_zones_are_not_taken_by_column() -> None:
    assert plain_times([datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)] * _MANY) is None


def test_times_may_be_text_as_json_has_them() -> None:
    minutes = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
    rows = [{"k": "a", "t": "2026-03-02T08:00:00Z"}, {"k": "a", "t": "2026-03-02T09:00:30.250+01:00"}]
    (_, second) = minutes.run(rows)
    assert (second["window_start"], second["n"]) == (datetime(2026, 3, 2, 8, tzinfo=UTC), 2)
    with pytest.raises(ValueError, match=r"row 0: column 't': found 'yesterday', expected a time such as"):
        list(minutes.run([{"k": "a", "t": "yesterday"}]))


@pytest.mark.parametrize("zone", [None, UTC])
def test_the_times_of_a_pandas_frame_are_those_of_its_rows_in_every_result(zone: timezone | None) -> None:
    """Pandas has nanoseconds, which pyarrow gives as pandas' own type."""
    pandas = pytest.importorskip("pandas")
    moments = [datetime(2024, 1, 1, second=second, microsecond=5, tzinfo=zone) for second in range(3)]
    rows = [{"user": "ann", "time": moment, "seen": moment} for moment in moments]
    clicks = hs.stream(key="user", timestamp="time")
    minutes = clicks.windowed_by(hs.TumblingWindows("1 minute"))
    programs = [
        clicks.filter(lambda row: row["user"]),
        clicks.process(lambda row, stores: [row]),
        clicks.aggregate(seen=hs.CollectSet("seen"), last=hs.LastBy("time", ["seen"]), newest=hs.Max("seen")),
        minutes.aggregate(n=hs.Count(), first=hs.First("seen"), emit="close").late(),
    ]
    kind = "datetime64[ns]" if zone is None else "datetime64[ns, UTC]"
    frame = pandas.DataFrame(rows).astype({"time": kind, "seen": kind})
    for program in programs:
        flush = program is programs[-1]
        assert list(program.run(frame, flush=flush)) == list(program.run(rows, flush=flush))
