"""The contract of a state store provider: scenarios of Spark's own suites that need no JVM, under their numbers.

Which number means what, and where the others are tested or why not, is in docs/testing.md.
"""

from datetime import timedelta
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.spark import CannotCommitError, MissingVersionError, SkippedBatchError, StaleAttemptError
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.numbers import ShardMetrics
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.shard_tools import (
    at,
    checkpoints,
    content,
    files,
    names,
    provider,
    put,
    segment,
    started,
    versions,
    write,
)


@pytest.mark.scenario(1)
def test_fresh_store(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    assert content(store) == {}
    assert store.committed is None
    assert store.metrics().records == {}
    assert files(tmp_path) == set()


@pytest.mark.scenario(2)
def test_read_your_writes(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    put(store, a=1)
    assert store.key_value("default").get("a") == 1
    assert content(store) == {"a": 1}
    assert content(p.get_read_store(0)) == {}


@pytest.mark.scenario(3)
def test_commit_makes_exactly_the_final_content_visible(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    put(store, a=1, b=2, aa=3)
    kv = store.key_value("default")
    for key in [key for key, _ in kv.all() if key.startswith("a")]:
        kv.delete(key)
    assert store.commit() == 1
    assert store.committed is not None
    assert at(tmp_path, 1) == {"b": 2}


@pytest.mark.scenario(4)
def test_no_future_versions(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    for asked in (p, provider(tmp_path)):
        with pytest.raises(
            SkippedBatchError,
            match="version 2 was never written, or its object is lost: the newest is 1, so batch 1 did not",
        ):
            asked.get_store(2)
    with pytest.raises(MissingVersionError, match="version 2 was never written: found no object of this shard"):
        provider(tmp_path / "elsewhere").get_store(2)


@pytest.mark.scenario(5)
def test_negative_version(tmp_path: Path) -> None:
    p = provider(tmp_path)
    with pytest.raises(MissingVersionError, match="version: found -1, expected 0 or more"):
        p.get_store(-1)
    assert files(tmp_path) == set()


@pytest.mark.scenario(6)
def test_reload_from_disk_only(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1, b=2)
    assert write(provider(tmp_path), 1, c=3) == 2
    assert at(tmp_path, 2) == {"a": 1, "b": 2, "c": 3}
    assert at(tmp_path, 1) == {"a": 1, "b": 2}


@pytest.mark.scenario(7)
def test_old_version_loadable_again(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    write(p, 1, b=2)
    assert content(p.get_store(0)) == {}
    assert content(p.get_store(1)) == {"a": 1}
    assert content(p.get_store(2)) == {"a": 1, "b": 2}


@pytest.mark.scenario(8)
def test_unload_and_reload(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    p.close()
    with pytest.raises(hs.StateClosedError):
        p.get_store(1)
    assert write(provider(tmp_path), 1, b=2) == 2


@pytest.mark.scenario(9)
def test_null_value_deletes_and_null_key_is_refused(tmp_path: Path) -> None:
    # Spark's stores refuse a null value; in ours it is the tombstone that the semantics of every store of ours gives
    # it.
    store = provider(tmp_path).get_store(0)
    put(store, a=1)
    kv = store.key_value("default")
    kv.put("a", None)
    assert content(store) == {}
    with pytest.raises(TypeError):
        kv.put(None, 1)


@pytest.mark.scenario(10, 11)
def test_mutation_during_iteration_and_iterator_visibility(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, **{f"k{i}": i for i in range(50)})
    for p in (provider(tmp_path), provider(tmp_path)):
        store = p.get_store(1)
        kv = store.key_value("default")
        before = kv.all()
        for key, value in kv.all():
            kv.put(key, value + 1)
            if value % 2:
                kv.delete(key)
        after = kv.all()
        # one rule for a fresh and a reloaded store: an iterator shows what was there when it was opened
        assert dict(before) == {f"k{i}": i for i in range(50)}
        assert dict(after) == {f"k{i}": i + 1 for i in range(0, 50, 2)}
        p.abort()


@pytest.mark.scenario(12)
def test_prefix_scan(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    kv = store.key_value("pairs")
    for prefix in ("p", "q"):
        for i in range(3):
            kv.put((prefix, i), i)
    store.commit()
    store = p.get_store(1)
    kv = store.key_value("pairs")
    kv.put(("p", 7), 7)
    assert [key for key, _ in kv.scan(prefix=("p",))] == [("p", 0), ("p", 1), ("p", 2), ("p", 7)]
    assert list(kv.scan(prefix=("x",))) == []
    store.abort()
    assert [key for key, _ in p.get_store(1).key_value("pairs").scan(prefix=("p",))] == [("p", 0), ("p", 1), ("p", 2)]


@pytest.mark.scenario(13)
def test_number_of_keys(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1, b=2, c=3, d=4, e=5)
    p = provider(tmp_path)
    store = p.get_store(1)
    assert store.metrics().records == {"default": 5}
    store.key_value("default").delete("c")
    store.commit()
    assert p.metrics().records == {"default": 4}
    assert provider(tmp_path).get_store(2).metrics().records == {"default": 4}


@pytest.mark.scenario(14)
def test_metrics_grow(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    small = p.metrics().segment_bytes
    write(p, 1, **{f"k{i}": i for i in range(1000)})
    assert p.metrics().segment_bytes > small > 0
    assert p.metrics().bytes_since_checkpoint > p.metrics().segment_bytes


@pytest.mark.scenario(15)
def test_metric_combination() -> None:
    total = ShardMetrics.combine(
        [
            ShardMetrics(records={"a": 2, "b": 3}, dropped={"a": {"expired": 1}}, segment_bytes=10),
            ShardMetrics(records={"a": 5}, dropped={"a": {"expired": 4}}, segment_bytes=7),
        ]
    )
    assert (total["records"], total["dropped"], total["segment_bytes"]) == (10, 5, 17)


@pytest.mark.scenario(16)
def test_unsupported_operation(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    store = p.get_store(1)
    with pytest.raises(hs.ProgramMismatchError, match="holds a key_value store, asked for window"):
        store.window("default", retention="1 hour")
    with pytest.raises(hs.ProgramMismatchError, match="kind 'tree' is unknown"):
        store.open("other", "tree", {})
    reader = p.get_read_store(1)
    with pytest.raises(hs.HybridStoreError, match="found a read store, expected a store of get_store"):
        reader.commit()
    with pytest.raises(KeyError, match="no store 'other' in version 1"):
        reader.key_value("other")


@pytest.mark.scenario(17)
def test_empty_commit(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    write(p, 1, b=2)
    before = files(tmp_path)
    assert p.get_store(2).commit() == 3
    assert len(files(tmp_path) - before) == 1  # the batch came: that is what the object says
    assert at(tmp_path, 3) == {"a": 1, "b": 2}
    assert write(provider(tmp_path), 3, c=3) == 4
    assert at(tmp_path, 4) == {"a": 1, "b": 2, "c": 3}
    assert at(tmp_path, 3) == at(tmp_path, 2) == {"a": 1, "b": 2}


def test_a_batch_without_changes_costs_one_small_object(tmp_path: Path) -> None:
    p = provider(tmp_path)
    assert p.get_store(0).commit() == 1
    assert p.get_store(1).commit({"batch": 1}) == 2
    assert segment(tmp_path, 1).stat().st_size < 1100
    p.note_empty(2)
    assert segment(tmp_path, 3).stat().st_size < 250
    assert len(names(tmp_path)) == 3


def test_the_objects_of_a_shard_without_rows_stay_few(tmp_path: Path) -> None:
    for root, first in ((tmp_path / "never", {}), (tmp_path / "once", {"a": 1})):
        p = provider(root)
        write(p, 0, **first)
        most = 0
        for batch in range(1, 400):
            # as a task does, which has a provider of its own
            task = provider(root)
            task.note_empty(batch)
            task.maintain(oldest_replay=batch)
            most = max(most, len(names(root)))
        assert most < 80
        assert at(root, 400) == at(root, 390) == first
        assert content(provider(root).get_store(400)) == first
        with pytest.raises(SkippedBatchError, match="newest is 400"):
            provider(root).get_store(401)


def test_notes_that_were_lost_are_noticed_behind_those_that_were_cleared_away(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    for batch in range(1, 80):
        p.note_empty(batch)
        p.maintain(oldest_replay=batch)
    segment(tmp_path, 75).unlink()
    with pytest.raises(SkippedBatchError, match=r"version 75 .* so batch 74 did not reach shard 0"):
        provider(tmp_path).get_store(80)
    assert at(tmp_path, 74) == {"a": 1}


def test_a_lost_object_never_passes_for_a_batch_without_rows(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    write(p, 1, b=2)
    p.get_store(2).commit()
    digest = names(tmp_path)[1].digest8
    segment(tmp_path, 2).unlink()
    with pytest.raises(
        MissingVersionError, match=f"version 2 with digest {digest} is missing, though log/.* continues"
    ):
        provider(tmp_path).get_store(3)
    # memory has what the object held: nothing is read for it
    assert content(p.get_store(3)) == {"a": 1, "b": 2}


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_the_loss_of_the_newest_object_is_noticed(tmp_path: Path, lost: int) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    write(p, 1, b=2)
    p.note_empty(2)
    segment(tmp_path, lost).unlink()
    with pytest.raises(hs.HybridStoreError, match=r"missing|was never written, or its object is lost"):
        provider(tmp_path).get_store(3)


@pytest.mark.scenario(18)
def test_odd_keys(tmp_path: Path) -> None:
    odd = ["v1", "\x89HSLOG\r\n", "hF\x02\x00", "", "\x00" * 40, "-1", "\udc80", "EOF"]
    store = provider(tmp_path).get_store(0)
    kv = store.key_value("default")
    for i, key in enumerate(odd):
        kv.put(key, i)
    store.key_value("raw").put(b"\xff\xff\xff\xff", b"hF\x03")
    store.commit()
    store = provider(tmp_path).get_read_store(1)
    assert {key: store.key_value("default").get(key) for key in odd} == {key: i for i, key in enumerate(odd)}
    assert store.key_value("raw").get(b"\xff\xff\xff\xff") == b"hF\x03"


@pytest.mark.scenario(19)
def test_abort_leaves_no_trace(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    before = files(tmp_path)
    store = p.get_store(1)
    put(store, b=2)
    store.abort()
    assert files(tmp_path) == before
    assert content(p.get_store(1)) == {"a": 1}
    assert at(tmp_path, 1) == {"a": 1}


@pytest.mark.scenario(20)
def test_abort_then_reload(tmp_path: Path) -> None:
    p = provider(tmp_path)
    for version in range(10):
        write(p, version, **{f"k{version}": version})
    store = p.get_store(10)
    put(store, k0=99, new=1)
    store.key_value("default").delete("k3")
    store.abort()
    assert content(p.get_store(10)) == {f"k{i}": i for i in range(10)}


@pytest.mark.scenario(26)
def test_double_clean_up(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    put(store, a=1)
    store.commit()
    store.abort()
    store.abort()
    p.close()
    p.close()
    store.abort()
    assert at(tmp_path, 1) == {"a": 1}


@pytest.mark.scenario(27)
def test_use_after_the_end(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    kv = store.key_value("default")
    kv.put("a", 1)
    store.commit()
    for use in (store.commit, lambda: store.key_value("default")):
        with pytest.raises(hs.StateClosedError):
            use()
    # a handle kept beyond the commit changes nothing that is ever committed or read
    kv.put("late", 1)
    assert content(p.get_store(1)) == {"a": 1}
    aborted = p.get_store(1)
    aborted.abort()
    with pytest.raises(hs.StateClosedError):
        aborted.commit()


@pytest.mark.scenario(28)
def test_temporary_files(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    put(store, a=1)
    # unlike Spark's, ours is written at the commit, so that nothing is left by a task that dies before it
    assert files(tmp_path) == set()
    store.commit()
    assert files(tmp_path) == {str(name) for name in names(tmp_path)}
    assert versions(tmp_path) == [1]


def test_two_providers_of_one_process_do_not_share_a_store_in_use(tmp_path: Path) -> None:
    cache = ShardCache()
    write(provider(tmp_path, cache=cache), 0, a=1)
    first_provider, second_provider = provider(tmp_path, cache=cache), provider(tmp_path, cache=cache)
    first, second = first_provider.get_store(1), second_provider.get_store(1)
    put(first, b=2)
    assert content(second) == {"a": 1}
    assert first.commit() == 2
    put(second, b=2)
    assert second.commit() == 2  # the same change: the same version again
    assert at(tmp_path, 2) == {"a": 1, "b": 2}


def test_stores_of_every_kind_come_back(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    store.window("w", retention="1 hour").put("k", 1, 1000)
    store.session("s", retention="1 hour").put("k", 2, start=0, end=10)
    store.key_value("ttl", ttl="1 minute").put("k", 3, 1000)
    store.commit()
    back = provider(tmp_path).get_read_store(1)
    assert list(back.window("w", retention="1 hour").all()) == [(("k", 1000), 1)]
    assert list(back.session("s", retention="1 hour").all()) == [(("k", 0, 10), 2)]
    assert back.key_value("ttl", ttl="1 minute").get("k") == 3


def test_a_foreign_querys_files_are_refused(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1)
    other = StateStoreProvider(
        StateStoreId(str(tmp_path), "op", 0, query_id="another"), cache=ShardCache(), claim=started(tmp_path, 1)
    )
    with pytest.raises(hs.errors.ForeignFileError, match="it was written by another query, operator or shard"):
        other.get_store(1)


def test_without_a_run_a_provider_reads_only(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1)
    reader = StateStoreProvider(StateStoreId(str(tmp_path), "op", 0), cache=ShardCache())
    assert content(reader.get_read_store(1)) == {"a": 1}
    with pytest.raises(hs.HybridStoreError, match=r"found no claim, expected the run that is written for"):
        reader.get_store(1)


@pytest.mark.parametrize(("operator", "shard"), [("", 0), ("a/b", 0), (".x", 0), ("op", -1), ("op", True)])
def test_bad_ids_are_refused(tmp_path: Path, operator: str, shard: int) -> None:
    with pytest.raises(ValueError, match="found"):
        StateStoreId(str(tmp_path), operator, shard)


def test_errors_say_where_and_what_to_do() -> None:
    for error in (CannotCommitError, MissingVersionError, SkippedBatchError, StaleAttemptError):
        assert issubclass(error, hs.HybridStoreError)
        assert error.__doc__


def test_checkpoints_are_made_when_the_policy_says(tmp_path: Path) -> None:
    p = provider(tmp_path, policy=CheckpointPolicy(every_commits=3), retain=0)
    for version in range(12):
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True)
    assert [name.version for name in checkpoints(tmp_path)] == [9, 12]
    assert versions(tmp_path) == [9, 10, 11, 12]
    fresh = provider(tmp_path).get_store(12)
    assert fresh.metrics().load == "checkpoint"
    assert content(fresh) == {f"k{i}": i for i in range(12)}


def test_a_process_that_leaves_a_shard_makes_the_checkpoint_that_the_aim_asks_for(tmp_path: Path) -> None:
    aims = {"missed": timedelta(microseconds=1), "kept": timedelta(hours=1)}
    for name, aim in aims.items():
        root = tmp_path / name
        p = provider(root, policy=CheckpointPolicy(aim=aim))
        write(p, 0, **{f"k{number}": number for number in range(1000)})
        p.maintain(wait=True)
        assert provider(root).get_store(1).loaded.kind == "changelog"
        p.maintain(wait=True, closing=True)
        store = provider(root).get_store(1)
        assert store.loaded.kind == ("checkpoint" if name == "missed" else "changelog")
        assert len(content(store)) == 1000
