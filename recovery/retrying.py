"""Retrying: reading files while a writer adds, replaces and removes files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from changelog.errors import HybridStoreError, UnsupportedVersionError

from .errors import RestoreError
from .layout import CHANGELOG, CHECKPOINTS, PACKS

TRIES: Final = 30
_WAIT_SECONDS: Final = 0.02
Signature = list[tuple[str, int, int]]
T = TypeVar("T")


def signature(path: Path) -> Signature:
    """Return names, sizes and times of the files of a state directory: if two results are equal, no writer changed a
    file in between. O(files).
    """
    return signature_of([file for name in (CHANGELOG, CHECKPOINTS, PACKS) for file in (path / name).glob("*")])


def signature_of(files: list[Path]) -> Signature:
    """Return names, sizes and times of files; absent files are left out."""
    entries = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        entries.append((file.name, status.st_size, status.st_mtime_ns))
    return sorted(entries)


def retry_while_changing(
    path: Path | str,
    look: Callable[[], T],
    *,
    failed: Callable[[T], bool] = lambda result: False,
    sign: Callable[[], Signature] | None = None,
    late: bool = False,
) -> T:
    """Return `look()`, and try again while it fails or raises and files change meanwhile. The last failure is final.

    An OSError of the last try becomes a RestoreError. `sign` gives the signature of what is looked at (default: of the
    state directory `path`); `late`: signing is so expensive that the first try omits it, and a failure of the first try
    is always followed by a second try. At most 30 tries, with a fiftieth of a second between them.
    """
    sign = sign or (lambda: signature(Path(path)))

    def signed() -> Signature | None:
        # A failed listing gives no signature: the result or the error of `look` says more.
        try:
            return sign()
        except OSError:
            return None

    for tries in range(TRIES, 0, -1):
        before = None if late and tries == TRIES else signed()
        try:
            result = look()
        except UnsupportedVersionError:
            raise
        except (OSError, HybridStoreError) as error:
            if tries > 1 and signed() != before:
                time.sleep(_WAIT_SECONDS)
                continue
            if isinstance(error, OSError):
                raise RestoreError(
                    f"{path}: cannot be read: {error} (check permissions and the disk, then retry)"
                ) from error
            raise
        if tries == 1 or not failed(result) or signed() == before:
            return result
        time.sleep(_WAIT_SECONDS)
    raise AssertionError("unreachable")  # pragma: no cover
