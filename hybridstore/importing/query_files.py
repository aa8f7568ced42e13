"""Query files: how far an old query of Spark's has run, and the files by which a new query continues from there.

    old   commits/N     ─▶ the watermark of the next batch         new   offsets/0, commits/0
          offsets/N     ─▶ watermark, time, a line for each source        metadata, sources/ (copied)
          sources/      ─▶ what sources have noted themselves

A new query begins behind its newest batch in `commits/`, so batch 0 represents all that the old query has done. A batch
of the old query that is in `offsets/` only is void: the new query reads its rows again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from changelog.storage import Storage
from recovery.layout import METADATA

from ..spark.query_log import NAMED, BatchTime, batch_time, committed, next_watermark, planned
from .report import ImportRefusedError

# The versions of Spark's logs of offsets: lines in the order of the sources, or lines that begin with their names.
IN_ORDER: Final = "v1"
BY_NAME: Final = "v2"
_COMMITS: Final = "v1"
_OFFSETS: Final = "offsets/0"
# What Spark writes for a source without an offset yet.
_NO_OFFSET: Final = "-"
# The settings that an existing checkpoint pins: what its watermark is, and whether its sources have names.
_PINNED: Final = ("spark.sql.streaming.multipleWatermarkPolicy", NAMED)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a query has run: its times, the watermark of the next batch (ms), and a line for each source.

    `settings` are those that the query has pinned, and `version` is that of its log of offsets.
    """

    batch: int
    times: BatchTime
    next_watermark_ms: int
    sources: list[str]
    settings: dict[str, str] = field(default_factory=dict)
    version: str = IN_ORDER

    def plain(self) -> list[Any]:
        """Return the fields as JSON has them."""
        return [self.batch, list(self.times), self.next_watermark_ms, self.sources, self.settings, self.version]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Standing:
        """Return the standing of what `plain` has returned."""
        batch, times, *others = plain
        return cls(batch, BatchTime(*times), *others)


def standing_of(checkpoint: Storage) -> Standing:
    """Return how far a stopped query has run. Raises ImportRefusedError and SparkSetupError."""
    batch = committed(checkpoint)
    if batch < 0:
        raise ImportRefusedError(
            f"{checkpoint.url}: found no commits/, expected the checkpointLocation of a query that has done a batch"
        )
    name = f"offsets/{batch}"
    version, *lines = checkpoint.get(name).decode().splitlines()
    if version not in (IN_ORDER, BY_NAME):
        raise ImportRefusedError(
            f"{checkpoint.url}/{name}: found version {version!r}, expected {IN_ORDER!r} or {BY_NAME!r}: state of "
            "such a query cannot be moved"
        )
    times = batch_time(checkpoint, batch)
    conf = json.loads(lines[0]).get("conf", {})
    settings = {name: conf[name] for name in _PINNED if name in conf}
    return Standing(batch, times, next_watermark(checkpoint), lines[1:], settings, version)


def check_new(checkpoint: Storage, *, begun: bool = False) -> None:
    """Raise ImportRefusedError if a query has begun at a location. `begun`: a move into it was broken off, and a query
    that was started there has failed in batch 0.
    """
    if planned(checkpoint) >= begun or committed(checkpoint) >= 0:
        raise ImportRefusedError(
            f"{checkpoint.url}: found offsets/ or commits/ of a query, expected a new checkpointLocation (nothing was "
            "changed)"
        )


def query_id(checkpoint: Storage) -> str:
    """Return the id of the query of a new location, which is taken at the first call."""
    checkpoint.create(METADATA, json.dumps({"id": str(uuid.uuid4())}).encode())
    return str(json.loads(checkpoint.get(METADATA))["id"])


def begin_behind(checkpoint: Storage, standing: Standing, old: Storage | None) -> None:
    """Write the files by which a query at `checkpoint` begins with batch 1, `commits/0` last.

    standing  where the query begins, with a line for each of its sources, ticks included
    old       the location whose notes of sources are copied
    """
    if old is not None:
        for name in old.list("sources/"):
            if not name.rpartition("/")[2].startswith("."):
                checkpoint.create(name, old.get(name))
    # of a query that has failed in batch 0, with Spark's checksum
    checkpoint.delete([_OFFSETS, "offsets/.0.crc"])
    entry: dict[str, Any] = {
        "batchWatermarkMs": standing.times.watermark_ms,
        "batchTimestampMs": standing.times.timestamp_ms,
        "conf": standing.settings,
    }
    if standing.version == BY_NAME:
        entry["sourceMetadataInfo"] = {}
    checkpoint.create(_OFFSETS, "\n".join([standing.version, json.dumps(entry), *standing.sources]).encode())
    done = {"nextBatchWatermarkMs": standing.next_watermark_ms}
    checkpoint.create("commits/0", "\n".join([_COMMITS, json.dumps(done)]).encode())


def unread(sources: int) -> list[str]:
    """Return the lines of so many sources of which nothing was read."""
    return [_NO_OFFSET] * sources


def with_ticks(lines: Sequence[str], ticks: Sequence[dict[str, int] | None]) -> list[str]:
    """Return a line for each source of a query: the next of `lines` for None, and the first offset of ticks."""
    following = iter(lines)
    return [next(following) if offset is None else json.dumps(offset) for offset in ticks]
