"""Requests: an object store in memory, and what a process asks it for: requests, bytes, and rounds of them.

    with counted() as requests:
        storage = CountedStorage(requests)
        ...
    requests.rounds, requests.number, requests.bytes

Nothing depends on time: while requests are counted, those that the code makes side by side (`changelog.rounds`) are
carried out one after the other, and count as one round, or as many as the longest of them needs. Requests of other
threads than that which began to count are counted in `behind` alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from changelog import rounds
from tests.tools.memory_storage import MemoryStorage


class Requests:
    """What was asked for since `reset`; `bytes` are those that were read."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.reset()

    def reset(self) -> None:
        """Count from 0 again."""
        self.rounds = self.number = self.bytes = self.behind = self.bytes_behind = 0
        self.names: list[str] = []

    def add(self, verb: str, name: str, number: int = 1, size: int = 0) -> None:
        """Count requests that are made at once."""
        if threading.get_ident() != self._thread:
            self.behind, self.bytes_behind = self.behind + number, self.bytes_behind + size
            return
        self.rounds, self.number, self.bytes = self.rounds + 1, self.number + number, self.bytes + size
        self.names.append(f"{verb} {name}")

    def side_by_side(self, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        """Stand for `changelog.rounds`: one after the other, and one round."""
        if threading.get_ident() != self._thread:
            return [work(item) for item in items]
        before, most, answers = self.rounds, 0, []
        for item in items:
            self.rounds = before
            answers.append(work(item))
            most = max(most, self.rounds - before)
        self.rounds = before + most
        return answers


@contextmanager
def counted() -> Iterator[Requests]:
    """Count the requests to every `CountedStorage` that is given them."""
    requests = Requests()
    carry_out = rounds._carry_out
    rounds._carry_out = requests.side_by_side
    try:
        yield requests
    finally:
        rounds._carry_out = carry_out


class CountedStorage:
    """An object store whose requests are counted; `objects` is what it holds. Neighbouring ranges are one request."""

    def __init__(self, requests: Requests, inner: MemoryStorage | None = None) -> None:
        self.requests = requests
        self.inner = MemoryStorage() if inner is None else inner

    @property
    def url(self) -> str:
        return self.inner.url

    def create(self, name: str, data: bytes) -> bool:
        self.requests.add("create", name)
        return self.inner.create(name, data)

    def get(self, name: str) -> bytes:
        size = 0
        try:
            data = self.inner.get(name)
            size = len(data)
        finally:
            self.requests.add("get", name, size=size)
        return data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        spans = rounds.merged(ranges)
        self.requests.add("ranges", name, len(spans), sum(end - start for start, end in spans))
        return self.inner.get_ranges(name, ranges)

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        self.requests.add("list", prefix)
        return self.inner.list(prefix, after)

    def folders(self, folder: str = "") -> Sequence[str]:
        self.requests.add("list", folder)
        return self.inner.folders(folder)

    def delete(self, names: Iterable[str]) -> None:
        self.requests.add("delete", "")
        self.inner.delete(names)

    def size(self, name: str) -> int:
        self.requests.add("size", name)
        return self.inner.size(name)

    def path(self, name: str) -> Path | None:
        return None

    def below(self, folder: str) -> CountedStorage:
        return CountedStorage(self.requests, self.inner.below(folder))
