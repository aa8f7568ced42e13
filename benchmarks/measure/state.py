"""State: directories to measure in, opened so that only what is measured happens."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.measure.workload import Rows, Stream
from hybridstore.state.directory import State, open_store
from hybridstore.state.policy import CheckpointPolicy

# No checkpoint unless the benchmark asks for one.
NEVER: Final = CheckpointPolicy(max_restore=timedelta(days=1))
COMMIT_ROWS: Final = 10_000


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Give a new directory and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hybridstore-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_state(folder: Path, durability: Literal["commit", "os"] = "os", **options: Any) -> State:
    """Open a state that makes no checkpoint of its own accord; by default its commits are left to the kernel."""
    return open_store(folder, durability=durability, checkpoints=NEVER, **options)


def window_of(state: State, stream: Stream, name: str = "events") -> Any:
    """Return a window store in which a whole stream is live."""
    return state.window(name, retention=stream.span_ms + 1)


def fill(store: Any, rows: Rows, state: State) -> None:
    """Put rows by column, with a commit each 10,000."""
    for at in range(0, len(rows.keys), COMMIT_ROWS):
        store.put_columns(*rows.part(at, at + COMMIT_ROWS))
        state.commit()


def size_of(folder: Path) -> int:
    """Return the bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def evict_from_cache(folder: Path) -> bool:
    """Ask the kernel to drop the files under `folder` from its cache; False where it cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
    return True
