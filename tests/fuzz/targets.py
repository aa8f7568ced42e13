"""Targets: what is given bytes that nobody vouches for. A target may raise HybridStoreError, and nothing else.

segment      a changelog segment, as it is or with checksums that fit
made_up      the packed mutations of a version, in sound frames, then the commands of inspection
block        a block of a checkpoint
checkpoint   edits of a checkpoint file: the restore's reader, and, with checksums that fit, inspection's
lock         the small file in JSON
run          the object by which a run of a Spark operator begins
inspect      edits of any file of a small state, then the commands of inspection
archive      edits of a zip file that `pack` wrote, or its manifest anew
"""

from __future__ import annotations

import json
import shutil
import zipfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from hashlib import sha256
from io import StringIO
from pathlib import Path

from changelog.codec import unpack
from changelog.errors import HybridStoreError
from changelog.frame import COMMIT, MUTATIONS, CommitFrame, encode, encode_commit
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST, chain
from changelog.mutation import mutations
from changelog.reader import SegmentReader
from changelog.segment import SegmentHeader, seed_of, segment_name
from changelog.storage import LocalStorage
from hybridstore.cli import run
from hybridstore.reading.archive import _unpacked
from hybridstore.state.directory import open_store
from hybridstore.state.lock import read_note
from recovery.block import seal, unpack_block
from recovery.checkpoint import CheckpointReader
from recovery.layout import LOCK, list_runs, run_name
from recovery.pages import PageCheckpoint
from recovery.runs import newest_claim
from tests.tools.checkpoints import verify

from .damage import edited, edited_file, fit_checkpoint, fit_pack, fitting_segment, lines_of

GOLDEN = Path(__file__).parent.parent / "golden" / "v1" / "state"
_FILES = sorted(path.relative_to(GOLDEN) for path in GOLDEN.rglob("*") if path.is_file())
_COMMANDS = [
    ["info"],
    ["list"],
    ["scan"],
    ["keys", "text"],
    ["get", "window", "key 1"],
    ["stat", "--top", "3", "--by-age", "--histogram"],
    ["restart"],
    ["log"],
    ["log", "--commits"],
    ["history", "window", "key 1"],
    ["verify", "--full"],
    ["repair"],
    ["diff", "@1"],
    ["export", "--at", "7"],
    ["info", "--at", "2026-01-01"],
    ["scan", "session", "--reverse", "--time-from", "100"],
]


class Found(Exception):
    """A command that answered in a way that is not one of its own."""


def _answer(arguments: list[str]) -> None:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(["inspect", *arguments])
    if code not in (0, 1, 2, 3, 4) or "Traceback" in err.getvalue() or "(--debug shows where)" in err.getvalue():
        with redirect_stdout(out), redirect_stderr(err):
            run(["inspect", *arguments, "--debug"])  # raises what it was
        raise Found(f"{arguments}: exit code {code}: {err.getvalue()[-500:]}")


def _read_segment(path: Path, last: bool) -> None:
    for version in SegmentReader(path, last=last).versions():
        for body in version.bodies:
            try:
                flat = unpack(body)
            except ValueError:
                continue
            for _ in mutations(flat if type(flat) is list else []):
                pass


def segment(data: bytes, scratch: Path) -> None:
    """A segment file."""
    path = scratch / segment_name(1)
    path.write_bytes(fitting_segment(data[1:]) if data[:1] > b"\x7f" else data[1:])
    for last in (True, False):
        try:
            _read_segment(path, last)
        except HybridStoreError:
            continue
    _answer(["log", str(path), "-o", "jsonl"])


def made_up(data: bytes, scratch: Path) -> None:
    """Mutations: the first byte chooses commands, the rest is the content of frames, each headed by its length."""
    folder = scratch / "state" / "changelog"
    folder.mkdir(parents=True)
    header = SegmentHeader(Identity(bytes(range(16))), 1, 0, EMPTY_DIGEST).encode()
    raw, digest, sequence, at, version = header, EMPTY_DIGEST, 0, 1, 0
    while at + 2 <= len(data) and version < 8:
        size = int.from_bytes(data[at : at + 2], "little")
        body = data[at + 2 : at + 2 + size]
        at += 2 + size
        if len(body) < 5:
            continue
        version += 1
        digest = chain(digest, [body])
        commit = encode_commit(CommitFrame(version, digest, {19: 1}, version * 1000, {}, {}))
        for kind, content in ((MUTATIONS, body), (COMMIT, commit)):
            raw += encode(kind, sequence, content, seed_of(header))
            sequence += 1
    (folder / segment_name(1)).write_bytes(raw)
    for command in _chosen(data[:1]):
        _answer([command[0], str(scratch / "state"), *command[1:]])


def _chosen(choice: bytes) -> list[list[str]]:
    first = choice[0] if choice else 0
    return [_COMMANDS[first % len(_COMMANDS)], _COMMANDS[first // len(_COMMANDS)]]


def block(data: bytes, scratch: Path) -> None:
    """A block, with a checksum that fits."""
    with suppress(HybridStoreError):
        unpack_block(zlib.crc32(data).to_bytes(4, "little") + data, "block")


def checkpoint(data: bytes, scratch: Path) -> None:
    """Edits of the newest golden checkpoint, or of a pack. LMDB never maps an index whose hash was sealed to fit."""
    for folder in ("checkpoints", "packs"):
        shutil.copytree(GOLDEN / folder, scratch / folder)
    path = max((scratch / "checkpoints").glob("*.lmdb"))
    which, sealed = (data[0] & 1, data[0] > 127) if data else (0, False)
    if which:
        packs = sorted((scratch / "packs").iterdir())
        pack = packs[data[0] // 2 % len(packs)]
        lines = lines_of(pack)
        pack.write_bytes(edited(pack.read_bytes(), data[1:]))
        if sealed:
            fit_pack(pack, lines)
    else:
        path.write_bytes(edited_file(path, lambda raw: edited(raw, data[1:]), sealed))
        if sealed:
            path = fit_checkpoint(path)
    try:
        engine = CheckpointReader(LocalStorage(scratch), f"checkpoints/{path.name}") if which or not sealed else None
        for reader in (PageCheckpoint(LocalStorage(scratch), f"checkpoints/{path.name}"), engine):
            for record in [] if reader is None else reader.meta.stores:
                for page in reader.directory(record.number).pages:
                    try:
                        for entry in reader.page(record.number, page):
                            reader.block(record.number, entry)
                    except HybridStoreError:
                        continue
    except HybridStoreError:
        pass
    if not sealed:
        for _ in verify(scratch):
            pass
    for command in (["verify"], ["scan"], ["info"]):
        _answer([command[0], str(path), *command[1:]])


def lock(data: bytes, scratch: Path) -> None:
    """The content of LOCK, with a checksum that fits, or as it is."""
    state = scratch / "state"
    shutil.copytree(GOLDEN, state)
    line = data[1:].replace(b"\n", b" ") + b"\n"
    raw = line + b"%08x\n" % zlib.crc32(line) if data[:1] > b"\x7f" else data[1:]
    (state / LOCK).write_bytes(raw)
    read_note(state)
    _answer(["info", str(state)])
    _answer(["verify", "--quick", str(state)])
    with suppress(HybridStoreError):
        open_store(state).close()


def run_object(data: bytes, scratch: Path) -> None:
    """The object of a run, with a checksum that fits, or as it is."""
    shutil.copytree(GOLDEN.parent.parent / "v1-shard", scratch, dirs_exist_ok=True)
    operator = LocalStorage(scratch / "hybridstore" / "op")
    launch = list_runs(operator)[-1]
    (operator.root / run_name(launch)).write_bytes(seal(data[1:]) if data[:1] > b"\x7f" else data[1:])
    with suppress(HybridStoreError):
        newest_claim(operator)
    _answer(["info", str(scratch)])
    _answer(["verify", "--quick", str(scratch)])


def inspect(data: bytes, scratch: Path) -> None:
    """Edits of one file of a state: file, flags, commands, edits."""
    state = scratch / "state"
    shutil.copytree(GOLDEN, state)
    which, fits, choice = [*data[:3], 0, 0, 0][:3]
    path = state / _FILES[which % len(_FILES)]
    raw = edited_file(path, lambda raw: edited(raw, data[3:]), fits > 127)
    path.write_bytes(fitting_segment(raw) if fits > 127 and path.suffix == ".log" else raw)
    if fits > 127 and path.suffix == ".lmdb":
        path = fit_checkpoint(path)
    for command in _chosen(bytes([choice])):
        _answer([command[0], str(state), *command[1:]])
    _answer(["info", str(path)])
    if fits <= 127:
        with suppress(HybridStoreError):
            open_store(state).close()


def archive(data: bytes, scratch: Path) -> None:
    """An archive: edits of one, or the files of a state with another manifest."""
    path, files = scratch / "state.zip", [name for name in _FILES if name.suffix not in (".lmdb", ".pack")]
    sealed = data[:1] > b"\x7f"
    manifest = data[1:] if sealed else json.dumps({"hybridstore_pack": 1, "files": _manifest(files)}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in files:
            file.writestr(zipfile.ZipInfo(name.as_posix()), (GOLDEN / name).read_bytes())
        file.writestr(zipfile.ZipInfo("manifest.json"), manifest)
    if not sealed:
        path.write_bytes(edited(path.read_bytes(), data[1:]))
    before = {*scratch.parent.iterdir()}
    _answer(["info", str(path)])
    _answer(["verify", "--quick", str(path)])
    if {*scratch.parent.iterdir()} != before:
        raise Found("something was written beside the archive")
    for folder in _unpacked.values():
        shutil.rmtree(folder)
    _unpacked.clear()


def _manifest(files: list[Path]) -> list[dict[str, object]]:
    entries = []
    for name in files:
        raw = (GOLDEN / name).read_bytes()
        entries.append({"name": name.as_posix(), "bytes": len(raw), "sha256": sha256(raw).hexdigest()})
    return entries


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    "segment": segment,
    "made_up": made_up,
    "block": block,
    "checkpoint": checkpoint,
    "lock": lock,
    "run": run_object,
    "inspect": inspect,
    "archive": archive,
}
