"""The 72 scenarios of a state store: each has a test with its number as a mark, or a row in docs/testing.md."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
SCENARIOS = range(1, 73)


def scenarios_tested() -> set[int]:
    """The scenarios that tests are marked with."""
    marks = (re.findall(r"^@pytest\.mark\.scenario\((.+)\)$", path.read_text(), re.MULTILINE) for path in TESTS)
    return {int(number) for lines in marks for numbers in lines for number in numbers.split(",")}


def explained() -> dict[int, str]:
    """The rows of the table at the end of docs/testing.md."""
    table = (ROOT / "docs/testing.md").read_text().partition("## The scenarios of a state store")[2]
    rows: dict[int, str] = {}
    for numbers, why in re.findall(r"^\| ([\d, ]+) \| (.+) \|$", table, re.MULTILINE):
        rows |= {int(number): why for number in numbers.split(",")}
    return rows


def test_every_scenario_is_tested_or_explained() -> None:
    missing = set(SCENARIOS) - scenarios_tested() - set(explained())
    assert missing == set(), f"no test is marked with {sorted(missing)}, and docs/testing.md does not say why"


def test_no_number_is_made_up() -> None:
    assert scenarios_tested() | set(explained()) <= set(SCENARIOS)


def test_tests_that_the_table_names_exist() -> None:
    names = {name for why in explained().values() for name in re.findall(r"`(test_\w+)`", why)}
    everything = "".join(path.read_text() for path in TESTS)
    assert {name for name in names if f"def {name}(" not in everything} == set()
