"""Plan: a restore into a host that only counts. The plan says what a restore would do, or why it would be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from changelog.codec import unpack
from changelog.errors import HybridStoreError
from changelog.identity import Identity
from changelog.mutation import ALTERED, DEFINE, DROPPED, SYSTEM, mutations
from changelog.reader import LoggedVersion

from .apply import Host, Table
from .directory import Directory
from .restore import Reached, RestoreReport, restore


@dataclass(slots=True, repr=False)
class RestorePlan(RestoreReport):
    """The plan of a restore: a report of a restore that was not done.

    `kinds` has the kinds of the stores by number; `problem` says why the restore would be refused (None: it would not
    be); `duration_ms` is the estimated time to the first read on this machine (ms).

    >>> hs.open("state").close()
    >>> print(hs.inspect("state").restart().summary())
    state: version 0 would be restored in about ... ms: no checkpoint, then 0 versions (0 records, 0 bytes)
    """

    kinds: dict[int, str] = field(default_factory=dict)
    problem: str | None = None

    def summary(self) -> str:
        if self.problem is not None:
            return f"{self.path}: would be refused: {self.problem}"
        base = (
            "no checkpoint"
            if self.checkpoint_version is None
            else f"checkpoint {self.checkpoint_version} ({self.checkpoint_records:,} records, "
            f"{self.checkpoint_bytes:,} bytes)"
        )
        text = (
            f"{self.path}: version {self.version} would be restored in about {self.duration_ms:.0f} ms: {base}, "
            f"then {self.tail_versions:,} versions ({self.tail_records:,} records, {self.tail_bytes:,} bytes)"
        )
        if self.cut is not None:
            text += f"; would cut {self.cut.size} bytes at {self.cut.path}:{self.cut.offset} ({self.cut.reason})"
        return text + "".join(f"; would skip {line}" for line in self.skipped)


class _Counting:
    """A host without stores, which notes the kinds of the stores."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.kinds: dict[int, str] = {}

    def reset(self) -> None:
        self.settings, self.kinds = {}, {}

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> _Counting:
        if kind == DROPPED:
            self.kinds.pop(number, None)
        elif kind != ALTERED:
            self.kinds[number] = kind
        return self

    def restorable(self, number: int) -> _Counting:
        return self

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        """Attach nothing."""

    def appliers(self) -> dict[int, Any]:
        return {}

    def batch_appliers(self) -> dict[int, Any]:
        return {}

    def end_version(self, ts: int, version: int) -> None:
        """Keep no time."""


def _count(version: LoggedVersion, host: Host, table: Table) -> None:
    """Read the definitions of stores in a version, and skip its other mutations."""
    if DEFINE in version.commit.records:
        for body in version.bodies:
            for store, op, arguments in mutations(unpack(body)):
                if (store, op) == (SYSTEM, DEFINE):
                    host.define(*arguments)


def plan(
    path: Path, *, check: Callable[[Reached], None] = lambda reached: None, identity: Identity | None = None
) -> RestorePlan:
    """Return the plan of a restore of `path`, also when the restore would be refused. Frames are checked; mutations are
    read only in versions that define stores. O(tail).

    `check` raises if an owner would refuse the result of the restore; `identity` as in `restore`.
    """
    host = _Counting()
    try:
        reached = restore(path, host, apply=_count, identity=identity)
        check(reached)
    except HybridStoreError as error:
        return RestorePlan(str(path), problem=str(error))
    if reached.checkpoint is not None:
        reached.checkpoint.close()
    report = reached.report
    counted = {each.name: getattr(report, each.name) for each in fields(report)}
    return RestorePlan(**counted | {"attach_ms": 0.0, "tail_ms": 0.0, "duration_ms": 0.0}, kinds=host.kinds)
