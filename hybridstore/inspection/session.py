"""Session: one run of a command: the views it opens, the faults they show, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recovery.errors import RestoreError

from .options import INCOMPLETE, UsageError
from .show.output import say
from .view.places import Place, resolve
from .view.reader import View, open_view
from .view.store_view import StoreView
from .view.versions import choose


class Inspection:
    """The places behind a path, opened one after the other. `several`: there are more than one, so rows must say which they are from."""

    def __init__(self, path: Path, *, at: str | None = None, shard: int | None = None) -> None:
        self.path = path
        self.at = at
        places = resolve(path)
        if shard is not None:
            sharded = [place for place in places if place.shard == shard]
            if not sharded:
                numbers = sorted({place.shard for place in places if place.shard is not None})
                raise UsageError(
                    f"{path}: no shard {shard} (there are: {', '.join(map(str, numbers)) or 'none, it is not sharded'})"
                )
            places = sharded
        self.places = places
        self.several = len(places) > 1
        self._opened: list[View] = []

    def open(self, place: Place) -> View:
        """Open one place. Raises RestoreError when not even one version of it can be read."""
        view = open_view(place, choose(place, self.at))
        if view.version == 0 and view.faults:
            raise RestoreError(f"{place.path}: nothing can be read: {view.faults[0]}")
        for note in view.notes:
            say(f"warning: {note}")
        self._opened.append(view)
        return view

    def views(self) -> Iterator[View]:
        """Open all places, in order."""
        for place in self.places:
            yield self.open(place)

    def route(self, key: Any) -> None:
        """Look only where this key can be: in its shard of each operator."""
        self.places = [place for place in self.places if place.holds(key)] or self.places

    def stores(self, name: str | None) -> Iterator[tuple[View, StoreView]]:
        """Yield the stores of this name (None: all) in all places. Raises UsageError when no place has it."""
        found = False
        known: dict[str, None] = {}
        for view in self.views():
            known.update(dict.fromkeys(view.stores))
            for store in view.stores.values():
                if name is None or store.name == name:
                    found = True
                    yield view, store
        if name is not None and not found:
            raise UsageError(f"{self.path}: no store {name!r} (there are: {', '.join(known) or 'none'})")

    def finish(self, code: int, more: Iterable[str] = ()) -> int:
        """Name the faults that were met, in views and `more`, and return the exit code: `code`, or INCOMPLETE when there were any."""
        faults = list(dict.fromkeys([*(fault for view in self._opened for fault in view.faults), *more]))
        for fault in faults:
            say(f"damaged: {fault}")
        return INCOMPLETE if faults else code
