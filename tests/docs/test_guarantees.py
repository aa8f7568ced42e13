"""docs/guarantees.md: every row names tests, and every test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
PAGE = (HERE.parent / "docs" / "guarantees.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].removeprefix("| "))
def test_every_guarantee_is_kept_by_a_test(row: str) -> None:
    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", row)
    assert named
    for file, test in named:
        tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"
