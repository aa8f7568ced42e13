"""Journal: mutations in order, packed when they are put, and a digest that depends on nothing else."""

from typing import Any

import pytest

from changelog import journal as journal_module
from changelog.codec import unpack
from changelog.errors import ChangelogError
from changelog.journal import EMPTY_DIGEST, Journal, chain, is_small_atom
from changelog.mutation import Mutation, count_records, mutations


def collect(**options: int) -> tuple[Journal, list[bytes]]:
    bodies: list[bytes] = []
    return Journal(bodies.append, **options), bodies


def put(journal: Journal, key: Any, value: Any) -> None:
    """As a store does it: small atoms wait for the frame, the rest is packed at once."""
    if is_small_atom(value):
        journal.extend((17, key, value))
        if len(journal.items) >= journal.limit:
            journal.spill()
    else:
        journal.record(17, key, value)


VALUES = [1, "a", [1, 2], (3,), b"x" * 1000, None, 2**70, {"k": {1}}, 1.5, "y" * 300]


def test_mutations_come_out_in_the_order_they_went_in() -> None:
    for frame_records in (1, 2, 1000):
        journal, bodies = collect(frame_records=frame_records)
        for i in range(30):
            put(journal, i, VALUES[i % len(VALUES)])
        journal.seal()
        actual = [mutation for body in bodies for mutation in mutations(unpack(body))]
        assert actual == [Mutation(1, 1, (i, VALUES[i % len(VALUES)])) for i in range(30)]
        assert journal.records == {17: 30}


def test_records_are_counted_by_code_whatever_comes_first() -> None:
    counts = {17: 1}
    count_records([17, "a", 1, 33, "b", 2, 17, "c", 3], counts)
    count_records([23, ["a", "b"], [1, 2], None, 17, "d", 4], counts)
    count_records([17, "e", 5, 17, "f", 6], counts)
    assert counts == {17: 6, 33: 1, 23: 2}


def test_the_digest_does_not_depend_on_framing() -> None:
    digests = set()
    for options in ({"frame_records": 1}, {"frame_records": 7}, {"frame_bytes": 10}, {}):
        journal, bodies = collect(**options)
        journal.restart(b"p" * 16)
        for i in range(30):
            put(journal, i, VALUES[i % len(VALUES)])
        digests.add(journal.seal())
        assert chain(b"p" * 16, bodies) in digests
    assert len(digests) == 1


def test_the_digest_depends_on_parent_content_and_order() -> None:
    def digest(parent: bytes, *keys: str) -> bytes:
        journal, _ = collect()
        journal.restart(parent)
        for key in keys:
            put(journal, key, 1)
        return journal.seal()

    digests = [
        digest(EMPTY_DIGEST, "a", "b"),
        digest(EMPTY_DIGEST, "b", "a"),
        digest(b"p" * 16, "a", "b"),
        digest(EMPTY_DIGEST, "a"),
    ]
    assert len(set(digests)) == 4


def test_a_list_changed_after_it_was_put_is_logged_as_it_was() -> None:
    journal, bodies = collect()
    value = [1]
    put(journal, "k", value)
    value.append(2)
    journal.seal()
    assert unpack(bodies[0]) == [17, "k", [1]]


def test_what_cannot_be_packed_is_not_logged() -> None:
    journal, _ = collect()
    with pytest.raises(TypeError):
        journal.record(17, "k", object())
    assert journal.empty


def test_what_could_not_be_read_back_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_MUTATION_BYTES", 1000)
    journal, _ = collect()
    with pytest.raises(ValueError, match=r"a mutation: found 1,\d+ bytes, expected at most 1,000"):
        journal.record(17, "k", b"x" * 1000)
    assert journal.empty


def test_frames_stay_near_their_limits() -> None:
    journal, bodies = collect(frame_bytes=1000)
    for i in range(100):
        journal.record(17, i, b"x" * 200)
    journal.seal()
    assert max(map(len, bodies)) < 1300
    journal, bodies = collect(frame_records=10)
    for i in range(100):
        put(journal, i, i)
    journal.seal()
    assert max(len(unpack(body)) for body in bodies) <= 43
    journal, bodies = collect(frame_records=10)
    for i in range(30):
        journal.record(17, i, b"x", 0)
    assert [len(unpack(body)) for body in bodies] == [40, 40, 40]


def test_restart_forgets() -> None:
    journal, bodies = collect()
    put(journal, "k", 1)
    put(journal, "k", [1])
    journal.restart(EMPTY_DIGEST)
    assert journal.empty
    journal.seal()
    assert bodies == []


@pytest.mark.parametrize(
    ("flat", "complaint"),
    [
        ([17, "k"], "op put has 1 arguments, expected 2"),
        (["17", "k", 1], "mutation code: found '17'"),
        ([-1], "mutation code: found -1"),
        ([True, 1, 2], "mutation code: found True"),
        ([29, 1], "op 13 is unknown"),
    ],
)
def test_a_frame_that_is_no_list_of_mutations_says_where(flat: list[Any], complaint: str) -> None:
    with pytest.raises(ChangelogError, match=rf"item 0 of a frame: {complaint}"):
        list(mutations(flat))
