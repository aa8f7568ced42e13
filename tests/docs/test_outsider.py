"""Six programs that people bring from other engines (docs/coming-from.md), written from the API reference alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs

SECOND = 1000
CLICKS = [
    {"user": user, "time": at * SECOND}
    for user, at in (("ann", 0), ("bob", 20), ("ann", 59), ("ann", 61), ("bob", 58), ("ann", 75), ("bob", 200))
]
FINAL = [("ann", 0, 2), ("bob", 0, 2), ("ann", 60_000, 2)]


def shown(rows: Any) -> list[tuple[Any, ...]]:
    return [(row["user"], row["window_start"], row["clicks"]) for row in rows]


def test_from_kafka_streams_final_counts_per_minute_with_suppress(tmp_path: Path) -> None:
    minutes = hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows("1 minute", grace="10 seconds"))
    counts = minutes.aggregate(clicks=hs.Count()).hold("close")
    assert shown(counts.run(CLICKS, tmp_path)) == FINAL


def test_from_transform_with_state_a_processor_with_a_timer(tmp_path: Path) -> None:
    class PerMinute:
        def __init__(self, stores: Any) -> None:
            self.stores = stores
            self.counts: hs.KeyValueStore[tuple[str, int], int] = stores["counts"]

        def process(self, row: dict[str, Any]) -> None:
            start = row["time"] // 60_000 * 60_000
            self.counts[row["user"], start] = self.counts.get((row["user"], start), 0) + 1
            self.stores.timers.set(start + 70_000)

        def on_timer(self, timer: hs.Timer) -> Iterator[dict[str, Any]]:
            start = timer.time - 70_000
            yield {"user": timer.key, "window_start": start, "clicks": self.counts.delete((timer.key, start))}

    minutes = hs.stream(key="user", timestamp="time").process(PerMinute, stores=[hs.key_value_store("counts")])
    assert shown(minutes.run(CLICKS, tmp_path)) == FINAL


def test_from_apply_in_pandas_with_state_the_first_of_each_for_a_day(tmp_path: Path) -> None:
    def first(row: dict[str, Any], stores: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if stores["seen"].put_if_absent(row["user"], row["time"], ts=row["time"]) is None:
            yield row

    firsts = hs.stream(key="user", timestamp="time").process(first, stores=[hs.key_value_store("seen", ttl="1 day")])
    assert [row["user"] for row in firsts.run(CLICKS, tmp_path)] == ["ann", "bob"]


def test_from_bytewax_sessions_of_a_user(tmp_path: Path) -> None:
    sessions = hs.stream(key="user", timestamp="time").windowed_by(hs.SessionWindows("30 seconds"))
    visits = sessions.aggregate(clicks=hs.Count(), emit="close").run(CLICKS, tmp_path, flush=True)
    assert [(row["user"], row["window_start"], row["window_end"], row["clicks"]) for row in visits] == [
        ("ann", 0, 0, 1), ("bob", 20_000, 20_000, 1), ("bob", 58_000, 58_000, 1), ("ann", 59_000, 75_000, 3),
        ("bob", 200_000, 200_000, 1),
    ]  # fmt: skip


def test_from_quix_streams_a_sum_that_slides(tmp_path: Path) -> None:
    sliding = hs.stream(key="user", timestamp="time").windowed_by(hs.SlidingWindows("20 seconds"))
    rows = sliding.aggregate(clicks=hs.Count()).run(CLICKS, tmp_path)
    # within a commit rows are in order of time
    assert [(row["user"], row["clicks"]) for row in rows][:4] == [("ann", 1), ("bob", 1), ("bob", 1), ("ann", 1)]


def test_from_a_dict_and_a_pickle_file_a_dict_that_survives(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        visits: hs.KeyValueStore[str, int] = state.key_value("visits")
        for row in CLICKS:
            visits[row["user"]] = visits.get(row["user"], 0) + 1
        state.commit()
        visits["eve"] = 1  # not committed
    with hs.open(tmp_path) as state:
        assert dict(state.key_value("visits")) == {"ann": 4, "bob": 3}


def test_a_job_with_its_state_in_a_bucket_of_a_server_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        jobs = hs.Bucket(
            "s3://bucket/jobs",
            endpoint=server.endpoint,
            access_key_id="test",
            secret_access_key="x",
            region="us-east-1",
            cache=tmp_path / "cache",
        )
        minutes = hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows("1 minute"))
        counts = minutes.aggregate(clicks=hs.Count(), emit="close")
        assert shown(counts.run(CLICKS, jobs / "clicks", shards=2)) == shown(
            counts.run(CLICKS, tmp_path / "a", shards=2)
        )
        assert counts.compare(jobs / "clicks") == []
        assert hs.inspect(jobs / "clicks").position == len(CLICKS)
        assert hs.rescale(jobs / "clicks", shards=4, accept_late=True).done
        assert list(counts.run(CLICKS, jobs / "clicks", shards=4)) == []
        with hs.open(jobs / "visits") as state:
            visits: hs.SessionStore[str, int] = state.session("visits", retention="1 hour")
            visits.put("ann", 3, start=0, end=9 * SECOND)
            state.commit()
        with hs.serve(jobs / "visits") as running:
            assert running.url.startswith("http://127.0.0.1:")
        assert sum(pages for _, pages in visits_of(jobs / "visits")) == 3


def visits_of(location: hs.Bucket) -> list[tuple[tuple[str, int, int], int]]:
    with hs.open(location, at="newest") as state:
        visits: hs.SessionStore[str, int] = state.session("visits", retention="1 hour")
        return list(visits.all())
