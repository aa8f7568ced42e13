"""Look: the subject of a command and the form of its answer. Every command has a look among its arguments.

look = Look("state", at="42", iso=True)
for view, store in look.stores("clicks"): ...
return look.finish(FINE)
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from recovery.errors import RestoreError

from ..progress import Progress
from ..reading.places import Place
from ..reading.selection import Selection
from ..reading.store_view import StoreView
from ..reading.texts import say
from ..reading.view import View, open_view
from .options import FINE, INCOMPLETE, UsageError, choose, maybe_time, typed_key
from .shards import shard_places, versions_at
from .show.output import Out, time_cell

# From so many records of changelog on, a look takes seconds, and says why.
_MANY: Final = 200_000


class Look:
    """A location (path or URL) with the version (`at`), the shard, the form of the answer (`out`) and of times (`iso`).

    The places behind the path are opened one after the other; `finish` reports their faults.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        at: str | None = None,
        shard: int | None = None,
        form: str | None = None,
        iso: bool = False,
        progress: bool = True,
    ) -> None:
        self.location = os.fspath(location)
        self.at = at
        self.iso = iso
        self.out = Out(form)
        self._shard = shard
        self._progress = progress
        self._opened: list[View] = []

    @cached_property
    def places(self) -> list[Place]:
        """The places of the path. Raises FileNotFoundError, ForeignFileError, or UsageError for an unknown shard."""
        places = shard_places(self.location)
        if self._shard is None:
            return places
        sharded = [place for place in places if place.number == self._shard]
        if not sharded:
            numbers = sorted({place.number for place in places if place.number is not None})
            known = ", ".join(map(str, numbers)) or "none, it is not sharded"
            raise UsageError(f"{self.location}: no shard {self._shard} (known: {known})")
        return sharded

    @property
    def several(self) -> bool:
        """True for more than one place, so that each row names its place."""
        return len(self.places) > 1

    def beside(self, location: str, at: str | None) -> Look:
        """Return a look at another location or version, with the same form of answer."""
        return Look(location, at=at, shard=self._shard, iso=self.iso, progress=self._progress)

    def label(self, place: Place) -> dict[str, Any]:
        """Return the cell with the place of a row, empty when only one place is read."""
        return {"shard": place.label} if self.several else {}

    def time(self, ms: int | None) -> Any:
        """Return a time as a cell."""
        return time_cell(ms, self.iso)

    def progress(self, what: str, total: int) -> Progress:
        """Return a progress bar, unless it is switched off."""
        return Progress(what, total, shown=self._progress)

    def only(self, verb: str) -> Place:
        """Return the only place. Raises UsageError for several places, or when the place is a single segment."""
        if self.several:
            raise UsageError(
                f"{self.location}: found {len(self.places)} shards, expected one to {verb} (choose it with --shard)"
            )
        place = self.places[0]
        if place.form == "segment":
            raise UsageError(
                f"{place.where}: found a segment alone, expected a state to {verb} (give the state directory)"
            )
        return place

    @cached_property
    def _versions(self) -> dict[str, int]:
        """The version of each shard of a plain topology, by its label, that belongs to version `at` of the first one.
        Raises RestoreError.
        """
        places = self.places
        if self.at is None or not self.at.isdecimal() or not self.several or not places[0].of:
            return {}
        return {place.label: version for place, version in zip(places, versions_at(places, int(self.at)), strict=True)}

    def version(self, place: Place) -> int | None:
        """Return the version of a place that is asked for, None for the newest. Raises UsageError, RestoreError."""
        version = self._versions.get(place.label)
        return choose(place, self.at) if version is None else version

    def open(self, place: Place, *, thorough: bool | None = None) -> View:
        """Open one place; `thorough` as in `open_view`. Raises RestoreError when no version can be read."""
        view = open_view(place, self.version(place), thorough=thorough)
        if view.version == 0 and view.faults:
            raise RestoreError(f"{place.where}: nothing can be read: {view.faults[0]}")
        for note in view.notes:
            say(f"warning: {note}")
        self._opened.append(view)
        return view

    def views(self, key: Any = None) -> Iterator[View]:
        """Open all places, in order; with a key only the places that can have it: its shard of each operator."""
        places = self.places if key is None else [place for place in self.places if place.holds(key)]
        for place in places or self.places:
            yield self.open(place)

    def stores(self, name: str | None, key: Any = None) -> Iterator[tuple[View, StoreView]]:
        """Yield the stores of this name (None: all) in all places, or in those that can have a key.

        Raises UsageError when none has it.
        """
        known: dict[str, None] = {}
        for view in self.views(key):
            known.update(dict.fromkeys(view.stores))
            for store in view.stores.values():
                if name is None or store.name == name:
                    yield view, store
        if name is not None and name not in known:
            none = "none: nothing was committed yet" if self._empty else "none"
            raise UsageError(f"{self.location}: no store {name!r} (known: {', '.join(known) or none})")

    @property
    def _empty(self) -> bool:
        """Whether nothing was committed in the places that were opened."""
        return self.at is None and not any(view.version or view.faults for view in self._opened)

    def finish(self, code: int = FINE, more: Iterable[str] = ()) -> int:
        """Report the faults of the views and of `more`.

        Returns the exit code: `code`, or INCOMPLETE after faults.
        """
        if self._opened and self._empty:
            say(f"{self.location}: nothing was committed yet")
        for view in self._opened:
            if view.tail.records >= _MANY:
                say(
                    f"{view.place.where}: {view.tail.records} records of the changelog were read, because no newer "
                    "checkpoint exists (`checkpoint()` of the open state makes one, and looking at the state fast)"
                )
        faults = list(dict.fromkeys([*(fault for view in self._opened for fault in view.faults), *more]))
        for fault in faults:
            say(f"damaged: {fault}")
        return INCOMPLETE if faults else code


def selection(given: Namespace) -> Selection:
    """Return the selection that `keys`, `windows` or both describe. Raises UsageError."""
    texts = vars(given)
    key_from, key_to, prefix = (
        None if texts.get(name) is None else typed_key(texts[name]) for name in ("key_from", "key_to", "prefix")
    )
    if prefix is not None and type(prefix) not in (str, bytes, tuple):
        raise UsageError(f"prefix: found {given.prefix!r}, expected text, hex: or json:[..]")
    start, end = (maybe_time(texts.get(name)) for name in ("time_from", "time_to"))
    return Selection(key_from, key_to, prefix, start, end, texts.get("reverse", False))
