"""What `help` and the interpreter show of a state says nothing that is for the tests, and nothing in bytes."""

import inspect
from pathlib import Path

import hybridstore as hs


def test_help_shows_no_private_parameter() -> None:
    for function in (hs.open, hs.Engine, hs.State.open):
        names = list(inspect.signature(function).parameters)
        assert names
        assert not [name for name in names if name.startswith("_")], function
    assert "checkpoints" in inspect.signature(hs.open).parameters


def test_reports_show_their_sentence(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        assert repr(state.restore_report) == f"<RestoreReport {state.restore_report.summary()}>"
    plan = hs.inspect(tmp_path / "state").restart()
    assert repr(plan) == f"<RestorePlan {plan.summary()}>"
    assert "Counter" not in repr(plan)
