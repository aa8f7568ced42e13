"""docs/guarantees.md, docs/semantics.md and what differs from Spark in docs/spark.md: every row names tests, and every
test that they name exists.

Every test that is written for a row of semantics is there.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.tools.pages import Row, proved_rows, tables

HERE = Path(__file__).parents[1]
DOCS = HERE.parent / "docs"
SEMANTICS = (DOCS / "semantics.md").read_text(encoding="utf-8")
GUARANTEES = (DOCS / "guarantees.md").read_text(encoding="utf-8")
SPARK = (DOCS / "spark.md").read_text(encoding="utf-8")
ROWS = [*proved_rows(SEMANTICS), *proved_rows(GUARANTEES), *proved_rows(SPARK)]


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.cells[0])
def test_every_row_is_kept_by_a_test(row: Row) -> None:
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        assert name in names_in(file), test


@pytest.mark.parametrize(("page", "columns"), [(SEMANTICS, 3), (GUARANTEES, 2)], ids=["semantics", "guarantees"])
def test_no_table_is_without_its_tests(page: str, columns: int) -> None:
    assert sum(len(table) - 2 for table in tables(page)) == len(proved_rows(page))
    assert {len(row.cells) for row in proved_rows(page)} == {columns}


def test_what_differs_from_spark_names_its_tests() -> None:
    differing = [table for table in tables(SPARK) if re.search(r"differ|\| what \| Spark", table[0])]
    assert len(differing) == 2
    assert sum(len(table) - 2 for table in differing) == len(proved_rows(SPARK))


def test_every_test_of_semantics_has_its_row() -> None:
    named = {test for row in proved_rows(SEMANTICS) for test in row.tests}
    for path in HERE.glob("*/test_semantics_*.py"):
        file = str(path.relative_to(HERE))
        assert {f"{file}::{test}" for test in names_in(file)} <= named


def test_a_list_that_leaves_a_row_out_is_noticed() -> None:
    missing = SEMANTICS.replace("* type of keys:\n", "", 1)
    assert missing != SEMANTICS
    with pytest.raises(AssertionError):
        proved_rows(missing)
