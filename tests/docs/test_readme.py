"""What the README says is what happens: its examples print what it prints, its commands run."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.pages import run_inside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PERFORMANCE = (ROOT / "docs/performance-tables.md").read_text(encoding="utf-8")
# The sentences of the README with figures; each group is a figure in whole units of the words behind it.
FIGURES = (
    r"At a million records that is about (?P<ready>\S+) ms; a replay of the whole changelog takes (?P<replay>\S+) "
    r"ms\. LMDB, SQLite and RocksDB, .*, are ready in (?P<peers_from>\S+) to (?P<peers_to>\S+) ms\. On Spark a "
    r"batch of 100,000 rows over 100,000 keys takes (?P<batch>.+) second; Spark's own aggregation takes (?P<own>\S+), "
    r"and its operators for Python code (?P<python_from>\S+) to (?P<python_to>\S+)\. All figures"
)
WORDS = {"half a": 0.5, "one": 1.0, "two": 2.0, "three": 3.0}
EXAMPLES = [(code, text) for (kind, code), (after, text) in pairwise(BLOCKS) if (kind, after) == ("python", "text")]


def run_python(arguments: list[str], cwd: Path) -> str:
    command = [sys.executable, *arguments]
    answer = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return answer.stdout


def test_the_readme_opens_with_the_two_commands_of_a_fresh_machine() -> None:
    opening = README.partition("\n## ")[0]
    assert re.findall(r"(?m)^    make (\w+)", opening) == ["demo", "test"]


def test_the_readme_is_read_in_two_minutes() -> None:
    """250 words a minute; code is looked at."""
    assert len(re.sub(r"(?ms)^```.*?^```", "", README).split()) <= 500


def test_every_figure_of_the_opening_is_in_a_sentence_that_is_held() -> None:
    opening = " ".join(README.partition("\n## ")[0].split())
    rest = re.sub(r"3\.11", "", re.sub(FIGURES, "", opening))
    assert re.findall(r"\d+", rest) == []


def test_the_readme_has_an_example_of_the_stores_and_one_of_spark() -> None:
    assert len(EXAMPLES) == 2
    assert "pyspark" in EXAMPLES[1][0]


def test_the_plain_example_prints_what_it_says_and_leaves_what_the_console_shows(tmp_path: Path) -> None:
    code, expected = EXAMPLES[0]
    assert run_python(["-c", code], tmp_path) == expected
    consoles = [text for kind, text in BLOCKS if kind == "console"]
    assert consoles
    for console in consoles:
        command, _, output = console.partition("\n")
        program, *arguments = shlex.split(command.removeprefix("$ "))
        assert program == "hybridstore"
        assert run_python(["-m", "hybridstore", *arguments], tmp_path) == output


def cell(page: str, row: str, column: int) -> float:
    """Return the number of a table's row, by what the row begins with."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
    return float(line.strip(" |").split(" | ")[column].removesuffix(" ms").replace(",", ""))


def measured(page: str) -> dict[str, list[float]]:
    """Return what the page of figures has for each figure of the README: one number, or all that the figure is for."""

    def restart(*engines: str) -> list[float]:
        return sorted(cell(page, f"{engine}, to the first read and write", 3) for engine in engines)

    title = "Work count, keys 100,000, rows 100,000, batches 8 "
    spark = page.partition(title)[2].partition("\nWork ")[0]
    peers = restart("lmdb", "sqlite", "rocksdb")
    python = ("transformWithState in Python, rows", "applyInPandasWithState", "transformWithStateInPandas")
    slow = sorted(cell(spark, name, 1) / 1000 for name in python)
    return {
        "ready": restart("hybridstore"),
        "replay": restart("replay"),
        "peers_from": peers[:1],
        "peers_to": peers[-1:],
        "batch": [cell(spark, "hybridstore", 1) / 1000],
        "own": [cell(spark, "Spark's own operator, RocksDB with changelog", 1) / 1000],
        "python_from": slow[:1],
        "python_to": slow[-1:],
    }


def misquoted(readme: str, page: str) -> list[str]:
    """Return the figures of the README that are further from the page than half a unit and a tenth."""
    sentences = re.search(FIGURES, " ".join(readme.split()))
    assert sentences is not None, "the sentences with figures have other words: FIGURES must follow"
    stated = {name: WORDS.get(text) or float(text) for name, text in sentences.groupdict().items()}
    return [
        f"{name}: the README says {figure:.3g}, the page {number:.3g}"
        for name, figure in stated.items()
        for number in measured(page)[name]
        if abs(figure - number) > max(0.5 if figure >= 1 else 0, 0.1 * figure)
    ]


def test_the_figures_of_the_readme_are_those_of_the_page_rounded() -> None:
    assert misquoted(README, PERFORMANCE) == []


def test_a_figure_that_is_not_of_the_page_is_named() -> None:
    (complaint,) = misquoted(README.replace("takes half a second", "takes 99 second"), PERFORMANCE)
    assert complaint.startswith("batch: the README says 99, the page ")


@pytest.mark.spark
def test_the_spark_example_prints_what_it_says(spark: "SparkSession", workplace: Path) -> None:
    code, expected = EXAMPLES[1]
    (workplace / "example.py").write_text(code, encoding="utf-8")
    assert run_inside(workplace / "example.py").strip() == expected.strip()


@pytest.mark.parametrize("command", re.findall(r"(?m)(?:`|^    )make (\w+)(?: +([A-Z]+=\w+))?", README))
def test_every_make_target_of_the_readme_exists_and_says_what_it_would_run(command: tuple[str, str]) -> None:
    answer = subprocess.run(
        ["make", "-n", *[part for part in command if part]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout
