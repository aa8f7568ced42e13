"""The command `compact`: a copy with one fresh checkpoint. The old directory is never touched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from changelog.storage import Storage

from .. import options as o
from ..look import Look
from ..show.output import Out, say, size_text
from .repair import target_of, write_view


def bytes_of(storage: Storage) -> int:
    """Return the bytes of all objects of a storage. O(objects); on an object store each object costs a request."""
    return sum(map(storage.size, storage.list()))


def arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `compact`."""
    o.path(parser)
    o.copy(parser)
    o.looking(parser, at=True, output=False)


def run(look: Look, given: Namespace) -> int:
    """Write checkpoint and changelog as one new checkpoint into a new directory. Older versions are not copied.

    A damaged state is refused: see `repair`.
    """
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
    write_view(view, target)
    after = bytes_of(target)
    gain = before / after if after else 1.0
    Out("raw").line(f"{size_text(before)} -> {size_text(after)} ({gain:.2f}x), version {view.version}")
    return look.finish()
