"""Every row of the tables of KIP-328: one test a row, against the model and against the store.

Ten tables stand here as they do in the KIP. The eleventh shows a rejected alternative, eviction by offset, so its input
is run under the adopted rule, eviction by timestamp. Sizes are characters of the value, as in the KIP; where its
buffer slots show the order of arrival, `buffered()` gives the order of eviction, and the rows here are in that order.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash
from tests.tools.model import ModelState
from tests.tools.vector_runner import SMALL

Entry = tuple[str, str, int]


@dataclass(frozen=True)
class Table:
    """Rows are (record handed in, buffer after it, what it emitted)."""

    name: str
    rows: list[tuple[Entry, list[Entry], list[Entry]]]
    bounds: dict[str, int] = field(default_factory=dict)


TABLES = [
    Table("update-at-a-later-time", [
        (("A", "x", 0), [("A", "x", 0)], []),
        (("A", "y", 1), [("A", "y", 1)], []),
    ]),
    Table("update-at-an-earlier-time", [
        (("A", "x", 1), [("A", "x", 1)], []),
        (("A", "w", 0), [("A", "w", 0)], []),
    ]),
    Table("two-keys", [
        (("A", "w", 0), [("A", "w", 0)], []),
        (("A", "x", 1), [("A", "x", 1)], []),
        (("B", "y", 2), [("A", "x", 1), ("B", "y", 2)], []),
        (("C", "z", 3), [("B", "y", 2), ("C", "z", 3)], [("A", "x", 1)]),
    ], {"max_records": 2}),
    Table("three-bytes", [
        (("A", "xx", 0), [("A", "xx", 0)], []),
        (("A", "yy", 1), [("A", "yy", 1)], []),
        (("B", "zz", 2), [("B", "zz", 2)], [("A", "yy", 1)]),
    ], {"max_bytes": 3}),
    Table("emit-after-2-ms", [
        (("A", "w", 0), [("A", "w", 0)], []),
        (("A", "x", 1), [("A", "x", 1)], []),
        (("B", "y", 2), [("A", "x", 1), ("B", "y", 2)], []),
        (("C", "z", 3), [("B", "y", 2), ("C", "z", 3)], [("A", "x", 1)]),
    ], {"time_limit": 2}),
    Table("late-event-emit-after-2-ms", [
        (("A", "w", 3), [("A", "w", 3)], []),
        (("A", "x", 1), [], [("A", "x", 1)]),
        (("B", "y", 1), [], [("B", "y", 1)]),
    ], {"time_limit": 2}),
    Table("late-event-two-keys", [
        (("A", "w", 0), [("A", "w", 0)], []),
        (("A", "x", 1), [("A", "x", 1)], []),
        (("B", "y", 2), [("A", "x", 1), ("B", "y", 2)], []),
        (("C", "z", 0), [("A", "x", 1), ("B", "y", 2)], [("C", "z", 0)]),
    ], {"max_records": 2}),
    Table("late-event-three-bytes", [
        (("A", "xx", 0), [("A", "xx", 0)], []),
        (("A", "yy", 1), [("A", "yy", 1)], []),
        (("B", "zz", 0), [("A", "yy", 1)], [("B", "zz", 0)]),
    ], {"max_bytes": 3}),
    Table("big-record-pushes-out-several", [
        (("A", "x", 0), [("A", "x", 0)], []),
        (("B", "y", 1), [("A", "x", 0), ("B", "y", 1)], []),
        (("C", "zzz", 2), [("C", "zzz", 2)], [("A", "x", 0), ("B", "y", 1)]),
    ], {"max_bytes": 3}),
    Table("record-that-fits-nowhere", [
        (("A", "x", 0), [("A", "x", 0)], []),
        (("B", "y", 1), [("A", "x", 0), ("B", "y", 1)], []),
        (("C", "zzzz", 2), [], [("A", "x", 0), ("B", "y", 1), ("C", "zzzz", 2)]),
    ], {"max_bytes": 3}),
    Table("input-of-the-rejected-table", [
        (("A", "x", 2), [("A", "x", 2)], []),
        (("B", "y", 1), [("B", "y", 1), ("A", "x", 2)], []),
        (("C", "z", 3), [("A", "x", 2), ("C", "z", 3)], [("B", "y", 1)]),
        (("C", "zz", 4), [("C", "zz", 4)], [("A", "x", 2)]),
    ], {"time_limit": 2}),
]  # fmt: skip

ROWS = [
    pytest.param(table, row, id=f"{number:02}-{table.name}-row-{row}")
    for number, table in enumerate(TABLES, 1)
    for row in range(len(table.rows))
]


def value_chars(key: Any, value: Any) -> int:
    return len(value or "")


@pytest.mark.parametrize("subject", ["model", "store"])
@pytest.mark.parametrize(("table", "row"), ROWS)
def test_table_row(table: Table, row: int, subject: str, tmp_path: Path) -> None:
    opened: Any = ModelState({}) if subject == "model" else hs.open(tmp_path / "s", durability="os", _tuning=SMALL)
    buffer = opened.suppression("kip328", timer="latest", size_of=value_chars, **table.bounds)
    for record, _, _ in table.rows[:row]:
        buffer.put(*record)
    record, after, emitted = table.rows[row]
    assert buffer.put(*record) == emitted
    assert list(buffer.buffered()) == after
    opened.close()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table_over_restarts(table: Table, tmp_path: Path) -> None:
    """The same rows with a crash after every commit: what a table shows is state, not memory of the process."""
    for record, after, emitted in table.rows:
        opened: Any = hs.open(tmp_path / "s", durability="os", _tuning=SMALL)
        buffer = opened.suppression("kip328", timer="latest", size_of=value_chars, **table.bounds)
        assert buffer.put(*record) == emitted
        assert list(buffer.buffered()) == after
        opened.commit()
        crash(opened)
