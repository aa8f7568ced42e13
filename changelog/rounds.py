"""Rounds: reads of storage on another machine in few rounds of requests, with a bounded number of requests in a round.

    side_by_side    carry out requests that do not need each other's answers: one round
    merged          neighbours among ranges are one request
    worth_whole     so many ranges that the whole object costs less

A request costs a share of its latency, and processor time on both ends. The cost is counted as the bytes that the link
would carry in the same time: with 64 requests at once, 20 ms of latency and 100 MB/s a share is 32 KiB, and the half
millisecond of processor that a request takes from Python is as much again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# How many requests are under way at once. 1: one after the other, in the caller's thread.
AT_ONCE = 64
# The cost of a request (bytes), besides the bytes that the request returns.
REQUEST_BYTES: Final = 64 * 1024
# A whole object is fetched in parts of so many bytes.
PART_BYTES: Final = 4 << 20
_NEARLY: Final = 0.75


def side_by_side(work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Return `work(item)` of every item, in order; up to 64 of them are carried out at once, each in a thread.

    Raises the error of the first item that failed, after all items have ended. O(items).
    """
    return _carry_out(work, list(items))


def _carry_out(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    threads = min(len(items), AT_ONCE)
    if threads < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor  # only here: a local disk is read in one thread

    with ThreadPoolExecutor(threads, threading.current_thread().name) as pool:
        return list(pool.map(work, items))


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, end) of requests that cover the (start, length) of `ranges`, in order.

    Ranges with fewer bytes between them than a request costs become a single request. O(n log n).
    """
    spans: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if length <= 0:
            continue
        if spans and start - spans[-1][1] <= REQUEST_BYTES:
            spans[-1] = spans[-1][0], max(spans[-1][1], start + length)
        else:
            spans.append((start, start + length))
    return spans


def parts(size: int) -> list[tuple[int, int]]:
    """Return the (start, length) of the parts in which an object of `size` bytes is fetched whole."""
    return [(start, min(PART_BYTES, size - start)) for start in range(0, size, PART_BYTES)]


def worth_whole(spans: Sequence[tuple[int, int]], size: int) -> bool:
    """True when requests for these (start, end) cost nearly as much as for all `size` bytes of the object. O(n).

    "Nearly", because the rest of the object will be read soon, and a whole read would then repeat the bytes of the
    ranges.
    """
    cost = sum(end - start + REQUEST_BYTES for start, end in spans)
    return cost >= _NEARLY * (size + REQUEST_BYTES * len(parts(size)))
