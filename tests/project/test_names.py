"""Words: no name is a participle or pronoun that says nothing, no two classes of the product have one name,
and no sentence of the product has an empty verb.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("changelog", "recovery", "hybridstore")
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
EMPTY_WORDS = frozenset({"found", "made", "held", "own", "left", "gone", "one", "told", "said"})


def empty_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, name) for each definition of a name that says nothing, with or without underscores around it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        else:
            continue
        if name.strip("_") in EMPTY_WORDS:
            yield node.lineno, name


def complaints(root: Path, rooms: tuple[str, ...]) -> list[str]:
    """Return `file:line: name` for each name that says nothing."""
    files = [path for room in rooms for path in sorted((root / room).rglob("*.py"))]
    return [f"{path.relative_to(root)}:{line}: {name}" for path in files for line, name in empty_names(path)]


def test_every_name_says_what_it_stands_for() -> None:
    assert complaints(ROOT, (*PRODUCT, "benchmarks", "examples", "scripts", "tests")) == []


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "for i, one in []: pass",
        "self._held: int = 1",
        "def f(*, gone=None): pass",
        "def told(): pass",
        "[left for left in []]",
        "with x as made: pass",
    ],
)
def test_a_planted_name_is_complained_about(tmp_path: Path, source: str) -> None:
    (tmp_path / "changelog").mkdir()
    (tmp_path / "changelog/x.py").write_text(f"# found\n{source}\n")
    assert [line.rpartition(":")[0] for line in complaints(tmp_path, ("changelog",))] == ["changelog/x.py:2"]


def test_what_is_only_used_or_part_of_a_longer_name_is_no_complaint(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("found_rows = match.found\nleft_out = 1\nraise ValueError('found 1')\n")
    assert complaints(tmp_path, (".",)) == []


_CLASS = re.compile(r"\bclass\s+(\w+)")


def repeated_classes(root: Path, rooms: tuple[str, ...]) -> list[str]:
    """Return `name: file:line, file:line` for each name of several classes; a stub of a Protocol is no second class."""
    places: dict[str, list[str]] = {}
    sources = {path: path.read_text(encoding="utf-8") for room in rooms for path in sorted((root / room).rglob("*.py"))}
    # only files with a line of a class whose name other lines have, too, are parsed
    named = {path: _CLASS.findall(source) for path, source in sources.items()}
    counts = Counter(chain.from_iterable(named.values()))
    for path in [path for path, names in named.items() if any(counts[name] > 1 for name in names)]:
        for node in ast.walk(ast.parse(sources[path], str(path))):
            if isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
                places.setdefault(node.name, []).append(f"{path.relative_to(root)}:{node.lineno}")
    return [f"{name}: {', '.join(lines)}" for name, lines in sorted(places.items()) if len(lines) > 1]


def test_every_class_name_means_one_class() -> None:
    assert repeated_classes(ROOT, PRODUCT) == []


def test_a_planted_second_class_is_complained_about(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("class _Part: pass\nclass Log(Protocol): pass\nclass Log: pass\n")
    (tmp_path / "y.py").write_text("def f():\n    class _Part: pass\nclass Log(Protocol[T]): pass\n")
    assert repeated_classes(tmp_path, (".",)) == ["_Part: x.py:1, y.py:2"]


# These begin a sentence whose subject is behind its verb, or stand in for a verb that says more.
EMPTY_VERBS = re.compile(r"\bthere\s+(?:is|are|was|were)\b|\bgoes\b|\bstands\b", re.IGNORECASE)

# What each of these has in it, also where its words are in several literals.
_EMPTY_VERB = re.compile(r"\b(?:there|goes|stands)\b", re.IGNORECASE)


def empty_sentences(root: Path, rooms: tuple[str, ...]) -> list[str]:
    """Return `file:line: words` for each docstring, message or comment with an empty verb."""
    texts: list[tuple[Path, int, str]] = []
    for path in [path for room in rooms for path in sorted((root / room).rglob("*.py"))]:
        source = path.read_text(encoding="utf-8")
        if not _EMPTY_VERB.search(source):
            continue
        nodes = ast.walk(ast.parse(source, str(path)))
        texts += [(path, n.lineno, n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if EMPTY_VERBS.search("\n".join(line.partition("#")[2] for line in source.splitlines())):
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            texts += [(path, token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [
        f"{path.relative_to(root)}:{line}: {m[0]}" for path, line, text in texts for m in EMPTY_VERBS.finditer(text)
    ]


def test_sentences_of_the_product_say_who_does_what() -> None:
    assert empty_sentences(ROOT, (*PRODUCT, "examples")) == []


@pytest.mark.parametrize("page", ["README.md", "NEWS.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES])
def test_sentences_of_a_page_say_who_does_what(page: str) -> None:
    assert [words[0] for words in EMPTY_VERBS.finditer((ROOT / page).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "source",
    [
        '"""There\nis no state."""',
        "x = f'{x}: there are {x}'",
        "x = 'a row ' 'goes by column'",
        "x = 1  # it stands for a key",
    ],
)
def test_a_planted_sentence_is_complained_about(tmp_path: Path, source: str) -> None:
    (tmp_path / "x.py").write_text(f"there = goes = stands = None\nif there is None: x = stands\n{source}\n")
    assert [line.rpartition(":")[0] for line in empty_sentences(tmp_path, (".",))] == ["x.py:3"]


def too_long(root: Path, rooms: tuple[str, ...], columns: int = 120, lines: int = 600) -> Iterator[str]:
    """Yield `file:line` for each line, and `file` for each file, that is too long, whatever a linter lets pass."""
    for path in (path for room in rooms for path in sorted((root / room).rglob("*.py"))):
        text = path.read_text(encoding="utf-8").splitlines()
        name = str(path.relative_to(root))
        yield from (f"{name}:{number}" for number, line in enumerate(text, 1) if len(line) > columns)
        if len(text) > lines:
            yield f"{name}: {len(text)} lines"


def test_no_line_and_no_file_is_too_long() -> None:
    assert list(too_long(ROOT, (*PRODUCT, "benchmarks", "examples", "scripts", "tests"))) == []


def test_a_planted_line_and_file_are_complained_about(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("a = 1  # type: ignore[assignment]\nb = 2\n", encoding="utf-8")
    assert list(too_long(tmp_path, (".",), columns=20, lines=2)) == ["long.py:1"]
    assert list(too_long(tmp_path, (".",), lines=1)) == ["long.py: 2 lines"]
