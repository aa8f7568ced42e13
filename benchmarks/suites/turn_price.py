"""Turn price: what the check of the owning thread costs a put, for key-value, window and session stores.

    python -m benchmarks.suites.turn_price [--puts 20000] [--rounds 40]

Each put runs as it is, and without its lines of the turn (`changelog.turn`), which are taken out of its syntax tree.
Both put the same records into two states in turns, with a commit at the end of each; the records are compared at the
end. Processor time of the thread; the ratio is the median of all pairs.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import statistics
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any, Final

import hybridstore as hs
from benchmarks.measure.timing import WrongAnswerError

KEYS: Final = 5_000
TIME: Final = 60_000
_LINES: Final = frozenset({"turn", "before"})


def without_turn(method: Callable[..., None]) -> Callable[..., None]:
    """Return a method of a store without the lines of its turn. Raises WrongAnswerError if it has other lines of a turn
    than were known here.
    """
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    body = [statement for statement in tree.body if not _is_of_turn(statement)]
    match body[-1]:
        case ast.Try(body=inner, handlers=[], orelse=[], finalbody=[last]) if _is_of_turn(last):
            tree.body = [*body[:-1], *(statement for statement in inner if not _is_of_turn(statement))]
    if any(isinstance(node, ast.Name) and node.id in _LINES for node in ast.walk(tree)):
        raise WrongAnswerError(f"{method.__qualname__}: found lines of a turn that are not at its begin and its end")
    names: dict[str, Any] = {}
    exec(compile(ast.Module([tree], []), "without_turn", "exec"), sys.modules[method.__module__].__dict__, names)
    without: Callable[..., None] = names[tree.name]
    return without


def _is_of_turn(statement: ast.stmt) -> bool:
    """Whether a statement is `turn = ...`, `before = ...` or `turn.busy = ...`."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)] | [ast.Attribute(value=ast.Name(id=name), attr="busy")]):
            return name in _LINES
    return False


def opened(state: hs.State, kind: str) -> Any:
    """Return the store of a kind."""
    if kind == "key-value":
        return state.key_value("s")
    return (state.window if kind == "window" else state.session)("s", retention="1 hour")


def measure(kind: str, puts: int, rounds: int, folder: Path) -> tuple[float, float, float]:
    """Return the nanoseconds of a put with and without the check, and the median of their ratios."""
    states = [hs.open(folder / f"{kind}-{name}", durability="os") for name in ("with", "without")]
    stores = [opened(state, kind) for state in states]
    put = type(stores[0]).put
    ways = [put, without_turn(put)]
    keys = [f"k{number % KEYS}" for number in range(puts)]
    times: list[list[float]] = [[], []]

    def put_all(at: int) -> None:
        way, store = ways[at], stores[at]
        begun = thread_time()
        if kind == "key-value":
            for number, key in enumerate(keys):
                way(store, key, number)
        elif kind == "window":
            for number, key in enumerate(keys):
                way(store, key, number, TIME)
        else:
            for number, key in enumerate(keys):
                way(store, key, number, TIME, TIME)
        states[at].commit()
        times[at].append(thread_time() - begun)

    gc.disable()
    try:
        for turn in range(rounds + 2):
            for at in (0, 1) if turn % 2 else (1, 0):
                put_all(at)
    finally:
        gc.enable()
    records = [list(store.all()) for store in stores]
    for state in states:
        state.close()
    if records[0] != records[1] or len(records[0]) != min(KEYS, puts):
        raise WrongAnswerError(f"{kind}: found other records with the check than without")
    pairs = list(zip(times[0][2:], times[1][2:], strict=True))
    each = [statistics.median(column) / puts * 1e9 for column in zip(*pairs, strict=True)]
    return each[0], each[1], statistics.median(a / b for a, b in pairs)


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--puts", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        for kind in ("key-value", "window", "session"):
            checked, bare, ratio = measure(kind, given.puts, given.rounds, Path(folder))
            print(f"{kind}: {checked:.0f} ns a put, {bare:.0f} without the check: x{ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
