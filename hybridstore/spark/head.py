"""Head: the small file of a shard that says which line of versions counts, and how far it has come.

    {"format": 2, "store_id", "version", "digest", "parent", "seen", "since", "metrics", "crc"}     JSON, one line

`version` is the newest version with a segment, `seen` the version reached: batches from `version` to `seen` - 1 changed
nothing. The head is published by rename after its segment, so a segment above it never counts; and a segment that it names and
that is gone is an error, not a batch without rows.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.errors import CorruptFrameError, UnsupportedVersionError
from changelog.journal import EMPTY_DIGEST

from ..policy import Logged

HEAD_NAME: Final = "head"
FORMAT_VERSION: Final = 2


class Step(NamedTuple):
    """A version on a line: its number and its digest; (0, zeros) is the empty state."""

    version: int
    digest: bytes


EMPTY: Final = Step(0, EMPTY_DIGEST)


class Since(NamedTuple):
    """What was logged since the last checkpoint was begun, and when that was (wall clock, ms; 0: never)."""

    logged: Logged = Logged()
    wall_ms: int = 0


class Head(NamedTuple):
    """The content of a head file. `parent` is the step before `tip`, or None when only the tip's segment says."""

    store_id: bytes
    tip: Step
    parent: Step | None
    seen: int
    since: Since
    metrics: dict[str, Any]


def encode_head(head: Head) -> bytes:
    """Return the file's bytes."""
    fields: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "store_id": head.store_id.hex(),
        "version": head.tip.version,
        "digest": head.tip.digest.hex(),
        "parent": None if head.parent is None else [head.parent.version, head.parent.digest.hex()],
        "seen": head.seen,
        "since": [*head.since.logged, head.since.wall_ms],
        "metrics": head.metrics,
    }
    text = json.dumps(fields, separators=(",", ":"))
    return f'{text[:-1]},"crc":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def read_head(path: Path) -> Head | None:
    """Read a head file; None where there is none. Raises CorruptFrameError (damaged) or UnsupportedVersionError (newer)."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    marker = raw.rfind(b',"crc":"')
    try:
        if marker < 0:
            raise ValueError("no checksum")
        fields = json.loads(raw)
        if fields["format"] != FORMAT_VERSION:
            advice = "upgrade hybridstore" if fields["format"] > FORMAT_VERSION else "it is of before the first release"
            raise UnsupportedVersionError(
                f"{path}: format {fields['format']}, this release reads {FORMAT_VERSION} ({advice})"
            )
        computed = f"{zlib.crc32(raw[:marker] + b'}'):08x}"
        if fields["crc"] != computed:
            raise ValueError(f"checksum mismatch: stored {fields['crc']}, computed {computed}")
        parent = fields["parent"]
        return Head(
            bytes.fromhex(fields["store_id"]),
            Step(fields["version"], bytes.fromhex(fields["digest"])),
            None if parent is None else Step(parent[0], bytes.fromhex(parent[1])),
            fields["seen"],
            Since(Logged(*fields["since"][:-1]), fields["since"][-1]),
            fields["metrics"],
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptFrameError(path, 0, f"head cannot be read: {error}") from error
