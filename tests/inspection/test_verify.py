"""`verify`: a sound state has no fault, and any flipped bit that a read could meet is one."""

import json
import random
import re
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.inspection.commands.verify import PlaceVerifier
from hybridstore.progress import Progress
from hybridstore.reading.places import resolve
from hybridstore.state.opening import Tuning
from recovery.verify import Fault
from tests.tools.sizes import SMALL_PARTS


def build(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with hs.open(path, _tuning=Tuning(segment_bytes=1500, block_records=5, parts=SMALL_PARTS)) as state:
        kv, win = state.key_value("kv"), state.window("win", retention=100)
        ses = state.session("ses", retention=100)
        clock = 0
        for _ in range(15):
            for _ in range(10):
                clock += draw.randrange(5)
                key = f"k{draw.randrange(20)}"
                kv.put(key, draw.choice([None, clock, "text" * 300]))
                win.put(key, clock, clock)
                ses.put(key, clock, start=max(0, clock - 5), end=clock)
            state.set("position", clock)
            state.commit()
            if draw.random() < 0.4:
                state.checkpoint(wait=True)


def faults(path: Path, *, full: bool = False, quick: bool = False) -> list[Fault]:
    (place,) = resolve(path)
    verifier = PlaceVerifier(place, Progress("", 0, shown=False), full=full, quick=quick)
    verifier.run()
    return verifier.faults


def test_a_sound_state_has_no_fault(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    for full, quick in ((False, False), (True, False), (False, True)):
        assert faults(tmp_path / "s", full=full, quick=quick) == []
    for path in (tmp_path / "s").glob("*/*0*.l*"):
        assert faults(path) == []


def test_no_flipped_bit_of_the_changelog_goes_unnoticed(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    draw = random.Random(seed)
    for path in sorted((tmp_path / "s" / "changelog").glob("*.log")):
        whole = path.read_bytes()
        for _ in range(20):
            raw = bytearray(whole)
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            path.write_bytes(raw)
            # the newest segment was closed: even its end cannot be taken for a torn tail
            assert faults(tmp_path / "s"), path
        path.write_bytes(whole)
    assert faults(tmp_path / "s") == []


def test_a_flipped_bit_of_a_block_or_a_page_is_named(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    draw = random.Random(seed)
    for path in sorted((tmp_path / "s" / "checkpoints").glob("*.lmdb")):
        whole = path.read_bytes()
        faulty = 0
        for _ in range(20):
            raw = bytearray(whole)
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            path.write_bytes(raw)
            faulty += bool(faults(tmp_path / "s"))
        path.write_bytes(whole)
        assert faulty
        cut = whole[: len(whole) // 2]
        path.write_bytes(cut)
        assert any(fault.file == str(path) for fault in faults(tmp_path / "s"))
        path.write_bytes(whole)


def test_a_copy_of_version_1_is_sound_though_no_changelog_says_how_it_came(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("kv")["a"] = 1
        state.commit()
    assert run(["inspect", "compact", str(tmp_path / "s"), "--to", str(tmp_path / "c"), "--write"]) == 0
    assert faults(tmp_path / "c", full=True) == []


def test_verify_lists_faults_and_has_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "s", 3)
    assert run(["inspect", "verify", str(tmp_path / "s"), "--full"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "sound" in captured.err
    segment = min((tmp_path / "s" / "changelog").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[100] ^= 1
    segment.write_bytes(raw)
    assert run(["inspect", "verify", str(tmp_path / "s"), "-o", "jsonl"]) == 1
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["file"] == f"changelog/{segment.name}"
    assert "mismatch" in first["fault"] or "frame" in first["fault"]
    assert run(["inspect", "verify", str(tmp_path / "s"), "--quick", "--full"]) == 2


def test_a_lost_end_is_noticed_by_the_note_in_lock(tmp_path: Path) -> None:
    build(tmp_path / "s", 4)
    segment = max((tmp_path / "s" / "changelog").glob("*.log"))
    segment.unlink()
    assert faults(tmp_path / "s")


def test_an_empty_segment_behind_the_only_checkpoint_of_a_closed_state_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with hs.open(path) as state:
        state.key_value("kv").put_many({"ann": 1, "bob": 2})
        state.commit()
    hs.erase(path, "bob")  # of older versions nothing remains
    (segment,) = (path / "changelog").iterdir()
    segment.write_bytes(b"")
    lost = r"was closed at version \d+, but the changelog ends at version \d+"
    with pytest.raises(hs.errors.RestoreError, match=lost):
        hs.open(path)
    assert any(re.search(lost, fault.what) for fault in faults(path))
