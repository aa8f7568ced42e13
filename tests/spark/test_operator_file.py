"""The chain of an operator's descriptions, without Spark."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.storage import LocalStorage
from hybridstore.spark.operator_file import (
    agree_on_description,
    append_operator,
    check_operator,
    in_force,
    read_chain,
)
from hybridstore.state.changes import Difference, consents, judge
from recovery.layout import operator_name
from tests.tools.faults import Linkless
from tests.tools.memory_storage import MemoryStorage


class Program:
    """A program that may be another one with consent."""

    def changes(self, stored: Any, allow: Collection[str]) -> list[Difference]:
        return [Difference(f"kind: {stored['kind']} before", "consent", "something is lost", "another kind")]


def asked(kind: str = "a", shards: int = 2, key: str = "int", time: str = "stream") -> dict[str, Any]:
    return {"shards": shards, "key": [["user", key]], "time": time, "program": {"kind": kind}, "query_id": "q"}


def settle(storage: MemoryStorage, batch: int, kind: str, *allow: str) -> dict[str, Any]:
    return agree_on_description(storage, asked(kind), batch, Program(), allow)


def test_the_first_batch_creates_the_first_description_and_later_ones_find_it() -> None:
    storage = MemoryStorage()
    first = agree_on_description(storage, asked(), 0)
    assert (first["number"], first["from"], first["changes"], first["generation"]) == (1, 1, [], 0)
    assert agree_on_description(storage, asked(), 7) == first
    assert storage.list("operator/") == [operator_name(1)]


def test_a_change_needs_its_consent_and_is_one_description_more() -> None:
    storage = MemoryStorage()
    settle(storage, 0, "a")
    with pytest.raises(hs.ProgramMismatchError, match=r"kind: a before .*to do it: allow='another kind'"):
        settle(storage, 5, "b")
    second = settle(storage, 5, "b", "another kind")
    assert (second["number"], second["from"], second["consents"]) == (2, 6, ["another kind"])
    assert second["changes"] == ["kind: a before"]
    # Every other task of that batch finds it, so does a restart that still says the words.
    assert settle(storage, 5, "b", "another kind") == second == settle(storage, 9, "b", "another kind")
    assert [entry["number"] for entry in read_chain(storage)] == [1, 2]


def test_a_query_that_is_turned_back_goes_on_from_the_program_of_that_version() -> None:
    storage = MemoryStorage()
    settle(storage, 0, "a")
    settle(storage, 5, "b", "another kind")
    # Batch 3 loads version 3, which program "a" wrote: going on with "a" changes nothing, but has to be said again.
    assert check_operator(storage, asked("a"), 3, Program()) == []
    third = settle(storage, 3, "a")
    assert (third["number"], third["from"], third["changes"]) == (3, 4, [])
    chain = read_chain(storage)
    assert [in_force(chain, version)["number"] for version in (0, 1, 3, 4, 6, 90)] == [1, 1, 1, 3, 3, 3]


def test_the_description_in_force_by_version() -> None:
    storage = MemoryStorage()
    settle(storage, 0, "a")
    settle(storage, 5, "b", "another kind")
    chain = read_chain(storage)
    assert [in_force(chain, version)["number"] for version in (0, 1, 5, 6, 7)] == [1, 1, 1, 2, 2]


def test_of_two_who_append_the_first_counts() -> None:
    storage = MemoryStorage()
    settle(storage, 0, "a")
    chain = read_chain(storage)
    assert append_operator(storage, chain, 4, {**asked(shards=8), "generation": 1}, [])
    assert not append_operator(storage, chain, 4, asked("c"), [])
    newest = read_chain(storage)[-1]
    assert (newest["number"], newest["generation"], newest["shards"], newest["program"]) == (2, 1, 8, {"kind": "a"})
    # Whoever goes on with that number of shards stays in its generation.
    later = agree_on_description(storage, asked("b", 8), 6, Program(), ["another kind"])
    assert (later["number"], later["generation"]) == (3, 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shards": 4}, "shards: the state has 2, asked for 4"),
        ({"time": "watermark"}, "time: the state has 'stream', asked for 'watermark'"),
        ({"key": "string"}, "key: the state has .*int.*asked for .*string"),
        ({"key": "smallint"}, "key: the state has .*int.*asked for .*smallint"),
        ({"kind": "b"}, "program.kind: the state has 'a', asked for 'b'"),
    ],
)
def test_what_is_refused_says_what_differs_and_what_to_do(change: dict[str, Any], match: str) -> None:
    storage = MemoryStorage()
    agree_on_description(storage, asked(), 0)
    with pytest.raises(hs.ProgramMismatchError, match=f"{match}.*ask for"):
        agree_on_description(storage, asked(**change), 3)
    assert len(read_chain(storage)) == 1


def test_a_topology_and_a_processor_do_not_take_over_the_state_of_each_other() -> None:
    pytest.importorskip("pyspark")
    from hybridstore.spark.program import TopologyProgram
    from hybridstore.spark.stateful_processor import ProcessorProgram

    topology = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    counting = TopologyProgram(topology.complete())
    processor = ProcessorProgram(object(), ("user",), None, "EventTime", None, {})  # type: ignore[arg-type]
    words = {counting: "a topology", processor: "transformWithState"}
    for before, now in ((counting, processor), (processor, counting)):
        storage = MemoryStorage()
        agree_on_description(storage, asked() | {"program": before.describe()}, 0, before)
        match = f"program: the state has {words[before]!r}, asked for {words[now]!r} .ask for"
        for allow in ((), ("timeMode None to EventTime",)):
            with pytest.raises(hs.ProgramMismatchError, match=match):
                agree_on_description(storage, asked() | {"program": now.describe()}, 3, now, allow)


def test_a_key_of_whole_numbers_may_become_wider() -> None:
    storage = MemoryStorage()
    agree_on_description(storage, asked(), 0)
    entry = agree_on_description(storage, asked(key="bigint"), 3)
    assert (entry["number"], entry["changes"]) == (2, ["key user: int in the state, bigint in the program"])


def test_another_query_is_refused_by_its_id() -> None:
    storage = MemoryStorage()
    agree_on_description(storage, asked(), 0)
    with pytest.raises(hs.ProgramMismatchError, match="belongs to query q, this is query other"):
        agree_on_description(storage, {**asked(), "query_id": "other"}, 3)


def test_a_consent_for_something_that_does_not_change_is_refused() -> None:
    change = Difference("x", "consent", "y is lost", "drop x")
    judge("here", [change], ["drop x"])
    judge("here", [], ["drop x"], used=["drop x"])
    with pytest.raises(hs.ProgramMismatchError, match=r"here: allow: found 'drop y', but .* \(expected 'drop x'"):
        judge("here", [change], ["drop x", "drop y"])
    with pytest.raises(hs.ProgramMismatchError, match=r"found 'drop x', but .* \(expected nothing; take it out"):
        judge("here", [], ["drop x"])
    with pytest.raises(TypeError, match="allow: found int"):
        consents([3])  # type: ignore[list-item]


def test_a_name_that_a_writer_took_and_did_not_finish_is_passed_over(tmp_path: Path) -> None:
    """Without links, a description whose writer died half-way is there by its name alone."""
    storage = LocalStorage(tmp_path, files=Linkless())
    first = agree_on_description(storage, asked(), 0, Program())
    (tmp_path / f"{operator_name(2)}.whole").write_bytes(b'{"shards"')
    second = agree_on_description(storage, asked("b"), 6, Program(), ["another kind"])
    assert [entry["number"] for entry in read_chain(storage)] == [1, 3]
    assert (first["number"], second["number"], second["from"]) == (1, 3, 7)
    assert agree_on_description(storage, asked("b"), 7, Program(), ["another kind"]) == second


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"format": "1"}', b"{", b"\xff", b'"text"'])
def test_a_description_that_is_none_is_refused_in_one_sentence(content: bytes) -> None:
    storage = MemoryStorage()
    storage.create(operator_name(1), content)
    with pytest.raises(
        hs.errors.ForeignFileError, match=r"0000000001\.json: cannot be read: .* \(restore it from a copy"
    ):
        read_chain(storage)
