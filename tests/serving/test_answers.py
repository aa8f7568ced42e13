"""Answers of a served state: one version each, equal to the owner's stores; bad requests get 4xx and a sentence."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.reading.follow import Followed
from hybridstore.reading.places import resolve
from hybridstore.reading.texts import format_key
from hybridstore.serving import answers as answers_module
from hybridstore.serving import shared as shared_module
from hybridstore.serving.answers import ARROW, Answer, Answers
from hybridstore.serving.shared import Shared
from hybridstore.stores.cold_blocks import SPARING
from hybridstore.topology.null_keys import stored_key

# The tests refresh by hand: the thread never does in their time.
NEVER_MS = 10**9


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with hs.open(tmp_path / "state") as state:
        users = state.key_value("users")
        users.put_many({f"user-{number:02}": {"n": number, "x": number / 4} for number in range(20)})
        clicks = state.window("clicks", retention="1 day")
        clicks.put_many([(("shop", number % 3), number, number * 1000) for number in range(30)])
        state.session("visits", retention="1 day").put(5, b"\xff\x00", start=1000, end=4000)
        state.key_value("floats")[1.5] = float("inf")
        state.commit()
        yield state


class Served:
    def __init__(self, path: Path) -> None:
        self.shared = Shared(Followed(resolve(path)), NEVER_MS)
        self.answers = Answers(self.shared, "state/")

    def get(self, page: str, **query: Any) -> Answer:
        target = "/" + "/".join(quote(step, safe="") for step in page.split("/")) if page else "/"
        return self.answers.answer("GET", f"{target}?{urlencode(query)}" if query else target)

    def json(self, page: str, **query: Any) -> Any:
        answer = self.get(page, **query)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)


@pytest.fixture
def served(state: hs.State, tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "state")
    yield served
    served.shared.close()


@pytest.mark.parametrize("key", [b"ab", b"\xff", "hex:00", "int:5", ("a", b"x", "int:5"), 1.5, float("inf"), True, 7])
def test_a_key_that_was_shown_is_found_by_a_request(tmp_path: Path, key: Any) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("kv")[key] = "value"
        state.commit()
        served = Served(tmp_path / "state")
        shown = served.json("stores/kv/rows")["rows"]
        answer = served.answers.answer("POST", "/stores/kv/rows", json.dumps({"keys": [shown[0]["key"]]}).encode())
        assert json.loads(answer.body)["rows"] == shown
        served.shared.close()


@pytest.mark.parametrize("tables", [False, True])
def test_under_a_limit_a_get_takes_the_records_of_its_key_alone(tmp_path: Path, tables: bool) -> None:
    """Whether blocks have tables or not; beside an owner without a limit in the process, whole blocks are loaded."""
    with hs.open(tmp_path, memory_limit=10**9 if tables else None) as state:
        state.key_value("users").put_many({f"user-{number}": number for number in range(100)})
        state.window("clicks", retention="1 day").put_many(
            (f"user-{number}", ts, ts) for number in range(100) for ts in (5, 6)
        )
        state.commit()
        state.checkpoint(wait=True)

    def in_memory(shared: Shared) -> list[int]:
        with shared.reading() as view:
            return [len(view[name]) - state.cold_records for name, state in view._states[0].stores.items()]

    def get(shared: Shared, number: int) -> list[list[Any]]:
        with shared.reading() as view:
            return [[row.value for row in view.get(name, f"user-{number}")] for name in ("users", "clicks")]

    shared = Shared(Followed(resolve(tmp_path)), NEVER_MS, 10**9)
    try:
        for number in (7, 8, 7, 1000):
            assert get(shared, number) == ([[number], [5, 6]] if number < 100 else [[], []])
        assert in_memory(shared) == [2, 4]
        with hs.open(tmp_path):
            assert get(shared, 9) == [[9], [5, 6]]
            assert in_memory(shared) == [100, 200]
    finally:
        shared.close()
    assert not SPARING.on
    unlimited = Shared(Followed(resolve(tmp_path)), NEVER_MS)
    try:
        assert get(unlimited, 7) == [[7], [5, 6]]
        assert in_memory(unlimited) == [100, 200]
    finally:
        unlimited.close()


def test_a_reader_that_waits_for_a_version_wakes_the_thread(
    state: hs.State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "_SOONER", 1e15)
    shared = Shared(Followed(resolve(tmp_path / "state")), NEVER_MS)
    try:
        for number in range(2, 5):
            state.key_value("floats")[1.5] = float(number)
            assert state.commit() == number
            with shared.reading() as view:
                assert view.version == number - 1  # nobody has asked for more
            with ThreadPoolExecutor(4) as pool:
                for each in [pool.submit(value_at, shared, number) for _ in range(4)]:
                    assert each.result() == float(number)
        with ThreadPoolExecutor(2) as pool:
            late = [pool.submit(value_at, shared, 5) for _ in range(2)]  # they wait for what is committed now
            state.key_value("floats")[1.5] = 5.0
            state.commit()
            assert [each.result() for each in late] == [5.0, 5.0]
    finally:
        shared.close()
    assert not shared._thread.is_alive()


def value_at(shared: Shared, version: int) -> Any:
    with shared.reading(version, 60_000) as view:
        return view.get("floats", 1.5)[0].value


def test_pages_say_what_is_served(served: Served) -> None:
    page = served.json("")
    assert (page["location"], page["version"], list(page["stores"])) == (
        "state/",
        1,
        ["users", "clicks", "visits", "floats"],
    )
    assert page["stores"]["clicks"] == {
        "kind": "window",
        "parameters": {"retention_ms": 86_400_000, "grace_ms": 86_400_000, "retain_duplicates": False},
        "columns": ["key", "ts", "value"],
        "records": 30,
    }
    assert served.json("stores/visits")["columns"] == ["key", "start", "end", "value"]


def test_point_range_prefix_window_and_batch(served: Served) -> None:
    def keys(**query: Any) -> list[Any]:
        return [row["key"] for row in served.json("stores/users/rows", **query)["rows"]]

    assert served.json("stores/users/rows", key="user-07")["rows"] == [{"key": "user-07", "value": {"n": 7, "x": 1.75}}]
    assert keys(key="nobody") == []
    assert keys(key_from="user-03", key_to="user-05") == ["user-03", "user-04", "user-05"]
    assert keys(prefix="user-1", limit=2) == ["user-10", "user-11"]
    assert len(keys(prefix="user-1")) == 10
    assert len(keys()) == 20
    clicks = served.json("stores/clicks/rows", key='json:["shop", 1]', **{"from": 5000, "to": 13_000})
    assert clicks["rows"] == [{"key": ["shop", 1], "ts": ts, "value": ts // 1000} for ts in (7000, 10_000, 13_000)]
    assert len(served.json("stores/clicks/rows", prefix='json:["shop"]', to=9000)["rows"]) == 10
    assert served.json("stores/visits/rows", **{"from": 4000})["rows"] == [
        {"key": 5, "start": 1000, "end": 4000, "value": "hex:ff00"}
    ]
    assert served.json("stores/visits/rows", **{"from": 4001})["rows"] == []
    assert served.json("stores/floats/rows", key="float:1.5")["rows"] == [{"key": 1.5, "value": "inf"}]
    body = json.dumps({"keys": ["user-02", "nobody", "user-01"]}).encode()
    batch = json.loads(served.answers.answer("POST", "/stores/users/rows", body).body)
    assert [row["value"]["n"] for row in batch["rows"]] == [2, 1]
    body = json.dumps({"keys": [["shop", 2]]}).encode()
    batch = json.loads(served.answers.answer("POST", "/stores/clicks/rows?from=20000", body).body)
    assert [row["ts"] for row in batch["rows"]] == [20_000, 23_000, 26_000, 29_000]


def test_arrow_has_the_same_rows(served: Served) -> None:
    table = pa.ipc.open_stream(served.get("stores/users/rows", format="arrow", prefix="user-0").body).read_all()
    assert table.to_pylist() == served.json("stores/users/rows", prefix="user-0")["rows"]
    assert json.loads(table.schema.metadata[b"version"]) == 1
    answer = served.answers.answer("GET", "/stores/clicks/rows?limit=1", accept=ARROW)
    assert answer.content_type == ARROW
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.to_pylist() == [{"key": 'json:["shop", 0]', "ts": 0, "value": 0}]
    assert json.loads(table.schema.metadata[b"why"]) == "the answer has more than 1 rows"
    visits = pa.ipc.open_stream(served.get("stores/visits/rows", format="arrow").body).read_all()
    assert visits.to_pylist() == [{"key": 5, "start": 1000, "end": 4000, "value": b"\xff\x00"}]


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "sentence"),
    [
        ("GET", "/stores/nothing", b"", 404, "no store 'nothing' (known: users, clicks, visits, floats)"),
        ("GET", "/stores/users/../../etc", b"", 404, "no such page"),
        ("GET", "/etc/passwd", b"", 404, "no such page"),
        ("PUT", "/stores/users/rows", b"", 405, "found PUT, expected GET or POST"),
        ("DELETE", "/", b"", 405, "found DELETE, expected GET"),
        ("GET", "/stores/users/rows?key=int:5", b"", 400, "expected str as in the store's other keys"),
        ("GET", "/stores/users/rows?key_from=int:5", b"", 400, "found int, expected str"),
        ("GET", "/stores/users/rows?key=int:x", b"", 400, "found 'x', expected int"),
        ("GET", "/stores/users/rows?keys=a", b"", 400, "found parameter 'keys', expected some of key, key_from"),
        ("GET", "/stores/users/rows?key=a&key=b", b"", 400, "a parameter twice"),
        ("GET", "/stores/users/rows?key=a&prefix=b", b"", 400, "found other bounds of keys beside it"),
        ("GET", "/stores/users/rows?limit=0", b"", 400, "found '0', expected a whole number from 1 to 100000"),
        ("GET", "/stores/users/rows?limit=1e9", b"", 400, "found '1e9', expected a whole number"),
        ("GET", "/stores/users/rows?key=%ff", b"", 400, "query: found"),
        ("GET", "/stores/users/rows?format=xml", b"", 400, "found 'xml', expected json or arrow"),
        ("GET", "/stores/users/rows?from=soon", b"", 400, "from: found 'soon'"),
        ("POST", "/stores/users/rows", b"{", 400, "body: found no JSON"),
        ("POST", "/stores/users/rows", b'{"keys": "a"}', 400, 'expected {"keys": '),
        ("POST", "/stores/users/rows", b'{"keys": [{}]}', 400, "keys: "),
        ("POST", "/stores/users/rows", b"[" * 100_000, 400, "body: found no JSON"),
        ("POST", "/stores/users/rows", json.dumps({"keys": ["a"] * 10_001}).encode(), 413, "at most 10000 a request"),
        ("POST", "/stores/users", b"", 405, "found POST, expected GET"),
        ("GET", "/stores/users/rows?min_version=9&wait_ms=0", b"", 503, "found version 1 after 0 ms, expected 9"),
    ],
)
def test_bad_requests_get_a_sentence(
    served: Served, method: str, target: str, body: bytes, status: int, sentence: str
) -> None:
    answer = served.answers.answer(method, target, body)
    assert answer.status == status
    assert sentence in json.loads(answer.body)["error"]


def test_answers_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "MOST_BYTES", 200)
    answer = served.json("stores/users/rows")
    assert (answer["complete"], answer["why"]) == (False, "the answer is longer than 200 bytes (narrow the bounds)")
    assert 0 < len(answer["rows"]) < 20
    monkeypatch.undo()
    monkeypatch.setattr(answers_module, "MOST_SECONDS", -1.0)
    assert served.json("stores/users/rows")["why"].startswith("the answer took longer than")


def test_a_damaged_block_is_a_sentence(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state", checkpoints=hs.CheckpointPolicy(every_commits=1)) as state:
        state.key_value("users").put_many({f"user-{number}": "x" * 100 for number in range(2000)})
        state.commit()
        state.checkpoint(wait=True)
    served = Served(tmp_path / "state")
    for pack in (tmp_path / "state").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 0xFF
        pack.write_bytes(data)
    answers = [served.get("stores/users/rows", limit=100_000), served.get("stores/users/rows", key="user-1000")]
    assert 500 in [answer.status for answer in answers]
    for answer in answers:
        assert answer.status in (200, 500)
        if answer.status == 500:
            assert "checksum" in json.loads(answer.body)["error"]
    served.shared.close()


def test_newer_versions_come_by_a_refresh_and_by_min_version(state: hs.State, served: Served) -> None:
    state.key_value("users")["user-00"] = "new"
    version = state.commit()
    assert served.json("stores/users/rows", key="user-00")["version"] == 1
    served.shared.refresh()
    answer = served.json("stores/users/rows", key="user-00", min_version=version)
    assert (answer["version"], answer["rows"][0]["value"]) == (version, "new")


def test_a_state_that_cannot_be_refreshed_is_served_as_it_was(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(self: Followed) -> bool:
        raise OSError("the disk is away")

    monkeypatch.setattr(Followed, "refresh", unreachable)
    served.shared.refresh()
    served.shared.refresh()
    assert served.json("")["failure"] == "the disk is away"
    assert served.json("stores/users/rows", key="user-01")["version"] == 1
    assert [record.message for record in caplog.records] == [
        "the state cannot be refreshed, and version 1 is served: the disk is away"
    ]
    monkeypatch.undo()
    served.shared.refresh()
    assert "failure" not in served.json("")


def test_answers_equal_the_owner_through_checkpoints_and_prunes(tmp_path: Path, seed: int) -> None:
    r = random.Random(seed)
    often = hs.CheckpointPolicy(every_commits=3, keep=1)
    with hs.open(tmp_path / "state", checkpoints=often) as state:
        counts, clicks = state.key_value("counts"), state.window("clicks", retention=100)
        state.commit()
        served = Served(tmp_path / "state")
        for now in range(60):
            for _ in range(r.randint(0, 5)):
                key = r.choice([0, 1, 2, 3])
                counts.put(key, r.random())
                clicks.put(key, r.randint(0, 9), now * 10)
            if r.random() < 0.2:
                counts.delete(r.choice([0, 1, 2, 3]))
            state.commit()
            if r.random() < 0.5:
                continue
            served.shared.refresh()
            first, last = sorted((r.randint(0, 3), r.randint(0, 3)))
            rows = served.json("stores/counts/rows", key_from=f"int:{first}", key_to=f"int:{last}")["rows"]
            assert rows == [{"key": key, "value": value} for key, value in counts.scan(first, last)]
            since = r.randint(0, 600)
            rows = served.json("stores/clicks/rows", key=format_key(first), **{"from": since})["rows"]
            assert [(row["ts"], row["value"]) for row in rows] == list(clicks.fetch(first, since))
        served.shared.close()


@pytest.mark.parametrize(
    ("method", "target", "body", "sentence"),
    [
        ("GET", f"/stores/users/rows?key=int:{'9' * 30}", b"", "found an int beyond 64 bits"),
        ("GET", f"/stores/users/rows?key_from=int:{'9' * 30}", b"", "found an int beyond 64 bits"),
        ("GET", "/stores/floats/rows?key=float:nan", b"", "found a float without order"),
        ("GET", "/stores/floats/rows?key_from=float:nan", b"", "found a float without order"),
        ("GET", "/stores/users/rows?key=json:null", b"", "found NoneType, expected str"),
        ("GET", "/stores/users/rows?key_from=json:null", b"", "key_from: found null"),
        ("GET", "/stores/users/rows?prefix=json:null", b"", "prefix: found null"),
        ("GET", f"/stores/users/rows?key=json:{'[' * 50_000}", b"", "key: "),
        ("GET", "//[", b"", "expected a path"),
        ("POST", "/stores/users/rows", b'{"keys": [1000000000000000000000000000000]}', "found an int beyond 64 bits"),
    ],
)
def test_what_cannot_be_a_key_or_a_path_gets_a_sentence(
    served: Served, method: str, target: str, body: bytes, sentence: str
) -> None:
    answer = served.answers.answer(method, target, body)
    assert (answer.status, sentence in json.loads(answer.body)["error"]) == (400, True), answer.body


def test_keys_of_groups_are_answered_whatever_their_type(tmp_path: Path) -> None:
    groups: list[Any] = [None, "ann", 5, ("a", None), ("a", 5)]
    with hs.open(tmp_path / "state") as state:
        state.key_value("groups").put_many({stored_key(group): str(group) for group in groups})
        state.commit()
    served = Served(tmp_path / "state")
    for key, group in zip(["json:null", "ann", "int:5", 'json:["a", null]', 'json:["a", 5]'], groups, strict=True):
        assert [row["value"] for row in served.json("stores/groups/rows", key=key)["rows"]] == [str(group)]
    assert served.get("stores/groups/rows", key="int:6").status == 400
    served.shared.close()


def test_arrow_and_wide_characters_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("texts").put_many({key: "\u00e9" * 1000 for key in range(20)})
        state.key_value("wide").put_many({key: {f"field {key}": key} for key in range(100)})
        state.commit()
    served = Served(tmp_path / "state")
    monkeypatch.setattr(answers_module, "MOST_BYTES", 20_000)
    for store in ("texts", "wide"):
        for form in ("json", "arrow"):
            answer = served.get(f"stores/{store}/rows", format=form)
            assert len(answer.body) < 21_000
            if (store, form) != ("wide", "json"):
                assert b"the answer is longer than 20000 bytes" in answer.body
    body = json.dumps({"keys": [1] * 1000}).encode()
    answer = served.answers.answer("POST", "/stores/texts/rows?format=arrow", body)
    assert 10_000 < len(answer.body) < 21_000
    served.shared.close()


def test_keys_without_records_are_bounded_in_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "MOST_SECONDS", -1.0)
    body = json.dumps({"keys": ["nobody"] * 100}).encode()
    answer = json.loads(served.answers.answer("POST", "/stores/users/rows", body).body)
    assert (answer["complete"], answer["why"][:22]) == (False, "the answer took longer")


def test_an_answer_says_by_how_much_it_may_be_behind(
    state: hs.State, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(shared_module, "time", SimpleNamespace(monotonic=lambda: now))

    def unreachable(self: Followed) -> bool:
        raise OSError("the disk is away")

    def behind() -> list[int]:
        return [served.json(page)["behind_ms"] for page in ("", "stores/users", "stores/users/rows")]

    served.shared.refresh()
    assert behind() == [0, 0, 0]
    state.key_value("users")["user-00"] = "new"
    state.commit()
    with monkeypatch.context() as patch:
        patch.setattr(Followed, "refresh", unreachable)
        for seconds in (5, 30):
            now += seconds
            served.shared.refresh()
    assert behind() == [35_000] * 3
    served.shared.refresh()
    assert behind() == [0, 0, 0]
    assert served.json("")["version"] == state.version


def test_a_state_that_is_away_is_served_as_it_was(served: Served, tmp_path: Path) -> None:
    (tmp_path / "state").rename(tmp_path / "away")
    for _ in range(2):
        served.shared.refresh()
        assert "found no version" in served.json("")["failure"]
        answer = served.json("stores/users/rows", key="user-07")
        assert (answer["version"], len(answer["rows"])) == (1, 1)
    (tmp_path / "away").rename(tmp_path / "state")
    served.shared.refresh()
    assert "failure" not in served.json("")


def test_a_closed_state_is_not_read(state: hs.State, tmp_path: Path) -> None:
    served = Served(tmp_path / "state")
    served.shared.close()
    answer = served.get("")
    assert (answer.status, json.loads(answer.body)) == (503, {"error": "the server was closed"})


@given(st.text("ab=&%+;.:-_,/é 1\u017f", max_size=12))
def test_plain_queries_mean_what_the_parser_of_all_queries_says(text: str) -> None:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict")
    except ValueError:
        pairs = [("refused", ""), ("refused", "")]
    if len(dict(pairs)) < len(pairs):
        with pytest.raises(answers_module.RefusedError):
            answers_module._query(text)
    else:
        assert answers_module._query(text) == dict(pairs)


@given(st.text("/a?#&=%@:;.[]é\t", max_size=12))
def test_plain_targets_mean_what_the_parser_of_all_targets_says(text: str) -> None:
    try:
        expected = urlsplit("/" + text)
    except ValueError:
        with pytest.raises(answers_module.RefusedError):
            answers_module._parts("/" + text)
    else:
        assert answers_module._parts("/" + text) == (expected.path, expected.query)
