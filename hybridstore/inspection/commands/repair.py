"""The command `repair`: a new state of everything that can be read. The old directory is never changed."""

from __future__ import annotations

import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from changelog.errors import UnsupportedVersionError
from changelog.files import REAL_FILES
from changelog.segment import segment_name
from changelog.storage import LocalStorage, Storage
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, LOG, PACKS, list_checkpoints
from recovery.line import Fault, Walk
from recovery.pages import PageCheckpoint
from recovery.retrying import retry_while_changing

from ...errors import HybridStoreError
from ...reading.line import line_of
from ...reading.places import Place
from ...reading.texts import say
from ...reading.view import View, open_view
from .. import options as o
from ..look import Look
from ..rebuild import target_at, whole_or_nothing, write_state
from ..shards import commit_of, shard_places, version_of, write_shards
from ..show.output import size_cell


def target_of(given: Namespace) -> Storage | None:
    """Return the new place to write to, or None without --write.

    Raises UsageError for --write without --to, OccupiedError if the place is not empty, and OSError.
    """
    if given.write and given.to is None:
        raise o.UsageError("--write: found no --to, expected --to NEW, the directory to write")
    return target_at(given.to) if given.write else None


def write_view(view: View, target: Storage) -> None:
    """Write one version into a new place. Raises OSError or CheckpointError."""
    write_state(
        target,
        version=view.version,
        digest=view.digest,
        settings=view.settings,
        captures=[store.capture for store in view.stores.values()],
        previous=view.pages,
        identity=view.identity,
    )


T = TypeVar("T")

# The advice of a fault that this command has followed.
_ADVICE: Final = re.compile(r",? or make a directory of what can be read with `hybridstore inspect repair`")


class RepairStep(NamedTuple):
    """One step of a repair: the action (keep, cut, drop or fold), the file, bytes kept, bytes lost, and the reason."""

    what: str
    path: Path
    kept: int
    lost: int
    why: str


class RepairPlan(NamedTuple):
    """A repair of one place: the view to write, what is lost, or an empty text, and the steps."""

    view: View
    lost: str
    steps: list[RepairStep]


class Salvage(NamedTuple):
    """The newest version that can be reached; `older`: behind an older checkpoint than a restore would use, which has
    to be kept out; `why`: the fault that a restore meets, or an empty text.
    """

    view: View
    older: bool
    why: str


def salvaged(place: Place) -> Salvage:
    """Return the newest version that a sound checkpoint, or the beginning of the changelog, and a sound line of
    versions behind it lead to.

    A version behind damage is not known, however sound its own bytes are: it is a list of changes to what was lost.
    Raises RestoreError, with what is lost, if no version can be reached; UnsupportedVersionError, OSError.
    O(checkpoints * blocks).
    """
    best: View | None = None
    older = mixed = False
    why = ""
    for below in (None, *(name.version for name in reversed(list_checkpoints(place.storage)))):
        try:
            view = open_view(place, thorough=True, below=below)
        except UnsupportedVersionError:
            raise
        except HybridStoreError as error:
            why = why or str(error)
            continue
        faults = list(view.faults)
        damage = _unreadable(view)
        why = why or (faults[0] if faults else damage)
        if not damage and (best is None or view.version > best.version):
            best, older = view, mixed
        if not damage and not faults:
            break
        mixed = mixed or bool(faults)
    if best is None or (best.version == 0 and why):
        raise RestoreError(
            f"{place.where}: nothing can be repaired: {_lost(place, 0, why) or why} (restore the damaged files from a "
            "copy, or begin a new state)"
        )
    return Salvage(best, older, why)


def planned(place: Place) -> RepairPlan:
    """Return how to repair a place. Raises as `salvaged`. O(checkpoints * blocks)."""
    view, older, why = salvaged(place)
    # of a sound state what is newer has been committed since
    lost = _lost(place, view.version, why if view.faults else "") if why else ""
    return RepairPlan(view, lost, repair_steps(view, older))


def _steadily(place: Place, look: Callable[[Place], T], failed: Callable[[T], bool]) -> T:
    """Return `look(place)`; again, while it fails and the job that has the state open removes checkpoints meanwhile."""

    def names() -> list[tuple[str, int, int]]:
        return [(str(name), 0, 0) for name in list_checkpoints(place.storage)]

    return retry_while_changing(place.where, lambda: look(place), failed=failed, sign=names)


def _unreadable(view: View) -> str:
    """Read every record of a view; return the fault of one that cannot be read, or an empty text. O(records)."""
    known = len(view.faults)
    try:
        for store in view.stores.values():
            for _ in store.records():
                pass
    except Exception as error:  # a forged file may raise any exception
        return str(error)
    return view.faults[known] if len(view.faults) > known else ""


def _lost(place: Place, version: int, why: str) -> str:
    """Return which versions behind `version` cannot be reached, and why, or an empty text. O(changelog)."""
    seen = [name.version for name in list_checkpoints(place.storage)]
    seen += [item.commit.version for item in line_of(place).walk(None) if not isinstance(item, Fault)]
    newest, first = max(seen, default=0), version + 1
    if newest < first and not why:
        return ""
    if newest < first:  # no readable file names a later one
        versions = f"what was committed behind version {version} is"
    else:
        versions = f"version {first} is" if newest == first else f"versions {first} to {newest} are"
    return f"{versions} lost" + (f": {_ADVICE.sub('', why)}" if why else "")


def repair_steps(view: View, older: bool = False) -> list[RepairStep]:
    """Return the steps that make a new directory of the readable data: sound checkpoints, and the changelog up to the
    view's version; with `older` (see `salvaged`) only that version.
    """
    storage, root = view.place.storage, view.place.path
    if root is None:
        return [
            RepairStep("fold", Path(storage.url), 0, 0, "of a state on an object store only the newest version is kept")
        ]
    if older:
        why = "the newest checkpoint does not belong to the changelog: only the newest version is kept"
        return [RepairStep("fold", root, 0, bytes_below(root), why)]
    steps = []
    for name in list_checkpoints(storage):
        path = root / str(name)
        size = path.stat().st_size
        if name.version > view.version:
            steps.append(
                RepairStep("drop", path, 0, size, f"later than version {view.version}, the last that can be reached")
            )
            continue
        fault = _fault(storage, str(name))
        steps.append(RepairStep("drop", path, 0, size, fault) if fault else RepairStep("keep", path, size, 0, ""))
    kept = [f"{CHECKPOINTS}/{step.path.name}" for step in steps if step.what == "keep"]
    positions = [PageCheckpoint(storage, name).meta.position for name in kept]
    oldest = min((position.segment for position in positions), default=0)
    line = line_of(view.place)
    if line.newest is not None:
        size = sum(step.kept + step.lost for step in steps) + sum(
            name.stat().st_size for name in (root / LOG).iterdir()
        )
        return [RepairStep("fold", root, 0, size, "of a shard only the newest version is kept, as a state directory")]
    steps += _log_steps(line.walk(None), view.version, oldest)
    ends = {int(step.path.stem): step for step in steps if step.path.parent.name == CHANGELOG and step.what != "drop"}
    newest = max(ends, default=0)
    broken = any(step.what == "cut" and first != newest for first, step in ends.items()) or any(
        position.segment not in ends or position.offset > ends[position.segment].kept for position in positions
    )
    if broken or not ends or (min(ends) > 1 and not positions):
        # The damage is before the newest sound checkpoint's position: the state can be restored, its history cannot.
        why = "the changelog behind the checkpoints, or what they hold, is damaged: only the newest version is kept"
        return [RepairStep("fold", root, 0, sum(step.kept + step.lost for step in steps), why)]
    return steps


def _fault(storage: Storage, name: str) -> str:
    """Read every block of a checkpoint and return its fault, or an empty text if the checkpoint is sound."""
    try:
        reader = PageCheckpoint(storage, name)
        for record in reader.meta.stores:
            for entry in reader.directory(record.number):
                reader.block(record.number, entry)
        reader.close()
    except Exception as error:  # a forged file may raise any exception
        return str(error)
    return ""


def _log_steps(walk: Walk, version: int, oldest: int) -> list[RepairStep]:
    """Return how much of each segment leads to `version`. Segments before `oldest` are not needed."""
    ends: dict[Path, int] = {}
    why: dict[Path, str] = {}
    for item in walk:
        path = (
            Path(item.file)
            if isinstance(item, Fault)
            else walk.segments[0].path.parent / segment_name(item.position.segment)
        )
        if isinstance(item, Fault):
            why.setdefault(path, item.what)
        elif item.commit.version > version:
            why.setdefault(path, f"later than version {version}, the last that can be reached")
        elif path not in why:
            ends[path] = item.position.offset
    if walk.cut is not None:
        why.setdefault(Path(walk.cut.path), walk.cut.reason)
    steps: list[RepairStep] = []
    for segment in walk.segments:
        size = segment.path.stat().st_size
        whole = segment.path not in why and segment.first in walk.sizes
        end = size if whole else ends.get(segment.path, 0)
        if segment.first < oldest:
            steps.append(RepairStep("drop", segment.path, 0, size, "no retained checkpoint needs it"))
        elif whole:
            steps.append(RepairStep("keep", segment.path, size, 0, ""))
        elif end:
            steps.append(RepairStep("cut", segment.path, end, size - end, why[segment.path]))
        else:
            steps.append(RepairStep("drop", segment.path, 0, size, why.get(segment.path, "cannot be read")))
    return steps


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.copy(parser)
    o.looking(parser)


def run(look: Look, given: Namespace) -> int:
    """Copy all readable data into a new directory that can be opened. Torn or damaged ends are cut, and damaged
    checkpoints are left out.

    Without --write the steps are only shown. Exit code 0 when no committed version is lost, 1 when versions are lost.
    """
    shards = shard_places(look.location) if given.shard is None else []
    if len(shards) > 1 and not shards[0].operator_storage:
        return _repair_shards(look, given, shards)
    place = look.only("repair")
    if place.form != "directory":
        raise o.UsageError(f"{place.where}: found a {place.form} file, expected a state directory to repair")
    view, lost, steps = _steadily(place, planned, lambda plan: bool(plan.view.faults or plan.lost))
    for note in view.notes:
        say(f"warning: {note}")
    rows: list[dict[str, Any]] = [
        {
            "what": step.what,
            "file": step.path.name,
            "kept": size_cell(step.kept),
            "lost": size_cell(step.lost),
            "why": step.why,
        }
        for step in steps
    ]
    look.out.rows(rows, ("what", "file", "kept", "lost", "why"))
    for fault in view.faults[bool(lost) :]:  # the first one is in the sentence about what is lost
        say(f"damaged: {fault}")
    if lost:
        say(f"{place.where}: {lost}")
    target = target_of(given)
    if target is not None:
        try:
            with whole_or_nothing(target):
                _copy(view, steps, target)
        except FileNotFoundError as error:
            raise HybridStoreError(
                f"{error.filename or place.where}: was removed while it was copied, as by the job that has the state "
                "open, and nothing was written (run the command again, or stop the job first)"
            ) from error
        say(f"{target.url}: version {view.version} written")
    return o.NEGATIVE if view.faults or lost else o.FINE


def _repair_shards(look: Look, given: Namespace, places: list[Place]) -> int:
    """Write the newest commit that every shard of a topology can reach."""
    salvages = [_steadily(place, salvaged, lambda salvage: bool(salvage.why)) for place in places]
    views = [salvage.view for salvage in salvages]
    if any(salvage.why for salvage in salvages):
        commit = min(map(commit_of, views))
        views = [
            view if commit_of(view) == commit else open_view(view.place, version_of(view.place, commit), thorough=True)
            for view in views
        ]
    look.out.rows([{"shard": view.place.where, "kept": view.version} for view in views], ("shard", "kept"))
    lost = 0
    for view, salvage in zip(views, salvages, strict=True):
        if salvage.view.faults or view is not salvage.view:
            why = salvage.why or "another shard cannot reach their commit"
            say(f"{view.place.where}: {_lost(view.place, view.version, why)}")
            lost += 1
    target = target_of(given)
    if target is not None:
        with whole_or_nothing(target):
            write_shards(views, target)
        say(f"{target.url}: versions {', '.join(str(view.version) for view in views)} written")
    return o.NEGATIVE if lost else o.FINE


def bytes_below(root: Path) -> int:
    """Return the bytes of all files below a directory. O(files)."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _copy(view: View, steps: list[RepairStep], storage: Storage) -> None:
    if any(step.what == "fold" for step in steps) or not isinstance(storage, LocalStorage):
        write_view(view, storage)
        return
    target = storage.root
    logs = [step for step in steps if step.what != "drop" and step.path.parent.name == CHANGELOG]
    checkpoints = [step for step in steps if step.what != "drop" and step.path.parent.name == CHECKPOINTS]
    for name in (CHANGELOG, CHECKPOINTS, PACKS):
        (target / name).mkdir()
    for step in logs:
        copy = target / CHANGELOG / segment_name(int(step.path.stem))
        shutil.copyfile(step.path, copy)
        with copy.open("r+b") as file:
            file.truncate(step.kept)
        REAL_FILES.sync_path(copy)
    for step in checkpoints:
        copy = target / CHECKPOINTS / step.path.name
        shutil.copyfile(step.path, copy)
        REAL_FILES.sync_path(copy)
        for record in PageCheckpoint(view.place.storage, f"{CHECKPOINTS}/{step.path.name}").meta.packs:
            copy = target / record.name
            if not copy.exists():
                shutil.copyfile(step.path.parent.parent / record.name, copy)
                REAL_FILES.sync_path(copy)
    for name in (CHANGELOG, CHECKPOINTS, PACKS):
        REAL_FILES.sync_directory(target / name)
