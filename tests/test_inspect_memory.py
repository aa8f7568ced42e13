"""Inspection of a large state: memory follows a block of each bucket and the tail, not how many records or keys there are."""

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import pack
from hybridstore.inspection.places import resolve
from hybridstore.inspection.progress import Progress
from hybridstore.inspection.reader import open_view
from hybridstore.inspection.stat import measure
from hybridstore.inspection.store_view import Selection, StoreView
from hybridstore.inspection.tally import tallies

BLOCK = 250
SIZES = (10_000, 60_000)


def build(path: Path, records: int) -> None:
    """A window store with three keys to ten records, all of it under a checkpoint, and a scattered tail of 300 puts."""
    draw = random.Random(records)
    tuning = {"block_records": BLOCK, "bucket_divisor": 4}
    with hs.open(path, durability="os", _tuning=tuning, checkpoint=hs.CheckpointPolicy(keep=1)) as state:
        window = state.window("win", retention=records)
        window.put_columns(
            [f"key-{draw.randrange(records * 3 // 10):06d}" for _ in range(records)],
            [b"%016d" % i for i in range(records)],
            list(range(records)),
        )
        state.commit()
        state.checkpoint(wait=True)
        for _ in range(300):
            window.put(f"key-{draw.randrange(records * 3 // 10):06d}", b"later", draw.randrange(records))
        state.commit()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = [tmp_path_factory.mktemp("states") / str(records) for records in SIZES]
    for path, records in zip(paths, SIZES, strict=True):
        build(path, records)
    return paths


def opened(path: Path) -> StoreView:
    (place,) = resolve(path)
    return open_view(place).store("win")


def top(store: StoreView) -> Any:
    with Progress("", 0, shown=False) as progress:
        return measure(store, 5, progress)


def keys(store: StoreView) -> int:
    return sum(1 for _ in tallies(store))


@pytest.mark.parametrize("look", [keys, top, StoreView.count])
def test_memory_does_not_grow_with_the_state(states: list[Path], look: Callable[[StoreView], Any]) -> None:
    peaks = []
    for path in states:
        store = opened(path)
        len(store.entries)  # the directory, a line per block, is there whatever is asked for
        store.capture  # noqa: B018  # and so is the tail
        look(opened(path))  # what is imported or cached once
        tracemalloc.start()
        look(store)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks
    # of six times as many records, none of which fit in what a block of each bucket takes
    assert peaks[1] < SIZES[1] * 60


def test_tallies_are_those_of_all_records(states: list[Path]) -> None:
    store = opened(states[0])
    records, weights = Counter[str](), Counter[str]()
    for key, _, value in store.records():
        records[key] += 1
        weights[key] += len(pack(value))
    expected = [(key, records[key], weights[key]) for key in sorted(records)]
    found = list(tallies(store, weigh=lambda record: len(pack(record.value))))
    assert [tuple(one) for one in found] == expected
    assert [tuple(one)[:2] for one in tallies(store, Selection(reverse=True))] == [one[:2] for one in expected[::-1]]
    inside = Selection("key-000100", "key-000200", "key-0001")
    assert [one.key for one in tallies(store, inside)] == [
        key for key in sorted(records) if "key-0001" <= key[:8] < "key-0002"
    ]
    assert store.count() == records.total()
    heaviest = top(store).heaviest
    assert [one.weight for one in heaviest] == sorted(weights.values(), reverse=True)[:5]
    assert all(tuple(one) in expected for one in heaviest)
