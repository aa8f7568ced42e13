"""Seeds: where the fuzzer begins, cut from the golden state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from changelog.frame import COMMIT
from changelog.reader import SegmentReader
from changelog.segment import HEADER_BYTES
from recovery.rule import Run
from recovery.runs import Claim, encode_claim
from tests.tools.checkpoints import reader_of, versions

from .targets import GOLDEN

_SEGMENTS = sorted((GOLDEN / "changelog").glob("*.log"))


def seeds(target: str) -> Iterator[bytes]:
    """Yield the first inputs of a target."""
    match target:
        case "segment":
            for path in _SEGMENTS[:2]:
                raw = path.read_bytes()
                ends = [frame.end for frame in SegmentReader(path, last=True).frames() if frame.kind == COMMIT]
                for end in (HEADER_BYTES, ends[0]):
                    yield b"\0" + raw[:end]
                    yield b"\xff" + raw[:end]
        case "made_up":
            for path in _SEGMENTS[:1]:
                for version in SegmentReader(path, last=True).versions():
                    for body in version.bodies:
                        for choice in range(0, 256, 50):
                            yield bytes([choice]) + len(body).to_bytes(2, "little") + body
        case "block":
            reader = reader_of(GOLDEN, versions(GOLDEN)[-1])
            for record in reader.meta.stores:
                for entry in islice(reader.directory(record.number), 2):
                    yield bytes(reader.raw_block(entry))[4:]
        case "lock":
            line = (GOLDEN / "LOCK").read_bytes().partition(b"\n")[0]
            yield b"\xff" + line
            yield b"\0" + (GOLDEN / "LOCK").read_bytes()
            note = {"pid": 1, "host": "here", "since": "2026-01-01 00:00:00", "segment": 10}
            yield b"\xff" + json.dumps(note).encode()
        case "run":
            sound = encode_claim(Claim("run", 1, (Run(1000, 0), Run(2000, 6))))
            yield b"\xff" + sound[4:]
            yield b"\0" + sound
        case "archive":
            names = ["LOCK", "changelog/00000000000000000001.log", "hybridstore/op/runs/0000001000"]
            for name in names:
                entry = {"name": name, "bytes": 83, "sha256": "00" * 32}
                yield b"\xff" + json.dumps({"hybridstore_pack": 1, "files": [entry]}).encode()
            yield b"\0"
            yield b"\0" + bytes([0, 10, 0, 1])
        case _:
            for first in (b"\0", b"\xff"):
                yield first * 3
                yield first * 3 + bytes(4)
