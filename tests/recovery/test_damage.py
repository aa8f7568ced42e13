"""Any byte of any file flipped, any file cut, lengthened, removed or swapped: never a state that was not committed.

A small state of all kinds of stores is damaged thousands of times. Each time it must open to exactly a committed state
(the newest, or, with a cut that is reported, an earlier one) or be refused by one of our errors; a block found damaged
when it is touched must be named, and the state reopen without it. The cases run in subprocesses, many in each, because
a bad page can make LMDB abort. `make test` takes headers, meta pages and a sample, `make stress` every byte and length.
"""

import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from tests.conftest import STRESS
from tests.recovery.test_crash_points import contents, do, open_state, stores, workload
from tests.tools.faults import QuickFiles
from tests.tools.hooks import crash
from tests.tools.model import ModelState

STEPS = 14
SAMPLE = 60
BATCH = 400


class Case(NamedTuple):
    """What is done to which file: flip (offset, bits), cut (to a length), grow (by bytes, with zeros or not),
    remove, or swap (for another file).
    """

    file: str
    what: str
    at: int
    detail: int
    other: str = ""


def build(path: Path, *, closed: bool) -> None:
    """Write a state with segments, two checkpoints and a tail, and beside it what its stores hold at each version."""
    steps = workload(77)[:STEPS]
    path.mkdir(parents=True)
    state, disk = open_state(path / "state", QuickFiles()), dict[str, Any]()
    model = ModelState(disk)
    shown = [repr(None)]
    for number, step in enumerate(steps, 1):
        # Blocks above 2 KB are in pages of their own, which nothing reads before they are touched.
        big = [("kv", "put", (f"big {number % 4}", f"{number}" * 2500))] if number < 7 else []
        do(stores(state, False), step.calls + big)
        do(stores(model, True), step.calls + big)
        state.commit()
        model.commit()
        shown.append(repr(contents(stores(model, True))))
        if number in (5, 10):
            state.checkpoint(wait=True)
    if closed:
        state.close()
    else:
        crash(state)
    (path / "shown.json").write_text(json.dumps(shown))


def damage(path: Path, case: Case) -> None:
    """Do to a state what a case says."""
    file = path / case.file
    raw = bytearray(file.read_bytes())
    if case.what == "flip":
        raw[case.at] ^= case.detail
    elif case.what == "cut":
        del raw[case.at :]
    elif case.what == "grow":
        raw += (b"\xa5" if case.detail else b"\0") * case.at
    elif case.what == "swap":
        raw = bytearray((path / case.other).read_bytes())
    if case.what == "remove":
        file.unlink()
    else:
        file.write_bytes(raw)


def outcome(path: Path, shown: list[str], case: Case) -> str:
    """Open a damaged state, read everything, go on with it, and say how it went.

    Raises AssertionError for what must not be.

    Only a log of a killed writer that is cut between two commits looks like one that was never longer.
    """
    try:
        state = open_state(path, QuickFiles())
    except hs.HybridStoreError as error:
        if str(path) not in str(error):
            raise AssertionError("the error does not say where") from error
        return f"refused: {type(error).__name__}"
    report = state.restore_report
    try:
        shown_now = repr(contents(stores(state, False))) if state.version else repr(None)
    except hs.errors.CorruptCheckpointError as error:
        if not re.search(r"block \d+ of store|store \d+: page of the directory", str(error)):
            raise AssertionError(f"the error does not say which block: {error}") from error
        crash(state)
        again = outcome(path, shown, case)
        # both checkpoints may have the block, and each names it once
        assert again.startswith(("refused", "fell back", "found when touched")), again
        assert again.count("found when touched") < 2, again
        return f"found when touched, then {again}"
    newest = len(shown) - 1
    assert shown_now == shown[state.version], f"version {state.version} is not what was committed"
    between = case.what == "cut" and case.file.endswith(".log")
    if state.version != newest:
        assert report.cut is not None or between, f"shortened to version {state.version} without a word"
    stores(state, False)["kv"].put("more", state.version)
    state.commit()
    if state._checkpoints.attempt is None:
        state.checkpoint(wait=True)
    version = state.version
    state.close()
    state = open_state(path, QuickFiles())
    assert (state.version, stores(state, False)["kv"].get("more")) == (version, version - 1)
    state.close()
    return "cut" if version <= newest else "fell back" if report.skipped else "whole"


def worker(source: str, scratch: str) -> None:
    """Run the cases that come as lines of JSON, and print a line for each."""
    shown = json.loads((Path(source) / "shown.json").read_text())
    target = Path(scratch)
    for number, line in enumerate(sys.stdin):
        path = target / str(number)
        shutil.copytree(Path(source) / "state", path)
        case = Case(*json.loads(line))
        damage(path, case)
        try:
            print(outcome(path, shown, case), flush=True)
        except Exception as error:  # any other error is what the test is after
            print(f"FAILED {type(error).__name__}: {error}".replace("\n", " "), flush=True)
        shutil.rmtree(path)


def cases(path: Path, dice: random.Random) -> list[Case]:
    """All the damage, or the headers and a sample of the rest."""
    certain: list[Case] = []
    possible: list[Case] = []
    files = {str(file.relative_to(path)): file.stat().st_size for file in sorted(path.rglob("*")) if file.is_file()}
    for file, size in files.items():
        for at in range(size):
            head = at < 72 or (file.endswith(".pack") and at < 64)
            (certain if head and (STRESS or at % 17 == 0) else possible).append(
                Case(file, "flip", at, 1 << dice.randrange(8))
            )
            if not file.endswith(".lmdb") or at % 512 == 0:
                possible.append(Case(file, "flip", at, 0xFF))
                possible.append(Case(file, "cut", at, 0))
        certain += [Case(file, "cut", at, 0) for at in (0, 1, size // 2, size - 1)]
        certain += [Case(file, "grow", at, garbage) for at in (1, 512, 4096) for garbage in (0, 1)]
        certain.append(Case(file, "remove", 0, 0))
        certain += [Case(file, "swap", 0, 0, other) for other in files if other != file and other[-4:] == file[-4:]]
    return certain + (possible if STRESS else dice.sample(possible, SAMPLE))


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
def test_damage_is_detected_repaired_or_harmless(tmp_path: Path, closed: bool, seed: int) -> None:
    build(tmp_path / "source", closed=closed)
    chosen = cases(tmp_path / "source" / "state", random.Random(seed))
    seen: Counter[str] = Counter()
    failures = []
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        done = subprocess.run(
            [sys.executable, "-c",
             "import sys; from tests.recovery.test_damage import worker; worker(*sys.argv[1:])",
             str(tmp_path / "source"), str(scratch)],
            input="".join(json.dumps(case) + "\n" for case in batch),
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        shutil.rmtree(scratch)
        lines = done.stdout.splitlines()
        if done.returncode != 0:
            failures.append(
                f"{batch[min(len(lines), len(batch) - 1)]}: the interpreter died: {done.returncode}: "
                f"{done.stderr[-500:]}"
            )
        for case, line in zip(batch, lines, strict=False):
            seen[line.partition(" FAILED")[0] if not line.startswith("FAILED") else "FAILED"] += 1
            if line.startswith("FAILED"):
                failures.append(f"{case}: {line}")
    print(len(chosen), "cases:", dict(seen))
    assert failures == [], f"{len(failures)} of {len(chosen)}"
    assert {"whole", "fell back", "found when touched, then fell back"} <= seen.keys()
    # After a clean close, nothing that is shorter passes for the whole.
    assert ("cut" in seen) == (not closed)
