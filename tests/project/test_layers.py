"""The layers hold: who may import whom, read from the source of every module without importing any.

`MAY_IMPORT` is the whole rule. The longest entry that covers a module decides for it, and in that entry the longest
prefix that covers the imported name; a prefix with a minus forbids. Imports for type checkers and inside functions
count like any other.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("changelog", "recovery", "hybridstore")

# Our own modules that each module may import, as prefixes; its own package is written out like any other.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # the lowest package knows nothing of the others; writer and reader share `frame` and `segment`, never each other
    "changelog": ("changelog",),
    "changelog.writer": ("changelog", "-changelog.reader"),
    "changelog.reader": ("changelog", "-changelog.writer"),
    # recovery knows blocks and mutations, not the kinds of stores
    "recovery": ("changelog", "recovery"),
    "hybridstore": ("changelog", "recovery", "hybridstore"),
    # stores decide and apply; they neither read nor write files, and share buckets, keys and columns, not one another;
    # of recovery they know what a block is, in and out of memory, and nothing of checkpoints and restores
    "hybridstore.stores": (
        "recovery.block",
        "changelog",
        "-changelog.writer",
        "-changelog.reader",
        "hybridstore",
        "-hybridstore.stores",
        "hybridstore.stores.buckets",
        "hybridstore.stores.cold_blocks",
        "hybridstore.stores.snapshots",
        "hybridstore.stores.columns",
        "hybridstore.stores.keys",
        "hybridstore.stores.cold_tail",
        "hybridstore.stores.time_buckets",
        "hybridstore.stores.key_blocks",
        "hybridstore.stores.session_runs",
        "hybridstore.stores.window_runs",
        "-hybridstore.state",
        "-hybridstore.topology",
        "-hybridstore.spark",
        "-hybridstore.inspection",
        "-hybridstore.cli",
    ),
    # the one module that knows every kind; it imports a kind's class when a state has such a store
    "hybridstore.stores.kinds": (
        "recovery.block",
        "changelog.journal",
        "changelog.mutation",
        "hybridstore.clock",
        "hybridstore.stores",
    ),
    # an inspection tool must work on a directory whose job it does not know
    "hybridstore.cli": ("changelog", "recovery", "hybridstore", "-hybridstore.stores", "-hybridstore.state.directory"),
    "hybridstore.inspection": (
        "changelog",
        "recovery",
        "hybridstore",
        "-hybridstore.stores",
        "hybridstore.stores.kinds",
        "-hybridstore.state.directory",
    ),
    # the one-file module by which Spark finds the data source
    "pyspark_hybridstore": ("hybridstore",),
}
# The modules that may import pyspark; everything else must run, and be imported, without it.
MAY_IMPORT_PYSPARK = ("hybridstore.spark", "pyspark_hybridstore")


class Import(NamedTuple):
    path: Path
    line: int
    importer: str
    imported: str


def covers(prefix: str, module: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def module_name(path: Path, root: Path) -> str:
    """`changelog/frame.py` -> `changelog.frame`; a package's own file keeps `__init__`, it has rules of its own."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def imports_of(path: Path, root: Path) -> Iterator[Import]:
    """Yield every import in the file, relative ones resolved, `from a import b` as `a.b` (b may be a module)."""
    importer = module_name(path, root)
    package = importer.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, importer, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(path, node.lineno, importer, f"{source}.{alias.name}")


def allowed(importer: str, imported: str) -> bool:
    """Whether the longest entry of the importer's rule that covers the imported name permits it."""
    module = importer.removesuffix(".__init__")
    if covers("pyspark", imported):
        return any(covers(prefix, module) for prefix in MAY_IMPORT_PYSPARK)
    if imported.split(".")[0] not in (*PACKAGES, "pyspark_hybridstore"):
        return True
    if importer in MAY_IMPORT:
        rule = MAY_IMPORT[importer]
    else:
        rule = MAY_IMPORT[max((name for name in MAY_IMPORT if covers(name, module)), key=len)]
    decisive = max((entry for entry in rule if covers(entry.removeprefix("-"), imported)), key=_length, default="-")
    return not decisive.startswith("-")


def _length(entry: str) -> int:
    return len(entry.removeprefix("-"))


def violations(root: Path) -> list[str]:
    """Return `file:line: importer imports imported` for each import that the table forbids, in reading order."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    files += sorted(root.glob("pyspark_hybridstore.py"))
    found: list[str] = []
    for path in files:
        for one in imports_of(path, root):
            if not allowed(one.importer, one.imported):
                line = f"{path.relative_to(root)}:{one.line}: {one.importer} imports {one.imported}"
                if line not in found:
                    found.append(line)
    return found


def test_no_module_imports_what_its_layer_must_not_know() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("changelog/frame.py", "import recovery.restore", "changelog.frame imports recovery.restore"),
        ("changelog/writer.py", "from . import reader", "changelog.writer imports changelog.reader"),
        ("changelog/reader.py", "from .writer import Writer", "changelog.reader imports changelog.writer.Writer"),
        ("recovery/restore.py", "from hybridstore.errors import X", "recovery.restore imports hybridstore.errors.X"),
        (
            "hybridstore/stores/window.py",
            "from .session import SessionStore",
            "hybridstore.stores.window imports hybridstore.stores.session.SessionStore",
        ),
        (
            "hybridstore/stores/window.py",
            "from recovery import restore",
            "hybridstore.stores.window imports recovery.restore",
        ),
        (
            "hybridstore/stores/window.py",
            "from changelog import writer",
            "hybridstore.stores.window imports changelog.writer",
        ),
        ("hybridstore/cli.py", "from .stores import window", "hybridstore.cli imports hybridstore.stores.window"),
        (
            "hybridstore/inspection/scan.py",
            "from ..stores.window import WindowStore",
            "hybridstore.inspection.scan imports hybridstore.stores.window.WindowStore",
        ),
        (
            "hybridstore/state/directory.py",
            "from pyspark import sql",
            "hybridstore.state.directory imports pyspark.sql",
        ),
        ("recovery/__init__.py", "import pyspark", "recovery.__init__ imports pyspark"),
    ],
)
def test_a_planted_violation_is_named_with_file_and_line(
    tmp_path: Path, file: str, source: str, complaint: str
) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    guarded = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {source}\n"
    planted.write_text(guarded)
    assert violations(tmp_path) == [f"{file}:4: {complaint}"]


def test_what_the_layers_permit_is_not_a_violation(tmp_path: Path) -> None:
    for file, source in {
        "changelog/writer.py": "from . import frame, segment\nimport msgpack",
        "recovery/restore.py": "from changelog.reader import read\nfrom .block import Block",
        "hybridstore/stores/window.py": "from .buckets import Buckets\nfrom changelog import mutation",
        "hybridstore/stores/kinds.py": "from .window import WindowStore\nfrom .session import SessionStore",
        "hybridstore/state/directory.py": "import recovery\nfrom .stores.window import W\nfrom changelog.writer import A",
        "hybridstore/inspection/scan.py": "from .reader import view\nfrom recovery import verify",
        "hybridstore/spark/operator.py": "import pyspark.sql\nfrom ..topology import local",
        "pyspark_hybridstore.py": "from pyspark.sql import datasource\nfrom hybridstore.spark.source import Source",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + "\n")
    assert violations(tmp_path) == []


def test_importing_hybridstore_does_not_import_pyspark() -> None:
    code = "import sys, hybridstore; print(*(m for m in ('pyspark', 'pyarrow', 'pandas') if m in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""
