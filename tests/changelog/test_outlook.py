"""Outlook: what it answers is what the storage behind answered when it began, in as few rounds as it says."""

from __future__ import annotations

import random

import pytest

from changelog import rounds
from changelog.outlook import Outlook, behind
from changelog.rounds import PART_BYTES, REQUEST_BYTES, merged, parts, side_by_side, worth_whole
from changelog.storage import Storage
from tests.conftest import SEED
from tests.tools.memory_storage import MemoryStorage
from tests.tools.requests import CountedStorage, counted

NAMES = [f"{folder}/{number}" for folder in ("log", "packs", "other") for number in range(6)]


def answer(storage: Storage, verb: str, name: str) -> object:
    try:
        if verb == "get":
            return storage.get(name)
        if verb == "list":
            return list(storage.list(f"{name.partition('/')[0]}/", after=name))
        return [bytes(part) for part in storage.get_ranges(name, [(1, 2), (4, 9)])]
    except FileNotFoundError:
        return FileNotFoundError


def test_any_order_of_reads_answers_as_the_storage_behind() -> None:
    draw = random.Random(SEED)
    for _ in range(200):
        memory = MemoryStorage()
        for name in draw.sample(NAMES, draw.randrange(len(NAMES))):
            memory.create(name, draw.randbytes(draw.randrange(20)))
        outlook = Outlook(memory)
        for _ in range(20):
            step = draw.choice(("begin", "extend", "delete", "fetch", "end", "get", "get", "list", "ranges"))
            if step == "extend":
                outlook.extend({"other": draw.choice(("", "other/2"))})
            elif step == "delete":
                outlook.delete(draw.choices(NAMES, k=2))
            elif step == "begin":
                outlook.begin({folder: draw.choice(("", f"{folder}/2")) for folder in ("log", "packs")})
            elif step == "fetch":
                outlook.fetch(draw.choices(NAMES, k=4), whole=draw.randrange(4), head=draw.choice((0, 5)))
            elif step == "end":
                outlook.end()
            else:
                name = draw.choice(NAMES)
                assert answer(outlook, step, name) == answer(memory, step, name), (step, name)


def test_names_are_one_round_and_objects_another() -> None:
    with counted() as requests:
        storage = CountedStorage(requests)
        for name in NAMES:
            storage.create(name, b"content")
        requests.reset()
        outlook = Outlook(storage)
        outlook.begin({"log": "", "packs": ""})
        assert (requests.rounds, requests.number) == (1, 2)
        outlook.fetch(NAMES, whole=2, head=3)
        assert (requests.rounds, requests.number) == (2, 2 + len(NAMES))
        assert outlook.get(NAMES[0]) == b"content"
        assert list(outlook.get_ranges(NAMES[5], [(0, 3)])) == [b"con"]
        # a range beyond the end of an object that is here as a whole
        assert list(outlook.get_ranges(NAMES[0], [(4, 9)])) == [b"ent"]
        assert len(outlook.list("packs/")) == 6
        with pytest.raises(FileNotFoundError):
            outlook.get("packs/absent")
        assert requests.rounds == 2
        assert list(outlook.get_ranges(NAMES[5], [(0, 7)])) == [b"content"]
        assert requests.rounds == 3
    assert behind(outlook) is storage


def test_whole_objects_are_fetched_without_heads_of_the_others() -> None:
    with counted() as requests:
        storage = CountedStorage(requests)
        for name in NAMES:
            storage.create(name, b"content")
        outlook = Outlook(storage)
        outlook.begin({"log": "", "packs": ""})
        requests.reset()
        outlook.fetch(NAMES, whole=2)
        assert (requests.rounds, requests.number) == (1, 2)
        assert [outlook.get(name) for name in NAMES[:2]] == [b"content"] * 2
        assert requests.number == 2
        assert outlook.get(NAMES[2]) == b"content"
        assert requests.number == 3


@pytest.mark.parametrize("at_once", [1, 4, 64])
def test_work_side_by_side_answers_in_order_and_raises_what_fails(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "AT_ONCE", at_once)
    assert side_by_side(lambda number: number * 2, range(100)) == list(range(0, 200, 2))
    assert side_by_side(str, []) == []
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda number: 1 // number, [1, 0, 2])


def test_ranges_are_asked_for_while_that_costs_less_than_the_whole_object() -> None:
    draw = random.Random(SEED)
    for _ in range(200):
        size = draw.randrange(1, 20 * PART_BYTES)
        ranges = [(draw.randrange(size), draw.randrange(1, 20_000)) for _ in range(draw.randrange(400))]
        spans = merged(ranges)
        cost = sum(end - start for start, end in spans) + len(spans) * REQUEST_BYTES
        assert worth_whole(spans, size) == (cost >= 0.75 * (size + len(parts(size)) * REQUEST_BYTES))
    assert not worth_whole(merged([(100, 15_000)]), 1 << 20)
    # 500 blocks of 256 records: of 100,000 records everything, of a million what is touched
    assert worth_whole(merged([(number * 14_600, 14_600) for number in range(390)]), 5_700_000)
    assert not worth_whole(merged([(number * 117_000, 14_600) for number in range(500)]), 58_600_000)
    assert sum(length for _, length in parts(3 * PART_BYTES + 5)) == 3 * PART_BYTES + 5
