"""What a value log does with its newest record is written once, in `TimeLog.insert`, and copied where a call would cost
more than a twentieth of an update (measured: 9 % of a sum's, 6 % of a subtraction's): the copies stay copies.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOM = Path(__file__).resolve().parent.parent.parent / "hybridstore" / "aggregation"


def appends(source: str) -> list[tuple[str, str]]:
    """Return function and text of each stretch of statements that makes room, appends and counts."""
    stretches = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for block in (getattr(node, "body", None) for node in ast.walk(function)):
            if not isinstance(block, list):
                continue
            texts = [
                ast.unparse(statement).replace("self.end = end = end + 1", "self.end = end + 1") for statement in block
            ]
            if "self.times.append(ts)" in texts:
                begin = next(i for i, text in enumerate(texts) if text.startswith("if not end & 63:"))
                end = texts.index("self.end = end + 1")
                stretches.append((function.name, "\n".join(texts[begin : end + 1])))
    return stretches


# It puts off expiry, and makes up for it before the log takes a new block.
_MONOTONE = ("if not end & 63:\n    self.expire(lo)\n    self.roll()", "if not end & 63:\n    self.roll()")
DEFINITION = dict(appends((ROOM / "value_log.py").read_text(encoding="utf-8")))["insert"]


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_every_copy_of_the_append_is_one(path: Path) -> None:
    for function, text in appends(path.read_text(encoding="utf-8")):
        assert (text.replace(*_MONOTONE) if path.stem == "monotone" else text) == DEFINITION, f"{path.name}: {function}"


def test_there_are_as_many_copies_as_were_measured() -> None:
    copies = sum(len(appends(path.read_text(encoding="utf-8"))) for path in ROOM.glob("*.py"))
    assert copies == 6  # the definition, `push`, and the updates of four states


def test_a_copy_that_differs_is_seen() -> None:
    source = (ROOM / "value_log.py").read_text(encoding="utf-8")
    changed = appends(source.replace("self.newest = ts", "self.newest = max(ts, self.newest)", 1))
    assert len({text for _, text in changed}) == 2
