"""What the files of the product import, and which texts of them may name a module; each file is parsed once."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    path: Path
    line: int
    importer: str
    imported: str


def module_name(path: Path, root: Path) -> str:
    """`changelog/frame.py` -> `changelog.frame`; a package's own file keeps `__init__`, it has rules of its own."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def imports_of(path: Path, root: Path) -> tuple[Import, ...]:
    """Return every import in the file, relative ones resolved, `from a import b` as `a.b` (b may be a module)."""
    return _looked_at(path, root, path.read_text(encoding="utf-8"))[0]


def texts_of(path: Path, root: Path) -> tuple[str, ...]:
    """Return every text in the file that may name a module, relative ones resolved; a `__module__` imports nothing."""
    return _looked_at(path, root, path.read_text(encoding="utf-8"))[1]


@cache
def _looked_at(path: Path, root: Path, source: str) -> tuple[tuple[Import, ...], tuple[str, ...]]:
    nodes = list(ast.walk(ast.parse(source, str(path))))
    return tuple(_imports(nodes, path, root)), tuple(_texts(nodes, path, root))


def _imports(nodes: list[ast.AST], path: Path, root: Path) -> Iterator[Import]:
    importer = module_name(path, root)
    package = importer.split(".")[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, importer, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(path, node.lineno, importer, f"{source}.{alias.name}")


def _texts(nodes: list[ast.AST], path: Path, root: Path) -> Iterator[str]:
    package = module_name(path, root).split(".")[:-1]
    shown = {
        node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__module__"
    }
    for node in nodes:
        if (
            node not in shown
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "." in node.value.strip(".")
        ):
            text = node.value
            dots = len(text) - len(text.lstrip("."))
            yield ".".join([*package[: len(package) - dots + 1], text[dots:]]) if dots else text
