"""Folders that did not exist before: after a commit the names of all of them are durable."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files


class Ended(BaseException):
    """The process ends here."""


class Names:
    """Which names are in no directory that was synced after they were made; ends the process at the n-th step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.pending: dict[Path, set[str]] = {}
        self.steps = 0
        self.last: int | None = None
        mkdir, sync = Files.mkdir, Files.sync_path

        def make(files: Files, path: Path) -> None:
            self._step()
            new = not path.exists()
            mkdir(files, path)
            if new:
                self.pending.setdefault(path.parent.resolve(), set()).add(path.name)

        def synced(files: Files, path: Path) -> None:
            self._step()
            sync(files, path)
            self.pending.pop(path.resolve(), None)

        patch.setattr(Files, "mkdir", make)
        patch.setattr(Files, "sync_path", synced)

    def _step(self) -> None:
        if self.steps == self.last:
            raise Ended
        self.steps += 1


def plain(path: Path) -> None:
    with hs.open(path) as state:
        state.key_value("names")["a"] = 1
        state.commit()


def topology(path: Path) -> None:
    stream = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    with stream.open(path, shards=2) as engine:
        engine.process({"k": "a", "t": 1})
        engine.commit()


@pytest.mark.parametrize("life", [plain, topology])
def test_whenever_a_process_ends_the_next_one_makes_all_names_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: Callable[[Any], None]
) -> None:
    for last in itertools.count():
        with monkeypatch.context() as patch:
            names = Names(patch)
            names.last = last
            path = tmp_path / f"{last}" / "new" / "newer" / "state"
            with suppress(Ended):
                life(path)
                assert names.pending == {}
                assert last > 8
                return
            names.last = None
            life(path)
            assert names.pending == {}, f"ended at step {last}"


def test_a_directory_above_that_cannot_be_read_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above, real = tmp_path / "above", Files.sync_path
    (above / "home").mkdir(parents=True)

    def refuse(files: Files, path: Path) -> None:
        if path == above:
            raise PermissionError(13, "Permission denied", str(path))
        real(files, path)

    monkeypatch.setattr(Files, "sync_path", refuse)
    plain(above / "home" / "state")
    plain(above / "home" / "state")
