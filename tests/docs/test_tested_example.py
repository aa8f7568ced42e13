"""The example project with a program and its tests: the tests pass, and fail where the program is wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tested"


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    # one seed: whether five streams find a bug is no matter of luck here
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=1", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_tests_of_the_example_pass_and_find_a_planted_bug(tmp_path: Path) -> None:
    folder = tmp_path / "tested"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    answer = run_tests(folder)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "4 passed" in answer.stdout
    program = folder / "visits.py"
    right, wrong = 'SessionWindows("5 minutes", grace=GRACE)', 'SessionWindows("5 minutes", grace=0)'
    assert right in program.read_text(encoding="utf-8")
    program.write_text(program.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    answer = run_tests(folder)
    assert answer.returncode == 1
    # a stream out of order shows the bug by its cuts, a stream in order by another order
    assert "cut_anyhow(" in answer.stdout or "shuffled(" in answer.stdout
