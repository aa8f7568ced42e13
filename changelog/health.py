"""Health: whether a log may still be written.

After a write or a sync that failed or was interrupted the log is poisoned: it refuses every call until the state is
reopened, because the kernel may have kept any part of the data, and a second fsync may report success for lost data.
"""

from __future__ import annotations

from pathlib import Path

from .errors import StatePoisonedError


class Health:
    """Whether the log at a place was poisoned, and by which error."""

    __slots__ = ("_failure", "_place")

    def __init__(self, place: Path | str) -> None:
        self._place = place
        self._failure: BaseException | None = None

    @property
    def poisoned(self) -> bool:
        """True after a write or sync that failed or was interrupted."""
        return self._failure is not None

    def poison(self, error: BaseException) -> StatePoisonedError:
        """Refuse every call from now on, because of `error`, unless an earlier error did. Return the error of the
        refusals.
        """
        if self._failure is None:
            self._failure = error
        return self._refusal(error)

    def check(self) -> None:
        """Raise StatePoisonedError if an earlier write or sync failed. O(1)."""
        if self._failure is not None:
            raise self._refusal(self._failure) from self._failure

    def _refusal(self, error: BaseException) -> StatePoisonedError:
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            return StatePoisonedError(
                f"{error.filename}: {error.strerror} (restore what was removed from a copy, and reopen the store)"
            )
        reason = str(error)
        if isinstance(error, OSError):
            reason = error.strerror or reason
        else:
            reason = f"interrupted by {type(error).__name__}" + (f": {reason}" if reason else "")
        return StatePoisonedError(f"{self._place}: {reason} (reopen the store: the last commit is intact)")
