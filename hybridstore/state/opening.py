"""Opening: `hybridstore.open`, and its patience with a writer that is at work while a state is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from changelog.files import FILE_MODE, Files
from recovery.steady import steadily

from .directory import At, Durability, HybridStore
from .policy import CheckpointPolicy


def open_store(
    path: str | os.PathLike[str],
    *,
    durability: Durability = "commit",
    lazy: bool = True,
    checkpoint: CheckpointPolicy | None = None,
    memory_limit: int | None = None,
    debug: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    at: At = None,
    file_mode: int = FILE_MODE,
    _tuning: dict[str, int] | None = None,
    _files: Files | None = None,
) -> HybridStore:
    """Open the state directory `path`, creating it or restoring what it holds.

    durability  "commit": commit() returns when the data is on disk, and survives power loss; "os": when the kernel has
                it, and survives a killed process only
    lazy        blocks of the checkpoint load when touched (the first read comes in milliseconds); False reads, checks
                and decodes them all now, so that no later read waits for the disk or a decoder
    checkpoint  when to checkpoint, by default so that a restart takes under a second
    memory_limit  bytes that the stores of this process may hold; the smallest limit of any open state governs. Past it,
                a commit writes a checkpoint and lets everything go cold, to be loaded again when it is touched: state
                may exceed memory
    debug       find values that were changed in place after a put (slow)
    progress    called as progress(phase, done, total) during the restore; None draws a bar on a terminal after a second
    at          open this retained version, or the "newest", read-only and without the lock (also beside a live writer)
    file_mode   what files are created with, less the umask: 0o644 lets everybody on the machine read the state, 0o600
                only its owner. Directories also get the right to enter for whoever may read; what exists keeps its mode

    Raises StateDirectoryLockedError, ForeignFileError, UnsupportedVersionError, or a RestoreError or CorruptFrameError
    when committed data would be lost, and StateDirectoryError for what the operating system refuses. See
    `HybridStore.restore_report` for what was done. O(blocks + tail).
    """
    if type(file_mode) is not int or file_mode & ~0o666 or file_mode & 0o600 != 0o600:
        raise ValueError(
            f"file_mode: found {file_mode!r}, expected rights to read and write such as 0o600, the owner's among them"
        )
    open_it = partial(
        HybridStore,
        Path(path),
        durability=durability,
        lazy=lazy,
        checkpoint=checkpoint,
        memory_limit=memory_limit,
        debug=debug,
        progress=progress,
        at=at,
        files=_files or Files(file_mode),
        tuning=_tuning,
    )
    # A writer may prune what was listed before it is read: then there is something newer to read.
    return open_it() if at is None else steadily(Path(path), open_it)
