"""Keys and values up to the stated bounds are read again; above them comes one sentence, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog import frame, journal
from changelog.journal import Journal, chain
from tests.tools.hooks import check_stores, crash

NEVER = hs.CheckpointPolicy(max_restore="1 hour")
BODY, MUTATION, KEY = 40_000, 20_000, 5_000
# The packer packs text up to 256 characters later; the bounds of the test are above that.
SIZES = [0, 1, 255, 256, 257, 300, 1000, 4999, 5000]
Key = Callable[[str], Any]
KEYS: dict[str, Key] = {
    "text": lambda text: text,
    "bytes": lambda text: text.encode(),
    "tuple": lambda text: (text[: len(text) // 2], text[len(text) // 2 :]),
}


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of a frame, a mutation and a key, a hundred thousandth of what they are."""
    for module, name, value in (
        (frame, "MAX_BODY_BYTES", BODY),
        (journal, "MAX_BODY_BYTES", BODY),
        (journal, "MAX_MUTATION_BYTES", MUTATION),
        (journal, "MAX_KEY_BYTES", KEY),
    ):
        monkeypatch.setattr(module, name, value)
    for module_name in ("hybridstore.stores.keys", "hybridstore.stores.sliding", "changelog.reader"):
        module = __import__(module_name, fromlist=["x"])
        for name in ("MAX_KEY_BYTES", "MAX_BODY_BYTES"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(journal, name))


def opened(path: Path) -> hs.State:
    return hs.open(path, durability="os", checkpoints=NEVER)


class Stores:
    def __init__(self, state: hs.State) -> None:
        self.kv = state.key_value("kv")
        self.ttl = state.key_value("ttl", ttl=10**6)
        self.window = state.window("window", retention=10**6)
        self.session = state.session("session", retention=10**6)
        self.sliding = state.sliding("sliding", size=10**6, aggregator=hs.Count())
        self.buffer = state.suppression("buffer", time_limit=10**6)
        self.bounded = state.suppression("bounded", max_records=1)

    def puts(self, key: Any, value: Any, ts: int) -> dict[str, Callable[[], Any]]:
        return {
            "kv": lambda: self.kv.put(key, value),
            "ttl": lambda: self.ttl.put(key, value, ts),
            "window": lambda: self.window.put(key, value, ts),
            "session": lambda: self.session.put(key, value, start=ts, end=ts),
            "sliding": lambda: self.sliding.add(key, value, ts),
            "buffer": lambda: self.buffer.put(key, value, ts),
            "bounded": lambda: self.bounded.put(key, value, ts),
            "kv columns": lambda: self.kv.put_columns([key], [value]),
            "window columns": lambda: self.window.put_columns([key], [value], [ts]),
            "session columns": lambda: self.session.put_columns([key], [value], [ts], [ts]),
            "sliding columns": lambda: self.sliding.add_columns([key], [value], [ts]),
            "buffer columns": lambda: self.buffer.put_columns([key] * 10, [value] * 10, [ts] * 10),
            "kv mixed": lambda: (
                self.kv.put_many([("kv mixed", ts), ("absent", None), (key, value)])
                if type(key) is str
                else self.kv.put(key, value)
            ),
            "bounded columns": lambda: self.bounded.put_columns([key] * 3, [value] * 3, [ts] * 3),
        }

    def contents(self) -> list[Any]:
        stores: tuple[Any, ...] = (self.kv, self.ttl, self.window, self.session, self.sliding)
        return [
            *(list(store.all()) for store in stores),
            list(self.buffer.buffered()),
            list(self.bounded.buffered()),
            [store.stream_time for store in stores],
        ]


@pytest.mark.parametrize("kind", KEYS)
def test_keys_and_values_of_every_size_up_to_the_bounds_are_read_again(tmp_path: Path, kind: str) -> None:
    make = KEYS[kind]
    with opened(tmp_path / "state") as state:
        stores, ts = Stores(state), 0
        for size in SIZES:
            for value in (1, "x" * 250, b"y" * 300, "z" * (MUTATION - 3 * KEY)):
                for number in range(4):  # many long keys with short values in one frame
                    text = (f"{number}" + "k" * size)[:size]
                    for put in stores.puts(make(text), value, ts).values():
                        put()
                    ts += 1
            if size % 2:
                state.commit()
        state.commit()
        expected, version = stores.contents(), state.version
        crash(state)
    with opened(tmp_path / "state") as state:
        assert state.version == version
        assert Stores(state).contents() == expected
        state.checkpoint(wait=True)
        check_stores(state)
    with opened(tmp_path / "state") as state:
        assert Stores(state).contents() == expected


@pytest.mark.parametrize("kind", KEYS)
def test_above_the_bounds_is_one_sentence_and_nothing_changes(tmp_path: Path, kind: str) -> None:
    make = KEYS[kind]
    with opened(tmp_path / "state") as state:
        stores = Stores(state)
        for put in stores.puts(make("some"), 1, 5).values():
            put()
        state.commit()
        before = stores.contents()
        cases = [
            (make("k" * (KEY + 1)), 1, r"found 5,001 bytes, expected at most 5,000 \(use a hash of the key"),
            (make("é" * (KEY // 2 + 1)), 1, r"found 5,002 bytes, expected at most 5,000"),
            (make("k"), "v" * (MUTATION + 1), r"found 20,0\d\d bytes, expected at most 20,000"),
            (make("k"), ["v" * MUTATION], r"found 20,0\d\d bytes, expected at most 20,000"),
        ]
        for key, value, words in cases:
            for name, put in stores.puts(key, value, 9).items():
                with pytest.raises(ValueError, match=words) as caught:
                    put()
                assert "\n" not in str(caught.value), name
        assert stores.contents() == before
        assert state.commit() == 1  # nothing was logged
        with pytest.raises(ValueError, match="found 20,0"):
            state.set("name", "v" * MUTATION)
        assert state.commit() == 1


def test_no_frame_is_written_that_a_reader_refuses() -> None:
    with pytest.raises(ValueError, match="a frame: found a body of 40,001 bytes, expected at most 40,000"):
        frame.encode(frame.MUTATIONS, 0, b"x" * (BODY + 1), 0)
    data = frame.encode(frame.MUTATIONS, 0, b"x" * BODY, 0)
    assert frame.problem(data[: frame.HEADER_BYTES], data[frame.HEADER_BYTES :], 0, 0) is None


def test_a_body_that_would_be_too_large_is_split() -> None:
    bodies: list[bytes] = []
    split = Journal(bodies.append, frame_bytes=10**9, frame_records=10**6)
    for number in range(30):
        split.record(17, f"key {number}", "v" * 5000)
    digest = split.seal()
    assert len(bodies) > 3
    assert max(map(len, bodies)) <= BODY
    assert digest == chain(bytes(16), bodies)
    assert sum(int.from_bytes(body[1:5], "big") for body in bodies) == 90
