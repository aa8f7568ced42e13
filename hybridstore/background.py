"""Background: a checkpoint that is written beside the owner's work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from recovery.block import StoreCapture
from recovery.write import CheckpointReport

from .policy import Logged


class BackgroundCheckpoint:
    """A checkpoint in progress: the thread, what it was given, and what came of it."""

    def __init__(
        self,
        work: Callable[[], CheckpointReport],
        captures: list[StoreCapture],
        since: Logged,
        tidy: Callable[[], object],
    ) -> None:
        self.captures = captures
        self.since = since
        # None when the checkpoint failed; with a report, `error` is of the tidying up after it.
        self.report: CheckpointReport | None = None
        self.error: Exception | None = None
        self._work = work
        self._tidy = tidy
        self.thread = threading.Thread(target=self.run, name="hybridstore-checkpoint", daemon=True)

    def run(self) -> None:
        """Write, tidy up, and keep what came of it."""
        try:
            self.report = self._work()
            self._tidy()
        except Exception as error:  # handed to the owner, who raises or reports it at the next commit
            self.error = error
