"""Inspection beside a writer in another process that checkpoints, prunes, is killed and comes back: every answer is
of one whole version.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.inspection.commands import compact, pack, repair, verify
from hybridstore.inspection.commands.stat import measure
from hybridstore.inspection.commands.verify import PlaceVerifier, _steady
from hybridstore.progress import Progress
from hybridstore.reading import events, versions
from hybridstore.reading.places import resolve
from hybridstore.reading.selection import Selection
from hybridstore.reading.tally import tallies
from hybridstore.reading.view import View, open_view
from hybridstore.state.opening import Tuning
from recovery.errors import RestoreError
from recovery.layout import CHECKPOINTS, PACKS
from recovery.verify import Verifier
from tests.state.test_kill import WRITER, expected


@contextmanager
def writing(path: Path) -> Iterator[Callable[[int], int]]:
    """Run the writer; the function given waits for so many versions and returns the last. Killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "0", "{}", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")

    def commits(count: int) -> int:
        assert process.stdout is not None
        return [int(process.stdout.readline().split()[0]) for _ in range(count)][-1]

    try:
        yield commits
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def view_of(path: Path) -> View:
    (place,) = resolve(path)
    return open_view(place)


def counts_and_rows(view: View) -> tuple[dict[str, int], list[Any]]:
    counts = {row.key: row.value for row in view.store("counts").records()}
    return counts, [((row.key, row.times[0]), row.value) for row in view.store("rows").records()]


def right(view: View) -> None:
    counts, rows = expected(view.version)
    assert view.faults == []
    assert counts_and_rows(view) == (counts, rows)


def right_one_key(view: View) -> None:
    counts, rows = expected(view.version)
    assert [row.value for row in view.store("counts").of_key("last")] == [counts["last"]]
    mine = [(ts, value) for (key, ts), value in rows if key == "k1"]
    assert [(row.times[0], row.value) for row in view.store("rows").of_key("k1")] == mine
    assert view.faults == []


def right_keys(view: View) -> None:
    counts, rows = expected(view.version)
    keys = [key for (key, _), _ in rows]
    tally = list(tallies(view.store("rows")))
    assert [(line.key, line.records) for line in tally] == [(key, keys.count(key)) for key in sorted(set(keys))]
    assert [line.key for line in tallies(view.store("counts"), Selection(reverse=True))] == sorted(counts, reverse=True)
    assert view.store("rows").count() == len(rows)
    assert view.faults == []


def right_sizes(view: View) -> None:
    counts, rows = expected(view.version)
    with Progress("", 0, shown=False) as progress:
        assert [measure(view.store(name), 3, progress).total for name in ("counts", "rows")] == [len(counts), len(rows)]
    assert view.faults == []


LOOKS = (right, right_one_key, right_keys, right_sizes)


def test_every_look_beside_a_writer_that_is_killed_is_right(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = tmp_path / "s"
    for _ in range(3):
        with writing(path) as commits:
            commits(1)
            for _ in range(12):
                view = view_of(path)
                draw.choice(LOOKS)(view)
                commits(draw.randrange(1, 9))
        # nobody is at work now: a torn end is cut, and nothing is wrong
        for look in LOOKS:
            look(view_of(path))
        (place,) = resolve(path)
        with Progress("", 0, shown=False) as progress:
            verifier = PlaceVerifier(place, progress, full=True)
            verifier.run()
        assert verifier.faults == []


def test_a_view_goes_on_when_its_files_are_pruned(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with writing(path) as commits:
        while (view := view_of(path)).checkpoint is None:
            commits(1)
        records = view.store("rows").records()
        first = [next(records) for _ in range(3)]
        assert view.checkpoint is not None
        name = f"{view.checkpoint.version:020d}.lmdb"
        while (path / CHECKPOINTS / name).exists():
            commits(7)
        expected_rows = expected(view.version)[1]
        assert [((row.key, row.times[0]), row.value) for row in [*first, *records]] == expected_rows
        right(view)


def test_verifying_beside_a_writer_finds_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with writing(path) as commits:
        for _ in range(5):
            commits(15)
            (place,) = resolve(path)
            with Progress("", 0, shown=False) as progress:
                verifier, checked = _steady(place, progress, quick=False, full=False)
            assert verifier.faults == []
            assert checked.versions > 0


@pytest.mark.parametrize("ending", ["*.lmdb", "*.log"])
def test_what_was_removed_for_good_is_said(tmp_path: Path, ending: str) -> None:
    """Files that go and do not come back are no writer's work: what is shown is of a whole version, or it is said
    what is missing.
    """
    path = tmp_path / "s"
    with writing(path) as commits:
        commits(40)
    for file in sorted(path.rglob(ending))[:-1]:
        file.unlink()
    try:
        view = view_of(path)
        if not view.faults:
            right(view)
    except (hs.HybridStoreError, OSError) as error:
        if str(path) not in str(error):
            raise


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[hs.State]:
    """A state that keeps one checkpoint, has one, and was opened again."""
    keep, tuning = hs.CheckpointPolicy(every_commits=None, keep=1), Tuning(segment_bytes=500)
    for again in (False, True):
        with hs.open(tmp_path / "s", checkpoints=keep, durability="os", _tuning=tuning) as state:
            prunes(state)
            if again:
                yield state


def prunes(state: hs.State) -> None:
    """The owner writes all anew and makes two checkpoints: of what was there nothing is left."""
    for _ in range(2):
        state.key_value("kv").put_many({f"k{number}": state.version for number in range(100)})
        state.commit()
        state.checkpoint(wait=True)


def test_a_pack_is_whole_whatever_the_owner_removes_meanwhile(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, copied, often = str(tmp_path / "s"), pack.parts_of, 1

    def pruned_before(storage: Any, name: str) -> Iterator[bytes]:
        nonlocal often
        if name.startswith(PACKS) and often:
            often -= 1
            prunes(owner)
        return copied(storage, name)

    monkeypatch.setattr(pack, "parts_of", pruned_before)
    assert run(["inspect", "pack", state, "--to", str(tmp_path / "s.zip")]) == 0
    assert not often
    assert run(["inspect", "verify", str(tmp_path / "s.zip"), "--full"]) == 0
    assert run(["inspect", "diff", state, str(tmp_path / "s.zip")]) == 0
    often = 100
    capsys.readouterr()
    assert run(["inspect", "pack", state, "--to", str(tmp_path / "again.zip")]) == 3
    assert "was removed while it was packed, as by the job that has the state open" in capsys.readouterr().err
    assert not (tmp_path / "again.zip").exists()


def test_a_list_of_files_without_the_checkpoint_is_not_packed(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing beside a job may have neither the checkpoint that was removed nor the one that replaced it."""
    files_of, often = pack._files_of, 1

    def listed(place: Any) -> list[str]:
        nonlocal often
        often -= 1
        return [name for name in files_of(place) if often < 0 or not name.startswith(CHECKPOINTS)]

    monkeypatch.setattr(pack, "_files_of", listed)
    assert run(["inspect", "pack", str(tmp_path / "s"), "--to", str(tmp_path / "s.zip")]) == 0
    assert run(["inspect", "verify", str(tmp_path / "s.zip")]) == 0


def test_what_is_committed_while_a_repair_is_planned_is_not_lost(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place,) = resolve(tmp_path / "s")
    salvaged = repair.salvaged

    def committed_since(of: Any) -> Any:
        salvage = salvaged(of)
        owner.key_value("kv")["later"] = 1
        owner.commit()
        return salvage

    monkeypatch.setattr(repair, "salvaged", committed_since)
    assert repair.planned(place).lost == ""


def test_a_history_has_the_key_whatever_is_pruned_before_the_log_is_read(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach_once, often = events.reach_once, 1

    def pruned_before(place: Any) -> Any:
        nonlocal often
        if often:
            often -= 1
            prunes(owner)
        return reach_once(place)

    monkeypatch.setattr(events, "reach_once", pruned_before)
    assert [event.op for event in hs.inspect(tmp_path / "s").history("kv", "k1")]


def test_versions_that_are_always_removed_before_they_are_read_are_not_retained(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every try comes too late for what it has listed, the newest checkpoint and what is behind it is shown."""

    def removed_behind(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(place: Any, **given: Any) -> Any:
            listed = look(place, **given)
            if place.form == "directory":
                prunes(owner)
            return listed

        return looked

    monkeypatch.setattr("recovery.retrying._WAIT_SECONDS", 0)
    (place,) = resolve(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(versions, "line_of", removed_behind(versions.line_of))
        within = versions.reach(place)
        assert (within.oldest, within.checkpoints, within.faults) == (owner.version, [owner.version], [])
        assert run(["inspect", "report", place.where, "-o", str(tmp_path / "s.html")]) == 0
    monkeypatch.setattr(events, "reach_once", removed_behind(events.reach_once))
    assert [(event.op, event.new) for event in hs.inspect(tmp_path / "s").history("kv", "k1")] == [
        ("found", owner.version - 1)
    ]


def test_a_damaged_checkpoint_of_a_state_on_which_nobody_works_is_no_removed_one(tmp_path: Path) -> None:
    keep = hs.CheckpointPolicy(every_commits=None, keep=2)
    with hs.open(tmp_path / "s", checkpoints=keep, _tuning=Tuning(segment_bytes=500)) as state:
        for _ in range(2):
            prunes(state)
    oldest = min((tmp_path / "s" / CHECKPOINTS).glob("*.lmdb"))
    oldest.write_bytes(oldest.read_bytes()[:100])
    with pytest.raises(hs.HybridStoreError, match=f"{oldest.name[:20].lstrip('0')} is not retained"):
        hs.inspect(tmp_path / "s").history("kv", "k1")


def test_what_is_removed_while_bytes_are_counted_has_none(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place,) = resolve(tmp_path / "s")
    names = list(place.storage.list())
    prunes(owner)
    monkeypatch.setattr(type(place.storage), "list", lambda *_: names)
    assert compact.bytes_of(place.storage) < sum(file.stat().st_size for file in place.path.rglob("*"))


@pytest.mark.parametrize("stays", [False, True])
def test_beside_an_owner_only_a_fault_that_stays_counts(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    (place,) = resolve(tmp_path / "s")
    checked = PlaceVerifier.run

    def with_faults(verifier: PlaceVerifier) -> Any:
        verifier._fault("packs/gone", f"missing by version {owner.version}")
        if stays:
            verifier._fault("packs/damaged", "checksum mismatch")
        prunes(owner)
        return checked(verifier)

    monkeypatch.setattr(verify.PlaceVerifier, "run", with_faults)
    with Progress("", 0, shown=False) as progress:
        verifier, _ = _steady(place, progress, quick=False, full=False)
    assert [fault.file for fault in verifier.faults] == ["packs/damaged"] * stays


def test_a_history_of_files_that_always_change_is_tried_again_by_one_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
    tries = 0

    def changing(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        (tmp_path / "changelog" / f"other-{tries}").touch()
        raise FileNotFoundError(2, "removed while it was read")

    monkeypatch.setattr("hybridstore.reading.versions.line_of", changing)
    monkeypatch.setattr("recovery.retrying._WAIT_SECONDS", 0)
    (place,) = resolve(tmp_path)
    with pytest.raises(RestoreError, match="removed while it was read"):
        events.history_of(place, "kv", "a", [])
    assert tries == 30


def test_a_checkpoint_that_is_removed_while_it_is_verified_was_no_damage(
    tmp_path: Path, owner: hs.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place,) = resolve(tmp_path / "s")
    checkpoint = Verifier.checkpoint

    def pruned_before(*given: Any) -> Iterator[Any]:
        prunes(owner)
        return checkpoint(*given)

    monkeypatch.setattr(Verifier, "checkpoint", pruned_before)
    with Progress("", 0, shown=False) as progress:
        verifier = PlaceVerifier(place, progress)
        verifier.run()
    assert verifier.faults == []
