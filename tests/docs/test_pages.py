"""The pages of docs/ show what their code prints: every block of a page is run, in order, in an empty folder.

HYBRIDSTORE_WRITE_DOCS=1 writes the pages anew; look at the difference before committing it.
"""

from pathlib import Path

import pytest

from tests.tools.pages import blocks, shows

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Run whole, here.
RUN = [
    "asyncio.md",
    "changing.md",
    "cookbook.md",
    "index.md",
    "exact-sums.md",
    "joins.md",
    "operating.md",
    "privacy.md",
    "serving.md",
    "stores.md",
    "testing.md",
    "time-machine.md",
    "topologies.md",
]
# Run by a test of their own, which fixes the clock or the estimates.
ELSEWHERE = {"inspect.md", "format.md", "tutorial.md"}


def pages() -> list[Path]:
    return sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("name", RUN)
def test_a_page_shows_what_its_code_prints(name: str, tmp_path: Path) -> None:
    shows(DOCS / name, tmp_path)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_code_on_a_page_is_run_or_says_why_not(path: Path) -> None:
    if path.name in {*RUN, *ELSEWHERE}:
        return
    page = path.read_text(encoding="utf-8")
    assert [block.text for block in blocks(page) if block.run and block.kind in ("python", "console")] == []
