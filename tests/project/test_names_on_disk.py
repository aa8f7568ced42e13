"""Names on disk are spelled once: in recovery/layout.py, read from the source of every module.

A module below that layer spells what it makes itself: a segment its own name, a storage how an object becomes a file.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Texts that are names, or folders of names, wherever they stand.
NAMES = frozenset({"LOCK", "checkpoints", "launches", "operator.json"})
# Words that are folders on disk where a path is put together of them.
FOLDERS = NAMES | {"changelog", "packs", "log", "runs", "operator", "hybridstore", "head"}
SUFFIX = re.compile(r"\S*\.(lmdb|pack|damaged|log|sum|tmp)")
SPELLED: dict[str, frozenset[str]] = {
    # the temporary name of an object that is not published yet
    "changelog/files.py": frozenset({".tmp"}),
    # a cache is of this process and its host: nobody else reads its names
    "changelog/cached_storage.py": frozenset({"hybridstore"}),
    # a segment of a plain store, which writer and reader of the changelog name without the layers above
    "changelog/segment.py": frozenset({".log", r"(\d{20})\.log"}),
    # the name of an argument
    "hybridstore/state/arguments.py": frozenset({"checkpoints"}),
    "hybridstore/state/own_files.py": frozenset({".tmp"}),
}
EVERYTHING = frozenset({"recovery/layout.py"})


def spelled(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each text in a module that is a name on disk, or a part of one. Docstrings are none."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            text = node.value
            path_like = "/" in text and not re.search(r"\s", text)
            parts = text.strip("/").split("/")
            if text.strip("/") in NAMES or SUFFIX.fullmatch(text) or (path_like and not FOLDERS.isdisjoint(parts)):
                yield node.lineno, text
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            for side in (node.left, node.right):
                if isinstance(side, ast.Constant) and side.value in FOLDERS - NAMES:
                    yield node.lineno, str(side.value)


def misspelled(root: Path) -> list[str]:
    """Return `file:line: text` for each name on disk that a module spells though another one does."""
    lines = []
    for package in ("changelog", "recovery", "hybridstore"):
        for path in sorted((root / package).rglob("*.py")):
            file = str(path.relative_to(root))
            if file not in EVERYTHING:
                own_names = SPELLED.get(file, frozenset())
                lines += [f"{file}:{line}: {text}" for line, text in spelled(path) if text not in own_names]
    return lines


def test_only_the_layout_spells_names_on_disk() -> None:
    assert misspelled(ROOT) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('path / "checkpoints"', "checkpoints"),
        ('path / "changelog" / name', "changelog"),
        ('name = f"packs/{version}"', "packs/"),
        ('name = f"{version:020d}.lmdb"', ".lmdb"),
        ('file.suffix == ".pack"', ".pack"),
        ('open("LOCK")', "LOCK"),
        ('storage.list("log/")', "log/"),
        ('location / "hybridstore" / operator', "hybridstore"),
        ('read("runs/0001")', "runs/0001"),
    ],
)
def test_a_planted_name_is_complained_about(tmp_path: Path, source: str, text: str) -> None:
    (tmp_path / "recovery").mkdir()
    (tmp_path / "recovery/x.py").write_text(f'"""Below checkpoints/ and changelog/."""\n{source}\n')
    assert misspelled(tmp_path) == [f"recovery/x.py:2: {text}"]


def test_ordinary_words_are_no_names_on_disk(tmp_path: Path) -> None:
    (tmp_path / "recovery").mkdir()
    (tmp_path / "recovery/x.py").write_text(
        'kind = "changelog"\nraise ValueError("checkpoints are missing below packs/")\n'
    )
    assert misspelled(tmp_path) == []
