"""A fork, its origin and a pin are rescaled each alone, and a fork beside a rescale is of the old or new shards."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.cloud_storage import CloudStorage
from changelog.storage import storage_at
from hybridstore.errors import HybridStoreError
from hybridstore.rescaling.api import remove_old_shards
from tests.state.test_fork import steps_of
from tests.tools.s3_server import S3Server

COUNTS = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
SOURCE = [{"k": f"{number % 7}", "ts": number} for number in range(400)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture(params=["directory", "url"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "directory":
        return tmp_path
    return request.getfixturevalue("server").bucket(f"rescaled/{request.node.name}", tmp_path / "cache")


def begun(where: Any, shards: int) -> list[dict[str, Any]]:
    return [dict(row) for row in COUNTS.run(SOURCE[:200], where, shards=shards, commit_rows=50)]


def rest_of(where: Any, shards: int) -> list[str]:
    return sorted(map(str, COUNTS.run(SOURCE, where, shards=shards, commit_rows=50, replay_last=False)))


def expected(tmp_path: Path) -> list[str]:
    begun(tmp_path / "whole", 1)
    return rest_of(tmp_path / "whole", 1)


def test_a_fork_its_origin_and_a_pin_are_rescaled_each_alone(base: Any, tmp_path: Path) -> None:
    rest = expected(tmp_path)
    begun(base / "s", 2)
    for new in ("f", "g"):
        hs.fork(base / "s", base / new)
    hs.pin(base / "s", "two")
    hs.rescale(base / "f", shards=4)
    hs.rescale(base / "s", shards=6)
    assert rest_of(base / "f", 4) == rest_of(base / "s", 6) == rest
    for each in ("s", "f"):
        remove_old_shards(base / each)
    assert rest_of(base / "g", 2) == rest
    hs.fork(base / "s", base / "h")  # of the shards that count
    with COUNTS.open(base / "h", shards=6) as engine, COUNTS.open(base / "s", shards=6) as origin:
        assert [state.digest for state in engine.states] == [state.digest for state in origin.states]
    hs.fork(base / "s", base / "i", at="two")
    hs.rescale(base / "i", shards=4)
    assert rest_of(base / "i", 4) == rest
    with pytest.raises(HybridStoreError, match="belongs to the pin two"):
        hs.rescale(base / "s" / "pins" / "two", shards=4)
    for name in ("0", "1"):  # shards that no rescale made stay until they are removed by hand
        storage = storage_at(base / "s" / name)
        storage.delete(storage.list())
    if isinstance(base, Path):
        shutil.rmtree(base / "s" / "0")
        shutil.rmtree(base / "s" / "1")
    with pytest.raises(HybridStoreError, match="forks"):
        hs.erase(base / "s", "1")
    assert hs.erase(base / "s", "1", forks="leave").records


@pytest.mark.parametrize("old", ["kept", "removed"])
def test_a_rescale_before_any_step_of_a_fork_leaves_a_sound_fork_or_none(tmp_path: Path, old: str) -> None:
    rest = expected(tmp_path)
    begun(tmp_path / "origin", 2)
    shards = set()
    for last in itertools.count(0, 7):
        path, new = tmp_path / f"s{last}", tmp_path / f"f{last}"
        shutil.copytree(tmp_path / "origin", path)
        steps, inside = itertools.count(), list[bool]()

        def at_step(path: Path = path, last: int = last, steps: Any = steps, inside: list[bool] = inside) -> None:
            if not inside and next(steps) >= last:
                inside.append(True)
                hs.rescale(path, shards=4)
                if old == "removed":
                    for shard in "01":
                        shutil.rmtree(path / shard)

        with pytest.MonkeyPatch.context() as patch:
            steps_of(patch, at_step)
            hs.fork(path, new)
        number = len(hs.inspect(new).shards)
        shards.add(number)
        assert rest_of(new, number) in (rest, [])
        if not inside:
            break
    assert shards == ({2} if old == "kept" else {2, 4})


def test_a_rescale_beside_a_fork_at_a_url_leaves_a_sound_fork_or_none(server: S3Server, tmp_path: Path) -> None:
    rest = expected(tmp_path)
    results = set()
    for last in itertools.count(0, 13):
        base = server.bucket(f"rescaled/beside{last}", tmp_path / "cache")
        begun(base / "s", 2)
        steps, inside = itertools.count(), list[bool]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("changelog.rounds.AT_ONCE", 1)

            def step(last: int = last, steps: Any = steps, inside: Any = inside, base: Any = base) -> None:
                if not inside and next(steps) >= last:
                    inside.append(True)
                    hs.rescale(base / "s", shards=4)
                    rest_of(base / "s", 4)
                    remove_old_shards(base / "s")

            for verb in ("create", "take", "list", "get"):
                real = getattr(CloudStorage, verb)
                patch.setattr(
                    CloudStorage, verb, lambda *args, real=real, step=step, **how: (step(), real(*args, **how))[1]
                )
            try:
                hs.fork(base / "s", base / "f")
            except HybridStoreError as error:
                results.add(str(error))
                hs.fork(base / "s", base / "f")
        number = len(hs.inspect(base / "f").shards)
        results.add(number)
        assert rest_of(base / "f", number) in (rest, [])
        if not inside:
            break
    assert {2, 4} <= results
