"""Report: what a rescale does, or would do, in numbers and sentences; and the error of one that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from changelog.errors import HybridStoreError


class RescaleError(HybridStoreError):
    """A rescale was refused, or given up: the shards that counted before it still do."""


@dataclass(slots=True)
class StoreCount:
    """What becomes of a store, over all shards.

    records   records of its blocks, those that have expired and are not cleared away among them
    expiring  records that a merge makes expire
    """

    records: int = 0
    expiring: int = 0


@dataclass(slots=True)
class RescaleReport:
    """What a rescale did, or would do.

    location, operator  which state; the operator of a plain topology is ""
    shards, into        how many shards it had, and has
    version             of the old shards, which the new ones begin with
    generation          of the new shards, 0 where none was made
    stores              what became of each store, by name
    behind_ms           how far each old shard is behind the newest one that it is merged with (ms), by number; empty
                        when nothing is merged
    unseen              windows that close by a merge without being handed out (`emit="close"`)
    done                False for a dry run
    seconds             how long it took

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> with minutes.aggregate(n=hs.Count()).open("state", shards=2) as engine:
    ...     results = engine.process({"user": "ann", "ts": 500}) + engine.commit()
    >>> for sentence in hs.rescale("state", shards=4, dry_run=True).sentences():
    ...     print(sentence)
    state: 2 shards -> 4, at version 1
    store 'windows': 1 records
    each new shard has one parent and takes over its times: results are those of a run without a rescale
    """

    location: str
    operator: str
    shards: int
    into: int
    version: int
    generation: int = 0
    stores: dict[str, StoreCount] = field(default_factory=dict)
    behind_ms: dict[int, int] = field(default_factory=dict)
    unseen: int = 0
    done: bool = False
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """True when each new shard has one parent: nothing becomes late."""
        return self.into % self.shards == 0

    @property
    def expiring(self) -> int:
        """Records that expire by a merge, of all stores."""
        return sum(count.expiring for count in self.stores.values())

    def include(self, part: RescaleReport) -> None:
        """Add what becomes of some of the shards."""
        for name, count in part.stores.items():
            total = self.stores.setdefault(name, StoreCount())
            total.records += count.records
            total.expiring += count.expiring
        self.behind_ms.update(part.behind_ms)
        self.behind_ms = dict(sorted(self.behind_ms.items()))
        self.unseen += part.unseen

    def sentences(self) -> Iterator[str]:
        """Yield what is to be known before it is done, a sentence each."""
        name = self.operator or self.location
        yield f"{name}: {self.shards} shards -> {self.into}, at version {self.version}"
        for store, count in self.stores.items():
            yield f"store {store!r}: {count.records:,} records"
        if self.exact:
            yield "each new shard has one parent and takes over its times: results are those of a run without a rescale"
            return
        yield "shards are merged: a new shard takes the latest time of those that it is made of"
        for shard, behind in self.behind_ms.items():
            if behind:
                yield f"shard {shard} is {behind:,} ms behind: its records of the {behind:,} ms to come may be late"
        if not any(self.behind_ms.values()):
            yield "their times do not differ: nothing becomes late"
        for store, count in self.stores.items():
            if count.expiring:
                yield f"store {store!r}: {count.expiring:,} records expire by it"
        if self.unseen:
            yield f"{self.unseen:,} windows close by it without ever being handed out"


def check_late(report: RescaleReport, *, late: bool) -> None:
    """Raise RescaleError where a merge makes records expire or windows close unseen, unless that was agreed to."""
    if late or not (report.expiring or report.unseen):
        return
    what = f"{report.expiring:,} records expire" if report.expiring else ""
    unseen = f"{report.unseen:,} records of windows close without being handed out" if report.unseen else ""
    raise RescaleError(
        f"{report.operator or report.location}: by this merge {' and '.join(filter(None, (what, unseen)))}, so nothing "
        "was done (--late agrees to it, late=True in Python; a multiple of the number of shards merges nothing)"
    )
