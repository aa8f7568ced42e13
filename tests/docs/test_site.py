"""The documentation site builds without a warning: no dead link, no page without a way to it, every public name."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


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
    import hybridstore.spark as spark

    names = (ROOT / "tests/project/public_names.txt").read_text(encoding="utf-8").split()
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [name for name in names if f":: hybridstore.{name}\n" not in page] == []
    assert [name for name in spark.__all__ if f":: hybridstore.spark.{name}\n" not in page] == []


def test_the_figures_are_those_that_the_code_draws() -> None:
    figures = runpy.run_path(str(DOCS / "figures/draw.py"))["FIGURES"]
    files = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "figures").glob("*.svg")}
    assert files == {name: draw().svg() for name, draw in figures.items()}
