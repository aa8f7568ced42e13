"""A process that was started with standard input, output or error closed: what prints does not write into a state."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.state.lock import read_note
from tests.tools.script import ROOT

PROGRAM = """
import os
import sys

import hybridstore as hs
from hybridstore.state.opening import Tuning

closing = list(map(int, sys.argv[2:]))
state = hs.open(sys.argv[1], _tuning=Tuning(segment_bytes=300_000))
users = state.key_value("users")
for number in closing:
    os.close(number)
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


@pytest.mark.parametrize("later", ["", "2", "1 2"], ids=["", "and 2 later", "and 1 and 2 later"])
@pytest.mark.parametrize("closed", ["", "<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_prints_does_not_write_into_a_state(tmp_path: Path, closed: str, later: str) -> None:
    state_at = tmp_path / "state"
    command = shlex.join([sys.executable, "-c", PROGRAM, str(state_at), *later.split()])
    subprocess.run(["sh", "-c", f"exec {command} {closed}"], cwd=ROOT, check=True, capture_output=True)
    assert read_note(state_at)["segment"] > 1
    with hs.open(state_at) as state:
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
