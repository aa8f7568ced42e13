"""Frames: what is sound, and that no damage passes for it."""

import pytest

from changelog.codec import pack
from changelog.frame import (
    COMMIT,
    END,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_BODY_BYTES,
    MUTATIONS,
    CommitFrame,
    decode_commit,
    encode,
    encode_commit,
    problem,
)

SEED = 0xC0FFEE
COMMITTED = CommitFrame(7, bytes(range(16)), {19: 12}, 1_700_000_000_000, {1: 5, 2: -1}, {})


def split(raw: bytes) -> tuple[bytes, bytes]:
    return raw[:HEADER_BYTES], raw[HEADER_BYTES:]


@pytest.mark.parametrize("kind", [MUTATIONS, COMMIT, END])
@pytest.mark.parametrize("sequence", [0, 1, 2**32 - 1])
def test_an_encoded_frame_is_sound(kind: int, sequence: int) -> None:
    header, body = split(encode(kind, sequence, b"body", SEED))
    assert problem(header, body, sequence, SEED) is None
    assert problem(header, body, None, SEED) is None


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, "not possible"), (1, "cut short"), (MAX_BODY_BYTES, "cut short"), (MAX_BODY_BYTES + 1, "not")],
)
def test_a_body_has_a_byte_at_least_and_as_many_as_may_be_written_at_most(length: int, expected: str) -> None:
    fault = problem(HEADER.pack(MAGIC, MUTATIONS, 0, length, 0, 0), b"", 0, SEED)
    assert fault is not None
    assert expected in fault


def test_every_flipped_bit_is_noticed() -> None:
    raw = encode(COMMIT, 3, encode_commit(COMMITTED), SEED)
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            assert problem(*split(bytes(damaged)), 3, SEED) is not None, (at, bit)


def test_every_cut_is_noticed() -> None:
    raw = encode(MUTATIONS, 0, b"some body", SEED)
    for size in range(len(raw)):
        assert problem(*split(raw[:size]), 0, SEED) is not None


def test_a_run_of_zeros_is_not_a_frame() -> None:
    assert "magic" in (problem(bytes(16), b"", 0, 0) or "")


def test_length_0_is_not_possible_even_with_a_checksum_that_fits() -> None:
    header, body = split(encode(MUTATIONS, 0, b"", SEED))
    assert problem(header, body, 0, SEED) == "frame length 0 is not possible"


def test_an_absurd_length_is_not_believed() -> None:
    header = HEADER.pack(MAGIC, MUTATIONS, 0, 2**31, 0, 0)
    assert problem(header, b"", 0, SEED) == f"frame length {2**31} is not possible"


def test_a_frame_of_another_segment_fails_its_checksum() -> None:
    assert "checksum mismatch: stored" in (problem(*split(encode(MUTATIONS, 0, b"x", SEED)), 0, SEED + 1) or "")


def test_a_frame_moved_within_its_segment_fails_its_sequence() -> None:
    assert problem(*split(encode(MUTATIONS, 5, b"x", SEED)), 6, SEED) == "frame sequence: found 5, expected 6"


def test_an_unknown_kind_is_named() -> None:
    assert problem(*split(encode(4, 0, b"x", SEED)), 0, SEED) == "frame kind 4 with reserved byte 0 is unknown"


def test_a_commit_comes_back() -> None:
    assert decode_commit(encode_commit(COMMITTED)) == COMMITTED


def test_fields_of_a_later_release_are_kept_apart() -> None:
    commit = decode_commit(encode_commit(COMMITTED._replace(extra={"batch": 4})))
    assert commit == COMMITTED._replace(extra={"batch": 4})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": None}, "wrong type"),
        ({"version": -1}, "wrong type"),
        ({"version": True}, "wrong type"),
        ({"digest": b"short"}, "wrong type"),
        ({"records": 5}, "wrong type"),
        ({"records": {19: -1}}, "wrong type"),
        ({"records": {"19": 1}}, "wrong type"),
        ({"wall_ms": "noon"}, "wrong type"),
        ({"times": []}, "wrong type"),
    ],
)
def test_a_commit_with_a_wrong_field_is_refused(change: dict[str, object], reason: str) -> None:
    fields = {"version": 1, "digest": bytes(16), "records": {}, "wall_ms": 0, "times": {}}
    assert decode_commit(pack(fields)).version == 1
    with pytest.raises(ValueError, match=reason):
        decode_commit(pack(fields | change))
    for missing in fields:
        with pytest.raises(ValueError, match=f"lacks its {missing}"):
            decode_commit(pack({name: value for name, value in fields.items() if name != missing}))


def test_a_commit_that_is_not_a_map_is_refused() -> None:
    with pytest.raises(ValueError, match="not a map"):
        decode_commit(pack([1]))
