"""`hybridstore erase` of a stopped Spark query: no byte of a key is in any file of its operators, the query goes on as
if the key had never come, and a kill leaves no half.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.errors import HybridStoreError
from hybridstore.cli import run
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.rescaling.api import remove_old_shards
from hybridstore.spark.errors import SparkSetupError
from hybridstore.spark.location import locate
from hybridstore.topology.null_keys import stored_key
from recovery.errors import RestoreError
from recovery.layout import launch_name
from tests.tools.watched_storage import Killed, Killer

pytest.importorskip("pyarrow")

import pyarrow as pa

from tests.tools.rescaled_jobs import Job, copied, in_memory

KEY = "k-ann"
KEYS = [KEY, "k-anna", *(f"k-{number}" for number in range(12))]


def remind(row: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
    seen = stores["seen"].get(row["k"]) or 0
    stores["seen"][row["k"]] = seen + row["n"]
    stores.timers.set(row["ts"] + 150)
    return [{"k": row["k"], "n": seen + row["n"]}]


def on_timer(timer: hs.Timer, stores: Any) -> list[dict[str, Any]]:
    return [{"k": timer.key, "n": -1}]


def program(name: str) -> Any:
    keyed = hs.stream(key="k", timestamp="ts")
    if name == "process":
        schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
        return keyed.process(remind, schema, [hs.key_value_store("seen")], on_timer=on_timer)
    if name == "null keys":
        keyed = hs.stream(key="k", timestamp="ts", null_keys="group")
    windowed = keyed.windowed_by(hs.TumblingWindows(400, grace=100)).aggregate(total=hs.Sum("n"))
    return windowed.hold("1 second") if name == "held" else windowed


PROGRAMS = ["windows", "held", "process", "null keys"]


def rows_of(batch: int, seed: int, without: str = "") -> list[dict[str, Any]]:
    """The rows of a batch; the time moves alike with and without a key."""
    draw = random.Random(seed * 100 + batch)
    rows = [{"k": key, "ts": batch * 100, "n": draw.randrange(9)} for key in KEYS if draw.random() < 0.7]
    return [row for row in rows if row["k"] != without] + [{"k": "k-anna", "ts": batch * 100, "n": 1}]


def begun(job: Job, batches: int, seed: int, without: str = "", shards: int = 1) -> Job:
    job.start(shards)
    for batch in range(batches):
        job.batch(rows_of(batch, seed, without))
    job.forget()
    return job


def going_on(job: Job, first: int, seed: int, shards: int = 1) -> list[Any]:
    job.start(shards)
    results = [job.batch(rows_of(batch, seed, KEY)) for batch in range(first, first + 9)]
    job.forget()
    return [results, job.rows()]


def has(data: bytes) -> bool:
    """Whether bytes have the key. The bytes of k-anna begin with those of the key, and it is another one."""
    return KEY.encode() in data.replace(b"k-anna", b"")


def with_key_in(root: Path) -> list[Path]:
    return [each for each in (root / "hybridstore").rglob("*") if each.is_file() and has(each.read_bytes())]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_query_goes_on_as_if_the_key_had_never_come(tmp_path: Path, name: str, seed: int) -> None:
    batches = 2 + seed * 3
    job = begun(Job(tmp_path / "q", program(name)), batches, seed)
    other = begun(Job(tmp_path / "o", program(name)), batches, seed, KEY)
    assert with_key_in(tmp_path / "q")
    assert hs.prove(tmp_path / "q", KEY).traces
    done = hs.erase(tmp_path / "q", KEY)
    assert done.records > 0
    assert not with_key_in(tmp_path / "q")
    assert all("the bytes of a key" in trace for trace in hs.prove(tmp_path / "q", KEY).traces)
    assert job.rows() == other.rows()
    assert run(["inspect", "verify", str(tmp_path / "q"), "--full"]) == 0
    (entry,) = open_view(resolve(tmp_path / "q")[0]).settings["erasures"]
    assert (entry["keys"], entry["prefix"]) == (1, False)
    assert going_on(job, batches, seed) == going_on(other, batches, seed)
    assert run(["inspect", "verify", str(tmp_path / "q"), "--full"]) == 0


def processor_or_groups(name: str) -> Any:
    """A class with values, maps and timers, or a function of groups whose state times out."""
    from pyspark.sql import types as t

    from hybridstore.spark.frames import FrameSettings
    from hybridstore.spark.group_state import GroupProgram
    from hybridstore.spark.stateful_processor import ProcessorProgram
    from tests.tools.spark_processors import Ticking

    if name == "processor":
        output = pa.schema([("k", pa.string()), ("what", pa.string()), ("n", pa.int64())])
        return ProcessorProgram(Ticking(), ("k",), output, "ProcessingTime", None, {})

    def function(key: Any, frames: Any, state: Any) -> Any:
        import pandas as pd

        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "n": [-1]})
            return
        count = (state.getOption or (0,))[0] + sum(map(len, frames))
        state.update((count,))
        state.setTimeoutDuration(2000)
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    answer = t.StructType().add("k", t.StringType()).add("n", t.LongType())
    rows = t.StructType().add("k", t.StringType()).add("ts", t.LongType()).add("n", t.LongType())
    kept = t.StructType().add("n", t.LongType())
    timeout = "ProcessingTimeTimeout"
    groups = GroupProgram(function, ("k",), answer, kept, timeout, None, rows, FrameSettings())
    output = pa.schema([("k", pa.string()), ("n", pa.int64())])
    groups.output_schema = lambda schema: output  # type: ignore[method-assign]
    return groups


@pytest.mark.parametrize("name", ["processor", "groups"])
def test_state_and_timers_of_classes_and_of_functions_of_groups(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyspark")
    job = begun(Job(tmp_path / "q", processor_or_groups(name)), 5, 1, shards=2)
    other = begun(Job(tmp_path / "o", processor_or_groups(name)), 5, 1, KEY, shards=2)
    assert {"timers:due", "timers:key"} <= job.rows().keys()
    assert with_key_in(tmp_path / "q")
    hs.erase(tmp_path / "q", KEY)
    assert not with_key_in(tmp_path / "q")
    assert job.rows() == other.rows()
    assert going_on(job, 5, 1, 2) == going_on(other, 5, 1, 2)


def test_no_key_is_erased_by_the_text_of_another_one(tmp_path: Path) -> None:
    """Where null is a key, stores have texts: null for the null key, "null" for a key of that name."""
    job = Job(tmp_path, program("null keys"))
    names = ["null", "nul", "a", '"a"', "5", None]
    job.start(2)
    for batch in range(3):
        job.batch([{"k": key, "ts": batch * 100, "n": 1} for key in names])
    job.forget()
    for given, prefix, erased in (
        ("null", False, {"null"}),
        ('"a"', False, {'"a"'}),
        ("n", True, {"nul"}),
        (5, False, set[Any]()),
        (None, False, {None}),
    ):
        names = [name for name in names if name not in erased]
        hs.erase(tmp_path, given, prefix=prefix)
        assert {row.key for row in job.rows()["windows"]} == set(map(stored_key, names))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (date(2026, 1, 31), "date:2026-01-31"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "time:2026-01-31T13:00:00+01:00"),
        (datetime(2026, 1, 31, 12), "time:2026-01-31T12:00"),
        (Decimal("1.10"), "decimal:1.10"),
    ],
)
def test_keys_that_are_dates_times_and_decimals(
    tmp_path: Path, key: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are given as in Python, or as the command line types them; get, the server and erase take them."""
    keyed = hs.stream(key="k", timestamp="ts", null_keys="group")
    for folder in ("a", "b"):
        job = Job(tmp_path / folder, keyed.windowed_by(hs.TumblingWindows(400)).aggregate(n_rows=hs.Count()))
        job.schema = pa.schema([("k", pa.scalar(key).type), ("ts", pa.int64())])
        job.start(2)
        job.batch([{"k": key, "ts": 1}, {"k": None, "ts": 2}])
        job.forget()
    path = tmp_path / "a"
    assert run(["inspect", "get", str(path), "windows", text, "-o", "jsonl"]) == 0
    shown = json.loads(capsys.readouterr().out)
    with hs.serve(path) as server, urlopen(f"{server.url}/stores/windows/rows?{urlencode({'key': text})}") as answer:
        (row,) = json.load(answer)["rows"]
    assert row["key"] == shown["key"] == stored_key(key)
    assert hs.erase(path, key).records > 0
    assert run(["erase", str(tmp_path / "b"), text, "--prove"]) == 0
    for folder in (path, tmp_path / "b"):
        assert run(["inspect", "get", str(folder), "windows", text]) == 2  # as for another type of keys
        with hs.inspect(folder).follow() as view:
            assert [row.key for row in view["windows"]] == ["null"]
        files = [each for each in (folder / "hybridstore").rglob("*") if each.is_file()]
        assert not [each for each in files if stored_key(key).encode() in each.read_bytes()]


def test_whenever_it_is_killed_the_key_is_erased_everywhere_or_the_query_says_so() -> None:
    origin = begun(Job(in_memory(), program("windows")), 5, 1, shards=3)
    with_key = origin.rows()
    without = begun(Job(in_memory(), program("windows")), 5, 1, KEY, shards=3).rows()
    assert with_key != without
    whole = halves = 0
    for at in itertools.count(1):
        stored = copied(origin.location).storage
        killed = False
        try:
            # before the first write; the number of all varies: two checkpoints of one millisecond may have one name
            hs.erase(in_memory(Killer(at, behind=at % 2 == 0), stored), KEY)
        except Killed:
            killed = True
        job = Job(in_memory(storage=stored), program("windows"))
        job.number = 5
        if not killed:
            break
        assert job.rows() in (with_key, without)
        if any(name.endswith("/erasing") for name in stored.objects):
            with pytest.raises(SparkSetupError, match="an erase has begun here and has not ended"):
                job.start(3)
            with pytest.raises(RestoreError, match="an erase of other keys has begun"):
                hs.erase(job.location, "k-1")
            halves += 1
        else:
            assert (job.rows() == with_key) == any(map(has, stored.objects.values()))
            whole += 1
        hs.erase(job.location, KEY)
        assert job.rows() == without
        assert not any(map(has, stored.objects.values()))
    assert job.rows() == without
    assert halves > 8
    assert whole
    assert going_on(job, 5, 1, 3)


def test_a_batch_that_was_begun_is_done_again_from_the_source(tmp_path: Path) -> None:
    job = begun(Job(tmp_path, program("windows")), 4, 2, shards=2)
    job.start(2)
    job.batch(rows_of(4, 2))
    job.query.delete(["commits/4"])  # killed before the commit
    hs.erase(tmp_path, KEY)
    assert not with_key_in(tmp_path)
    job.number = 4
    job.query.delete(["offsets/4"])  # the simulation writes it again
    job.start(2)
    results = job.batch(rows_of(4, 2))
    assert [row for row in results if row["k"] == KEY]  # what the source gives again is the source's
    assert with_key_in(tmp_path)


def test_a_query_without_a_committed_batch(tmp_path: Path) -> None:
    job = Job(tmp_path, program("windows"))
    job.start(2)
    job.batch(rows_of(0, 1))
    job.query.delete(["commits/0", "offsets/0"])
    assert hs.erase(tmp_path, KEY).removed > 0
    assert not with_key_in(tmp_path)
    job.number = 0
    assert begun(job, 3, 1, KEY, shards=2).rows()


def test_erased_twice_in_one_of_two_operators_of_a_place_of_its_own(tmp_path: Path) -> None:
    location = locate(tmp_path / "query", tmp_path / "state")
    job = begun(Job(location, program("process")), 3, 1, shards=2)
    for _ in range(2):
        erased = ["erase", str(tmp_path / "query"), KEY, "--state", str(tmp_path / "state")]
        assert run([*erased, "--operator", "op"]) == 0
        assert run([*erased, "--operator", "other"]) == 1
        assert run(["inspect", "verify", str(tmp_path / "state"), "--full"]) == 0
    assert len(open_view(resolve(tmp_path / "state")[1]).settings["erasures"]) == 2
    assert going_on(job, 3, 1, 2)
    (tmp_path / "plain").mkdir()
    assert run(["erase", str(tmp_path / "plain"), KEY, "--operator", "op"]) == 1


def test_a_prefix_and_the_proof_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = begun(Job(tmp_path, program("process")), 7, 1, shards=3)
    assert run(["erase", str(tmp_path), "k-an", "--prefix", "--prove"]) == 0
    out = capsys.readouterr().out
    assert "erased in 3 places" in out
    assert "the keys are in none" in out
    assert {row.key for row in job.rows()["seen"]} == {*KEYS[2:]}


def test_what_cannot_be_erased_is_refused_and_nothing_is_written() -> None:
    job = begun(Job(in_memory(), program("windows")), 2, 1, shards=2)
    storage = job.location.operator("op")
    before = dict(job.location.storage.objects)  # type: ignore[attr-defined]
    with pytest.raises(RestoreError, match=r"found no operator 'other' .known: op"):
        hs.erase(job.location, KEY, operator="other")
    driver = {"wall_ms": 0, "host": socket.gethostname(), "pid": os.getppid()}
    storage.create(launch_name(10**6), pack(driver))
    with pytest.raises(RestoreError, match=r"is alive .*--stopped"):
        hs.erase(job.location, KEY)
    storage.delete([launch_name(10**6)])
    folder = storage.below("000000/000001")
    lost = folder.list("log/")[-1:]
    content = folder.get(lost[0])
    folder.delete(lost)
    with pytest.raises(HybridStoreError, match="batch 1 did not reach shard 1"):
        hs.erase(job.location, KEY)
    folder.create(lost[0], content)
    assert job.location.storage.objects == before  # type: ignore[attr-defined]
    hs.rescale(job.location, "op", shards=4)
    with pytest.raises(RestoreError, match="--remove-old"):
        hs.erase(job.location, KEY)
    job.start(4)
    job.batch(rows_of(2, 1))
    job.forget()
    remove_old_shards(job.location, "op")
    hs.erase(job.location, KEY)
    assert not any(map(has, job.location.storage.objects.values()))  # type: ignore[attr-defined]
