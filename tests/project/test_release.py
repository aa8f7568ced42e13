"""The release script, without an index: its steps in their order, its notes, and what it asks of a wheel; the sdist."""

import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_steps_come_in_order_and_the_first_that_fails_ends_the_release(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step is a command; here they are noted, and `build` leaves two empty files."""
    out, failing = tmp_path / "dist", False
    steps: list[str] = []

    def step(*command: object, cwd: Path = ROOT) -> None:
        words = [str(word) for word in command]
        steps.append(" ".join(words[1:4]))
        if "build" in words:
            out.mkdir()
            for name in (f"hybridstore-{VERSION}-py3-none-any.whl", f"hybridstore-{VERSION}.tar.gz"):
                (out / name).touch()
        if "check_wheel_contents" in words and failing:
            raise SystemExit(1)

    monkeypatch.setattr(release, "run", step)
    monkeypatch.setattr(release, "check_wheel", lambda wheel, folder: steps.append(f"use {wheel.name}"))
    monkeypatch.setattr(sys, "argv", ["release.py", "--out", str(out)])
    for failing in (False, True):
        steps.clear()
        if failing:
            with pytest.raises(SystemExit):
                release.main()
        else:
            release.main()
        assert steps[:4] == [
            "-m build --no-isolation", "-m pip install", "-m twine check", "-m check_wheel_contents --ignore",
        ]  # fmt: skip
        assert steps[4:] == ([] if failing else [f"use hybridstore-{VERSION}-py3-none-any.whl"])
        assert (out / "notes.md").exists() is not failing
    assert f"git tag v{VERSION}" in capsys.readouterr().out


def test_the_notes_are_the_section_of_the_news(release: ModuleType) -> None:
    notes = release.notes_of((ROOT / "NEWS.md").read_text(encoding="utf-8"), VERSION)
    assert notes
    assert "\n## " not in notes
    assert release.notes_of("# News\n\n## 2.0 (soon)\n\nNew.\n\n## 1.0\n\nOld.\n", "2.0") == "New.\n"
    with pytest.raises(ValueError, match=r"no section '3\.0'"):
        release.notes_of("## 2.0\n", "3.0")


def test_a_job_on_the_package_alone_needs_neither_numpy_nor_pandas_nor_pyarrow(
    release: ModuleType, tmp_path: Path
) -> None:
    """What the release asks of the installed wheel, here of the checkout, with these packages out of reach."""
    hidden = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'pandas', 'pyarrow', 'pyspark', 'obstore')))"
    job = subprocess.run(
        [sys.executable, "-c", hidden + release.SMOKE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert (job.returncode, job.stderr) == (0, "")
    assert '"stores"' in job.stdout


def test_a_failing_step_ends_the_release_with_its_exit_code(release: ModuleType) -> None:
    release.run(sys.executable, "-c", "")
    with pytest.raises(SystemExit) as ended:
        release.run(sys.executable, "-c", "raise SystemExit(3)")
    assert ended.value.code == 3


def test_the_sdist_has_the_sources_the_licence_the_news_and_the_policy_of_security(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    answer = subprocess.run(build, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (file,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        about = archive.extractfile(f"hybridstore-{VERSION}/PKG-INFO")
        licence = archive.extractfile(f"hybridstore-{VERSION}/LICENSE")
        assert about is not None
        assert licence is not None
        facts, text = about.read().decode(), licence.read().decode()
    assert {"README.md", "NEWS.md", "SECURITY.md", "pyproject.toml", "hybridstore/py.typed"} <= names
    assert text == (ROOT / "LICENSE").read_text(encoding="utf-8")
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Requires-Python: >=3.11"):
        assert re.search(f"^{re.escape(line)}$", facts, re.M), line
