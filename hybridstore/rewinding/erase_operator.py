"""Erase of an operator of a Spark query that is stopped, at the version that the query continues from.

    <shard>/packs, checkpoints   of a new launch: the version without the keys
    <shard>/log                  one object of the version, of that launch: the entry "erasures", chained to the digest
                                 of the version with the keys
    runs/<launch>                one create: from here on the objects of this launch count in every shard
                                 (`recovery.rule`), and all older ones are void
    then                         all void objects are removed

So before that create nothing is erased, and behind it all shards are.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.changes import changes_of
from changelog.files import REAL_FILES
from changelog.frame import CommitFrame
from changelog.mutation import SYSTEM
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage
from recovery.checkpoint import CheckpointReader
from recovery.erase import ERASURES
from recovery.errors import RestoreError
from recovery.layout import CHECKPOINTS, LOG, PACKS, LogName, list_checkpoints
from recovery.line import Step
from recovery.meta import read_meta
from recovery.rule import NOTE
from recovery.runs import newest_claim
from recovery.shard_log import METRICS, SINCE, ShardLog, encode_object
from recovery.write import write_checkpoint

from ..rescaling.report import RescaleError
from ..rescaling.spark import check_stopped
from ..spark.launches import claim, new_launch
from ..spark.location import Location
from ..spark.operator_file import has_moved, read_chain
from ..spark.query_log import committed
from ..spark.shard.cache import CACHE
from ..spark.shard.log import AttemptLog, Since
from ..spark.shard.provider import SHARD_SIZES
from ..spark.shard.shard_id import StateStoreId
from ..state.erasing import still_read, sweep_packs, write_erased
from ..state.given_keys import GivenKeys
from ..state.group import StoreGroup
from ..state.numbers import added
from .parts import ErasedCounts
from .traces import grouped, traces_in_packs, traces_of, wanted

# The attempt in the name of a shard's object, which is not made by a task.
_ATTEMPT: Final = 1
_FOLDERS: Final = (LOG, CHECKPOINTS, PACKS)


class _Rewritten(NamedTuple):
    """What was written of a shard: its object and its checkpoint, how many records are gone, and the bytes."""

    log: str
    checkpoint: str
    records: int
    written: int


class OperatorPart:
    """See `ErasePart`. `stopped`: the caller confirms that the query does not run."""

    def __init__(self, location: Location, operator: str, *, stopped: bool) -> None:
        self.location = location
        self.operator = operator
        self.storage: Storage = location.operator(operator)
        self._stopped = stopped
        self._fields: dict[str, Any] = next(reversed(read_chain(self.storage)), {})

    @property
    def places(self) -> list[Path | str]:
        """The folders of the shards that count."""
        urls = (self._log(shard).storage.url for shard in self._shards())
        return [Path(url) if isinstance(self.storage, LocalStorage) else url for url in urls]

    def _shards(self) -> list[StateStoreId]:
        fields, number = self._fields, int(self._fields.get("shards", 0))
        query_id, generation = fields.get("query_id", ""), int(fields.get("generation", 0))
        return [
            StateStoreId(self.location.state, self.operator, shard, query_id, generation, number)
            for shard in range(number)
        ]

    def _log(self, shard: StateStoreId) -> AttemptLog:
        return AttemptLog(self.storage, shard.folder, shard.identity, lambda: has_moved(self.storage))

    @property
    def _version(self) -> int:
        """The version that the query continues from."""
        return committed(self.location.query()) + 1

    def check(self) -> None:
        """Raise HybridStoreError if the query may run, or a shard cannot be read."""
        where = self.storage.url
        if not self._fields or newest_claim(self.storage) is None:
            raise RestoreError(f"{where}: found no run, expected an operator that has done a batch")
        try:
            check_stopped(self.storage, self._fields, stopped=self._stopped)
        except RescaleError as error:
            raise RestoreError(str(error)) from None
        current = f"{int(self._fields['generation']):06d}"
        earlier = [each for each in self.storage.folders() if each.isdecimal() and len(each) == 6 and each != current]
        if earlier:
            raise RestoreError(
                f"{where}: found {', '.join(earlier)}, of shards that do not count, which may have the keys (remove "
                f"them: hybridstore rescale LOCATION {self.operator} --remove-old)"
            )
        if version := self._version:
            for shard in self._shards():
                self._log(shard).open(version).close()

    def erase(self, keys: GivenKeys, now: int) -> ErasedCounts:
        storage, version, before = self.storage, self._version, newest_claim(self.storage)
        chosen = grouped(keys, self._program)
        entry = {"wall_ms": now, "keys": len(keys.keys), "prefix": keys.prefix}
        launch = new_launch(storage, erasing=True)
        rewritten = [self._rewritten(shard, version, launch, chosen, entry) for shard in self._shards() if version]
        if self._version != version or newest_claim(storage) != before:
            raise RestoreError(f"{storage.url}: the query has begun or done a batch meanwhile (stop it, and try again)")
        claimed = claim(storage, launch, uuid.uuid4().hex, max(0, version - 1), _ATTEMPT)
        if claimed.launch != launch:
            raise RestoreError(f"{storage.url}: launch {launch} has begun already (try again)")
        CACHE.drop(storage.url)
        kept = {name for each in rewritten for name in (each.log, each.checkpoint)}
        removed = sum(self._sweep(shard, kept) for shard in self._shards())
        return ErasedCounts(sum(each.records for each in rewritten), removed, sum(each.written for each in rewritten))

    @property
    def _program(self) -> dict[str, Any]:
        program = self._fields.get("program")
        return program if isinstance(program, dict) else {}

    def _rewritten(
        self, shard: StateStoreId, version: int, launch: int, keys: GivenKeys, entry: dict[str, Any]
    ) -> _Rewritten:
        """Write a version of a shard without keys, for a launch that has not begun."""
        log, storage, identity, bodies = self._log(shard), self._log(shard).storage, shard.identity, list[bytes]()
        position = Position(version, 0, 0)
        with log.open(version) as opened:
            parent = Step(version - 1, opened.step.digest)
            group = StoreGroup(bodies.append)
            group.reached(*parent)
            group.set(ERASURES, [*opened.settings.get(ERASURES, []), entry])
            digest = group.journal.seal()
            whole = write_checkpoint(
                storage,
                identity=identity,
                version=version,
                digest=digest,
                position=position,
                settings={**opened.settings, **group.settings},
                captures=opened.group.capture(),
                previous=opened.reader,
                launch=launch,
                sizes=SHARD_SIZES,
            )
            totals = log.totals(opened.step) if opened.step.version else {}
        reader = CheckpointReader(storage, whole.name)
        traces = traces_of(reader, keys, self._program)
        report = write_erased(storage, reader, position, reader.meta.settings, traces, launch=launch, sizes=SHARD_SIZES)
        records = sum(each.records for each in reader.meta.stores)
        reader.close()
        if report.name != whole.name:
            storage.delete([whole.name])
        new = CheckpointReader(storage, report.name)
        records -= sum(each.records for each in new.meta.stores)
        new.close()
        wall_ms = int(time.time() * 1000)
        metrics = {"wall_ms": wall_ms, "batch": version - 1, "rows": 0, "rows_out": 0, "load": "erase"}
        extra = {METRICS: {**metrics, "totals": added(totals, {})}, SINCE: Since(wall_ms=wall_ms).plain()}
        commit = CommitFrame(version, digest, group.journal.records, wall_ms, {}, extra)
        name = LogName(version, launch, _ATTEMPT, digest[:4].hex())
        log.create(name, data := encode_object(identity, parent, commit, bodies))
        return _Rewritten(str(name), report.name, records, whole.bytes_written + report.bytes_written + len(data))

    def _sweep(self, shard: StateStoreId, kept: set[str]) -> int:
        """Remove all objects of a shard but those kept, and the packs that they name; return the bytes."""
        storage = self._log(shard).storage
        before = _bytes_of(storage)
        objects = chain.from_iterable(storage.list(f"{folder}/") for folder in (LOG, CHECKPOINTS))
        storage.delete([name for name in objects if name not in kept])
        if not sweep_packs(storage):
            raise still_read(storage.url)
        if isinstance(storage, LocalStorage):
            _remove_unfinished(storage)
        return before - _bytes_of(storage)

    def traces(self, keys: GivenKeys) -> Iterator[str]:
        """See `ErasePart`: in the packs of every checkpoint, and in every object of the log, void ones, too."""
        keys = grouped(keys, self._program)
        folders = [name for name in self.storage.folders() if name.isdecimal() and len(name) == 6]
        for generation in folders:
            for shard in self.storage.folders(generation):
                yield from self._traces_in(f"{generation}/{shard}", keys)

    def _traces_in(self, folder: str, keys: GivenKeys) -> Iterator[str]:
        storage = self.storage.below(folder)
        yield from traces_in_packs(storage, keys, self._program)
        metas = [read_meta(storage, name) for name in list_checkpoints(storage)]
        stores = {each.number: each.name for meta in metas for each in meta.stores}
        log = ShardLog(storage)
        for name in log.names():
            if name.attempt == NOTE:
                continue
            for logged in log.versions([name], None):
                for change in changes_of(list(logged.bodies)):
                    if change.op == "define" and change.store == SYSTEM:
                        stores[change.value["number"]] = change.key
                    elif change.store != SYSTEM and self._takes(stores.get(change.store, ""), keys, change.key):
                        yield f"{storage.url}/{name}: a record of a key"

    def _takes(self, store: str, keys: GivenKeys, key: Any) -> bool:
        return key is not None and wanted(store, keys, self._program).takes(key)


def _bytes_of(storage: Storage) -> int:
    return sum(storage.size(name) for folder in _FOLDERS for name in storage.list(f"{folder}/"))


def _remove_unfinished(storage: LocalStorage) -> None:
    """Remove files that are no objects: of writers that were killed. Nothing writes here now."""
    for folder in _FOLDERS:
        whole = {storage.path(name) for name in storage.list(f"{folder}/")}
        path = storage.root / folder
        for name in sorted(os.listdir(path)) if path.is_dir() else ():
            if path / name not in whole:
                REAL_FILES.remove(path / name)
