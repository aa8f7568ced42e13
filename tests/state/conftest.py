"""What tests of states on an object store share: a server for each file, and a place for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from changelog.bucket import Bucket


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    pytest.importorskip("obstore")
    from tests.tools.s3_server import S3Server

    with S3Server() as running:
        yield running


@pytest.fixture
def place(server: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Bucket]:
    """What returns the place of a path in this test's part of the bucket."""
    name = request.node.name.replace("[", "-").replace("]", "")
    return lambda path: server.bucket(f"{request.path.stem}/{name}/{path}", tmp_path / "cache")
