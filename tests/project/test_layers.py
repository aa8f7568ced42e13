"""The layers hold: who may import whom, read from the source of every module without importing any.

    hybridstore -> recovery -> changelog
    inside hybridstore: spark, inspection, topology -> state -> stores -> aggregation -> clock

`MAY_IMPORT` is the whole rule: the longest entry that covers a module, and in it the longest prefix that covers the
imported name; a prefix with a minus forbids. Imports for type checkers and inside functions count, and for circles a
text that names a module, too.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.imports import imports_of, module_name, texts_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("changelog", "recovery", "hybridstore")

GROUND = (
    "hybridstore.clock",
    "hybridstore.collector",
    "hybridstore.errors",
    "hybridstore.faces",
    "hybridstore.markup",
    "hybridstore.progress",
    "hybridstore.shards",
)
# What the windows of a topology are made of.
BELOW_RUNS = (
    *GROUND,
    "hybridstore.aggregation",
    "hybridstore.stores",
    "hybridstore.state.group",
    "hybridstore.topology.batch",
    "hybridstore.topology.failures",
    "hybridstore.topology.plan",
    "hybridstore.topology.results",
    "hybridstore.topology.row_columns",
    "hybridstore.topology.times",
)
# Our own modules that each module may import, as prefixes; its own package is written out like any other.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # the lowest package knows nothing of the others; writer and reader share `frame` and `segment`, never each other
    "changelog": ("changelog",),
    "changelog.writer": ("changelog", "-changelog.reader"),
    "changelog.reader": ("changelog", "-changelog.writer"),
    # recovery knows blocks and mutations, not the kinds of stores
    "recovery": ("changelog", "recovery"),
    "hybridstore": ("changelog", "recovery", "hybridstore"),
    # the ground: what any room may use, and what uses none
    **dict.fromkeys((name for name in GROUND if name != "hybridstore.errors"), ()),
    "hybridstore.errors": ("changelog.errors", "recovery.errors"),
    # of the changelog: the packed bytes by which ties are decided
    "hybridstore.aggregation": (
        "hybridstore.aggregation",
        "hybridstore.clock",
        "changelog.codec",
        "changelog.installed",
    ),
    # stores decide and apply; they share buckets, keys and columns, not one another; of recovery they know blocks alone
    "hybridstore.stores": (
        "recovery.block",
        "recovery.directory",
        "recovery.errors",
        "recovery.finder",
        "recovery.layers",
        "recovery.table",
        "recovery.table_range",
        "changelog",
        "-changelog.writer",
        "-changelog.reader",
        *GROUND,
        "hybridstore.aggregation",
        "hybridstore.stores.buckets",
        "hybridstore.stores.cold_blocks",
        "hybridstore.stores.snapshots",
        "hybridstore.stores.edge",
        "hybridstore.stores.columns",
        "hybridstore.stores.keys",
        "hybridstore.stores.cold_tail",
        "hybridstore.stores.time_buckets",
        "hybridstore.stores.bucket_rows",
        "hybridstore.stores.key_blocks",
        "hybridstore.stores.expiries",
        "hybridstore.stores.ages",
        "hybridstore.stores.key_ages",
        "hybridstore.stores.key_order",
        "hybridstore.stores.key_value_reads",
        "hybridstore.stores.pieces",
        "hybridstore.stores.sizes",
        "hybridstore.stores.session_reads",
        "hybridstore.stores.session_runs",
        "hybridstore.stores.sliding_maps",
        "hybridstore.stores.sliding_runs",
        "hybridstore.stores.suppression_maps",
        "hybridstore.stores.suppression_tail",
        "hybridstore.stores.window_reads",
        "hybridstore.stores.window_runs",
    ),
    # a store without maps of its own, made of two others
    "hybridstore.stores.versioned": (
        "hybridstore.clock",
        "hybridstore.stores.edge",
        "hybridstore.stores.key_value",
        "hybridstore.stores.session",
    ),
    # the one module that knows every kind; it imports a kind's class when a state has such a store
    "hybridstore.stores.kinds": (
        "recovery.block",
        "recovery.directory",
        "changelog.journal",
        "changelog.mutation",
        "hybridstore.clock",
        "hybridstore.stores",
    ),
    # an open state knows what commits, not what for
    "hybridstore.state": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.aggregation",
        "hybridstore.stores",
        "hybridstore.state",
    ),
    "hybridstore.topology": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.aggregation",
        "hybridstore.stores",
        "hybridstore.state",
        "hybridstore.topology",
    ),
    # what a topology is: data that every worker reads, and that knows none of them
    "hybridstore.topology.plan": (
        "hybridstore.markup",
        "hybridstore.aggregation",
        "hybridstore.stores.suppression_bounds",
        "hybridstore.topology.declared_stores",
        "hybridstore.topology.joins.spec",
    ),
    # windows and columns know the plan and the batch, not who runs them
    "hybridstore.topology.windows": (*BELOW_RUNS, "hybridstore.topology.windows"),
    "hybridstore.topology.columns": (*BELOW_RUNS, "hybridstore.topology.windows", "hybridstore.topology.columns"),
    # the doors by which a topology runs, here or on Spark; nothing of Spark's room leads back to them
    "hybridstore.topologies": (
        "changelog",
        "recovery",
        "hybridstore",
        "-hybridstore.inspection",
        "-hybridstore.cli",
    ),
    "hybridstore.spark": (
        "changelog",
        "recovery",
        "hybridstore",
        "-hybridstore.topologies",
        "-hybridstore.inspection",
        "-hybridstore.rescaling",
        "-hybridstore.cli",
    ),
    # what is shared out knows the kinds of stores, and not whose they are; the door knows who can be rescaled
    "hybridstore.rescaling": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.stores.keys",
        "hybridstore.stores.kinds",
        "hybridstore.aggregation.windows",
        # which rows of a join have come out, and where its rows without a key are
        "hybridstore.topology.joins.former",
        "hybridstore.topology.joins.shapes",
        "hybridstore.topology.joins.stores",
        "hybridstore.rescaling",
    ),
    "hybridstore.rescaling.plain": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.state",
        "hybridstore.topology",
        "hybridstore.rescaling",
    ),
    "hybridstore.rescaling.spark": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.state",
        "hybridstore.stores.kinds",
        "hybridstore.topology.windows.windowed",
        "hybridstore.spark",
        "hybridstore.rescaling",
    ),
    "hybridstore.rescaling.api": (
        "changelog",
        "recovery.layout",
        "hybridstore",
        "-hybridstore.inspection",
        "-hybridstore.cli",
    ),
    "hybridstore.rescaling.command": (
        "hybridstore.inspection.options",
        "hybridstore.inspection.show",
        "hybridstore.reading.texts",
        "hybridstore.progress",
        "hybridstore.rescaling",
    ),
    # drives a program as its doors do, and runs it in other ways
    "hybridstore.testing": ("changelog", "hybridstore", "-hybridstore.inspection", "-hybridstore.cli"),
    # what comes from Spark goes through the stores of an operator, opened by its own program
    "hybridstore.importing": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.aggregation",
        "hybridstore.state",
        "hybridstore.topology",
        "hybridstore.spark",
        "hybridstore.importing",
    ),
    "hybridstore.importing.command": (
        "changelog.installed",
        "hybridstore.inspection.options",
        "hybridstore.reading.texts",
        "hybridstore.progress",
        "hybridstore.spark",
        "hybridstore.importing",
    ),
    # goes back in any kind of state, and opens none as a job does
    "hybridstore.rewinding": (
        "changelog",
        "recovery",
        "hybridstore",
        "-hybridstore.stores",
        "hybridstore.stores.kinds",
        "-hybridstore.cli",
    ),
    # a followed state over HTTP
    "hybridstore.serving": (
        "changelog.codec",
        "changelog.errors",
        "changelog.storage",
        "hybridstore.inspection.commands.get",
        "hybridstore.reading",
        "hybridstore.serving",
        "hybridstore.state.memory_budget",
        "hybridstore.state.metrics_server",
        "hybridstore.stores.kinds",
    ),
    "hybridstore.serving.command": (
        "hybridstore.inspection.options",
        "hybridstore.reading.texts",
        "hybridstore.serving",
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
        "-hybridstore.topology",
        # how the keys of groups are written
        "hybridstore.topology.null_keys",
        # which rows of merged shards have come out
        "hybridstore.topology.joins.former",
        "-hybridstore.spark",
        "-hybridstore.cli",
    ),
    # which versions of shards belong together, a run's own numbers say
    "hybridstore.inspection.shards": (
        "changelog",
        "recovery",
        "hybridstore.state.generations",
        "hybridstore.topology.run_state",
        "hybridstore.reading",
        "hybridstore.inspection",
    ),
    # `bench restore` measures what a job does: it opens a state as one
    "hybridstore.inspection.bench": (
        "changelog.bucket",
        "changelog.storage",
        "hybridstore",
        "-hybridstore.topology",
        "-hybridstore.spark",
        "-hybridstore.cli",
    ),
    # how an answer looks <- what is there <- commands, which join the two
    "hybridstore.inspection.show": ("hybridstore.inspection.show", "hybridstore.markup", "hybridstore.reading.texts"),
    "hybridstore.inspection.options": ("changelog.errors", "hybridstore.inspection.show", "hybridstore.reading"),
    # what is in a state at a version, for whoever reads it: below inspection and Spark's source
    "hybridstore.reading": (
        "changelog",
        "recovery",
        *GROUND,
        "hybridstore.stores.kinds",
        "hybridstore.state",
        "-hybridstore.state.directory",
        "hybridstore.reading",
    ),
    "hybridstore.reading.texts": ("hybridstore.markup",),
    # the one-file module by which Spark finds the data source
    "pyspark_hybridstore": ("hybridstore",),
}
# The modules that may import pyspark; everything else must run, and be imported, without it.
MAY_IMPORT_PYSPARK = ("hybridstore.importing", "hybridstore.spark", "pyspark_hybridstore")
# Files in hybridstore/ itself, which no room has: its face, its command, and the ground.
LOOSE_FILES = 10


def covers(prefix: str, module: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


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
    files = [*product_files(root), *sorted(root.glob("pyspark_hybridstore.py"))]
    lines: list[str] = []
    for path in files:
        for each in imports_of(path, root):
            if not allowed(each.importer, each.imported):
                line = f"{path.relative_to(root)}:{each.line}: {each.importer} imports {each.imported}"
                if line not in lines:
                    lines.append(line)
    return lines


def product_files(root: Path) -> list[Path]:
    return [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return module -> the modules that it imports, by statement or by a text that is a module's name."""
    modules = {module_name(path, root).removesuffix(".__init__"): path for path in product_files(root)}

    def resolve(name: str) -> str | None:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name or None

    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = {resolve(imported.imported) for imported in imports_of(path, root)}
        for text in texts_of(path, root):
            # a text that names a package is more often the name of a logger
            prefix = text.removesuffix("{}")
            targets |= {
                name
                for name in modules
                if (name == text and modules[name].name != "__init__.py")
                or (prefix != text and name.startswith(prefix))
            }
        graph[module] = {target for target in targets if target is not None and target != module}
    return graph


def circles(root: Path) -> list[str]:
    """Return the circles of imports as `a -> b -> a`: one of the shortest through each module that is on any."""
    graph = import_graph(root)
    answer: dict[frozenset[str], str] = {}
    for start in sorted(graph):
        back: dict[str, str] = {}
        reached = [start]
        for module in reached:  # grows as it is walked: breadth first
            for target in sorted(graph[module]):
                if target not in back:
                    back[target] = module
                    reached.append(target)
        if start in back:
            steps = [start]
            while steps[0] != start or len(steps) == 1:
                steps.insert(0, back[steps[0]])
            answer.setdefault(frozenset(steps), " -> ".join(steps))
    return list(answer.values())


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circles(ROOT) == []


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        (
            {"changelog/a.py": "from . import b", "changelog/b.py": "from .a import x"},
            "changelog.a -> changelog.b -> changelog.a",
        ),
        (
            {
                "hybridstore/a.py": "def f():\n    from recovery.b import x",
                "recovery/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from changelog import c",
                "changelog/c.py": "import hybridstore.a",
            },
            "changelog.c -> hybridstore.a -> recovery.b -> changelog.c",
        ),
        (
            {
                "hybridstore/__init__.py": "_HOME = {'X': ('.stores.x', 'X')}",
                "hybridstore/stores/x.py": "import hybridstore",
            },
            "hybridstore -> hybridstore.stores.x -> hybridstore",
        ),
        (
            {
                "hybridstore/cli.py": "MODULES = 'hybridstore.commands.{}'",
                "hybridstore/commands/get.py": "from ..cli import Command",
            },
            "hybridstore.cli -> hybridstore.commands.get -> hybridstore.cli",
        ),
    ],
)
def test_a_planted_circle_is_named_step_by_step(tmp_path: Path, files: dict[str, str], circle: str) -> None:
    for file, source in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + "\n")
    assert circles(tmp_path) == [circle]


def test_hybridstore_has_at_most_eight_loose_files() -> None:
    loose = sorted(path.name for path in (ROOT / "hybridstore").glob("*.py"))
    assert len(loose) <= LOOSE_FILES, f"{len(loose)} files in hybridstore/ are in no room: {', '.join(loose)}"


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
        (
            "hybridstore/reading/line.py",
            "from ..inspection.commands import scan",
            "hybridstore.reading.line imports hybridstore.inspection.commands.scan",
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
        "hybridstore/state/directory.py": "import recovery\nfrom ..stores.window import W\nimport changelog.writer",
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


def test_one_function_opens_a_version() -> None:
    """Every reader climbs the same ladder, so no caller opens a state that another refuses."""
    callers = [
        f"{path.relative_to(ROOT)}: {node.func.id}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "attach"
    ]
    assert callers == ["recovery/ladder.py: attach"]


def folders_of(root: Path) -> set[tuple[str, str]]:
    """Return (folder, folder that it imports) of the rooms of hybridstore; its loose files belong to no room."""

    def folder(module: str) -> str:
        parts = module.split(".")
        is_room = len(parts) > 2 and parts[0] == "hybridstore" and (root / parts[0] / parts[1]).is_dir()
        return parts[1] if is_room else ""

    pairs = {
        (folder(each.importer), folder(each.imported))
        for path in product_files(root)
        for each in imports_of(path, root)
    }
    return {(first, second) for first, second in pairs if first and second and first != second}


def test_no_chain_of_folders_leads_back_to_its_start() -> None:
    pairs = folders_of(ROOT)
    assert ("rescaling", "spark") in pairs
    while pairs:
        # Folders that nobody imports, or that import nobody, are in no circle.
        ends = {first for first, _ in pairs} & {second for _, second in pairs}
        inner = {(first, second) for first, second in pairs if first in ends and second in ends}
        if inner == pairs:
            break
        pairs = inner
    assert pairs == set()
