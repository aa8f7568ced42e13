"""The pages of docs/ show what their code prints: every block of a page is run, in order, in an empty folder.

HYBRIDSTORE_WRITE_DOCS=1 writes the pages anew; look at the difference before committing it.
"""

import os
from pathlib import Path

import pytest

from tests.tools.pages import blocks, printed

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Run whole, here; those that need Spark are marked.
RUN = ["changing.md", "cookbook.md", "operating.md", "stores.md", "topologies.md"]
RUN_ON_SPARK = ["tutorial.md"]
# Run by a test of their own, which fixes the clock or the estimates.
ELSEWHERE = {"inspect.md", "format.md"}


def pages() -> list[Path]:
    return sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("name", [*RUN, *(pytest.param(name, marks=pytest.mark.spark) for name in RUN_ON_SPARK)])
def test_a_page_shows_what_its_code_prints(name: str, tmp_path: Path) -> None:
    path = DOCS / name
    page = path.read_text(encoding="utf-8")
    if name in RUN_ON_SPARK:
        pytest.importorskip("pyspark")
    shown = printed(page, tmp_path)
    if os.environ.get("HYBRIDSTORE_WRITE_DOCS"):
        path.write_text(shown, encoding="utf-8")
    assert shown.splitlines() == page.splitlines()


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_code_on_a_page_is_run_or_says_why_not(path: Path) -> None:
    if path.name in {*RUN, *RUN_ON_SPARK, *ELSEWHERE}:
        return
    page = path.read_text(encoding="utf-8")
    assert [block.text for block in blocks(page) if block.run and block.kind in ("python", "console")] == []
