"""What the README says is what happens: its examples print what it prints, its commands run."""

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
EXAMPLES = [(code, text) for (kind, code), (after, text) in pairwise(BLOCKS) if (kind, after) == ("python", "text")]


def run_python(arguments: list[str], cwd: Path) -> str:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, *arguments]
    answer = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return answer.stdout


def test_the_readme_opens_with_the_two_commands_of_a_fresh_machine() -> None:
    opening = README.partition("\n## ")[0]
    assert re.findall(r"(?m)^    make (\w+)", opening) == ["demo", "test"]


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


@pytest.mark.spark
def test_the_spark_example_prints_what_it_says(tmp_path: Path) -> None:
    code, expected = EXAMPLES[1]
    assert run_python(["-c", code], tmp_path).strip() == expected.strip()


@pytest.mark.parametrize("command", re.findall(r"(?m)(?:`|^    )make (\w+)(?: +([A-Z]+=\w+))?", README))
def test_every_make_target_of_the_readme_exists_and_says_what_it_would_run(command: tuple[str, str]) -> None:
    answer = subprocess.run(
        ["make", "-n", *[part for part in command if part]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout
