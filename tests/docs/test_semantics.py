"""docs/semantics.md: every row names tests, every test that it names exists, and no test written for it is missing
from it.
"""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
PAGE = (HERE.parent / "docs" / "semantics.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!point \||---)", line)]


def named_in(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].removeprefix("| "))
def test_every_row_is_shown_by_a_test(row: str) -> None:
    assert len(re.split(r"(?<!\\) \| ", row.strip("| "))) == 4, "point, rule, boundary, test"
    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", row)
    assert named
    for file, test in named:
        assert test in named_in(file), f"{file}::{test}"


def test_every_test_of_semantics_has_its_row() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", PAGE))
    for path in HERE.glob("*/test_semantics_*.py"):
        file = str(path.relative_to(HERE))
        assert {(file, test) for test in named_in(file)} <= named
