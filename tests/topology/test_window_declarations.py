"""Declarations of windows: durations, and which windows a time belongs to."""

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridstore.aggregation import HoppingWindows, KafkaSlidingWindows, SessionWindows, SlidingWindows, TumblingWindows


@pytest.mark.parametrize("size", [300_000, timedelta(minutes=5), "5 minutes"])
def test_durations_are_ints_timedeltas_or_text(size: Any) -> None:
    assert TumblingWindows(size).size_ms == 300_000
    assert HoppingWindows(size, size).advance_ms == 300_000
    assert SlidingWindows(size).size_ms == 300_000
    assert SessionWindows(size).gap_ms == 300_000
    assert TumblingWindows("1 day", grace=size).grace_ms == 300_000


@given(ts=st.integers(0, 10**6), size=st.integers(1, 50), advance=st.integers(1, 50))
def test_windows_for_are_those_that_hold_the_time(ts: int, size: int, advance: int) -> None:
    tumbling = TumblingWindows(size)
    assert tumbling.windows_for(ts) == [s for s in range(max(0, ts - size), ts + 1) if s % size == 0 and s + size > ts]
    actual = HoppingWindows(size, advance).windows_for(ts)
    assert actual == [s for s in range(max(0, ts - size), ts + 1) if s % advance == 0 and s <= ts < s + size]


def test_windows_for_sliding_and_sessions() -> None:
    assert SlidingWindows(10).windows_for(25) == [15]
    assert SlidingWindows(10).windows_for(4) == [0]
    assert SessionWindows(10).windows_for(25) == [25]


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda: TumblingWindows(0), ValueError, "TumblingWindows: size"),
        (lambda: TumblingWindows("soon"), ValueError, "TumblingWindows: size"),
        (lambda: TumblingWindows(1.5), TypeError, "TumblingWindows: size"),
        (lambda: TumblingWindows(5, grace=-1), ValueError, "TumblingWindows: grace"),
        (lambda: HoppingWindows(10, 0), ValueError, "HoppingWindows: advance"),
        (lambda: HoppingWindows("365 days", 1), ValueError, "found 31536000000 windows for each record"),
        (lambda: HoppingWindows(100_001, 1), ValueError, "expected at most 100000"),
        (
            lambda: TumblingWindows("1 hour", time_zone="Europe/Rome"),
            ValueError,
            "found with 3600000 ms, expected whole",
        ),
        (
            lambda: TumblingWindows("1 day", time_zone="Rome"),
            ValueError,
            "time_zone: found 'Rome', expected a name such",
        ),
        (lambda: TumblingWindows("1 day", time_zone=3), TypeError, "time_zone: found int, expected a name"),
        (lambda: HoppingWindows("1 day", "1 hour", time_zone="UTC"), ValueError, "found with 3600000 ms"),
        (lambda: TumblingWindows(5, align_to=-1), ValueError, "align_to: found -1"),
        (lambda: TumblingWindows(5, align_to=1.5), TypeError, "align_to: found float"),
        (lambda: SlidingWindows(-1), ValueError, "SlidingWindows: size"),
        (lambda: SessionWindows(True), TypeError, "SessionWindows: gap"),
    ],
)
def test_bad_declarations_name_the_argument(make: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        make()


def test_the_kafka_flavour_has_a_grace() -> None:
    assert KafkaSlidingWindows(10, grace=5).describe() == ["sliding", "kafka", 10, 5]
    assert KafkaSlidingWindows(0).size_ms == SlidingWindows(0).size_ms == 0


def test_descriptions_are_plain_and_equal_for_equal_windows() -> None:
    assert TumblingWindows("1 second").describe() == TumblingWindows(1000, grace=0).describe() == ["tumbling", 1000, 0]
    assert HoppingWindows(10, 5, grace=1).describe() == ["hopping", 10, 5, 1]
    assert SlidingWindows(10).describe() == ["sliding", "kip450", 10, 0]
    assert SessionWindows(10).describe() == ["session", 10, 0]
    assert TumblingWindows("1 second") == TumblingWindows(1000, grace=0) != TumblingWindows(1000, grace=1)
    assert len({HoppingWindows(10, 5), HoppingWindows(10, 5), HoppingWindows(10, 2), TumblingWindows(10)}) == 3


def test_declarations_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TumblingWindows(5).size = 6  # type: ignore[misc]
