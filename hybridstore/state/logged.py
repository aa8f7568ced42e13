"""Logged: what a changelog says of one store, as rows. For tests and for looking; a restore does not go this way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from changelog.codec import unpack
from changelog.frame import MUTATIONS
from changelog.mutation import (
    DELETE,
    DELETE_AT,
    DELETE_SPAN,
    PUT,
    PUT_AT,
    PUT_COLUMNS,
    PUT_SPAN,
    PUT_SPANS,
    Mutation,
    mutations,
)
from changelog.reader import SegmentReader
from changelog.segment import list_segments, segment_name


def logged_rows(directory: Path, number: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of store `number` in a changelog directory, in order, committed or not: None as value is a deletion.

    Rows are (key, value), (key, ts, value) or (key, start, end, value). Mutations that only move time, and evictions, are
    left out. O(bytes).
    """
    segments = list_segments(directory)
    for first in segments:
        reader = SegmentReader(directory / segment_name(first), last=first == segments[-1])
        for frame in reader.frames():
            if frame.kind == MUTATIONS:
                for mutation in mutations(unpack(frame.body)):
                    if mutation.store == number:
                        yield from _rows(mutation)


def _rows(mutation: Mutation) -> Iterator[tuple[Any, ...]]:
    op, args = mutation.op, mutation.args
    if op == PUT:
        yield args
    elif op == DELETE:
        yield args[0], None
    elif op == PUT_AT:
        yield args[0], args[2], args[1]
    elif op == DELETE_AT:
        yield *args, None
    elif op == PUT_SPAN:
        yield args[0], args[2], args[3], args[1]
    elif op == DELETE_SPAN:
        yield *args, None
    elif op == PUT_COLUMNS and args[2] is None:
        yield from zip(args[0], args[1], strict=True)
    elif op == PUT_COLUMNS:
        yield from zip(args[0], args[2], args[1], strict=True)
    elif op == PUT_SPANS:
        yield from zip(args[0], args[2], args[3], args[1], strict=True)
