"""Reader: a torn tail is a value, damage to committed data is an error, and no flipped bit changes what is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from changelog.errors import CorruptFrameError, ForeignFileError, UnsupportedVersionError
from changelog.frame import COMMIT, MUTATIONS, CommitFrame, encode, encode_commit
from changelog.identity import Identity
from changelog.reader import SECTOR, SegmentReader, Tail
from changelog.segment import HEADER_BYTES, SegmentHeader, seed_of, segment_name

HEADER = SegmentHeader(Identity(bytes(range(16))), 1, 0, bytes(16)).encode()
SEED = seed_of(HEADER)


def commit(version: int) -> bytes:
    return encode_commit(CommitFrame(version, bytes([version] * 16), {19: 1}, 0, {}, {}))


def frames(*bodies: tuple[int, bytes], first: int = 0) -> list[bytes]:
    return [encode(kind, first + i, body, SEED) for i, (kind, body) in enumerate(bodies)]


THREE = frames(
    (MUTATIONS, b"one"), (COMMIT, commit(1)), (MUTATIONS, b"two"), (COMMIT, commit(2)),
    (MUTATIONS, b"three"), (COMMIT, commit(3))
)  # fmt: skip
SOUND = HEADER + b"".join(THREE)
# Where each version ends.
ENDS = [HEADER_BYTES + sum(map(len, THREE[: 2 * n])) for n in range(4)]


@pytest.fixture
def segment(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(raw: bytes) -> Path:
        path = tmp_path / segment_name(1)
        path.write_bytes(raw)
        return path

    return write


def read(path: Path, *, last: bool = True) -> tuple[list[int], Tail | None]:
    reader = SegmentReader(path, last=last)
    return [version.commit.version for version in reader.versions()], reader.tail


def test_committed_versions_are_read_with_their_mutations(segment: Callable[[bytes], Path]) -> None:
    reader = SegmentReader(segment(SOUND), last=False)
    assert [(v.commit.version, v.bodies, v.position.offset) for v in reader.versions()] == [
        (1, [b"one"], ENDS[1]),
        (2, [b"two"], ENDS[2]),
        (3, [b"three"], ENDS[3]),
    ]
    assert reader.tail is None


def test_reading_goes_on_from_any_position(segment: Callable[[bytes], Path]) -> None:
    path = segment(SOUND)
    versions = list(SegmentReader(path, last=True).versions())
    for i, version in enumerate(versions):
        assert list(SegmentReader(path, last=True).versions(version.position)) == versions[i + 1 :]


def test_commits_are_the_versions_without_bodies_which_are_passed_over(segment: Callable[[bytes], Path]) -> None:
    for size in (len(SOUND), ENDS[3] - 1, ENDS[2] + 1):
        path = segment(SOUND[:size])
        alone, whole = (SegmentReader(path, last=True) for _ in range(2))
        assert list(alone.commits()) == [version._replace(bodies=[]) for version in whole.versions()]
        assert alone.tail == whole.tail
    damaged = bytearray(SOUND)
    damaged[ENDS[1] + len(THREE[2]) - 1] ^= 1
    path = segment(bytes(damaged))
    with pytest.raises(CorruptFrameError):
        read(path, last=False)
    assert [version.commit.version for version in SegmentReader(path, last=False).commits()] == [1, 2, 3]


def test_a_torn_tail_is_not_corruption_wherever_it_tears(segment: Callable[[bytes], Path]) -> None:
    for size in range(HEADER_BYTES, len(SOUND)):
        versions, tail = read(segment(SOUND[:size]))
        whole = sum(end <= size for end in ENDS[1:])
        assert versions == list(range(1, whole + 1))
        if size == ENDS[whole]:
            assert tail is None
        else:
            assert tail is not None
            assert (tail.offset, tail.size) == (ENDS[whole], size - ENDS[whole])


def test_a_tear_in_a_segment_that_others_follow_is_corruption(segment: Callable[[bytes], Path]) -> None:
    for size in range(HEADER_BYTES + 1, len(SOUND)):
        path = segment(SOUND[:size])
        if size in ENDS:
            continue
        with pytest.raises(CorruptFrameError, match=r"later segments follow"):
            read(path, last=False)


@pytest.mark.parametrize("cut", [0, 30, HEADER_BYTES])
def test_a_segment_that_died_at_birth_is_a_torn_tail(segment: Callable[[bytes], Path], cut: int) -> None:
    versions, tail = read(segment(SOUND[:cut]))
    assert versions == []
    assert (tail is None) == (cut == HEADER_BYTES)
    if cut < HEADER_BYTES:
        with pytest.raises((CorruptFrameError, ForeignFileError)):
            read(segment(SOUND[:cut]), last=False)


@pytest.mark.parametrize("size", [1, 68, 4096])
def test_a_zero_filled_segment_is_a_torn_tail(segment: Callable[[bytes], Path], size: int) -> None:
    assert read(segment(bytes(size))) == (
        [],
        Tail(str(segment(bytes(size))), 0, size, "segment header empty or zero-filled"),
    )


def test_a_zeroed_header_before_committed_data_is_damage(segment: Callable[[bytes], Path]) -> None:
    with pytest.raises((CorruptFrameError, ForeignFileError)):
        read(segment(bytes(HEADER_BYTES) + SOUND[HEADER_BYTES:]))


@pytest.mark.parametrize("zeros", [1, 15, 16, 17, 511, 4096, 100_000])
def test_a_zero_filled_tail_is_cut(segment: Callable[[bytes], Path], zeros: int) -> None:
    versions, tail = read(segment(SOUND + bytes(zeros)))
    assert versions == [1, 2, 3]
    assert tail is not None
    assert (tail.offset, tail.size) == (len(SOUND), zeros)


def test_garbage_after_the_last_commit_is_cut(segment: Callable[[bytes], Path]) -> None:
    versions, tail = read(segment(SOUND + b"hF\x02\x00garbage hF and more"))
    assert versions == [1, 2, 3]
    assert tail is not None


def test_damage_before_a_sound_commit_is_corruption(segment: Callable[[bytes], Path]) -> None:
    for at in range(HEADER_BYTES, ENDS[2]):
        raw = bytearray(SOUND)
        raw[at] ^= 0x55
        path = segment(bytes(raw))
        with pytest.raises(
            CorruptFrameError, match=r"00000000000000000001\.log at byte \d+: .*sound commit follows at byte \d+"
        ) as caught:
            read(path)
        assert caught.value.offset <= at < caught.value.offset + 100


def test_no_flipped_bit_changes_what_is_read(segment: Callable[[bytes], Path]) -> None:
    whole = [(v.commit, v.bodies) for v in SegmentReader(segment(SOUND), last=True).versions()]
    outcomes = set()
    for at in range(len(SOUND)):
        for bit in range(8):
            raw = bytearray(SOUND)
            raw[at] ^= 1 << bit
            try:
                reader = SegmentReader(segment(bytes(raw)), last=True)
                actual = [(v.commit, v.bodies) for v in reader.versions()]
            except (CorruptFrameError, ForeignFileError, UnsupportedVersionError) as error:
                outcomes.add(type(error))
                continue
            # Only the very last version may be taken for a torn one: nothing sound follows it.
            assert actual == whole[:2], at
            assert reader.tail is not None
            outcomes.add(Tail)
    assert outcomes == {CorruptFrameError, ForeignFileError, Tail}


def test_a_frame_that_is_missing_in_the_middle_is_corruption(segment: Callable[[bytes], Path]) -> None:
    for missing in range(len(THREE) - 1):
        raw = HEADER + b"".join(THREE[:missing] + THREE[missing + 1 :])
        with pytest.raises(CorruptFrameError, match="frame sequence: found"):
            read(segment(raw))


def test_a_frame_of_another_segment_is_not_believed(segment: Callable[[bytes], Path]) -> None:
    other = SegmentHeader(Identity(bytes(16)), 1, 0, bytes(16)).encode()
    foreign = encode(COMMIT, 6, commit(4), seed_of(other))
    versions, tail = read(segment(SOUND + foreign))
    assert versions == [1, 2, 3]
    assert tail is not None
    assert "checksum mismatch" in tail.reason


def test_an_uncommitted_end_is_cut_back_to_the_commit(segment: Callable[[bytes], Path]) -> None:
    loose = b"".join(frames((MUTATIONS, b"a"), (MUTATIONS, b"b"), first=6))
    for raw in (SOUND + loose, SOUND + loose[:-1], SOUND + loose + bytes(40)):
        versions, tail = read(segment(raw))
        assert versions == [1, 2, 3]
        assert tail is not None
        assert (tail.offset, tail.size) == (len(SOUND), len(raw) - len(SOUND))


def test_sound_mutations_behind_a_tear_do_not_count_as_committed(segment: Callable[[bytes], Path]) -> None:
    torn, sound = frames((MUTATIONS, b"a"), (MUTATIONS, b"b"), first=6)
    versions, tail = read(segment(SOUND + torn[:-1] + b"?" + sound))
    assert versions == [1, 2, 3]
    assert tail is not None


def test_an_uncommitted_end_before_later_segments_is_corruption(segment: Callable[[bytes], Path]) -> None:
    path = segment(SOUND + frames((MUTATIONS, b"a"), first=6)[0])
    with pytest.raises(CorruptFrameError, match="ends inside a version"):
        read(path, last=False)


def big_version(first: int, version: int) -> bytes:
    return b"".join(
        frames(*[(MUTATIONS, bytes([i + 1]) * 3000) for i in range(4)], (COMMIT, commit(version)), first=first)
    )


def test_a_last_commit_written_before_its_mutations_is_a_torn_tail(segment: Callable[[bytes], Path]) -> None:
    # Power failed before the sync: the page with the commit was written, one before it was not.
    raw = SOUND + big_version(6, 4)
    for page in (4096, 8192):
        versions, tail = read(segment(raw[:page] + bytes(4096) + raw[page + 4096 :]))
        assert versions == [1, 2, 3]
        assert tail is not None
        assert tail.offset == len(SOUND)
    # The page that already holds the commit before it: its rest was not written.
    versions, tail = read(segment(SOUND + bytes(4096 - len(SOUND)) + raw[4096:]))
    assert versions == [1, 2, 3]


def test_an_unwritten_page_before_the_last_version_is_corruption(segment: Callable[[bytes], Path]) -> None:
    raw = SOUND + big_version(6, 4) + b"".join(frames((MUTATIONS, b"a"), (COMMIT, commit(5)), first=11))
    path = segment(raw[:4096] + bytes(4096) + raw[8192:])
    with pytest.raises(CorruptFrameError, match="sound commit follows"):
        read(path)


def test_a_damaged_last_version_without_an_unwritten_sector_is_corruption(segment: Callable[[bytes], Path]) -> None:
    raw = bytearray(SOUND + big_version(6, 4))
    raw[5000] ^= 1
    path = segment(bytes(raw))
    with pytest.raises(CorruptFrameError, match="sound commit follows"):
        read(path)


def test_damage_that_begins_with_a_sector_is_corruption_too(segment: Callable[[bytes], Path]) -> None:
    # no rest of a sector before it that could be unwritten
    sound = next(
        whole
        for size in range(SECTOR)
        if len(whole := HEADER + b"".join(frames((MUTATIONS, bytes(size)), (COMMIT, commit(1))))) % SECTOR == 0
    )
    raw = bytearray(sound + big_version(3, 2))
    raw[len(sound) + 200] ^= 1
    path = segment(bytes(raw))
    with pytest.raises(CorruptFrameError, match="sound commit follows"):
        read(path)


def test_a_renamed_segment_is_refused(segment: Callable[[bytes], Path], tmp_path: Path) -> None:
    moved = segment(SOUND).rename(tmp_path / segment_name(2))
    with pytest.raises(ForeignFileError, match="found versions from 1, expected those from 2"):
        SegmentReader(moved, last=True)


def test_a_commit_that_cannot_be_read_is_corruption(segment: Callable[[bytes], Path]) -> None:
    path = segment(SOUND + frames((COMMIT, b"\x01"), first=6)[0])
    with pytest.raises(CorruptFrameError, match="commit cannot be read: a commit is not a map"):
        read(path)


def test_an_end_mark_ends_the_segment(segment: Callable[[bytes], Path]) -> None:
    mark, after = frames((3, commit(3)), (COMMIT, commit(4)), first=6)
    reader = SegmentReader(segment(SOUND + mark), last=True)
    assert len(list(reader.versions())) == 3
    assert reader.ended is not None
    assert reader.ended.version == 3
    path = segment(SOUND + mark + after)
    with pytest.raises(CorruptFrameError, match="found a frame behind the end mark"):
        read(path)
