"""Progress: a bar on standard error for what may take long, only on a terminal and only after a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

_PATIENCE_SECONDS = 1.0


class Progress:
    """Use as a context manager and call `advance`; `total` may be 0 when it is not known. rich is imported when the bar appears."""

    def __init__(self, what: str, total: int, *, shown: bool = True) -> None:
        self._what = what
        self._total = total
        self._shown = shown and sys.stderr.isatty()
        self._started = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def advance(self, by: int = 1) -> None:
        """Say that so much more is done."""
        self._done += by
        if not self._shown:
            return
        if self._bar is None:
            if time.monotonic() - self._started < _PATIENCE_SECONDS:
                return
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total or None)
        self._bar.update(self._task, completed=self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
