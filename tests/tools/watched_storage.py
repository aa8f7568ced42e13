"""Watched storage: another storage, every call of which goes through a function: to count, to refuse, to lose
answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from changelog.storage import Storage

# verb, full name (or prefix), and what does it
Watch = Callable[[str, str, Callable[[], Any]], Any]


class WatchedStorage:
    """`watch(verb, name, call)` returns or raises what the caller gets; `call()` does it."""

    def __init__(self, inner: Storage, watch: Watch, base: str = "") -> None:
        self.inner = inner
        self.watch = watch
        self.base = base

    @property
    def url(self) -> str:
        return self.inner.url

    def create(self, name: str, data: bytes) -> bool:
        return self.watch("create", self.base + name, lambda: self.inner.create(name, data))

    def get(self, name: str) -> bytes:
        return self.watch("get", self.base + name, lambda: self.inner.get(name))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        return self.watch("get", self.base + name, lambda: self.inner.get_ranges(name, ranges))

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        return self.watch("list", self.base + prefix, lambda: self.inner.list(prefix, after))

    def folders(self, folder: str = "") -> Sequence[str]:
        return self.watch("list", self.base + folder, lambda: self.inner.folders(folder))

    def delete(self, names: Iterable[str]) -> None:
        return self.watch("delete", self.base, lambda: self.inner.delete(names))

    def size(self, name: str) -> int:
        return self.watch("size", self.base + name, lambda: self.inner.size(name))

    def path(self, name: str) -> Path | None:
        return self.inner.path(name)

    def below(self, folder: str) -> "WatchedStorage":
        return WatchedStorage(self.inner.below(folder), self.watch, f"{self.base}{folder}/")


class Killed(BaseException):
    """The process has ended."""


class Killer:
    """Ends the process at one of its writes, before or behind it."""

    def __init__(self, at: int, *, behind: bool) -> None:
        self.at, self.behind = at, behind
        self.writes = 0

    def __call__(self, verb: str, name: str, call: Callable[[], Any]) -> Any:
        if verb not in ("create", "delete"):
            return call()
        self.writes += 1
        if self.writes == self.at and not self.behind:
            raise Killed
        answer = call()
        if self.writes == self.at:
            raise Killed
        return answer


class Calls:
    """Counts the calls of a storage by verb."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def __call__(self, verb: str, name: str, call: Callable[[], Any]) -> Any:
        self.count[verb] += 1
        return call()

    def taken(self) -> dict[str, int]:
        """Return the calls since the last time."""
        taken = dict(self.count)
        self.count.clear()
        return taken
