"""Python values: rows with Python's own values in place of numpy's and pandas', which no state can keep.

    np.int64(3) ─▶ 3     np.float32(0.5) ─▶ 0.5     np.datetime64, Timestamp ─▶ datetime     NaT, pandas.NA ─▶ None

Times are in microseconds, rounded down, as those of Arrow columns. What has no value of Python's own, such as an array
or a duration, stays and is refused where it would be kept. A process without numpy does nothing here.
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any


def may_have_others() -> bool:
    """Whether there can be values of numpy's or pandas' in this process. O(1)."""
    return "numpy" in sys.modules


def python_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return dicts with Python's values; the list itself if they have no others. O(cells), at C speed then."""
    kinds = set(map(type, chain.from_iterable(map(dict.values, rows))))
    return list(map(python_row, rows)) if any(map(_is_other, kinds)) else rows


def python_row(row: Any) -> Any:
    """Return a mapping with Python's values; the mapping itself if it has no others. O(cells)."""
    if not any(map(_is_other, map(type, row.values()))):
        return row
    return {name: python_value(value) for name, value in row.items()}


@cache
def _is_other(kind: Any) -> bool:
    return kind.__module__.partition(".")[0] in ("numpy", "pandas")


def python_value(value: Any) -> Any:
    """Return Python's value of a value, which itself has no others inside. O(1)."""
    kind: Any = type(value)
    if not _is_other(kind):
        return value
    if kind.__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, datetime):  # a Timestamp
        return value.to_pydatetime(warn=False)  # type: ignore[attr-defined]
    if kind.__name__ == "datetime64":
        value = value.astype("datetime64[us]")
    return value.item() if isinstance(value, sys.modules["numpy"].generic) else value
