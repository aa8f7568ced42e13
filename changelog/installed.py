"""Libraries that only some jobs need, and that are imported where those use them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import HybridStoreError


def installed(where: object, library: str, remedy: str | None = None) -> Any:
    """Return a library, imported. Raises HybridStoreError, which names `where` and the `remedy` (None: to install the
    library), if it is missing; an error of the library's own imports stays what it is.
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise HybridStoreError(
            f"{where}: found no {library}, expected it to be installed ({remedy or f'pip install {library}'})"
        ) from None
