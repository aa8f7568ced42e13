"""What a page names exists: public names, errors, files, tests and commands."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.cli import GROUPS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")))
# errors of rooms that are imported only with pyspark, or by tests
ELSEWHERE = (
    *("CannotCommitError", "MissingVersionError", "SkippedBatchError", "SparkSetupError", "StaleAttemptError"),
    "DifferentResultsError",
)
FILES = (
    r"`((?:hybridstore|recovery|changelog|tests|benchmarks|examples|scripts|docs)/(?!test_)[\w/.-]+\.\w+)(?:::(\w+))?"
)
TESTS = r"`((?!tests|benchmarks)\w+/test_\w+\.py)(?:::(\w+))?"
PROMPT = r"(?m)^\$ hybridstore (\w+)(?: (\w+))?"


def unknown(text: str) -> Iterator[str]:
    """Yield the names of a page that do not exist."""
    for name in re.findall(r"\bhs\.([A-Za-z]\w*)", text):
        if not hasattr(hs, name):
            yield f"hs.{name}"
    for name in re.findall(r"`([A-Z]\w+Error)`", text):
        if not any(hasattr(place, name) for place in (hs, hs.errors, builtins)) and name not in ELSEWHERE:
            yield name
    for folder, pattern in ((ROOT, FILES), (ROOT / "tests", TESTS)):
        for file, test in re.findall(pattern, text):
            if not (folder / file).exists() or test not in (folder / file).read_text(encoding="utf-8"):
                yield f"{file}::{test}" if test else file
    for group, command in re.findall(PROMPT, text):
        if group in GROUPS and command and command not in commands(group):
            yield f"hybridstore {group} {command}"


def commands(group: str) -> set[str]:
    """Return the commands of a group: the last field of its description has them by section."""
    return {name for section in GROUPS[group][-1].values() for name in section}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    assert list(unknown((ROOT / page).read_text(encoding="utf-8"))) == []


def test_planted_names_are_found() -> None:
    planted = (
        "hs.Buckets `StateLostError` `hybridstore/none.py` `state/test_none.py::test_x`\n$ hybridstore inspect lists"
    )
    assert len(list(unknown(planted))) == 5
