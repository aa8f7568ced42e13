"""Collector: Python's garbage collector held while many records go in.

Stored records never form cycles, yet the collector walks them again and again while they are put: measured, it then takes more
time than the puts themselves. It is only put off: nothing is frozen, and what the caller has set stays set.
"""

from __future__ import annotations

import gc


class collector_held:
    """Hold the garbage collector inside a `with` block; one that was off stays off, also when blocks are nested. O(1)."""

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()
