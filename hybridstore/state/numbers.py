"""Numbers: the metrics of a running job as rows of one shape, and as OpenMetrics text.

    Engine.numbers(), hsp.metrics(location), inspect metrics ─▶ rows, one a shard ─▶ openmetrics(rows) ─▶ Prometheus

Every row has every column; None stands for a number that the engine does not know. `TOTALS` are counted since the query
began (on Spark, over all its runs; in plain Python since the engine was opened); `NUMBERS` says what each column is
called outside.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from recovery.layout import LogName
from recovery.shard_log import METRICS, SINCE, ShardLog

# Columns of the last batch or commit that have a total beside them: `total_<name>`.
TOTALS: Final = (
    "rows", "rows_out", "late", "null_key", "null_timestamp", "segment_bytes", "logged_records",
)  # fmt: skip
# Every column of a row, in order; those of `TOTALS` follow with their prefix.
COLUMNS: Final = (
    "operator", "shard", "version", "batch", "run", "placement", "wall_ms", "event_time_ms", "rows", "rows_out", "late",
    "null_key", "null_timestamp", "by_row", "records", "dropped", "load", "load_ms", "load_cpu_ms", "read_ms",
    "process_ms", "process_cpu_ms", "commit_ms", "replayed_segments", "replayed_records", "skipped_checkpoints",
    "segment_bytes", "logged_records", "commits_since_checkpoint", "bytes_since_checkpoint", "records_since_checkpoint",
    "restore_estimate_ms", "checkpoint_age_ms", "differing_attempts", "failed_checkpoints", "failed_clearings", "files",
    "bytes", *(f"total_{name}" for name in TOTALS),
)  # fmt: skip

# Columns that a batch without rows does not change.
_BEHIND: Final = (
    "commits_since_checkpoint", "bytes_since_checkpoint", "records_since_checkpoint", "restore_estimate_ms",
)  # fmt: skip


class Number(NamedTuple):
    """A column as a metric: the column, the metric's name, its kind, its unit ("" for none), and its help text."""

    column: str
    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    help: str


NUMBERS: Final = (
    Number("total_rows", "hybridstore_rows", "counter", "", "Rows that came in."),
    Number("total_rows_out", "hybridstore_results", "counter", "", "Rows that went out."),
    Number("total_late", "hybridstore_late", "counter", "", "Late records, once for each closed window."),
    Number("total_null_key", "hybridstore_null_keys", "counter", "", "Rows skipped because their key is null."),
    Number(
        "total_null_timestamp",
        "hybridstore_null_timestamps",
        "counter",
        "",
        "Rows skipped because their timestamp is null.",
    ),
    Number("total_segment_bytes", "hybridstore_changelog_bytes", "counter", "bytes", "Bytes of changelog written."),
    Number("total_logged_records", "hybridstore_logged_records", "counter", "", "Records logged."),
    Number("version", "hybridstore_version", "gauge", "", "The version that the shard has reached."),
    Number("wall_ms", "hybridstore_commit_time_seconds", "gauge", "seconds", "When the last commit was made."),
    Number("event_time_ms", "hybridstore_event_time_seconds", "gauge", "seconds", "The newest event time seen."),
    Number("rows", "hybridstore_batch_rows", "gauge", "", "Rows of the last batch."),
    Number("rows_out", "hybridstore_batch_results", "gauge", "", "Rows that the last batch gave."),
    Number("late", "hybridstore_batch_late", "gauge", "", "Late records of the last batch."),
    Number("records", "hybridstore_records", "gauge", "", "Records held, by store; may be an estimate."),
    Number("load_ms", "hybridstore_load_seconds", "gauge", "seconds", "How long the last load of the state took."),
    Number("read_ms", "hybridstore_read_seconds", "gauge", "seconds", "How long the last batch's rows took to come."),
    Number("process_ms", "hybridstore_process_seconds", "gauge", "seconds", "How long the last batch took."),
    Number("commit_ms", "hybridstore_commit_seconds", "gauge", "seconds", "How long a commit took."),
    Number("replayed_segments", "hybridstore_replayed_segments", "gauge", "", "Segments that the last load replayed."),
    Number("commits_since_checkpoint", "hybridstore_since_checkpoint_commits", "gauge", "", "Commits to be replayed."),
    Number("bytes_since_checkpoint", "hybridstore_since_checkpoint_bytes", "gauge", "bytes", "Bytes to be replayed."),
    Number("records_since_checkpoint", "hybridstore_since_checkpoint_records", "gauge", "", "Records to be replayed."),
    Number("restore_estimate_ms", "hybridstore_restore_estimate_seconds", "gauge", "seconds", "Estimated restart."),
    Number("checkpoint_age_ms", "hybridstore_checkpoint_age_seconds", "gauge", "seconds", "Age of the checkpoint."),
    Number("differing_attempts", "hybridstore_differing_attempts", "gauge", "", "Versions whose attempts differ."),
    Number("failed_checkpoints", "hybridstore_failed_checkpoints", "gauge", "", "Checkpoints that failed."),
    Number("failed_clearings", "hybridstore_failed_clearings", "gauge", "", "Files that could not be cleared away."),
    Number("files", "hybridstore_files", "gauge", "", "Files of the shard."),
    Number("bytes", "hybridstore_bytes", "gauge", "bytes", "Bytes of the shard's files."),
)
CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def row_of(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with every column, in order, from a mapping of known numbers; other names are left out.

    `totals` in it (name -> total) become columns of their own.
    """
    totals = {f"total_{name}": total for name, total in _fields(known.get("totals")).items()}
    values = {**known, **totals}
    return {name: values.get(name) for name in COLUMNS}


def shard_row(
    log: ShardLog, newest: LogName | None, changed: LogName | None, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the row of a shard: the numbers of the last batch from its newest object, those of the state from the
    object of its last change, and other known numbers. Raises FileNotFoundError for an object that was removed
    meanwhile, and as `ShardLog.commit`. Two gets, or one.
    """
    last = None if newest is None else log.commit(newest)
    change = last if changed is None or changed == newest else log.commit(changed)
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

    Labels are `operator` (where there is one) and `shard`, of records also `store`. None is left out.
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
