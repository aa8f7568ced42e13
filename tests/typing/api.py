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


def typed_stores(s: hs.State) -> float:
    loads: hs.WindowStore[str, float] = s.window("loads", retention="1 hour")
    loads.put("web-1", 0.5, ts=1_000)
    loads.put_many([("web-1", 0.5, 2_000)])
    assert_type(loads.get("web-1", 1_000), float | None)
    assert_type(loads.fetch("web-1"), Iterator[tuple[int, float]])
    assert_type(loads.fetch_many(["web-1"]), dict[str, tuple[list[int], list[float]]])
    assert_type(loads.scan(prefix="web"), Iterator[tuple[tuple[str, int], float]])

    loads.put("web-1", "much", ts=1_000)  # type: ignore[arg-type]  # text where floats are declared
    loads.get(7, 1_000)  # type: ignore[arg-type]

    visits: hs.SessionStore[str, int] = s.session("visits", retention="1 hour")
    visits.put("ann", 3, start=0, end=9_000)
    assert_type(visits.get("ann", 0, 9_000), int | None)
    assert_type(visits.find_sessions("ann", 0, 9_000), Iterator[tuple[tuple[str, int, int], int]])

    latest: hs.SuppressionBuffer[str, int] = s.suppression("latest", time_limit="1 minute")
    assert_type(latest.put("ann", 1, ts=0), list[tuple[str, int, int]])
    assert_type(latest.flush(), Iterator[list[tuple[str, int, int]]])
    for records in latest.advance(60_000):
        for key, value, ts in records:
            assert_type(key, str)
            print(value + ts)

    sums: hs.SlidingStore[str, int, float] = s.sliding("sums", size="1 minute", aggregator=hs.Mean())
    assert_type(sums.add("web-1", 5, ts=0), tuple[str, int, int, float] | None)
    assert_type(sums.fetch("web-1"), Iterator[tuple[int, int]])
    assert_type(dict(sums.aggregates()), dict[str, float])

    prices: hs.VersionedStore[str, float] = s.versioned("prices", history="1 day")
    prices.put("tea", 3.5, ts=0)
    price = prices.get("tea", as_of=500)
    return 0.0 if price is None else price.value + sum(version.value for version in prices.versions("tea"))


def in_a_bucket() -> int:
    jobs = hs.Bucket(
        "s3://jobs", endpoint="http://minio:9000", secret_access_key="...", cache="/fast", cache_bytes=1 << 30
    )
    assert_type(jobs / "users", hs.Bucket)
    with hs.open(jobs / "users") as state:
        state.key_value("users").put("ann", 1)
        state.commit()
    return hs.inspect(jobs / "users").version
