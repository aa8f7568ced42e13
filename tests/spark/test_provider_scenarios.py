"""The 72 scenarios of a state store: each has a test of its number, or a row in docs/testing.md that says why not."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = range(1, 73)


def numbers_of(name: str) -> set[int]:
    """The scenarios a test is named after: scenario_10_and_11_..., scenario_45_to_47_..., scenario_64_65_and_70_..."""
    match = re.match(r"test_scenario_(\d+(?:_(?:and_|to_)?\d+)*)", name)
    if match is None:
        return set()
    numbers: set[int] = set()
    spans = re.findall(r"(\d+)(?:_to_(\d+))?", match[1])
    for first, last in spans:
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def scenarios_tested() -> set[int]:
    """The scenarios that the tests are named after."""
    tested: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                tested |= numbers_of(node.name)
    return tested


def explained() -> dict[int, str]:
    """The rows of the table at the end of docs/testing.md."""
    table = (ROOT / "docs/testing.md").read_text().partition("## The scenarios of a state store")[2]
    rows: dict[int, str] = {}
    for numbers, why in re.findall(r"^\| ([\d, ]+) \| (.+) \|$", table, re.MULTILINE):
        rows |= {int(number): why for number in numbers.split(",")}
    return rows


def test_names_are_read() -> None:
    assert numbers_of("test_scenario_04_no_future_versions") == {4}
    assert numbers_of("test_scenario_45_to_47_spacing_of_checkpoints") == {45, 46, 47}
    assert numbers_of("test_scenario_64_65_and_70_everybody_murdered") == {64, 65, 70}
    assert numbers_of("test_something_else") == set()


def test_every_scenario_is_tested_or_explained() -> None:
    missing = set(SCENARIOS) - scenarios_tested() - set(explained())
    assert missing == set(), f"no test is named after {sorted(missing)}, and docs/testing.md does not say why"


def test_no_number_is_made_up() -> None:
    assert scenarios_tested() | set(explained()) <= set(SCENARIOS)


def test_tests_that_the_table_names_exist() -> None:
    names = {name for why in explained().values() for name in re.findall(r"`(test_\w+)`", why)}
    everything = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name in names if f"def {name}(" not in everything} == set()
