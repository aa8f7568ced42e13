"""Writes a golden directory: `python tests/golden/write.py NEW_DIRECTORY`. Run once per format version, never again.

state/         every kind of store, two checkpoints, several segments, a tail; cleanly closed
contents.txt   what each store holds at each version, as Python literals

`python tests/golden/write.py --shard NEW_DIRECTORY` writes hybridstore/op/ below it: an operator with one shard, as
Spark writes it, once per format of its objects.

`python tests/golden/write.py --tables NEW_DIRECTORY` writes the same under a limit of memory: its blocks have tables.

`python tests/golden/write.py --changed NEW_DIRECTORY` writes state/ of a program that changed: a store went through an
upgrade, and a suppression buffer got another bound.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import hybridstore as hs
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import agree_on_description, operator_storage
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.opening import Tuning

VALUES: list[Any] = [
    True, 0, -1, 2**63, 2**64, -(2**70), 1.5, -0.0, float("inf"), "", "text \U0001f600 \x00", b"", b"\x00\xff",
    [1, [2]], (), (1, ("x", None)), {"a": 1, 2: b"3", (4,): None}, {1, 2}, frozenset({("b", 5)}),
    datetime(2026, 1, 2, 3, 4, 5, 678901), datetime(2026, 1, 2, tzinfo=UTC),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "long " * 60, Decimal("-1.10"), Decimal("1E+30"), [date(1969, 12, 31), {Decimal("0.5")}],
]  # fmt: skip
VERSIONS = 12


def stores(state: Any) -> dict[str, Any]:
    """Return the stores of the golden directory by name, opening them."""
    return {
        "text": state.key_value("text"),
        "bytes": state.key_value("bytes"),
        "int": state.key_value("int"),
        "float": state.key_value("float"),
        "tuple": state.key_value("tuple"),
        "ttl": state.key_value("ttl", ttl=100),
        "window": state.window("window", retention=200, window_size=50, grace=120),
        "duplicates": state.window("duplicates", retention=200, retain_duplicates=True),
        "session": state.session("session", retention=200),
        "suppression": state.suppression("suppression", max_records=4, time_limit=60),
        "sliding": state.sliding("sliding", size=80, aggregator=hs.Sum()),
        "added": state.window("added", retention=100_000),
    }


def contents(state: Any) -> dict[str, Any]:
    """Return the rows and the stream time of every store."""
    content: dict[str, Any] = {}
    for name, store in stores(state).items():
        rows: Iterator[Any] = store.buffered() if name == "suppression" else store.all()
        content[name] = (list(rows), store.stream_time)
    return content


def change(state: Any, version: int) -> None:
    """Do what leads to this version: puts, batches, overwrites, deletions, evictions, expiry."""
    handles = stores(state)
    now = version * 20
    for i, value in enumerate(VALUES):
        if (i + version) % 3 == 0:
            handles["text"].put(f"key {i}", value)
            handles["window"].put(f"key {i % 5}", value, now + i % 10)
            handles["session"].put(f"key {i % 5}", value, start=now, end=now + i)
            handles["ttl"].put(("key", i), value, now)
            handles["duplicates"].put(i % 4, value, now)
            handles["suppression"].put(f"key {i % 7}", value, now + i)
        handles["sliding"].add(f"key {i % 3}", i, now + i)
    handles["bytes"].put_columns([bytes([version, i]) for i in range(20)], list(range(20)))
    handles["int"].put_many([(i * version, f"{version}") for i in range(-5, 5)])
    handles["float"].put(version / 3, version)
    handles["tuple"].put(("a", version), [version])
    handles["window"].put_columns(["a", "b", "c"], [1, 2, 3], [now, now + 1, now + 2])
    handles["session"].put_many([("a", version, now, now + 5), ("b", version, now, now + 6)])
    handles["text"].put("big", "x" * 3000)  # a block with pages of its own
    handles["text"].delete(f"key {version}")
    handles["window"].delete(f"key {version % 5}", now + 1)
    handles["session"].delete("a", now - 20, now - 15)
    for i in range(10 if version <= 5 else 1):  # keys with many rows, to which some are added
        handles["added"].put("many", f"row {i} of version {version}", now + i)
        handles["added"].put("more", version, now + i - 15 * (version == 7))
    list(handles["suppression"].advance(now + 30))
    state.set("position", [version, now])


def write(path: Path, memory_limit: int | None = None) -> None:
    """Write the golden directory."""
    path.mkdir(parents=True)
    lines = []
    tuning = Tuning(segment_bytes=12_000, frame_records=20, block_records=12)
    policy = hs.CheckpointPolicy(keep=9)
    with hs.open(path / "state", checkpoints=policy, memory_limit=memory_limit, _tuning=tuning) as state:
        for version in range(1, VERSIONS + 1):
            change(state, version)
            assert state.commit() == version
            lines.append(f"{version} {state.digest.hex()} {contents(state)!r}\n")
            if version in (5, 9):
                state.checkpoint(wait=True)
    (path / "contents.txt").write_text("".join(lines), encoding="utf-8")


def shard_rows(version: int) -> dict[str, int]:
    """Return what the golden shard holds at this version: batch 5 changed nothing, and batches 6 and 7 were done anew
    after a rewind.
    """
    return {f"key {i}": i + 100 * (i in (6, 7)) for i in range(version) if i != 5}


def write_shard(path: Path) -> None:
    """Write the golden shard: two runs, the second turned back, a batch without changes, one without rows, a
    checkpoint, a tail."""
    operator = operator_storage(path, "op")
    agree_on_description(operator, {"shards": 1}, 0)
    for first, batches in ((0, range(8)), (6, range(6, 9))):
        provider = StateStoreProvider(
            StateStoreId(str(path), "op", 0), policy=hs.CheckpointPolicy(every_commits=4), claim=begin(operator, first)
        )
        for version in batches:
            key = f"key {version}"
            store = provider.get_store(version)
            if key in shard_rows(version + 1):
                store.key_value("default").put(
                    key, shard_rows(version + 1)[key] - (100 if not first and version > 5 else 0)
                )
            store.commit()
            provider.maintain(wait=True)
    # a batch without rows
    provider.note_empty(9)


def changed_topology(limit: str) -> hs.Topology:
    """Return the topology whose suppression changed."""
    return (
        hs.stream(key="user", timestamp="time")
        .windowed_by(hs.TumblingWindows(100))
        .aggregate(clicks=hs.Count())
        .hold(limit)
    )


def write_changed(path: Path) -> None:
    """Write the golden directories of a program that changed."""
    with hs.open(path / "state") as state:
        users, pages = state.key_value("users"), state.window("pages", retention="1 hour")
        users.put_many({"ann": 1, "bob": 2})
        pages.put("ann", "/", ts=1000)
        state.commit()
        users["ann"] = 3
        state.commit()
    with hs.open(path / "state") as state:
        users = state.key_value("users", version=1, upgrade=lambda visits: {"visits": visits})
        state.commit()
        users["eve"] = {"visits": 0}
        state.commit()
    rows = [{"user": "ann", "time": 1000}, {"user": "bob", "time": 2000}]
    for count, limit in ((1, "1 hour"), (2, "2 hours")):
        list(changed_topology(limit).run(rows[:count], path / "topology"))


if __name__ == "__main__":
    if sys.argv[1] == "--shard":
        write_shard(Path(sys.argv[2]))
    elif sys.argv[1] == "--tables":
        write(Path(sys.argv[2]), memory_limit=1 << 40)
    elif sys.argv[1] == "--changed":
        write_changed(Path(sys.argv[2]))
    else:
        write(Path(sys.argv[1]))
