"""Query log: what Spark itself writes under a checkpoint location, read as files. Text, first line a version, then JSON.

metadata          {"id": query id}
offsets/<batch>   written before the batch's tasks run; line 2 has batchWatermarkMs and batchTimestampMs
commits/<batch>   written after the batch
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

from ..clock import Watermark
from .errors import SparkSetupError


class BatchTime(NamedTuple):
    """The times of a batch, the same in every attempt: the query's watermark and the batch's own time, in ms."""

    watermark_ms: int
    timestamp_ms: int


def local_path(location: str) -> Path:
    """Return a checkpoint location as a path. Raises SparkSetupError for a scheme other than file:."""
    text = str(location)
    parsed = urlparse(text)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    if "://" in text or (parsed.scheme and len(parsed.scheme) > 1):
        raise SparkSetupError(
            f"checkpoint: found {text!r}, expected a path that driver and workers can read and write as files (a local or mounted file system)"
        )
    path = Path(text)
    if not path.is_absolute():
        raise SparkSetupError(f"checkpoint: found {text!r}, expected an absolute path (workers run elsewhere)")
    return path


def batch_time(checkpoint: Path, batch: int) -> BatchTime:
    """Read offsets/<batch>. Raises SparkSetupError when it is not there while the batch runs, or cannot be read."""
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SparkSetupError(
            f"{path}: missing while batch {batch} runs: either checkpoint= is not the query's checkpointLocation, "
            "or the query runs with asyncProgressTrackingEnabled=true, which reuses batch numbers and is not supported (turn it off)"
        ) from None
    try:
        fields = json.loads(lines[1])
        return BatchTime(int(fields["batchWatermarkMs"]), int(fields["batchTimestampMs"]))
    except (IndexError, KeyError, ValueError) as error:
        raise SparkSetupError(f"{path}: cannot be read as an offset log entry: {error}") from error


def watermark_of(checkpoint: Path, batch: int, now_ms: int) -> Watermark:
    """Return the watermark of a batch, `now_ms`, with that of the batch before, by which its rows are late (0 for the
    first). Raises as `batch_time`."""
    return Watermark(batch_time(checkpoint, batch - 1).watermark_ms if batch else 0, now_ms)


def next_watermark(checkpoint: Path) -> int:
    """Return the watermark (ms) that the batch behind the newest committed one will have; 0 at first.

    Raises SparkSetupError for a file that cannot be read.
    """
    newest = committed(checkpoint)
    if newest < 0:
        return 0
    path = checkpoint / "commits" / str(newest)
    try:
        return int(json.loads(path.read_text(encoding="utf-8").splitlines()[1])["nextBatchWatermarkMs"])
    except (IndexError, KeyError, ValueError) as error:
        raise SparkSetupError(f"{path}: cannot be read as a commit log entry: {error}") from error


def committed(checkpoint: Path) -> int:
    """Return the newest batch in commits/, -1 when there is none."""
    try:
        names = [entry.name for entry in (checkpoint / "commits").iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)
