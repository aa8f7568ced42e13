"""`windows_of` is the inverse of `describe`, so whoever has a description has the one rule of its windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.aggregation import DAY_MS, Windows, windows_of
from hybridstore.aggregation.windows import Forever
from hybridstore.rescaling.routes import closing_ms

SPANS = st.integers(1, 10**12)
GRACES = st.integers(0, 10**12)
ALIGNS = st.none() | st.integers(0, 10**13)
ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"])
DAYS = st.integers(1, 30).map(lambda days: days * DAY_MS)
WINDOWS: st.SearchStrategy[Windows] = st.one_of(
    st.builds(lambda size, grace, align: hs.TumblingWindows(size, grace=grace, align_to=align), SPANS, GRACES, ALIGNS),
    st.builds(
        lambda size, parts, grace, align: hs.HoppingWindows(size, size // parts or 1, grace=grace, align_to=align),
        SPANS,
        st.integers(1, 50_000),
        GRACES,
        ALIGNS,
    ),
    st.builds(lambda size, grace, zone: hs.TumblingWindows(size, grace=grace, time_zone=zone), DAYS, GRACES, ZONES),
    st.builds(lambda size, zone: hs.HoppingWindows(2 * size, size, time_zone=zone), DAYS, ZONES),
    st.builds(lambda size: hs.SlidingWindows(size), SPANS),
    st.builds(lambda size, grace: hs.KafkaSlidingWindows(size, grace=grace), SPANS, GRACES),
    st.builds(lambda gap, grace: hs.SessionWindows(gap, grace=grace), SPANS, GRACES),
    st.just(Forever()),
)


@given(windows=WINDOWS, ts=st.integers(0, 10**13), clocked=st.booleans())
def test_a_description_has_the_windows_that_it_describes(windows: Windows, ts: int, clocked: bool) -> None:
    again = windows_of(windows.describe())
    assert again == windows
    assert windows_of([*windows.describe(), "panes"]) == windows
    assert again.closing_ms(clocked=clocked) == windows.closing_ms(clocked=clocked)
    assert again.latest_end(ts) == windows.latest_end(ts)
    assert again.default_retention_ms == windows.default_retention_ms


@pytest.mark.parametrize("description", [["sliding"], ["tumbling", 5], ["weekly", 5, 0], ["hopping", 5, 0]])
def test_what_describes_no_windows_is_refused(description: list[Any]) -> None:
    with pytest.raises(ValueError, match="expected a description of windows"):
        windows_of(description)


@given(windows=WINDOWS, start=st.integers(0, 10**12), clocked=st.booleans())
def test_a_rescaled_window_closes_when_its_engine_closes_it(windows: Windows, start: int, clocked: bool) -> None:
    """Also windows of days of a time zone, whose description ends in text."""
    bounds = closing_ms({"emit": "close", "windows": windows.describe()}, clocked=clocked)
    assert bounds is not None
    first, last = bounds
    if isinstance(windows, hs.TumblingWindows | hs.HoppingWindows):
        spans = windows.grid.spans(start, start)
        assert all(first <= span.end - max(span.start, 0) + windows.grace_ms <= last for span in spans if span.start)
    else:
        assert first == last == windows.latest_end(start) - start + windows.closing_ms(clocked=clocked)
    assert closing_ms({"emit": "commit", "windows": windows.describe()}, clocked=clocked) is None
