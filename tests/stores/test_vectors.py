"""The stores against the conformance cases: one test per case and way.

`pytest tests/stores/test_vectors.py --vectors DIR` runs the cases of another folder of the same form instead of ours.
"""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import logged
from tests.tools.topology_vectors import TYPES, TopologyRunner
from tests.tools.vector_runner import AGGREGATORS, SMALL, SMALL_TAIL, Case, Runner, Subject, load, skip_reason, ways_of

# Those that were run on Kafka's own classes, and those that we derived by hand from docs/semantics.md.
OURS = [Path(__file__).parents[1] / "vectors", Path(__file__).parents[1] / "cases"]
# A case that looks at its changelog needs all of it; the others are also cases of pruning.
KEEP_ALL = hs.CheckpointPolicy(keep=10_000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--vectors")
    params: list[Any] = []
    for number, case in enumerate(chain.from_iterable(map(load, [Path(folder)] if folder else OURS))):
        reason = skip_reason(case)
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        ways = ways_of(number) if reason is None else ["plain"]
        params.extend(pytest.param(case, way, id=f"{case['id']}-{way}", marks=marks) for way in ways)
    metafunc.parametrize(("case", "way"), params)


@pytest.mark.stress
def test_case(case: Case, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "tail":
        for place, bound in (SMALL_TAIL | {"hybridstore.stores.cold_tail.FREE_LOOKS": 10**9}).items():
            monkeypatch.setattr(place, bound)
    if case["store"]["type"] in TYPES:
        TopologyRunner(case, tmp_path / "state", way).run()
        return
    policy = KEEP_ALL if any(step["op"] in ("changelog", "restore") for step in case["steps"]) else None
    subject = Subject(
        open=lambda: hs.open(tmp_path / "state", durability="os", checkpoints=policy, _tuning=SMALL),
        logged=lambda state: logged(state, "case"),
        full_error=hs.BufferFullError,
        aggregator=lambda name: getattr(hs, AGGREGATORS[name])(),
    )
    Runner(case, subject, way).run()
