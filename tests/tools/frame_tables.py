"""Frames as a table of an output, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridstore.spark.frames import FrameSettings, FrameTable


def to_table(frames: Iterable[Any], schema: Any, output: Any, settings: FrameSettings, *, joined: bool = False) -> Any:
    """Return frames that a function gave as a table."""
    table = FrameTable(schema, output, settings, joined=joined)
    table.extend(frames)
    return table.table()
