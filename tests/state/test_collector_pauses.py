"""However many records a state has, Python's collector visits a few of them; what it was like before comes back."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.collector import COUNTED_BLOCKS, OLD_BLOCKS, SHORT_PAUSES, ShortPauses, collector_held
from hybridstore.state.directory import _VISITING_COMMIT
from tests.state.test_writer_process import checkpoint, opened, small_checkpoints

__all__ = ["small_checkpoints"]  # of each test here, too

PROGRAM = """
import gc, sys
import hybridstore as hs

before = gc.get_freeze_count(), len(gc.callbacks), gc.get_threshold()
visited = []

def count(phase, info):
    if phase == "start" and info["generation"] == 2:
        visited.append(len(gc.get_objects()))

gc.callbacks.append(count)
rows = ({"user": f"u{i}", "ts": i} for i in range(60_000))
counts = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 day")).aggregate(n=hs.Count())
if sys.argv[1] == "run":
    for row in counts.run(rows, "state", commit_rows=1000):
        pass
elif sys.argv[1] == "engine":
    with counts.open("state") as engine:
        for i, row in enumerate(rows):
            engine.process(row)
            if i % 1000 == 999:
                engine.commit()
        frozen = gc.get_freeze_count()
else:
    with hs.open("state", durability="os") as state:
        seen, window = state.key_value("seen", ttl=10**9), state.window("window", retention=10**9)
        for i in range(60_000):
            seen.put(f"k{i}", [i], i)
            window.put(f"k{i}", 1.5, i)
            if i % 1000 == 999:
                state.commit()
        frozen = gc.get_freeze_count()
        assert frozen > 60_000, frozen
gc.callbacks.remove(count)
assert all(number < 60_000 for number in visited), visited
assert gc.get_freeze_count() <= before[0]  # Python 3.12 begins with some
assert before[1:] == (len(gc.callbacks), gc.get_threshold())
"""


@pytest.mark.parametrize("how", ["stores", "engine", "run"])
def test_no_collection_visits_all_records_and_closing_gives_back_what_was(how: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, how], cwd=tmp_path, check=True, timeout=300)


def test_nobody_else_gets_the_objects_that_another_thread_is_still_making(tmp_path: Path) -> None:
    """A tuple that is being made cannot grow while somebody has it, and `gc.get_objects` gives it to its caller."""
    program = (
        "import gc, hybridstore as hs\n"
        "gc.get_objects = gc.get_referrers = None\n"
        "with hs.open('state', durability='os') as state:\n"
        "    window = state.window('window', retention=10**9)\n"
        "    for i in range(60_000):\n"
        "        window.put(f'k{i}', [i], i)\n"
        "    assert gc.get_freeze_count() > 20_000\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_an_opening_does_not_count_the_memory_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count visits all memory of the process: 10 ms for 20 million records."""
    monkeypatch.delattr(sys, "getallocatedblocks")
    with collector_held():
        hs.open(tmp_path).close()


@pytest.mark.parametrize(("blocks", "collections"), [(0, 3), (5, 5), (30, 8)])
def test_a_larger_process_counts_its_memory_after_more_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, collections: int
) -> None:
    memory = SimpleNamespace(asked=0, blocks=blocks * COUNTED_BLOCKS)

    def counted() -> int:
        memory.asked += 1
        return memory.blocks

    monkeypatch.setattr(sys, "getallocatedblocks", counted)
    with collector_held(), hs.open(tmp_path):
        # as if no other state were open: one that a test forgot is, until the collector frees it
        monkeypatch.setattr(SHORT_PAUSES, "_blocks", None)
        gc.collect(1)
        before = gc.get_freeze_count()
        for _ in range(collections - 1):
            gc.collect(1)
        assert memory.asked == 1
        memory.blocks += OLD_BLOCKS
        kept = [[i] for i in range(1000)]
        gc.collect(1)
        assert memory.asked == 2
        assert gc.get_freeze_count() >= before + len(kept)
        for _ in range(3 * collections):
            gc.collect(1)
        assert memory.asked == 5


def test_a_leaving_that_an_exception_from_outside_ends_lets_nothing_be_counted_twice() -> None:
    """As by Ctrl-C, at each line of it."""
    lines: Iterator[int]

    def interrupt(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is ShortPauses.leave.__code__ and event == "line" and next(lines, None) is None:
            raise KeyboardInterrupt
        return interrupt

    before, tracing = list(gc.callbacks), sys.gettrace()
    for line in range(20):
        pauses, lines = ShortPauses(), iter(range(line))
        pauses.join()
        sys.settrace(interrupt)
        try:
            pauses.leave()
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing)
        pauses.join()
        assert len(gc.callbacks) == len(before) + 1
        gc.callbacks[:] = before
    assert 3 < line < 19


def test_what_a_program_has_frozen_stays_frozen(tmp_path: Path) -> None:
    program = (
        "import gc, hybridstore as hs\n"
        "gc.freeze()\n"
        "frozen = gc.get_freeze_count()\n"
        "hs.open('state').close()\n"
        "assert gc.get_freeze_count() > frozen // 2 > 0, (gc.get_freeze_count(), frozen)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_opening_a_state_visits_no_frozen_objects_and_what_others_froze_meanwhile_stays_frozen(tmp_path: Path) -> None:
    program = (
        "import gc, hybridstore as hs\n"
        "count, asked = gc.get_freeze_count, []\n"
        "gc.get_freeze_count = lambda: asked.append(1) or count()\n"
        "state = hs.open('state', durability='os')\n"
        "assert not asked\n"
        "gc.freeze()\n"
        "frozen = count()\n"
        "window = state.window('window', retention=10**9)\n"
        "for i in range(60_000):\n"
        "    window.put(f'k{i}', [i], i)\n"
        "assert asked and count() > frozen + 20_000\n"
        "state.close()\n"
        "assert count() > frozen // 2 > 0, (count(), frozen)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_garbage_is_found_while_a_state_is_open(tmp_path: Path) -> None:
    program = (
        "import gc, weakref, hybridstore as hs\n"
        "class Node: pass\n"
        "with hs.open('state') as state:\n"
        "    seen = []\n"
        "    for i in range(30_000):\n"
        "        a, b = Node(), Node()\n"
        "        a.other, b.other = b, a\n"
        "        seen.append(weakref.ref(a))\n"
        "    del a, b\n"
        "    alive = sum(each() is not None for each in seen)\n"
        "    assert alive < 10_000, alive\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_the_collector_visits_sets_of_changed_keys_while_they_have_few_and_counts_no_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "state") as state:
        state.key_value("k")["a"] = "first"
        state.commit()
        state.checkpoint(wait=True)
    with collector_held(), opened(tmp_path / "state") as state:
        store = state.key_value("k")
        for number in range(3):
            store["a"] = number
            before = store._dirty
            with monkeypatch.context() as patched:
                patched.delattr(sys, "getallocatedblocks")
                for at in range(1 if number else _VISITING_COMMIT):
                    store["a"] = [number, at]
                    state.commit()
                if number:
                    assert checkpoint(state) is None
            assert isinstance(store._dirty, set)
            assert (store._dirty is before) == (not number)
            young = [*gc.get_objects(0), *gc.get_objects(1)]
            assert not any(each is store._dirty for each in young)
