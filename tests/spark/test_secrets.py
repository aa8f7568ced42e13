"""No credential is shown: not in a plan, a log line, an error, a repr, a metric or an object. A secret text is given
as an option of the object store, and looked for everywhere.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("obstore")

import hybridstore as hs
from changelog import cloud_storage
from changelog.cloud_storage import CloudStorage
from hybridstore.reading.places import resolve
from hybridstore.spark.location import locate
from hybridstore.spark.source import StateReader, StateSource
from hybridstore.spark.ticks import TickReader
from tests.spark.test_source import make_state
from tests.tools.hooks import with_clock
from tests.tools.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "SECRET-OF-THE-TEST"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        assert running.options["secret_access_key"] == SECRET
        yield running


def plans(df: DataFrame) -> str:
    shown = StringIO()
    with redirect_stdout(shown):
        df.explain(True)
        df.explain("formatted")
    execution = df._jdf.queryExecution()
    return shown.getvalue() + execution.toString() + execution.logical().treeString() + repr(df)


@pytest.mark.spark
@pytest.mark.slow
def test_no_plan_of_spark_shows_a_secret(server: S3Server, spark: SparkSession) -> None:
    clicks = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    counts = (
        hs.stream(key="value", timestamp="timestamp")
        .windowed_by(hs.TumblingWindows("1 minute"))
        .aggregate(n=hs.Count())
    )
    url = server.url("plans")
    applied = counts.apply(clicks, "op", location=server.bucket("plans"), shards=2, time="watermark")
    shown = plans(applied)
    assert "hybridstore-ticks" in shown or "MapInArrow" in shown
    assert SECRET not in shown
    assert SECRET.encode() not in b"".join(
        storage.get(name) for storage in [CloudStorage(url, server.options)] for name in storage.list()
    )


@pytest.mark.spark
@pytest.mark.slow
def test_sparks_data_source_reads_a_bucket_with_options(server: S3Server, spark: SparkSession, tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    bucket = CloudStorage(server.url("source"), server.options)
    for file in (tmp_path / "state").rglob("*"):
        if file.is_file():
            bucket.create(file.relative_to(tmp_path / "state").as_posix(), file.read_bytes())
    options = {f"storage.{name}": value for name, value in server.options.items()}
    read = spark.read.format("hybridstore").options(**options).option("store", "counts").load(bucket.url)
    assert sorted((row.key, row.value) for row in read.collect()) == sorted(
        (f"k{number}", str(4 - number // 5)) for number in range(20)
    )
    shown = plans(read)
    assert SECRET not in shown
    missing = spark.read.format("hybridstore").options(**options).load(server.url("nothing"))
    with pytest.raises(Exception, match=r".") as caught:
        missing.collect()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_nothing_that_is_shown_or_written_has_a_secret(
    server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with_clock(monkeypatch, cloud_storage, lambda _: None)
    url, options = server.url("plain"), server.options
    here = server.bucket("plain", tmp_path / "cache")
    with hs.open(here) as state:
        state.key_value("names").put("alice", 1)
        server.faults.extend(["500", "503", "reset", "lost"])
        state.commit()
        state.checkpoint(wait=True)
        shown = [repr(state), str(state.metrics()), str(state.restore_report), repr(state.restore_report)]
    location = locate(here)
    bucket = CloudStorage(url, options)
    (place,) = resolve(here)
    shown += map(
        repr, (location, location.states(), bucket, bucket.below("x"), place, hs.inspect(here), here, here / "x")
    )
    shown += map(repr, (TickReader(location, 1), StateReader.__new__(StateReader), StateSource))
    for call in (
        lambda: bucket.get("nothing"),
        lambda: CloudStorage(server.url().replace("bucket", "other"), options).create("x", b""),
        lambda: CloudStorage(url, {**options, "misspelt_option": SECRET}).list(),
        lambda: hs.open(server.bucket("none", tmp_path / "cache"), at=1),
        lambda: hs.open(hs.Bucket(url, misspelt_option=SECRET)),
        lambda: hs.Bucket(str(tmp_path / "x"), **options),
        lambda: hs.Bucket(url, token=[SECRET], **options),  # type: ignore[arg-type]
        lambda: hs.Bucket(f"{url}?secret={SECRET}"),
    ):
        with pytest.raises(Exception, match=r".") as caught:
            call()
        shown.append("".join(traceback.format_exception(caught.value)))
    shown.append(caplog.text)
    assert [text for text in shown if SECRET in text] == []
    assert SECRET.encode() in pickle.dumps(location), "the test would see it"
    written = [bucket.get(name) for name in bucket.list()]
    written += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert [data for data in written if SECRET.encode() in data] == []


def test_without_http_in_its_endpoint_a_store_is_asked_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore.store

    asked: list[dict[str, object]] = []

    def from_url(url: str, **given: object) -> object:
        asked.append(dict(given["client_options"]))  # type: ignore[call-overload]
        return obstore.store.MemoryStore()

    monkeypatch.setattr(obstore.store, "from_url", from_url)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for endpoint in (None, "https://host", "http://host"):
        CloudStorage("s3://bucket/x", {} if endpoint is None else {"endpoint": endpoint}).list()
    assert ["allow_http" in options for options in asked] == [False, False, True]
