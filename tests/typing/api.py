"""User code as people write it, checked by `mypy --strict` in `make check` and never run: the public types hold."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_type

import hybridstore as hs


def profiles(directory: str) -> int:
    with hs.open(directory, durability="os", checkpoints=hs.CheckpointPolicy(max_restore=timedelta(seconds=1))) as s:
        assert_type(s, hs.State)
        store = s.key_value("profiles", ttl="1 hour")
        assert_type(store, hs.KeyValueStore)
        store.put("ann", {"visits": 3}, ts=1_000)
        assert_type(store.get("ann"), Any | None)
        rows = store.scan("a", "b", reverse=True)
        assert_type(rows, Iterator[tuple[Any, Any]])
        assert_type(len(store), int)
        assert_type(s.metrics(), hs.Metrics)
        assert_type(s.metrics().records, dict[str, int])
        return s.commit()


def counted(s: hs.State) -> int:
    users: hs.KeyValueStore[str, int] = s.key_value("users")
    users["ann"] = 1
    users.put_many({"bob": 2})
    assert_type(users["ann"], int)
    assert_type(users.get("eve"), int | None)
    assert_type(users.get_many(["ann", "eve"]), list[int | None])
    for name, visits in users.scan(prefix="a"):
        assert_type(name, str)
        assert_type(visits, int)
    return users.get("eve", 0) + sum(users.values())


def totals(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute", grace="5 seconds"))
    assert_type(minutes, hs.Topology)
    counts = minutes.aggregate(n=hs.Count(), total=hs.Sum("n")).hold("10 seconds", max_records=1_000)
    for row in counts.run(rows, "state", progress=lambda phase, done, total: print(phase, done, total)):
        assert_type(row.commit, int)
        yield dict(row)
    with counts.open("state", shards=2, checkpoints=hs.CheckpointPolicy()) as engine:
        assert_type(engine, hs.Engine)
        engine.process(rows[0])
        engine.commit()


def joined(orders: list[dict[str, Any]], payments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ordered = hs.stream(key="id", timestamp="at", name="orders")
    payments_of = hs.stream(key="id", timestamp="at", name="payments")
    paid = ordered.join(payments_of, within="1 hour", how="left", prefixes={"payments": "paid_"})
    assert_type(paid, hs.Topology)
    return [dict(row) for row in paid.run({"orders": orders, "payments": payments})]


def seen_before(row: dict[str, Any], stores: dict[str, Any]) -> Iterator[dict[str, Any]]:
    seen: hs.KeyValueStore[str, int] = stores["seen"]
    if seen.put_if_absent(row["id"], 1, row["ts"]) is None:
        yield row


def first_ones(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    once = hs.stream(key="id", timestamp="ts").process(seen_before, stores=[hs.key_value_store("seen", ttl="1 day")])
    return [dict(row) for row in once.run(rows)]


def looked_at(location: str) -> tuple[int, str | None]:
    look = hs.inspect(location)
    for record in look["users"]:
        print(record.key, record.times, record.value)
    for label, state in look.shards.items():
        assert_type(label, str)
        print(state.version)
    return look.version, look.restart().problem


def clicks(s: hs.State) -> list[tuple[int, Any]]:
    store = s.window("clicks", retention=timedelta(hours=1))
    assert_type(store, hs.WindowStore)
    store.put("ann", 1, 1_000)
    store.put_many([("ann", 1, 2_000)])
    store.put_columns(["ann", "bob"], [1, 2], [3_000, 4_000])
    for (key, at), value in store.all():
        assert_type(at, int)
        print(key, value)
    s.checkpoint(wait=True)
    return list(store.fetch("ann", 0, 9_000))


def careful(directory: str) -> hs.State | None:
    try:
        return hs.open(directory, lazy=False, debug=True)
    except hs.StateLockedError as error:
        assert_type(error, hs.StateLockedError)
        print("in use", error)
    except (hs.errors.CorruptFrameError, hs.errors.CorruptCheckpointError, hs.errors.UnsupportedVersionError) as error:
        print("damaged or newer", error)
    except hs.HybridStoreError as error:
        print("anything else of ours", error)
    return None


def restored(s: hs.State) -> hs.RestoreReport | None:
    return s.restore_report
