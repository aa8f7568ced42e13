"""Numbers: the metrics of a running job as rows of one shape, and as OpenMetrics text.

    Engine.metrics(), hsp.metrics(location), inspect metrics ─▶ rows, one a shard ─▶ openmetrics(rows) ─▶ Prometheus

Every number is a field of `ShardMetrics`, with its metric outside, and a column of every row; None is a number that the
engine does not know. `TOTALS` are counted since the query began (on Spark, over all its runs; in plain Python since the
engine was opened).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple

from recovery.layout import LogName
from recovery.shard_log import METRICS, SINCE, ShardLog

_TOTAL: Final = "total_"


class Number(NamedTuple):
    """A column of a row, and what it is outside: the end of the metric's name ("": the column is no metric), the help
    text, and whether it is `counted` since the state was opened. Such numbers and totals are counters, all else gauges.
    """

    column: str
    metric: str = ""
    help: str = ""
    counted: bool = False

    @property
    def name(self) -> str:
        """The name of the metric."""
        return f"hybridstore_{self.metric}"

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Whether the number only grows."""
        return "counter" if self.counted or self.column.startswith(_TOTAL) else "gauge"

    @property
    def unit(self) -> str:
        """The unit outside; times are in seconds there."""
        return "seconds" if self.column.endswith("_ms") else "bytes" if "bytes" in self.column else ""


def _outside(metric: str = "", text: str = "") -> dict[str, str]:
    return {"metric": metric, "help": text}


def _number(metric: str = "", text: str = "", default: Any = None) -> Any:
    """Return the field of a number: the end of its metric's name ("": no metric), and the help text."""
    return field(default=default, metadata=_outside(metric, text))


def _count(metric: str, text: str) -> Any:
    """Return the field of a number that is counted since the state was opened; see `_number`."""
    return field(default=None, metadata={**_outside(metric, text), "counted": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMetrics:
    """The numbers of one shard after its last commit or load; None: not known. Times in milliseconds, sizes in bytes.

    Every number is a field, in the order of the columns of a row. `load` is "empty", "hit", "catch-up" (segments
    replayed on the state in memory), "checkpoint" or "changelog" (reloads). `failed_checkpoints` and
    `failed_clearings` count failures of this process after commits since it loaded the shard.
    """

    operator: str | None = _number()
    shard: int | None = _number()
    version: int = _number("version", "The version that the shard has reached.", 0)
    batch: int | None = _number()
    run: str | None = _number()
    placement: str | None = _number()
    wall_ms: int | None = _number("commit_time_seconds", "When the last commit was made.")
    event_time_ms: int | None = _number("event_time_seconds", "The newest event time seen.")
    rows: int | None = _number("batch_rows", "Rows of the last batch.")
    rows_out: int | None = _number("batch_results", "Rows that the last batch gave.")
    late: int | None = _number("batch_late", "Late records of the last batch.")
    null_key: int | None = _number()
    null_timestamp: int | None = _number()
    by_row: str | None = _number()
    records: dict[str, int] = field(
        default_factory=dict, metadata=_outside("records", "Records held, by store; may be an estimate.")
    )
    dropped: dict[str, dict[str, int]] = field(default_factory=dict, metadata=_outside())
    load: str = _number(default="")
    load_ms: float = _number("load_seconds", "How long the last load of the state took.", 0.0)
    load_cpu_ms: float | None = _number()
    read_ms: float | None = _number("read_seconds", "How long the last batch's rows took to come.")
    process_ms: float | None = _number("process_seconds", "How long the last batch took.")
    process_cpu_ms: float | None = _number()
    commit_ms: float = _number("commit_seconds", "How long a commit took.", 0.0)
    replayed_segments: int = _number("replayed_segments", "Segments that the last load replayed.", 0)
    replayed_records: int = _number(default=0)
    skipped_checkpoints: int = _number(default=0)
    segment_bytes: int = _number(default=0)
    logged_records: int = _number(default=0)
    commits_since_checkpoint: int = _number("since_checkpoint_commits", "Commits to be replayed.", 0)
    bytes_since_checkpoint: int = _number("since_checkpoint_bytes", "Bytes to be replayed.", 0)
    records_since_checkpoint: int = _number("since_checkpoint_records", "Records to be replayed.", 0)
    restore_estimate_ms: float = _number("restore_estimate_seconds", "Estimated restart.", 0.0)
    checkpoint_age_ms: int | None = _number("checkpoint_age_seconds", "Age of the checkpoint.")
    differing_attempts: int = _number("differing_attempts", "Versions whose attempts differ.", 0)
    failed_checkpoints: int = _number("failed_checkpoints", "Checkpoints that failed.", 0)
    failed_clearings: int = _number("failed_clearings", "Files that could not be cleared away.", 0)
    files: int | None = _number("files", "Files of the shard.")
    bytes: int | None = _number("bytes", "Bytes of the shard's files.")
    memory_bytes: int | None = _number("memory_bytes", "Estimate of what the records in memory take.")
    memory_limit_bytes: int | None = _number("memory_limit_bytes", "The limit of memory that governs.")
    records_in_memory: int | None = _number("memory_records", "Records in memory, an estimate.")
    dirty_keys: int | None = _number("dirty_keys", "Keys, by bucket, changed since the last checkpoint began.")
    dirty_bytes: int | None = _number("dirty_bytes", "Estimate of what the records of these keys take.")
    hits: int | None = _count("hits", "Lookups of a key that memory answered.")
    misses: int | None = _count("misses", "Lookups of a key that read a block.")
    freed_records: int | None = _count("freed_records", "Records freed from memory, an estimate.")
    freed_bytes: int | None = _count("freed_bytes", "Estimate of what the freed records took.")
    blocks_read: int | None = _count("blocks_read", "Blocks read whole.")
    tables_read: int | None = _count("tables_read", "Tables of blocks read to find single records.")
    bytes_read: int | None = _count("read_bytes", "Bytes of blocks, tables and single records read.")
    read_amplification: float | None = _number("read_amplification", "Bytes read for each byte of records asked.")
    total_rows: int | None = _number("rows", "Rows that came in.")
    total_rows_out: int | None = _number("results", "Rows that went out.")
    total_late: int | None = _number("late", "Late records, once for each closed window.")
    total_null_key: int | None = _number("null_keys", "Rows skipped because their key is null.")
    total_null_timestamp: int | None = _number("null_timestamps", "Rows skipped because their timestamp is null.")
    total_segment_bytes: int | None = _number("changelog_bytes", "Bytes of changelog written.")
    total_logged_records: int | None = _number("logged_records", "Records logged.")

    def known(self) -> dict[str, Any]:
        """Return the numbers that are known, by name."""
        values = {name: getattr(self, name) for name in COLUMNS}
        return {name: value for name, value in values.items() if value is not None}

    @staticmethod
    def combine(parts: Iterable[ShardMetrics]) -> dict[str, float]:
        """Add up the numbers of several shards, name by name; records and drops over all their stores."""
        total: dict[str, float] = {}
        for part in parts:
            for name, value in part.known().items():
                if name == "records":
                    value = sum(value.values())
                elif name == "dropped":
                    value = sum(sum(reasons.values()) for reasons in value.values())
                if isinstance(value, (int, float)):
                    total[name] = total.get(name, 0) + value
        return total


_TABLE: Final = tuple(Number(each.name, **each.metadata) for each in fields(ShardMetrics))
COLUMNS: Final = tuple(number.column for number in _TABLE)
# Columns of the last batch or commit that have a total beside them: `total_<name>`.
TOTALS: Final = tuple(name.removeprefix(_TOTAL) for name in COLUMNS if name.startswith(_TOTAL))
# Columns that a batch without rows does not change.
_BEHIND: Final = (*(name for name in COLUMNS if name.endswith("_since_checkpoint")), "restore_estimate_ms")
# The metrics, counters first.
NUMBERS: Final = tuple(sorted((number for number in _TABLE if number.metric), key=lambda number: number.kind))
CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def row_of(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with every column, in order, from a mapping of known numbers; other names are left out.

    `totals` in it (name -> total) become columns of their own.
    """
    totals = {f"{_TOTAL}{name}": total for name, total in _fields(known.get("totals")).items()}
    values = {**known, **totals}
    return {name: values.get(name) for name in COLUMNS}


def shard_row(
    log: ShardLog, newest: LogName | None, changed: LogName | None, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the row of a shard: the numbers of the last batch from its newest object, those of the state from the
    object of its last change, and other known numbers. Raises FileNotFoundError for an object that was removed
    meanwhile, and as `ShardLog.commit_of`. Two gets, or one.
    """
    last = None if newest is None else log.commit_of(newest)
    change = last if changed is None or changed == newest else log.commit_of(changed)
    numbers, behind = (_fields(None if commit is None else commit.extra.get(METRICS)) for commit in (last, change))
    since = 0
    if changed is not None and change is not None:
        begun = change.extra.get(SINCE)
        since = begun[-1] if isinstance(begun, list) and begun and type(begun[-1]) is int else change.wall_ms
    times = [] if change is None else [ts for ts in change.times.values() if ts >= 0]
    state = {name: behind.get(name) for name in ("records", *_BEHIND)}
    now_ms = int(time.time() * 1000)
    return row_of(
        {
            **state,
            # a batch without rows has none of them
            **dict.fromkeys(TOTALS, 0),
            **numbers,
            "event_time_ms": max(times, default=None),
            "checkpoint_age_ms": now_ms - since if since else None,
            "totals": behind.get("totals"),
            **known,
        }
    )


def _fields(value: Any) -> dict[str, Any]:
    """Return a map as it is, and an empty one for anything else, which a forged file may have."""
    return value if isinstance(value, dict) else {}


def added(totals: Mapping[str, int], batch: Mapping[str, Any]) -> dict[str, int]:
    """Return totals with a batch's own numbers added."""
    return {name: totals.get(name, 0) + (batch.get(name) or 0) for name in TOTALS}


def openmetrics(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows of metrics as OpenMetrics text, times in seconds. O(rows x columns).

    Labels are `operator` (if known) and `shard`, of records also `store`. None is left out.
    """
    rows = list(rows)
    lines: list[str] = []
    for number in NUMBERS:
        samples: list[str] = []
        for row in rows:
            value = row.get(number.column)
            if value is None:
                continue
            labels = {name: row[name] for name in ("operator", "shard") if row.get(name) not in (None, "")}
            by_store = value if isinstance(value, Mapping) else {None: value}
            for store, amount in by_store.items():
                if type(amount) not in (int, float):  # of a forged file
                    continue
                all_labels = labels if store is None else {**labels, "store": store}
                samples.append(_sample(number, all_labels, amount))
        if samples:
            lines.append(f"# TYPE {number.name} {number.kind}")
            if number.unit:
                lines.append(f"# UNIT {number.name} {number.unit}")
            lines.append(f"# HELP {number.name} {number.help}")
            lines += samples
    return "\n".join([*lines, "# EOF\n"])


def _sample(number: Number, labels: Mapping[str, Any], amount: float) -> str:
    suffix = "_total" if number.kind == "counter" else ""
    text = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    value = amount / 1000 if number.column.endswith("_ms") else amount
    return f"{number.name}{suffix}{{{text}}} {value}" if text else f"{number.name}{suffix} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
