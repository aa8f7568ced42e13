"""What only `make stress` runs is a further case of a test that runs in every run."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def further(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls of the marker in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "further" in {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}:
            yield node


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The tests of a file, by name."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_further_case_names_a_test_that_every_run_has() -> None:
    wrong = []
    named = 0
    for path in sorted(ROOT.glob("tests/**/*.py")):
        text = path.read_text(encoding="utf-8")
        if "further(" not in text or path.parent == Path(__file__).parent:
            continue
        for call in further(ast.parse(text)):
            (argument,) = call.args
            assert isinstance(argument, ast.Constant), f"{path}: {ast.unparse(call)}"
            assert isinstance(argument.value, str), f"{path}: {ast.unparse(call)}"
            file, _, name = argument.value.rpartition("::")
            test = functions(ROOT / file if file else path).get(name)
            named += 1
            # a decorator of the whole function leaves no case of it in a run
            if test is None or any(call for each in test.decorator_list for call in further(each) if call is each):
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: {argument.value}")
    assert wrong == []
    assert named
