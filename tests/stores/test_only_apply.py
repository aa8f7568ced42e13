"""`apply_*` is the only way into a store's maps, beside the loading of blocks: read from the source of the stores.

A function that assigns to a map must be one of these, or be called by nothing but such functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# What holds the records of a store.
MAPS = {"runs", "_runs", "buckets", "_buckets"}
_CHANGES = {"pop", "popitem", "update", "clear", "setdefault", "__setitem__", "__delitem__"}
# Where the maps come into being, and blocks come into them.
_LOADING = {"__init__", "clone", "clear_state", "attach", "_load", "_install", "_load_key", "_bring", "_recall"}
# What assigns to the maps and changes no record.
_SAME_RECORDS = {
    "key_ages.py: _cool": "records behind a checkpoint move into a new map; its blocks have the others",
    "key_ages.py: _set_beside": "records move into an older map, which is read behind the new one",
    "key_ages.py: _gather": "records of older maps move into one",
    "key_blocks.py: _cool": "records of changed keys move into a new map; the blocks of a checkpoint have the others",
    "key_value.py: _prune_tombstones": "forgets tombstones over blocks that are no longer cold",
    "buckets.py: over_newer": "runs of changed keys move into a new bucket over the blocks of a checkpoint",
    "time_buckets.py: _cool_bucket": "a bucket gives way to one with its changes; its blocks have the others",
    "time_buckets.py: seal": "forgets a bucket that is empty",
    "sliding_runs.py: bind": "values take the form that belongs to no strategy",
    "sliding_runs.py: _cool": "window states become an older map, and runs that the checkpoint has leave the map",
    "sliding_runs.py: age": "window states become an older map, which is read behind the new one",
    "sliding_runs.py: _put_back": "a run of an older map moves into the map",
    "sliding_runs.py: _wake": "values take the form of the strategy",
}


def _is_map(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in MAPS) or (isinstance(node, ast.Name) and node.id in MAPS)


def _assigns(function: ast.AST) -> bool:
    """Whether a function assigns to a map, or to an item of one."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in _CHANGES and _is_map(called.value):
            return True
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr in MAPS:
                return True
            parts = [part for part in ast.walk(target) if isinstance(part, ast.Subscript)]
            if any(_is_map(part.value) for part in parts):
                return True
    return False


class Function(NamedTuple):
    """A function: its name, the names in it, and whether it assigns to a map."""

    name: str
    named: frozenset[str]
    assigns: bool


@cache
def functions_of(source: str) -> list[Function]:
    """Return the functions of a file; once for all tests."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [Function(each.name, frozenset(_named(each)), _assigns(each)) for each in functions]


def _named(function: ast.FunctionDef) -> Iterator[str]:
    """Yield what a function calls; also by a name that it is called by later, as in `put = self._insert`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def changers(sources: dict[str, str]) -> list[str]:
    """Return `file: function` of all that assign to a map and can be reached without `apply_*` and without loading."""
    functions = [(name, function) for name, source in sources.items() for function in functions_of(source)]
    callers: dict[str, set[str]] = {}
    for _, function in functions:
        for called in function.named:
            callers.setdefault(called, set()).add(function.name)
    fine = {function.name for _, function in functions if function.name.startswith("apply_")} | _LOADING
    grown = True
    while grown:
        more = {name for name, by in callers.items() if by and by - {name} <= fine and name not in fine}
        fine |= more
        grown = bool(more)
    return [
        f"{name}: {function.name}"
        for name, function in functions
        if function.name not in fine and f"{name}: {function.name}" not in _SAME_RECORDS and function.assigns
    ]


def stores_as_written() -> dict[str, str]:
    folder = ROOT / "hybridstore" / "stores"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}


def test_apply_is_the_only_way_into_the_maps() -> None:
    assert changers(stores_as_written()) == []


@pytest.mark.parametrize(
    "body",
    ["self._runs[key] = 1", "del self._runs[key]", "runs = self._runs\n        runs.update(key)", "self._put_row(key)"],
)
def test_a_planted_second_way_is_named(body: str) -> None:
    planted = (
        f"class S:\n    def put(self, key):\n        {body}\n    def _put_row(self, key):\n        "
        "self._runs.pop(key)\n"
    )
    named = changers(stores_as_written() | {"planted.py": planted})
    assert named == ["planted.py: put"] * ("_put_row" not in body) + ["planted.py: _put_row"], named
