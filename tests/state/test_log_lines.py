"""What a state tells the log: one line for what an operator of a job has to know, and nothing on standard output."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.state import log_lines
from hybridstore.state.memory_budget import BUDGET, LEAST_LIMIT
from tests.tools.checkpoints import flip, index_of, versions
from tests.tools.shard_tools import OFTEN, operator, provider, write

ROOT = Path(__file__).resolve().parents[2]
# Commands, whose answers are what they print.
PRINTS = {
    "hybridstore/cli.py",
    "hybridstore/inspection/bench.py",
    "hybridstore/reading/texts.py",
    "hybridstore/rewinding/fork.py",
    "hybridstore/testing/other_process.py",
}


def calls_of(name: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of a function or method of this name in the product, each with its file."""
    for package in ("changelog", "recovery", "hybridstore"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
                if isinstance(node, ast.Call) and name in (
                    getattr(node.func, "attr", ""),
                    getattr(node.func, "id", ""),
                ):
                    yield str(path.relative_to(ROOT)), node


def test_nothing_prints_but_commands() -> None:
    """By name: a writer to a stream says where it writes."""
    printing = {path for path, call in calls_of("print") if isinstance(call.func, ast.Name)}
    assert {path for path in printing if not path.endswith("/command.py")} == PRINTS


def test_checkpoints_and_fallbacks_leave_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="hybridstore")
    with hs.open(tmp_path) as state:
        for value in range(2):
            state.key_value("counts").put("a", value)
            state.commit()
            state.checkpoint(wait=True)
    assert [f"checkpoint of version {n} made" in caplog.text for n in (1, 2)] == [True, True]
    flip(index_of(tmp_path, versions(tmp_path)[-1]), 100)
    caplog.clear()
    with hs.open(tmp_path) as state:
        assert state.key_value("counts").get("a") == 1
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "skipped" in record.getMessage()


def test_launches_and_fences_leave_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from hybridstore.spark import StaleAttemptError
    from hybridstore.spark.launches import claim, new_launch

    caplog.set_level("INFO", logger="hybridstore.spark")
    first, second = new_launch(operator(tmp_path)), new_launch(operator(tmp_path))
    claim(operator(tmp_path), second, "run-2", 0, 1)
    assert f"launch {second} begins with batch 0" in caplog.text
    with pytest.raises(StaleAttemptError):
        claim(operator(tmp_path), first, "run-1", 0, 2)
    assert f"of launch {first} is overtaken by launch {second}" in caplog.text


def test_a_checkpoint_of_a_shard_leaves_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="hybridstore")
    shard = provider(tmp_path, policy=OFTEN)
    for version in range(4):
        write(shard, version, a=version)
        shard.maintain(wait=True)
    assert "checkpoint of version 3 made" in caplog.text


def test_every_module_logs_at_one_of_two_loggers() -> None:
    names = {ast.unparse(argument) for _, call in calls_of("getLogger") for argument in call.args}
    assert names <= {"'hybridstore'", "'hybridstore.spark'", "logger"}


def test_a_limit_that_cannot_be_kept_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BUDGET, "_warned", LEAST_LIMIT)
    for limit in (10_000_000, 5000, 1, 5000, 1):
        hs.open(tmp_path / "s", memory_limit=limit).close()
    expected = (
        "expected 10000000 or more: results do not change, but stores may take more than that (docs/operating.md, "
    )
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f'memory_limit: found {limit} bytes, {expected}"A limit of memory")' for limit in (5000, 1)
    ]


def test_nothing_is_logged_as_the_interpreter_ends_which_imports_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        ending.setitem(sys.modules, "logging", None)  # type: ignore[arg-type]  # an import of it raises
        log_lines.warn("a line")
    assert caplog.text == ""
