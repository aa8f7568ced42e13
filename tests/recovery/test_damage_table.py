"""What each reader of a state says to each kind of damage, in one table: a restore, a plan, verify, an inspection, a
follower, and the commands that copy a state. Rescaling opens a state as a restore does.

The state has versions 1 to 12, two in each segment (1, 3, ... 11), and checkpoints of 4 (the end of segment 3) and 7
(the middle of segment 7). A row of the table is a damage; the version that opens, or the error and its words; the files
that verify names; where nothing opens, the version that an inspection shows; and the version that `repair` keeps.
Whatever the row, a plan says what the restore does and an inspection what is wrong, in the restore's words.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.segment import segment_name
from hybridstore.cli import run
from hybridstore.errors import HybridStoreError
from hybridstore.inspection.commands.verify import PlaceVerifier
from hybridstore.progress import Progress
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.state.opening import Tuning
from hybridstore.state.restart import plan as plan_restart
from recovery import pack as packs
from recovery.block import seal
from recovery.index import META_KEY, encode
from tests.tools.checkpoints import flip, index_of, marker_of, own_packs, packs_of, reader_of, replaced, versions
from tests.tools.faults import QuickFiles
from tests.tools.hooks import crash
from tests.tools.readers import READERS, RefusedError
from tests.tools.sizes import SMALL_PARTS

NEWEST = 12
VALUE = "x" * 400


def open_state(path: Path, **options: Any) -> hs.State:
    options.setdefault("checkpoints", hs.CheckpointPolicy(keep=3))
    return hs.open(
        path, _files=QuickFiles(), _tuning=Tuning(segment_bytes=4000, block_records=8, parts=SMALL_PARTS), **options
    )


def commit(path: Path, versions: range, checkpoints: tuple[int, ...] = (), line: str = "") -> hs.State:
    """Commit these versions, five rows each, with checkpoints after some of them; the state is left open."""
    state = open_state(path)
    kv = state.key_value("kv")
    for version in versions:
        for i in range(5):
            kv[f"{version:03d}-{i}"] = f"{version} {VALUE if not line else line * len(VALUE)}"
        state.commit()
        if version in checkpoints:
            state.checkpoint(wait=True)
    return state


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a killed writer; one of another store; one of the same store that went another way; one that was
    closed.
    """
    root = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        for name, store_id, line in (("state", 1, ""), ("other", 2, ""), ("line", 1, "o")):
            patch.setattr("hybridstore.state.directory.os.urandom", lambda size, byte=store_id: bytes([byte]) * size)
            crash(commit(root / name, range(1, NEWEST + 1), (4, 7), line))
            assert versions(root / name) == [4, 7]
            assert [int(file.stem) for file in sorted((root / name / "changelog").iterdir())] == [1, 3, 5, 7, 9, 11]
    shutil.copytree(root / "state", root / "closed")
    open_state(root / "closed").close()
    return root


def segment(path: Path, first: int) -> Path:
    return path / "changelog" / segment_name(first)


def damaged_page(path: Path) -> None:
    """Damage a page of the directory of checkpoint 7 that its own pack holds."""
    reader = reader_of(path, 7)
    newest_pack = checkpoint_pack(path)
    numbers = [record.number for record in reader.meta.packs if record.name.endswith(newest_pack.name)]
    page = next(page for page in reader.directory(1).pages if page.pack in numbers)
    reader.close()
    flip(newest_pack, page.offset + 10)


def checkpoint_pack(path: Path) -> Path:
    """Return the pack that was written for checkpoint 7."""
    (pack,) = own_packs(path, 7)
    return pack


def cut(file: Path, size: int) -> None:
    os.truncate(file, size if size > 0 else file.stat().st_size + size)


def append(file: Path, data: bytes) -> None:
    with file.open("ab") as end:
        end.write(data)


def newer(file: Path, size: int) -> None:
    """Make a file one of a newer format, with a checksum that fits; its sealed head has `size` bytes."""
    raw = file.read_bytes()
    head = bytearray(raw[:size])
    struct.pack_into("<HH", head, 8, 7, 7)
    file.write_bytes(bytes(head) + zlib.crc32(head).to_bytes(4, "little") + raw[size + 4 :])


def newer_checkpoint(path: Path) -> None:
    replaced(path, 7, encode({META_KEY: seal(pack({"format": 7, "min_reader": 7}))}))


def swap(path: Path, source: str, file: str) -> None:
    """Put another state's file in the place of this one's."""
    for name in (path / file).parent.glob((path / file).stem + "*"):
        shutil.copy(path.parent / source / name.relative_to(path), name)


def swap_checkpoint(path: Path, source: str) -> None:
    """Put another state's checkpoint 7 in the place of this one's."""
    index_of(path, 7).unlink()
    other = path.parent / source
    for file in (index_of(other, 7), *packs_of(other, 7)):
        shutil.copy(file, path / file.relative_to(other))


def swap_pack(path: Path, source: str) -> None:
    """Put a whole, sound pack of another state under the name of checkpoint 7's pack."""
    shutil.copy(checkpoint_pack(path.parent / source), checkpoint_pack(path))


def swap_blocks(path: Path) -> None:
    """Put the content of another state's pack behind the header of checkpoint 7's own: every checksum fits."""
    mine, other = checkpoint_pack(path), checkpoint_pack(path.parent / "line")
    mine.write_bytes(mine.read_bytes()[: packs.HEADER.size] + other.read_bytes()[packs.HEADER.size :])


def rename(path: Path, old: int, new: int) -> None:
    segment(path, old).rename(segment(path, new))


def without(path: Path, *files: Path) -> None:
    for file in files:
        file.unlink()


class Row(NamedTuple):
    """See the module. `verify` names files: "log 11" is a segment, "checkpoint 7" its index, "pack 7" the pack
    written for it, "state" the directory.
    """

    damage: Callable[[Path], object]
    opens: int | type[Exception]
    verify: tuple[str, ...] = ()
    words: str = ""
    shows: int = 0
    source: str = "state"
    # The version that `repair` keeps, where it is not the one that opens, or else is shown.
    repairs: int | None = None

    @property
    def repaired(self) -> int:
        return self.repairs if self.repairs is not None else self.opens if isinstance(self.opens, int) else self.shows


def log(first: int) -> str:
    return "changelog/" + segment_name(first)


TWO = ("checkpoint 4", "checkpoint 7")
LOST = "though the last owner wrote to it: committed data is lost"
BEHIND = "later segments follow, so committed data is damaged"
BEFORE_COMMIT = "a sound commit follows at byte"
HEADER = "segment header checksum mismatch"
FORMAT = "needs a reader of version 7, this one reads"

ROWS: dict[str, Row] = {
    "nothing": Row(lambda p: None, 12),
    # what a crash leaves
    "torn end": Row(lambda p: append(segment(p, 11), b"hF\x01\x00\x99torn"), 12),
    "torn commit": Row(lambda p: cut(segment(p, 11), -5), 11),
    "last version torn": Row(lambda p: cut(segment(p, 11), 2300), 11),
    # the newest segment
    "newest: frame": Row(
        lambda p: flip(segment(p, 11), 200), hs.errors.CorruptFrameError, ("log 11",), BEFORE_COMMIT, 10
    ),
    "newest: commit": Row(
        lambda p: flip(segment(p, 11), 2200), hs.errors.CorruptFrameError, ("log 11",), BEFORE_COMMIT, 10
    ),
    "newest: header": Row(lambda p: flip(segment(p, 11), 20), hs.errors.CorruptFrameError, ("log 11",), HEADER, 10),
    "newest: magic": Row(
        lambda p: flip(segment(p, 11), 0), hs.errors.ForeignFileError, ("log 11",), "not a changelog segment", 10
    ),
    "newest: cut in its header": Row(lambda p: cut(segment(p, 11), 10), hs.errors.RestoreError, ("log 11",), LOST, 10),
    "newest: zeros": Row(
        lambda p: segment(p, 11).write_bytes(bytes(5000)), hs.errors.RestoreError, ("log 11",), LOST, 10
    ),
    "newest: missing": Row(lambda p: segment(p, 11).unlink(), hs.errors.RestoreError, ("log 11",), LOST, 10),
    "newest: newer format": Row(
        lambda p: newer(segment(p, 11), 76), hs.errors.UnsupportedVersionError, ("log 11",), FORMAT
    ),
    "newest: another store's": Row(
        lambda p: swap(p, "other", log(11)),
        hs.errors.ForeignFileError,
        ("log 11",),
        f"belongs to store {'02' * 16}",
        10,
    ),
    "newest: of another line": Row(
        lambda p: swap(p, "line", log(11)), hs.errors.DigestMismatchError, ("log 11",), "another line of this store", 10
    ),
    "newest: of another program": Row(
        lambda p: segment(p, 11).write_bytes(b"PK\x03\x04" + bytes(200)),
        hs.errors.ForeignFileError,
        ("log 11",),
        "not a changelog segment",
        10,
    ),
    # a segment in the middle, behind the newest checkpoint
    "middle: frame": Row(lambda p: flip(segment(p, 9), 200), hs.errors.CorruptFrameError, ("log 9",), BEHIND, 8),
    "middle: last commit": Row(lambda p: flip(segment(p, 9), -5), hs.errors.CorruptFrameError, ("log 9",), BEHIND, 9),
    "middle: header": Row(lambda p: flip(segment(p, 9), 20), hs.errors.CorruptFrameError, ("log 9",), HEADER, 8),
    "middle: cut": Row(lambda p: cut(segment(p, 9), 1000), hs.errors.CorruptFrameError, ("log 9",), BEHIND, 8),
    "middle: cut between versions": Row(
        lambda p: cut(segment(p, 9), 2249),
        hs.errors.ChangelogGapError,
        ("log 11",),
        "version 10 is missing before it",
        9,
    ),
    "middle: missing": Row(
        lambda p: segment(p, 9).unlink(),
        hs.errors.ChangelogGapError,
        ("log 11",),
        "versions 9 to 10 are missing before it",
        8,
    ),
    "middle: renamed": Row(
        lambda p: segment(p, 9).rename(segment(p, 10)),
        hs.errors.ForeignFileError,
        ("log 10",),
        "those from 10, as its name says",
        8,
    ),
    "middle: copied": Row(
        lambda p: shutil.copy(segment(p, 9), segment(p, 8)),
        hs.errors.ForeignFileError,
        ("log 8",),
        "those from 8, as its name says",
        8,
    ),
    "middle: another store's": Row(
        lambda p: swap(p, "other", log(9)), hs.errors.ForeignFileError, ("log 9",), f"belongs to store {'02' * 16}", 8
    ),
    "middle: of another line": Row(
        lambda p: swap(p, "line", log(9)),
        hs.errors.DigestMismatchError,
        ("log 9", "log 11"),
        "another line of this store",
        8,
    ),
    "middle: newer format": Row(
        lambda p: newer(segment(p, 9), 76), hs.errors.UnsupportedVersionError, ("log 9",), FORMAT
    ),
    # the segment that the newest checkpoint refers to
    "checkpoint's: behind it": Row(
        lambda p: flip(segment(p, 7), -50), hs.errors.CorruptFrameError, ("log 7",), BEHIND, 7
    ),
    "checkpoint's: before it": Row(lambda p: flip(segment(p, 7), 200), 12, ("log 7",)),
    "checkpoint's: header": Row(lambda p: flip(segment(p, 7), 20), hs.errors.CorruptFrameError, ("log 7",), HEADER, 7),
    "checkpoint's: shorter than it says": Row(
        lambda p: cut(segment(p, 7), 1000),
        hs.errors.CorruptFrameError,
        ("log 7", "log 7"),
        "the file was cut short: checkpoint 7 refers to byte 2249",
        7,
    ),
    "checkpoint's: missing": Row(
        lambda p: segment(p, 7).unlink(), hs.errors.ChangelogGapError, ("log 9", "log 7"), "missing before it", 7
    ),
    "checkpoint's and newer ones: missing": Row(
        lambda p: without(p, segment(p, 7), segment(p, 9), segment(p, 11)),
        hs.errors.ChangelogGapError,
        ("log 7", "log 11"),
        "missing, though checkpoint 7 refers to it",
        7,
    ),
    "all segments missing": Row(
        lambda p: without(p, *(p / "changelog").iterdir()),
        hs.errors.ChangelogGapError,
        ("log 3", "log 7"),
        "missing, though checkpoint 7 refers to it",
        7,
    ),
    # segments that no restore reads
    "oldest: frame": Row(lambda p: flip(segment(p, 1), 200), 12, ("log 1",)),
    "oldest: missing": Row(lambda p: segment(p, 1).unlink(), 12),
    # checkpoints
    "checkpoint: page": Row(lambda p: flip(index_of(p, 7), 400), 12, ("checkpoint 7",)),
    "checkpoint: block": Row(
        lambda p: flip(checkpoint_pack(p), checkpoint_pack(p).read_bytes().rindex(VALUE.encode())), 12, ("pack 7",)
    ),
    "checkpoint: page of a directory": Row(damaged_page, 12, ("pack 7",)),
    "checkpoint: footer of its pack": Row(lambda p: flip(checkpoint_pack(p), -20), 12, ("pack 7",)),
    "checkpoint: pack cut": Row(lambda p: cut(checkpoint_pack(p), -1), 12, ("pack 7",)),
    "checkpoint: pack missing": Row(lambda p: checkpoint_pack(p).unlink(), 12, ("pack 7",)),
    "checkpoint: cut": Row(lambda p: cut(index_of(p, 7), 300), 12, ("checkpoint 7",)),
    "checkpoint: missing": Row(lambda p: index_of(p, 7).unlink(), 12),
    "checkpoint: marked as damaged": Row(
        lambda p: marker_of(index_of(p, 7)).write_text("block 3\n"), 12, ("checkpoint 7",)
    ),
    "checkpoint: newer format": Row(newer_checkpoint, hs.errors.UnsupportedVersionError, ("checkpoint 7",), FORMAT),
    "checkpoint: another store's": Row(
        lambda p: swap_checkpoint(p, "other"),
        hs.errors.ForeignFileError,
        ("checkpoint 7",),
        "belongs to store",
        7,
        repairs=12,
    ),
    "checkpoint: of another line": Row(
        lambda p: swap_checkpoint(p, "line"),
        hs.errors.DigestMismatchError,
        ("checkpoint 7",),
        "digest",
        7,
        repairs=12,
    ),
    "checkpoint: another store's pack": Row(lambda p: swap_pack(p, "other"), 12, ("pack 7",)),
    "checkpoint: an older pack": Row(
        lambda p: shutil.copy(own_packs(p, 4)[0], checkpoint_pack(p)), 12, ("pack 7",) * 3
    ),
    "checkpoint: other blocks behind its pack's header": Row(swap_blocks, 12, ("pack 7", "pack 7")),
    "older checkpoint: page": Row(lambda p: flip(index_of(p, 4), 400), 12, ("checkpoint 4",)),
    "older checkpoint: missing": Row(lambda p: index_of(p, 4).unlink(), 12),
    "both checkpoints missing": Row(lambda p: without(p, index_of(p, 4), index_of(p, 7)), 12),
    "both checkpoints damaged": Row(lambda p: (flip(index_of(p, 4), 30), flip(index_of(p, 7), 30)), 12, TWO),
    # several at once
    "both checkpoints damaged, log pruned": Row(
        lambda p: (flip(index_of(p, 4), 30), flip(index_of(p, 7), 30), segment(p, 1).unlink()),
        hs.errors.RestoreError,
        (*TWO, "log 3"),
        "versions 1 to 2 are missing before it",
    ),
    "both checkpoints missing, log pruned": Row(
        lambda p: without(p, index_of(p, 4), index_of(p, 7), segment(p, 1)),
        hs.errors.ChangelogGapError,
        ("log 3",),
        "versions 1 to 2 are missing before it",
    ),
    "checkpoint and what is behind the older one damaged": Row(
        lambda p: (flip(index_of(p, 7), 30), flip(segment(p, 5), 200)),
        hs.errors.RestoreError,
        ("log 5", "checkpoint 7"),
        BEHIND,
        4,
    ),
    # a state that was closed: its end is known
    "closed": Row(lambda p: None, 12, source="closed"),
    "closed: end mark": Row(lambda p: flip(segment(p, 11), -5), 12, ("log 11",), source="closed"),
    "closed: last version": Row(
        lambda p: flip(segment(p, 11), 4300), hs.errors.CorruptFrameError, ("log 11",), BEFORE_COMMIT, 11, "closed"
    ),
    "closed: cut": Row(
        lambda p: cut(segment(p, 11), 2300),
        hs.errors.RestoreError,
        ("log 11", "state"),
        "was closed at version 12, but the changelog ends at version 11",
        11,
        "closed",
    ),
    "closed: appended to": Row(lambda p: append(segment(p, 11), b"torn"), 12, ("log 11",), source="closed"),
    "closed: newest segment missing": Row(
        lambda p: segment(p, 11).unlink(),
        hs.errors.RestoreError,
        ("state",),
        "was closed at version 12, but the changelog ends at version 10",
        10,
        "closed",
    ),
}


def name_of(path: Path, file: str) -> str:
    stem = Path(file).stem
    if file == str(path):
        return "state"
    what = {".log": "log", ".lmdb": "checkpoint", ".pack": "pack"}[Path(file).suffix]
    return f"{what} {int(stem[:20])}"


PLANNED = (
    "version",
    "checkpoint_version",
    "checkpoint_records",
    "checkpoint_bytes",
    "tail_versions",
    "tail_counts",
    "tail_bytes",
    "cut",
    "skipped",
    "clean",
)


# The readers that neither lock nor write; what else reads is built on one of them.
LOOKING = ("open at newest", "plan", "inspect", "follow", "info", "list", "pack", "compact")


def answer_of(reader: Callable[[Path], int | None], path: Path) -> int | Exception | None:
    """Return the version that a reader opens, or why it refuses."""
    try:
        return reader(path)
    except (HybridStoreError, OSError) as error:
        return error


@pytest.mark.parametrize("name", ROWS)
def test_damage(prepared: Path, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    path = tmp_path / "state"
    for source in ("other", "line"):
        (tmp_path / source).symlink_to(prepared / source)
    shutil.copytree(prepared / row.source, path)
    row.damage(path)
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    plan = plan_restart(path)  # an inspection of a newer format raises
    (place,) = resolve(path)
    verifier = PlaceVerifier(place, Progress("", 0, shown=False))
    verifier.run()
    assert tuple(name_of(path, fault.file) for fault in verifier.faults) == row.verify
    answers = {reader: answer_of(READERS[reader], path) for reader in LOOKING}
    if isinstance(row.opens, int):
        ends = dict.fromkeys(("info", "pack", "compact")) | {"list": answers["list"]}
        if name == "checkpoint: block":
            # Who reads all records meets the block that others meet when they touch it.
            assert isinstance(answers["compact"], RefusedError)
            del answers["compact"], ends["compact"]
        assert answers == {reader: row.opens for reader in answers} | ends
        view = open_view(place)
        assert (view.version, view.faults) == (row.opens, [])
        assert files == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        state = open_state(path)
        assert {name: getattr(plan, name) for name in PLANNED} == {
            name: getattr(state.restore_report, name) for name in PLANNED
        }
        assert (state.version, plan.problem) == (row.opens, None)
        crash(state)
        return
    assert {reader for reader, answer in answers.items() if not isinstance(answer, Exception)} <= {"list"}, answers
    assert any(row.words in fault.what for fault in verifier.faults)
    if row.opens is hs.errors.UnsupportedVersionError:
        with pytest.raises(row.opens, match=row.words):
            open_view(place)
    else:
        view = open_view(place)
        assert view.version == row.shows
        assert row.words in view.faults[0]
        if row.shows:
            with open_state(path, at=row.shows) as state:
                assert state.version == row.shows
    assert files == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(row.opens) as refused:
        open_state(path)
    assert type(refused.value) is row.opens
    assert row.words in str(refused.value)
    assert plan.problem == str(refused.value)


@pytest.mark.parametrize("name", ROWS)
def test_what_can_be_reached_is_repaired(
    prepared: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[name]
    path, new = tmp_path / "state", tmp_path / "new"
    for source in ("other", "line"):
        (tmp_path / source).symlink_to(prepared / source)
    shutil.copytree(prepared / row.source, path)
    row.damage(path)
    code = run(["inspect", "repair", str(path), "--to", str(new), "--write"])
    shown = capsys.readouterr().err
    if row.opens is hs.errors.UnsupportedVersionError:
        assert (code, new.exists()) == (3, False)
        assert row.words in shown
        return
    if not row.repaired:
        assert (code, new.exists()) == (3, False)
        assert re.search(rf"nothing can be repaired: versions 1 to {NEWEST} are lost: .*{row.words}", shown)
        return
    assert code == (0 if row.repaired >= NEWEST or isinstance(row.opens, int) else 1)
    with open_state(new) as state:
        assert state.version == row.repaired
        assert len(state.key_value("kv")) == 5 * row.repaired
        state.key_value("kv")["more"] = 1
        state.commit()
    if code:
        first = row.repaired + 1
        behind = f"what was committed behind version {row.repaired} is lost"
        assert re.search(rf"({behind}|version {first} is lost|versions {first} to \d+ are lost): .*{row.words}", shown)
