"""The command `load`: a state directory of the text that `dump` wrote.

The text is read once, line by line; whenever enough of it is in memory, it goes into the checkpoint that is being made, so that
memory does not grow with the state. A text that proves not to be a whole dump leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final

from changelog.journal import EMPTY_DIGEST
from changelog.segment import HEADER_BYTES, Position
from recovery.block import BucketChange, Columns, StoreCapture
from recovery.checkpoint import CheckpointReader, checkpoint_name
from recovery.restore import CHANGELOG, CHECKPOINTS
from recovery.write import write_checkpoint

from ...errors import HybridStoreError
from ...progress import Progress
from .. import options as o
from ..parameters import Argument, Option
from ..rebuild import claim, write_segment
from ..show.exact_text import decode
from ..show.output import say
from .dump import FORMAT_VERSION

# So much text is in memory before it goes into the checkpoint.
ROUND_BYTES: Final = 16 << 20
# What foreign text can bring about in code that takes it for a dump.
_FOREIGN: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError)
_Entry = tuple[list[list[int]], list[Any]]


class DumpError(HybridStoreError):
    """A text is not a dump, was cut short, or was edited."""


class _Store:
    """A store as the first line declares it, and what has been read of it since the last round."""

    def __init__(self, fields: dict[str, Any]) -> None:
        number, kind = fields["number"], fields["kind"]
        if type(number) is not int or not 0 < number < 1 << 28 or type(kind) is not str:
            raise ValueError(f"store {number!r} of kind {kind!r}")
        self.number, self.kind = number, kind
        self.name, self.parameters, self.state = (decode(fields[name]) for name in ("name", "parameters", "state"))
        if type(self.name) is not str or type(self.parameters) is not dict or type(self.state) is not dict:
            raise ValueError(f"store {number}: a field of the wrong type")
        self.width: int | None = None
        self.buckets: dict[int, dict[Any, _Entry]] = {}

    def add(self, fields: dict[str, Any]) -> None:
        bucket, times, values = fields["b"], fields["t"], [decode(value) for value in fields["v"]]
        if type(bucket) is not int or not values or any(len(column) != len(values) for column in times):
            raise ValueError("a line whose times and values do not fit each other")
        if self.width is None:
            self.width = len(times)
        if len(times) != self.width:
            raise ValueError(f"found {len(times)} times for each value, expected {self.width}")
        self.buckets.setdefault(bucket, {})[decode(fields["k"])] = (times, values)

    def capture(self) -> StoreCapture:
        changed = {bucket: BucketChange(self._columns(rows), set(), False) for bucket, rows in self.buckets.items()}
        self.buckets = {}
        return StoreCapture(self.number, self.name, self.kind, self.parameters, self.state, changed)

    def _columns(self, rows: dict[Any, _Entry]) -> Columns:
        keys = sorted(rows)
        entries = [rows[key] for key in keys]
        counts = [len(values) for _, values in entries]
        ints = tuple(
            array("q", [ts for times, _ in entries for ts in times[column]]) for column in range(self.width or 0)
        )
        values = [value for _, values in entries for value in values]
        return Columns(keys, counts if len(values) != len(keys) else None, ints, values)


class _Loading:
    """The directory that is being made of a dump with this first line."""

    def __init__(self, header: dict[str, Any], path: Path) -> None:
        if header.get("hybridstore_dump") != FORMAT_VERSION:
            raise ValueError(f"first line: expected a dump of format {FORMAT_VERSION}")
        self.version, self.settings = header["version"], decode(header["settings"])
        self.digest = bytes.fromhex(header["digest"])
        if type(self.version) is not int or not 0 <= self.version < 1 << 62 or len(self.digest) != len(EMPTY_DIGEST):
            raise ValueError("first line: the version or its digest")
        if type(self.settings) is not dict or not all(type(name) is str for name in self.settings):
            raise ValueError("first line: the settings")
        self.stores = {one["number"]: _Store(one) for one in header["stores"]}
        self._path = path
        self._owner = os.urandom(16)
        self._previous: CheckpointReader | None = None
        self._text = 0
        self._was_there = path.exists()
        claim(path)
        for name in (CHANGELOG, CHECKPOINTS):
            (path / name).mkdir()

    def add(self, fields: dict[str, Any], size: int) -> None:
        """Take a line of so many bytes."""
        self.stores[fields["s"]].add(fields)
        self._text += size
        if self._text > ROUND_BYTES:
            self._write(self.digest)

    def _write(self, digest: bytes) -> None:
        folder = self._path / CHECKPOINTS
        self._text = 0
        write_checkpoint(
            folder,
            store_id=self._owner,
            version=self.version,
            digest=digest,
            position=Position(self.version + 1, HEADER_BYTES, 0),
            settings=self.settings,
            captures=[store.capture() for store in self.stores.values()],
            previous=self._previous,
        )
        if self._previous is not None:
            self._previous.close()
        self._previous = CheckpointReader(folder / checkpoint_name(self.version))

    def finish(self, digest: bytes) -> None:
        """Write what is left; only now can the directory be opened."""
        if self.version:
            self._write(digest)
            write_segment(self._path, self._owner, self.version, digest)
        elif any(store.buckets for store in self.stores.values()):
            raise ValueError("records at version 0")
        self.close()

    def close(self) -> None:
        """Let go of the checkpoint."""
        if self._previous is not None:
            self._previous.close()
            self._previous = None

    def undo(self) -> None:
        """Remove what was written."""
        self.close()
        for name in (CHANGELOG, CHECKPOINTS):
            shutil.rmtree(self._path / name)
        if not self._was_there:
            self._path.rmdir()


def load_lines(lines: Iterable[str], path: Path, *, edited: bool = False) -> int:
    """Write the state that a dump describes into a new directory and return its version.

    Raises DumpError for a text that is not a whole dump or was edited (unless `edited`), OccupiedError when something is there.
    O(records) of time; memory for ROUND_BYTES of text.
    """
    hashed, count = blake2b(digest_size=16), 0
    loading: _Loading | None = None
    ended: dict[str, Any] | None = None
    try:
        for line in lines:
            text = line.rstrip("\n")
            if not text.strip():
                continue
            if ended is not None:
                raise ValueError("text after the last line of a dump")
            fields = json.loads(text)
            if loading is None:
                loading = _Loading(fields, path)
            elif "end" in fields:
                ended = fields
                continue
            else:
                loading.add(fields, len(text))
            hashed.update(text.encode() + b"\n")
            count += 1
        if loading is None:
            raise ValueError("no text")
        if ended is None and not edited:
            raise ValueError("the last line is missing: the dump was cut short")
        whole = ended is not None and (ended["end"], ended["blake2b"]) == (count, hashed.hexdigest())
        if not whole and not edited:
            raise ValueError("the text was edited (load it with --edited: the state then has a digest of its own)")
        loading.finish(loading.digest if whole else hashed.digest())
    except BaseException as error:
        if loading is not None:
            loading.undo()
        if isinstance(error, _FOREIGN):
            raise DumpError(f"not a dump that can be loaded: line {count + 1}: {error}") from error
        raise
    return int(loading.version)


def load(
    source: Annotated[str, Argument(metavar="DUMP", help="A file that `dump` wrote, or - for standard input.")],
    to: Annotated[Path, Argument(metavar="NEW", help="The state directory to create.", show_default=False)],
    edited: Annotated[bool, Option("--edited", help="The text was changed on purpose.")] = False,
    write: Annotated[bool, Option("--write", help="Write; without it nothing is done.")] = False,
    no_progress: o.NoProgress = False,
    debug: o.Debug = False,
) -> int:
    """Make a state directory of a dump. It is new, holds one version, and goes on from there."""
    if not write:
        raise o.UsageError(f"load writes {to}: say --write")
    if source == "-":
        version = load_lines(sys.stdin, to, edited=edited)
    else:
        file = Path(source)
        with (
            file.open(encoding="utf-8") as lines,
            Progress("loading", file.stat().st_size, shown=not no_progress) as progress,
        ):
            version = load_lines(_told(lines, progress), to, edited=edited)
    say(f"{to}: version {version} written")
    return o.FINE


def _told(lines: Iterable[str], progress: Progress) -> Iterator[str]:
    for line in lines:
        progress.advance(len(line))
        yield line
