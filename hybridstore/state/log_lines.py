"""Log lines: the lines of a state in the program's log, from the loggers `hybridstore` and `hybridstore.spark`.

    INFO       a new checkpoint, a claim of a state or a run, late rows of a batch
    WARNING    a fallback, a cut end, a failed checkpoint, an overtaken owner, a limit of memory that cannot be kept

If the program has not imported `logging`, a line of INFO costs nothing, because nobody could read it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

LOGGER: Final = "hybridstore"
SPARK: Final = "hybridstore.spark"


def info(message: str, *args: Any, logger: str = LOGGER) -> None:
    """Log a line about a finished step."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(logger).info(message, *args)


def warn(message: str, *args: Any, logger: str = LOGGER, error: Exception | None = None) -> None:
    """Log a warning; with `error`, also the traceback. Nothing where the interpreter ends, which imports no more."""
    if sys.is_finalizing():
        return
    from logging import getLogger  # imported here, so that a state without failures does not pay for the import

    getLogger(logger).warning(message, *args, exc_info=error)
