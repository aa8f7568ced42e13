"""The writer process beside its owner, its thread and commands: in no order of their steps a read of any store, or of a
fork, is wrong.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog import rounds
from changelog.files import Files
from changelog.storage import LocalStorage
from hybridstore.rewinding import fork
from hybridstore.rewinding.fork import _DirectorySite
from hybridstore.state import checkpoint_job, checkpointer, memory
from recovery import finder_writer
from recovery.ahead import ReadAhead
from recovery.errors import RestoreError
from recovery.finder_writer import FinderWriter
from tests.tools.hooks import forget_states
from tests.tools.owner_beside import played

SEEDS, CALLS = 6, 800
ENTER, COPY, PRUNE = FinderWriter._enter, _DirectorySite.copy, checkpoint_job.prune


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def small(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Have finders of small stores, of several parts, that are entered late; pieces and packs of few records."""
    dice = random.Random(seed)
    for owner, name, value in (
        (finder_writer, "FEWEST_RECORDS", dice.choice([1, 1, 30])),
        (finder_writer, "_AT_ONCE", dice.choice([0, 50, 1 << 18])),
        (finder_writer, "PART_BITS", dice.choice([4, 5, 20])),
        (finder_writer, "_LEAST_BITS", 4),
        (checkpoint_job, "PIECE_RECORDS", dice.choice([20, 150_000])),
        (checkpoint_job, "MOST_PACK_BYTES", dice.choice([700, 1 << 20])),
        (checkpointer, "BESIDE_RECORDS", 0),
        (checkpointer, "RETRY_SECONDS", 0.0),
        (checkpointer, "_MOST_FAILURES", 10**9),
        (memory, "COMMIT_BUDGET_MS", 0.0),
        (memory, "_COOLED_MS", 0.0),
        (rounds, "AT_ONCE", 1),  # each owner asks for one object at a time, in its own thread
    ):
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(ReadAhead, "start", lambda self: None)


def play(path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    for seed in seeds:
        with monkeypatch.context() as patch:
            small(patch, seed)
            forget_states()
            played(path / str(seed), seed, CALLS, lambda beside: beside.install(patch))


@pytest.mark.slow
@pytest.mark.stress
def test_in_no_order_of_the_steps_of_owner_and_process_a_read_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
) -> None:
    play(tmp_path, monkeypatch, range(seed, seed + SEEDS * min(rounds, 100)))


def leave_nothing(self: FinderWriter, hashes: object, new: int) -> None:
    """Let what blocks that were written anew have left out stay entered."""


def enter_all(self: FinderWriter, pack: int, keys: object, live: object = None) -> None:
    """Enter what is entered late over newer records, too."""
    ENTER(self, pack, keys)  # type: ignore[arg-type]


def copy_all(self: _DirectorySite, source: LocalStorage, name: str, to: str, end: int) -> None:
    """Let a fork have what was committed behind its version meanwhile."""
    COPY(self, source, name, to, source.size(name))


def prune_more(path: Path, *, keep: int, files: Files, used: str | None) -> list[Path]:
    """Keep one checkpoint fewer."""
    return PRUNE(path, keep=keep - 1, files=files, used=used)


def prune_used(path: Path, *, keep: int, files: Files, used: str | None) -> list[Path]:
    """Keep the newest checkpoints only, whichever the owner reads."""
    return PRUNE(path, keep=keep, files=files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "step", "instead", "first"),
    [
        (FinderWriter, "_leave", leave_nothing, 2),
        (FinderWriter, "_enter", enter_all, 2),
        (_DirectorySite, "copy", copy_all, 2),
        (checkpoint_job, "check_holder", lambda *_: None, 2),
        (checkpoint_job, "prune", prune_more, 2),
        (checkpoint_job, "prune", prune_used, 29),
        (fork, "_TRIES", 1, 2),
    ],
    ids=["leave", "enter", "copy", "lock", "prune", "used", "tries"],
)
def test_a_step_of_the_process_or_of_a_fork_that_is_wrong_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: object, step: str, instead: object, first: int
) -> None:
    monkeypatch.setattr(of, step, instead)
    with pytest.raises((AssertionError, RestoreError), match=r"expected|finder of|its copy has|choose a"):
        play(tmp_path, monkeypatch, range(first, first + 100))  # the first two of them notice each
