"""verify: silent on what is sound, and a word, with file and offset, on everything that is not."""

import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.frame import COMMIT, END, MUTATIONS, CommitFrame, encode, encode_commit
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST, chain
from changelog.segment import HEADER_BYTES, SegmentHeader, list_segments, seed_of, segment_name
from changelog.storage import LocalStorage
from hybridstore.state.opening import Tuning
from recovery.index import META_KEY, inflate
from recovery.index import encode as encode_index
from recovery.line import log_walk
from recovery.meta import encode_meta
from recovery.pages import PageFile
from recovery.prune import prune
from recovery.verify import Fault, Verifier
from tests.recovery.test_crash_points import open_state
from tests.recovery.test_damage import Case, build, cases, damage
from tests.tools.checkpoints import flip, index_of, packs_of, reader_of, replaced, verify, versions
from tests.tools.faults import QuickFiles
from tests.tools.hooks import crash

NEVER = hs.CheckpointPolicy(max_restore="1 day")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(tmp_path / "source", closed=False)
    return tmp_path / "source" / "state"


def test_a_sound_state_has_no_faults(path: Path) -> None:
    assert list(verify(path)) == []


def test_what_a_crash_leaves_is_no_fault(path: Path) -> None:
    with sorted((path / "changelog").iterdir())[-1].open("ab") as file:
        file.write(b"hF\x01 torn")
    (path / "checkpoints" / ".9.1.tmp").write_bytes(b"half")
    assert list(verify(path)) == []


def test_a_checkpoint_at_the_begin_of_a_segment_without_a_version_is_sound(tmp_path: Path) -> None:
    small = Tuning(frame_records=1, segment_bytes=200)
    with hs.open(tmp_path, checkpoints=NEVER, _tuning=small) as state:
        state.key_value("rows")["a"] = "x" * 300
        state.commit()
        state.key_value("rows").put_many({f"lost {number}": number for number in range(5)})
    with hs.open(tmp_path, checkpoints=NEVER, _tuning=small) as state:
        state.checkpoint(wait=True)
    assert list_segments(tmp_path / "changelog") == [1, 2]
    assert list(verify(tmp_path)) == []


def test_an_empty_directory_has_no_faults(tmp_path: Path) -> None:
    assert list(verify(tmp_path)) == []


def test_verify_goes_on_after_every_fault(path: Path) -> None:
    first, second = sorted((path / "changelog").iterdir())[:2]
    flip(first, 100)
    flip(second, 10)
    older, newer = index_of(path, 5), index_of(path, 10)
    for index in (older, newer):
        flip(index, 400)
    faults = list(verify(path))
    assert [Path(fault.file).name for fault in faults] == [first.name, second.name, older.name, newer.name, first.name]
    assert faults[0].offset == HEADER_BYTES
    assert "checksum mismatch" in faults[0].what
    # the log was pruned, so what only the checkpoints had is lost
    assert "missing before it, and no sound checkpoint holds them" in faults[4].what
    assert str(faults[2]).startswith(f"{older} at byte 0: its {older.stat().st_size} bytes are not those that its name")


def test_a_damaged_block_is_found_where_it_is(path: Path) -> None:
    file = next(pack for pack in packs_of(path, 10) if b"4444444444" in pack.read_bytes())
    at = file.read_bytes().rindex(b"4444444444")
    flip(file, at)
    (fault,) = verify(path)
    assert fault.file == str(file)
    assert "store 'kv': block" in fault.what
    assert "checksum mismatch" in fault.what
    assert at - 16_384 < fault.offset < at


def test_a_missing_segment_is_a_gap(path: Path) -> None:
    sorted((path / "changelog").iterdir())[2].unlink()
    (fault,) = verify(path)
    assert "are missing before it" in fault.what


def test_a_checkpoint_of_another_line_is_found(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy")
    for where, value in ((path, 1), (tmp_path / "copy", 2)):
        state = open_state(where, QuickFiles())
        state.key_value("kv")["line"] = value
        state.commit()
        state.checkpoint(wait=True)
        crash(state)
    index_of(path, 15).unlink()
    shutil.copy(index_of(tmp_path / "copy", 15), path / "checkpoints")
    shutil.copytree(tmp_path / "copy" / "packs", path / "packs", dirs_exist_ok=True)
    (fault,) = verify(path)
    assert "the changelog has" in fault.what
    assert "at version 15" in fault.what


def test_a_checkpoint_of_another_place_in_the_log_is_found(path: Path) -> None:
    reader = reader_of(path, 10)
    position = reader.meta.position
    records = dict(PageFile(index_of(path, 10).read_bytes(), "").items())
    records[META_KEY] = encode_meta(reader.meta._replace(position=position._replace(offset=position.offset - 1)))
    replaced(path, 10, encode_index(records))
    (fault,) = verify(path)
    assert fault.what.startswith("position ")
    assert fault.what.endswith(f", the changelog has {position} at version 10")


def test_every_kind_of_damage_that_matters_is_found(path: Path, tmp_path: Path, seed: int) -> None:
    """Whatever a restore notices, verify names; and what verify passes, a restore opens whole."""
    dice = random.Random(seed)
    chosen = dice.sample(cases(path, dice), 150)
    for number, case in enumerate(chosen):
        copy = tmp_path / f"copy {number}"
        shutil.copytree(path, copy)
        damage(copy, Case(*case))
        faults = list(verify(copy))
        assert all(isinstance(fault, Fault) and fault.file.startswith(str(copy)) for fault in faults)
        if not faults:
            try:
                state = open_state(copy, QuickFiles())
            except hs.errors.RestoreError as error:
                # Only LOCK knows of a log that was cut between two segments or at its end.
                if "LOCK" not in str(error):
                    raise
            else:
                assert state.restore_report.skipped == [], case
                crash(state)
        shutil.rmtree(copy)


def test_prune_keeps_what_is_needed_and_what_is_left_is_sound(path: Path) -> None:
    state = open_state(path, QuickFiles())
    state.key_value("kv")["more"] = 1
    state.commit()
    state.checkpoint(wait=True)
    rows = list(state.key_value("kv").all())
    state.close()
    assert prune(path, keep=2) == []
    for keep in (2, 1):
        prune(path, keep=keep)
        assert list(verify(path)) == []
        with open_state(path, QuickFiles()) as state:
            assert list(state.key_value("kv").all()) == rows


def test_prune_does_not_count_a_damaged_checkpoint(path: Path) -> None:
    flip(index_of(path, 10), 30)
    prune(path, keep=1)
    assert versions(path) == [5, 10]
    with open_state(path, QuickFiles()) as state:
        assert state.version == 14


def test_progress_tells_every_byte_and_no_file_is_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.index.lmdb.open", None)
    monkeypatch.setattr("recovery.mapping.mmap.mmap", None)
    reported: list[int] = []
    verifier = Verifier(progress=reported.append)
    assert list(verifier.directory(LocalStorage(path), log_walk(path / "changelog", None))) == []
    assert sum(reported) == verifier.checked.size
    assert verifier.checked.checkpoints == 2
    assert verifier.checked.versions >= 9
    assert verifier.version == 14
    quick = Verifier(quick=True)
    assert list(quick.directory(LocalStorage(path), log_walk(path / "changelog", None))) == []
    assert (quick.checked.blocks, quick.checked.checkpoints) == (0, 2)
    assert quick.checked.size < verifier.checked.size


def test_what_checksums_vouch_for_is_unpacked_when_asked(tmp_path: Path) -> None:
    header = SegmentHeader(Identity(bytes(range(16))), 1, 0, EMPTY_DIGEST).encode()
    body = b"\xdd\0\0\0\x02" + pack([12, "no such op"])[1:]
    commit = encode_commit(CommitFrame(1, chain(EMPTY_DIGEST, [body]), {12: 1}, 0, {}, {}))
    raw = header + encode(MUTATIONS, 0, body, seed_of(header)) + encode(COMMIT, 1, commit, seed_of(header))
    (tmp_path / "changelog").mkdir()
    (tmp_path / "changelog" / segment_name(1)).write_bytes(raw)
    assert list(verify(tmp_path)) == []
    (fault,) = verify(tmp_path, decode=True)
    assert fault.offset == len(header)
    assert "op 12 is unknown" in fault.what


def test_records_that_a_commit_counts_wrongly_are_a_fault_when_unpacked(tmp_path: Path) -> None:
    header = SegmentHeader(Identity(bytes(range(16))), 1, 0, EMPTY_DIGEST).encode()
    body = b"\xdd\0\0\0\x04" + pack([23, ["a", "b"], [1, 2], None])[1:]
    for counts, faults in (({23: 2}, 0), ({23: 1}, 1), ({17: 2}, 1), ({}, 1)):
        commit = encode_commit(CommitFrame(1, chain(EMPTY_DIGEST, [body]), counts, 0, {}, {}))
        raw = header + encode(MUTATIONS, 0, body, seed_of(header)) + encode(COMMIT, 1, commit, seed_of(header))
        (tmp_path / "changelog").mkdir(exist_ok=True)
        (tmp_path / "changelog" / segment_name(1)).write_bytes(raw)
        assert list(verify(tmp_path)) == []
        sentences = [fault.what for fault in verify(tmp_path, decode=True)]
        assert len(sentences) == faults
        assert all(f"says {sum(counts.values())} records, its frames hold 2" in what for what in sentences)


@pytest.mark.parametrize(
    ("version", "words"), [(3, "version 3 follows version 1"), (2, f"version 2 has digest {EMPTY_DIGEST.hex()}")]
)
def test_a_version_that_does_not_continue_the_one_before_is_named_by_its_place(
    tmp_path: Path, version: int, words: str
) -> None:
    header = SegmentHeader(Identity(bytes(range(16))), 1, 0, EMPTY_DIGEST).encode()
    body = b"\xdd\0\0\0\x04" + pack([23, ["a", "b"], [1, 2], None])[1:]
    first = CommitFrame(1, chain(EMPTY_DIGEST, [body]), {23: 2}, 0, {}, {})
    raw, place = header, 0
    for at, commit in enumerate((first, first._replace(version=version, digest=EMPTY_DIGEST))):
        place = len(raw)
        raw += encode(MUTATIONS, 2 * at, body, seed_of(header))
        raw += encode(COMMIT, 2 * at + 1, encode_commit(commit), seed_of(header))
    segment = tmp_path / "changelog" / segment_name(1)
    segment.parent.mkdir()
    segment.write_bytes(raw)
    (fault,) = verify(tmp_path)
    assert (fault.file, fault.offset) == (str(segment), place)
    assert fault.what.startswith(words)


@pytest.mark.parametrize("reached", [(2, EMPTY_DIGEST), (1, bytes(range(16)))])
def test_an_end_mark_of_another_line_is_a_fault(tmp_path: Path, reached: tuple[int, bytes]) -> None:
    header = SegmentHeader(Identity(bytes(range(16))), 1, 0, EMPTY_DIGEST).encode()
    body = b"\xdd\0\0\0\x04" + pack([23, ["a", "b"], [1, 2], None])[1:]
    commit = CommitFrame(1, chain(EMPTY_DIGEST, [body]), {23: 2}, 0, {}, {})
    (tmp_path / "changelog").mkdir()
    for end in (commit, commit._replace(version=reached[0], digest=reached[1])):
        frames = [(MUTATIONS, body), (COMMIT, encode_commit(commit)), (END, encode_commit(end))]
        raw = [header, *(encode(kind, at, body, seed_of(header)) for at, (kind, body) in enumerate(frames))]
        (tmp_path / "changelog" / segment_name(1)).write_bytes(b"".join(raw))
        words = [f"was closed at version {reached[0]} ({reached[1].hex()}), but version 1 was reached"]
        faults = [fault.what.partition(" (restore")[0] for fault in verify(tmp_path)]
        assert faults == ([] if end == commit else words)


def test_everything_is_sound_to_the_last_value(path: Path) -> None:
    assert list(verify(path, decode=True)) == []


def test_a_tree_that_bites_its_own_tail_is_a_fault(tmp_path: Path) -> None:
    """Pages that lead back to themselves, with sums that fit: made up, and no endless loop."""
    with hs.open(tmp_path / "s", _tuning=Tuning(block_records=2)) as state:
        for i in range(200):  # as many top records as take a tree of pages
            state.key_value(f"kv {i}").put(1, 1)
        state.commit()
        state.checkpoint(wait=True)
    file = index_of(tmp_path / "s", 1)
    raw = bytearray(inflate(file.read_bytes(), "index"))
    pages = [struct.unpack_from("<QHH", raw, at) for at in range(0, len(raw), 4096)]
    root = next(number for number, (stored, _, flags) in enumerate(pages) if (stored, flags) == (number, 1))
    (node,) = struct.unpack_from("<H", raw, root * 4096 + 16)
    struct.pack_into("<HHH", raw, root * 4096 + node, root, 0, 0)
    replaced(tmp_path / "s", 1, zlib.compress(raw))
    assert any("reached twice" in fault.what or "deeper" in fault.what for fault in verify(tmp_path / "s"))
