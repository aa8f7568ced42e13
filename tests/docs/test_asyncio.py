"""The service of docs/asyncio.md: killed at random while clients send, every message counts once."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import hybridstore as hs
from tests.conftest import STRESS
from tests.tools.pages import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "asyncio.md"
MESSAGES = [(f"s{number % 3}", number, number % 7) for number in range(1, 601)]


def service(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start the page's program; return it with its port."""
    (text,) = (block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.text.startswith("# service"))
    (folder / "service.py").write_text(text)
    started = subprocess.Popen(
        [sys.executable, "service.py", "state"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    return started, int(started.stdout.readline())


def send(port: int, messages: list[tuple[str, int, int]], answers: int) -> set[int]:
    """Send messages, and return the numbers of the first `answers` that were answered."""
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rw") as lines:
        for sensor, number, value in messages:
            lines.write(f"{sensor} {number} {value}\n")
        lines.flush()
        return {int(lines.readline().split()[1]) for _ in range(answers)}


def test_a_service_that_is_killed_counts_every_message_once(tmp_path: Path, seed: int) -> None:
    for round_ in range(20 if STRESS else 2):
        draw, folder = random.Random(seed + round_), tmp_path / str(round_)
        folder.mkdir()
        answered: set[int] = set()
        for _ in range(3):
            process, port = service(folder)
            remaining = [message for message in MESSAGES if message[1] not in answered]
            part = remaining[: draw.randrange(1, 200)]
            # an answer of the first messages, and the kill comes while the others are on their way
            answered |= send(port, part, draw.randrange(len(part)))
            process.kill()
            process.communicate()
            with hs.open(folder / "state", at="newest") as state:
                # a service that is killed before its first commit has no stores
                numbers = state.key_value("numbers") if "numbers" in state.stores else {}
                assert numbers or not answered
                for sensor, number, _ in MESSAGES:
                    assert number not in answered or numbers.get(sensor, 0) >= number
        process, port = service(folder)
        remaining = [message for message in MESSAGES if message[1] not in answered]
        answered |= send(port, remaining, len(remaining))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
        assert answered == {number for _, number, _ in MESSAGES}
        with hs.open(folder / "state") as state:
            totals = dict(state.key_value("totals").all())
        assert totals == {
            sensor: sum(value for of, _, value in MESSAGES if of == sensor) for sensor in ("s0", "s1", "s2")
        }
