"""Release: build the sdist and the wheel, check them, test the wheel in a fresh environment, and write its notes.

    .venv/bin/python scripts/release.py [--out dist]

Nothing is uploaded and no tag is made: the script prints the commands for that. It stops at the first step that fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Uses the wheel as a job does: a commit, a restart, a command; neither pandas nor pyarrow is there.
SMOKE = """
import subprocess, sys
import hybridstore as hs
counts = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
rows = [{"user": "ann", "ts": 0}, {"user": "ann", "ts": 500}]
assert [row["n"] for row in counts.run(rows, "state")] == [1, 2]
assert list(counts.run(rows, "state")) == []
assert hs.inspect("state").position == 2
assert not any(map(sys.modules.get, ("numpy", "pandas", "pyarrow")))
subprocess.run([sys.executable, "-m", "hybridstore", "inspect", "info", "state"], check=True)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a step. Raises SystemExit with its exit code if it fails."""
    print("+", *command, flush=True)
    code = subprocess.run([str(part) for part in command], cwd=cwd, check=False).returncode
    if code:
        raise SystemExit(code)


def notes_of(news: str, version: str) -> str:
    """Return the section of a version in NEWS.md. Raises ValueError if it has none."""
    section = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", news, flags=re.S | re.M)
    if section is None:
        raise ValueError(f"NEWS.md: no section {version!r}, expected '## {version}'")
    return section[1].strip() + "\n"


def check_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel into a fresh environment below `folder`, and use it from an empty directory."""
    environment, empty = folder / "environment", folder / "empty"
    for old in (environment, empty):
        shutil.rmtree(old, ignore_errors=True)
    empty.mkdir(parents=True)
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", "-c", ROOT / "constraints.txt", wheel)
    run(python, "-c", SMOKE, cwd=empty)


def main() -> None:
    """Build, check, test, and write the notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out.resolve()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    notes = notes_of((ROOT / "NEWS.md").read_text(encoding="utf-8"), version)
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out)
    run(sys.executable, "-m", "pip", "install", "-q", "twine", "check-wheel-contents")
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    # W009: three top-level packages are the project's layout; W005 is about a module named as one in another package
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", "W009", wheel)
    check_wheel(wheel, ROOT / "build" / "release")
    (out / "notes.md").write_text(notes, encoding="utf-8")
    print(f"\n{wheel.name}, {sdist.name} and notes.md are in {out}. To publish them:")
    print(f"  git tag v{version} && git push origin v{version} && python -m twine upload {wheel} {sdist}")


if __name__ == "__main__":
    main()
