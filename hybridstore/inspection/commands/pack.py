"""The command `pack`: a state as one zip file, with a manifest that holds the checksum of every file."""

from __future__ import annotations

import json
import zipfile
from argparse import ArgumentParser, Namespace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from recovery.layout import CHANGELOG, CHECKPOINTS, LOCK, LOG, OPERATOR, PACKS, RUNS
from recovery.pages import PageCheckpoint

from ...progress import Progress
from .. import options as o
from ..look import Look
from ..rows import facts_of
from ..show.output import say, size_text
from ..view.archive import FORMAT_VERSION, MANIFEST
from ..view.places import Place
from ..view.reader import View, steadily

_CHUNK: Final = 1 << 20


def arguments(parser: ArgumentParser) -> None:
    """Declare what `pack` takes."""
    o.path(parser)
    parser.add_argument("--to", metavar="FILE", type=Path, required=True, help="The zip file; it must not exist.")
    o.looking(parser, output=False, progress=True)


def run(look: Look, given: Namespace) -> int:
    """Put a state into one zip file with a manifest and checksums: to send it, or to keep it.

    Every command takes such a file.
    """
    path, to = look.path, given.to
    # A segment alone may hold no state, and is worth packing all the same.
    views = [look.open(place) for place in look.places if place.form != "segment"]
    root = path if path.is_dir() else path.parent
    if any(place.form == "checkpoint" for place in look.places):
        root = path.parent.parent  # its packs are beside its folder
    operators = sorted({view.place.operator_path for view in views if view.place.shard is not None})
    if operators:
        # Runs, which say what counts, and how keys are spread over shards, are the operator's.
        root = operators[0].parent.parent
    with zipfile.ZipFile(to, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        try:
            entries: list[dict[str, Any]] = []
            with look.progress("packing", 0) as progress:
                for place in look.places:
                    entries += _pack_files(archive, _files_of(place), root, progress)
                for operator in operators:
                    shared = [file for name in (OPERATOR, RUNS) for file in sorted((operator / name).glob("[0-9]*"))]
                    entries += _pack_files(archive, shared, root, progress)
            manifest = {
                "hybridstore_pack": FORMAT_VERSION,
                "states": [_facts(view) for view in views],
                "files": entries,
            }
            archive.writestr(MANIFEST, json.dumps(manifest, indent=1) + "\n")
        except BaseException:
            to.unlink(missing_ok=True)
            raise
    size = sum(entry["bytes"] for entry in entries)
    say(f"{to}: {len(entries)} files, {size_text(size)} -> {size_text(to.stat().st_size)}")
    return look.finish()


def _facts(view: View) -> dict[str, Any]:
    row = facts_of(view, False, newest=True)
    return {name: value for name, value in row.items() if isinstance(value, (str, int)) and name != "path"}


def _files_of(place: Place) -> list[Path]:
    # A changelog that was listed first would lack what a checkpoint listed later refers to, so checkpoints come first.
    def listed() -> list[Path]:
        if place.form != "directory":
            if place.form != "checkpoint":
                return [place.path]
            packs = PageCheckpoint(place.path).meta.packs
            return [place.path, *(place.path.parent.parent / record.name for record in packs)]
        files = [
            file for name in (CHECKPOINTS, PACKS, CHANGELOG, LOG) for file in sorted((place.path / name).glob("[0-9]*"))
        ]
        return files + [file for file in (place.path / LOCK,) if file.is_file()]

    return steadily(place, listed, lambda files: not files)


def _pack_files(archive: zipfile.ZipFile, files: list[Path], root: Path, progress: Progress) -> list[dict[str, Any]]:
    entries = []
    for file in files:
        digest, size = sha256(), 0
        name = file.relative_to(root).as_posix()
        try:
            source = file.open("rb")
        except FileNotFoundError:
            continue  # pruned by its writer: then nothing that is packed needs it
        with source, archive.open(name, "w", force_zip64=True) as target:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
                progress.advance(len(chunk))
        entries.append({"name": name, "bytes": size, "sha256": digest.hexdigest()})
    return entries
