"""The documentation site builds without a warning: no dead link, no page without a way to it, every public name.

Its pages can be read: cells of tables are short, lines of prose fit a screen, what a page names is there.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_layers import folders_of
from tests.tools.pages import ANY_FENCE, cells, tables

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
CELL = 200
LINE = 120
PATH = r"`((?:tests|docs|examples|benchmarks|hybridstore|recovery|changelog|scripts)/[\w/.*]*)`"
# Errors that others are, and that nothing raises itself.
ROOTS = {"ChangelogError", "CheckpointError"}
# Their prose is written by `make bench`.
WRITTEN = {"performance.md", "performance-tables.md", "scale.md"}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser")
    command = [sys.executable, "-P", "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    answer = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "find_sessions_by_end" in (tmp_path / "site/api.html").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_api_pages() -> None:
    import hybridstore.errors as errors
    import hybridstore.spark as spark

    names = (ROOT / "tests/project/public_names.txt").read_text(encoding="utf-8").split()
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [name for name in names if f":: hybridstore.{name}\n" not in page] == []
    assert [name for name in spark.__all__ if f":: hybridstore.spark.{name}\n" not in page] == []
    finer = set(errors.__all__) - set(names)
    assert [name for name in finer if f":: hybridstore.errors.{name}\n" not in page] == []


def test_the_figures_are_those_that_the_code_draws() -> None:
    figures = runpy.run_path(str(DOCS / "figures/draw.py"))["FIGURES"]
    files = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "figures").glob("*.svg")}
    assert files == {name: draw().svg() for name, draw in figures.items()}


def test_the_house_has_the_rooms_of_the_tree_and_every_import_goes_down() -> None:
    floors = runpy.run_path(str(DOCS / "figures/draw.py"))["FLOORS"]
    floor_of = {room: number for number, rooms in enumerate(floors) for room in rooms}
    assert sorted(floor_of) == sorted(path.parent.name for path in ROOT.glob("hybridstore/*/__init__.py"))
    assert [pair for pair in sorted(folders_of(ROOT)) if floor_of[pair[0]] >= floor_of[pair[1]]] == []


def long_cells(page: str) -> list[str]:
    return [cell for table in tables(page) for line in table for cell in cells(line) if len(cell) > CELL]


def long_lines(page: str) -> list[str]:
    """Lines of prose that could be broken: a single word that is too long, such as an address, cannot."""
    prose = ANY_FENCE.sub("\n", page).splitlines()
    return [
        line for line in prose if len(line) > LINE and not line.startswith(("|", "    ")) and " " in line[:LINE].strip()
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_cells_and_lines_are_short(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert long_cells(page) == []
    if path.name not in WRITTEN:
        assert long_lines(page) == []


def test_what_is_too_long_is_noticed() -> None:
    word = "word " * 40
    assert long_cells(f"| a | b |\n| --- | --- |\n| {word} | {word}x |\n") == [f"{word}x"]
    assert long_lines(f"short\n* {word}\n```text\n{word}\n```\n") == [f"* {word}"]


def test_every_path_that_a_page_names_is_there() -> None:
    for page in PAGES:
        for name in re.findall(PATH, page.read_text(encoding="utf-8")):
            assert any(ROOT.glob(name)), f"{page.name}: {name}"


def test_the_operating_page_says_what_to_do_for_every_error() -> None:
    import hybridstore.errors as errors
    import hybridstore.spark as spark

    names = (ROOT / "tests/project/public_names.txt").read_text(encoding="utf-8").split()
    page = (DOCS / "operating.md").read_text(encoding="utf-8")
    kinds = [name for name in [*names, *errors.__all__, *spark.__all__] if name.endswith("Error")]
    assert [name for name in kinds if f"`{name}`" not in page and name not in ROOTS] == []
