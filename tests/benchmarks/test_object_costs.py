"""What docs/scale.md says of the costs of an object store follows from requests that are counted here."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from benchmarks.measure.state import NEVER
from benchmarks.suites import object_costs
from benchmarks.suites.far_restart import asked
from benchmarks.suites.object_costs import (
    BATCH,
    CHECKPOINT,
    CHECKPOINT_BATCHES,
    OBJECT_BYTES,
    Requests,
    ours,
    sparks,
)
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import POLICY
from hybridstore.state.opening import Tuning
from hybridstore.state.policy import CheckpointPolicy
from recovery.compaction import SIZES
from tests.spark.test_location import Query, write
from tests.tools.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[2]


def test_a_batch_and_a_checkpoint_are_the_requests_that_are_calculated_with(tmp_path: Path) -> None:
    with S3Server() as server:
        query, cache = Query(server, tmp_path, "costs"), ShardCache()
        often = CheckpointPolicy(every_commits=8, keep=2)
        plain = Counter({"put": BATCH.puts})
        checkpoints = []
        for batch in range(40):
            server.reset()
            task = query.task(cache, often)
            write(task, batch, **{f"k{batch}": batch})
            task.maintain(wait=True, oldest_replay=batch)
            requests = Counter(server.count)
            requests.pop("post", 0)  # deletions are free
            if batch and requests != plain:
                checkpoints.append(requests - plain)
        assert len(checkpoints) == 5
        for requests in checkpoints:
            assert requests["put"] == CHECKPOINT.puts
            assert requests["list"] == CHECKPOINT.lists
            # none for the objects of the log, whose parents this process knows
            assert requests["get"] + requests["head"] == CHECKPOINT.gets
        names = [name for name in query.storage.list() if "/log/" in name]
        sizes = [query.storage.size(name) for name in names]
        assert OBJECT_BYTES / 2 < max(sizes) < OBJECT_BYTES


def test_packs_that_wait_cost_a_checkpoint_no_request_and_a_first_read_no_round(tmp_path: Path) -> None:
    counts: dict[int, tuple[int, int, int]] = {}
    for waiting in (4, 64):
        with S3Server() as server:
            warm, cold = (
                hs.Bucket("s3://bucket/state", cache=str(tmp_path / f"{name} {waiting}"), **server.options)
                for name in ("warm", "cold")
            )
            tuning = Tuning(block_records=256, parts=SIZES._replace(most_packs=waiting))
            with hs.open(warm, checkpoints=NEVER, _tuning=tuning) as state:
                store = state.key_value("it")
                for turn in range(24):
                    numbers = range(2000) if turn == 0 else range(turn, 2000, 100)
                    store.put_many({f"key {i:04d}": b"%040d" % turn for i in numbers})
                    state.commit()
                    server.reset()
                    state.checkpoint(wait=True)
                    assert server.count["put"] == CHECKPOINT.puts
                assert state._checkpoints.last is not None
                packs = state._checkpoints.last.packs
                assert packs > 8 if waiting > 4 else packs < 6, packs
            with asked() as counted, hs.open(cold, at="newest", checkpoints=NEVER) as state:
                number, rounds = counted.number, counted.rounds
                assert state.key_value("it").get("key 0100") == b"%040d" % 0
                counts[waiting] = number, rounds, counted.rounds
    assert counts == {4: (3, 2, 4), 64: (3, 2, 4)}


def test_money_follows_from_requests() -> None:
    assert Requests(puts=1_000_000).dollars == pytest.approx(5)
    assert Requests(gets=1_000_000).dollars == pytest.approx(0.4)
    day = ours(200, 1)
    assert POLICY.every_commits == CHECKPOINT_BATCHES
    assert day.puts == 200 * 86_400 + 200 * 864 * 2
    assert ours(200, 60).puts == 200 * 1440 + 200 * 24 * 2
    assert 91 < day.dollars < 92
    assert sparks(200, 1, changelog=False).dollars > 1.7 * day.dollars
    assert sparks(1000, 60, changelog=True).puts == 1000 * 1440 + 2 * 1000 * 144


def test_the_page_has_what_is_calculated() -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert "\n".join(object_costs.section()) in page
