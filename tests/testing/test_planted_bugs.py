"""Of 23 bugs in users' programs 22 are found by one short test; their right twins pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore import testing as ht
from tests.conftest import STRESS
from tests.testing import planted
from tests.testing.planted import PLANTED

UNSEEN = {"a store that grows for ever"}
RIGHT = sorted({entry.twin for entry in PLANTED.values()}, key=lambda twin: twin.__name__)


# --- a user's test ----------------------------------------------------------------------------------------------------


def users_test(program: Any, rows: list[dict[str, Any]], by: str | None = None, *, machines: bool = True) -> None:
    """Crashes, commits, shards, orders and machines change no result."""
    ht.check(
        program,
        rows,
        ht.crash_everywhere(),
        ht.cut_anyhow(times=3),
        ht.rescaled(2, 3, times=2),
        ht.shuffled(within="30 seconds", times=4),
        *([ht.elsewhere()] if machines else []),
        by=by,
    )


# --- what it finds ----------------------------------------------------------------------------------------------------


def known_by(program: planted.Program) -> str | None:
    """Counts of `process` are known by their user, of whom the last one counts."""
    results = program().complete()
    by = {entry.by for entry in PLANTED.values() if program in entry[:2]}
    return None if results.aggregates is not None else min(by, key=str)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder, because a bug is a file in it."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PLANTED)
def test_a_bug_is_found(name: str) -> None:
    if name in UNSEEN:
        users_test(PLANTED[name].bug, planted.rows())
        return
    with pytest.raises(ht.DifferentResultsError, match="results are missing"):
        users_test(PLANTED[name].bug, planted.rows(), PLANTED[name].by)


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_a_right_program_passes(program: planted.Program) -> None:
    # two processes for each: a run has every fourth, and `make stress` all
    users_test(program, planted.rows(), known_by(program), machines=bool(STRESS) or RIGHT.index(program) % 4 == 0)


def test_the_bugs_are_at_least_twenty_and_nearly_all_are_found() -> None:
    assert len(PLANTED) >= 20
    assert len(PLANTED) - len(UNSEEN) >= 18


def test_a_cache_that_outlives_its_value_is_found_in_another_process() -> None:
    ht.check(planted.rate_from_the_store, planted.rows(), ht.elsewhere())
    ht.check(planted.rate_remembered, planted.rows(), ht.crash_everywhere(), ht.cut_anyhow())  # they have one cache
    with pytest.raises(ht.DifferentResultsError, match=r"in another process from .* % of the rows on: .* missing"):
        ht.check(planted.rate_remembered, planted.rows(), ht.elsewhere())


def test_debug_names_a_value_that_was_changed_in_place() -> None:
    with ht.Driver(planted.value_changed_in_place(), debug=True) as driver:
        first, *_, last = (row for row in planted.rows() if row["user"] == "user 1")
        driver.push(first)
        with pytest.raises(hs.errors.ValueChangedInPlaceError, match="seen"):
            driver.push(last)


def test_laws_name_a_merge_that_is_wrong() -> None:
    (aggregates,) = planted.mean_of_means().combined.parts
    with pytest.raises(ValueError, match="merge of"):
        hs.check_laws(aggregates, [1, 2, 4, 8])
