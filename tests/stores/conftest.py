"""What the tests of stores share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridstore as hs
from tests.tools.vector_runner import opened


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    """A state that is open, with blocks of a few records."""
    with opened(tmp_path) as state:
        yield state
