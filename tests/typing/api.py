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
        assert_type(store.get("ann"), Any)
        rows = store.scan("a", "b", reverse=True)
        assert_type(rows, Iterator[tuple[Any, Any]])
        assert_type(len(store), int)
        assert_type(s.metrics(), hs.Metrics)
        assert_type(s.metrics().records, dict[str, int])
        return s.commit()


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
