"""The journal's protocol is defined once, in `Edge._log_row`; the puts that have its lines in place have the same
lines.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOM = Path(__file__).resolve().parent.parent.parent / "hybridstore" / "stores"
IN_PLACE = {"key_value.py": 2, "window.py": 1, "session.py": 1}


def protocols(source: str) -> list[tuple[str, list[str]]]:
    """Return the text of each `if small: ... else: ...` that logs, and the mutation that each of its branches logs."""
    copies = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "small" and node.orelse:
            mutations = []
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in ("self._log", "self._journal.record"):
                    given = call.args[0] if ast.unparse(call.func) == "self._log" else ast.Tuple(call.args, ast.Load())
                    mutations.append(ast.unparse(given.value if isinstance(given, ast.Starred) else given))
                    call.args = [ast.Name("mutation", ast.Load())]
            copies.append((ast.unparse(node), mutations))
    return copies


((DEFINITION, _),) = protocols((ROOM / "edge.py").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [path.name for path in sorted(ROOM.glob("*.py")) if path.name != "edge.py"])
def test_a_put_logs_as_the_edge_does(name: str) -> None:
    copies = protocols((ROOM / name).read_text(encoding="utf-8"))
    assert len(copies) == IN_PLACE.get(name, 0)
    for text, mutations in copies:
        assert text == DEFINITION
        assert len(set(mutations)) == 1, mutations


def test_a_copy_that_differs_is_seen() -> None:
    source = (ROOM / "window.py").read_text(encoding="utf-8")
    ((text, mutations),) = protocols(source.replace(">= self._limit", "> self._limit"))
    assert text != DEFINITION
    ((text, mutations),) = protocols(
        source.replace("record(self._code_put, key, value, ts)", "record(self._code_put, key, value)")
    )
    assert len(set(mutations)) == 2


def test_nobody_else_knows_the_journals_items() -> None:
    for path in ROOM.glob("*.py"):
        if path.name not in IN_PLACE and path.name != "edge.py":
            assert "self._items" not in path.read_text(encoding="utf-8"), path.name
