"""Spark: new shards for an operator of a query, which must have stopped after a committed batch.

    <g>/<shard>/...         packs, checkpoint, one log object
    operator/<n + 1>.json   one create: before it the old shards count, behind it the new ones

The next rescale removes what a crash before the switch has left. The old shards stay, and `go_back` makes them count
again until a batch was done with the new shards.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from changelog.errors import HybridStoreError
from changelog.frame import CommitFrame
from changelog.journal import chain
from changelog.segment import Position
from changelog.storage import Storage
from recovery.checkpoint import CheckpointReader
from recovery.layout import LogName, generation_folder, list_rescales, rescale_name, shard_folder
from recovery.line import Step
from recovery.rule import launch_of
from recovery.runs import Claim, newest_claim
from recovery.shard_log import METRICS, SINCE, ShardLog, encode_object
from recovery.write import FreshCheckpoint, write_checkpoint

from ..spark.launches import newest_driver
from ..spark.location import Location
from ..spark.operator_file import append_operator, has_moved, read_chain, read_operator
from ..spark.query_log import committed, planned
from ..spark.reading import shards
from ..spark.shard.log import AttemptLog, Since
from ..spark.shard.provider import SHARD_SIZES
from ..spark.shard.shard_id import StateStoreId
from ..state.changes import Difference
from ..state.numbers import added
from .engine import Old, RescaleArguments, Shards, counting, rescale
from .report import RescaleError, RescaleReport
from .sharing import OldShard, ShardGroup

# The entry that a rescale adds to a description: the number, generation and version of the old shards.
RESCALED: Final = "rescaled"
# The attempt in the name of a new shard's first object, which is not made by a task.
_ATTEMPT: Final = 1


class OperatorShards(Shards):
    """The shards of an operator: its descriptions, the run that counts, and the version after the last batch. Can be
    sent to a Spark worker.
    """

    sizes = SHARD_SIZES

    def __init__(
        self, location: Location, operator: str, chain: list[dict[str, Any]], claim: Claim, version: int
    ) -> None:
        fields = chain[-1]
        self.at = location
        self.location, self.where, self.operator = location.checkpoint, operator, operator
        self.chain = chain
        self.runs = claim.runs
        self.program = fields["program"]
        self.clocked = fields.get("time") == "watermark"
        self.old = Old(fields["number"], int(fields["generation"]), int(fields["shards"]), version)

    @property
    def place(self) -> Storage:
        return self.at.operator(self.operator)

    def identity(self, shard: int, generation: int, shards: int) -> StateStoreId:
        """Return the identity of a shard of a generation of so many shards."""
        query_id = self.chain[-1].get("query_id", "")
        return StateStoreId(self.at.state, self.operator, shard, query_id, generation, shards)

    def version_of(self, family: ShardGroup) -> int:
        return self.old.version

    def parent(self, shard: int, scratch: Storage) -> OldShard:
        """Return an old shard as a checkpoint of the version after the last batch: the newest checkpoint if it has this
        version, else a checkpoint that is written to `scratch`. Raises RescaleError. O(shard).
        """
        old, storage = self.old, self.place
        identity = self.identity(shard, old.generation, old.shards)
        log = AttemptLog(storage, identity.folder, identity.identity, lambda: has_moved(storage))
        try:
            opened = log.open(old.version)
            reader, step, group = opened.reader, opened.step, opened.group
            is_newest = step.version == old.version
            if reader is not None and reader.meta.version == step.version:
                return OldShard(shard, reader, is_newest)
            report = write_checkpoint(
                scratch.below(str(shard)),
                identity=identity.identity,
                version=step.version,
                digest=step.digest,
                position=Position(step.version, 0, 0),
                settings=group.settings,
                captures=group.capture(),
                previous=reader,
                sizes=SHARD_SIZES,
            )
            return OldShard(shard, CheckpointReader(scratch.below(str(shard)), report.name), is_newest)
        except (HybridStoreError, OSError) as error:
            raise RescaleError(
                f"{self.operator}: shard {shard} cannot be read, so nothing was changed: {error}"
            ) from error

    def finish(self, family: ShardGroup, sinks: Mapping[int, FreshCheckpoint], generation: int, into: int) -> None:
        """See `Shards`. The first object of a new shard continues a step that no object has."""
        version, launch = self.old.version, launch_of(self.runs, self.old.version)
        totals = self._totals({parent.shard for parent in family.parents})
        for child, sink in sinks.items():
            identity = self.identity(child, generation, into)
            before = Step(version - 1, blake2b(identity.identity.encode(), digest_size=16).digest())
            digest = chain(before.digest, [])
            sink.finish(identity.identity, digest, family.settings, Position(version, 0, 0), launch)
            wall_ms = int(time.time() * 1000)
            metrics: dict[str, Any] = {"wall_ms": wall_ms, "batch": version - 1, "rows": 0, "rows_out": 0}
            # The sum over the shards stays: the first new shard continues the totals of the old ones.
            metrics |= {"load": "rescale", "totals": added(totals, {})}
            totals = {}
            extra = {METRICS: metrics, SINCE: Since(wall_ms=wall_ms).plain()}
            data = encode_object(identity.identity, before, CommitFrame(version, digest, {}, wall_ms, {}, extra), ())
            log = AttemptLog(self.place, identity.folder, identity.identity)
            log.create(LogName(version, launch, _ATTEMPT, digest[:4].hex()), data)

    def _totals(self, numbers: set[int]) -> dict[str, int]:
        """Return the totals of all batches of some old shards. O(shards) lists and gets."""
        sums: dict[str, int] = {}
        for state in shards(self.at, self.operator):
            if state.shard in numbers and state.changed is not None:
                sums = added(sums, Since.of(state.files.objects.commit_of(state.changed)).totals or {})
        return sums

    def switch(self, generation: int, into: int) -> None:
        old = self.old
        if _version(self.at, self.operator) != old.version:
            raise RescaleError(
                f"{self.operator}: the query has done a batch meanwhile, so the new shards do not count (stop it and "
                "rescale again)"
            )
        origin = {"from_shards": old.shards, "from_generation": old.generation, "version": old.version}
        self.describe({"shards": into, "generation": generation, RESCALED: origin})

    def describe(self, changed: dict[str, Any]) -> None:
        """Create the operator's next description. Raises RescaleError if another process created it first."""
        fields = {name: value for name, value in self.chain[-1].items() if name != RESCALED} | changed
        change = Difference(f"shards: {self.old.shards} before, {fields['shards']} from here on", "taken", "rescaled")
        try:
            first = append_operator(self.place, self.chain, self.old.version, fields, [change])
        except OSError:
            # The description may or may not have been written; the read below shows which.
            first = True
        known = read_chain(self.place)[-1]
        if not first or (known["shards"], known["generation"]) != (fields["shards"], fields["generation"]):
            raise RescaleError(
                f"{self.operator}: another process has changed the operator meanwhile, or its description could not be "
                "written: what it was counts (run the command again if it is still wanted)"
            )

    def clean(self, generation: int) -> None:
        """Remove the objects of rescales that did not finish and cannot finish any more. Objects that cannot be removed
        stay. O(objects of these generations).
        """
        storage = self.place
        with suppress(OSError, HybridStoreError):
            for number in {*list_rescales(storage)} - {generation, self.old.generation}:
                entry = json.loads(storage.get(rescale_name(number)))
                # `go_back` may return to a generation that a description has named.
                described = {fields["generation"] for fields in read_chain(storage)}
                if entry["follows"] <= self.old.number and number not in described:
                    _remove_generation(storage, number)


def shards_of(location: Location, operator: str, *, stopped: bool = False) -> OperatorShards:
    """Return the shards of an operator that count. `stopped`: the caller confirms that the query does not run.

    Raises RescaleError for an unknown operator, if its last batch is not committed, or if the query may run.
    """
    storage = location.operator(operator)
    chain, claim = read_chain(storage), newest_claim(storage)
    if not chain or claim is None:
        raise RescaleError(f"{storage.url}: no operator {operator!r} has state there (is this the checkpointLocation?)")
    check_stopped(storage, chain[-1], stopped=stopped)
    return OperatorShards(location, operator, chain, claim, _version(location, operator))


def _version(location: Location, operator: str) -> int:
    """Return the version after the last batch. Raises RescaleError if the last batch is not committed."""
    query = location.query()
    last, done = planned(query), committed(query)
    if last < 0:
        raise RescaleError(
            f"{query.url}: no query has its checkpoint there: found no offsets (give the query's checkpointLocation; "
            "if the state is elsewhere, pass --state)"
        )
    if last != done:
        raise RescaleError(
            f"{operator}: batch {last} was begun and is not committed (offsets/{last} is there, commits/{last} is "
            "not), so that the next start does it again, and its output could be there twice if other shards did it "
            "(start the query as it was until the batch is committed, and stop it then)"
        )
    return done + 1


def check_stopped(storage: Storage, fields: Mapping[str, Any], *, stopped: bool) -> None:
    """Raise RescaleError if the operator's query runs in this process, or if its driver is alive on this host."""
    sql = sys.modules.get("pyspark.sql")
    session = None if sql is None else sql.SparkSession.getActiveSession()
    for query in [] if session is None else session.streams.active:
        if query.id == fields.get("query_id"):
            raise RescaleError(f"{storage.url}: query {query.name or query.id} runs (stop it first: query.stop())")
    driver = newest_driver(storage)
    if stopped or driver is None or driver.host != socket.gethostname() or driver.pid == os.getpid():
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(driver.pid, 0)
        raise RescaleError(
            f"{storage.url}: process {driver.pid} of this host, which applied the operator last, is alive (stop the "
            "query, or pass --stopped if it is stopped although this process still runs)"
        )


def _remove_generation(storage: Storage, generation: int) -> int:
    names = storage.list(f"{generation_folder(generation)}/")
    storage.delete(names)
    return len(names)


# --- the operations -----------------------------------------------------------------------------------------------


def rescale_operator(location: Location, operator: str, asked: RescaleArguments, *, stopped: bool) -> RescaleReport:
    """See `hybridstore.rescale`."""
    old = shards_of(location, operator, stopped=stopped)
    asked.check(operator, old.old.shards)
    return rescale(old, asked)


def go_back(location: Location, operator: str, *, stopped: bool) -> RescaleReport:
    """Make the shards from before the last rescale count again. Raises RescaleError if a batch was done since. Some
    requests for each shard.
    """
    storage = location.operator(operator)
    chain, claim = read_chain(storage), newest_claim(storage)
    if not chain or claim is None or RESCALED not in chain[-1]:
        raise RescaleError(f"{storage.url}: no rescale to go back from (nothing was done)")
    check_stopped(storage, chain[-1], stopped=stopped)
    origin = chain[-1][RESCALED]
    new = OperatorShards(location, operator, chain, claim, origin["version"])
    before, version = origin["from_shards"], origin["version"]
    for shard in range(new.old.shards):
        later = ShardLog(new.storage(new.old.generation, shard)).names(version)
        if later:
            raise RescaleError(
                f"{operator}: batch {later[0].version - 1} was done with {new.old.shards} shards, so that the old ones "
                f"are behind (rescale to {before} instead)"
            )
    for shard in range(before):
        if not storage.list(f"{shard_folder(origin['from_generation'], shard)}/"):
            raise RescaleError(f"{operator}: the old shard {shard} was removed (rescale to {before} instead)")
    new.describe({"shards": before, "generation": origin["from_generation"]})
    report = RescaleReport(location.checkpoint, operator, new.old.shards, before, version)
    return counting(report, origin["from_generation"])


def remove_old(location: Location, operator: str) -> int:
    """Remove the shards that do not count any more, and return the number of removed objects. Raises RescaleError until
    a batch was done with the new shards. O(removed objects).
    """
    storage = location.operator(operator)
    fields = read_operator(storage)
    if fields is None:
        raise RescaleError(f"{storage.url}: no operator {operator!r} has state there (is this the checkpointLocation?)")
    current = int(fields["generation"])
    if current and committed(location.query()) + 1 <= fields.get(RESCALED, {}).get("version", 0):
        raise RescaleError(
            f"{operator}: no batch was done with the new shards yet: the old ones stay, to go back to (start the query)"
        )
    return sum(_remove_generation(storage, number) for number in {0, *list_rescales(storage)} - {current})
