"""A coverage-guided fuzzer: `python -m tests.fuzz TARGET [SECONDS] [FINDINGS]`.

Needs `pip install atheris` (Linux, CPython).

What a target raises beside HybridStoreError is kept as FINDINGS/<target>-<where>, the smallest input for each place,
and the run goes on. `tests/fuzz/corpus/` holds what was found before; `tests/inspection/test_fuzz.py` runs it every
time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["changelog", "recovery", "hybridstore"]):
    from .targets import TARGETS

from .seeds import seeds

_OURS = ("/changelog/", "/recovery/", "/hybridstore/")


def _place(error: BaseException) -> str:
    """Return where an error came from: its type, and the innermost function of ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if any(part in f.filename for part in _OURS)]
    spot = frames[-1] if frames else None
    where = "outside" if spot is None else f"{Path(spot.filename).stem}.{spot.name}.{spot.lineno}"
    return f"{type(error).__name__}.{where}"


def fuzz(name: str, seconds: int, findings: Path, folder: Path) -> None:
    """Fuzz one target. The engine ends the process when it is done."""
    target = TARGETS[name]
    known: dict[str, int] = {}
    inputs, scratch = folder / "inputs", folder / "scratch"
    inputs.mkdir()
    for number, seed in enumerate(seeds(name)):
        (inputs / str(number)).write_bytes(seed)
    for kept in (Path(__file__).parent / "corpus").glob(f"{name}-*"):
        shutil.copyfile(kept, inputs / kept.name)

    def try_input(data: bytes) -> None:
        scratch.mkdir()
        try:
            target(data, scratch)
        except Exception as error:  # whatever it is, it is what we are after
            place = _place(error)
            if len(data) < known.get(place, sys.maxsize):
                known[place] = len(data)
                (findings / f"{name}-{place}").write_bytes(data)
                (findings / f"{name}-{place}.txt").write_text(traceback.format_exc(), "utf-8", "backslashreplace")
                print(f"found {place}: {error!s:.200}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(scratch)

    options = [f"-max_total_time={seconds}", "-max_len=6000", "-timeout=60", f"-artifact_prefix={findings}/{name}-"]
    atheris.Setup([sys.argv[0], *options, str(inputs)], try_input)
    atheris.Fuzz()


def main() -> None:
    """Fuzz in a process of its own, so that what it leaves behind can be removed."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"expected a target: {', '.join(TARGETS)}")
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    findings = Path(sys.argv[3] if len(sys.argv) > 3 else "fuzz-findings")
    findings.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 4:
        fuzz(name, seconds, findings, Path(sys.argv[4]))
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "tests.fuzz", name, str(seconds), str(findings), folder]
        code = subprocess.run(line, check=False).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
