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
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

FENCE = re.compile(r"^(<!-- not run: [^\n]+ -->\n\n?)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Of any kind, such as directives of the site and blocks without a language.
ANY_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`(\w+/test_\w+\.py::test_\w+)`")
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


class Row(NamedTuple):
    """A row of a table: its cells, and what the list below the table names for its first cell."""

    cells: list[str]
    tests: list[str]


def tables(page: str) -> Iterator[list[str]]:
    """Yield the tables of a page, as their lines; code blocks have none."""
    for table in re.findall(r"(?:^\|.*\n)+", ANY_FENCE.sub("\n", page), re.MULTILINE):
        yield table.splitlines()


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def proved_rows(page: str) -> list[Row]:
    """Return the rows of all tables that have a list of tests below them.

    Raises AssertionError where the points of a list are not those of its table, in the same order.
    """
    rows: list[Row] = []
    for table, entries in re.findall(r"((?:^\|.*\n)+)\n<details>\n((?:(?!</details>).*\n)+)", page, re.MULTILINE):
        named = re.findall(r"^\* (.*(?:\n  [^`].*)*):\n((?:  `.*\n)+)", entries, re.MULTILINE)
        points = [cells(line) for line in table.splitlines()[2:]]
        assert [" ".join(point.split()) for point, _ in named] == [point[0] for point in points]
        rows += [Row(point, TEST.findall(text)) for point, (_, text) in zip(points, named, strict=True)]
    return rows


def printed(page: str, folder: Path, inside: Sequence[str] = ()) -> str:
    """Return the page as it would be if every block showed what its code prints; `folder` is the working directory, and
    the programs of `inside` run in this process.

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
            pieces.append("".join(_console(block.text, folder, inside)))
        elif block.kind == "text":
            pieces.append(output)
        else:
            pieces.append(block.text)
    return "".join(pieces) + page[last:]


def shows(path: Path, folder: Path, inside: Sequence[str] = ()) -> None:
    """Assert that a page shows what its code prints."""
    page = path.read_text(encoding="utf-8")
    shown = printed(page, folder, inside)
    if os.environ.get("HYBRIDSTORE_WRITE_DOCS"):
        path.write_text(shown, encoding="utf-8")
    assert shown.splitlines() == page.splitlines()


def _python(code: str, names: dict[str, object], folder: Path) -> str:
    file = FILE.match(code)
    if file:
        path = folder / file[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
        return ""
    output = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output), _importing(folder):
        exec(compile(code, "page", "exec"), names)
    return output.getvalue()


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Let the modules of a folder be imported inside of a `with` block, and forget them behind it."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
            del sys.modules[name]


def run_inside(program: Path) -> str:
    """Run a program in this process and in its folder, and return what it prints."""
    output = io.StringIO()
    with contextlib.chdir(program.parent), contextlib.redirect_stdout(output), _importing(program.parent):
        runpy.run_path(str(program))
    return output.getvalue()


def _console(text: str, folder: Path, inside: Sequence[str]) -> Iterator[str]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {"PYTHONPATH": root, **os.environ, "COLUMNS": "100", "NO_COLOR": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    # as in an activated virtual environment, which is what the pages tell the reader to make
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue
        yield line + "\n"
        program, *arguments = shlex.split(line[2:])
        if program == "python" and arguments[0] in inside:
            yield run_inside(folder / arguments[0])
            continue
        command = {"hybridstore": [sys.executable, "-m", "hybridstore"], "python": [sys.executable]}[program]
        answer = subprocess.run(
            [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False, env=environment
        )
        # A killed program of a page shows how it ended, as a shell says it.
        assert answer.returncode in (0, -9), answer.stderr[-2000:]
        yield answer.stdout + ("Killed\n" if answer.returncode else "")
