"""What the fuzzer found once, and where it begins: every input of `tests/fuzz/corpus/` and every seed ends in an
answer or our error.
"""

from pathlib import Path

import pytest

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

CORPUS = sorted((Path(__file__).parents[1] / "fuzz" / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_was_found_stays_mended(path: Path, tmp_path: Path) -> None:
    TARGETS[path.name.partition("-")[0]](path.read_bytes(), tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_its_seeds(target: str, tmp_path: Path) -> None:
    for number, seed in enumerate(seeds(target)):
        if number % 7 == 0:
            scratch = tmp_path / str(number)
            scratch.mkdir()
            TARGETS[target](seed, scratch)
