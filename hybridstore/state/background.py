"""Background: a checkpoint that is written beside the owner's work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from changelog.files import Files
from changelog.segment import list_segments, segment_name
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
        unsynced: Path | None,
        files: Files,
    ) -> None:
        self.captures = captures
        self.since = since
        # None when the checkpoint failed; with a report, `error` is of the tidying up after it.
        self.report: CheckpointReport | None = None
        self.error: Exception | None = None
        self._work = work
        self._tidy = tidy
        self._unsynced = unsynced  # a changelog that nobody syncs
        self._files = files
        self.thread = threading.Thread(target=self.run, name="hybridstore-checkpoint", daemon=True)

    def begin(self) -> None:
        """Run in the thread; where the system gives none, the checkpoint has failed with that."""
        try:
            self.thread.start()
        except RuntimeError as error:
            self.error = error

    def join(self) -> None:
        """Return when the thread has ended, or was never begun."""
        if self.thread.ident is not None:
            self.thread.join()

    def run(self) -> None:
        """Write, tidy up, and keep what came of it."""
        try:
            if self._unsynced is not None:
                # A changelog shorter than what a checkpoint refers to is damage, so it must be on disk first.
                for first in list_segments(self._unsynced):
                    self._files.sync_path(self._unsynced / segment_name(first))
                self._files.sync_directory(self._unsynced)
            self.report = self._work()
            self._tidy()
        except Exception as error:  # handed to the owner, who raises or reports it at the next commit
            self.error = error
