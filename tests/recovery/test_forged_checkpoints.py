"""A checkpoint whose checksums fit and whose parts do not fit each other: verify names what is wrong, and where."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from changelog.codec import pack
from changelog.identity import Identity
from changelog.segment import Position
from recovery import block, directory, index, layout, planner, write
from recovery.block import BucketChange, Columns, Extent, StoreCapture, content_hash, pack_block, seal
from recovery.checkpoint import CheckpointReader
from recovery.pack import FORMAT_VERSION, HEADER, MAGIC, TRAILER, PackWriter
from recovery.verify import Fault, Verifier
from recovery.write import write_checkpoint
from tests.tools.memory_storage import MemoryStorage
from tests.tools.sizes import SMALL_PARTS

Patch = pytest.MonkeyPatch
KEYS = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"]


WRONG_TYPE = "meta record: a field of the wrong type"
OF_NO_STORE: list[tuple[str, Any]] = [
    ("number", "1"),
    ("number", -1),
    ("number", 1 << 32),
    ("name", b"it"),
    ("kind", 7),
    ("parameters", []),
    ("state", None),
    ("next_block", -1),
    ("records", "8"),
    ("size", None),
]
OF_NO_CHECKPOINT: list[tuple[str, Any]] = [
    ("written", -1),
    ("wall_ms", "1"),
    ("digest", b""),
    ("settings", {1: 1}),
    ("identity", Identity(bytes(16), shard=-1)),
]


def checkpoint(
    storage: MemoryStorage, columns: Columns, version: int, previous: CheckpointReader | None, block_records: int = 16
) -> str:
    """Write a checkpoint of these changed records, and return its name."""
    return write_checkpoint(
        storage,
        identity=Identity(bytes(16)),
        version=version,
        digest=bytes(16),
        position=Position(0, 0, 0),
        settings={},
        captures=[StoreCapture(1, "it", "window", {}, {}, {0: BucketChange(columns, set(), previous is None)})],
        previous=previous,
        sizes=SMALL_PARTS._replace(block_records=block_records),
    ).name


def faults(change: Callable[[str, bytes], bytes] = lambda name, data: data) -> list[Fault]:
    """What verify says of a checkpoint of eight records in blocks of two, after a change of its files."""
    storage = MemoryStorage()
    columns = Columns(KEYS, None, (array("q", range(8)),), [f"value {key}" for key in KEYS])
    written = checkpoint(storage, columns, 7, None, block_records=2)
    storage.objects = {name: change(name, data) for name, data in storage.objects.items()}
    name = layout.parse_checkpoint_name(written)
    assert name is not None
    return list(Verifier(decode=True).checkpoint(storage, written, name.version))


def sealed(columns: Any) -> tuple[bytes, bytes]:
    """A block of this content, whatever it is, and its hash."""
    data = seal(pack(columns))
    return data, content_hash(data[4:])


def store_with(**wrong: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The meta record says something else of the store."""

    def forge(patch: Patch) -> None:
        plain = write.StoreRecord

        def record(*fields: Any) -> Any:
            right = plain(*fields)
            return right._replace(**{name: change(getattr(right, name)) for name, change in wrong.items()})

        patch.setattr(write, "StoreRecord", record)

    return forge


def meta_with(**wrong: Any) -> Callable[[Patch], None]:
    """The meta record says something else of the checkpoint."""
    encode = write.encode_meta
    return lambda patch: patch.setattr(write, "encode_meta", lambda meta: encode(meta._replace(**wrong)))


def line_with(**wrong: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The directory says something else of each block."""

    def forge(patch: Patch) -> None:
        def entry(*given: Any) -> Any:
            line = block.entry_of(*given)
            return line._replace(**{name: change(getattr(line, name)) for name, change in wrong.items()})

        patch.setattr(planner, "entry_of", entry)

    return forge


def block_of(make: Callable[[Columns], tuple[bytes, bytes]]) -> Callable[[Patch], None]:
    """Each block has other bytes."""
    return lambda patch: patch.setattr(write, "pack_block", make)


def footer_with(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The footer says something else of each block and page."""

    def forge(patch: Patch) -> None:
        finish = PackWriter.finish

        def forged(self: PackWriter) -> None:
            self._lines = list(map(change, self._lines))
            finish(self)

        patch.setattr(PackWriter, "finish", forged)

    return forge


def page_of(make: Callable[[Any], bytes]) -> Callable[[Patch], None]:
    """Each page of the directory has other bytes."""
    return lambda patch: patch.setattr(write, "encode_page", make)


def lines_with(**wrong: Any) -> Callable[[Patch], None]:
    """Each page says something else of its blocks, and the top record does not."""
    return page_of(lambda lines: directory.encode_page([line._replace(**wrong) for line in lines]))


def page_at(**wrong: Any) -> Callable[[Patch], None]:
    """The top record says that each page is elsewhere."""
    return lambda patch: patch.setattr(
        write, "page_entry", lambda *given: directory.page_entry(*given)._replace(**wrong)
    )


def top_of(make: Callable[[Any], bytes]) -> Callable[[Patch], None]:
    """The top record has other bytes."""
    return lambda patch: patch.setattr(write, "encode_top", make)


def backwards(columns: Columns) -> tuple[bytes, bytes]:
    return pack_block(Columns(columns.keys[::-1], None, columns.ints, columns.values))


def more_records(patch: Patch) -> None:
    encode = index.encode
    patch.setattr(index, "encode", lambda records: encode({**records, b"zz": b"?"}))


def no_top_record(patch: Patch) -> None:
    encode = index.encode
    patch.setattr(index, "encode", lambda records: encode({index.META_KEY: records[index.META_KEY]}))


def another_name(patch: Patch) -> None:
    patch.setattr(write, "CheckpointName", lambda version, *rest: layout.CheckpointName(version + 1, *rest))


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (store_with(records=lambda n: n + 1), "store 'it': records or bytes of its pages are not what the meta record"),
        (store_with(size=lambda n: n - 1), "store 'it': records or bytes of its pages are not what the meta record"),
        (store_with(next_block=lambda n: n - 1), "store 'it': block number 4 is used twice or not given out yet"),
        *((store_with(**{field: lambda _, value=value: value}), WRONG_TYPE) for field, value in OF_NO_STORE),
        *((meta_with(**{field: value}), WRONG_TYPE) for field, value in OF_NO_CHECKPOINT),
        (line_with(block=lambda n: 1), "store 'it': block number 1 is used twice or not given out yet"),
        (line_with(keys=lambda n: n + 1), "block 1: keys: found 2, the directory says 3"),
        (line_with(records=lambda n: n + 1), "block 1: records: found 2, the directory says 3"),
        (line_with(first=lambda key: key + "!"), "block 1: first: found 'ann', the directory says 'ann!'"),
        (line_with(last=lambda key: "zoe"), "store 'it': blocks 1 and 2 are not in order"),
        (line_with(first=lambda key: 5), "store 'it': blocks 1 and 2 are not in order"),  # as no text and number are
        (line_with(low=lambda time: time + 1), "block 1: low: found 0, the directory says 1"),
        (line_with(high=lambda time: time - 1), "block 1: high: found 1, the directory says 0"),
        (block_of(backwards), "store 'it': block 1: keys are not in order"),
        (
            block_of(lambda columns: sealed("no block")),
            "block 1: block cannot be read: found no array, expected 4 parts",
        ),
        (block_of(lambda columns: sealed([])), "block 1: block cannot be read: found 0 parts, expected 4 parts, or 5"),
        (block_of(lambda columns: sealed([1, 2, 3])), "block cannot be read: found 3 parts, expected 4 parts, or 5"),
        (block_of(lambda columns: (pack_block(columns)[0], bytes(16))), "block 1: its content is not what the direct"),
        (
            block_of(lambda columns: sealed([columns.keys, None, [], columns.values[:1]])),
            "block 1: block cannot be read: columns of different lengths",
        ),
        (
            block_of(lambda columns: sealed([columns.keys, bytes([2]), [], columns.values])),
            "block 1: block cannot be read: keys and counts of different lengths",
        ),
        (
            block_of(lambda columns: sealed([columns.keys, [None, bytes(24)], [], columns.values])),
            "block 1: block cannot be read: keys and froms of different lengths",
        ),
        (footer_with(lambda line: line._replace(number=line.number + 1)), "block 1: the footer says block 2 of store"),
        (footer_with(lambda line: line._replace(store=2)), "block 1: the footer says block 1 of store 2"),
        (footer_with(lambda line: line._replace(offset=line.offset + 1)), "footer: a line that does not follow byte"),
        (footer_with(lambda line: line._replace(size=-1)), "footer: a line that does not follow byte"),
        (page_of(lambda lines: directory.encode_page(lines[::-1])), "are not in order"),
        (page_of(lambda lines: directory.encode_page(lines[:-1])), "page of the directory: it is not what the top re"),
        (page_of(lambda lines: seal(pack("no page"))), "store 'it': page of the directory: "),
        (lines_with(records=1 << 63), "page of store 1: a line with a field of the wrong type"),
        (lines_with(layers=(Extent(1, 24, 9, b"short"),)), "page of store 1: a line with a field of the wrong type"),
        (top_of(lambda pages: seal(pack([[1]]))), ": top record: "),
        (page_at(pack=99), "its directory refers to pack 99, which is not in its list"),
        (no_top_record, "store 'it': top record of store 1 missing"),
        (more_records, "record b'zz' belongs to nothing"),
        (another_name, "holds version 7, its name says 8"),
    ],
)
def test_verify_names_what_does_not_fit(forge: Callable[[Patch], None], words: str, monkeypatch: Patch) -> None:
    assert faults() == []
    forge(monkeypatch)
    assert words in "\n".join(fault.what for fault in faults())


def header(*, reader: int = FORMAT_VERSION, flags: int = 0) -> Callable[[bytes], bytes]:
    """Return what gives a pack a header of another version or other flags."""
    return lambda pack: HEADER.pack(MAGIC, FORMAT_VERSION, reader, flags, HEADER.unpack(pack[: HEADER.size])[-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda pack: header(reader=FORMAT_VERSION + 1)(pack) + pack[HEADER.size :], "(upgrade hybridstore)"),
        (lambda pack: header(flags=2)(pack) + pack[HEADER.size :], "footer: flags 0x2, footer at byte"),
        (lambda pack: pack[:-1] + b"?", "not a pack: found b'"),
        (lambda pack: pack[: -TRAILER.size] + TRAILER.pack(0, MAGIC), "footer: flags 0x0, footer at byte 0"),
        (lambda pack: pack[: -TRAILER.size] + TRAILER.pack(len(pack), MAGIC), "footer: flags 0x0, footer at byte"),
        (lambda pack: pack[: -TRAILER.size - 1] + b"?" + pack[-TRAILER.size :], "footer: footer checksum mismatch"),
    ],
)
def test_verify_names_what_is_wrong_around_a_pack(change: Callable[[bytes], bytes], words: str) -> None:
    (fault,) = faults(lambda name, data: change(data) if name.startswith("packs/") else data)
    assert words in fault.what
    assert fault.file.endswith(".pack")


def test_what_is_behind_a_pack_is_at_its_end() -> None:
    (fault,) = faults(lambda name, data: data + b"more" if name.startswith("packs/") else data)
    size = fault.offset
    assert fault.what == f"found {size + 4} bytes, expected {size}"


def more_keys(lines: Any) -> bytes:
    """A page that says of blocks with layers that they have more keys."""
    return directory.encode_page([line._replace(keys=line.keys + bool(line.layers)) for line in lines])


@pytest.fixture
def two(monkeypatch: Patch) -> tuple[MemoryStorage, list[str]]:
    """Two checkpoints; the second one has layers over two blocks of the first, whose numbers of keys are wrong."""
    storage, names = MemoryStorage(), list[str]()
    previous: CheckpointReader | None = None
    for version, keys in ((7, KEYS * 8), (8, KEYS[:2])):
        rows = [f"{key} {i // 8}" for i, key in enumerate(keys)]
        columns = Columns(sorted(rows), None, (array("q", range(len(rows))),), ["v" * 50] * len(rows))
        names.append(checkpoint(storage, columns, version, previous))
        previous = CheckpointReader(storage, names[-1])
        monkeypatch.setattr(write, "encode_page", more_keys)
    return storage, names


def test_a_block_is_checked_though_its_base_was_checked_before(two: tuple[MemoryStorage, list[str]]) -> None:
    storage, (older, newer) = two
    verifier = Verifier(decode=True)
    assert list(verifier.checkpoint(storage, older, 7)) == []
    assert {fault.what.partition(": keys: ")[2] for fault in verifier.checkpoint(storage, newer, 8)} == {
        "found 16, the directory says 17"
    }


def test_a_missing_pack_is_one_fault(two: tuple[MemoryStorage, list[str]]) -> None:
    storage, names = two
    older = next(name for name in storage.objects if name.startswith("packs/"))
    del storage.objects[older]
    for version, name in zip((7, 8), names, strict=True):
        (fault,) = Verifier(decode=True).checkpoint(storage, name, version)
        assert (fault.file, fault.what) == (
            f"{storage.url}/{older}",
            f"missing, though {storage.url}/{name} refers to it",
        )
