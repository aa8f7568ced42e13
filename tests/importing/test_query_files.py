"""The files by which a new query goes on: read from an old checkpoint, and written with `commits/0` last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")

from changelog.storage import LocalStorage
from hybridstore.importing.query_files import BY_NAME, begin_behind, check_new, query_id, standing_of, with_ticks
from hybridstore.spark.query_log import NAMED

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def old_query(folder: Path, version: str = "v1") -> LocalStorage:
    """A query that has done batch 3, and begun batch 4."""
    meta = {"batchWatermarkMs": 20_000, "batchTimestampMs": 77, "conf": {POLICY: "max", "other": "1"}}
    lines = [version, json.dumps(meta), '{"logOffset":3}', "-"]
    for name, text in {
        "offsets/3": "\n".join(lines),
        "offsets/4": "\n".join(lines).replace("3", "4"),
        "commits/3": 'v1\n{"nextBatchWatermarkMs":30000}',
        "sources/0/3": "v1\nfiles",
        "sources/0/.3.crc": "not needed",
    }.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return LocalStorage(folder)


def test_the_new_query_begins_behind_the_newest_committed_batch(tmp_path: Path) -> None:
    old, new = old_query(tmp_path / "old"), LocalStorage(tmp_path / "new")
    standing = standing_of(old)
    assert (standing.batch, standing.times, standing.next_watermark_ms) == (3, (20_000, 77), 30_000)
    assert standing.of(json.loads(json.dumps(standing.plain()))) == standing
    name = query_id(new)
    assert query_id(new) == name
    lines = with_ticks(standing.sources, [None, {"watermark_ms": 20_000}, None])
    begin_behind(new, replace(standing, sources=lines), old)
    version, meta, *sources = new.get("offsets/0").decode().splitlines()
    expected = {"batchWatermarkMs": 20_000, "batchTimestampMs": 77, "conf": {POLICY: "max"}}
    assert (version, json.loads(meta)) == ("v1", expected)
    assert sources == ['{"logOffset":3}', '{"watermark_ms": 20000}', "-"]
    assert new.get("commits/0") == b'v1\n{"nextBatchWatermarkMs": 30000}'
    assert new.list("sources/") == ["sources/0/3"]


def test_sources_with_names_keep_them_and_the_setting(tmp_path: Path) -> None:
    old, new = old_query(tmp_path / "old"), LocalStorage(tmp_path / "new")
    meta = {"batchWatermarkMs": 20_000, "batchTimestampMs": 77, "conf": {NAMED: "true"}, "sourceMetadataInfo": {}}
    named = ['hits:{"logOffset":3}', "clicks:-"]
    (tmp_path / "old/offsets/3").write_text("\n".join(["v2", json.dumps(meta), *named]))
    standing = standing_of(old)
    assert (standing.version, standing.sources) == (BY_NAME, named)
    assert standing.of(json.loads(json.dumps(standing.plain()))) == standing
    begin_behind(new, standing, old)
    version, written, *sources = new.get("offsets/0").decode().splitlines()
    assert (version, json.loads(written), sources) == ("v2", meta, named)
    assert new.get("commits/0").startswith(b"v1\n")


def test_a_location_in_which_a_query_has_begun_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hs.ImportRefusedError, match=r"expected a new checkpointLocation"):
        check_new(old_query(tmp_path))


def test_other_offsets_and_no_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hs.ImportRefusedError, match=r"offsets/3: found version 'v3', expected 'v1' or 'v2'"):
        standing_of(old_query(tmp_path / "later", "v3"))
    with pytest.raises(hs.ImportRefusedError, match=r"found no commits/"):
        standing_of(LocalStorage(tmp_path / "empty"))


def test_commits_come_last(tmp_path: Path) -> None:
    old, written = old_query(tmp_path / "old"), list[str]()

    class Watched(LocalStorage):
        def create(self, name: str, data: bytes) -> bool:
            written.append(name)
            return super().create(name, data)

    begin_behind(Watched(tmp_path / "new"), standing_of(old), old)
    assert written == ["sources/0/3", "offsets/0", "commits/0"]
