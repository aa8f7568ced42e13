"""The index of layers names every layer that may have a key, whatever became of the layers since."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.layer_index import MOST_LAYERS, LayerIndex
from tests.conftest import STRESS

# few leading bits, so that places are taken
_HASHES = st.lists(st.integers(0, 40).map(lambda part: part << 28 | part << 24 & 0xFFFFFFFF), max_size=8)
_STEPS = st.lists(st.tuples(st.integers(0, 3), _HASHES), min_size=1, max_size=12)


@settings(max_examples=1000 if STRESS else 60, deadline=None)
@given(_STEPS)
def test_an_index_over_an_older_one_names_the_layers_of_each_hash(steps: list[tuple[int, list[int]]]) -> None:
    layers: list[tuple[bytes, list[int]]] = []
    index = LayerIndex()
    for number, (together, hashes) in enumerate(steps):
        hashes = [hashed & 0xFFFFFFFF for hashed in hashes]
        while together and layers:  # the newest ones become one with the new one
            hashes += layers.pop()[1]
            together -= 1
        layers.append((b"%d" % number, hashes))
        asked: list[int] = []

        def hashes_of(i: int, asked: list[int] = asked) -> list[int]:
            asked.append(i)
            return layers[i][1]

        names = tuple(name for name, _ in layers)
        before, index = index, index.over(names, hashes_of)
        assert before is not index
        assert index.over(names, hashes_of) is index
        for hashed in {0, *(hashed for _, each in layers for hashed in each)}:
            right = [i for i, (_, each) in enumerate(layers) if hashed in each]
            numbers = list(index.layers_of(hashed))
            assert numbers == sorted(set(numbers), reverse=True)
            assert set(right) <= set(numbers) <= set(range(len(layers)))


def test_an_index_reads_the_layer_that_is_new_and_says_of_most_hashes_that_no_layer_has_them() -> None:
    r = random.Random(5)
    layers = [[r.getrandbits(32) for _ in range(100)] for _ in range(MOST_LAYERS)]
    asked: list[int] = []

    def hashes_of(i: int) -> list[int]:
        asked.append(i)
        return layers[i]

    index = LayerIndex()
    for count in range(1, MOST_LAYERS + 1):
        index = index.over(tuple(b"%d" % i for i in range(count)), hashes_of)
    # each once, and again when the index had become too small
    assert len(asked) < 4 * MOST_LAYERS
    for number, hashes in enumerate(layers):
        assert all(number in index.layers_of(hashed) for hashed in hashes)
    others = [r.getrandbits(32) for _ in range(10_000)]
    assert sum(bool(index.layers_of(hashed)) for hashed in others) < 2500
    # layers that have become one: the others are not read
    layers[-3:] = [[hashed for hashes in layers[-3:] for hashed in hashes]]
    asked.clear()
    last, names = len(layers) - 1, tuple(b"%d" % i for i in range(len(layers) - 1))
    index = index.over((*names, b"together"), hashes_of)
    assert asked == [last]
    assert all(last in index.layers_of(hashed) for hashed in layers[last])
    # a layer fewer
    index = index.over(names, hashes_of)
    assert not any(last in index.layers_of(hashed) for hashed in layers[last])


def test_an_index_of_layers_without_keys_names_none() -> None:
    index = LayerIndex().over((b"a", b"b"), lambda _: [])
    assert index.layers_of(0) == index.layers_of(2**32 - 1) == ()
    assert LayerIndex().layers_of(2**32 - 1) == ()
