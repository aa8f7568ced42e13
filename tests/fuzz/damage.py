"""Damage by script: bytes become edits of the files of a small state, and checksums that fit what was edited.

Three bytes and a byte of detail make an edit, so that a finding is a few bytes and says what it is. Where the script
asks for it, checksums and digests are made to fit afterwards: the file is then made up rather than damaged, and reaches
the code behind the checksums.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from changelog.errors import HybridStoreError
from changelog.frame import COMMIT, HEADER, HEADER_BYTES, MUTATIONS, decode_commit, encode, encode_commit
from changelog.journal import chain
from changelog.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from changelog.segment import seed_of
from changelog.storage import LocalStorage
from recovery.index import inflate
from recovery.layout import parse_checkpoint_name
from recovery.meta import index_hash
from recovery.pack import FooterLine, StoredPack, read_footer
from recovery.pages import PageFile

_STEP = struct.Struct("<BHB")


def edited(raw: bytes, script: bytes) -> bytes:
    """Return `raw` after the edits of a script: (what, where, detail) in four bytes each."""
    data = bytearray(raw)
    for what, where, detail in _STEP.iter_unpack(script[: len(script) // _STEP.size * _STEP.size]):
        at = where % len(data) if data else 0
        match what % 7:
            case 0 if data:
                data[at] ^= detail or 1
            case 1 if data:
                data[at] = detail
            case 2:
                del data[at : at + detail + 1]
            case 3:
                data[at:at] = bytes([what]) * (detail % 16)
            case 4:
                data[at : at + detail] = bytes(len(data[at : at + detail]))
            case 5:
                del data[at:]
            case _:
                data[at : at + detail] = data[at // 2 : at // 2 + detail]
    return bytes(data)


def fitting_segment(raw: bytes) -> bytes:
    """Return a segment whose checksums, sequence and digests fit what is in it, as far as its frames can be told
    apart.
    """
    if len(raw) < SEGMENT_HEADER_BYTES:
        return raw
    head = raw[: SEGMENT_HEADER_BYTES - 4]
    data = head + zlib.crc32(head).to_bytes(4, "little")
    seed, offset, bodies = seed_of(data), SEGMENT_HEADER_BYTES, list[bytes]()
    digest = head[-16:]
    sequence = 0
    while offset + HEADER_BYTES <= len(raw):
        _, kind, _, length, _, _ = HEADER.unpack_from(raw, offset)
        body = raw[offset + HEADER_BYTES : offset + HEADER_BYTES + length]
        if kind == COMMIT:
            try:
                commit = decode_commit(body)
            except ValueError:
                commit = None
            if commit is not None:
                digest = chain(digest, bodies)
                body = encode_commit(commit._replace(digest=digest))
            bodies = []
        elif kind == MUTATIONS:
            bodies.append(body)
        data += encode(kind, sequence, body, seed)
        offset += HEADER_BYTES + length
        sequence += 1
    return data + raw[offset:]


def edited_file(path: Path, edit: Callable[[bytes], bytes], fitting: bool) -> bytes:
    """Return the bytes of a file with edits; of an index whose checksums will fit, with edits of what is compressed."""
    raw = path.read_bytes()
    return zlib.compress(edit(inflate(raw, ""))) if fitting and path.suffix == ".lmdb" else edit(raw)


def fit_checkpoint(path: Path) -> Path:
    """Make the checksums of an index's records, and the hash in its name, fit what is in the file; return its new
    path.
    """
    raw = path.read_bytes()
    with suppress(HybridStoreError):
        file = bytearray(inflate(raw, "index"))
        for _, data in list(PageFile(raw, "index").items()):
            at = file.find(data)
            file[at : at + 4] = zlib.crc32(data[4:]).to_bytes(4, "little")
        raw = zlib.compress(file)
    name = parse_checkpoint_name(f"{path.parent.name}/{path.name}")
    assert name is not None
    path.unlink()
    fitting = path.parent.parent / str(name._replace(hash=index_hash(raw)))
    fitting.write_bytes(raw)
    return fitting


def fit_pack(path: Path, lines: list[FooterLine]) -> None:
    """Make the checksums of the blocks and pages that a pack had fit what is there now."""
    raw = bytearray(path.read_bytes())
    for line in lines:
        data = raw[line.offset + 4 : line.offset + line.size]
        raw[line.offset : line.offset + 4] = zlib.crc32(data).to_bytes(4, "little")
    path.write_bytes(raw)


def lines_of(path: Path) -> list[FooterLine]:
    """Return what a sound pack says of itself."""
    pack = StoredPack(LocalStorage(path.parent), path.name, path.stat().st_size)
    return read_footer(pack, pack.size, str(path))
