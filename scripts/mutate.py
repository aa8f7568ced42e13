"""Mutate: change changelog, recovery, stores, state and aggregation at random places, and see which tests fail.

    make mutate MUTANTS=20 SEED=7
    python scripts/mutate.py --mutants 20 --seed 7 changelog/codec.py recovery
    python scripts/mutate.py --each --mutants 1   # one of each file

A mutant is a copy of the tree with one change: a comparison, a condition, a number, two arguments, a statement. The
tests of the changed file run on it, the nearest first: those that have its name, those that import it, those of its
room and of the one that uses it; without slow ones and Spark. A mutant that no test notices survives: a test is missing
there, or the change means nothing. The copy is a temporary folder: the tree itself is only read. Exit code 1 with
survivors, 2 where the tests fail without any change.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PLACES: Final = ("changelog", "recovery", "hybridstore/stores", "hybridstore/state", "hybridstore/aggregation")
# What the tests read.
COPIED: Final = ("changelog", "recovery", "hybridstore", "tests", "benchmarks", "examples", "scripts", "docs")
_OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NEAR: Final = 3
# The tests of another room that see what the files of a room do.
_FURTHER: Final = {"aggregation": "stores", "changelog": "state", "recovery": "state", "stores": "state"}
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "iter"}


class Mutant(NamedTuple):
    """A change of a file: the place in its bytes, the new text, and both texts on one line."""

    path: str
    line: int
    start: int
    end: int
    text: str
    what: str


class _Changes(ast.NodeVisitor):
    """Collects the changes of the functions of a module: (node, new text)."""

    def __init__(self) -> None:
        self.changes: list[tuple[ast.AST, str]] = []
        self._inside = 0

    def _with(self, node: ast.AST, **fields: object) -> None:
        """Note a change: the node with other fields."""
        if self._inside:
            changed = copy.copy(node)
            for name, value in fields.items():
                setattr(changed, name, value)
            self.changes.append((node, f"({ast.unparse(changed)})"))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Only bodies and defaults of functions: a decorator and an annotation change nothing that a test could see."""
        self._inside += 1
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)
        self._inside -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Without the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """No change of texts."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """An error that is not raised; its message is not changed."""
        if self._inside:
            self.changes.append((node, "pass"))

    def visit_Assert(self, node: ast.Assert) -> None:
        """No change of what is not part of the behaviour."""

    def visit_Compare(self, node: ast.Compare) -> None:
        """The opposite, or the bound itself."""
        for at, operator in enumerate(node.ops):
            other = _OPERATORS[type(operator)]()
            self._with(node, ops=[*node.ops[:at], other, *node.ops[at + 1 :]])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """`and` for `or`, and each part by itself."""
        self._with(node, op=_OPERATORS[type(node.op)]())
        for at in range(len(node.values)):
            rest = [*node.values[:at], *node.values[at + 1 :]]
            text = ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
            self.changes.append((node, f"({text})"))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Another operator, but between texts."""
        texts = (ast.JoinedStr, ast.Constant)
        is_text = any(isinstance(part, texts) and not _is_number(part) for part in (node.left, node.right))
        if type(node.op) in _OPERATORS and not is_text:
            self._with(node, op=_OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Without `not` or minus."""
        if self._inside:
            self.changes.append((node, f"({ast.unparse(node.operand)})"))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The other value."""
        self._with(node, body=node.orelse, orelse=node.body)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Without its conditions."""
        if self._inside:
            self.changes += [(condition, "True") for condition in node.ifs]
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Two arguments that change places, but those of `min` and `max`."""
        for at, (first, second) in enumerate(pairwise(node.args)):
            if ast.dump(first) != ast.dump(second) and ast.unparse(node.func) not in ("min", "max"):
                self._with(node, args=[*node.args[:at], second, first, *node.args[at + 2 :]])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """The next number, the other truth value."""
        if type(node.value) is bool:
            self._with(node, value=not node.value)
        elif type(node.value) is int:
            self._with(node, value=node.value + 1)

    def visit_If(self, node: ast.If) -> None:
        """The other way."""
        if ast.unparse(node.test) != "TYPE_CHECKING":
            if self._inside:
                self.changes.append((node.test, f"(not ({ast.unparse(node.test)}))"))
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """The other extreme."""
        if self._inside and node.id in _NAMES:
            self.changes.append((node, _NAMES[node.id]))

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call that is not made."""
        if self._inside and isinstance(node.value, ast.Call):
            self.changes.append((node, "pass"))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """A change that is not made."""
        if self._inside:
            self.changes.append((node, "pass"))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """A field or an entry that is not set."""
        if self._inside and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.changes.append((node, "pass"))
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        """What is not removed."""
        if self._inside:
            self.changes.append((node, "pass"))

    def visit_Continue(self, node: ast.Continue) -> None:
        """The end of the loop."""
        self.changes.append((node, "break"))

    def visit_Break(self, node: ast.Break) -> None:
        """The next round."""
        self.changes.append((node, "continue"))


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a file. O(changes + source)."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changes = _Changes()
    changes.visit(ast.parse(source))
    for node, text in changes.changes:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(data[start:end].decode().split())
        yield Mutant(path, node.lineno, start, end, text, f"{before[:70]}  ->  {' '.join(text.split())[:70]}")


def changed(source: str, mutant: Mutant) -> str:
    """Return the text of a mutant's file."""
    data = source.encode()
    return (data[: mutant.start] + mutant.text.encode() + data[mutant.end :]).decode()


def is_program(mutant: Mutant) -> bool:
    """Whether a mutant's file can be compiled."""
    try:
        compile(changed((ROOT / mutant.path).read_text(encoding="utf-8"), mutant), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


def tests_of(path: str, root: Path) -> list[str]:
    """Return the test files for a file of the product, the nearest first: by name, by import, by room, and those of the
    room that uses its room.
    """
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package, _, stem = module.rpartition(".")
    room = root / "tests" / package.rpartition(".")[2]
    imports = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{re.escape(stem)}\b")
    files = sorted((root / "tests").glob("*/test_*.py"))
    near = [file for file in files if file.stem == f"test_{stem}"]
    near += [file for file in files if file.parent == room and stem in file.stem]
    near += [file for file in files if imports.search(file.read_text(encoding="utf-8"))]
    near += [file for file in files if file.parent == room]
    near += [file for file in files if file.parent.name == _FURTHER.get(room.name)]
    return [str(file.relative_to(root)) for file in dict.fromkeys(near)]


class Judge:
    """Runs tests on a copy of the tree."""

    def __init__(self, tree: Path, seconds: float) -> None:
        self.tree, self.seconds = tree, seconds

    def copy(self) -> None:
        """Copy what the tests read into the tree. O(files)."""
        for name in COPIED:
            shutil.copytree(ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        for file in ROOT.iterdir():
            if file.is_file() and not file.name.startswith(".coverage"):
                shutil.copy2(file, self.tree)

    def run(self, tests: list[str]) -> tuple[str, str]:
        """Return "passed", "failed" or "too long", and the test that failed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-m", "not slow and not spark", *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "HYBRIDSTORE_SEED": "1", "TMPDIR": str(self.tree)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=self.tree, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                return "too long", ""
            output.seek(0)
            text = output.read()
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        if status in (0, 5):  # 5: no test was chosen
            return "passed", ""
        return "failed", failed[1] if failed else text.strip().splitlines()[-1][:120]

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """Return what the tests say of a mutant; the copy is as before then."""
        file = self.tree / mutant.path
        source = file.read_text(encoding="utf-8")
        try:
            # two versions of one second and size would share what was compiled
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
            file.write_text(changed(source, mutant), encoding="utf-8")
            tests = tests_of(mutant.path, self.tree)
            # most mutants are killed by the nearest tests, before the others are even collected
            for part in (tests[:_NEAR], tests[_NEAR:]):
                verdict, by = self.run(part) if part else ("passed", "")
                if verdict != "passed":
                    break
            return verdict, by
        finally:
            file.write_text(source, encoding="utf-8")
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", default=PLACES, help="files and folders of the tree")
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--each", action="store_true", help="so many mutants of each file, and not of all together")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--seconds", type=float, default=300, help="after which a run of the tests is given up")
    asked = parser.parse_args()
    files = [
        file
        for place in asked.places
        for file in ([ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*.py")))
    ]
    of_files = [
        list(mutants_of(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))) for file in dict.fromkeys(files)
    ]
    groups = of_files if asked.each else [list(chain.from_iterable(of_files))]
    dice = random.Random(asked.seed)
    drawn = [islice(filter(is_program, dice.sample(group, len(group))), asked.mutants) for group in groups]
    chosen = list(chain.from_iterable(drawn))
    print(f"{len(chosen)} of {sum(map(len, of_files))} mutants, seed {asked.seed}", flush=True)
    verdicts: dict[str, list[Mutant]] = {"passed": [], "failed": [], "too long": []}
    names = {"passed": "survives", "failed": "killed", "too long": f"longer than {asked.seconds:g} s"}
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        judge = Judge(Path(folder), asked.seconds)
        judge.copy()
        where = subprocess.run(
            [sys.executable, "-c", "import hybridstore; print(hybridstore.__file__)"],
            env={**os.environ, "PYTHONPATH": folder},
            cwd=folder,
            capture_output=True,
            text=True,
        ).stdout
        if not where.startswith(folder):
            print(f"mutate: the copy is not what is imported: found {where.strip()}, expected {folder}")
            return 2
        for mutant in chosen:
            begun = time.perf_counter()
            verdict, by = judge.judge(mutant)
            verdicts[verdict].append(mutant)
            taken = time.perf_counter() - begun
            print(f"{names[verdict]}: {mutant.path}:{mutant.line}: {mutant.what}  [{by} {taken:.0f} s]", flush=True)
        for path in sorted({mutant.path for mutant in verdicts["failed"]})[:3]:
            # a test that fails without any change kills everything
            if judge.run(tests_of(path, judge.tree))[0] == "failed":
                print(f"mutate: the tests of {path} fail without any change")
                return 2
    print(", ".join(f"{len(part)} {names[verdict]}" for verdict, part in verdicts.items()))
    return 1 if verdicts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
