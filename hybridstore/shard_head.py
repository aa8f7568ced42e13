"""Head: the small file of a shard that says which line of versions counts, and how far it has come.

    {"format": 3, "store_id", "version", "digest", "parent", "seen", "epoch", "since", "metrics", "crc"}  JSON, one line

`version` is the newest version with a segment, `seen` the version reached: batches from `version` to `seen` - 1 changed
nothing. `epoch` is a random number that changes whenever the head is taken back: whoever loaded a version before that
can tell, also when the head has come to the same version with the same digest again. The head is published by rename
after its segment, so a segment above it never counts; and a segment that it names and that is gone is an error, not a
batch without rows.
"""

from __future__ import annotations

import json
import secrets
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.errors import CorruptFrameError, UnsupportedVersionError
from recovery.line import Step

from .state.policy import Logged

HEAD_NAME: Final = "head"
CRC: Final = b',"crc":"'
FORMAT_VERSION: Final = 3
# A head is some hundred bytes; a longer file is not believed.
_MAX_BYTES: Final = 1 << 20


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
    epoch: int
    since: Since
    metrics: dict[str, Any]

    def differs(self, other: Head) -> bool:
        """True when another commit, or the way back to an earlier one, came between the two."""
        return (self.tip, self.seen, self.epoch) != (other.tip, other.seen, other.epoch)


def encode_head(head: Head) -> bytes:
    """Return the file's bytes."""
    fields: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "store_id": head.store_id.hex(),
        "version": head.tip.version,
        "digest": head.tip.digest.hex(),
        "parent": None if head.parent is None else [head.parent.version, head.parent.digest.hex()],
        "seen": head.seen,
        "epoch": head.epoch,
        "since": [*head.since.logged, head.since.wall_ms],
        "metrics": head.metrics,
    }
    text = json.dumps(fields, separators=(",", ":"))
    return text[:-1].encode() + CRC + f'{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def new_epoch() -> int:
    """Return a number that no head has had before."""
    return secrets.randbits(48)


def read_head(path: Path) -> Head | None:
    """Read a head file; None where there is none.

    Raises CorruptFrameError (damaged) or UnsupportedVersionError (another format).
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(raw)
        if fields["format"] != FORMAT_VERSION:
            advice = "upgrade hybridstore" if fields["format"] > FORMAT_VERSION else "it is of before the first release"
            raise UnsupportedVersionError(
                f"{path}: format {fields['format']}, this release reads {FORMAT_VERSION} ({advice})"
            )
        computed = f"{zlib.crc32(raw[: raw.rfind(CRC)] + b'}'):08x}"
        if fields["crc"] != computed:
            raise ValueError(f"checksum mismatch: stored {fields['crc']}, computed {computed}")
        version, seen, epoch, parent = fields["version"], fields["seen"], fields["epoch"], fields["parent"]
        since = fields["since"]
        for number in (version, seen, epoch, since[-1], *(parent or ())[:1]):
            if type(number) is not int:
                raise ValueError(f"found {number!r}, expected a whole number")
        return Head(
            bytes.fromhex(fields["store_id"]),
            Step(version, bytes.fromhex(fields["digest"])),
            None if parent is None else Step(parent[0], bytes.fromhex(parent[1])),
            seen,
            epoch,
            Since(Logged(*since[:-1]), since[-1]),
            dict(fields["metrics"]),
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptFrameError(path, 0, f"head cannot be read: {error}") from error
