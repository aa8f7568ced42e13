"""Journal: the mutations of the version in progress, packed into frame bodies, and the digest chain over them.

Stores call `journal.extend((code, ...))` for mutations made of small atoms (the fast path: they are packed once a frame
is full) and `journal.record(...)` for all others, which are packed at once, so that a list that its owner changes later
is logged as it was when it was put. The digest of a version is blake2b-16 over the previous digest and then the packed
mutations in order; the split into frames does not change the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final

from .codec import packer
from .digest import DIGEST_BYTES, RunningDigest
from .errors import HybridStoreError, StatePoisonedError
from .frame import MAX_BODY_BYTES
from .mutation import MANY, count_records, records_of
from .turn import Turn

EMPTY_DIGEST: Final = bytes(DIGEST_BYTES)
FRAME_RECORDS: Final = 1000
FRAME_BYTES: Final = 64 * 1024
# The frame packer packs text and bytes up to this length later; longer values are packed, and so measured, at once.
SMALL: Final = 256
# The mark of an error that refused a change before any part of the change was logged, and the source of the error.
_REFUSED: Final = "_refused"
_VALUE, _SINK = "value", "sink"
# Well below frame.MAX_BODY_BYTES: every logged mutation can be read.
MAX_MUTATION_BYTES: Final = 1 << 29
# Checkpoints keep first and last keys of blocks in their directories, so keys are bounded below values.
MAX_KEY_BYTES: Final = 1 << 24


def is_small_atom(value: object) -> bool:
    """True when the frame packer may pack `value` later: immutable, certainly storable, and short. O(1)."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) <= SMALL  # type: ignore[arg-type]
    if kind is int:
        return -9223372036854775808 <= value <= 18446744073709551615  # type: ignore[operator]
    return kind is float or kind is bool or value is None


def key_bytes(key: object) -> int:
    """Return how many bytes the text and bytes of a key take, and nine for each number. O(1), O(key) for long keys."""
    kind = type(key)
    if kind is str:
        characters = len(key)  # type: ignore[arg-type]
        if characters <= SMALL:
            return characters
        return len(key.encode("utf-8", "surrogatepass"))  # type: ignore[attr-defined]
    if kind is tuple:
        return sum(map(key_bytes, key))  # type: ignore[call-overload]
    return len(key) if kind is bytes else 9  # type: ignore[arg-type]


def too_long(size: int) -> str:
    """Return what is wrong with a key of this size."""
    return (
        f"found {size:,} bytes, expected at most {MAX_KEY_BYTES:,} (use a hash of the key, and put it into the value)"
    )


def strip_array_header(packed: bytes) -> bytes:
    """Return the items of a packed array without the header that counts them."""
    first = packed[0]
    if first == 0xDC:
        return packed[3:]
    if first == 0xDD:
        return packed[5:]
    return packed[1:]


class _Whole:
    """A `with` block that passes the error that ends the block to `Journal.cut_short` or `Journal.fail`."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[BaseException], None]) -> None:
        self._ended = ended

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._ended(error)


class Journal:
    """Collects mutations and hands full frame bodies to `sink(body)`.

    `items` holds the flat mutations not yet packed; `extend` is its bound method, so that a store's put pays one C
    call. After `extend` the caller compares `len(items)` with `limit` and calls `spill` when it is reached. `records`
    counts the packed records by code: those of the version, once the version is sealed.
    """

    __slots__ = (
        "_bytes",
        "_chunks",
        "_failure",
        "_frame_bytes",
        "_hash",
        "_pack",
        "_passed",
        "_sink",
        "_waiting",
        "extend",
        "items",
        "limit",
        "on_erase",
        "on_failure",
        "records",
        "turn",
        "version",
    )

    def __init__(
        self, sink: Callable[[bytes], None], *, frame_records: int = FRAME_RECORDS, frame_bytes: int = FRAME_BYTES
    ) -> None:
        self._sink = sink
        # Who may change the stores that log here.
        self.turn = Turn()
        self._pack = packer()
        self._frame_bytes = frame_bytes
        # A put has four items (code, key, value, time), so this many items are about `frame_records` mutations.
        self.limit = 4 * frame_records
        self.items: list[Any] = []
        self.extend = self.items.extend
        # The last version; the version in progress is the next one.
        self.version = 0
        self._failure: BaseException | None = None
        # Called once, by `fail`: the owner of the journal's stores refuses every call from then on.
        self.on_failure: Callable[[BaseException], None] | None = None
        # Called with a store's name, a key, and whether forks may keep it: the owner erases the key at the next commit.
        self.on_erase: Callable[[str, Any, bool], None] | None = None
        self.restart(EMPTY_DIGEST)

    def restart(self, parent_digest: bytes) -> None:
        """Forget the collected mutations and begin the version after the version with this digest."""
        self.items.clear()
        self._chunks: list[tuple[bytes, int]] = []
        self._bytes = 0
        self._waiting = 0
        self.records: dict[int, int] = {}
        self._hash = RunningDigest(parent_digest)
        # how many of the bytes in the digest the sink has accepted
        self._passed = 0

    @property
    def empty(self) -> bool:
        """True when the version in progress has no mutation yet."""
        return not self.items and not self.records

    def cut_short(self, error: BaseException) -> None:
        """Note that `error` ended a change. Unless the error refused the change before it was logged, log and maps may
        differ, as in `fail`.

        Every change is logged and applied inside one `try` that calls this, because an exception may arrive from
        outside at any moment: a signal, a timeout, a lack of memory.
        """
        if getattr(error, _REFUSED, None) != _VALUE:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Pass no frame to the sink from now on: after `error` the log or the maps of a store may have half of a
        change.
        """
        if getattr(error, _REFUSED, None) == _SINK:
            return  # closed, or read-only: no frame of this version will ever be written
        first = self._failure is None
        self._failure = error
        if first and self.on_failure is not None:
            self.on_failure(error)

    # The two blocks are made for each use: a journal that kept them would be part of a cycle, and only the collector
    # would free the stores of a shard. The hottest changes have a `try` instead.

    @property
    def whole(self) -> _Whole:
        """`with journal.whole:` encloses a change that may still be refused. O(1)."""
        return _Whole(self.cut_short)

    @property
    def sure(self) -> _Whole:
        """`with journal.sure:` encloses a change that cannot be refused any more. O(1)."""
        return _Whole(self.fail)

    def record(self, *mutation: Any) -> None:
        """Log one mutation whose values may be of any size and kind. Raises TypeError or
        ValueError, with nothing logged, if one cannot be packed or is above MAX_MUTATION_BYTES."""
        self.log(self.packed(*mutation), mutation)

    def packed(self, *mutation: Any) -> bytes:
        """Pack one mutation, for `log`. Raises as `record`, with nothing logged."""
        try:
            packed = strip_array_header(self._pack(list(mutation)))
            if len(packed) > MAX_MUTATION_BYTES:
                raise ValueError(f"a mutation: found {len(packed):,} bytes, expected at most {MAX_MUTATION_BYTES:,}")
        except BaseException as error:
            setattr(error, _REFUSED, _VALUE)
            raise
        return packed

    def log(self, packed: bytes, mutation: tuple[Any, ...]) -> None:
        """Log a mutation that is packed."""
        self._pack_items()
        code = mutation[0]
        op = code & 15
        # one mutation is not worth a walk over a flat frame
        self.records[code] = self.records.get(code, 0) + (records_of(op, mutation[1]) if op in MANY else 1)
        self._add(packed, len(mutation))

    def record_columns(self, code: int, *columns: list[Any] | None) -> None:
        """Log rows given by column (the keys first, not empty, None for a column that is nil) as mutations of at most
        FRAME_RECORDS rows.

        Raises TypeError or ValueError, with nothing logged, if some row cannot be packed or is too large by itself.
        O(bytes).
        """
        mutations = list(self._packed_columns(code, columns))
        self._pack_items()
        rows = max(len(column) for column in columns if column is not None)
        self.records[code] = self.records.get(code, 0) + rows
        mutations.reverse()
        while mutations:  # each is freed when its frame is made, so that the packed batch is never in memory twice
            self._add(mutations.pop(), 1 + len(columns))

    def check_columns(self, *columns: list[Any]) -> None:
        """Raise what `record_columns` would, and log nothing: for stores that apply rows before they log them.
        O(bytes).
        """
        for _ in self._packed_columns(0, columns):
            pass

    def _packed_columns(self, code: int, columns: tuple[list[Any] | None, ...]) -> Iterator[bytes]:
        """Yield rows given by column as packed mutations. Raises as `record_columns`."""
        try:
            rows = max(len(column) for column in columns if column is not None)
            waiting = [(start, min(start + FRAME_RECORDS, rows)) for start in range(0, rows, FRAME_RECORDS)][::-1]
            while waiting:
                start, end = waiting.pop()
                parts = [None if column is None else column[start:end] for column in columns]
                packed = strip_array_header(self._pack([code, *parts]))
                if len(packed) > MAX_KEY_BYTES and parts[0] and (size := max(map(key_bytes, parts[0]))) > MAX_KEY_BYTES:
                    raise ValueError(f"a key: {too_long(size)}")
                if len(packed) <= MAX_MUTATION_BYTES:
                    yield packed
                elif end - start > 1:
                    middle = (start + end) // 2
                    waiting += [(middle, end), (start, middle)]
                else:
                    raise ValueError(f"a row: found {len(packed):,} bytes, expected at most {MAX_MUTATION_BYTES:,}")
        except BaseException as error:
            setattr(error, _REFUSED, _VALUE)
            raise

    def _add(self, packed: bytes, items: int) -> None:
        self._chunks.append((packed, items))
        self._bytes += len(packed)
        self._waiting += items
        if self._bytes >= self._frame_bytes or self._waiting >= self.limit:
            self.spill()

    def _pack_items(self) -> None:
        items = self.items
        if items:
            payload = strip_array_header(self._pack(items))
            count_records(items, self.records)
            self._chunks.append((payload, len(items)))
            self._bytes += len(payload)
            self._waiting += len(items)
            items.clear()

    def spill(self) -> None:
        """Pack the waiting mutations into a frame body, as a rule one, and pass the body to the sink. O(waiting)."""
        if self._failure is not None:
            raise StatePoisonedError(
                f"a change was cut short by {type(self._failure).__name__} (reopen the store: the last commit is "
                "intact)"
            ) from self._failure
        self._pack_items()
        if not self._chunks:
            return
        chunks, size = self._chunks, self._bytes
        self._chunks = []
        self._bytes = self._waiting = 0
        if size + 5 <= MAX_BODY_BYTES:
            self._pass(chunks)
            return
        part: list[tuple[bytes, int]] = []
        for chunk in chunks:
            if part and sum(len(packed) for packed, _ in part) + len(chunk[0]) + 5 > MAX_BODY_BYTES:
                self._pass(part)
                part = []
            part.append(chunk)
        self._pass(part)

    def _pass(self, chunks: list[tuple[bytes, int]]) -> None:
        """Pass packed mutations, each with its number of items, to the sink as one frame body."""
        items = sum(count for _, count in chunks)
        body = b"".join([b"\xdd", items.to_bytes(4, "big"), *(packed for packed, _ in chunks)])
        self._hash.add(memoryview(body)[5:])
        try:
            self._sink(body)
        except StatePoisonedError:
            raise
        except HybridStoreError as error:
            setattr(error, _REFUSED, _SINK)
            raise
        self._passed += len(body) - 5

    def seal(self) -> bytes:
        """Pass the waiting mutations to the sink and return the digest of the version.

        Raises StatePoisonedError if the digest would not be that of the frames that the sink has.
        """
        self.spill()
        if self._passed != self._hash.size:
            raise StatePoisonedError(
                f"a version: found {self._passed:,} bytes of mutations in its frames, expected {self._hash.size:,} as "
                "in its digest (reopen the store: the last commit is intact)"
            )
        return self._hash.digest()


def chain(parent_digest: bytes, bodies: list[bytes]) -> bytes:
    """Return the digest of the version whose frames have these bodies. O(bytes)."""
    digest = blake2b(parent_digest, digest_size=DIGEST_BYTES)
    for body in bodies:
        digest.update(memoryview(body)[5:])
    return digest.digest()
