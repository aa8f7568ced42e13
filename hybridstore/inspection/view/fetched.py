"""Fetched: a state in an object store, as a directory to be looked into.

Its objects are copied into a directory of its own in the temporary directory, private to its owner, which is removed
when the process ends. Of a Spark checkpoint location only what is below `hybridstore/` is copied. Nothing outside of
that directory is ever written, whatever objects are called.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from changelog.storage import Storage, is_url, storage_at
from recovery.layout import SPARK_FOLDER

from ...errors import ForeignFileError
from ..show.output import counted, say, size_text

# So many objects are asked for at a time: a request waits for the store, not for this machine.
_SIDE_BY_SIDE = 16
# What was fetched by this process: URL -> the directory.
_fetched: dict[str, Path] = {}


def local(location: str | os.PathLike[str]) -> Path:
    """Return a path to look into: the location itself, or a copy of what is below a URL. O(bytes) the first time.

    Raises ForeignFileError for a URL with nothing below it, HybridStoreError or OSError when it cannot be read.
    """
    if not is_url(location):
        return Path(location)
    url = os.fspath(location).rstrip("/")
    if url not in _fetched:
        folder = Path(tempfile.mkdtemp(prefix="hybridstore-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        target = folder / (url.rpartition("/")[2] or "state")
        if url.rstrip("/").rpartition("/")[0].endswith(f"/{SPARK_FOLDER}"):
            # an operator is known by the folder that it is in
            target = folder / SPARK_FOLDER / target.name
        fetch(storage_at(url), url, target)
        _fetched[url] = target
    return _fetched[url]


def fetch(storage: Storage, url: str, target: Path) -> None:
    """Copy the objects of a storage into a new directory. Objects that are deleted meanwhile are passed over."""
    names = storage.list(f"{SPARK_FOLDER}/") or storage.list()
    names = [name for name in names if _plain(name)]
    if not names:
        raise ForeignFileError(f"{url}: nothing is below it (give a state's location, or a query's checkpointLocation)")

    def copy(name: str) -> int:
        try:
            content = storage.get(name)
        except FileNotFoundError:  # cleared away by its writer: then nothing that is left needs it
            return 0
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return len(content)

    target.mkdir(parents=True)
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
        size = sum(threads.map(copy, names))
    say(
        f"{url}: {counted(len(names), 'object')}, {size_text(size)} copied into {target.parent}, to be removed when "
        "done"
    )


def _plain(name: str) -> bool:
    """True for a name that stays in its directory: no object of ours has another one."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\x00" not in name and "\\" not in name
