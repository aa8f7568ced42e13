"""A kind of store describes itself once, in `stores/kinds.py`: nobody else asks what kind a store is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.clock import NO_TIME
from hybridstore.stores.kinds import KINDS, Kind
from tests.tools.hooks import crash

ROOT = Path(__file__).resolve().parent.parent.parent

_NAMED = re.compile(f"""["'](?:{"|".join(KINDS)})["']""")


def kinds_named(source: str, where: str) -> Iterator[str]:
    """Yield `file:line` of each comparison with, or table by, the name of a kind."""
    if not _NAMED.search(source):  # as in nine of ten files, which need not be parsed
        return
    for node in ast.walk(ast.parse(source)):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        names = [
            part.value
            for side in sides
            for part in (side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side])
            if isinstance(part, ast.Constant)
        ]
        if any(name in KINDS for name in names):
            yield f"{where}:{node.lineno if hasattr(node, 'lineno') else 0}"


def test_nobody_asks_for_a_kind_by_its_name() -> None:
    asked = [
        place
        for package in ("changelog", "recovery", "hybridstore")
        for path in sorted((ROOT / package).rglob("*.py"))
        # descriptions of windows have names of their own, two of which are those of kinds
        if path.name != "kinds.py" and path != ROOT / "hybridstore/aggregation/windows.py"
        for place in kinds_named(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]
    assert asked == []


@pytest.mark.parametrize(
    "source", ['kind == "window"', 'kind in ("session", "x")', 'match kind:\n  case "sliding": ...']
)
def test_a_planted_question_is_named(source: str) -> None:
    assert len(list(kinds_named(source, "planted.py"))) == 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_knows_its_class(kind: Kind[hs.WindowStore]) -> None:
    assert kind.store_class().kind == kind.name
    assert KINDS[kind.name] is kind


def test_what_has_expired_is_what_a_store_shows_no_more(tmp_path: Path) -> None:
    state = hs.open(tmp_path, durability="os")
    window = state.window("w", retention=100)
    window.put("k", 1, 10)
    sliding = state.sliding("s", size=100, aggregator=hs.Sum())
    sliding.add("k", 1, 10)
    session = state.session("b", retention=100)
    session.put("k", 1, start=10, end=10)
    timed = state.key_value("t", ttl=100)
    timed.put("k", 1, 10)
    stores = [window, sliding, session, timed]
    for now in (10, 109, 110, 111):
        for store in stores:
            store.advance(now)
            kind = KINDS[store.kind]
            live = kind.expired_through(store.parameters, store.stream_time) < 10
            assert [row.value for row in kind.rows(store)] == ([1] if live else []), (kind.name, now)
    plain = state.key_value("p")
    assert KINDS["key_value"].expired_through(plain.parameters, 5) == NO_TIME
    assert not KINDS["key_value"].timed(plain.parameters)
    crash(state)


def test_a_kind_is_imported_when_a_state_has_such_a_store() -> None:
    code = (
        "import sys; from hybridstore.stores.kinds import KINDS; from changelog.journal import Journal;"
        "known = lambda: sorted(m.rpartition('.')[2] for m in sys.modules if m.startswith('hybridstore.stores.') and "
        "m.rpartition('.')[2] in KINDS);assert known() == [], known();"
        "KINDS['session'].make('s', 1, {'retention_ms': 5}, Journal(lambda body: None), 8);"
        "assert known() == ['session'], known()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
