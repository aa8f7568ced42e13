"""The running digest: the same bytes give the same digest, whoever hashes them."""

from __future__ import annotations

import os
import random
import threading
from hashlib import blake2b
from pathlib import Path

import pytest

import hybridstore as hs
from changelog import digest as module
from changelog.digest import PIECE_BYTES, RunningDigest
from changelog.journal import Journal, chain
from tests.tools.hooks import crash

_PARENT = bytes(range(16))


def plain(parts: list[bytes]) -> bytes:
    return blake2b(_PARENT + b"".join(parts), digest_size=16).digest()


def running(parts: list[bytes]) -> bytes:
    digest = RunningDigest(_PARENT)
    for part in parts:
        digest.add(memoryview(part))
    return digest.digest()


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [PIECE_BYTES - 1],
        [PIECE_BYTES],
        [PIECE_BYTES + 1],
        [PIECE_BYTES // 2] * 5,
        [65_536] * 40,
        [3 * PIECE_BYTES, 1, 2 * PIECE_BYTES],
    ],
)
def test_it_is_the_hash_of_everything_in_order(sizes: list[int]) -> None:
    dice = random.Random(len(sizes))
    parts = [dice.randbytes(size) for size in sizes]
    assert running(parts) == plain(parts)


def test_more_can_be_added_after_a_digest_was_taken() -> None:
    digest = RunningDigest(_PARENT)
    parts = [bytes([i]) * PIECE_BYTES for i in range(6)]
    for i, part in enumerate(parts):
        digest.add(memoryview(part))
        assert digest.digest() == plain(parts[: i + 1])


def test_a_small_version_never_leaves_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORKER", None)
    parts = [bytes(PIECE_BYTES // 4)] * 3
    assert running(parts) == plain(parts)


def test_the_thread_hashes_what_it_is_given() -> None:
    into, part = blake2b(_PARENT, digest_size=16), bytes(range(256))
    piece = module._WORKER.submit(into, [memoryview(part)])
    with piece.ended:
        assert piece.done
        assert into.digest() == plain([part])


def test_without_a_thread_the_owner_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_WORKER", module._Worker())
    monkeypatch.setattr(threading.Thread, "start", refused)
    parts = [bytes([i]) * PIECE_BYTES for i in range(4)]
    assert running(parts) == plain(parts)


def test_several_owners_share_the_thread() -> None:
    dice = random.Random(1)
    versions = [[dice.randbytes(50_000) for _ in range(20)] for _ in range(6)]
    actual: list[bytes | None] = [None] * len(versions)

    def hash_version(i: int) -> None:
        actual[i] = running(versions[i])

    threads = [threading.Thread(target=hash_version, args=(i,)) for i in range(len(versions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == [plain(parts) for parts in versions]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    parts = [bytes([i]) * PIECE_BYTES for i in range(4)]
    assert running(parts) == plain(parts)  # the parent's thread is there
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, running(parts))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == plain(parts)
    os.waitpid(child, 0)


def test_the_journal_gives_the_chain_over_its_frames() -> None:
    bodies: list[bytes] = []
    journal = Journal(bodies.append)
    dice = random.Random(2)
    parent = bytes(16)
    for _ in range(3):
        bodies.clear()
        for key in range(400):
            journal.record(17, key, dice.randbytes(6000))
        digest = journal.seal()
        assert sum(map(len, bodies)) > 4 * PIECE_BYTES
        assert digest == chain(parent, bodies)
        parent = digest
        journal.restart(digest)


def test_a_version_thrown_away_while_it_is_hashed_leaves_nothing_behind(tmp_path: Path) -> None:
    with hs.open(tmp_path, durability="os") as state:
        store = state.key_value("s")
        store.put("a", 1)
        state.commit()
        for i in range(300):
            store.put(f"k{i}", bytes(6000))
        state.rollback()
        store.put("b", 2)
        state.commit()
        digest = state.digest
        crash(state)
    with hs.open(tmp_path) as state:
        assert (state.version, state.digest) == (2, digest)
        assert dict(state.key_value("s").all()) == {"a": 1, "b": 2}
