"""Progress: a bar on standard error for what may take long, only on a terminal and only after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

OnProgress = Callable[[str, int, int], None]
"""What every `progress=` may be: called as progress(phase, done, total), where a total of 0 is not known."""

_PATIENCE_SECONDS = 1.0


def is_open(stream: TextIO | None) -> bool:
    """Return whether a stream can be written to: a program that runs in the background may have closed it, or have
    begun without one.
    """
    return stream is not None and not stream.closed


class Progress:
    """Use as a context manager. Call `advance` for one bar, or the object itself as progress(phase, done, total) for a
    bar for each phase. A total of 0 is one that is not known. rich is imported when the first bar appears.
    """

    def __init__(self, what: str, total: int = 0, *, shown: bool = True) -> None:
        self._what = what
        self._total = total
        self._shown = shown and is_open(sys.stderr) and sys.stderr.isatty()
        self._started = time.monotonic()
        self._done = 0
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def advance(self, by: int = 1) -> None:
        """Show that so much more is done."""
        self._done += by
        self._draw(self._what, self._done, self._total)

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Show that `done` of `total` of a phase is done."""
        self._draw(f"{self._what}: {phase}", done, total)

    def _draw(self, label: str, done: int, total: int) -> None:
        if not self._shown:
            return
        if self._bars is None:
            if time.monotonic() - self._started < _PATIENCE_SECONDS:
                return
            from rich.console import Console
            from rich.progress import Progress as Bars

            self._bars = Bars(console=Console(stderr=True), transient=True)
            self._bars.start()
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total or None)
        self._bars.update(self._tasks[label], completed=done, total=total or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()


@contextmanager
def watching(progress: OnProgress | bool | None, what: str, *, default: bool = False) -> Iterator[OnProgress]:
    """Give what an act calls as it advances: the function given as `progress`, or a bar, which is shown for True (for
    None with `default`).

    >>> from hybridstore.progress import watching
    >>> with watching(print, "rescale") as step:
    ...     step("blocks", 3, 10)
    blocks 3 10
    """
    with Progress(what, shown=default if progress is None else progress is True) as bar:
        yield progress if callable(progress) else bar
