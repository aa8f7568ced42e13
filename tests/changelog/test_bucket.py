"""A bucket is a text with settings: every hand-over keeps them, and nothing that is shown has their values."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.bucket import Bucket, same_settings, scrubbed, settings_of
from changelog.errors import HybridStoreError

SECRET = "SECRET-OF-THE-TEST"
JOBS = Bucket("s3://jobs/state", endpoint="http://host:9000", secret_access_key=SECRET, allow_http=True, cache="/fast")
NAMES = st.text("abc-_0", min_size=1, max_size=5)


def facts(bucket: Any) -> tuple[Any, ...]:
    assert type(bucket) is Bucket
    return str(bucket), dict(bucket.settings), bucket.cache, bucket.cache_bytes


@pytest.mark.parametrize(
    "hand_over",
    [
        os.fspath,
        copy.copy,
        copy.deepcopy,
        *(lambda it, protocol=protocol: pickle.loads(pickle.dumps(it, protocol)) for protocol in range(6)),
    ],
)
def test_a_hand_over_keeps_the_settings(hand_over: Any) -> None:
    assert facts(hand_over(JOBS)) == facts(JOBS)


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, min_size=1, max_size=3), st.integers(0, 1 << 40))
def test_a_folder_below_has_the_settings_of_the_bucket(above: list[str], below: list[str], size: int) -> None:
    bucket = Bucket("/".join(("s3://b", *above)), cache=Path("c"), cache_bytes=size, region="x")
    inner = bucket / "/".join(below)
    assert facts(inner) == ("/".join(("s3://b", *above, *below)), {"region": "x"}, "c", size)
    assert facts(same_settings(inner, str(bucket))) == facts(bucket)


def test_a_bucket_is_its_url() -> None:
    assert Bucket("gs://b/a//c/", cache_bytes=0) == "gs://b/a/c"
    assert f"{JOBS}" == str(JOBS) == "s3://jobs/state"
    assert type(str(JOBS)) is str
    assert {JOBS: 1}["s3://jobs/state"] == 1
    assert (settings_of("s3://jobs/state"), settings_of(Path("/x"))) == ({}, {})


def test_nothing_that_is_shown_or_written_has_a_value() -> None:
    shown = [repr(JOBS), str(JOBS), f"{JOBS!r} {JOBS}", repr([JOBS]), json.dumps([JOBS]), repr(JOBS / "x")]
    packed: bytes = msgpack.packb([JOBS])
    assert [text for text in shown if SECRET in text or "9000" in text] == []
    assert SECRET.encode() not in packed
    assert repr(JOBS) == "Bucket('s3://jobs/state')"
    assert SECRET.encode() in pickle.dumps(JOBS), "the test would see it"


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"location": Path("/x")}, TypeError, "location: found PosixPath, expected the URL of a bucket as a text"),
        (
            {"location": "/x"},
            HybridStoreError,
            "/x: found no URL of a bucket, expected one of s3://",
        ),
        ({"location": f"s3://b/x?key={SECRET}"}, HybridStoreError, "found a query, a fragment or a password"),
        ({"location": "s3:///x"}, HybridStoreError, "found no bucket"),
        ({"cache": 7}, TypeError, "cache: found int, expected the path of a folder, or None"),
        ({"cache_bytes": "1 GB"}, TypeError, "cache_bytes: found str, expected a whole number of bytes, or None"),
        ({"cache_bytes": True}, TypeError, "cache_bytes: found bool, expected a whole number of bytes, or None"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes: found -1, expected a whole number of bytes, or None"),
        ({"token": [SECRET]}, HybridStoreError, "Bucket: found setting 'token' with a value of type list"),
        ({"timeout": "3"}, HybridStoreError, "Bucket: found setting 'timeout', which hybridstore sets itself"),
        ({"allow_http": SECRET}, HybridStoreError, "Bucket: setting 'allow_http': expected 'true' or 'false'"),
    ],
)
def test_what_cannot_be_a_bucket_gets_one_sentence(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = {"location": "s3://b/x", "secret_access_key": SECRET} | given
    with pytest.raises(kind, match=message.replace("?", r"\?")) as caught:
        Bucket(given.pop("location"), **given)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_shows_where_it_comes_from_and_no_secret() -> None:
    text = f"PUT http://host:9000/jobs/a?signed={SECRET}: {SECRET} is refused, true"
    assert scrubbed(text, JOBS.settings.values()) == "PUT http://host:9000/jobs/a?... ... is refused, true"
