"""A rescale of a Spark operator: what it refuses, that a crash changes nothing, the way back, what a merge costs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import pack
from hybridstore import spark as hsp
from hybridstore.cli import run as run_command
from hybridstore.reading.follow import follow
from hybridstore.reading.places import resolve
from hybridstore.rescaling.api import remove_old_shards
from hybridstore.shards import shard_of
from hybridstore.spark.location import locate
from hybridstore.spark.operator_file import read_chain
from recovery.layout import generation_folder, launch_name
from tests.tools.memory_storage import MemoryStorage
from tests.tools.watched_storage import Killed, Killer

pytest.importorskip("pyarrow")

import pyarrow as pa

from tests.tools.rescaled_jobs import Job, in_memory

TOTALS = (
    hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(1000, grace=500)).aggregate(total=hs.Sum("n"))
)


def rows_of(batch: int, keys: int = 20) -> list[dict[str, Any]]:
    return [{"k": f"k{number}", "ts": batch * 100 + number % 7, "n": number} for number in range(keys)]


def begun(shards: int = 2, batches: int = 3, location: Any = None, program: Any = TOTALS) -> Job:
    """A job that has done some batches and was stopped."""
    job = Job(location or in_memory(), program)
    job.start(shards)
    for batch in range(batches):
        job.batch(rows_of(batch))
    job.forget()
    return job


def objects(job: Job) -> dict[str, bytes]:
    storage: MemoryStorage = job.location.storage  # type: ignore[attr-defined]
    return dict(storage.objects)


def refused(job: Job, match: str, **options: Any) -> None:
    """A rescale is refused in one line, and nothing was written or removed."""
    before = objects(job)
    with pytest.raises(hs.RescaleError, match=match) as caught:
        hs.rescale(job.location, "op", **options)
    assert "\n" not in str(caught.value)
    assert objects(job) == before


@pytest.mark.parametrize("shards", [0, -1, True, 2.0, "4", None])
def test_a_number_of_shards_that_cannot_be_is_refused(shards: Any) -> None:
    refused(begun(), "shards: found .*, expected a whole number of 1 or more, or back=True", shards=shards)


def test_the_same_number_of_shards_is_refused() -> None:
    refused(begun(), "has 2 shards already", shards=2)


def test_who_reads_the_state_of_a_query_takes_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(location=locate(tmp_path / "query"))
    monkeypatch.chdir(tmp_path)
    assert TOTALS.compare("query") == []
    assert [row["shard"] for row in hsp.metrics("query")] == [0, 1]
    assert hs.rescale("query", "op", shards=4, dry_run=True).shards == 2


def test_an_operator_that_is_not_there_is_refused() -> None:
    with pytest.raises(hs.RescaleError, match="no operator 'other' has state there"):
        hs.rescale(begun().location, "other", shards=4)


def test_a_batch_that_was_begun_and_not_committed_is_refused_with_what_to_do() -> None:
    job = begun()
    job.begin()
    refused(job, r"batch 3 was begun and is not committed .*start the query as it was", shards=4)


def test_a_location_without_a_query_is_refused() -> None:
    job = begun()
    job.query.delete([f"{folder}/{batch}" for folder in ("offsets", "commits") for batch in range(3)])
    refused(job, "found no offsets .*--state", shards=4)


def test_a_driver_that_is_alive_on_this_host_is_refused_unless_it_is_said_to_have_stopped() -> None:
    job = begun()
    driver = {"wall_ms": 0, "host": socket.gethostname(), "pid": os.getppid()}
    job.location.operator("op").create(launch_name(10**6), pack(driver))
    refused(job, f"process {os.getppid()} of this host, .*--stopped", shards=4)
    assert hs.rescale(job.location, "op", shards=4, stopped=True).done


def test_a_driver_that_has_ended_is_no_hindrance() -> None:
    job = begun()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    driver = {"wall_ms": 0, "host": socket.gethostname(), "pid": child}
    job.location.operator("op").create(launch_name(10**6), pack(driver))
    assert hs.rescale(job.location, "op", shards=4).done


@pytest.mark.parametrize("what", ["log", ""])
def test_a_shard_that_is_half_deleted_is_refused_by_number(what: str) -> None:
    job = begun(batches=5)
    storage = job.location.operator("op").below(f"{generation_folder(0)}/000001")
    storage.delete(storage.list(what))
    refused(job, "shard 1 cannot be read, so nothing was changed", shards=4)


def test_a_start_with_another_number_names_the_command() -> None:
    job = begun()
    with pytest.raises(hs.ProgramMismatchError, match="hybridstore rescale LOCATION op --shards 4"):
        job.start(4)


def test_a_dry_run_writes_nothing_and_says_what_it_would_do() -> None:
    job = begun()
    before = objects(job)
    report = hs.rescale(job.location, "op", shards=4, dry_run=True)
    assert (report.done, report.exact, report.version, report.stores["windows"].records) == (False, True, 3, 20)
    assert objects(job) == before


# --- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("shards", "into"), [(1, 2), (3, 2)])
def test_a_crash_at_any_write_keeps_the_old_shards_in_charge_or_has_the_new_ones(
    shards: int, into: int, behind: bool
) -> None:
    prepared = begun(shards)
    content, saved = prepared.rows(), objects(prepared)
    base = prepared.location.storage.base  # type: ignore[attr-defined]
    killer = Killer(0, behind=False)
    counts = set()
    at = 0
    while killer.writes >= at:
        at += 1
        killer = Killer(at, behind=behind)
        storage = MemoryStorage(dict(saved), base)
        job = Job(in_memory(killer, storage), TOTALS)
        job.number = prepared.number
        try:
            hs.rescale(job.location, "op", shards=into, accept_late=True)
        except Killed:
            assert killer.writes == at
        job.location = in_memory(storage=storage)
        count = read_chain(job.location.operator("op"))[-1]["shards"]
        counts.add(count)
        assert job.rows() == content
        job.query = job.location.query()
        job.start(count)
        job.batch(rows_of(3))
        after = job.rows()
        if count == shards:
            job.forget()
            assert hs.rescale(job.location, "op", shards=into, accept_late=True).done
            assert job.rows() == after
            job.start(into)
        job.batch(rows_of(4))
    assert counts == {shards, into}


def test_what_a_crash_has_left_is_removed_by_the_next_rescale() -> None:
    job = begun()
    storage: MemoryStorage = job.location.storage  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        hs.rescale(in_memory(Killer(5, behind=True), storage), "op", shards=4)
    operator = job.location.operator("op")
    assert operator.list(f"{generation_folder(1)}/")
    assert hs.rescale(job.location, "op", shards=4).generation == 2
    assert not operator.list(f"{generation_folder(1)}/")


def test_a_batch_that_is_done_meanwhile_keeps_the_old_shards_in_charge() -> None:
    job = begun()
    job.start(2)
    storage: MemoryStorage = job.location.storage  # type: ignore[attr-defined]
    done: list[int] = []

    def watch(verb: str, name: str, call: Callable[[], Any]) -> Any:
        if verb == "create" and "/packs/" in name and not done:
            done.append(1)
            job.batch(rows_of(3))
        return call()

    with pytest.raises(hs.RescaleError, match="the query has done a batch meanwhile"):
        hs.rescale(in_memory(watch, storage), "op", shards=4)
    assert read_chain(job.location.operator("op"))[-1]["shards"] == 2
    job.batch(rows_of(4))


# --- the way back -------------------------------------------------------------------------------------------------


def test_the_way_back_is_open_until_a_batch_was_done() -> None:
    job, always = begun(), begun()
    content = job.rows()
    hs.rescale(job.location, "op", shards=6)
    with pytest.raises(hs.RescaleError, match="no batch was done with the new shards yet"):
        remove_old_shards(job.location, "op")
    report = hs.rescale(job.location, "op", back=True)
    assert (report.into, report.done) == (2, True)
    assert job.rows() == content
    refused(job, "no rescale to go back from", back=True)
    hs.rescale(job.location, "op", shards=4)
    job.start(4)
    always.start(2)
    assert job.batch(rows_of(3)) == always.batch(rows_of(3))
    job.forget()
    refused(job, "batch 3 was done with 4 shards", back=True)
    assert remove_old_shards(job.location, "op") > 0
    assert job.rows() == always.rows()
    job.start(4)
    assert job.batch(rows_of(4)) == always.batch(rows_of(4))


def test_batches_that_a_query_did_on_the_old_shards_all_the_same_are_got_back() -> None:
    job, always = begun(), begun()
    job.start(2)
    always.start(2)
    hs.rescale(job.location, "op", shards=4)
    assert job.batch(rows_of(3)) == always.batch(rows_of(3))
    hs.rescale(job.location, "op", back=True)
    assert job.rows() == always.rows()


# --- merging ------------------------------------------------------------------------------------------------------


def apart() -> Job:
    """A job of two shards whose times lie far apart."""
    keys = {shard_of(f"k{number}", 2): f"k{number}" for number in range(20)}
    closing = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(1000, grace=500))
    job = Job(in_memory(), closing.aggregate(total=hs.Sum("n"), emit="close"))
    job.start(2)
    job.batch([{"k": keys[0], "ts": 100, "n": 1}, {"k": keys[1], "ts": 90_000, "n": 1}])
    job.forget()
    return job


def test_a_merge_that_makes_records_expire_says_so_and_needs_consent() -> None:
    job = apart()
    refused(job, "1 records expire and 1 records of windows close without being handed out.*--accept-late", shards=1)
    reports: list[Any] = []
    report = hs.rescale(job.location, "op", shards=1, accept_late=True, on_report=reports.append)
    assert reports == [report]
    assert report.behind_ms == {0: 89_900, 1: 0}
    assert (report.expiring, report.unseen) == (1, 1)
    assert "shard 0 is 89,900 ms behind" in " ".join(report.sentences())
    assert [row.start for row in job.rows()["windows"]] == [90_000]


# --- stores of one's own ------------------------------------------------------------------------------------------


def by_product(row: dict[str, Any], stores: Any) -> None:
    stores["by product"].put(f"product {row['n'] % 5}", row["n"])
    stores["by key"].put(row["k"], row["n"])
    stores["both"].put((row["k"], row["n"]), 1)


PROCESSED = hs.stream(key="k", timestamp="ts").process(
    by_product,
    output_schema=pa.schema([("k", pa.string())]),
    stores=[hs.key_value_store(name) for name in ("by product", "by key", "both")],
)


def test_a_store_of_other_keys_is_refused_by_name() -> None:
    ways = "--route 'by product=key,last' .*, --route 'by product=first,key' .*, or in Python routes=.'by product'"
    refused(begun(program=PROCESSED), f"store 'by product': its keys are not the operator's: .* .pass {ways}", shards=4)


def test_a_store_whose_keys_say_too_little_is_refused_by_name() -> None:
    job = begun(1, program=PROCESSED)
    refused(job, "cannot infer how store 'by product' is sharded from one shard .*--route 'by product=key'", shards=2)


def test_a_route_must_be_of_a_store_and_have_a_name_or_be_a_function() -> None:
    job = begun(program=PROCESSED)
    refused(begun(), "route: no store 'other'", shards=4, routes={"other": "key"})
    refused(job, "route of store 'both': found 'first', expected 'key'", shards=4, routes={"both": "first"})


def test_stores_of_other_keys_follow_their_routes() -> None:
    two_parts = hs.stream(key="k", timestamp="ts").process(
        lambda row, stores: stores["both"].put((row["n"] % 3, row["k"], "x"), row["n"]),
        output_schema=pa.schema([("k", pa.string())]),
        stores=[hs.key_value_store("both")],
    )
    always, job = begun(program=two_parts), begun(program=two_parts)
    refused(job, "store 'both': its keys are not the operator's", shards=3)
    refused(job, "store 'both': its keys are not the operator's", shards=3, routes={"both": "first,key"})
    report = hs.rescale(job.location, "op", shards=3, routes={"both": lambda key: key[1]})
    assert report.stores["both"].records == 20
    job.start(3)
    always.start(2)
    job.batch(rows_of(3, 30))
    always.batch(rows_of(3, 30))
    assert job.rows() == always.rows()


def test_a_store_with_enough_of_the_operators_keys_needs_no_route() -> None:
    by_key = hs.stream(key="k", timestamp="ts").process(
        lambda row, stores: stores["by key"].put(row["k"], row["n"]),
        output_schema=pa.schema([("k", pa.string())]),
        stores=[hs.key_value_store("by key")],
    )
    job = Job(in_memory(), by_key)
    job.start(2)
    job.batch(rows_of(0, 10))
    job.forget()
    refused(job, "cannot infer how store 'by key' is sharded from its 10 keys", shards=4)
    assert hs.rescale(job.location, "op", shards=4, routes={"by key": "key"}, dry_run=True).exact
    job.start(2)
    job.batch(rows_of(1, 40))
    job.forget()
    content = job.rows()
    assert hs.rescale(job.location, "op", shards=3).done
    assert job.rows() == content


def test_totals_go_on_behind_a_rescale() -> None:
    job = begun()

    def total() -> int:
        return sum(row["total_rows"] for row in hsp.metrics(job.location))

    for into in (6, 4, 2):
        before = total()
        assert before
        hs.rescale(job.location, "op", shards=into)
        assert total() == before
        job.start(into)
        job.batch(rows_of(job.number, 25))
        job.forget()
        assert total() == before + 25


def test_state_of_a_stateful_processor_moves_with_its_keys_and_timers() -> None:
    pytest.importorskip("pyspark")
    from hybridstore.spark.stateful_processor import ProcessorProgram
    from tests.tools.spark_processors import Ticking

    output = pa.schema([("k", pa.string()), ("what", pa.string()), ("n", pa.int64())])
    jobs = []
    for _ in range(2):
        program = ProcessorProgram(Ticking(), ("k",), output, "ProcessingTime", None, {})
        jobs.append(begun(program=program))
    always, job = jobs
    assert {"value:count", "entries:digits", "timers:due", "timers:key"} <= job.rows().keys()
    for into in (6, 3, 4):
        hs.rescale(job.location, "op", shards=into)
        assert job.rows() == always.rows()
        job.start(into)
        always.start(2)
        # every shard has a row, so that the timers of all fire
        rows = rows_of(job.number, 60)
        assert job.batch(rows) == always.batch(rows)
        job.forget()
        always.forget()
    assert job.rows() == always.rows()


# --- the command, and object stores -------------------------------------------------------------------------------


def test_the_command_says_what_it_does_and_does_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = begun(location=locate(tmp_path))
    place = str(tmp_path)
    content = job.rows()
    assert run_command(["rescale", place, "op", "--shards", "4", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "op: 2 shards -> 4, at version 3",
        "store 'windows': 20 records",
        "each new shard has one parent and takes over its times: results are those of a run without a rescale",
        "nothing was written (--dry-run)",
    ]
    assert run_command(["rescale", place, "op", "--shards", "4"]) == 0
    assert "start the job with shards=4; --back undoes it" in capsys.readouterr().out
    assert job.rows() == content
    assert run_command(["rescale", place, "op", "--back"]) == 0
    assert "the 2 shards from before count again, at version 3" in capsys.readouterr().out
    assert run_command(["rescale", place, "op", "--shards", "2"]) == 1
    assert "refused: op: has 2 shards already" in capsys.readouterr().err
    assert run_command(["rescale", place, "op"]) == 2
    assert run_command(["rescale", place, "op", "--shards", "0"]) == 2
    assert run_command(["rescale", place, "op", "--shards", "4", "--route", "windows"]) == 2


def test_inspection_looks_at_the_shards_that_count_and_at_all_that_they_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = begun(location=locate(tmp_path))
    hs.rescale(tmp_path, "op", shards=3)
    assert sorted(hs.inspect(tmp_path).shards) == ["op/0", "op/1", "op/2"]
    assert run_command(["inspect", "verify", str(tmp_path), "--full"]) == 0, capsys.readouterr()
    job.start(3)
    job.batch(rows_of(3))
    job.batch(rows_of(4))
    assert run_command(["inspect", "verify", str(tmp_path), "--full"]) == 0, capsys.readouterr()


def test_a_new_shard_whose_checkpoint_is_damaged_is_refused_and_never_empty(tmp_path: Path) -> None:
    job = begun(location=locate(tmp_path))
    hs.rescale(tmp_path, "op", shards=3)
    for index in tmp_path.rglob("000001/*/checkpoints/*"):
        index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(hs.HybridStoreError, match="version 2 "):
        job.rows()


def test_state_on_an_object_store_is_rescaled_there() -> None:
    pytest.importorskip("obstore")
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        bucket = server.bucket("rescaled")
        job = begun(location=locate(bucket))
        always = begun()
        assert hs.rescale(bucket, "op", shards=3).done
        job.start(3)
        always.start(2)
        assert job.batch(rows_of(3)) == always.batch(rows_of(3))
        assert job.rows() == always.rows()


def test_a_served_operator_is_followed_through_a_rescale(tmp_path: Path) -> None:
    job = begun(location=locate(str(tmp_path), None))
    view = follow(resolve(tmp_path), None, lambda: resolve(tmp_path))
    assert (view.version, len(view._places)) == (3, 2)
    hs.rescale(job.location, "op", shards=4, stopped=True)
    assert not view.refresh()
    job.start(4)
    job.batch(rows_of(3))
    assert view.refresh()
    assert (view.version, len(view._places)) == (4, 4)
    assert sorted(view["windows"]) == sorted(follow(resolve(tmp_path), None)["windows"])


def test_a_followed_operator_is_followed_through_changes_of_its_program(tmp_path: Path) -> None:
    job = begun(location=locate(str(tmp_path), None))
    view = follow(resolve(tmp_path), None, lambda: resolve(tmp_path))
    windows = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(1000, grace=500))
    counted = windows.aggregate(total=hs.Sum("n"), most=hs.Max("n"))
    for batch, (program, words) in enumerate(
        [(counted, ("add aggregate most from now",)), (TOTALS, ("drop aggregate most",))], 3
    ):
        job.change(program, *words)
        job.start(2)
        job.batch(rows_of(batch))
        assert view.refresh()
        assert view.version == batch + 1
        assert sorted(view["windows"]) == sorted(follow(resolve(tmp_path), None)["windows"])
