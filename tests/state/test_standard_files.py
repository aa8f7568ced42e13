"""A process that was started with standard input, output or error closed: what prints does not write into a state."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import hybridstore as hs
from tests.tools.script import ROOT

PROGRAM = """
import os
import sys

import hybridstore as hs

state = hs.open(sys.argv[1])
users = state.key_value("users")
for part in range(4):
    users.put_many({f"{part}-{each}": "x" * 100 for each in range(2000)})
    state.commit()
    for number in range(3):
        try:
            os.write(number, b"a library prints a line")
        except OSError:
            pass
os._exit(0)  # as a killed process, which leaves all to the changelog
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_prints_does_not_write_into_a_state(tmp_path: Path, closed: str) -> None:
    command = shlex.join([sys.executable, "-c", PROGRAM, str(tmp_path / "state")])
    subprocess.run(["sh", "-c", f"exec {command} {closed}"], cwd=ROOT, check=True, capture_output=True)
    with hs.open(tmp_path / "state") as state:
        assert state.version == 4
        assert len(state.key_value("users")) == 8000


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("info STATE", 0), ("get STATE users nobody", 1), ("info nothing", 3)])
def test_a_command_without_standard_output_or_error_ends_as_with_both(
    tmp_path: Path, closed: str, words: str, code: int
) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("users")["ann"] = 1
        state.commit()
    command = f"{shlex.quote(sys.executable)} -m hybridstore inspect {words.replace('STATE', str(tmp_path / 'state'))}"
    ended = subprocess.run(["sh", "-c", f"exec {command} {closed}"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
