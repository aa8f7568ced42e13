"""Options: the arguments that commands share, declared once, and what they mean: versions, times, selections, exit codes."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from changelog.errors import HybridStoreError

from .parameters import Argument, Option
from .show.key_text import parse_key
from .view.store_view import Selection

FINE: Final = 0
NEGATIVE: Final = 1
USAGE: Final = 2
UNREADABLE: Final = 3
INCOMPLETE: Final = 4


class Form(StrEnum):
    """The forms of output."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    raw = "raw"


Where = Annotated[
    Path,
    Argument(
        metavar="PATH",
        help="State directory, shard, Spark checkpoint location, checkpoint file (.lmdb) or changelog segment (.log).",
        show_default=False,
    ),
]
StoreName = Annotated[str, Argument(metavar="STORE", help="Name of the store; see `info`.", show_default=False)]
MaybeStore = Annotated[str | None, Argument(metavar="[STORE]", help="Only this store.", show_default=False)]
Key = Annotated[
    str,
    Argument(
        metavar="KEY",
        help='Typed: text, int:5, float:1.5, bool:true, hex:00ff, json:["a", 5] for a tuple.',
        show_default=False,
    ),
]
Output = Annotated[
    Form | None,
    Option(
        "-o", "--output", help="Form of the answer. Default: table on a terminal, jsonl in a pipe.", show_default=False
    ),
]
At = Annotated[
    str | None,
    Option(
        "--at",
        metavar="VERSION|TIME",
        help="Look at this retained version, or at the newest one committed by this time (ISO, UTC; or @ms).",
        show_default=False,
    ),
]
Shard = Annotated[int | None, Option("--shard", help="Only this shard of a Spark operator.", show_default=False)]
Iso = Annotated[bool, Option("--iso", help="Times in ISO form (UTC) instead of milliseconds.")]
Debug = Annotated[bool, Option("--debug", help="Show tracebacks.")]
NoProgress = Annotated[bool, Option("--no-progress", help="No progress bar.")]
Limit = Annotated[int | None, Option("--limit", min=0, help="At most so many rows.", show_default=False)]
From = Annotated[str | None, Option("--from", metavar="KEY", help="First key, inclusive.", show_default=False)]
To = Annotated[str | None, Option("--to", metavar="KEY", help="Last key, inclusive.", show_default=False)]
Prefix = Annotated[str | None, Option("--prefix", metavar="KEY", help="Keys that start with this.", show_default=False)]
WindowFrom = Annotated[
    str | None,
    Option("--window-from", metavar="TIME", help="Windows from this time on (ms or ISO).", show_default=False),
]
WindowTo = Annotated[
    str | None,
    Option("--window-to", metavar="TIME", help="Windows up to this time, inclusive.", show_default=False),
]
Reverse = Annotated[bool, Option("--reverse", help="Backwards.")]
CountOnly = Annotated[bool, Option("--count-only", help="Only the number of records.")]


class UsageError(HybridStoreError):
    """An argument that cannot be understood, or that does not fit the state: exit code 2."""


def parse_time(text: str) -> int:
    """Return milliseconds for `1700000000000`, `@1700000000000` or an ISO time (UTC unless it says otherwise). Raises UsageError."""
    digits = text.removeprefix("@")
    if digits.isdecimal():
        return int(digits)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"time {text!r}: expected milliseconds or an ISO time such as 2026-01-31T12:00:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def typed_key(text: str) -> Any:
    """Return the key that an argument names. Raises UsageError."""
    try:
        return parse_key(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def selection(
    key_from: str | None,
    key_to: str | None,
    prefix: str | None,
    window_from: str | None,
    window_to: str | None,
    reverse: bool,
) -> Selection:
    """Return the selection that the options describe. Raises UsageError."""
    start = None if prefix is None else typed_key(prefix)
    if start is not None and type(start) not in (str, bytes, tuple):
        raise UsageError(f"prefix {prefix!r}: expected text, hex: or json:[..]")
    return Selection(
        None if key_from is None else typed_key(key_from),
        None if key_to is None else typed_key(key_to),
        start,
        None if window_from is None else parse_time(window_from),
        None if window_to is None else parse_time(window_to),
        reverse,
    )
