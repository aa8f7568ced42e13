"""docs/format.md is true: its worked example is read by code written from the page alone, and by ours."""

import hashlib
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest

import hybridstore as hs
from changelog import frame, journal, mutation, segment
from changelog.codec import pack
from changelog.mutation import ARITY, OP_NAMES, mutations
from changelog.reader import SegmentReader
from hybridstore.topology.kept_columns import column_to_keep, kept_column
from recovery import meta, runs
from recovery import pack as packs
from recovery.block import Columns, Extent, content_hash, pack_block, unpack_block
from recovery.directory import decode_changes, decode_page, encode_changes
from recovery.pack import StoredPack, read_footer
from recovery.table import look_into, pack_with_table
from tests.tools.checkpoints import is_whole, reader_of
from tests.tools.memory_storage import MemoryStorage

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def example(language: str = "hex") -> bytes:
    """The bytes of one of the page's dumps; each line's offset must be where its bytes begin."""
    dump = PAGE.partition(f"```{language}\n")[2].partition("```")[0]
    raw = b""
    for line in dump.splitlines():
        if line:
            offset, _, rest = line.partition("  ")
            assert int(offset, 16) == len(raw)
            raw += bytes.fromhex(rest.partition("   ")[0])
    return raw


def test_the_example_is_read_by_the_words_of_the_page() -> None:
    raw = example()
    head, rest = struct.unpack_from("<8sHHI16sIII", raw), struct.unpack_from("<QQ16sI", raw, 44)
    (magic, version, reader, flags, store, *shard), (first, parent, digest, seed) = head, rest
    assert (magic, version, reader, flags) == (bytes.fromhex("89 48 53 4c 4f 47 0d 0a"), 1, 1, 0)
    assert shard == [0, 0, 1]
    assert (store, first, parent, digest) == (bytes(range(16)), 1, 0, bytes(16))
    assert seed == zlib.crc32(raw[:76])
    at, sequence, frames = 80, 0, []
    while at < len(raw):
        mark, kind, reserved, length, number, crc = struct.unpack_from("<2sBBIII", raw, at)
        body = raw[at + 16 : at + 16 + length]
        assert (mark, reserved, number) == (b"hF", 0, sequence)
        assert crc == zlib.crc32(body, zlib.crc32(raw[at : at + 12], seed))
        frames.append((kind, body))
        at, sequence = at + 16 + length, sequence + 1
    (kind, changes), (second, commit_body), (third, end_body) = frames
    assert (kind, second, third) == (1, 2, 3)
    assert changes[0] == 0xDD

    def tuples(code: int, data: bytes) -> tuple[Any, ...]:
        assert code == 1
        return tuple(msgpack.unpackb(data))

    items = msgpack.unpackb(changes, ext_hook=tuples)
    parameters = {"retention_ms": 1000, "window_size_ms": None, "grace_ms": 1000, "retain_duplicates": False}
    assert items == [15, 1, "clicks", "window", parameters, 19, "ann", (1, "x"), 5000, 16, 5200]
    digest = hashlib.blake2b(bytes(16) + changes[5:], digest_size=16).digest()
    records = {15: 1, 19: 1, 16: 1}
    expected = {"version": 1, "digest": digest, "records": records, "wall_ms": 1_700_000_000_000, "times": {1: 5200}}
    assert msgpack.unpackb(commit_body, strict_map_key=False) == expected
    assert msgpack.unpackb(end_body, strict_map_key=False) == expected | {"records": {}, "wall_ms": 1_700_000_000_001}


def test_the_rows_of_a_join_are_stored_as_the_page_says(tmp_path: Path) -> None:
    """A row without a key that waits, by a watermark, and the columns of an input that declares none."""
    from hybridstore.clock import Watermark
    from hybridstore.topology.engine import Engine
    from hybridstore.topology.joins.rows import tagged

    orders = hs.stream(name="orders", key="order", timestamp="ordered")
    payments = hs.stream(name="payments", key="order", timestamp="paid", columns=["amount"])
    join = orders.join(payments, within="1 hour", how="left")
    with Engine(join, tmp_path / "state", durability="os") as engine:
        rows = {"orders": [{"order": None, "ordered": 5, "item": "tea"}], "payments": []}
        (part,) = engine.split_batch(tagged(join.joined, rows), 0)
        assert not engine.table_of(0, part, Watermark(0, 0)).size
        engine.commit()
        assert engine.states[0].settings["columns of the inputs"] == {"0": ["item"]}
    state = hs.inspect(tmp_path / "state")
    ((key, times, value),) = [(row.key, row.times, row.value) for row in state["orders without key"]]
    assert (key, times) == (0, (5,))
    assert pack(value) == example("join")


def test_the_kept_columns_have_the_bytes_of_the_page() -> None:
    columns: list[list[Any]] = [[1, -1], ["tea"]]
    kept = list(map(column_to_keep, columns))
    assert pack(kept) == example("kept")
    assert list(map(kept_column, kept)) == columns


def test_the_example_is_a_state_directory(tmp_path: Path) -> None:
    path = tmp_path / "state" / "changelog" / "00000000000000000001.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(example())
    reader = SegmentReader(path, last=True)
    (version,) = reader.versions()
    assert reader.ended is not None
    assert version.commit.records == {15: 1, 19: 1, 16: 1}
    with hs.open(tmp_path / "state") as state:
        clicks = state.window("clicks", retention=1000)
        assert list(clicks.all()) == [(("ann", 5000), (1, "x"))]
        assert clicks.stream_time == 5200


def test_the_page_names_every_op_with_its_arguments() -> None:
    section = PAGE.partition("## Mutations and ops")[2].partition("## Values")[0]
    rows = dict(re.findall(r"^\| (\d+) \| (\w+ \| [\w, ]+?) \|", section, re.M))
    documented = {
        int(op): (name, len(arguments.split(",")))
        for op, (name, arguments) in ((op, row.split(" | ")) for op, row in rows.items())
    }
    assert documented == {op: (OP_NAMES[op], ARITY[op]) for op in range(16) if OP_NAMES[op]}
    assert list(mutations([19, "k", 1, 2])) == [mutation.Mutation(1, 3, ("k", 1, 2))]


@pytest.mark.parametrize("magic", [segment.MAGIC, packs.MAGIC])
def test_the_page_has_the_magic_of_every_file(magic: bytes) -> None:
    assert f"`{magic.hex(' ')}`" in PAGE


def test_the_page_has_the_sizes_and_versions_of_the_code() -> None:
    assert segment.HEADER_BYTES == 80
    assert frame.HEADER_BYTES == 16
    assert frame.MAX_BODY_BYTES == 2**30
    assert (journal.MAX_KEY_BYTES, journal.MAX_MUTATION_BYTES) == (2**24, 2**29)
    assert {packs.FORMAT_VERSION, meta.FORMAT_VERSION} == {1}
    assert (packs.HEADER.size, packs.TRAILER.size) == (24, 16)
    assert (segment.FORMAT_VERSION, segment.MIN_READER_VERSION, runs.FORMAT_VERSION) == (1, 1, 1)


def sealed(raw: bytes) -> Any:
    """What a sealed record holds, by the words of the page."""
    assert int.from_bytes(raw[:4], "little") == zlib.crc32(raw[4:])
    return msgpack.unpackb(raw[4:])


def test_the_pack_is_read_by_the_words_of_the_page() -> None:
    raw = example("pack")
    magic, version, reader, flags, number = struct.unpack_from("<8sHHI8s", raw)
    assert (magic, version, reader, flags) == (bytes.fromhex("89 48 53 50 43 4b 0d 0a"), 1, 1, 0)
    assert number == bytes(range(8))
    start, again = struct.unpack_from("<Q8s", raw, len(raw) - 16)
    assert again == magic
    stores, numbers, offsets, sizes = sealed(raw[start:-16])
    assert (stores, numbers) == ([1, 1], [1, 0])
    assert [offsets[0], offsets[0] + sizes[0], offsets[1] + sizes[1]] == [24, offsets[1], start]
    block, page = (raw[at : at + size] for at, size in zip(offsets, sizes, strict=True))
    hashed = hashlib.blake2b(block[4:], digest_size=16).digest()
    assert sealed(block) == [["a", "b"], None, [], [1, [2]]]
    assert sealed(page) == [0, [1], ["a"], ["b"], [2], [2], [16], [-1], [-1], hashed, [1], [24], [[]]]


def test_the_changes_of_a_page_are_read_by_the_words_of_the_page() -> None:
    assert sealed(example("changes")) == [[0], [2], *[None] * 10, [[0, 2, 24, 16, bytes(range(16))]]]


def test_the_pack_is_read_by_ours() -> None:
    raw = example("pack")
    storage = MemoryStorage()
    assert storage.create("packs/it", raw)
    pack = StoredPack(storage, "packs/it", len(raw))
    block, page = read_footer(pack, len(raw), "it")
    assert all(is_whole(pack, line) for line in (block, page))
    columns = unpack_block(pack.read(block.offset, block.size), "it")
    assert (columns.keys, columns.values) == (["a", "b"], [1, [2]])
    hashed = content_hash(pack.read(block.offset, block.size)[4:])
    raw_page = pack.read(page.offset, page.size)
    (entry,) = decode_page(raw_page, "it", content_hash(raw_page[4:]))
    assert (entry.block, entry.bucket, entry.first, entry.last) == (1, 0, "a", "b")
    changes = example("changes")
    layer = Extent(2, 24, 16, bytes(range(16)))
    assert decode_changes(changes, "it", content_hash(changes[4:]), [entry]) == [
        entry._replace(block=2, layers=(layer,))
    ]
    assert encode_changes([entry], [entry._replace(block=2, layers=(layer,))]) == changes
    assert (entry.pack, entry.offset, entry.size, entry.hash) == (1, block.offset, block.size, hashed)


def test_the_table_is_read_by_the_words_of_the_page() -> None:
    raw = example("table")
    keys, counts, ints, values, table = sealed(raw)
    assert [keys, counts, ints, values] == sealed(pack_block(Columns(["a", "b"], None, (), [1, [2]]))[0])
    assert raw.endswith(table)
    n, columns, counted, whole = struct.unpack("<IHHI", table[-12:])
    assert (n, columns, counted, whole) == (2, 0, 0, zlib.crc32(table[:-4]))
    slots = [struct.unpack_from("<5I", table, at) for at in (0, 20)]
    assert slots == sorted(slots)
    body = raw[4:]
    for (hashed, start, first, last, check), key, value in zip(
        slots, (b"\xa1b", b"\xa1a"), (b"\x91\x02", b"\x01"), strict=True
    ):
        assert body[start:].startswith(key)
        assert (body[first:last], hashed, check) == (value, zlib.crc32(key), zlib.crc32(key + value))
    assert pack_with_table(Columns(["a", "b"], None, (), [1, [2]]))[0] == raw
    table_of = look_into(raw, "it", kept=False)
    assert [table_of.rows_of(key).values for key in "abc"] == [[1], [[2]], []]


def test_the_directory_lines_of_a_checkpoint_are_those_of_the_page(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        window = state.window("w", retention=100)
        for i in range(10):
            window.put(f"k{i % 3}", i, i)
        state.commit()
        state.checkpoint(wait=True)
    reader = reader_of(tmp_path, 1)
    for entry in reader.directory(1):
        raw = bytes(reader.raw_block(entry))
        assert int.from_bytes(raw[:4], "little") == zlib.crc32(raw[4:])
        assert entry.hash == hashlib.blake2b(raw[4:], digest_size=16).digest()
        keys, counts, ints, values = msgpack.unpackb(raw[4:])
        times = struct.unpack(f"<{len(values)}q", ints[0])
        numbers = [1] * len(keys) if counts is None else struct.unpack(f"<{len(keys)}B", counts)
        assert (entry.size, entry.first, entry.last) == (len(raw), keys[0], keys[-1])
        assert (entry.keys, entry.records) == (len(keys), sum(numbers))
        assert (entry.low, entry.high) == (min(times), max(times))
        assert keys == sorted(keys)
    reader.close()
