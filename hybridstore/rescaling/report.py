"""Report: the effects of a rescale, in numbers and sentences; and the error of a refused rescale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from changelog.errors import HybridStoreError


class RescaleError(HybridStoreError):
    """A rescale was refused, or failed: the shards that counted before still count.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> with minutes.aggregate(n=hs.Count()).open("state", shards=2) as engine:
    ...     results = engine.process({"user": "ann", "ts": 500}) + engine.commit()
    >>> hs.rescale("state", shards=2)
    Traceback (most recent call last):
    ...
    hybridstore.RescaleError: state: has 2 shards already (nothing was done)
    """

    __module__ = "hybridstore"


@dataclass(slots=True)
class StoreCount:
    """The effects on a store, over all shards.

    records   records of its blocks, including expired records that are not removed yet
    expiring  records that a merge makes expire
    """

    records: int = 0
    expiring: int = 0


@dataclass(slots=True)
class RescaleReport:
    """The effects of a rescale that was done, or of a dry run.

    location, operator  the state; the operator of a plain topology is ""
    shards, into        the old and the new number of shards
    version             the version of the old shards, with which the new ones begin
    generation          the generation of the new shards, 0 if none was made
    stores              the effects on each store, by name
    behind_ms           how far each old shard is behind the newest one that it is merged with (ms), by number; empty
                        when nothing is merged
    unseen              windows that close by a merge without being emitted (`emit="close"`)
    done                False for a dry run
    duration_ms         how long it took (ms)

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
    duration_ms: float = 0.0

    @property
    def exact(self) -> bool:
        """True when each new shard has one parent: nothing becomes late."""
        return self.into % self.shards == 0

    @property
    def expiring(self) -> int:
        """Records that expire by a merge, of all stores."""
        return sum(count.expiring for count in self.stores.values())

    def include(self, part: RescaleReport) -> None:
        """Add the effects on some of the shards."""
        for name, count in part.stores.items():
            total = self.stores.setdefault(name, StoreCount())
            total.records += count.records
            total.expiring += count.expiring
        self.behind_ms.update(part.behind_ms)
        self.behind_ms = dict(sorted(self.behind_ms.items()))
        self.unseen += part.unseen

    def sentences(self) -> Iterator[str]:
        """Yield the effects to be known before the rescale, a sentence each."""
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
    """Raise RescaleError if a merge makes records expire or windows close unseen, unless `late` accepts that."""
    if late or not (report.expiring or report.unseen):
        return
    what = f"{report.expiring:,} records expire" if report.expiring else ""
    unseen = f"{report.unseen:,} records of windows close without being handed out" if report.unseen else ""
    raise RescaleError(
        f"{report.operator or report.location}: by this merge {' and '.join(filter(None, (what, unseen)))}, so nothing "
        "was done (--accept-late agrees to it, accept_late=True in Python; a multiple of the number of shards merges "
        "nothing)"
    )
