"""The command `pack`: a state as one zip file, with a manifest that holds the checksum of every file."""

from __future__ import annotations

import json
import tempfile
import zipfile
from argparse import ArgumentParser, Namespace
from hashlib import sha256
from pathlib import Path
from typing import Any

from changelog.storage import Storage, is_url, local_path, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, LOCK, LOG, OPERATOR, PACKS, RUNS, SPARK_FOLDER
from recovery.pages import PageCheckpoint
from recovery.retrying import TRIES

from ...progress import Progress
from ...reading.archive import FORMAT_VERSION, MANIFEST, parts_of
from ...reading.places import Place
from ...reading.texts import say, size_text
from ...reading.view import View, open_view, retry_while_changing
from .. import options as o
from ..look import Look
from ..rebuild import OccupiedError
from ..rows import facts_of


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    parser.add_argument("--to", metavar="FILE", required=True, help="The zip file or its URL; the file must not exist.")
    o.looking(parser, output=False, progress=True)


def run(look: Look, given: Namespace) -> int:
    """Write a state into one zip file with a manifest and checksums, to send the state or to keep it.

    Every command of `inspect` reads such a file.
    """
    if not is_url(given.to):
        try:
            return _pack(look, given.to, local_path(given.to))
        except FileExistsError:
            raise OccupiedError(f"{given.to}: exists already (give a new name)") from None
    folder, _, name = given.to.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="hybridstore-") as scratch:
        file = Path(scratch) / "archive.zip"
        code = _pack(look, given.to, file)
        if not storage_at(folder).create(name, file.read_bytes()):
            raise OccupiedError(f"{given.to}: exists already (give a new name)")
    return code


class _RemovedError(RestoreError):
    """The writer has removed a file that was to be packed."""


def _removed(file: str) -> _RemovedError:
    return _RemovedError(
        f"{file}: was removed while it was packed, as by the job that has the state open (run the command again, or "
        "stop the job first)"
    )


def _pack(look: Look, shown: str, to: Path) -> int:
    if look.places[0].of:
        look.only("pack")
    # A single segment may have no complete state, but can be packed, too.
    views = [None if place.form == "segment" else look.open(place) for place in look.places]
    for attempt in range(TRIES):
        try:
            return _packed(look, shown, to, views, whole=not attempt)
        except _RemovedError:
            if attempt == TRIES - 1:
                raise
            views = [None if place.form == "segment" else open_view(place) for place in look.places]
    raise AssertionError("unreachable")  # pragma: no cover


def _packed(look: Look, shown: str, to: Path, views: list[View | None], *, whole: bool) -> int:
    operators = {place.operator: place.operator_storage for place in look.places if place.operator_storage is not None}
    with zipfile.ZipFile(to, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        try:
            entries: list[dict[str, Any]] = []
            with look.progress("packing", 0) as progress:
                for place, view in zip(look.places, views, strict=True):
                    prefix = f"{SPARK_FOLDER}/{place.operator}/{place.folder}/" if place.folder else ""
                    names = _files_of(place)
                    needed = _needed(names, view)
                    entries += _pack_files(archive, place.storage, names if whole else needed, prefix, progress)
                # The operator, not a shard, has the files that say which runs count and how keys are distributed over
                # shards.
                for operator, storage in sorted(operators.items()):
                    shared = [name for folder in (OPERATOR, RUNS) for name in storage.list(f"{folder}/")]
                    entries += _pack_files(archive, storage, shared, f"{SPARK_FOLDER}/{operator}/", progress)
            manifest = {
                "hybridstore_pack": FORMAT_VERSION,
                "states": [_facts(view) for view in views if view is not None],
                "files": entries,
            }
            archive.writestr(MANIFEST, json.dumps(manifest, indent=1) + "\n")
        except BaseException:
            to.unlink(missing_ok=True)
            raise
    size = sum(entry["bytes"] for entry in entries)
    say(f"{shown}: {len(entries)} files, {size_text(size)} -> {size_text(to.stat().st_size)}")
    return look.finish()


def _facts(view: View) -> dict[str, Any]:
    row = facts_of(view, False, newest=True)
    return {name: value for name, value in row.items() if isinstance(value, (str, int)) and name != "path"}


def _files_of(place: Place) -> list[str]:
    # Checkpoints are listed before the changelog. In the other order, a checkpoint could refer to a segment that is
    # newer than the list of segments.
    def listed() -> list[str]:
        storage = place.storage
        if place.form == "segment":
            return [place.name]
        if place.form == "checkpoint":
            return [place.name, *(record.name for record in PageCheckpoint(storage, place.name).meta.packs)]
        names = [name for folder in (CHECKPOINTS, PACKS, CHANGELOG, LOG) for name in storage.list(f"{folder}/")]
        names = [name for name in names if name.rpartition("/")[2][:1].isdecimal()]
        return names + ([LOCK] if place.path is not None and (place.path / LOCK).is_file() else [])

    return retry_while_changing(place, listed, lambda names: not names)


def _needed(names: list[str], view: View | None) -> list[str]:
    """Return the names that the checkpoint of a view needs, and of what is behind it; it is removed last. Raises
    _RemovedError.
    """
    if view is None or view.pages is None:
        return names
    meta = view.pages.meta
    needed = {view.pages.name, *(pack.name for pack in meta.packs)}
    if view.pages.name not in names:
        raise _removed(f"{view.place.where}/{view.pages.name}")
    oldest = meta.position.segment or meta.version

    def behind(name: str) -> bool:
        folder, _, file = name.rpartition("/")
        return folder in (CHANGELOG, LOG) and int(file[:20]) >= oldest

    return [name for name in names if name in needed or name == LOCK or behind(name)]


def _pack_files(
    archive: zipfile.ZipFile, storage: Storage, names: list[str], prefix: str, progress: Progress
) -> list[dict[str, Any]]:
    entries = []
    for name in names:
        digest, size = sha256(), 0
        try:
            parts = parts_of(storage, name)
            part = next(parts, b"")
        except FileNotFoundError as error:
            raise _removed(f"{storage.url}/{name}") from error
        with archive.open(prefix + name, "w", force_zip64=True) as target:
            while part:
                digest.update(part)
                size += len(part)
                target.write(part)
                progress.advance(len(part))
                part = next(parts, b"")
        entries.append({"name": prefix + name, "bytes": size, "sha256": digest.hexdigest()})
    return entries
