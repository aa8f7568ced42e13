"""Joins and versioned stores against the conformance cases: one test per case and way.

`pytest tests/joins/test_vectors.py --vectors DIR` runs the cases of another folder of the same form instead of ours.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.join_vectors import WAYS, Case, JoinRunner, load, run_versioned, skip_reason

OURS = Path(__file__).parents[1] / "vectors" / "joins"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--vectors")
    params: list[Any] = []
    for number, case in enumerate(load(Path(folder) if folder else OURS)):
        reason = skip_reason(case)
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        ways = ("plain", WAYS[1 + number % 3]) if reason is None else ("plain",)
        params += [pytest.param(case, way, id=f"{case['id']}-{way}", marks=marks) for way in ways]
    metafunc.parametrize(("case", "way"), params)


@pytest.mark.stress
def test_case(case: Case, way: str, tmp_path: Path) -> None:
    if case["kind"] == "versioned-store":
        run_versioned(case, tmp_path / "state", way)
    else:
        JoinRunner(case, tmp_path / "state", way).run()
