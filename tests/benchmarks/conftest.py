"""What the tests of the benchmarks share."""

import gc

import pytest


@pytest.fixture(autouse=True)
def no_walks_over_what_other_tests_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark has the collector walk over everything before each case.

    In a process that has run thousands of tests that takes longer than all cases together; no figure is judged here.
    """
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
