"""Programs of the tests that run in a process of their own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_script(module: str, *arguments: str, **options: Any) -> int:
    """Run a module, and return its exit code; one that fails, but for being killed, is an AssertionError with its last
    words.
    """
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **options)
    assert process.returncode in (0, -9), process.stderr[-3000:]
    return process.returncode
