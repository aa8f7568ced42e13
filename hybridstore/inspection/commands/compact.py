"""The command `compact`: a copy with one fresh checkpoint. The old directory is never touched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress

from changelog.cached_storage import bare
from changelog.cloud_storage import CloudStorage
from changelog.storage import Storage

from ...reading.places import Place
from ...reading.texts import say, size_text
from ...reading.view import open_view
from .. import options as o
from ..look import Look
from ..options import choose
from ..rebuild import whole_or_nothing
from ..shards import shard_places, versions_at, write_shards
from ..show.output import Out
from .repair import target_of, write_view


def bytes_of(storage: Storage) -> int:
    """Return the bytes of all objects of a storage; what its writer removes meanwhile has none. O(objects), on an
    object store a request for every 1,000.
    """
    theirs = bare(storage)
    if isinstance(theirs, CloudStorage):
        return sum(theirs.sizes().values())
    total = 0
    for name in storage.list():
        with suppress(FileNotFoundError):
            total += storage.size(name)
    return total


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.copy(parser)
    o.looking(parser, at=True, output=False)


def run(look: Look, given: Namespace) -> int:
    """Write checkpoint and changelog as one new checkpoint into a new directory. Older versions are not copied.

    Of a topology of several shards every shard is copied; --at is then the version of shard 0, and every other shard is
    copied at the same commit of `run`. A damaged state is refused: see `repair`.
    """
    shards = shard_places(look.location) if given.shard is None else []
    if len(shards) > 1 and not shards[0].operator_storage:
        return _shards(look, given, shards)
    place = look.only("compact")
    view = look.open(place, thorough=True)
    if view.faults:
        return look.finish(o.INCOMPLETE)
    before = place.storage.size(place.name) if place.name else bytes_of(place.storage)
    target = target_of(given)
    if target is None:
        records = sum(store.counted.records for store in view.stores.values())
        say(
            f"{place.where}: {size_text(before)}; would fold version {view.version}, about {records:,} records "
            "(say --to NEW --write)"
        )
        return o.FINE
    with whole_or_nothing(target):
        write_view(view, target)
    after = bytes_of(target)
    gain = before / after if after else 1.0
    Out("raw").line(f"{size_text(before)} -> {size_text(after)} ({gain:.2f}x), version {view.version}")
    return look.finish()


def _shards(look: Look, given: Namespace, places: list[Place]) -> int:
    first = choose(places[0], look.at)
    versions = [None] * len(places) if first is None else versions_at(places, first)
    views = [open_view(place, version, thorough=True) for place, version in zip(places, versions, strict=True)]
    faults = [fault for view in views for fault in view.faults]
    if faults:
        return look.finish(o.INCOMPLETE, faults)
    before = sum(bytes_of(place.storage) for place in places)
    target = target_of(given)
    numbers = ", ".join(str(view.version) for view in views)
    if target is None:
        say(f"{look.location}: {size_text(before)}; would fold the versions {numbers} (say --to NEW --write)")
        return o.FINE
    with whole_or_nothing(target):
        write_shards(views, target)
    Out("raw").line(f"{size_text(before)} -> {size_text(bytes_of(target))}, versions {numbers}")
    return o.FINE
