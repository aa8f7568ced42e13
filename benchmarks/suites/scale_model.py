"""Scale model: docs/scale.md: what was measured on one machine, and a calculation from it to many shards.

Assumptions are named.
"""

# sentences of a page, one to a line

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure.result import Result, number
from benchmarks.suites import object_costs
from recovery.compaction import LARGE_SHARE

_GB = 1e9
# When checkpoints began to write what changed alone; results of before say so on the page.
_PACKS_SINCE = "2026-11-22T0701"
# counts of `scale_counted.py`, which depend on no machine
KEPT = Path(__file__).resolve().parents[1] / "results" / "scale-counted.json"
# Bytes that checkpoints write for each changed byte, on average: layers and blocks, packs that are copied together,
# directories and indexes. 200 checkpoints of a window store with a retention of a day (`benchmarks checkpoint-bytes`).
WRITTEN_PER_CHANGED = 3.9


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is assumed of a cluster and its stream. None of it was measured by us."""

    shards: int = 1000
    state_bytes: float = 10e12
    nodes: int = 50
    record_bytes: int = 100
    rows_per_second: float = 1e6
    batch_seconds: float = 10.0
    changed_per_row: float = 1.0
    checkpoint_every: int = 360
    disk_bytes_per_second: float = 1e9
    network_bytes_per_second: float = 1e9


@dataclass(frozen=True, slots=True)
class Measured:
    """What one shard costs here: seconds of a commit, to attach a block, for a mutation of the tail; bytes a record
    in the log beyond its value.
    """

    commit_seconds: float
    attach_seconds_per_record: float
    tail_seconds_per_mutation: float
    log_overhead_bytes: float


def rows_of(cluster: Cluster, measured: Measured) -> list[tuple[str, str, str]]:
    """Return (what, figure, how) for one cluster. Pure arithmetic."""
    records = cluster.state_bytes / cluster.record_bytes
    shard_bytes = cluster.state_bytes / cluster.shards
    shard_records = records / cluster.shards
    per_batch = cluster.rows_per_second * cluster.batch_seconds * cluster.changed_per_row / cluster.shards
    segment = per_batch * (cluster.record_bytes + measured.log_overhead_bytes)
    per_node = cluster.shards / cluster.nodes
    day = 86_400 / cluster.batch_seconds
    tail = per_batch * cluster.checkpoint_every
    attach = measured.attach_seconds_per_record * shard_records
    replay = tail * measured.tail_seconds_per_mutation
    lost = per_node * (attach + replay)
    checkpoint_bytes = tail * cluster.record_bytes * WRITTEN_PER_CHANGED
    checkpoints_per_day = day / cluster.checkpoint_every
    written = checkpoint_bytes * cluster.shards * checkpoints_per_day
    copied = cluster.state_bytes * checkpoints_per_day
    return [
        ("a shard", f"{shard_bytes / _GB:,.1f} GB, {shard_records:,.0f} records", "state / shards"),
        ("changes of a shard in a batch", f"{per_batch:,.0f}", "rows/s x batch / shards"),
        ("a segment", f"{segment / 1e6:,.2f} MB", "changes x (record + overhead in the log, measured)"),
        (
            "files written per batch",
            f"{cluster.shards:,.0f}",
            "an object for each shard that had rows (counted above); the others write one of 200 bytes",
        ),
        ("segments of a day, before pruning", f"{cluster.shards * day:,.0f}", "shards x batches"),
        (
            "segments kept",
            f"{cluster.shards * 2 * cluster.checkpoint_every:,.0f}",
            "those behind the last two checkpoints",
        ),
        (
            "commit overhead of a node in a batch",
            f"{per_node * measured.commit_seconds:,.2f} s of {cluster.batch_seconds:g} s, one core",
            "shards a node x measured commit; divides by the task slots",
        ),
        (
            "a checkpoint of one shard",
            f"{checkpoint_bytes / 1e6:,.0f} MB, {checkpoint_bytes / cluster.disk_bytes_per_second:,.2f} s of disk",
            f"changes since the one before x {WRITTEN_PER_CHANGED:g}: layers, their merging, the directory (measured)",
        ),
        (
            "checkpoint bytes of a day, whole cluster",
            f"{written / 1e12:,.1f} TB",
            f"x checkpoints a day. Copying the state each time would be {copied / 1e12:,.0f} TB, "
            f"{copied / written:,.0f}x",
        ),
        (
            "first read of a shard after a restart, files in reach",
            f"{(attach + replay):,.2f} s",
            "attach (by blocks) + tail of the batches since the checkpoint",
        ),
        (
            "a node is lost, shared storage",
            f"{lost / (cluster.nodes - 1):,.2f} s",
            "its shards spread over the other nodes, each attaches and replays its part in turn",
        ),
        (
            "a node is lost, files have to be copied first",
            f"{per_node * shard_bytes / cluster.network_bytes_per_second / (cluster.nodes - 1):,.1f} s more",
            "its state over the network of all the others at once",
        ),
        (
            "the same by full replay of a changelog topic",
            f"{per_node * shard_records * measured.tail_seconds_per_mutation / (cluster.nodes - 1):,.0f} s",
            "what Kafka Streams without standby does, at our replay speed",
        ),
    ]


def _text(calls: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {verb}" for verb, number in sorted(calls.items())) or "none"


def counted_section(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the section of docs/scale.md."""
    return [
        "",
        "## Requests of a batch, counted",
        "",
        "The provider's own code for each shard and worker over a storage in memory that counts "
        "(`benchmarks/suites/scale_counted.py`; the same in `tests/benchmarks/test_scale_counted.py` at the smaller "
        "sizes). In each of four batches every shard has rows; a checkpoint is not due.",
        "",
        "| shards | workers | driver, start of a run | first batch of a run | each later batch |",
        "| ---: | ---: | --- | --- | --- |",
        *(
            f"| {row['shards']:,} | {row['workers']:,} | {_text(row['launch'])} | {_text(row['first'])} | "
            f"{_text(row['later'])} |"
            for row in rows
        ),
        "",
        "* A later batch costs one create for each shard, and nothing for a worker or the driver: no lists, no reads.",
        "* The start of a run costs the driver four requests at every size: one of them (`size`) looks whether an "
        "erase has begun and has not ended. The first batch looks for each shard "
        "once (two lists), and each worker looks for the launch (a list): the first worker creates its run, each other "
        "worker reads that (two reads).",
        "* Not counted: a shard without rows costs a create, too, that of a note; and in the batches 1, 2, 4, 8, ... "
        "of a run a task that has rows looks for each shard of the next task (a list).",
    ]


def table(cluster: Cluster, measured: Measured) -> str:
    """Return the calculation as Markdown."""
    lines = [f"| {what} | {figure} | {how} |" for what, figure, how in rows_of(cluster, measured)]
    return "\n".join(["| | | how |", "| --- | ---: | --- |", *lines])


def measured_from(scale: Result, results: Sequence[Result]) -> Measured:
    """Take what the calculation needs from the results."""
    commit = next(line.value for line in scale.lines if line.name.startswith("commit of a Spark shard")) / 1e3
    restores = [
        r for r in results if r.suite == "restore" and r.settings["cache"] == "warm" and r.settings["value_size"] == 16
    ]
    if restores:
        largest = max(restores, key=lambda result: int(result.settings["records"]))
        attach = largest.find("hybridstore: attach").value / 1e3 / largest.settings["records"]
        tail = largest.find("hybridstore: tail").value / 1e3 / largest.settings["tail"]
    else:
        attach, tail = 1e-9, 1e-6
    logs = [r for r in results if r.suite == "changelog"]
    overhead = logs[0].find("size of a record in the changelog").value - 16 if logs else 24.0
    return Measured(commit, attach, tail, overhead)


def copied(head: dict[str, Any]) -> list[str]:
    """Return what the pages say of incremental checkpoints that were measured before packs."""
    if head["started"] >= _PACKS_SINCE:
        return []
    return [
        "The incremental checkpoints of this run copied the previous file. Since then a checkpoint writes what "
        "changed, as layers over blocks, and an index: `python -m benchmarks.suites.packs --beside CHECKOUT` measures "
        "both."
    ]


def page(
    head: dict[str, Any], scale: Result, results: Sequence[Result], machine: str, source: str, picture: bool
) -> str:
    """Return docs/scale.md."""
    measured = measured_from(scale, results)
    cluster = Cluster()
    finer = Cluster(shards=10_000, checkpoint_every=2000)
    return "\n".join(
        [
            "# Scale",
            "",
            f"Written by `make bench` from `benchmarks/results/{source}`; no number is typed by hand, but for the "
            "assumptions, which are named as such.",
            "",
            machine,
            "",
            "## Cost per record as state grows, one machine",
            "",
            "Flat is good: a put, a fetch and the restart should not depend on how much is stored. The ratio is to "
            "the smallest size.",
            "",
            scale.markdown(),
            *(
                [
                    "",
                    "![cost against records, as a multiple of that at the smallest size; both axes "
                    "logarithmic](scale.png)",
                ]
                if picture
                else []
            ),
            "",
            "* Memory is the structure with keys and times of its own, after puts by column; a key has 100 records at "
            "every size. Half a megabyte that a process takes once, for threads and buffers of the log, weighs on the "
            "smallest size.",
            "* Puts and fetches are in processor time, checkpoints and the restart by the clock.",
            "* The fetch covers a tenth of the time, so always about ten rows of one key.",
            *(f"* {sentence}" for sentence in copied(head)),
            *counted_section(json.loads(KEPT.read_text(encoding="utf-8"))),
            "",
            "## A calculation to many shards",
            "",
            f"Assumed: {cluster.state_bytes / 1e12:g} TB of state in records of {cluster.record_bytes} bytes, "
            f"{cluster.nodes} nodes, {cluster.rows_per_second:,.0f} rows a second that each change one record, "
            f"batches of {cluster.batch_seconds:g} s, {cluster.disk_bytes_per_second / _GB:g} GB/s of disk and of "
            "network a node, keys spread evenly. Measured: a commit of a shard takes "
            f"{number(measured.commit_seconds * 1e3)} ms, a mutation of the tail "
            f"{number(measured.tail_seconds_per_mutation * 1e6)} µs, the attach "
            f"{number(measured.attach_seconds_per_record * 1e9)} ns for each record stored, a record in the log "
            f"{number(measured.log_overhead_bytes)} bytes beyond its value.",
            "",
            f"{cluster.shards:,} shards, a checkpoint each {cluster.checkpoint_every} batches:",
            "",
            table(cluster, measured),
            "",
            f"{finer.shards:,} shards, a checkpoint each {finer.checkpoint_every} batches:",
            "",
            table(finer, measured),
            "",
            "What follows from it:",
            "",
            "* A checkpoint costs what changed, whatever a shard holds and wherever the changes are: they are layers "
            "over blocks. Updates all over a shard's keys still give each page of its directory a new line; with few "
            "changes a checkpoint, these pages are most of what is written.",
            f"* Packs of a checkpoint are larger here than a {LARGE_SHARE}th of their shard, so that compaction never "
            "merges them; they are deleted as a whole when what they hold has expired.",
            "* Commit overhead is the number of shards a core has to publish per batch, not their rows: it bounds "
            "shards from above.",
            "* A lost node is back in the time of its tails where the checkpoint location is shared; the blocks "
            "follow as they are touched, so the first reads are each a read of one block from that storage.",
            "* Not modelled: hot keys (a shard has one core), the latency of object stores, and the driver's cost of "
            "many tasks.",
            "",
            *object_costs.section(),
        ]
    )
