"""Forks and pins on an object store: the store copies the objects by itself, so no byte of them comes here.

An object has one name there, and whoever removes all that is below a location asks nobody: so a fork has objects of its
own, and whatever is done to the one state, with our commands or with others, the other is as it was. The store keeps
the bytes twice.

    forks/origin                  first: the place is taken
    packs, commits, Spark's files side by side, and the note at the origin
    the indexes of checkpoints, or the first commit
    which shards count; `metadata` of a query    last: only now a state is there that opens

An object store has no locks and no renames. A kill leaves objects that are no state: the same command removes them and
begins anew, if nobody is at work on them (`makers`), and for a pin `unpin` does, too. Whoever makes a fork or a pin
looks at the origin once more before the objects that make it a state: if something was erased meanwhile, the copy is
removed. An erase looks for pins when its own note is there (`erase`). So one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from changelog.cached_storage import bare
from changelog.cloud_storage import CloudStorage
from changelog.rounds import side_by_side
from changelog.storage import Storage, exists, storage_at
from recovery.erase import ERASURES
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, ERASING, GENERATIONS
from recovery.object_log import object_name, versions_after

from ..errors import HybridStoreError
from ..inspection.rebuild import OccupiedError
from ..inspection.shards import counting_places
from ..reading.places import Place, resolve
from ..reading.view import View, open_view
from ..state.generations import ORIGIN
from ..state.in_place import ORDERS
from ..state.registry import note_fork, note_of, remove_note
from .forked import ForkedPart, Origin, Site, Taken, checkpoint_names, descriptions, views_at
from .makers import BEGINNING, COUNTING, Maker, is_begun, occupied, remove_alone, remove_in_turns, turns_of


class BucketOrigin(Origin):
    """A plain state or topology on an object store; see `Origin`. `folders` are those of its place."""

    def __init__(self, where: Path | str, folders: Collection[str]) -> None:
        self.where = where
        self._storage = storage_at(where)
        single = CHANGELOG in folders and GENERATIONS not in folders
        self.places, self._counting = (resolve(where, folders), 0) if single else counting_places(where)

    def parts(self, at: str | None) -> list[ForkedPart]:
        # pages are copied as they are: not each of them is read for that
        return [self._part(place, view) for place, view in views_at(self.places, at, thorough=False)]

    def _part(self, place: Place, view: View) -> ForkedPart:
        meta = view.checkpoint
        begin = 1 if meta is None else meta.version
        if meta is not None and not meta.position.offset:
            begin += 1  # no object was part of it; else it refers to the end of one, for which a copy on a disk looks
        # each version has an object; one that was pruned since the view was opened is missed as it is copied
        names = [object_name(each) for each in range(begin, view.version + 1)]
        folder = place.storage.url[len(self._storage.url) + 1 :]
        return ForkedPart(place.storage, folder, view, view.version, [*checkpoint_names(view), *names])

    def add(self, site: Site, parts: list[ForkedPart]) -> None:
        """See `Origin`: which shards count."""
        for name in descriptions(self._storage, self._counting) if self._counting else ():
            site.share(self._storage, name, name)

    def check_no_erase(self, parts: list[ForkedPart]) -> None:
        """See `Origin`. Two requests for a shard, and some more where its job has committed since."""
        for place, part in zip(self.places, parts, strict=True):
            newest = part.view
            looks: list[Callable[[], object]] = [
                partial(versions_after, place.storage, part.version),
                partial(exists, place.storage, ERASING),
            ]
            later, erasing = side_by_side(lambda look: look(), looks)
            if later:
                newest = open_view(place)
            erasures = newest.settings.get(ERASURES) != part.view.settings.get(ERASURES)
            if erasing or erasures or newest.settings.get(ORDERS) is not None:
                raise RestoreError(f"{place.where}: an erase is at work (try again when it has ended)")


class _Planned(NamedTuple):
    """An object that is to be created: how, and its bytes, if they are known."""

    make: Callable[[], Taken]
    size: int | None = None


class BucketSite:
    """See `Site`: a place on an object store, where objects of these names were listed."""

    def __init__(self, target: Path | str, maker: Maker, names: Sequence[str]) -> None:
        self.taken = Taken()
        self.where = str(target)
        self._maker = maker
        storage = storage_at(target)
        assert isinstance(storage, CloudStorage)
        self.storage = storage
        self._target = target
        self._noted: Path | str | None = None
        self._mine = False
        self._planned: dict[str, _Planned] = {}
        self._clear(names)

    def _clear(self, names: Sequence[str]) -> None:
        """Remove what a killed command has left here, where these names were listed. Raises OccupiedError for anything
        else, RestoreError for what a command may be making.
        """
        if names and not is_begun(names):
            raise occupied(self.where)
        if names:
            remove_alone(self.storage, self._maker, begun=True)

    def begin(self, origin: Origin, noted: Path | str | None) -> None:
        """See `Site`. The first object takes the place; the origin's note comes behind it, in `end`, as it is removed
        where nothing is.
        """
        self.taken, self._planned, self._noted = Taken(), {}, noted
        note = note_of(origin.where if noted is None else noted)
        if not self.storage.create(ORIGIN, b"%b\n%b" % (note, self._maker.line())):
            raise RestoreError(f"{self.where}: another command makes a fork or a pin here (give another place)")
        self._mine = True

    def folder(self, name: str) -> None:
        """See `Site`. An object store has no empty folders."""

    def share(self, source: Storage, name: str, to: str, size: int | None = None) -> None:
        """See `Site`: copied by the store, in its turn."""
        self._planned[to] = _Planned(partial(self._take, source, name, to), size)

    def _take(self, source: Storage, name: str, to: str) -> Taken:
        theirs = bare(source)
        if isinstance(theirs, CloudStorage) and self.storage.take(to, theirs, name):
            return Taken(shared=1)
        return self._make(to, source.get(name))

    def copy(self, source: Storage, name: str, to: str, end: int) -> None:
        self._planned[to] = _Planned(lambda: self._make(to, source.get_ranges(name, [(0, end)])[0]), end)

    def create(self, name: str, data: bytes) -> None:
        self._planned[name] = _Planned(lambda: self._make(name, data), len(data))

    def _make(self, name: str, data: bytes) -> Taken:
        if not self.storage.create(name, data):
            raise OccupiedError(f"{self.where}/{name}: exists already (give a new place)")
        return Taken(copied=1, size=len(data))

    def end(self, origin: Origin, parts: list[ForkedPart], noted: Path | str | None) -> None:
        """See `Site`. What the store says of the copies is compared with what the index of the origin says of them,
        before the objects that make it a state.
        """
        planned, turns = self._planned, turns_of(self._planned)
        last = COUNTING if COUNTING in turns.values() else BEGINNING
        notes = [] if noted is None else [partial(self._note, noted)]
        for turn in sorted(set(turns.values())):
            steps = [planned[name].make for name in planned if turns[name] == turn]
            if turn == last:
                # before it is a state, so that a kill leaves none with keys that an erase has not seen
                self._carry_out(notes)
                looks = [partial(origin.check_no_erase, parts), partial(self._check_sizes, turns, last)]
                side_by_side(lambda look: look(), looks)
            self._carry_out([*notes, *steps] if turn < last else steps)
            notes = []

    def _carry_out(self, steps: Sequence[Callable[[], Taken]]) -> None:
        for done in side_by_side(lambda step: step(), steps):
            self.taken = Taken(*(mine + more for mine, more in zip(self.taken, done, strict=True)))

    def _note(self, origin: Path | str) -> Taken:
        note_fork(origin, self._target)
        return Taken()

    def _check_sizes(self, turns: Mapping[str, int], last: int) -> None:
        """Compare the sizes of what is there before the last turn; an index says itself whether it is whole."""
        sizes = self.storage.sizes()
        for name, planned in self._planned.items():
            size = sizes.get(name, -1)
            if turns[name] < last and size != (planned.size or sizes.get(name)):
                raise RestoreError(
                    f"{self.where}/{name}: found {'no' if size < 0 else size} bytes, expected the copy of "
                    f"{planned.size or 'some'} (try again)"
                )

    def undo(self) -> None:
        """See `Site`. Where the removal fails, the error of the fork is what is shown."""
        if not self._mine:
            return
        try:
            remove_in_turns(self.storage, self.storage.list())
            if self._noted is not None:
                remove_note(self._noted, self._target)
        except (OSError, HybridStoreError):
            pass  # the same command removes the rest
        self._mine = False
