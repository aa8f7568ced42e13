"""Log lines: what a state tells the program's log, at the loggers `hybridstore` and `hybridstore.spark`.

    INFO       a checkpoint that was made, a state or a run that was claimed, late rows of a batch
    WARNING    a fallback, a cut end, a checkpoint that failed, an owner that was overtaken

A line of INFO costs a program that has not imported `logging` nothing: nobody could read it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

LOGGER: Final = "hybridstore"
SPARK: Final = "hybridstore.spark"


def info(message: str, *args: Any, logger: str = LOGGER) -> None:
    """Log a line that says what was done."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(logger).info(message, *args)


def warn(message: str, *args: Any, logger: str = LOGGER, error: Exception | None = None) -> None:
    """Log a line that somebody should read; with `error` its traceback, too."""
    from logging import getLogger  # a state that never fails does not pay for the import

    getLogger(logger).warning(message, *args, exc_info=error)
