"""Checkpoint bytes: what is written for each byte that changed, over hundreds of checkpoints.

    python -m benchmarks checkpoint-bytes --checkpoints 400 --changes 5000
    python -m benchmarks checkpoint-bytes --checkpoints 60 --changes 1000 --folder /dev/shm   # within two minutes

A changed byte is a byte of the changelog. A figure counts the log itself and all files of checkpoints. Windows with
retentions of an hour to 30 days get as many rows each minute; a checkpoint is made each minute. The other cases change
a key-value store; the sparse one is ten times as large, so that few records of each block change. Its parts, and those
of 30 days, are lines of their own. Counted, not timed: most of the time is that of syncs, so a folder in memory gives
the same figures.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.measure.result import Line, Result, Target
from benchmarks.measure.state import open_state, scratch
from benchmarks.measure.timing import check, stopwatch

MINUTE_MS: Final = 60_000
RETENTIONS: Final = {"1 hour": 60, "1 day": 1440, "7 days": 7 * 1440, "30 days": 30 * 1440}
_START_MS: Final = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
_WINDOW_KEYS: Final = 1000
_TARGET: Final = Target(6, "value")
# how many times as many records the store has of which few change
_SPARSE: Final = 10
# the changes of one checkpoint: of a model of the store, and of the store
Change = Callable[[dict[str, bytes], Any, int], None]


def _key(number: int) -> str:
    return f"key{number:09d}"


def _value(number: int) -> bytes:
    return b"%040d" % number


def changes_of(records: int, changes: int) -> dict[str, Change]:
    """Return what each case changes before a checkpoint, in a store of `records` and its model, a dict."""
    dice = random.Random(3)

    def put(model: dict[str, bytes], store: Any, key: str, number: int) -> None:
        model[key] = _value(number)
        store.put(key, model[key])

    def random_percent(model: dict[str, bytes], store: Any, turn: int) -> None:
        for number in range(max(1, records // 100)):
            put(model, store, _key(dice.randrange(records)), turn * records + number)

    def append(model: dict[str, bytes], store: Any, turn: int) -> None:
        for number in range(changes):
            put(model, store, _key(records + turn * changes + number), turn)

    def one_hot_key(model: dict[str, bytes], store: Any, turn: int) -> None:
        for number in range(changes):
            put(model, store, _key(7), turn * changes + number)

    def deletes(model: dict[str, bytes], store: Any, turn: int) -> None:
        # as many deletions as insertions, all over the keys
        for number in range(max(1, records // 200)):
            key = _key(dice.randrange(records))
            if model.pop(key, None) is not None:
                store.delete(key)
            put(model, store, _key(dice.randrange(records)), turn * records + number)

    return {
        "random 1 %": random_percent,
        "append-only": append,
        "one hot key": one_hot_key,
        "deletes": deletes,
    }


def sparse(records: int, changes: int) -> Change:
    """Return the case that changes so many of the records of a large store before a checkpoint."""
    dice = random.Random(3)

    def sparse(model: dict[str, bytes], store: Any, turn: int) -> None:
        for number in range(changes):
            key = _key(dice.randrange(records))
            model[key] = _value(turn * changes + number)
            store.put(key, model[key])

    return sparse


def measure(folder: Path, *, checkpoints: int = 60, changes: int = 2000, records: int = 100_000) -> Result:
    """Count over so many checkpoints: `changes` rows each in windows, or in a key-value store of `records`."""
    settings = {"checkpoints": checkpoints, "changes": changes, "records": records}
    result = Result("checkpoint bytes", settings)
    with stopwatch() as clock:
        for name, minutes in RETENTIONS.items():
            counter = _windows(folder, minutes, checkpoints, changes)
            result.lines += _lines(f"window, retention {name}", counter, parts=name == "30 days")
        for name, change in changes_of(records, changes).items():
            result.lines += _lines(f"key-value, {name}", _key_value(folder, change, checkpoints, records))
        many = _SPARSE * records
        counter = _key_value(folder, sparse(many, changes), checkpoints, many)
        result.lines += _lines(f"key-value, few of {_SPARSE} times as many records", counter, parts=True)
    result.seconds = clock.seconds
    return result


def _lines(subject: str, counter: _Counter, *, parts: bool = False) -> list[Line]:
    """Return the figures of a case from the ratio of each checkpoint, written as (log + checkpoint) / log, and what of
    the mean each part is.
    """
    ratios = counter.ratios
    tenth = max(1, len(ratios) // 10)
    lines = []
    for name, some in (("written per changed byte", ratios), ("the last tenth", ratios[-tenth:])):
        mean, p95 = sum(some) / len(some), sorted(some)[len(some) * 95 // 100]
        lines.append(Line(f"{subject}: {name}", mean, min(some), max(some), "B", target=_TARGET, p95=p95))
    if parts:
        for name, size in counter.parts.items():
            share = size / counter.parts["log"]
            lines.append(Line(f"{subject}: {name}", share, share, share, "B"))
    return lines


class _Counter:
    """The bytes that each checkpoint of a state adds, the log's and its own."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.ratios: list[float] = []
        self.parts = Counter[str]()
        self._logged = state.metrics().changelog_bytes_written

    def checkpoint(self) -> None:
        """Commit, make a checkpoint and count."""
        self.state.commit()
        self.state.checkpoint(wait=True)
        logged = self.state.metrics().changelog_bytes_written
        report = self.state._checkpoints.last
        changed = logged - self._logged
        self.ratios.append((changed + report.bytes_written) / changed)
        self._logged = logged
        packed, layers, pages = report.bytes_packed, report.bytes_layered, report.page_bytes
        content = packed + report.bytes_copied + pages
        self.parts += Counter(
            {
                "log": changed,
                "layers": layers,
                "blocks written anew": packed - layers,
                "copies": report.bytes_copied,
                "pages of directories": pages,
                "footers of packs": report.bytes_written - report.index_bytes - content,
                "index": report.index_bytes,
            }
        )


def _windows(folder: Path, minutes: int, checkpoints: int, changes: int) -> _Counter:
    """Put as many rows each minute into a window store, with a checkpoint each minute."""
    dice = random.Random(5)
    with scratch(folder) as place:
        live: dict[tuple[str, int], bytes] = {}
        with open_state(place / "state") as state:
            store = state.window("rows", retention=f"{minutes} minutes")
            counter = _Counter(state)
            for turn in range(checkpoints):
                begin = _START_MS + turn * MINUTE_MS
                for number in range(changes):
                    ts = begin + number * MINUTE_MS // changes
                    key, value = _key(dice.randrange(_WINDOW_KEYS)), _value(turn * changes + number)
                    store.put(key, value, ts)
                    live[key, ts] = value
                counter.checkpoint()
            low = store.stream_time - minutes * MINUTE_MS
        with open_state(place / "state") as state:
            store = state.window("rows", retention=f"{minutes} minutes")
            right = sorted((row for row in live.items() if row[0][1] > low), key=lambda row: row[0][::-1])
            check(list(store.all()) == right, f"rows of {minutes} minutes after a restart")
        return counter


def _key_value(folder: Path, change: Change, checkpoints: int, records: int) -> _Counter:
    """Fill a store, make a checkpoint, and count what each further one takes."""
    with scratch(folder) as place:
        with open_state(place / "state") as state:
            store = state.key_value("records")
            model = {_key(number): _value(number) for number in range(records)}
            store.put_many(model)
            state.commit()
            state.checkpoint(wait=True)
            counter = _Counter(state)
            for turn in range(checkpoints):
                change(model, store, turn)
                counter.checkpoint()
        with open_state(place / "state") as state:
            check(dict(state.key_value("records").all()) == model, f"{change.__name__}: records after a restart")
        return counter
