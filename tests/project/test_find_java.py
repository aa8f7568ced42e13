"""The search for a Java that starts Spark, tried on programs that only say they are Java."""

import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "find_java.py"
# What runs the programs below: a path of its own keeps the machine's Java out of the search.
TOOLS = "/usr/bin:/bin"

Java = Callable[..., Path]


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """Make the home of a program that answers as a Java of this version, with or without the vector module."""

    def make(name: str, version: str, *, vector: bool = True, works: bool = True) -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        refuse = "" if vector else 'case "$*" in *jdk.incubator.vector*) echo "not found" >&2; exit 1 ;; esac\n'
        program.write_text(
            f"#!/bin/sh\n{refuse}"
            f"echo {shlex.quote(f'    java.home = {home}')} >&2\n"
            f"echo '    java.specification.version = {version}' >&2\n"
            f'printf "%s\\n" "$@" >> {shlex.quote(str(home))}/said\nexit {0 if works else 1}\n'
        )
        program.chmod(0o755)
        return home

    return make


def find(
    monkeypatch: pytest.MonkeyPatch, *, home: Path | None = None, path: list[Path] | None = None, places: str = ""
) -> tuple[Path | None, dict[str, object]]:
    script = runpy.run_path(str(SCRIPT), run_name="find_java")
    names = script["java_home"].__globals__
    monkeypatch.setenv("PATH", os.pathsep.join(str(p / "bin") for p in path or []))
    monkeypatch.setenv("JAVA_HOME", str(home) if home else "")
    monkeypatch.setitem(names, "PLACES", (places,) if places else ())
    monkeypatch.setitem(names, "installed_runtime", lambda: None)
    return script["java_home"](), script


def test_the_users_own_choice_comes_first_then_path_then_the_directories(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, on_path, installed = java("chosen", "21"), java("on_path", "17"), java("jvm/java-17", "17")
    places = f"{tmp_path}/jvm/*"
    assert find(monkeypatch, home=chosen, path=[on_path], places=places)[0] == chosen
    assert find(monkeypatch, path=[on_path], places=places)[0] == on_path
    assert find(monkeypatch, places=places)[0] == installed


def test_what_is_too_old_or_does_not_start_is_passed_over(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, older, broken, good = java("a", "11"), java("b", "1.8"), java("c", "21", works=False), java("d", "17")
    assert find(monkeypatch, home=tmp_path / "absent", path=[old, older, broken, good])[0] == good
    assert find(monkeypatch, home=old, path=[older, broken])[0] is None


def test_a_runtime_without_the_vector_module_gets_a_wrapper_that_drops_the_option(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, full = java("small runtime's", "21", vector=False), java("full", "17")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert find(monkeypatch, path=[small, full])[0] == full, "a complete Java is better than a wrapped one"

    home, _ = find(monkeypatch, path=[small])
    assert home == tmp_path / "env" / "java-without-vector-module"
    options = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "-Dx=$HOME", "Main", "", "--add-modules=java.sql"]
    (small / "said").unlink()
    subprocess.run([home / "bin" / "java", *options], env={"PATH": TOOLS}, check=True, stderr=subprocess.DEVNULL)
    options.remove("--add-modules=jdk.incubator.vector")
    assert (small / "said").read_text().splitlines() == options


def test_where_there_is_none_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, script = find(monkeypatch)
    assert script["main"]() == 3  # type: ignore[operator]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("find_java: no Java 17 or newer found")
    assert "(install one, for example `apt-get install openjdk-17-jre-headless`" in err
    assert err.count("\n") == 1
