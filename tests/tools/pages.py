"""Runs the code of a page of docs/ from the top to the end, and says what the page should show.

A fenced block of a page is one of these:

    python    is run in one namespace per page; a block whose first line is `# name.py` is a file, which is written
    console   lines `$ command` are run in the page's folder; what follows is what they print
    text      what the block before it prints

A block below the comment `<!-- not run: reason -->` is left alone.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(<!-- not run: [^\n]+ -->\n\n?)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.py)\n")


@dataclass
class Block:
    """A fenced block: its language, its text, where the text begins and ends in the page, and whether it is run."""

    kind: str
    text: str
    start: int
    end: int
    run: bool


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [
        Block(match[2], match[3], match.start(3), match.end(3), run=match[1] is None) for match in FENCE.finditer(page)
    ]


def printed(page: str, folder: Path) -> str:
    """Return the page as it would be if every block showed what its code prints; `folder` is the working directory.

    Raises AssertionError for a command that fails.
    """
    names: dict[str, object] = {"__name__": "page"}
    pieces: list[str] = []
    last, output = 0, ""
    for block in blocks(page):
        if not block.run:
            continue
        pieces.append(page[last : block.start])
        last = block.end
        if block.kind == "python":
            pieces.append(block.text)
            output = _python(block.text, names, folder)
        elif block.kind == "console":
            pieces.append("".join(_console(block.text, folder)))
        elif block.kind == "text":
            pieces.append(output)
        else:
            pieces.append(block.text)
    return "".join(pieces) + page[last:]


def _python(code: str, names: dict[str, object], folder: Path) -> str:
    file = FILE.match(code)
    if file:
        path = folder / file[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
        return ""
    output = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        exec(compile(code, "page", "exec"), names)
    return output.getvalue()


def _console(text: str, folder: Path) -> Iterator[str]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = root
    # as in an activated virtual environment, which is what the pages tell the reader to make
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue
        yield line + "\n"
        program, *arguments = shlex.split(line[2:])
        command = {"hybridstore": [sys.executable, "-m", "hybridstore"], "python": [sys.executable]}[program]
        answer = subprocess.run(
            [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False, env=environment
        )
        # A killed program of a page shows how it ended, as a shell says it.
        assert answer.returncode in (0, -9), answer.stderr[-2000:]
        yield answer.stdout + ("Killed\n" if answer.returncode else "")
