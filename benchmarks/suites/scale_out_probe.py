"""Probe: a program that tells, per process, how much state the process holds and what it asks of storage. For
`scale_out`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.suites.wrapped import Wrapped
from changelog.storage import LocalStorage
from hybridstore.clock import Watermark
from hybridstore.spark.contract import Runner
from hybridstore.spark.shard.cache import CACHE
from hybridstore.state.group import StoreGroup

# The verbs of a storage (`changelog.storage`) that are a request to an object store each.
VERBS = ("create", "get", "get_ranges", "size", "list", "delete")

_asked: dict[str, int] = {}
_drop = CACHE.drop
_watched: set[str] = set()


def _watch(folder: str) -> None:
    """Count what this process asks of local storages below `folder` from now on, by verb."""
    if folder in _watched:
        return
    if not _watched:
        for verb in VERBS:
            setattr(LocalStorage, verb, _counted(verb, getattr(LocalStorage, verb)))
    _watched.add(folder)


def _counted(verb: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(storage: LocalStorage, *arguments: Any, **options: Any) -> Any:
        if any(storage.url.startswith(prefix) for prefix in _watched):
            _asked[verb] = _asked.get(verb, 0) + 1
        return function(storage, *arguments, **options)

    return counted


class Probed(Wrapped):
    """`program`, with notes of every process that runs it in `notes`: a file per process, the newest note counts."""

    def __init__(self, program: Any, notes: str, state: str) -> None:
        super().__init__(program)
        self.notes = notes
        self.state = state

    def open(self, group: StoreGroup) -> ProbedRunner:
        """Open the program on a shard."""
        _watch(self.state)

        def drop(where: str | Path) -> None:
            _drop(where)
            note(Path(self.notes))

        # a worker that has handed its shards to a holder does not run the program any more
        CACHE.drop = drop  # type: ignore[method-assign]
        return ProbedRunner(self.inner.open(group), group, Path(self.notes))


class ProbedRunner(Wrapped):
    """A program's runner that notes what its process holds after each batch."""

    def __init__(self, runner: Runner, group: StoreGroup, notes: Path) -> None:
        super().__init__(runner)
        self._group = group
        self._notes = notes

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process, then note."""
        answer = self.inner.process(table, output, watermark)
        note(self._notes, sum(store.num_records for store in self._group.stores.values()))
        return answer


def note(notes: Path, records: int = 0) -> None:
    """Note what this process holds, and `records` that are just being worked on."""
    for shard in list(CACHE._entries.values()):
        records += sum(store.num_records for store in shard.group.stores.values())
    path = notes / str(os.getpid())
    path.with_suffix(".tmp").write_text(json.dumps({"records": records, "asked": dict(_asked)}), encoding="utf-8")
    path.with_suffix(".tmp").replace(path)
