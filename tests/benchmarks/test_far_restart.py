"""The benchmark of a restart from an object store: its server answers as a store does, and its figures add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("obstore")
pytest.importorskip("benchmarks", reason="not a checkout")

from benchmarks.measure.range_server import RangeServer, serving
from benchmarks.suites import far_restart
from changelog.cloud_storage import CloudStorage


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    with serving() as running:
        yield running


def test_the_server_keeps_what_is_created_and_nothing_twice(server: RangeServer) -> None:
    storage = CloudStorage(server.url("kept"), server.options)
    assert storage.create("a/1", b"0123456789")
    assert not storage.create("a/1", b"another")
    assert storage.get("a/1") == b"0123456789"
    assert storage.size("a/1") == 10
    assert list(storage.get_ranges("a/1", [(3, 2), (8, 5), (20, 1)])) == [b"34", b"89", b""]
    assert storage.create("a/2 <&>", b"")
    assert list(storage.list("a/")) == ["a/1", "a/2 <&>"]
    assert list(storage.list("a/", after="a/1")) == ["a/2 <&>"]
    storage.delete(["a/1", "a/2 <&>", "absent"])
    assert list(storage.list()) == []
    with pytest.raises(FileNotFoundError):
        storage.get("a/1")


def test_the_server_lists_in_pages(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CloudStorage(server.url("many"), server.options)
    names = [f"log/{number:04d}" for number in range(1_005)]
    for name in names:
        storage.create(name, b"")
    server.set()
    assert list(storage.list("log/")) == names
    assert server.count()[0] == 2
    assert list(storage.list("log/", after="log/0999")) == names[1_000:]


def test_every_way_of_a_restart_reads_what_was_put() -> None:
    result = far_restart.measure(records=[6_000], latency_ms=0.0, bandwidth_mb=0.0, block=64)
    for workload in far_restart.WORKLOADS:
        rounds = {way: result.find(f"6,000 {workload}, {way}: rounds").value for way in far_restart.WAYS}
        assert rounds["reader"] <= 6
        # a claim, a list of the versions behind it, and a fence
        assert rounds["writer"] == rounds["reader"] + 3
        assert rounds["cached"] == 2
