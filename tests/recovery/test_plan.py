"""plan and CheckpointPolicy: what a restore would do is what it then does, and takes about as long as was said."""

import random
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.mutation import mutations
from hybridstore.state.policy import Logged, RestoreSpeed
from hybridstore.state.restart import plan as plan_of
from hybridstore.stores.kinds import KINDS
from recovery import plan as plan_module
from recovery.block import seal
from recovery.index import META_KEY, encode
from tests.recovery.test_crash_points import open_state
from tests.recovery.test_damage import build
from tests.tools.checkpoints import index_of, replaced
from tests.tools.faults import QuickFiles
from tests.tools.hooks import crash

NEVER = hs.CheckpointPolicy(max_restore=timedelta(days=1))


@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("damaged", [(), (10,)], ids=str)
def test_what_is_planned_is_what_is_done(tmp_path: Path, closed: bool, damaged: tuple[int, ...]) -> None:
    build(tmp_path / "source", closed=closed)
    path = tmp_path / "source" / "state"
    for version in damaged:
        index_of(path, version).write_bytes(b"?")
    if not closed:
        with sorted((path / "changelog").iterdir())[-1].open("ab") as file:
            file.write(b"torn")
    plan = hs.inspect(path).restart()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert plan == hs.inspect(path).restart()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    report = open_state(path, QuickFiles()).restore_report
    for name in (
        "version",
        "checkpoint_version",
        "checkpoint_records",
        "checkpoint_bytes",
        "tail_versions",
        "tail_records",
        "tail_counts",
        "tail_bytes",
        "cut",
        "skipped",
    ):
        assert getattr(plan, name) == getattr(report, name), name
    assert plan.problem is None
    assert plan.duration_ms > 0
    assert f"version {report.version} would be restored in about" in plan.summary()


def test_a_plan_refuses_a_newer_checkpoint_format_as_a_restore_does(tmp_path: Path) -> None:
    build(tmp_path / "source", closed=True)
    path = tmp_path / "source" / "state"
    replaced(path, 10, encode({META_KEY: seal(pack({"format": 7, "min_reader": 7}))}))
    with pytest.raises(hs.errors.UnsupportedVersionError) as refused:
        open_state(path, QuickFiles())
    assert plan_of(path).problem == str(refused.value)
    with pytest.raises(hs.errors.UnsupportedVersionError):
        hs.inspect(path)


def test_a_plan_says_why_a_restore_would_be_refused(tmp_path: Path) -> None:
    build(tmp_path / "source", closed=False)
    path = tmp_path / "source" / "state"
    names = [index_of(path, version).name for version in (5, 10)]
    for version in (5, 10):
        index_of(path, version).write_bytes(b"?")
    plan = hs.inspect(path).restart()
    assert plan.problem is not None
    assert all(text in plan.problem for text in (*names, "are missing before it"))
    assert "would be refused: " in plan.summary()
    with pytest.raises(hs.errors.RestoreError, match="no way to restore") as refused:
        open_state(path, QuickFiles())
    assert plan.problem == str(refused.value)


def test_a_plan_names_the_kinds_of_the_log_and_decodes_no_version_without_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = hs.open(tmp_path, checkpoints=NEVER)
    for number in range(3):
        state.key_value("counts")[number] = number
        state.commit()
    state.window("visits", retention="1 day").put("a", 1, 0)
    state.commit()
    crash(state)
    decoded = []

    def note(body: Any) -> Any:
        decoded.append(body)
        return mutations(body)

    monkeypatch.setattr(plan_module, "mutations", note)
    assert sorted(plan_of(tmp_path).kinds.values()) == ["key_value", "window"]
    assert len(decoded) == 2


def test_there_is_no_plan_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(hs.errors.ForeignFileError, match="found nothing, expected a state directory"):
        plan_of(tmp_path / "absent")
    (tmp_path / "0").mkdir()
    with pytest.raises(hs.errors.ForeignFileError, match=r"found '0' in it, .*these are shards of a topology"):
        plan_of(tmp_path)


def test_the_estimate_grows_with_the_log_and_falls_with_a_checkpoint(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=NEVER) as state:
        plans = []
        for number in range(3):
            for i in range(1000):
                state.key_value("kv")[i] = number
            state.commit()
            plans.append(state.metrics().restore_estimate_ms)
            assert plans[-1] == pytest.approx(plan_of(tmp_path).duration_ms)
        assert plans == sorted(plans)
        state.checkpoint(wait=True)
        assert state.metrics().restore_estimate_ms < plans[0]


def test_the_records_of_a_kind_of_store_take_their_own_time() -> None:
    for name, kind in KINDS.items():
        for op, seconds in kind.seconds.items():
            assert Logged.of(0, 0, {5 * 16 + op: 3}, {5: name}).seconds == pytest.approx(3 * seconds), (name, op)


def work_of(do: Callable[[], Any]) -> int:
    """Return how many lines of Python a call runs."""
    lines = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("aggregator", [hs.Mean(), hs.Max()], ids=repr)
def test_a_restart_and_its_estimate_are_the_same_for_disordered_times(tmp_path: Path, aggregator: Any) -> None:
    estimates, work = [], []
    for disorder in (0, 60, 600):
        path, draw = tmp_path / str(disorder), random.Random(1)

        def first_reads(path: Path = path) -> None:
            again = hs.open(path, checkpoints=NEVER)
            for name in "ab":
                assert again.sliding(name, size=600, aggregator=aggregator).get("k1") is not None
            crash(again)

        state = hs.open(path, checkpoints=NEVER)
        for number in range(4000):
            for name in "ab":
                late = draw.randrange(disorder + 1)
                sums = state.sliding(name, size=600, aggregator=aggregator)
                sums.add(f"k{draw.randrange(50)}", 1.5, max(0, number - late))
            if number % 500 == 499:
                state.commit()
        crash(state)
        estimates.append(plan_of(path).duration_ms)
        work.append(work_of(first_reads))
    assert estimates == [pytest.approx(estimates[0], rel=0.05)] * 3
    assert max(work) < 1.2 * min(work)


def test_a_restore_corrects_the_estimate() -> None:
    speed = RestoreSpeed()
    many = Logged(1, 0, 100_000, 0.01)
    before = speed.estimate(many)
    for _ in range(10):
        speed.observe(0.001, 1.0, many)
    assert before < 0.9 < speed.estimate(many) < 1.1
    few = speed.factor
    speed.observe(0.001, 5.0, Logged(1, 0, 10, 0.001))
    assert speed.factor == few


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (hs.CheckpointPolicy(), [False, False, False, False]),
        (hs.CheckpointPolicy(every_commits=3), [False, False, True, True]),
        (hs.CheckpointPolicy(max_restore=timedelta(microseconds=1)), [True, True, True, True]),
        (hs.CheckpointPolicy(max_age=timedelta(seconds=25)), [False, False, True, True]),
    ],
    ids=["default", "commits", "restore", "age"],
)
def test_a_checkpoint_is_due_by_restore_time_count_or_age(policy: hs.CheckpointPolicy, due: list[bool]) -> None:
    assert [policy.due(Logged(commits, 100, 10, 1e-5), commits * 10.0, 0) for commits in (1, 2, 3, 4)] == due
    assert not policy.due(Logged(0, 10**9, 10**9, 10**9), 10**9, 0)


@pytest.mark.parametrize(
    "bad",
    [{"keep": 0}, {"max_restore": timedelta(0)}, {"max_restore": "1 moment"}, {"max_age": -1}, {"every_commits": 0}],
)
def test_an_impossible_policy_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))}: found"):
        hs.CheckpointPolicy(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"keep": "2"}, {"max_restore": 1.5}, {"max_age": b""}, {"every_commits": True}])
def test_a_policy_of_other_types_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(bad))}: found"):
        hs.CheckpointPolicy(**bad)  # type: ignore[arg-type]


def test_durations_of_a_policy_may_be_text_or_milliseconds() -> None:
    policy = hs.CheckpointPolicy(max_restore=3_600_000, max_age="25 seconds")
    assert [policy.due(Logged(1, 100, 10, 1e-5), age, 0) for age in (24.9, 25.0)] == [False, True]


@pytest.mark.parametrize("bad", [{"checkpoints": 5}, {"at": "yesterday"}, {"at": True}])
def test_what_is_no_option_of_open_is_named(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(bad))}: found"):
        hs.open(tmp_path / "state", **bad)
    assert not (tmp_path / "state").exists()
