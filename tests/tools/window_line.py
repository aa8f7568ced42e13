"""A line of checkpoints of one window store, for tests of their packs."""

from array import array
from typing import Any

from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import Storage
from recovery.block import BucketChange, Columns, StoreCapture
from recovery.checkpoint import CheckpointReader
from recovery.write import CheckpointReport, write_checkpoint
from tests.tools.sizes import SMALL_PARTS

Rows = dict[int, dict[str, tuple[int, Any]]]  # bucket -> key -> (time, value)


def columns(rows: dict[str, tuple[int, Any]]) -> Columns:
    keys = sorted(rows)
    return Columns(keys, None, (array("q", [rows[key][0] for key in keys]),), [rows[key][1] for key in keys])


class Line:
    """A line of checkpoints of one store, and what the store should hold."""

    def __init__(self, storage: Storage, **sizes: int) -> None:
        self.storage = storage
        self.sizes = SMALL_PARTS._replace(**{"block_records": 8, **sizes})
        self.version = 0
        self.pack_bytes: int | None = None
        self.rows: Rows = {}
        self.changed: dict[int, set[str]] = {}
        self.dropped: set[int] = set()
        self.fresh: set[int] = set()
        self.reader: CheckpointReader | None = None

    def put(self, bucket: int, key: str, ts: int, value: Any) -> None:
        if bucket not in self.rows:
            self.fresh.add(bucket)
            self.dropped.discard(bucket)
        self.rows.setdefault(bucket, {})[key] = (ts, value)
        self.changed.setdefault(bucket, set()).add(key)

    def remove(self, bucket: int, key: str) -> None:
        if self.rows.get(bucket, {}).pop(key, None) is not None:
            self.changed.setdefault(bucket, set()).add(key)

    def drop(self, bucket: int) -> None:
        if self.rows.pop(bucket, None) is not None:
            self.changed.pop(bucket, None)
            self.fresh.discard(bucket)
            self.dropped.add(bucket)

    def capture(self, expired_through: int = -1) -> StoreCapture:
        changed = {}
        for bucket, keys in self.changed.items():
            rows = self.rows[bucket]
            in_bucket = {key: rows[key] for key in (rows if bucket in self.fresh else keys) if key in rows}
            changed[bucket] = BucketChange(columns(in_bucket), keys - in_bucket.keys(), bucket in self.fresh)
        return StoreCapture(
            1, "it", "window", {}, {"stream_time": -1}, changed, self.dropped, expired_through=expired_through
        )

    def checkpoint(self, expired_through: int = -1) -> CheckpointReport:
        self.version += 1
        report = write_checkpoint(
            self.storage,
            identity=Identity(bytes(16)),
            version=self.version,
            digest=bytes(16),
            position=Position(0, 0, 0),
            settings={},
            captures=[self.capture(expired_through)],
            previous=self.reader,
            sizes=self.sizes,
            pack_bytes=self.pack_bytes,
        )
        self.changed, self.dropped, self.fresh = {}, set(), set()
        self.reader = CheckpointReader(self.storage, report.name)
        return report

    def content(self) -> Rows:
        assert self.reader is not None
        rows: Rows = {}
        lines = self.reader.directory(1)
        for entry in lines:
            block = lines.load(entry)
            assert (entry.first, entry.last, entry.records) == (block.keys[0], block.keys[-1], len(block))
            in_bucket = rows.setdefault(entry.bucket, {})
            in_bucket.update(zip(block.keys, zip(block.ints[0], block.values, strict=True), strict=True))
        return rows
