"""Ahead: decodes the blocks of a checkpoint in a thread of its own, before their owner asks for them.

The thread touches no store. Decoded blocks wait in `ready`, and the owner takes a block when it would otherwise read
the block itself: when a record of the block is touched, or in a slice of hydration. Python runs one thread at a time,
so the thread works in slices of about a millisecond and releases the interpreter in between; the owner never waits
longer than a slice. The thread begins with the second block that is needed, or at a slice of hydration, because
starting a thread takes longer than attaching a small state and reading it once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from .block import BlockEntry, Columns, unpack_block_in_slices
from .checkpoint import CheckpointReader
from .directory import PageEntry
from .errors import CorruptCheckpointError

# The thread starts only after the first reads and writes that follow an opening.
DELAY_SECONDS: Final = 0.05
SLICE_SECONDS: Final = 0.001
# Between two slices. A busy owner keeps the interpreter for 5 ms more each time that the thread asks for it.
REST_SECONDS: Final = 0.003
# How many far blocks are read side by side when the cache has no room for their packs.
BLOCKS_AT_ONCE: Final = 64


class ReadAhead:
    """Decoded blocks of one checkpoint that no store has taken yet.

    Blocks are decoded store by store, the newest block first. `has_expired(store, entry)` is called before each page
    and each block and returns True when no record of it is live any more. A damaged block is skipped: the owner reads
    it later and raises.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        stores: Iterable[int],
        has_expired: Callable[[int, BlockEntry | PageEntry], bool],
    ) -> None:
        self.ready: dict[tuple[int, int], Columns] = {}
        # Lines of far pages, by pack and offset; reading a local page again costs less than keeping its lines.
        self._lines: dict[tuple[int, int], list[BlockEntry]] = {}
        self._taken: set[tuple[int, int]] = set()
        self._stores = list(stores)[::-1]
        self._pages: list[tuple[int, PageEntry]] = []
        self._waiting: list[tuple[int, BlockEntry]] = []
        self._read = 0  # how many of the last blocks in `_waiting` were read from far
        self._has_expired = has_expired
        self._reader = reader.twin()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None  # None until it is begun

    def start(self) -> None:
        """Begin, after a moment. If the system gives no thread, the owner decodes every block itself."""
        self._thread = threading.Thread(target=self._run, name="hybridstore-read-ahead", daemon=True)
        with suppress(RuntimeError):
            self._thread.start()

    def _run(self) -> None:
        if not self._stop.wait(DELAY_SECONDS):
            # What cannot be brought is read by whoever wants it, who hears the reason. An interpreter that ends
            # takes no more requests side by side (RuntimeError).
            with suppress(OSError, RuntimeError):
                self._reader.bring(lambda: not self._stop.is_set())
            while self.step(self._rest):
                self._rest()
        self._reader.close()

    def _rest(self) -> None:
        self._stop.wait(REST_SECONDS)

    def step(self, rest: Callable[[], None]) -> bool:
        """Decode the next block, with a call of `rest` after each slice; False when none exists left, or `stop`
        was called.
        """
        while (self._waiting or self._pages or self._stores) and not self._stop.is_set():
            if not self._waiting:
                self._fill()
                continue
            if self._read == 0:
                self._prefetch(entry for _, entry in self._waiting[-BLOCKS_AT_ONCE:])
                self._read = min(len(self._waiting), BLOCKS_AT_ONCE)
            self._read -= 1
            store, entry = self._waiting.pop()
            key = (store, entry.block)
            if key in self._taken or self._has_expired(store, entry):
                continue
            with suppress(CorruptCheckpointError, OSError):
                raw = bytes(self._reader.fetched_block(store, entry))
                columns = unpack_block_in_slices(raw, "", _Pace(rest))
                columns = self._reader.with_layers(store, entry, columns)
                self.ready[key] = columns
                if key in self._taken:  # its owner could not wait
                    self.ready.pop(key, None)
            return True
        return False

    def _fill(self) -> None:
        """Open the next page of the directory, or begin with the next store. O(lines of a page).

        Where they are far, pages are opened until enough blocks can be read side by side.
        """
        if not self._pages:
            number = self._stores.pop()
            with suppress(CorruptCheckpointError):
                self._pages = [(number, page) for page in self._reader.directory(number).pages]
            self._prefetch(page for _, page in self._pages)
        while self._pages and len(self._waiting) < (BLOCKS_AT_ONCE if self._reader.far else 1):
            number, page = self._pages.pop()
            if self._has_expired(number, page):
                continue
            with suppress(CorruptCheckpointError, OSError):
                lines = self._reader.page(number, page)
                if self._reader.far:
                    self._lines[page.pack, page.offset] = lines
                self._waiting[:0] = [(number, entry) for entry in lines]

    def _prefetch(self, lines: Iterable[BlockEntry | PageEntry]) -> None:
        if self._reader.far:
            # What cannot be read now is read by whoever wants it, who hears the reason.
            with suppress(OSError, RuntimeError):
                self._reader.prefetch(lines)

    def take_page(self, page: PageEntry) -> list[BlockEntry] | None:
        """Return the lines of a page, and forget them, if the page was far and is ready."""
        return self._lines.pop((page.pack, page.offset), None)

    def take(self, store: int, block: int) -> Columns | None:
        """Return a block, and forget it, if it is ready. The second call begins the thread."""
        if self._thread is None and self._taken and not self._stop.is_set():
            self.start()
        self._taken.add((store, block))
        return self.ready.pop((store, block), None)

    def has_some(self) -> bool:
        """False while no block is ready but some will be: a caller that can wait should wait instead of decoding a
        block itself.

        Begins the thread.
        """
        if self._thread is None and not self._stop.is_set():
            self.start()
        return bool(self.ready) or self._thread is None or not self._thread.is_alive()

    def stop(self) -> None:
        """End the thread for good, and forget the blocks that were not taken. Waits for a slice at most."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        else:
            self._reader.close()
        self.ready.clear()
        self._lines.clear()


class _Pace:
    """Calls `rest` after each slice of work."""

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since >= SLICE_SECONDS:
            self._rest()
            self._since = time.perf_counter()
