"""Hydration: what a restore left cold comes in slices at every commit, what expires before is never read, nobody
notices.
"""

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.progress import Progress
from hybridstore.state import hydration
from hybridstore.state.hydration import hydrate
from hybridstore.state.opening import Tuning
from recovery.ahead import ReadAhead
from recovery.checkpoint import CheckpointReader
from tests.tools.checkpoints import flip, index_of, marker_of, own_packs
from tests.tools.hooks import check_stores, crash

TUNING = Tuning(block_records=50)


@pytest.fixture(autouse=True)
def nobody_decodes_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the thread adds is in test_read_ahead.py."""
    monkeypatch.setattr(ReadAhead, "start", lambda self: None)


def open_state(path: Path, **options: Any) -> hs.State:
    return hs.open(path, _tuning=TUNING, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed state whose 3,000 rows are all in its checkpoint."""
    where = tmp_path / "state"
    with open_state(where) as state:
        kv, window = state.key_value("kv"), state.window("win", retention=10_000)
        for i in range(2000):
            kv[f"{i:05d}"] = f"value {i} " * 8
        for i in range(1000):
            window.put(f"k{i % 7}", i, i * 10)
        state.commit()
        state.checkpoint(wait=True)
    return where


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (store, block) of every block that is read from a checkpoint."""
    read: list[tuple[int, int]] = []
    block = CheckpointReader.block

    def counted(self: CheckpointReader, store: int, entry: Any) -> Any:
        read.append((store, entry.block))
        return block(self, store, entry)

    monkeypatch.setattr(CheckpointReader, "block", counted)
    return read


def rows(state: hs.State) -> tuple[list[Any], list[Any]]:
    return list(state.key_value("kv").all()), list(state.window("win", retention=10_000).all())


def test_commits_load_what_is_cold_until_nothing_is(path: Path, loaded: list[tuple[int, int]]) -> None:
    state = open_state(path)
    cold = state.metrics().cold_blocks
    assert cold > 20
    assert loaded == []
    commits = 0
    while state.metrics().cold_blocks:
        state.key_value("kv")["count"] = commits
        state.commit()
        commits += 1
        assert commits <= cold
    assert len(loaded) == len(set(loaded)) == cold
    check_stores(state)
    kv, window = rows(state)
    assert len(loaded) == cold
    assert (len(kv), len(window)) == (2001, 1000)
    state.close()


def test_a_slice_loads_one_block_at_least_and_ends_in_time(path: Path) -> None:
    with open_state(path) as state:
        remaining = state.metrics().cold_blocks
        assert state.hydrate(budget_ms=0) == remaining - 1
        assert state.hydrate(budget_ms=60_000) == 0
        assert state.hydrate() == 0
        assert [store.warm() for store in state.stores.values()] == [False, False]


class Slow:
    """A store whose blocks take a time each, by a clock that only it moves."""

    waiting_rows = decoded_blocks = 0

    def __init__(self, clock: list[float], seconds: list[float]) -> None:
        self.clock, self.seconds = clock, seconds

    def apply_waiting(self) -> None:
        pass

    @property
    def cold_blocks(self) -> int:
        return len(self.seconds)

    def warm(self) -> bool:
        if not self.seconds:
            return False
        self.clock[0] += self.seconds.pop(0)
        return True

    def read_in(self, on_block: Callable[[], None]) -> None:
        while self.warm():
            on_block()


def test_no_block_is_begun_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(hydration.time, "perf_counter", lambda: clock[0])
    stores = [Slow(clock, [0.001] * 10), Slow(clock, [0.002] * 10)]
    slices = []
    while True:
        before = clock[0]
        remaining = hydrate(stores, 5)
        slices.append(clock[0] - before)
        if not remaining:
            break
    assert max(slices) < 0.0051
    assert len(slices) < 10


def test_a_commit_leaves_to_the_thread_what_it_has_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(hydration.time, "perf_counter", lambda: clock[0])
    store = Slow(clock, [0.0001] * 10)

    class Decoded:
        """Has three blocks ready, and works on more."""

        def has_some(self) -> bool:
            return len(store.seconds) > 7

        def take(self, store: int, block: int) -> None:
            return None

        def stop(self) -> None:
            return None

    assert hydrate([store], 2, Decoded()) == 7
    assert hydrate([store], 2, Decoded()) == 7
    assert hydrate([store], 2) == 0


def test_what_expires_before_it_is_touched_is_never_read(path: Path, loaded: list[tuple[int, int]]) -> None:
    with open_state(path) as state:
        window = state.window("win", retention=10_000)
        window.put("late", 1, 1_000_000)
        while state.hydrate():
            pass
        assert {store for store, _ in loaded} == {1}
        assert list(window.all()) == [(("late", 1_000_000), 1)]


def test_open_iterators_do_not_notice(path: Path) -> None:
    with open_state(path, lazy=False) as state:
        expected = rows(state)
    with open_state(path) as state:
        kv, window = state.key_value("kv"), state.window("win", retention=10_000)
        actual: tuple[list[Any], list[Any]] = ([], [])
        iterators = kv.all(), window.all()
        for number in range(1, 21):
            for rows_found, iterator in zip(actual, iterators, strict=True):
                rows_found += itertools.islice(iterator, 100)
            kv[f"new {number}"] = 1
            window.put("new", number, 9990)
            state.commit()
        assert actual == expected


def test_a_damaged_block_fails_one_commit_and_is_named(path: Path) -> None:
    (file,) = own_packs(path, 1)
    flip(file, file.read_bytes().rindex(b"value 1000"))
    state = open_state(path)
    failures = []
    for number in range(200):
        state.key_value("kv")["count"] = number
        try:
            state.commit()
        except hs.errors.CorruptCheckpointError as error:
            failures.append(str(error))
            state.commit()
    assert len(failures) == 1
    assert "block checksum mismatch" in failures[0]
    assert marker_of(index_of(path, 1)).exists()
    crash(state)
    with open_state(path) as state:
        assert state.restore_report.checkpoint_version is None
        assert len(rows(state)[0]) == 2001


def test_everything_is_loaded_at_once_when_asked(path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    with open_state(path, lazy=False, progress=lambda *call: calls.append(call)) as state:
        assert state.metrics().cold_blocks == 0
    blocks = [call for call in calls if call[0] == "blocks"]
    assert [done for _, done, _ in blocks] == list(range(1, blocks[-1][2] + 1))


def test_progress_is_told_of_the_tail(path: Path) -> None:
    with open_state(path) as state:
        for number in range(5):
            state.key_value("kv")["count"] = number
            state.commit()
        crash(state)
    calls: list[tuple[str, int, int]] = []
    with open_state(path, progress=lambda *call: calls.append(call)):
        pass
    tail = [(done, total) for phase, done, total in calls if phase == "changelog"]
    assert len(tail) == 5
    assert tail == sorted(tail)
    assert tail[-1][0] == tail[-1][1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "seconds", "drawn"), [(True, 2.0, True), (True, 0.5, False), (False, 2.0, False)])
def test_a_bar_is_drawn_on_a_terminal_after_a_second(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, seconds: float, drawn: bool
) -> None:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("hybridstore.progress.sys.stderr", screen)
    clock = [100.0]
    monkeypatch.setattr("hybridstore.progress.time.monotonic", lambda: clock[0])
    with Progress("restoring state") as bar:
        bar("changelog", 1, 10)
        clock[0] += seconds
        bar("changelog", 5, 10)
        bar("blocks", 1, 10)
    assert ("restoring state: changelog" in screen.getvalue()) == drawn


@pytest.mark.parametrize("closed", [False, True])
def test_a_program_without_standard_error_opens_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """A service may begin without it, or have closed it."""
    screen = Terminal() if closed else None
    if screen is not None:
        screen.close()
    monkeypatch.setattr("sys.stderr", screen)
    hs.open(tmp_path / "state").close()
    counts = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    (row,) = counts.run([{"k": "a", "t": 5}], tmp_path / "counts", progress=True)
    assert row["n"] == 1
