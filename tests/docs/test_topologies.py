"""docs/topologies.md: its code, run from the top to the end in one go, prints what the page shows."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert [kind for kind, _ in BLOCKS] == ["python", "text"] * (len(BLOCKS) // 2)
    for (_, code), (_, shown) in zip(BLOCKS[::2], BLOCKS[1::2], strict=True):
        exec(compile(code, "docs/topologies.md", "exec"), names)
        assert capsys.readouterr().out == shown
