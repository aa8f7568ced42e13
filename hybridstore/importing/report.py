"""Report: what became of a state that was moved into an operator, and the error of a refused move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from changelog.errors import HybridStoreError


class ImportRefusedError(HybridStoreError):
    """A state cannot be moved into an operator, or the move failed: the operator has no state, and a query cannot begin
    with a part of one.

    >>> hs.import_spark("/checkpoints/clicks", None)
    Traceback (most recent call last):
    ...
    hybridstore.ImportRefusedError: results: found no DataFrame that `apply` has returned, ...
    """

    __module__ = "hybridstore"


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The numbers of a move into an operator.

    source    where the state came from, in words
    operator  the name of our operator
    location  its query's checkpointLocation
    shards    its number of shards
    records   rows that were read: keys of the old state, entries of lists and maps, timers; or rows of a DataFrame
    batch     the last batch of the old query, -1 without an old query
    duration_ms  how long the move took (ms)

    >>> report = hs.ImportReport("aggregation 0 of /old", "clicks", "/new", 4, 3, 17, 2500)
    >>> for sentence in report.sentences():
    ...     print(sentence)
    aggregation 0 of /old, behind batch 17: 3 records in 4 shards of 'clicks' (2.5 s)
    start the query with checkpointLocation /new
    """

    source: str
    operator: str
    location: str
    shards: int
    records: int
    batch: int
    duration_ms: float

    def sentences(self) -> Iterator[str]:
        """Yield what happened, and what to do next."""
        behind = "" if self.batch < 0 else f", behind batch {self.batch}"
        yield (
            f"{self.source}{behind}: {self.records:,} records in {self.shards} shards of {self.operator!r} "
            f"({self.duration_ms / 1000:.1f} s)"
        )
        yield f"start the query with checkpointLocation {self.location}"
