"""A machine that has never seen the project: what `make` and the build server say and do there, without installing
anything.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def make(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    # a `make test` that runs this test hands its own options down
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    environment["PATH"] = path + environment["PATH"]
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def python_whose_pip_fails(tmp_path: Path, step: int) -> Path:
    """A Python whose environments have a pip that fails at its n-th installation."""
    inner = script(
        tmp_path / "inner",
        f'echo "$@" >> {tmp_path}/calls\n[ $(wc -l < {tmp_path}/calls) -lt {step} ] || '
        "{ echo pip says why >&2; exit 1; }\n",
    )
    venv = f'[ "$1" = -m ] && mkdir -p "$3/bin" && cp {inner} "$3/bin/python"\nexit 0\n'
    return script(tmp_path / "python", f'[ "$1" = --version ] && echo Python 3.11.0 && exit\n{venv}')


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_installation_that_fails_ends_with_one_sentence_and_is_not_taken_for_a_finished_one(
    tmp_path: Path, step: int
) -> None:
    python, venv = python_whose_pip_fails(tmp_path, step), tmp_path / "venv"
    answer = make("demo", "ENGINE=plain", f"PYTHON={python}", f"VENV={venv}")
    assert answer.returncode == 2
    reason, sentence, *rest = answer.stderr.splitlines()
    assert reason == "pip says why"
    assert sentence.startswith("make: pip could not install what is needed, as it says above (")
    assert len(rest) == 1, rest  # make's own word about the recipe
    assert not (venv / ".ready").exists()
    assert "traffic" not in answer.stdout


def test_an_installation_that_was_begun_anew_and_failed_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    python, venv = python_whose_pip_fails(tmp_path, 2), tmp_path / "venv"
    venv.mkdir()
    (venv / ".ready").touch()
    os.utime(venv / ".ready", (0, 0))
    assert make(str(venv / ".ready"), f"PYTHON={python}", f"VENV={venv}").returncode == 2
    assert not (venv / ".ready").exists()


def test_a_python_that_cannot_make_environments_gets_one_sentence(tmp_path: Path) -> None:
    python = script(tmp_path / "python", '[ "$1" = -m ] && exit 1\nexit 0\n')
    answer = make("test", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[0].startswith(
        f"make: {python} could not make the environment {tmp_path / 'venv'}"
    )


def test_an_old_python_gets_one_sentence(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "exit 1\n")
    answer = make("test", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[0].startswith(f"make: {python} is not Python 3.11 or newer (")


@pytest.mark.parametrize("target", ["demo", "test", "cover", "bench", "lock"])
def test_nothing_is_built_with_what_happens_to_be_installed(tmp_path: Path, target: str) -> None:
    """pyspark comes as source: a new environment has nothing to build it with, so pip must bring that."""
    python = script(tmp_path / "python", "exit 0\n")
    answer = make("-n", target, f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert answer.returncode == 0, answer.stderr
    assert "pip install" in answer.stdout
    assert "isolation" not in answer.stdout


def test_what_builds_pyspark_is_of_one_version() -> None:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in pinned if line.startswith("setuptools==")]
    assert [line for line in pinned if line.startswith("hatchling==")]


@pytest.mark.parametrize("code", [0, 1])
def test_the_build_server_starts_from_an_empty_home_and_cache_and_passes_on_how_it_ended(
    tmp_path: Path, code: int
) -> None:
    """The true test of this is a run of it; here a `make` that tells what it was given."""
    run = ROOT / ".ci" / "run"
    if not run.exists():
        pytest.skip("not a checkout")
    script(
        tmp_path / "bin" / "make", f'echo "$*|$PIP_NO_CACHE_DIR|$HOME|$XDG_CACHE_HOME"; ls -A "$HOME"; exit {code}\n'
    )
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    answer = subprocess.run([str(run)], env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == code, answer.stderr
    (line,) = answer.stdout.splitlines()  # there is nothing in that home
    what, cache, home, caches = line.split("|")
    assert (what, cache) == ("check", "1")
    assert home != str(tmp_path)
    assert Path(caches).is_relative_to(home)
    assert not Path(home).exists()
