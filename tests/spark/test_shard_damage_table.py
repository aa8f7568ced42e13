"""What each reader of a shard says to each kind of damage, in one table: a provider, verify, an inspection, a follower,
the data source, the commands that copy a state, and a rescale.

The shard has versions 1 to 8, an object for each, and checkpoints of 3 and 6. A row is a damage; the version that
loads, or the error and its words; what verify names: "log 7" is an object, "checkpoint 6" an index, "pack 6" its pack,
"shard" the folder; and, where the newest version does not load, the version that an inspection shows.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.identity import Identity
from changelog.segment import HEADER_BYTES, decode_header
from changelog.storage import LocalStorage
from hybridstore.cli import run
from hybridstore.errors import HybridStoreError
from hybridstore.inspection.commands.verify import PlaceVerifier
from hybridstore.progress import Progress
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.spark.errors import MissingVersionError, SkippedBatchError
from hybridstore.spark.operator_file import agree_on_description
from hybridstore.spark.reading import open_version, shards
from recovery.block import seal
from recovery.layout import run_name
from recovery.rule import note
from recovery.runs import newest_claim
from recovery.shard_log import encode_note
from tests.tools.checkpoints import flip
from tests.tools.readers import command
from tests.tools.shard_tools import (
    OFTEN,
    SHARD,
    build,
    checkpoint,
    checkpoints,
    content,
    expected,
    operator,
    provider,
    put,
    segment,
    versions,
    write,
)

NEWEST = 8


@pytest.fixture(scope="module")
def made_query(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "query"
    build(root, NEWEST, policy=OFTEN)
    agree_on_description(operator(root), {"shards": 1, "program": {"key": ["k"]}}, 0)
    assert versions(root) == [*range(1, NEWEST + 1)]
    assert [name.version for name in checkpoints(root)] == [3, 6]
    other = provider(root.parent / "other", policy=OFTEN)
    for version in range(6):
        write(other, version, **{f"other{version}": version})
        other.maintain(wait=True)
    return root


def pack_of(root: Path, version: int) -> Path:
    return next((root / SHARD / "packs").glob(f"{version:020d}-*.pack"))


def cut(file: Path, size: int) -> None:
    os.truncate(file, size if size > 0 else file.stat().st_size + size)


def foreign(file: Path) -> None:
    """Let an object say that it is another query's."""
    raw = file.read_bytes()
    header = decode_header(raw[:HEADER_BYTES], file)._replace(identity=Identity(bytes(16)))
    file.write_bytes(header.encode() + raw[HEADER_BYTES:])


def another_pack(root: Path) -> None:
    """Put a whole, sound pack of another shard under the name of checkpoint 6's pack."""
    shutil.copy(pack_of(root.parent / "other", 6), pack_of(root, 6))


def another_attempt(root: Path) -> None:
    """Put what another attempt wrote for version 8 in the place of its object."""
    before = segment(root, NEWEST)
    store = provider(root).get_store(NEWEST - 1)
    put(store, other=1)
    store.commit()
    (other,) = set((root / SHARD / "log").glob(f"{NEWEST:020d}-*")) - {before}
    os.replace(other, before)


def lost_note(root: Path, versions: range, lost: int) -> None:
    """Behind version 8 come notes of these versions, of which one is lost."""
    claim = newest_claim(operator(root))
    assert claim is not None
    storage = LocalStorage(root / SHARD)
    for version in versions:
        name = note(version, claim.launch, 1)
        storage.create(str(name), encode_note(Identity(bytes(16)), version, 0, {}))
    (root / SHARD / str(note(lost, claim.launch, 1))).unlink()


def lost_note_below(root: Path) -> None:
    """Version 9 was a note, which is lost; version 10 names version 8 as its parent, so nothing is lost with it."""
    lost_note(root, range(9, 11), 10)
    store = provider(root).get_store(9)
    put(store, more=1)
    store.commit()
    for path in (root / SHARD / "log").glob(f"{9:020d}-*"):
        path.unlink()


def newer_run(root: Path) -> None:
    claim = newest_claim(operator(root))
    assert claim is not None
    operator(root).create(run_name(claim.launch + 1), seal(pack({"format": 7, "min_reader": 7})))


class Row(NamedTuple):
    """See the module."""

    damage: Callable[[Path], object]
    loads: int | type[Exception]
    verify: tuple[str, ...] = ()
    words: str = ""
    shows: int = 0
    newest: int = NEWEST


FRAME = "later segments follow, so committed data is damaged"

ROWS: dict[str, Row] = {
    "nothing": Row(lambda r: None, 8),
    "object: missing": Row(lambda r: segment(r, 7).unlink(), MissingVersionError, ("log 7",), "missing", 6),
    "object: header": Row(
        lambda r: flip(segment(r, 7), 20), hs.errors.CorruptFrameError, ("log 7",), "header checksum", 6
    ),
    "object: magic": Row(
        lambda r: flip(segment(r, 7), 0), hs.errors.ForeignFileError, ("log 7",), "not a changelog", 6
    ),
    "object: frame": Row(lambda r: flip(segment(r, 7), 80), hs.errors.CorruptFrameError, ("log 7",), FRAME, 6),
    "object: commit": Row(lambda r: flip(segment(r, 7), -5), hs.errors.CorruptFrameError, ("log 7",), FRAME, 6),
    "object: cut": Row(lambda r: cut(segment(r, 7), -5), hs.errors.CorruptFrameError, ("log 7",), FRAME, 6),
    "object: another query's": Row(
        lambda r: foreign(segment(r, 7)), hs.errors.ForeignFileError, ("log 7", "log 7"), "belongs to", 6
    ),
    "newest object: frame": Row(lambda r: flip(segment(r, 8), 80), hs.errors.CorruptFrameError, ("log 8",), FRAME, 7),
    "newest object: header": Row(
        lambda r: cut(segment(r, 8), 10), hs.errors.CorruptFrameError, ("log 8",), "header", 7
    ),
    "newest object: of another attempt": Row(
        another_attempt, hs.errors.DigestMismatchError, ("log 8",), "of another attempt", 7
    ),
    "object behind the checkpoint: frame": Row(lambda r: flip(segment(r, 4), 80), 8, ("log 4",)),
    "note: missing": Row(
        lambda r: lost_note(r, range(9, 11), 9), SkippedBatchError, ("shard",), "did not reach", 8, newest=10
    ),
    "notes behind the newest object": Row(lambda r: lost_note(r, range(9, 12), 11), 8, newest=10),
    "note below an object: missing": Row(lost_note_below, 9, newest=10),
    "run: newer format": Row(
        newer_run, hs.errors.UnsupportedVersionError, ("shard",), "format 7 needs a reader of version 7"
    ),
    "checkpoint: index": Row(lambda r: flip(checkpoint(r, 6), 400), 8, ("checkpoint 6",)),
    "checkpoint: index missing": Row(lambda r: checkpoint(r, 6).unlink(), 8),
    "checkpoint: pack missing": Row(lambda r: pack_of(r, 6).unlink(), 8, ("pack 6",)),
    "checkpoint: another shard's pack": Row(another_pack, 8, ("pack 6", "pack 6")),
    "both checkpoints missing": Row(lambda r: [checkpoint(r, version).unlink() for version in (3, 6)], 8),
    "both checkpoints and the oldest object missing": Row(
        lambda r: [path.unlink() for path in (checkpoint(r, 3), checkpoint(r, 6), segment(r, 1))],
        MissingVersionError,
        ("log 1",),
        "missing",
    ),
}


def name_of(root: Path, file: str) -> str:
    if Path(file) == root / SHARD:
        return "shard"
    kind = {"log": "log", "checkpoints": "checkpoint", "packs": "pack"}[Path(file).parent.name]
    return f"{kind} {int(Path(file).name.partition('-')[0])}"


def followed(root: Path, version: int) -> int:
    with hs.inspect(root).follow() as view:
        assert view.version == version
        return len(list(view["default"]))


def source(root: Path, version: int) -> int:
    (state,) = shards(str(root), "op")
    assert state.version == version
    opened = open_version(state, version)
    return sum(len(list(opened.rows(store))) for store in opened.stores)


def rescaled(root: Path, version: int) -> None:
    """A rescale reads every old shard before it says what it would do."""
    for batch in range(version):
        for folder, text in (
            ("offsets", 'v1\n{"batchWatermarkMs": 0, "batchTimestampMs": 0}\n{}'),
            ("commits", "v1\n{}"),
        ):
            (root / folder).mkdir(exist_ok=True)
            (root / folder / str(batch)).write_text(text)
    hs.rescale(root, "op", shards=2, dry_run=True, stopped=True, routes={"default": "key"})


# What a reader from outside opens: how many records it finds, or None for one that only ends.
OUTSIDE: dict[str, Callable[[Path, int], int | None]] = {
    "get_store": lambda root, version: len(content(provider(root).get_store(version))),
    "get_read_store": lambda root, version: len(content(provider(root).get_read_store(version))),
    "follow": followed,
    "source": source,
    "info": lambda root, version: command("inspect", "info", "{}")(root / SHARD),
    "compact": lambda root, version: command("inspect", "compact", "{}", "--to", "{new}", "--write")(root / SHARD),
    "pack": lambda root, version: command("inspect", "pack", "{}", "--to", "{new}")(root / SHARD),
    "rescale": rescaled,
}
ONLY_END = dict.fromkeys(("info", "compact", "pack", "rescale"))


def answer_of(reader: Callable[[Path, int], int | None], root: Path, version: int) -> int | Exception | None:
    """Return how many records a reader finds, or why it refuses."""
    try:
        return reader(root, version)
    except (HybridStoreError, OSError) as error:
        return error


@pytest.mark.parametrize("name", ROWS)
def test_damage(made_query: Path, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    root = tmp_path / "query"
    shutil.copytree(made_query, root)
    (tmp_path / "other").symlink_to(made_query.parent / "other")
    row.damage(root)
    (place,) = resolve(root / SHARD)
    verifier = PlaceVerifier(place, Progress("", 0, shown=False))
    verifier.run()
    answers = {reader: answer_of(read, root, row.newest) for reader, read in OUTSIDE.items()}
    assert tuple(name_of(root, fault.file) for fault in verifier.faults) == row.verify
    if isinstance(row.loads, int):
        view = open_view(place)
        assert (view.seen, view.faults) == (row.newest, [])
        assert answers == dict.fromkeys(OUTSIDE, row.loads) | ONLY_END
        loaded = content(provider(root).get_read_store(row.newest))
        assert len(loaded) == row.loads
        assert {record.key: record.value for record in view.store("default").records()} == loaded
        return
    assert [answer for answer in answers.values() if not isinstance(answer, Exception)] == [], answers
    assert any(row.words in fault.what for fault in verifier.faults)
    with pytest.raises(row.loads, match=row.words):
        provider(root).get_read_store(row.newest)
    if row.loads is hs.errors.UnsupportedVersionError:
        with pytest.raises(row.loads, match=row.words):
            open_view(place)
        return
    view = open_view(place)
    assert view.version == row.shows
    assert row.words in view.faults[0]
    if row.shows:
        assert content(provider(root).get_read_store(row.shows)) == expected(row.shows)


@pytest.mark.parametrize("name", ROWS)
def test_what_can_be_reached_is_repaired(
    made_query: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[name]
    root, new = tmp_path / "query", tmp_path / "new"
    shutil.copytree(made_query, root)
    (tmp_path / "other").symlink_to(made_query.parent / "other")
    row.damage(root)
    code = run(["inspect", "repair", str(root / SHARD), "--to", str(new), "--write"])
    shown = capsys.readouterr().err
    version = row.loads if isinstance(row.loads, int) else row.shows
    if not version:
        assert (code, new.exists()) == (3, False)
        assert re.search(f"upgrade hybridstore|nothing can be repaired: versions 1 to {NEWEST} are lost", shown)
        return
    with hs.open(new) as state:
        assert len(dict(state.stores["default"].all())) == version
    if not isinstance(row.loads, int):
        assert code == 1
        assert re.search(rf"(is|are) lost: .*{row.words}", shown)
